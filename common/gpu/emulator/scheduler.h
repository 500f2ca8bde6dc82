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
    /// Warps and copy engine of a CTA that became resident get their priorities.
    void admit(Cta& cta);

    /// The next thread to run, after any copies that go first; null if no thread is ready.
    Thread* choose(const std::vector<Cta*>& residents);
    /// Operations until the running thread is interrupted.
    std::int64_t operations_until_preemption();
    /// Whether a copy is performed at the moment of its issue; otherwise it is chosen later, or its wait performs it.
    bool copy_at_issue();

  private:
    Thread* choose_by_priority(const std::vector<Cta*>& residents);
    bool draw_copy() const;
    void perform_some_copy(const std::vector<Cta*>& residents);

    Schedule schedule_ = Schedule::in_order;
    Random* random_ = nullptr;
    std::uint64_t steps_ = 0, next_change_ = 0, lowest_priority_ = 0;
    std::uint32_t copy_eagerness_ = 0;
};

}  // namespace emulator
