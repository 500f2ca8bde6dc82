// The machine's parts: threads, warps, CTAs, and the launch that runs them.
//
// The scheduler and all fibers share one OS thread; exactly one of them runs at a time, and control changes hands only
// in Machine::park, Machine::operation and at a thread's end. So nothing here needs a lock, and one seed gives one run.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/gpu/emulator/async_copy.h"
#include "common/gpu/emulator/bulk_copy.h"
#include "common/gpu/emulator/clock.h"
#include "common/gpu/emulator/emulator.h"
#include "common/gpu/emulator/fiber.h"
#include "common/gpu/emulator/mbarrier.h"
#include "common/gpu/emulator/random.h"
#include "common/gpu/emulator/sanitizers.h"
#include "common/gpu/emulator/scheduler.h"
#include "common/gpu/emulator/shared_arena.h"
#include "common/gpu/emulator/tcgen05.h"
#include "common/gpu/emulator/warpgroup.h"
#include "common/gpu/launch.h"

namespace emulator {

constexpr int warp_size = 32;
constexpr int max_threads = 1024;
constexpr int max_warps = max_threads / warp_size;
constexpr int named_barriers = 16;
constexpr std::size_t max_shared_bytes = 227 * 1024;

struct Cluster;
struct Cta;
struct Thread;

/// What a parked thread waits for. `progress` says in words what has arrived and what is missing.
struct Waiting {
    const char* instruction = nullptr;
    int barrier = -1;
    Site site{};
    std::string (*progress)(const Thread&) = nullptr;
    Mbarrier* mbarrier = nullptr;
};

/// One CUDA thread.
struct Thread {
    Fiber fiber;
    Cta* cta = nullptr;
    int index = 0;
    Waiting waiting;
    const int* polled = nullptr;  // where ld.acquire looked last, and what it found
    int found = 0;
    Groups<Copy> copies;
    BulkGroups bulk;
    void* engine_fiber = nullptr;  // the race detector's, for all engines that work for this thread
    // What it does is stamped with (agent, epoch); see clock.h.
    unsigned agent = 0;
    std::uint32_t epoch = 1;
    std::uint32_t fenced_epoch = 0;  // the last before fence.proxy.async
    Past past;
    std::uint64_t timed_out_after = 0;  // events, in try_wait
    TensorThread tensor;
    bool cluster_arrived = false;     // at barrier.cluster, and has not waited yet
    std::uint32_t cluster_phase = 0;  // in which it arrived
    std::string role;                 // for traces, and since when
    std::int64_t role_begin = 0;

    int lane() const { return index % warp_size; }
    int warp() const { return index / warp_size; }
    std::uint32_t bit() const { return 1u << lane(); }
    std::uint64_t number() const;  // in the launch, from 1
};

inline bool ordered(Stamp earlier, const Thread& thread) {
    return earlier.agent == 0 || earlier.agent == thread.agent || earlier.epoch <= thread.past->known(earlier.agent);
}

/// An instruction at which lanes of a warp meet.
struct WarpInstruction {
    const char* name;
    bool aligned;        // all lanes must come from one call site
    bool orders_memory;  // what each lane did before is visible to the others after
};

/// Lanes that have come to one instruction and wait for the rest of `mask`.
struct Meeting {
    const WarpInstruction* instruction;
    std::uint32_t mask, arrived;
    Site site;                                // where the first lane stands
    std::array<void*, warp_size> operands{};  // on the lanes' stacks
    tsan::Token* token = nullptr;
    Sync sync{};
};

struct Warp {
    std::uint32_t ready = 0;   // lanes that can go on
    std::uint32_t live = 0;    // lanes that have not exited
    std::uint32_t exists = 0;  // lanes that the launch has
    std::vector<Meeting> meetings;
    unsigned syncs = 0;
    std::array<tsan::Token, 4> sync_tokens{};
    TensorWarp tensor;
};

/// One named barrier of a CTA: its current generation.
struct Barrier {
    int expected = 0;
    bool everyone = false;  // it waits for all threads of the CTA
    int arrived = 0;
    std::array<std::uint32_t, max_warps> arrived_lanes{}, waiting_lanes{};
    std::array<Site, max_warps> sites{};  // where the first lane of each warp arrived
    Site site{};                          // of the first arrival
    int generation = 0;
    std::array<tsan::Token, 2> tokens{};
    Sync sync;
};

/// One CTA while it is resident. Objects are pooled: start() makes it new.
struct Cta {
    std::int64_t index = 0;
    Cluster* cluster = nullptr;
    int rank = 0;  // in its cluster
    int thread_count = 0, live_threads = 0;
    std::uint32_t ready_warps = 0;
    SharedArena arena;
    TensorMemory tensor_memory;
    std::vector<std::unique_ptr<Thread>> threads;  // never fewer than thread_count
    std::array<Warp, max_warps> warps;
    std::array<Warpgroup, max_threads / warpgroup_size> warpgroups;
    int free_registers = 0;  // of the pool from which setmaxnreg.inc takes
    std::array<Barrier, named_barriers> barriers;
    std::map<std::uint32_t, Mbarrier> mbarriers;            // live ones by address
    std::deque<Load> loads;                                 // of its threads; the oldest go when they are performed
    std::vector<AsyncOperation*> pending;                   // issued, not yet performed
    std::map<unsigned, std::uint32_t> visitors;             // agents of other CTAs, and when they were last here
    std::array<std::uint64_t, max_warps + 1> priorities{};  // of warps, and of the engines (last)

