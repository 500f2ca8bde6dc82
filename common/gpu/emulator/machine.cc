#include "common/gpu/emulator/machine.h"

#include <exception>
#include <map>
#include <tuple>
#include <utility>

#include "common/gpu/emulator/rendezvous.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {

Machine machine;

namespace {

/// Unwinds the fiber that made a report, up to its entry: an exception never crosses a switch.
struct Reported {};

}  // namespace

std::string ranges(std::uint32_t mask, int offset) {
    std::string result;
    for (int first = 0; first < warp_size; ++first) {
        if (!(mask >> first & 1)) continue;
        int last = first;
        while (last + 1 < warp_size && (mask >> (last + 1) & 1)) ++last;
        if (!result.empty()) result += ", ";
        result += std::to_string(offset + first);
        if (last > first) result += "-" + std::to_string(offset + last);
        first = last;
    }
    return result;
}

std::string text(Site site) { return std::string(site.file) + ":" + std::to_string(site.line); }

std::string text(const Thread& thread) {
    return "thread " + std::to_string(thread.index) + " (warp " + std::to_string(thread.warp()) + ", lane " +
           std::to_string(thread.lane()) + ")";
}

void Cta::start(std::int64_t cta, int threads_in_cta, std::size_t shared_bytes, Random& random) {
    index = cta;
    thread_count = live_threads = threads_in_cta;
    ready_warps = 0;
    arena.start(shared_bytes, static_cast<std::uint32_t>(SharedArena::alignment) * (1 + random.below(15)));
    pending_copies.clear();
    for (Barrier& barrier : barriers) barrier = {};
    for (Warp& warp : warps) {
        warp.ready = warp.live = warp.exists = 0;
        warp.meetings.clear();
    }
    while (static_cast<int>(threads.size()) < thread_count) threads.push_back(std::make_unique<Thread>());
    for (int i = 0; i < thread_count; ++i) {
        Thread& thread = *threads[i];
        thread.cta = this;
        thread.index = i;
        thread.waiting = {};
        thread.epoch = thread.barrier_epoch = 0;
        thread.copies.clear();
        warps[thread.warp()].live |= thread.bit();
        warps[thread.warp()].exists |= thread.bit();
        set_ready(thread);
    }
}

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
        steps_ = 0;
        failure_.clear();
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
    const int slots = std::max(1, options().resident_ctas);
    std::vector<Cta*> free;
    while (static_cast<int>(pool_.size()) < slots) pool_.push_back(std::make_unique<Cta>());
    for (int i = slots - 1; i >= 0; --i) free.push_back(pool_[i].get());

    for (std::int64_t next = 0; next < ctas || !residents_.empty();) {
        while (next < ctas && !free.empty()) {
            Cta* cta = free.back();
            free.pop_back();
            cta->start(next++, shape_->threads, shape_->shared_bytes, random_);
            for (int i = 0; i < cta->thread_count; ++i)
                cta->threads[i]->fiber.start(thread_entry, cta->threads[i].get());
            scheduler_.admit(*cta);
            residents_.push_back(cta);
        }
        Thread* thread = scheduler_.choose(residents_);
        if (thread == nullptr) return fail(deadlock());
        if (++steps_ > options().step_budget)
            return fail("livelock: the launch is not over after " + std::to_string(options().step_budget) +
                        " thread switches (Options::step_budget)" + footer(nullptr));
        resume(*thread);
        if (!failure_.empty()) return;
        if (thread->cta->live_threads == 0) {
            std::erase(residents_, thread->cta);
            free.push_back(thread->cta);
        }
    }
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
    if (!thread.copies.copies.empty()) {
        const Copy& copy = thread.copies.copies.front();
        report("the thread exits with " + std::to_string(thread.copies.copies.size()) +
                   " cp.async copies under way that no wait_group covered; the oldest was issued at " + text(copy.site),
               copy.site);
    }
    cta.set_parked(thread);
    cta.warps[thread.warp()].live &= ~thread.bit();
    --cta.live_threads;
    const Site where{"the end of the kernel", 0};
    check_warp_after_exit(thread, where);
    check_barriers_after_exit(thread, where);
}

void Machine::park(const Waiting& waiting) {
    Thread& thread = *current_;
    thread.waiting = waiting;
    thread.cta->set_parked(thread);
    Fiber::suspend();
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
    if (current_ == nullptr) throw gpu::Error(rule + "\n  at " + text(site) + ", outside a launch");
    fail(rule + "\n  " + text(*current_) + " at " + text(site) + footer(current_->cta));
    throw Reported{};
}

void Machine::fail(std::string text) {
    if (failure_.empty()) failure_ = std::move(text);
}

std::string Machine::footer(const Cta* cta) const {
    return std::string("\n  kernel ") + shape_->kernel +
           (cta != nullptr ? ", CTA " + std::to_string(cta->index) + " of " + std::to_string(shape_->ctas) : "") +
           ", schedule " + name(options().schedule) + ", seed " + std::to_string(options().seed);
}

std::string Machine::deadlock() const {
    std::string result = "deadlock: no thread can go on";
    for (const Cta* cta : residents_) {
        // Threads of a warp that wait for the same thing at the same place share a line.
        for (int w = 0; w < max_warps; ++w) {
            std::map<std::tuple<std::string, std::string>, std::uint32_t> groups;
            for (int lane = 0; lane < warp_size; ++lane) {
                if (!(cta->warps[w].live >> lane & 1)) continue;
                const Thread& thread = *cta->threads[w * warp_size + lane];
                const Waiting& waiting = thread.waiting;
                std::string what = waiting.instruction;
                if (waiting.barrier >= 0) what += " " + std::to_string(waiting.barrier);
                groups[{what + " at " + text(waiting.site), waiting.progress(thread)}] |= thread.bit();
            }
            for (const auto& [key, lanes] : groups)
                result += "\n  CTA " + std::to_string(cta->index) + ", threads " + ranges(lanes, w * warp_size) +
                          " wait for " + std::get<0>(key) + ": " + std::get<1>(key);
        }
    }
    return result + footer(nullptr);
}

}  // namespace emulator
