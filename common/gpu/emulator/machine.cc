#include "common/gpu/emulator/machine.h"

#include <exception>
#include <utility>

#include "common/gpu/emulator/cluster.h"
#include "common/gpu/emulator/rendezvous.h"
#include "common/gpu/emulator/trace.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {

Machine machine;

namespace {

/// Unwinds the fiber that made a report, up to its entry: an exception never crosses a switch.
struct Reported {};

}  // namespace

void Machine::run(const gpu::LaunchShape& shape, void (*thread)(void*), void* arguments) {
    if (current_ != nullptr) report("a kernel launched a kernel", Site{shape.kernel, 0});
    set_sticky_float_flags();
    tsan::release(launch_token_);
    {
        tsan::Ignore ignore;
        shape_ = &shape;
        body_ = thread;
        arguments_ = arguments;
        random_ = Random(options().seed);
        scheduler_.start(options().schedule, random_);
        operations_left_ = scheduler_.operations_until_preemption();
        time_ = 0;
        ++launches_;
        proxy_fences_.clear();
        steps_ = 0;
        events_ = 1;
        failure_.clear();
        forget_polling();
        residents_.clear();
        run_residents(shape.ctas);
        for (Cta* cta : residents_)  // there are some only after a failure
            for (int i = 0; i < cta->thread_count; ++i) cta->threads[i]->fiber.abandon();
        residents_.clear();
        tsan::acquire(exit_token_);
        if (!failure_.empty()) throw gpu::Error(std::exchange(failure_, {}));
    }
}

void Machine::run_residents(std::int64_t ctas) {
    const int slots = std::max(1, options().resident_ctas / shape_->cluster);
    std::vector<Cluster*> free;
    while (static_cast<int>(pool_.size()) < slots) pool_.push_back(std::make_unique<Cluster>());
    for (int i = slots - 1; i >= 0; --i) free.push_back(pool_[i].get());

    for (std::int64_t next = 0; next < ctas || !residents_.empty();) {
        for (; next < ctas && !free.empty(); next += shape_->cluster) {
            start(*free.back(), next);
            free.pop_back();
        }
        Thread* const thread = choose();
        if (!failure_.empty()) return;
        if (thread == nullptr) {
            if (time_out()) continue;
            return fail(deadlock());
        }
        if (++steps_ > options().step_budget)
            return fail("livelock: the launch is not over after " + std::to_string(options().step_budget) +
                        " thread switches (Options::step_budget)" + footer(nullptr));
        resume(*thread);
        if (!failure_.empty()) return;
        Cluster& cluster = *thread->cta->cluster;
        if (thread->cta->live_threads == 0 && cluster.live_threads() == 0) {
            std::erase_if(residents_, [&](const Cta* cta) { return cta->cluster == &cluster; });
            free.push_back(&cluster);
        }
    }
}

Thread* Machine::choose() {
    try {
        return scheduler_.choose(residents_);
    } catch (const Reported&) {  // by an engine
        return nullptr;
    }
}

/// No thread can go on. Those in try_wait may give up, as if a time had run out; false if nothing has happened since
/// they did.
bool Machine::time_out() {
    bool any = false;
    for (Cta* cta : residents_)
        for (auto& [address, barrier] : cta->mbarriers)
            std::erase_if(barrier.waiting, [&](Thread* thread) {
                if (std::exchange(thread->timed_out_after, events_) == events_) return false;
                cta->set_ready(*thread);
                return any = true;
            });
    return any;
}

void Machine::perform(AsyncOperation& operation) {
    struct Performing {
        const AsyncOperation*& engine;
        const AsyncOperation* outer;
        ~Performing() { engine = outer; }
    } performing{engine_, std::exchange(engine_, &operation)};
    ++time_;
    if (!operation.step()) return;
    auto& pending = operation.issuer->cta->pending;
    pending[operation.pending_index] = pending.back();
    pending[operation.pending_index]->pending_index = operation.pending_index;
    pending.pop_back();
    operation.pending_index = -1;
    trace.performed(operation, time_);
}

void Machine::resume(Thread& thread) {
    current_ = &thread;
    threadIdx = {static_cast<unsigned>(thread.index), 0, 0};
    blockIdx = {static_cast<unsigned>(thread.cta->index), 0, 0};
    blockDim = {static_cast<unsigned>(shape_->threads), 1, 1};
    gridDim = {static_cast<unsigned>(shape_->ctas), 1, 1};
    thread.fiber.resume();
    current_ = nullptr;
}

void Machine::thread_entry(void* argument) {
    auto& thread = *static_cast<Thread*>(argument);
    tsan::acquire(machine.launch_token_);
    try {
        machine.body_(machine.arguments_);
        tsan::Ignore ignore;
        machine.thread_exits(thread);
    } catch (const Reported&) {
    } catch (const std::exception& error) {
        machine.fail(std::string("the kernel threw an exception: ") + error.what() + "\n  " + text(thread) +
                     machine.footer(thread.cta));
    }
    tsan::release(machine.exit_token_);
}

void Machine::thread_exits(Thread& thread) {
    Cta& cta = *thread.cta;
    const Site where{"the end of the kernel", 0};
    if (!thread.copies.operations.empty()) {
        const Copy& copy = thread.copies.operations.front();
        report("the thread exits with " + std::to_string(thread.copies.operations.size()) +
                   " cp.async copies under way that no wait_group covered; the oldest was issued at " + text(copy.site),
               copy.site);
    }
    finish_bulk_at_exit(thread, where);
    check_products_at_exit(thread, where);
    check_tensor_operations_at_exit(thread, where);
    trace.exits(thread, time_);
    cta.set_parked(thread);
    cta.warps[thread.warp()].live &= ~thread.bit();
    --cta.live_threads;
    check_warp_after_exit(thread, where);
    check_warpgroup_after_exit(thread, where);
    check_barriers_after_exit(thread, where);
    check_cluster_after_exit(thread, where);
}

void Machine::park(const Waiting& waiting) {
    Thread& thread = *current_;
    thread.waiting = waiting;
    thread.cta->set_parked(thread);
    const std::int64_t begin = time_;
    Fiber::suspend();
    trace.waited(thread, waiting, begin, time_);
    thread.waiting = {};
}

void Machine::preempt() {
    operations_left_ = scheduler_.operations_until_preemption();
    if (current_ != nullptr) Fiber::suspend();
}

Thread& Machine::thread(const char* instruction) {
    if (current_ == nullptr)
        throw gpu::Error(std::string(instruction) +
                         " is an instruction of a GPU thread and was called outside a launch");
    return *current_;
}

void Machine::report(const std::string& rule, Site site) {
    if (engine_ != nullptr) {
        fail(rule + "\n  the engine that carries out " + engine_->name + ", issued by " + text(*engine_->issuer) +
             " at " + text(engine_->site) + footer(engine_->issuer->cta));
    } else if (current_ != nullptr) {
        fail(rule + "\n  " + text(*current_) + " at " + text(site) + footer(current_->cta));
    } else {
        throw gpu::Error(rule + "\n  at " + text(site) + ", outside a launch");
    }
    throw Reported{};
}

void Machine::fail(std::string text) {
    if (failure_.empty()) failure_ = std::move(text);
}

std::int64_t clock(Site) {
    tsan::Ignore ignore;
    machine.operation();
    machine.thread("mov of %clock64");
    return machine.now();
}

}  // namespace emulator
