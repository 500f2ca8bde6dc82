#include "common/gpu/emulator/scheduler.h"

#include <bit>
#include <limits>
#include <stdexcept>

#include "common/gpu/emulator/machine.h"

namespace emulator {

namespace {

int lowest(std::uint32_t set) { return std::countr_zero(set); }
int highest(std::uint32_t set) { return 31 - std::countl_zero(set); }

int any(std::uint32_t set, Random& random) {
    for (std::uint32_t skip = random.below(std::popcount(set)); skip > 0; --skip) set &= set - 1;
    return lowest(set);
}

Thread* thread_at(Cta& cta, int warp, int lane) { return cta.threads[warp * warp_size + lane].get(); }

Cta* any_ready_cta(const std::vector<Cta*>& residents, Random& random) {
    const auto n = static_cast<std::uint32_t>(residents.size());
    const std::uint32_t start = n > 1 ? random.below(n) : 0;
    for (std::uint32_t i = 0; i < n; ++i) {
        Cta* cta = residents[(start + i) % n];
        if (cta->ready_warps != 0) return cta;
    }
    return nullptr;
}

}  // namespace

void Scheduler::start(Schedule schedule, Random& random) {
    schedule_ = schedule;
    random_ = &random;
    steps_ = next_change_ = 0;
    lowest_priority_ = std::numeric_limits<std::uint32_t>::max();
    eagerness_ = 0;
}

void Scheduler::admit(Cta& cta) {
    if (schedule_ != Schedule::priority) return;
    for (std::uint64_t& priority : cta.priorities) priority = (std::uint64_t{1} << 32) + (random_->next() >> 32);
}

Thread* Scheduler::choose(const std::vector<Cta*>& residents) {
    ++steps_;
    for (;;) {
        Thread* const thread = choose_ready(residents);
        if (thread != nullptr || !perform_awaited(residents)) return thread;
    }
}

Thread* Scheduler::choose_ready(const std::vector<Cta*>& residents) {
    switch (schedule_) {
        case Schedule::in_order:
            for (Cta* cta : residents)
                if (cta->ready_warps != 0) {
                    const int w = lowest(cta->ready_warps);
                    return thread_at(*cta, w, lowest(cta->warps[w].ready));
                }
            return nullptr;
        case Schedule::reverse:
            for (auto it = residents.rbegin(); it != residents.rend(); ++it)
                if ((*it)->ready_warps != 0) {
                    const int w = highest((*it)->ready_warps);
                    return thread_at(**it, w, highest((*it)->warps[w].ready));
                }
            return nullptr;
        case Schedule::priority:
            return choose_by_priority(residents);
        default:
            break;
    }
    perform_some(residents);
    Cta* cta = any_ready_cta(residents, *random_);
    if (cta == nullptr) return nullptr;
    const int w = schedule_ == Schedule::low_warps_first    ? lowest(cta->ready_warps)
                  : schedule_ == Schedule::high_warps_first ? highest(cta->ready_warps)
                                                            : any(cta->ready_warps, *random_);
    return thread_at(*cta, w, any(cta->warps[w].ready, *random_));
}

Thread* Scheduler::choose_by_priority(const std::vector<Cta*>& residents) {
    for (;;) {
        Cta* best_cta = nullptr;
        int best = -1;
        for (Cta* cta : residents) {
            std::uint64_t agents = cta->ready_warps;
            if (!cta->pending.empty()) agents |= std::uint64_t{1} << max_warps;
            for (; agents != 0; agents &= agents - 1) {
                const int agent = std::countr_zero(agents);
                if (best_cta == nullptr || cta->priorities[agent] > best_cta->priorities[best]) {
                    best_cta = cta;
                    best = agent;
                }
            }
        }
        if (best_cta == nullptr) return nullptr;
        if (steps_ >= next_change_) {  // a change point: whoever would go on now comes last from here
            next_change_ = steps_ + (std::uint64_t{1} << (4 + random_->below(12)));
            best_cta->priorities[best] = --lowest_priority_;
            continue;
        }
        if (best < max_warps) return thread_at(*best_cta, best, any(best_cta->warps[best].ready, *random_));
        auto& pending = best_cta->pending;
        machine.perform(*pending[random_->below(static_cast<std::uint32_t>(pending.size()))]);
    }
}

void Scheduler::perform_some(const std::vector<Cta*>& residents) {
    if (schedule_ == Schedule::async_latest || schedule_ == Schedule::async_earliest) return;
    if (steps_ % 256 == 0) eagerness_ = random_->below(9);  // from "threads first" to "engines first"
    for (Cta* cta : residents) {
        auto& pending = cta->pending;
        while (!pending.empty() && random_->below(8) < eagerness_ % 9 && random_->below(16) != 0)
            machine.perform(*pending[random_->below(static_cast<std::uint32_t>(pending.size()))]);
    }
}

std::int64_t Scheduler::operations_until_preemption() {
    if (schedule_ == Schedule::in_order || schedule_ == Schedule::reverse)
        return std::numeric_limits<std::int64_t>::max();
    return 1 + random_->below(2u << random_->below(8));  // often a few operations, sometimes hundreds
}

/// No thread can go on: an operation for which one of them waits.
bool Scheduler::perform_awaited(const std::vector<Cta*>& residents) {
    std::vector<AsyncOperation*> awaited;
    for (const Cta* cta : residents)
        for (AsyncOperation* operation : cta->pending)
            if (operation->awaited()) awaited.push_back(operation);
    if (awaited.empty()) return false;
    machine.perform(*awaited[random_->below(static_cast<std::uint32_t>(awaited.size()))]);
    return true;
}

bool Scheduler::wait_in_vain() {
    const bool draws = schedule_ != Schedule::in_order && schedule_ != Schedule::reverse;
    return draws && random_->below(8) == 0;
}

bool Scheduler::perform_at_issue() {
    switch (schedule_) {
        case Schedule::async_earliest:
            return true;
        case Schedule::async_latest:
            return false;
        default:
            return random_->below(4) == 0;
    }
}

}  // namespace emulator
