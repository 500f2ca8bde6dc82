// Barriers of a CTA: they order, they count, and each misuse is reported.
#include "common/gpu/emulator/tests/reports.h"

namespace {

using testing::HasSubstr;

struct Numbers {
    gpu::SharedTile<float, 1, 128> tile;
};

void exchange(float* results, bool barrier) {
    auto& shared = gpu::shared_memory<Numbers>();
    shared.tile(0, threadIdx.x) = static_cast<float>(threadIdx.x);
    if (barrier) gpu::bar_sync();
    results[threadIdx.x] = shared.tile(0, 127 - threadIdx.x);
}

TEST(Barrier, OrdersTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        float results[128];
        ASSERT_EQ(report_of(1, 128, sizeof(Numbers), exchange, results, true), "");
        for (int i = 0; i < 128; ++i) EXPECT_EQ(results[i], 127 - i);
    }
}

TEST(Barrier, MissingBarrierTiny) {
    float results[128];
    const int reports = schedules_that_report("shared memory offset", 128, sizeof(Numbers), exchange, results, false);
    EXPECT_EQ(reports, static_cast<int>(emulator::standard_schedules().size()));
}

void reuse(bool barrier) {
    auto& shared = gpu::shared_memory<Numbers>();
    if (threadIdx.x < 32) shared.tile(0, threadIdx.x) = 1.0f;
    gpu::bar_sync();
    if (threadIdx.x >= 32) static_cast<void>(float{shared.tile(0, threadIdx.x - 32)});
    if (barrier) gpu::bar_sync();
    if (threadIdx.x < 32) shared.tile(0, threadIdx.x) = 2.0f;  // overwrites what the others read
}

TEST(Barrier, MissingBarrierBeforeReuseTiny) {
    EXPECT_EQ(schedules_that_report("", 64, sizeof(Numbers), reuse, true), 0);
    EXPECT_EQ(schedules_that_report("no barrier lies between", 64, sizeof(Numbers), reuse, false),
              static_cast<int>(emulator::standard_schedules().size()));
}

enum class Hazard { read_after_write, write_after_read, write_after_write };

/// Two lanes use one element; the vote between them fixes the order in time, and orders no memory.
void hazard(Hazard kind, bool sync) {
    auto element = gpu::shared_memory<Numbers>().tile(0, 0);
    if (gpu::lane_id() == 0) element = 1.0f;
    if (kind == Hazard::write_after_read) {
        gpu::bar_warp_sync(gpu::all_lanes);
        if (gpu::lane_id() == 1) static_cast<void>(float{element});
    }
    gpu::vote_sync_ballot(true);
    if (sync) gpu::bar_warp_sync(gpu::all_lanes);
    if (kind == Hazard::read_after_write && gpu::lane_id() == 1) static_cast<void>(float{element});
    if (kind == Hazard::write_after_read && gpu::lane_id() == 0) element = 2.0f;
    if (kind == Hazard::write_after_write && gpu::lane_id() == 1) element = 2.0f;
}

TEST(Barrier, OrderInTimeIsNotEnoughTiny) {
    const std::size_t bytes = sizeof(Numbers);
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        for (const Hazard kind : {Hazard::read_after_write, Hazard::write_after_read, Hazard::write_after_write})
            EXPECT_EQ(report_of(1, 32, bytes, hazard, kind, true), "");
        EXPECT_THAT(report_of(1, 32, bytes, hazard, Hazard::read_after_write, false),
                    HasSubstr("thread 0 (warp 0, lane 0) wrote there and no barrier lies between"));
        EXPECT_THAT(report_of(1, 32, bytes, hazard, Hazard::write_after_read, false),
                    HasSubstr("thread 1 (warp 0, lane 1) has read there and no barrier lies between"));
        EXPECT_THAT(report_of(1, 32, bytes, hazard, Hazard::write_after_write, false),
                    HasSubstr("thread 0 (warp 0, lane 0) wrote there too and no barrier lies between"));
    }
}

/// Warp 0 writes and meets in bar.warp.sync, which does not concern warp 1, the reader.
void across_warps(bool barrier) {
    auto& numbers = gpu::shared_memory<Numbers>();
    if (gpu::warp_id() == 0) {
        numbers.tile(0, gpu::lane_id()) = 1.0f;
        gpu::bar_warp_sync(gpu::all_lanes);
    }
    if (barrier) gpu::bar_sync();
    if (gpu::warp_id() == 1) static_cast<void>(float{numbers.tile(0, gpu::lane_id())});
}

