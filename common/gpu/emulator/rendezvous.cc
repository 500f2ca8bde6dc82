#include "common/gpu/emulator/rendezvous.h"

#include <bit>
#include <string_view>

namespace emulator {

namespace {

std::string progress(const Thread& thread) {
    for (const Meeting& meeting : thread.cta->warps[thread.warp()].meetings)
        if (meeting.arrived & thread.bit())
            return "lanes " + ranges(meeting.mask & ~meeting.arrived) + " of the warp have not come";
    return "";
}

bool same(Site a, Site b) { return a.line == b.line && (a.file == b.file || std::string_view(a.file) == b.file); }

/// The lane is in its mask, and all lanes of the mask can still come.
void check_mask(const Thread& thread, const Warp& warp, const char* instruction, std::uint32_t mask, Site site) {
    if ((mask & thread.bit()) && !(mask & ~warp.live)) return;
    const std::string name = instruction;
    if (!(mask & thread.bit())) machine.report(name + ": the lane is not in the mask that it passes", site);
    const std::string of_warp = " of warp " + std::to_string(thread.warp());
    if (mask & ~warp.exists)
        machine.report(name + " needs lanes " + ranges(mask & ~warp.exists) + of_warp + ", but the CTA has only " +
                           std::to_string(thread.cta->thread_count) + " threads",
                       site);
    machine.report(name + " needs lanes " + ranges(mask & ~warp.live) + of_warp + ", which have exited", site);
}

}  // namespace

void meet(const WarpInstruction& instruction, std::uint32_t mask, void* operand, Site site,
          void (*complete)(Cta&, Meeting&)) {
    Thread& thread = machine.thread(instruction.name);
    Warp& warp = thread.cta->warps[thread.warp()];
    check_mask(thread, warp, instruction.name, mask, site);

    const WarpgroupMeeting& others = thread.cta->warpgroups[thread.warp() / warpgroup_warps].meeting;
    if (const std::uint32_t lanes = others.lanes[thread.warp() % warpgroup_warps] & mask; lanes != 0)
        machine.report("lanes of warp " + std::to_string(thread.warp()) + " diverged: lane " +
                           std::to_string(thread.lane()) + " is at " + instruction.name + " at " + text(site) +
                           ", lanes " + ranges(lanes) + " are at " + others.instruction + " at " + text(others.site) +
                           "; each waits for the other",
                       site);
    Meeting* meeting = nullptr;
    for (Meeting& other : warp.meetings) {
        if (other.instruction == &instruction && other.mask == mask &&
            (!instruction.aligned || same(other.site, site))) {
            meeting = &other;
        } else if ((other.arrived & mask) && (other.mask & thread.bit())) {
            machine.report(std::string("lanes of warp ") + std::to_string(thread.warp()) + " diverged: lane " +
                               std::to_string(thread.lane()) + " is at " + instruction.name + " at " + text(site) +
                               ", lanes " + ranges(other.arrived & mask) + " are at " + other.instruction->name +
                               " at " + text(other.site) + "; each waits for the other",
                           site);
        }
    }
    if (meeting == nullptr) {
        meeting = &warp.meetings.emplace_back(Meeting{&instruction, mask, 0, site});
        meeting->token = &warp.sync_tokens[warp.syncs++ % warp.sync_tokens.size()];
    }
    meeting->arrived |= thread.bit();
    meeting->operands[thread.lane()] = operand;
    tsan::Token& token = *meeting->token;
    if (instruction.orders_memory) {
        tsan::release(token);
        meeting->sync.release(thread);
    }
    if (meeting->arrived != mask) {
        machine.park({instruction.name, -1, site, progress});
        if (instruction.orders_memory) tsan::acquire(token);
        return;
    }
    if (instruction.orders_memory) tsan::acquire(token);

    complete(*thread.cta, *meeting);
    const int first = thread.warp() * warp_size;
    for (std::uint32_t lanes = mask; lanes != 0; lanes &= lanes - 1) {
        Thread& lane = *thread.cta->threads[first + std::countr_zero(lanes)];
        if (instruction.orders_memory) meeting->sync.acquire(lane);
        if (&lane != &thread) machine.wake(lane);
    }
    warp.meetings.erase(warp.meetings.begin() + (meeting - warp.meetings.data()));
}

void check_warp_after_exit(const Thread& thread, Site site) {
    for (const Meeting& meeting : thread.cta->warps[thread.warp()].meetings)
        if (meeting.mask & thread.bit())
            machine.report("the thread exits while lanes " + ranges(meeting.arrived) + " of its warp wait for it at " +
                               meeting.instruction->name + " at " + text(meeting.site),
                           site);
}

}  // namespace emulator
