// Bulk and tensor copies to shared memory, counted by mbarriers.
#include <cstring>

#include "common/gpu/emulator/cluster.h"
#include "common/gpu/emulator/region.h"

namespace emulator {

namespace {

constexpr const char* load_name = "cp.async.bulk.tensor";
constexpr const char* bulk_load_name = "cp.async.bulk";

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
        if (bytes == 0) return;
        count_global_read(box.map.region, global, bytes, name, site);
        check_fenced(box.map.region, global, bytes, name, site);
    });
}

}  // namespace

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
    const Box box = box_at(map, coordinates, rank, load_name, site);
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
    const Box box = row_box(source, region, bytes, bulk_load_name, site);
    check_multiple(bulk_load_name, "the destination in shared memory", destination, 16, site);
    prepare_load(*thread.cta, box, bulk_load_name, site);
    Cta& cta = cta_of(thread, destination, bulk_load_name, site);
    issue(order(bulk_load_name, thread, site, box, cta, destination, barrier));
}

}  // namespace emulator