TEST(Barrier, OneWarpMeetingIsNoBarrierForAnotherTiny) {
    const std::size_t bytes = sizeof(Numbers);
    EXPECT_EQ(schedules_that_report("", 64, bytes, across_warps, true), 0);
    // Warps that run before the writer read what nobody has written; the others read unordered.
    EXPECT_EQ(schedules_that_report("", 64, bytes, across_warps, false),
              static_cast<int>(emulator::standard_schedules().size()));
    ScopedOptions scoped(emulator::Schedule::in_order);
    EXPECT_THAT(report_of(1, 64, bytes, across_warps, false),
                HasSubstr("thread 0 (warp 0, lane 0) wrote there and no barrier lies between"));
}

/// The halves of each warp come to a barrier of the whole CTA from two places.
void two_places() {
    if (gpu::lane_id() < 16) {
        gpu::bar_sync();
    } else {
        gpu::bar_sync();
    }
}

TEST(Barrier, WholeWarpsComeToBarSyncFromOnePlaceTiny) {
    EXPECT_EQ(schedules_that_report("so a warp comes from one place", 64, 0, two_places),
              static_cast<int>(emulator::standard_schedules().size()));
}

void rounds(int n) {
    for (int i = 0; i < n; ++i) gpu::bar_sync();
}

TEST(Barrier, CountedOnceTiny) {
    gpu::reset_counters();
    ASSERT_EQ(report_of(3, 96, 0, rounds, 5), "");
    EXPECT_EQ(gpu::counters()->barriers, 15u);
}

void exits_early() {
    if (threadIdx.x >= 32) return;
    gpu::bar_sync();
}

TEST(Barrier, EarlyExitTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        EXPECT_THAT(report_of(1, 64, 0, exits_early),
                    testing::AnyOf(HasSubstr("have exited"), HasSubstr("the thread exits while")));
    }
}

// ---- named barriers ----

void hand_over(float* result) {
    auto& shared = gpu::shared_memory<Numbers>();
    if (threadIdx.x < 32) {  // producer
        for (int i = 0; i < 4; ++i) {
            if (i > 0) gpu::barrier_sync(2, 64);
            shared.tile(0, threadIdx.x) = static_cast<float>(i + 1);
            gpu::barrier_arrive(1, 64);
        }
    } else {
        float sum = 0;
        for (int i = 0; i < 4; ++i) {
            gpu::barrier_sync(1, 64);
            sum += shared.tile(0, threadIdx.x - 32);
            if (i < 3) gpu::barrier_arrive(2, 64);
        }
        result[threadIdx.x - 32] = sum;
    }
}

TEST(Barrier, ProducerAndConsumerTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        float result[32] = {};
        ASSERT_EQ(report_of(1, 64, sizeof(Numbers), hand_over, result), "");
        for (const float x : result) EXPECT_EQ(x, 10);
    }
}

/// Warp 0 writes and meets warp 1 at a barrier. Another warp that has passed barriers of its own with neither, or has
/// only arrived at this one, knows nothing of what was written.
void whom_a_barrier_orders(int reader, bool told) {
    auto& shared = gpu::shared_memory<Numbers>();
    const int warp = gpu::warp_id();
    if (warp == 0) shared.tile(0, gpu::lane_id()) = 1.0f;
    if (warp == 0 || warp == 1) gpu::barrier_sync(1, 96);
    if (warp == 2) gpu::barrier_arrive(1, 96);
    if (warp == 2 || warp == 3) gpu::barrier_sync(2, 64);
    if (told && (warp == 1 || warp == reader)) gpu::barrier_sync(3, 64);
    if (warp == reader) static_cast<void>(float{shared.tile(0, gpu::lane_id())});
}

TEST(Barrier, OrdersThoseWhoWaitedAndNoOthersTiny) {
    const std::size_t bytes = sizeof(Numbers);
    EXPECT_EQ(schedules_that_report("", 128, bytes, whom_a_barrier_orders, 1, false), 0);
    for (const int reader : {2, 3}) {
        EXPECT_EQ(schedules_that_report("", 128, bytes, whom_a_barrier_orders, reader, true), 0);
        EXPECT_EQ(schedules_that_report("read of 4 bytes at shared memory offset", 128, bytes, whom_a_barrier_orders,
                                        reader, false),
                  static_cast<int>(emulator::standard_schedules().size()));
    }
}

