// A fiber: a stack of its own and a place to continue. The scheduler resumes fibers, a fiber suspends itself back to
// the scheduler; all of them share one OS thread. No exception may leave a fiber.
#pragma once

#include <cstddef>

namespace emulator {

class Fiber {
  public:
    Fiber();
    ~Fiber();
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    /// The next resume() calls entry(argument). A fiber that was left in the middle of something is abandoned: its
    /// stack starts afresh, destructors of what lay on it never run.
    void start(void (*entry)(void*), void* argument);
    /// Runs the fiber until it suspends itself or its entry returns. Called by the scheduler only.
    void resume();
    /// Back to the scheduler; returns when the scheduler resumes this fiber. Called on a fiber only.
    static void suspend();

    /// The race detector's fiber of this one; null without ThreadSanitizer.
    void* tsan_fiber() const { return tsan_fiber_; }

  private:
    struct Jump;  // the context switch and what sanitizers want to know about it

    char* mapping_;  // guard page, then the stack
    char* stack_;
    char* top_;  // where it begins, downwards
    void* context_ = nullptr;
    void (*entry_)(void*) = nullptr;
    void* argument_ = nullptr;
    bool finished_ = true;
    void* fake_stack_ = nullptr;  // AddressSanitizer's
    void* tsan_fiber_ = nullptr;
};

/// x86 saves and restores the floating-point status on every switch, which is ten times slower once the sticky
/// exception flags of two fibers differ. Setting all of them beforehand keeps them equal; no result depends on them.
void set_sticky_float_flags();

}  // namespace emulator
