// Bulk and tensor copies to global memory, bulk additions, and the groups that they fall into.
#include <bit>
#include <cmath>
#include <cstring>

#include "common/gpu/emulator/cluster.h"
#include "common/gpu/emulator/region.h"

namespace emulator {

namespace {

constexpr const char* store_name = "cp.async.bulk.tensor store";
constexpr const char* bulk_add_name = "cp.reduce.async.bulk.add";

/// The thread's next store: its source is in order, and nobody changes it until a wait has covered it.
void order(const char* name, Thread& thread, Site site, const Box& box, std::uint32_t source, bool adds) {
    BulkGroups& bulk = thread.bulk;
    if (bulk.agent == 0) bulk.agent = thread.cta->cluster->add({});
    box.for_each_row([&](int, int, int bytes, const char* global) {
        if (bytes > 0) count_global_write(box.map.region, global, bytes, name, site);
    });
    ++bulk.uncommitted;
    Store& store = bulk.operations.emplace_back(name, &thread, site, box, source, adds);
    SharedArena& arena = thread.cta->arena;
    box.for_each_range(source, [&](std::uint32_t address, int bytes) {
        arena.engine_read(store, {static_cast<std::uint16_t>(bulk.agent), bulk.committed + 1}, arena.at(address),
                          bytes);
        arena.remember_reader(store, bulk.agent, arena.at(address), bytes);
    });
    totals.shared_read += static_cast<std::uint64_t>(box.bytes());
    issue(store);
}

/// The thread has ordered nothing: a wait of it covers nothing.
void check_others_of_warp(const Thread& thread, const char* instruction, Site site) {
    const int first = thread.warp() * warp_size;
    for (int i = first; i < std::min(first + warp_size, thread.cta->thread_count); ++i) {
        const Thread& other = *thread.cta->threads[i];
        if (!other.bulk.operations.empty())
            machine.report(std::string(instruction) + " by a thread that has ordered nothing; " + text(other) +
                               " of its warp has, and only its own wait covers that",
                           site);
    }
}

/// fp32, nearest even; subnormals are kept, unlike those of red.global.add: so does an H200.
void add(char* global, const char* bytes) {
    float value;
    std::memcpy(&value, bytes, sizeof(value));
#if GPU_TSAN
    auto* const word = reinterpret_cast<volatile int*>(global);
    float sum = std::bit_cast<float>(__tsan_atomic32_load(word, 0)) + value;
    if (std::isnan(sum)) sum = std::bit_cast<float>(0x7FFFFFFFu);
    __tsan_atomic32_store(word, std::bit_cast<int>(sum), 0);
#else
    float sum;
    std::memcpy(&sum, global, sizeof(sum));
    sum += value;
    if (std::isnan(sum)) sum = std::bit_cast<float>(0x7FFFFFFFu);
    std::memcpy(global, &sum, sizeof(sum));
#endif
}

}  // namespace

bool Store::step() {
    if (was_read()) {
        write();
        return true;
    }
    read();
    return false;
}

void Store::read() {
    const SharedArena& arena = issuer->cta->arena;
    {
        EngineSpeaks engine(*this);
        box.for_each_range(source, [&](std::uint32_t address, int n) {
            tsan::read_range(arena.at(address), static_cast<std::size_t>(n));
        });
    }
    bytes.resize(static_cast<std::size_t>(box.bytes()));
    char* to = bytes.data();
    for (int row = 0; row < box.rows(); ++row)
        for (int chunk = 0; chunk < box.row_bytes(); chunk += 16, to += 16)
            std::memcpy(to, arena.at(box.swizzled(source + static_cast<std::uint32_t>(row * box.pitch() + chunk))), 16);
}

void Store::write() {
    EngineSpeaks engine(*this);
    box.for_each_row([&](int row, int first, int n, char* global) {
        const char* const from = bytes.data() + row * box.row_bytes() + first;
        if (adds) {
            for (int i = 0; i < n; i += 4) add(global + i, from + i);
        } else if (n > 0) {
            tsan::write_range(global, static_cast<std::size_t>(n));
            std::memcpy(global, from, static_cast<std::size_t>(n));
        }
    });
}

void tensor_store(const TensorMap& map, const int* coordinates, int rank, std::uint32_t source, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(store_name);
    const Box box = box_at(map, coordinates, rank, store_name, site);
    check_multiple(store_name, "the source in shared memory", source, 128, site);
    for (int i = 0; i < rank; ++i)
        if (box.begin[i] < 0)
            machine.report(std::string(store_name) + " that begins at coordinate " + std::to_string(box.begin[i]) +
                               " of dimension " + std::to_string(i) + "; a store begins inside the tensor or beyond it",
                           site);
    order(store_name, thread, site, box, source, false);
}

void bulk_add(float* destination, const Region* region, std::uint32_t source, int bytes, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(bulk_add_name);
    const Box box = row_box(destination, region, bytes, bulk_add_name, site);
    check_multiple(bulk_add_name, "the source in shared memory", source, 16, site);
    totals.atomics += static_cast<std::uint64_t>(bytes) / sizeof(float);
    order(bulk_add_name, thread, site, box, source, true);
}

void bulk_commit_group(Site) {
    tsan::Ignore ignore;
    machine.operation();
    BulkGroups& bulk = machine.thread("cp.async.bulk.commit_group").bulk;
    bulk.commit();
    ++bulk.committed;
}

void bulk_wait_group(int pending, bool read, Site site) {
    const char* const instruction = read ? "cp.async.bulk.wait_group.read" : "cp.async.bulk.wait_group";
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(instruction);
    BulkGroups& bulk = thread.bulk;
    if (bulk.agent == 0) check_others_of_warp(thread, instruction, site);
    const std::size_t groups = bulk.sizes.size();
    const std::size_t covered = groups - std::min(groups, static_cast<std::size_t>(pending));
    std::size_t operations = 0;
    for (std::size_t i = 0; i < covered; ++i) operations += static_cast<std::size_t>(bulk.sizes[i]);
    for (std::size_t i = 0; i < operations; ++i) {
        Store& store = bulk.operations[i];
        if (!read) finish(store);
        if (!store.was_read()) machine.perform(store);
        tsan::acquire(store.done);
    }
    if (covered > 0) {
        bulk.seen_read = std::max(bulk.seen_read, bulk.committed - static_cast<std::uint32_t>(groups - covered));
        learn(thread, bulk.agent, bulk.seen_read);
    }
    if (read) return;
    for (std::size_t i = 0; i < covered; ++i) bulk.sizes.pop_front();
    for (std::size_t i = 0; i < operations; ++i) bulk.operations.pop_front();
}

void finish_bulk_at_exit(Thread& thread, Site site) {
    BulkGroups& bulk = thread.bulk;
    std::size_t waited = 0;
    const std::uint32_t oldest = bulk.committed - static_cast<std::uint32_t>(bulk.sizes.size()) + 1;
    for (std::size_t i = 0; i < bulk.sizes.size() && oldest + i <= bulk.seen_read; ++i)
        waited += static_cast<std::size_t>(bulk.sizes[i]);
    if (waited < bulk.operations.size()) {
        const Store& store = bulk.operations[waited];
        machine.report("the thread exits while " + std::string(store.name) + " issued at " + text(store.site) +
                           " may still be reading its shared memory: no wait_group has covered it",
                       site);
    }
    for (Store& store : bulk.operations) {
        finish(store);
        tsan::acquire(store.done);
    }
    bulk.clear();
}

}  // namespace emulator
