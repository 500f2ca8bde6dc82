// barrier.sync and barrier.arrive: the sixteen named barriers of a CTA.
#include <string_view>

#include "common/gpu/emulator/region.h"
#include "common/gpu/emulator/rendezvous.h"

namespace emulator {

namespace {

std::string progress(const Thread& thread) {
    const Barrier& barrier = thread.cta->barriers[thread.waiting.barrier];
    return std::to_string(barrier.arrived) + " of " + std::to_string(barrier.expected) + " threads have arrived";
}

std::string name(const char* instruction, int id) { return std::string(instruction) + " " + std::to_string(id); }

/// Threads of the CTA that have exited, in words; empty if none has.
std::string exited(const Cta& cta) {
    std::string result;
    for (int w = 0; w < max_warps; ++w) {
        const Warp& warp = cta.warps[w];
        if (warp.exists & ~warp.live)
            result += (result.empty() ? "" : ", ") + ranges(warp.exists & ~warp.live, w * warp_size);
    }
    return result;
}

void check_operands(const Thread& thread, const char* instruction, int id, int threads, Site site) {
    if (id < 0 || id >= named_barriers) machine.report(name(instruction, id) + ": a CTA has barriers 0 to 15", site);
    if (threads % warp_size != 0 || threads < 0)
        machine.report(name(instruction, id) + " for " + std::to_string(threads) +
                           " threads: the number must be a multiple of 32, whole warps",
                       site);
    if (threads > thread.cta->thread_count)
        machine.report(name(instruction, id) + " for " + std::to_string(threads) + " threads, but the CTA has " +
                           std::to_string(thread.cta->thread_count),
                       site);
}

/// A barrier that is complete must have whole warps.
void check_whole_warps(const Cta& cta, const Barrier& barrier, const char* instruction, int id, Site site) {
    for (int w = 0; w < max_warps; ++w)
        if (barrier.arrived_lanes[w] != 0 && barrier.arrived_lanes[w] != cta.warps[w].exists)
            machine.report(name(instruction, id) + " is complete with a part of warp " + std::to_string(w) +
                               ": lanes " + ranges(barrier.arrived_lanes[w]) + " arrived; barriers count whole warps",
                           site);
}

/// True if the running thread was the last one that the barrier waited for.
bool arrive(Thread& thread, const char* instruction, int id, int threads, Site site) {
    Cta& cta = *thread.cta;
    Barrier& barrier = cta.barriers[id];
    const bool everyone = threads == 0;
    const int expected = everyone ? cta.thread_count : threads;
    if (everyone && cta.live_threads < cta.thread_count)
        machine.report(
            name(instruction, id) + " waits for every thread of the CTA, but threads " + exited(cta) + " have exited",
            site);
    if (barrier.arrived > 0 && barrier.expected != expected)
        machine.report(name(instruction, id) + " for " + std::to_string(expected) + " threads, but " +
                           text(barrier.site) + " arrived at the same barrier for " + std::to_string(barrier.expected),
                       site);
    std::uint32_t& lanes = barrier.arrived_lanes[thread.warp()];
    if (lanes & thread.bit())
        machine.report(name(instruction, id) + ": the thread arrives a second time before the barrier is complete (" +
                           std::to_string(barrier.arrived) + " of " + std::to_string(barrier.expected) +
                           " have arrived)",
                       site);
    Site& warp_site = barrier.sites[thread.warp()];
    if (lanes == 0) warp_site = site;
    if (everyone && (warp_site.line != site.line || std::string_view(warp_site.file) != site.file))
        machine.report(name(instruction, id) + " of all threads: lanes " + ranges(lanes) +
                           " of the warp came to it at " + text(warp_site) +
                           "; it is .aligned, so a warp comes from one place",
                       site);
    if (barrier.arrived == 0) {
        barrier.expected = expected;
        barrier.everyone = everyone;
        barrier.site = site;
    }
    lanes |= thread.bit();
    barrier.sync.release(thread);
    return ++barrier.arrived == barrier.expected;
}

void complete(Cta& cta, Barrier& barrier, const char* instruction, int id, Site site) {
    check_whole_warps(cta, barrier, instruction, id, site);
    for (int w = 0; w < max_warps; ++w)
        for (std::uint32_t lanes = barrier.waiting_lanes[w]; lanes != 0; lanes &= lanes - 1) {
            Thread& waiter = *cta.threads[w * warp_size + std::countr_zero(lanes)];
            barrier.sync.acquire(waiter);
            machine.wake(waiter);
        }
    barrier.arrived = 0;
    barrier.arrived_lanes = {};
    barrier.waiting_lanes = {};
    barrier.sync = {};
    ++barrier.generation;
    ++totals.barriers;
}

}  // namespace

void bar_sync(int id, int threads, Site site) {
    constexpr const char* instruction = "barrier.sync";
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(instruction);
    check_operands(thread, instruction, id, threads, site);
    Barrier& barrier = thread.cta->barriers[id];
    tsan::Token& token = barrier.tokens[barrier.generation % 2];
    tsan::release(token);
    const bool last = arrive(thread, instruction, id, threads, site);
    barrier.waiting_lanes[thread.warp()] |= thread.bit();
    if (last) {
        complete(*thread.cta, barrier, instruction, id, site);
    } else {
        machine.park({instruction, id, site, progress});
    }
    tsan::acquire(token);
}

void bar_arrive(int id, int threads, Site site) {
    constexpr const char* instruction = "barrier.arrive";
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(instruction);
    check_operands(thread, instruction, id, threads, site);
    if (threads == 0) machine.report(name(instruction, id) + " needs a number of threads", site);
    Barrier& barrier = thread.cta->barriers[id];
    tsan::release(barrier.tokens[barrier.generation % 2]);
    const bool last = arrive(thread, instruction, id, threads, site);
    if (last) complete(*thread.cta, barrier, instruction, id, site);
}

void check_barriers_after_exit(const Thread& thread, Site site) {
    for (int id = 0; id < named_barriers; ++id) {
        const Barrier& barrier = thread.cta->barriers[id];
        if (barrier.arrived > 0 && barrier.everyone)
            machine.report("the thread exits while " + std::to_string(barrier.arrived) +
                               " threads wait for every thread of the CTA at " + name("barrier.sync", id) + " at " +
                               text(barrier.site),
                           site);
        if (barrier.arrived > 0 && thread.cta->live_threads == 0)
            machine.report("the CTA ends before " + name("barrier.arrive", id) + " is complete: " +
                               std::to_string(barrier.arrived) + " of " + std::to_string(barrier.expected) +
                               " threads have arrived, the first at " + text(barrier.site),
                           site);
    }
}

}  // namespace emulator
