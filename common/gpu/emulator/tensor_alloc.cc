// tcgen05.alloc and dealloc, by whole warps; the fences of a thread; and what is left when it exits.
#include <cstring>

#include "common/gpu/emulator/cluster.h"
#include "common/gpu/emulator/region.h"
#include "common/gpu/emulator/rendezvous.h"

namespace emulator {

namespace {

constexpr std::uint32_t all_lanes = 0xFFFFFFFFu;
constexpr WarpInstruction alloc{"tcgen05.alloc", true, false}, dealloc{"tcgen05.dealloc", true, false},
    relinquish{"tcgen05.relinquish_alloc_permit", true, false};

struct Operands {
    std::uint32_t address;
    int columns, ctas;
};

/// What all lanes pass alike.
const Operands& passed(const Meeting& meeting) {
    const auto at = [&](int lane) -> const Operands& { return *static_cast<const Operands*>(meeting.operands[lane]); };
    for (int lane = 1; lane < warp_size; ++lane)
        if (at(lane).address != at(0).address)
            machine.report(std::string(meeting.instruction->name) +
                               ": all lanes of a warp pass the same address, but lane 0 passes " +
                               std::to_string(at(0).address) + ", and lane " + std::to_string(lane) + " " +
                               std::to_string(at(lane).address),
                           meeting.site);
    return at(0);
}

}  // namespace

void tcgen05_alloc(std::uint32_t destination, int columns, int ctas, Site site) {
    Operands operands{destination, columns, ctas};
    char* bytes = nullptr;
    {
        tsan::Ignore ignore;
        machine.operation();
        const Thread& thread = machine.thread(alloc.name);
        bytes = thread.cta->arena.at(destination);
        if (destination % 4 != 0)
            machine.report(
                "tcgen05.alloc: the shared address " + std::to_string(destination) + " is not a multiple of 4", site);
        meet(alloc, all_lanes, &operands, site, [](Cta& cta, Meeting& meeting) {
            const Operands& x = passed(meeting);
            const Thread& first = *cta.threads[machine.current()->warp() * warp_size];
            char* const bytes = cta.arena.at(x.address);
            cta.arena.write(first, bytes, 4, alloc.name, meeting.site);
            const int column = cta.tensor_memory.allocate(first, x.columns, x.ctas, meeting.site);
            std::memcpy(bytes, &column, 4);
            totals.shared_written += 4;
        });
        if (thread.lane() != 0) return;
    }
    tsan::write_range(bytes, 4);
}

void tcgen05_dealloc(std::uint32_t address, int columns, int ctas, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Operands operands{address, columns, ctas};
    meet(dealloc, all_lanes, &operands, site, [](Cta& cta, Meeting& meeting) {
        const Operands& x = passed(meeting);
        cta.tensor_memory.free(lanes_of(*machine.current()), x.address, x.columns, x.ctas, meeting.site);
    });
}

void tcgen05_relinquish_alloc_permit(int ctas, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Operands operands{0, 0, ctas};
    meet(relinquish, all_lanes, &operands, site,
         [](Cta& cta, Meeting& meeting) { cta.tensor_memory.relinquish(passed(meeting).ctas, meeting.site); });
}

void tcgen05_fence_before_thread_sync(Site) {
    tsan::Ignore ignore;
    machine.operation();
    fence_before(machine.thread("tcgen05.fence::before_thread_sync"));
}

void tcgen05_fence_after_thread_sync(Site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread("tcgen05.fence::after_thread_sync");
    thread.tensor.past = thread.past;
}

void fence_before(Thread& thread) {
    const TensorWarp& warp = thread.cta->warps[thread.warp()].tensor;
    const auto stamp = [](const TensorAgent& agent) {
        return Stamp{static_cast<std::uint16_t>(agent.number), agent.over};
    };
    thread.tensor.fenced = {stamp(warp.loads), stamp(warp.stores)};
}

Accessors lanes_of(const Thread& thread) {
    Accessors result;
    for (int i = thread.index - thread.lane(); i < thread.index - thread.lane() + warp_size; ++i) {
        const Thread& lane = *thread.cta->threads[i];
        if (result.empty() || lane.past != result.back()->past || lane.tensor.past != result.back()->tensor.past)
            result.push_back(&lane);
    }
    return result;
}

void check_tensor_operations_at_exit(const Thread& thread, Site site) {
    const TensorWarp& warp = thread.cta->warps[thread.warp()].tensor;
    for (const TensorAgent* agent : {&warp.loads, &warp.stores})
        if (!agent->under_way.empty()) {
            const TensorMove& oldest = agent->under_way.front();
            machine.report("the thread exits while " + std::string(oldest.name) + " of its warp issued at " +
                               text(oldest.site) + " is under way, and no tcgen05.wait has covered it",
                           site);
        }
    if (thread.tensor.uncommitted > 0) {
        const TensorOperation& last = *thread.tensor.operations.back();
        machine.report("the thread exits with " + std::to_string(thread.tensor.uncommitted) +
                           " products or copies in tensor memory that no tcgen05.commit has followed, the last issued "
                           "at " +
                           text(last.site),
                       site);
    }
}

}  // namespace emulator
