// setmaxnreg: warpgroups give registers back to a pool of their CTA and take some from it. Nothing is stored in them
// here; what counts is whether the books balance, since on a GPU an inc for which there is nothing left waits for ever.
#include <algorithm>

#include "common/gpu/emulator/machine.h"
#include "common/gpu/emulator/warpgroup.h"

namespace emulator {

namespace {

constexpr const char *inc_name = "setmaxnreg.inc", *dec_name = "setmaxnreg.dec";
constexpr int least = 24, most = 256, step = 8;

/// The most registers a thread of warpgroup w could have if all others gave back what they can.
int obtainable(const Cta& cta, int w) {
    int free = cta.free_registers;
    for (int other = 0; other < cta.thread_count / warpgroup_size; ++other) {
        const bool alive = cta.warps[other * warpgroup_warps].live != 0;
        if (other != w && alive) free += (cta.warpgroups[other].registers - least) * warpgroup_size;
    }
    return cta.warpgroups[w].registers + free / warpgroup_size;
}

bool change(Cta& cta, int w) {
    Warpgroup& warpgroup = cta.warpgroups[w];
    const WarpgroupMeeting& meeting = warpgroup.meeting;
    const auto asked = [&](int thread) { return *static_cast<const int*>(meeting.operands[thread]); };
    const int n = asked(0), now = warpgroup.registers;
    const bool increase = meeting.instruction == inc_name;
    const auto report = [&](const std::string& why) {
        machine.report(std::string(meeting.instruction) + " to " + std::to_string(n) + ": " + why, meeting.site);
    };
    for (int thread = 1; thread < warpgroup_size; ++thread)
        if (asked(thread) != n)
            report("thread " + std::to_string(w * warpgroup_size + thread) + " of the same warpgroup asks for " +
                   std::to_string(asked(thread)));
    for (int thread = 0; thread < warpgroup_size; ++thread)
        if (const Thread& member = *cta.threads[w * warpgroup_size + thread];
            member.epoch == warpgroup.synchronised[thread])
            report(text(member) + " has not synchronised with the warpgroup since its last setmaxnreg");
    if (n < least || n > most || n % step != 0) report("it is a multiple of 8 from 24 to 256");
    if (increase ? n < now : n > now)
        report("the threads have " + std::to_string(now) + " registers each; " + (increase ? "inc" : "dec") +
               " never makes them " + (increase ? "fewer" : "more"));
    const int needed = (n - now) * warpgroup_size;
    if (needed > cta.free_registers) {
        if (n > obtainable(cta, w))
            report("it would wait for ever: the threads have " + std::to_string(now) + " registers each, " +
                   std::to_string(cta.free_registers) +
                   " are free, and the other warpgroups can give back enough for " +
                   std::to_string(obtainable(cta, w)) + " at most");
        return false;
    }
    warpgroup.registers = n;
    cta.free_registers -= needed;
    for (int thread = 0; thread < warpgroup_size; ++thread)
        warpgroup.synchronised[thread] = cta.threads[w * warpgroup_size + thread]->epoch;
    return true;
}

}  // namespace

void setmaxnreg(int registers, bool increase, Site site) {
    const char* const instruction = increase ? inc_name : dec_name;
    tsan::Ignore ignore;
    machine.operation();
    Cta& cta = *machine.thread(instruction).cta;
    meet_warpgroup(instruction, &registers, site, change);
    if (!increase) try_again(cta, inc_name);
}

int registers_at_launch(const gpu::LaunchShape& shape) {
    constexpr int of_a_multiprocessor = 65536;
    return shape.registers > 0 ? shape.registers : std::min(255, of_a_multiprocessor / shape.threads / step * step);
}

}  // namespace emulator