    void start(std::int64_t cta, int threads_in_cta, std::size_t shared_bytes, std::uint32_t first_address,
               int registers);
    void set_ready(const Thread& thread) {
        warps[thread.warp()].ready |= thread.bit();
        ready_warps |= 1u << thread.warp();
    }
    void set_parked(const Thread& thread) {
        if ((warps[thread.warp()].ready &= ~thread.bit()) == 0) ready_warps &= ~(1u << thread.warp());
    }
};

inline std::uint64_t Thread::number() const { return static_cast<std::uint64_t>(cta->index) * max_threads + index + 1; }

class Machine {
  public:
    void run(const gpu::LaunchShape& shape, void (*thread)(void*), void* arguments);

    /// The thread whose fiber runs; reports if an instruction is called outside a launch.
    Thread& thread(const char* instruction);
    Thread* current() { return current_; }
    Random& random() { return random_; }
    Scheduler& scheduler() { return scheduler_; }
    std::uint64_t launches() const { return launches_; }
    /// How many each thread of the launch has executed, by Thread::number().
    std::unordered_map<std::uint64_t, std::uint32_t>& proxy_fences() { return proxy_fences_; }

    /// Every instruction comes through here: in schedules that interleave, now and then another agent goes on first.
    void operation() {
        ++time_;
        if (--operations_left_ <= 0) preempt();
    }
    /// A moment of its own, after every operation so far of any thread or engine and before all that follow.
    std::int64_t now() { return ++time_; }
    std::int64_t time() const { return time_; }
    /// The running thread stops until somebody calls wake().
    void park(const Waiting& waiting);
    void wake(Thread& thread) {
        happened();
        thread.cta->set_ready(thread);
    }
    /// Something that a thread may be waiting for.
    void happened() { ++events_; }
    /// An engine carries out one step of a pending operation.
    void perform(AsyncOperation& operation);

    /// Ends the launch: this thread unwinds, the scheduler abandons the others and throws the report to the host.
    [[noreturn]] void report(const std::string& rule, Site site);

  private:
    static void thread_entry(void* thread);
    void run_residents(std::int64_t ctas);
    void start(Cluster& cluster, std::int64_t first_cta);
    Thread* choose();
    bool time_out();
    void thread_exits(Thread& thread);
    void resume(Thread& thread);
    void preempt();
    void fail(std::string text);
    std::string deadlock() const;
    std::string footer(const Cta* cta) const;

    const gpu::LaunchShape* shape_ = nullptr;
    void (*body_)(void*) = nullptr;
    void* arguments_ = nullptr;
    std::vector<std::unique_ptr<Cluster>> pool_;
    std::vector<Cta*> residents_;  // in launch order
    Thread* current_ = nullptr;
    const AsyncOperation* engine_ = nullptr;  // what is being performed
    Random random_;
    Scheduler scheduler_;
    std::int64_t operations_left_ = 0;
    std::int64_t time_ = 0;  // since the launch began
    std::uint64_t launches_ = 0;
    std::unordered_map<std::uint64_t, std::uint32_t> proxy_fences_;
    std::uint64_t steps_ = 0, events_ = 0;
    std::string failure_;
    tsan::Token launch_token_ = 0, exit_token_ = 0;
};

extern Machine machine;

/// Nobody is parked in ld.acquire any more: a launch begins.
void forget_polling();

/// "0-3, 7": numbers in order; the lanes of a mask, or the numbers offset + lane.
std::string ranges(const std::vector<int>& numbers);
std::string ranges(std::uint32_t mask, int offset = 0);
/// "file.cu:12".
std::string text(Site site);
/// "thread 37 (warp 1, lane 5)".
std::string text(const Thread& thread);

}  // namespace emulator
