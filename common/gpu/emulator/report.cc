// What reports say: who, where, and who waits for what.
#include <map>

#include "common/gpu/emulator/machine.h"

namespace emulator {

std::string ranges(const std::vector<int>& numbers) {
    std::string result;
    for (std::size_t first = 0; first < numbers.size();) {
        std::size_t last = first;
        while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
        if (!result.empty()) result += ", ";
        result += std::to_string(numbers[first]);
        if (last > first) result += "-" + std::to_string(numbers[last]);
        first = last + 1;
    }
    return result;
}

std::string ranges(std::uint32_t mask, int offset) {
    std::vector<int> numbers;
    for (; mask != 0; mask &= mask - 1) numbers.push_back(offset + std::countr_zero(mask));
    return ranges(numbers);
}

std::string text(Site site) { return std::string(site.file) + ":" + std::to_string(site.line); }

std::string text(const Thread& thread) {
    return "thread " + std::to_string(thread.index) + " (warp " + std::to_string(thread.warp()) + ", lane " +
           std::to_string(thread.lane()) + ")";
}

std::string Machine::footer(const Cta* cta) const {
    return std::string("\n  kernel ") + shape_->kernel +
           (cta != nullptr ? ", CTA " + std::to_string(cta->index) + " of " + std::to_string(shape_->ctas) : "") +
           ", schedule " + name(options().schedule) + ", seed " + std::to_string(options().seed);
}

std::string Machine::deadlock() const {
    std::string result = "deadlock: no thread can go on";
    for (const Cta* cta : residents_) {
        // Threads that wait for the same thing at the same place share a line.
        std::map<std::string, std::vector<int>> groups;
        for (int i = 0; i < cta->thread_count; ++i) {
            const Thread& thread = *cta->threads[i];
            if (!(cta->warps[thread.warp()].live & thread.bit())) continue;
            const Waiting& waiting = thread.waiting;
            std::string what = waiting.instruction;
            if (waiting.barrier >= 0) what += " " + std::to_string(waiting.barrier);
            groups[what + " at " + text(waiting.site) + ": " + waiting.progress(thread)].push_back(i);
        }
        for (const auto& [what, threads] : groups)
            result += "\n  CTA " + std::to_string(cta->index) + ", threads " + ranges(threads) + " wait for " + what;
    }
    return result + footer(nullptr);
}

}  // namespace emulator
