// mbarriers: the state of each, kept beside the shared memory that it seems to lie in.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/gpu/emulator/clock.h"
#include "common/gpu/emulator/emulator.h"
#include "common/gpu/emulator/sanitizers.h"

namespace emulator {

struct Cta;
struct Thread;

struct Mbarrier {
    Cta* cta = nullptr;
    std::uint32_t address = 0;
    unsigned agent = 0;  // in whose name copies that it counts write
    int count = 0;       // arrivals of a phase
    Site site{};         // of its init
    Stamp init{};
    std::uint32_t fence_epoch =
        0;  // of the thread that initialised it, when fence.mbarrier_init followed; 0: it has not

    std::uint32_t phase = 0;      // the one that is not complete
    int pending = 0;              // arrivals to come
    int tx = 0;                   // bytes announced and not yet delivered
    std::uint32_t seen = 0;       // phases that somebody has seen complete
    std::uint32_t delivered = 0;  // phases up to the last one in which bytes came, or an engine arrived
    Sync arriving, complete;      // of this phase, of the one before
    std::vector<Thread*> waiting;
    std::array<tsan::Token, 2> tokens{};

    bool is_complete(int parity) const { return static_cast<int>(phase & 1) != parity; }
};

/// The live mbarrier at an address in the CTA's shared memory, else a report.
Mbarrier& mbarrier_at(const Thread& thread, Cta& cta, std::uint32_t address, const char* instruction, Site site);
/// The thread has seen what makes it visible to engines and to other CTAs: fence.mbarrier_init and a barrier.
void check_visible_beyond(const Thread& thread, const Mbarrier& barrier, const char* instruction, Site site);
/// An engine arrives, for one; those who wait for the phase learn what it knows.
void arrive(Mbarrier& barrier, const Past& known, const char* instruction, Site site);
/// A copy has delivered its bytes, in the current phase.
void complete_tx(Mbarrier& barrier, int bytes);
/// The CTA has ended: phases half arrived, bytes that did not come or that nobody waited for.
void check_mbarriers_after_exit(const Cta& cta, Site site);

/// "the mbarrier at shared memory offset 64".
std::string text(const Mbarrier& barrier);

}  // namespace emulator
