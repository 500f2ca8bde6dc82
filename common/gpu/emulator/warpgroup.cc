#include "common/gpu/emulator/warpgroup.h"

#include <string_view>

#include "common/gpu/emulator/machine.h"

namespace emulator {

namespace {

bool same(Site a, Site b) { return a.line == b.line && (a.file == b.file || std::string_view(a.file) == b.file); }

/// "0-31, 64-127": the threads of warpgroup w that have come, or have not.
std::string threads(const WarpgroupMeeting& meeting, int w, bool come) {
    std::string result;
    for (int warp = 0; warp < warpgroup_warps; ++warp) {
        const std::uint32_t lanes = come ? meeting.lanes[warp] : ~meeting.lanes[warp];
        if (lanes != 0) result += (result.empty() ? "" : ", ") + ranges(lanes, w * warpgroup_size + warp * warp_size);
    }
    return result;
}

std::string progress(const Thread& thread) {
    const int w = thread.index / warpgroup_size;
    const WarpgroupMeeting& meeting = thread.cta->warpgroups[w].meeting;
    if (meeting.arrived < warpgroup_size)
        return "threads " + threads(meeting, w, false) + " of the warpgroup have not come";
    return std::to_string(thread.cta->free_registers) + " registers are free";
}

void check_members(const Thread& thread, int w, const char* instruction, Site site) {
    const Cta& cta = *thread.cta;
    if ((w + 1) * warpgroup_size > cta.thread_count)
        machine.report(std::string(instruction) +
                           " needs a whole warpgroup, four warps from a multiple of four on; the CTA has " +
                           std::to_string(cta.thread_count) + " threads, and the last " +
                           std::to_string(cta.thread_count - w * warpgroup_size) + " are none",
                       site);
    for (int warp = w * warpgroup_warps; warp < (w + 1) * warpgroup_warps; ++warp)
        if (cta.warps[warp].live != 0xFFFFFFFFu)
            machine.report(std::string(instruction) + " needs threads " +
                               ranges(~cta.warps[warp].live, warp * warp_size) + " of the warpgroup, which have exited",
                           site);
    for (const Meeting& other : cta.warps[thread.warp()].meetings)
        if (other.mask & thread.bit())
            machine.report("lanes of warp " + std::to_string(thread.warp()) + " diverged: lane " +
                               std::to_string(thread.lane()) + " is at " + instruction + " at " + text(site) +
                               ", lanes " + ranges(other.arrived) + " are at " + other.instruction->name + " at " +
                               text(other.site) + "; each waits for the other",
                           site);
}

void finish(Cta& cta, int w) {
    WarpgroupMeeting& meeting = cta.warpgroups[w].meeting;
    meeting = {};
    for (int i = w * warpgroup_size; i < (w + 1) * warpgroup_size; ++i)
        if (cta.threads[i].get() != machine.current()) machine.wake(*cta.threads[i]);
}

}  // namespace

void meet_warpgroup(const char* instruction, const void* operand, Site site, bool (*complete)(Cta&, int)) {
    Thread& thread = machine.thread(instruction);
    Cta& cta = *thread.cta;
    const int w = thread.index / warpgroup_size;
    check_members(thread, w, instruction, site);
    WarpgroupMeeting& meeting = cta.warpgroups[w].meeting;
    if (meeting.arrived == 0) {
        meeting.instruction = instruction;
        meeting.site = site;
        meeting.complete = complete;
    } else if (meeting.instruction != instruction || !same(meeting.site, site)) {
        machine.report("warpgroup " + std::to_string(w) + " diverged: " + text(thread) + " is at " + instruction +
                           " at " + text(site) + ", threads " + threads(meeting, w, true) + " are at " +
                           meeting.instruction + " at " + text(meeting.site) + "; all 128 execute the same",
                       site);
    }
    meeting.lanes[thread.warp() % warpgroup_warps] |= thread.bit();
    meeting.operands[thread.index % warpgroup_size] = operand;
    if (++meeting.arrived < warpgroup_size || !complete(cta, w)) {
        machine.park({instruction, -1, site, progress});
    } else {
        finish(cta, w);
    }
}

void try_again(Cta& cta, const char* instruction) {
    for (int w = 0; w < cta.thread_count / warpgroup_size; ++w) {
        const WarpgroupMeeting& meeting = cta.warpgroups[w].meeting;
        if (meeting.arrived == warpgroup_size && meeting.instruction == instruction && meeting.complete(cta, w))
            finish(cta, w);
    }
}

void check_warpgroup_after_exit(const Thread& thread, Site site) {
    const int w = thread.index / warpgroup_size;
    if (w >= static_cast<int>(thread.cta->warpgroups.size())) return;
    const WarpgroupMeeting& meeting = thread.cta->warpgroups[w].meeting;
    if (meeting.arrived > 0)
        machine.report("the thread exits while threads " + threads(meeting, w, true) +
                           " of its warpgroup wait for it at " + meeting.instruction + " at " + text(meeting.site),
                       site);
}

}  // namespace emulator
