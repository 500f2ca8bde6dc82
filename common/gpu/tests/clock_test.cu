// gpu::clock on whatever machine: one clock for the threads of a CTA, which tells before from after.
#include "common/gpu/clock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/gpu/barrier.h"
#include "common/gpu/launch.h"

namespace {

constexpr int threads = 96;

// Row t: what thread t sees, twice before a barrier and once after it.
__global__ void look(gpu::Tensor<std::int64_t> times) {
    const auto own = times.matrix(0, 0, threadIdx.x, 1);
    own(0, 0) = gpu::clock();
    own(0, 1) = gpu::clock();
    gpu::bar_sync();
    own(0, 2) = gpu::clock();
}

TEST(Clock, RunsForwardAndAlikeForAllThreads) {
    gpu::Buffer buffer("times", threads * 3 * sizeof(std::int64_t));
    gpu::launch({"look", 1, threads, 0}, look, buffer.tensor<std::int64_t>(0, 0, 3, 3));
    gpu::synchronize();
    std::int64_t times[threads][3];
    buffer.read(times, sizeof(times));
    std::int64_t last_before = 0, first_after = times[0][2];
    for (const auto& own : times) {
        EXPECT_LT(own[0], own[1]);
        last_before = std::max(last_before, own[1]);
        first_after = std::min(first_after, own[2]);
    }
    EXPECT_LT(last_before, first_after);
}

}  // namespace
