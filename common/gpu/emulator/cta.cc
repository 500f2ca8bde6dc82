// A CTA and a cluster at their start: everything is as if they were the first.
#include "common/gpu/emulator/cluster.h"

namespace emulator {

void Cta::start(std::int64_t cta, int threads_in_cta, std::size_t shared_bytes, std::uint32_t first_address,
                int registers) {
    index = cta;
    thread_count = live_threads = threads_in_cta;
    ready_warps = 0;
    arena.start(shared_bytes, first_address);
    tensor_memory.start(*this);
    pending.clear();
    loads.clear();
    mbarriers.clear();
    visitors.clear();
    for (Barrier& barrier : barriers) barrier = {};
    for (Warp& warp : warps) {
        warp.ready = warp.live = warp.exists = 0;
        warp.meetings.clear();
        warp.tensor = {};
    }
    free_registers = 0;
    for (int first = 0; first < thread_count; first += warpgroup_size) {
        Warpgroup& warpgroup = warpgroups[first / warpgroup_size];
        warpgroup = {};
        warpgroup.registers = registers;
    }
    static const Past nothing = boost::make_local_shared<Clock>();
    while (static_cast<int>(threads.size()) < thread_count) threads.push_back(std::make_unique<Thread>());
    for (int i = 0; i < thread_count; ++i) {
        Thread& thread = *threads[i];
        thread.cta = this;
        thread.index = i;
        thread.waiting = {};
        thread.role.clear();
        thread.polled = nullptr;
        thread.copies.clear();
        thread.bulk.clear();
        thread.agent = cluster->add({&thread, this});
        thread.epoch = 1;
        thread.fenced_epoch = 0;
        thread.past = nothing;
        thread.tensor = {};
        thread.tensor.past = nothing;
        thread.timed_out_after = 0;
        thread.cluster_arrived = false;
        warps[thread.warp()].live |= thread.bit();
        warps[thread.warp()].exists |= thread.bit();
        set_ready(thread);
    }
}

void Machine::start(Cluster& cluster, std::int64_t first_cta) {
    cluster.size = shape_->cluster;
    cluster.agents.assign(1, {});
    cluster.arrived = 0;
    cluster.phase = 0;
    cluster.arriving = cluster.complete = {};
    cluster.waiting.clear();
    // The same place in every CTA, so that mapa only changes the rank.
    const auto offset = static_cast<std::uint32_t>(SharedArena::alignment) * (1 + random_.below(15));
    while (static_cast<int>(cluster.ctas.size()) < cluster.size) cluster.ctas.push_back(std::make_unique<Cta>());
    for (int rank = 0; rank < cluster.size; ++rank) {
        Cta& cta = *cluster.ctas[rank];
        cta.cluster = &cluster;
        cta.rank = rank;
        cta.start(first_cta + rank, shape_->threads, shape_->shared_bytes, address_in(rank, offset),
                  registers_at_launch(*shape_));
        for (int i = 0; i < cta.thread_count; ++i) cta.threads[i]->fiber.start(thread_entry, cta.threads[i].get());
        scheduler_.admit(cta);
        residents_.push_back(&cta);
    }
}

}  // namespace emulator
