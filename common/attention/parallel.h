#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace attention {

inline thread_local bool in_parallel_work = false;

/// work(n) for n in [0, count), in any order: on all cores if all together are operations enough (1e7 multiply-adds, roughly)
/// to be worth starting threads, otherwise, and within such work, one after the other. Throws what work threw.
template <class Work>
void in_parallel(int count, double operations, Work work) {
    if (in_parallel_work || operations < 1e7) {
        for (int n = 0; n < count; ++n) work(n);
        return;
    }
    std::atomic<int> next = 0;
    std::vector<std::exception_ptr> thrown(std::min<int>(count, std::max(1u, std::thread::hardware_concurrency())));
    {
        std::vector<std::jthread> threads;
        for (std::exception_ptr& exception : thrown) {
            threads.emplace_back([&] {
                in_parallel_work = true;
                try {
                    for (int n = next++; n < count; n = next++) work(n);
                } catch (...) {
                    exception = std::current_exception();
                    next = count;
                }
            });
        }
    }
    for (const std::exception_ptr& exception : thrown)
        if (exception) std::rethrow_exception(exception);
}

}  // namespace attention
