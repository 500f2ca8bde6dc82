// Who goes on next. Every choice comes from the schedule and the launch's random numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "common/gpu/emulator/options.h"
#include "common/gpu/emulator/random.h"

namespace emulator {

struct Cta;
struct Thread;

class Scheduler {
  public:
    void start(Schedule schedule, Random& random);
    /// Warps and engines of a CTA that became resident get their priorities.
    void admit(Cta& cta);

    /// The next thread to run, after any operations of engines that go first; null if no thread is ready and none can
    /// become so.
    Thread* choose(const std::vector<Cta*>& residents);
    /// Operations until the running thread is interrupted.
    std::int64_t operations_until_preemption();
    /// Whether an operation of an engine begins at the moment of its issue; otherwise it is chosen later, or what waits
    /// for it performs it.
    bool perform_at_issue();
    /// Whether a try_wait gives up at once, as it may at any time.
    bool wait_in_vain();

  private:
    Thread* choose_by_priority(const std::vector<Cta*>& residents);
    Thread* choose_ready(const std::vector<Cta*>& residents);
    void perform_some(const std::vector<Cta*>& residents);
    bool perform_awaited(const std::vector<Cta*>& residents);

    Schedule schedule_ = Schedule::in_order;
    Random* random_ = nullptr;
    std::uint64_t steps_ = 0, next_change_ = 0, lowest_priority_ = 0;
    std::uint32_t eagerness_ = 0;
};

}  // namespace emulator
