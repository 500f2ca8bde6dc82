#pragma once

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace attention {

inline thread_local bool in_parallel_work = false;

/// work(n) for n in [0, count), in any order: on all cores if all together are operations enough, 1e7, to be worth starting
/// threads, otherwise, and within such work, one after the other. work must not throw.
template <class Work>
void in_parallel(int count, double operations, Work work) {
    if (in_parallel_work || operations < 1e7) {
        for (int n = 0; n < count; ++n) work(n);
        return;
    }
    std::atomic<int> next = 0;
    std::vector<std::thread> threads;
    for (int n = 0; n < std::min<int>(count, std::max(1u, std::thread::hardware_concurrency())); ++n) {
        threads.emplace_back([&] {
            in_parallel_work = true;
            for (int item = next++; item < count; item = next++) work(item);
        });
    }
    for (std::thread& thread : threads) thread.join();
}

}  // namespace attention
