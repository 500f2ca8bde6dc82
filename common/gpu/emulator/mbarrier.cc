#include "common/gpu/emulator/mbarrier.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "common/gpu/emulator/cluster.h"
#include "common/gpu/emulator/region.h"

namespace emulator {

namespace {

constexpr int limit = (1 << 20) - 1;

std::string state(const Mbarrier& barrier) {
    std::string result = "phase " + std::to_string(barrier.phase) + " waits for " + std::to_string(barrier.pending) +
                         " of " + std::to_string(barrier.count) + " arrivals and " + std::to_string(barrier.tx) +
                         " bytes";
    if (barrier.tx < 0) result += " (more have come than were announced)";
    return result;
}

std::string progress(const Thread& thread) {
    return text(*thread.waiting.mbarrier) + ": " + state(*thread.waiting.mbarrier);
}

/// The live mbarrier of the thread's own CTA, whose init it has seen.
Mbarrier& usable(Thread& thread, std::uint32_t address, const char* instruction, Site site) {
    Mbarrier& barrier = mbarrier_at(thread, *thread.cta, address, instruction, site);
    if (!ordered(barrier.init, thread))
        machine.report(std::string(instruction) + ": " + text(barrier) + " was initialised at " + text(barrier.site) +
                           ", and no barrier lies between",
                       site);
    return barrier;
}

void test(Mbarrier& barrier) {
    if (barrier.pending != 0 || barrier.tx != 0) return;
    barrier.arriving.learn(barrier.agent, ++barrier.phase);
    barrier.complete = std::exchange(barrier.arriving, {});
    barrier.pending = barrier.count;
    for (Thread* thread : std::exchange(barrier.waiting, {})) machine.wake(*thread);
}

void add_tx(Mbarrier& barrier, int bytes, const char* instruction, Site site) {
    barrier.tx += bytes;
    if (std::abs(barrier.tx) > limit)
        machine.report(std::string(instruction) + ": " + text(barrier) + " would wait for " +
                           std::to_string(barrier.tx) + " bytes; allowed are -1048575 to 1048575",
                       site);
}

void check_arrival(const Mbarrier& barrier, const char* instruction, Site site) {
    if (barrier.seen < barrier.phase)
        machine.report(std::string(instruction) + ": an arrival for phase " + std::to_string(barrier.phase) + " of " +
                           text(barrier) + ", but nobody has waited for phase " + std::to_string(barrier.phase - 1),
                       site);
    if (barrier.pending == 0)
        machine.report(std::string(instruction) + ": one arrival too many, " + text(barrier) + " has had its " +
                           std::to_string(barrier.count) + " of phase " + std::to_string(barrier.phase) +
                           " and waits for " + std::to_string(barrier.tx) + " bytes",
                       site);
}

void count_arrival(Mbarrier& barrier) {
    --barrier.pending;
    machine.happened();
    test(barrier);
}

void arrive(Thread& thread, Mbarrier& barrier, int bytes, const char* instruction, Site site) {
    check_arrival(barrier, instruction, site);
    if (bytes != 0) add_tx(barrier, bytes, instruction, site);
    barrier.arriving.release(thread);
    tsan::release(barrier.tokens[barrier.phase % 2]);
    count_arrival(barrier);
}

/// The wait is for the current phase or the one before it. Which phase the thread means: the last that it knows to be
/// complete or the next, whichever has this parity.
void check_phase(const Thread& thread, const Mbarrier& barrier, int parity, const char* instruction, Site site) {
    const auto known = static_cast<std::int64_t>(thread.past->known(barrier.agent)) - 1;
    const std::int64_t meant = (known & 1) == parity ? known : known + 1;
    if (barrier.phase - meant < 2) return;
    machine.report(std::string(instruction) + " with parity " + std::to_string(parity) + ": the thread has " +
                       (known < 0 ? "seen no phase" : "last seen phase " + std::to_string(known)) + " of " +
                       text(barrier) + " complete, so that it waits for phase " + std::to_string(meant) +
                       ", and phase " + std::to_string(barrier.phase - 1) +
                       " is complete already: two phases off, parities repeat",
                   site);
}

}  // namespace

std::string text(const Mbarrier& barrier) {
    return "the mbarrier at shared memory offset " +
           std::to_string(barrier.address - barrier.cta->arena.first_address()) +
           (barrier.cta->cluster->size > 1 ? " of CTA " + std::to_string(barrier.cta->index) : "");
}

Mbarrier& mbarrier_at(const Thread&, Cta& cta, std::uint32_t address, const char* instruction, Site site) {
    const char* const bytes = cta.arena.at(address);
    cta.arena.check_inside(bytes, 8, instruction, site);
    const auto found = cta.mbarriers.find(address);
    if (found == cta.mbarriers.end())
        machine.report(std::string(instruction) + ": there is no live mbarrier at shared memory offset " +
                           std::to_string(bytes - cta.arena.memory()),
                       site);
    return found->second;
}

void check_visible_beyond(const Thread& thread, const Mbarrier& barrier, const char* instruction, Site site) {
    const std::string use =
        std::string(instruction) + ": " + text(barrier) + " was initialised at " + text(barrier.site);
    if (barrier.fence_epoch == 0)
        machine.report(use +
                           ", and its thread has not executed fence.mbarrier_init since: engines and other CTAs need "
                           "not see it yet",
                       site);
    if (!ordered({barrier.init.agent, barrier.fence_epoch}, thread))
        machine.report(use + ", and no barrier lies between its fence.mbarrier_init and this use", site);
}

void arrive(Mbarrier& barrier, const Past& known, const char* instruction, Site site) {
    check_arrival(barrier, instruction, site);
    barrier.arriving.learn(known);
    barrier.delivered = barrier.phase + 1;
    count_arrival(barrier);
}

void complete_tx(Mbarrier& barrier, int bytes) {
    add_tx(barrier, -bytes, "complete_tx", barrier.site);
    barrier.delivered = barrier.phase + 1;
    test(barrier);
}

void check_mbarriers_after_exit(const Cta& cta, Site site) {
    for (const auto& [address, barrier] : cta.mbarriers) {
        const std::string ends = "the CTA ends while " + text(barrier);
        if (barrier.tx != 0 || barrier.pending != barrier.count)
            machine.report(ends + " is in the middle of a phase: " + state(barrier), site);
        if (barrier.seen < barrier.delivered)
            machine.report(ends + " has counted copies or commits in phase " + std::to_string(barrier.delivered - 1) +
                               " that nobody has waited for",
                           site);
    }
}

void mbarrier_init(std::uint32_t address, int count, Site site) {
    constexpr const char* instruction = "mbarrier.init";
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(instruction);
    Cta& cta = *thread.cta;
    if (address % 8 != 0)
        machine.report("mbarrier.init: the shared address " + std::to_string(address) + " is not a multiple of 8",
                       site);
    if (count < 1 || count > limit)
        machine.report("mbarrier.init for " + std::to_string(count) + " arrivals; allowed are 1 to 1048575", site);
    const auto live = cta.mbarriers.find(address);
    if (live != cta.mbarriers.end())
        machine.report("mbarrier.init: " + text(live->second) + ", initialised at " + text(live->second.site) +
                           ", is live; mbarrier.inval comes first",
                       site);
    cta.arena.write(thread, cta.arena.at(address), 8, instruction, site);
    cta.arena.set_mbarrier(thread, cta.arena.at(address), true);
    Mbarrier& barrier = cta.mbarriers[address];
    barrier.cta = &cta;
    barrier.address = address;
    barrier.agent = cta.cluster->add({nullptr, &cta, address - cta.arena.first_address()});
    barrier.count = barrier.pending = count;
    barrier.site = site;
    barrier.init = {static_cast<std::uint16_t>(thread.agent), thread.epoch};
}

void mbarrier_inval(std::uint32_t address, Site site) {
    constexpr const char* instruction = "mbarrier.inval";
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(instruction);
    Mbarrier& barrier = usable(thread, address, instruction, site);
    if (barrier.pending != barrier.count || barrier.tx != 0 || !barrier.waiting.empty())
        machine.report("mbarrier.inval: " + text(barrier) + " is in use: " + state(barrier), site);
    for (const auto& cta : thread.cta->cluster->members())
        for (const AsyncOperation* operation : cta->pending)
            if (operation->counted_by() == &barrier)
                machine.report("mbarrier.inval: " + text(barrier) + " is to count " + operation->name + " issued by " +
                                   text(*operation->issuer) + " at " + text(operation->site),
                               site);
    thread.cta->arena.set_mbarrier(thread, thread.cta->arena.at(address), false);
    thread.cta->mbarriers.erase(address);
}

void fence_mbarrier_init(Site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread("fence.mbarrier_init");
    for (auto& [address, barrier] : thread.cta->mbarriers)
        if (barrier.init.agent == thread.agent && barrier.fence_epoch == 0) barrier.fence_epoch = thread.epoch;
}

void mbarrier_arrive(std::uint32_t address, int bytes, Site site) {
    const char* const instruction = bytes == 0 ? "mbarrier.arrive" : "mbarrier.arrive.expect_tx";
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(instruction);
    if (bytes < 0 || bytes > limit)
        machine.report("mbarrier.arrive.expect_tx of " + std::to_string(bytes) + " bytes; allowed are 0 to 1048575",
                       site);
    arrive(thread, usable(thread, address, instruction, site), bytes, instruction, site);
}

void mbarrier_arrive_cluster(std::uint32_t address, Site site) {
    constexpr const char* instruction = "mbarrier.arrive.shared::cluster";
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(instruction);
    Cta& cta = cta_of(thread, address, instruction, site);
    Mbarrier& barrier = mbarrier_at(thread, cta, address, instruction, site);
    check_visible_beyond(thread, barrier, instruction, site);
    visit(thread, cta, instruction, site);
    arrive(thread, barrier, 0, instruction, site);
}

bool mbarrier_try_wait_parity(std::uint32_t address, int parity, Site site) {
    constexpr const char* instruction = "mbarrier.try_wait.parity";
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(instruction);
    Mbarrier& barrier = usable(thread, address, instruction, site);
    if (parity != 0 && parity != 1)
        machine.report("mbarrier.try_wait with parity " + std::to_string(parity) + "; there are 0 and 1", site);
    check_phase(thread, barrier, parity, instruction, site);
    if (machine.scheduler().wait_in_vain()) return false;
    if (!barrier.is_complete(parity)) {
        barrier.waiting.push_back(&thread);
        machine.park({instruction, -1, site, progress, &barrier});
        if (!barrier.is_complete(parity)) return false;
    }
    barrier.complete.acquire(thread);
    barrier.seen = std::max(barrier.seen, barrier.phase);
    tsan::acquire(barrier.tokens[(barrier.phase + 1) % 2]);
    return true;
}

void fence_proxy_async(Site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread("fence.proxy.async");
    thread.fenced_epoch = thread.epoch++;
    ++machine.proxy_fences()[thread.number()];
}

}  // namespace emulator
