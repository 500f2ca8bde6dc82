#include "common/gpu/emulator/bulk_copy.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "common/gpu/emulator/cluster.h"
#include "common/gpu/emulator/region.h"

namespace emulator {

namespace {

constexpr const char* load_name = "cp.async.bulk.tensor";
constexpr const char* store_name = "cp.async.bulk.tensor store";
constexpr const char* bulk_load_name = "cp.async.bulk";
constexpr const char* bulk_add_name = "cp.reduce.async.bulk.add";

void check_multiple(const char* name, const char* what, std::int64_t value, int of, Site site) {
    if (value % of == 0) return;
    machine.report(
        std::string(name) + ": " + what + ", " + std::to_string(value) + ", is not a multiple of " + std::to_string(of),
        site);
}

void check_coordinates(const char* name, const Box& box, int rank, Site site) {
    if (box.map.rank != rank)
        machine.report(std::string(name) + " with " + std::to_string(rank) + " coordinates of a tensor map of " +
                           std::to_string(box.map.rank) + " dimensions",
                       site);
    check_multiple(name, "the first coordinate in bytes", std::int64_t{box.begin[0]} * box.map.element_bytes, 16, site);
}

/// `bytes` in a row: a tensor of one dimension, copied whole.
Box row(const void* data, const Region* region, int bytes, const char* name, Site site) {
    if (bytes < 16) machine.report(std::string(name) + " of " + std::to_string(bytes) + " bytes; at least 16", site);
    check_multiple(name, "the number of bytes", bytes, 16, site);
    check_multiple(name, "the address in global memory",
                   static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data)), 16, site);
    return {{static_cast<char*>(const_cast<void*>(data)), region, 1, 1, {bytes}, {1}, {bytes}, 0}, {}};
}

Box box_at(const TensorMap& map, const int* coordinates) {
    Box box{map, {}};
    std::copy_n(coordinates, map.rank, box.begin);
    return box;
}

/// One destination of a load: everything is in order there, and nobody touches it from now on.
Load& order(const char* name, Thread& thread, Site site, const Box& box, Cta& cta, std::uint32_t destination,
            std::uint32_t barrier_address) {
    Mbarrier& barrier = mbarrier_at(thread, cta, barrier_address, name, site);
    check_visible_beyond(thread, barrier, name, site);
    if (&cta != thread.cta) visit(thread, cta, name, site);
    Load& load = thread.cta->loads.emplace_back(name, &thread, site, box, &cta, destination, &barrier);
    box.for_each_range(destination, [&](std::uint32_t address, int bytes) {
        cta.arena.engine_write(load, barrier.agent, cta.arena.at(address), bytes);
    });
    totals.shared_written += static_cast<std::uint64_t>(box.bytes());
    return load;
}

/// A load is about to be ordered: room for it, and what it will read is counted.
void prepare_load(Cta& cta, const Box& box, const char* name, Site site) {
    while (!cta.loads.empty() && cta.loads.front().performed()) cta.loads.pop_front();
    box.for_each_row([&](int, int, int bytes, const char* global) {
        if (bytes > 0) count_global_read(box.map.region, global, bytes, name, site);
    });
}

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

// Loads --------------------------------------------------------------------------------------------------------------

bool Load::awaited() const { return !barrier->waiting.empty(); }

bool Load::step() {
    SharedArena& arena = cta->arena;
    {
        EngineSpeaks engine(*this);
        box.for_each_row([](int, int, int bytes, const char* global) {
            if (bytes > 0) tsan::read_range(global, static_cast<std::size_t>(bytes));
        });
        box.for_each_range(destination, [&](std::uint32_t address, int bytes) {
            tsan::write_range(arena.at(address), static_cast<std::size_t>(bytes));
        });
        tsan::release(barrier->tokens[barrier->phase % 2]);
    }
    box.for_each_row([&](int row, int first, int bytes, const char* global) {
        const std::uint32_t begin = destination + static_cast<std::uint32_t>(row * box.pitch());
        for (int chunk = 0; chunk < box.row_bytes(); chunk += 16) {
            char* const to = arena.at(box.swizzled(begin + static_cast<std::uint32_t>(chunk)));
            const int low = std::max(first, chunk), high = std::min(first + bytes, chunk + 16);
            if (high - low < 16) std::memset(to, 0, 16);
            if (high > low) std::memcpy(to + low - chunk, global + low - first, static_cast<std::size_t>(high - low));
        }
    });
    const Stamp end{static_cast<std::uint16_t>(barrier->agent), barrier->phase + 1};
    box.for_each_range(destination,
                       [&](std::uint32_t address, int bytes) { arena.delivered(end, arena.at(address), bytes); });
    complete_tx(*barrier, box.bytes());
    return true;
}

void tensor_load(std::uint32_t destination, const TensorMap& map, const int* coordinates, int rank,
                 std::uint32_t barrier, std::uint32_t cta_mask, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(load_name);
    const Box box = box_at(map, coordinates);
    check_coordinates(load_name, box, rank, site);
    check_multiple(load_name, "the destination in shared memory", destination, 128, site);
    prepare_load(*thread.cta, box, load_name, site);
    std::vector<Load*> loads;
    if (cta_mask == 0) {
        Cta& cta = cta_of(thread, destination, load_name, site);
        loads.push_back(&order(load_name, thread, site, box, cta, destination, barrier));
    } else {
        for (int rank_of_cta = 0; rank_of_cta < 32; ++rank_of_cta) {
            if (!(cta_mask >> rank_of_cta & 1)) continue;
            const std::uint32_t there = address_in(rank_of_cta, destination);
            Cta& cta = cta_of(thread, there, load_name, site);
            loads.push_back(&order(load_name, thread, site, box, cta, there, address_in(rank_of_cta, barrier)));
        }
    }
    for (Load* load : loads) issue(*load);
}

void bulk_load(std::uint32_t destination, const void* source, const Region* region, int bytes, std::uint32_t barrier,
               Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(bulk_load_name);
    const Box box = row(source, region, bytes, bulk_load_name, site);
    check_multiple(bulk_load_name, "the destination in shared memory", destination, 16, site);
    prepare_load(*thread.cta, box, bulk_load_name, site);
    Cta& cta = cta_of(thread, destination, bulk_load_name, site);
    issue(order(bulk_load_name, thread, site, box, cta, destination, barrier));
}

// Stores and additions -----------------------------------------------------------------------------------------------

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
    const Box box = box_at(map, coordinates);
    check_coordinates(store_name, box, rank, site);
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
    const Box box = row(destination, region, bytes, bulk_add_name, site);
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