void named(int id, int threads) { gpu::barrier_sync(id, threads); }
void arrive(int id, int threads) { gpu::barrier_arrive(id, threads); }

TEST(Barrier, BadOperandsTiny) {
    EXPECT_THAT(report_of(1, 64, 0, named, 16, 64), HasSubstr("barrier.sync 16: a CTA has barriers 0 to 15"));
    EXPECT_THAT(report_of(1, 64, 0, named, -1, 64), HasSubstr("a CTA has barriers 0 to 15"));
    EXPECT_THAT(report_of(1, 64, 0, named, 1, 48), HasSubstr("multiple of 32"));
    EXPECT_THAT(report_of(1, 64, 0, named, 1, 96), HasSubstr("the CTA has 64"));
    EXPECT_THAT(report_of(1, 64, 0, arrive, 1, 0), HasSubstr("needs a number of threads"));
    EXPECT_EQ(report_of(1, 64, 0, named, 15, 64), "");
}

void different_counts() { gpu::barrier_sync(3, threadIdx.x < 32 ? 64 : 96); }

TEST(Barrier, CountsThatDifferTiny) {
    EXPECT_THAT(report_of(1, 96, 0, different_counts), HasSubstr("arrived at the same barrier for 64"));
}

void half_warps() {
    if (gpu::lane_id() < 16) gpu::barrier_sync(1, 32);
}

TEST(Barrier, PartsOfWarpsTiny) {
    EXPECT_THAT(report_of(1, 64, 0, half_warps), HasSubstr("barriers count whole warps"));
}

void arrives_twice() {
    if (threadIdx.x < 32) {
        gpu::barrier_arrive(1, 96);
        gpu::barrier_arrive(1, 96);
    } else {
        gpu::barrier_sync(1, 96);
    }
}

TEST(Barrier, SecondArrivalTiny) {
    EXPECT_THAT(report_of(1, 64, 0, different_counts), HasSubstr("barrier.sync 3"));
    EXPECT_THAT(report_of(1, 96, 0, arrives_twice), HasSubstr("arrives a second time"));
}

/// A producer signals once more than it is awaited.
void one_signal_too_many() {
    if (threadIdx.x < 32) {
        gpu::barrier_arrive(1, 64);
        gpu::barrier_sync(2, 64);
        gpu::barrier_arrive(3, 64);
    } else {
        gpu::barrier_sync(1, 64);
        gpu::barrier_arrive(2, 64);
    }
}

TEST(Barrier, ArrivalThatNobodyAwaitsTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        const std::string report = report_of(2, 64, 0, one_signal_too_many);
        EXPECT_THAT(report,
                    HasSubstr("the CTA ends before barrier.arrive 3 is complete: 32 of 64 threads have arrived"));
        EXPECT_THAT(report, HasSubstr("barrier_test.cc"));
        EXPECT_THAT(report, HasSubstr("kernel kernel_under_test, CTA "));
    }
}

// ---- deadlock and livelock ----

void waits_for_nobody() {
    if (threadIdx.x < 32) {
        gpu::barrier_sync(1, 64);
    } else {
        gpu::barrier_sync(2, 64);
    }
}

TEST(Barrier, DeadlockTextTiny) {
    ScopedOptions scoped(emulator::Schedule::random, 42);
    const std::string report = report_of(1, 64, 0, waits_for_nobody);
    EXPECT_THAT(report, HasSubstr("deadlock: no thread can go on"));
    EXPECT_THAT(report, HasSubstr("CTA 0, threads 0-31 wait for barrier.sync 1 at "));
    EXPECT_THAT(report, HasSubstr("CTA 0, threads 32-63 wait for barrier.sync 2 at "));
    EXPECT_THAT(report, HasSubstr("barrier_test.cc"));
    EXPECT_THAT(report, HasSubstr("32 of 64 threads have arrived"));
    EXPECT_THAT(report, HasSubstr("kernel kernel_under_test"));
    EXPECT_THAT(report, HasSubstr("schedule random, seed 42"));
}

TEST(Barrier, LivelockBudgetTiny) {
    emulator::Options options;
    options.step_budget = 1000;
    ScopedOptions scoped(options);
    EXPECT_THAT(report_of(1, 64, 0, rounds, 1000000), HasSubstr("livelock"));
    EXPECT_EQ(report_of(1, 64, 0, rounds, 2), "");  // the machine is fresh again
}

}  // namespace
