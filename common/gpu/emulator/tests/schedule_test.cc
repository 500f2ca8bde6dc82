// Schedules: names, the order in which threads go on, and that one seed is one run.
#include <algorithm>
#include <set>
#include <stdexcept>
#include <vector>

#include "common/gpu/emulator/tests/reports.h"

namespace {

using emulator::Schedule;

void note(std::vector<int>* order, gpu::Matrix<float> m) {
    for (int i = 0; i < 3; ++i) {
        order->push_back(static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x));
        gpu::red_global_add_f32(m, 0, 0, 1.0f / (1 + threadIdx.x));
    }
}

std::vector<int> order_of(const emulator::Options& options, int ctas = 3, float* sum = nullptr) {
    ScopedOptions scoped(options);
    std::vector<int> order;
    gpu::Buffer buffer("sum", 4);
    const float zero = 0;
    buffer.write(&zero, 4);
    EXPECT_EQ(report_of(ctas, 64, 0, note, &order, buffer.tensor<float>(0, 0, 1, 1).matrix(0, 0, 0, 1)), "");
    if (sum != nullptr) buffer.read(sum, 4);
    return order;
}

TEST(Schedules, NamesTiny) {
    for (const auto& options : emulator::standard_schedules())
        EXPECT_EQ(emulator::schedule_from_name(emulator::name(options.schedule)), options.schedule);
    EXPECT_THROW(emulator::schedule_from_name("backwards"), std::invalid_argument);
    std::set<Schedule> all;
    for (const auto& options : emulator::standard_schedules()) all.insert(options.schedule);
    EXPECT_EQ(all.size(), 8u);
}

TEST(Schedules, OneSeedIsOneRun) {
    for (const auto& options : emulator::standard_schedules()) {
        float first = 0, second = 0;
        EXPECT_EQ(order_of(options, 3, &first), order_of(options, 3, &second));
        EXPECT_EQ(first, second);
    }
}

TEST(Schedules, SeedsDiffer) {
    for (const Schedule schedule : {Schedule::random, Schedule::priority, Schedule::async_latest,
                                    Schedule::async_earliest, Schedule::low_warps_first, Schedule::high_warps_first}) {
        std::set<std::vector<int>> orders;
        for (int seed = 1; seed <= 10; ++seed) {
            emulator::Options options;
            options.schedule = schedule;
            options.seed = seed;
            orders.insert(order_of(options));
        }
        EXPECT_GE(orders.size(), 9u) << emulator::name(schedule);
    }
}

TEST(Schedules, InOrderAndReverse) {
    emulator::Options options;
    std::vector<int> order = order_of(options, 1);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
    options.schedule = Schedule::reverse;
    order = order_of(options, 1);
    EXPECT_TRUE(std::is_sorted(order.rbegin(), order.rend()));
}

TEST(Schedules, WarpsFirst) {
    emulator::Options options;
    options.resident_ctas = 1;
    options.schedule = Schedule::low_warps_first;
    std::vector<int> order = order_of(options, 1);
    EXPECT_TRUE(std::all_of(order.begin(), order.begin() + 96, [](int thread) { return thread < 32; }));
    options.schedule = Schedule::high_warps_first;
    order = order_of(options, 1);
    EXPECT_TRUE(std::all_of(order.begin(), order.begin() + 96, [](int thread) { return thread >= 32; }));
}

TEST(Schedules, ResidentCtasInterleave) {
    emulator::Options options;
    options.schedule = Schedule::random;
    options.resident_ctas = 1;
    const std::vector<int> alone = order_of(options, 4);
    EXPECT_TRUE(std::is_sorted(alone.begin(), alone.end(), [](int a, int b) { return a / 64 < b / 64; }));
    options.resident_ctas = 2;
    const std::vector<int> two = order_of(options, 4);
    EXPECT_FALSE(std::is_sorted(two.begin(), two.end(), [](int a, int b) { return a / 64 < b / 64; }));
    // CTA 2 starts when one of the first two is over: never before 64 * 3 entries of one of them.
    const auto third = std::find_if(two.begin(), two.end(), [](int thread) { return thread / 64 == 2; });
    const auto of = [&](int cta) {
        return std::count_if(two.begin(), third, [=](int thread) { return thread / 64 == cta; });
    };
    EXPECT_TRUE(of(0) == 192 || of(1) == 192);
}

void fails() { gpu::barrier_sync(1, 31); }
void works(int* runs) {
    gpu::bar_sync();
    if (threadIdx.x == 0) runs[blockIdx.x] = 1;
}

TEST(Schedules, MachineIsFreshAfterAFailureTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        EXPECT_NE(report_of(4, 64, 128, fails), "");
        int runs[4] = {};
        EXPECT_EQ(report_of(4, 64, 128, works, runs), "");
        EXPECT_THAT(runs, testing::Each(1));
    }
}

}  // namespace
