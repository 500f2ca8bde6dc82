// Logical time: it counts what threads and engines do.
#include "common/gpu/emulator/tests/reports.h"

namespace {

// In turns, warp after warp; each look at the clock comes after the one before it, whoever looked.
void take_turns(std::int64_t* times) {
    for (int turn = 0; turn < 8; ++turn) {
        if (turn % 2 == gpu::warp_id() && gpu::lane_id() == turn) times[turn] = gpu::clock();
        gpu::bar_sync();
    }
}

TEST(Clock, ALaterOperationOfAnotherThreadHasALaterTime) {
    for (const emulator::Options& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        std::int64_t times[8] = {};
        ASSERT_EQ(report_of(1, 64, 0, take_turns, &times[0]), "");
        for (int turn = 1; turn < 8; ++turn) EXPECT_LT(times[turn - 1], times[turn]);
    }
}

struct Words {
    gpu::SharedTile<float, 8, 4> words;
};

// The time that a wait for so many copies takes.
void wait_for_copies(gpu::Tensor<const float> source, int copies, std::int64_t* time) {
    auto& shared = gpu::shared_memory<Words>();
    for (int i = 0; i < copies; ++i)
        gpu::cp_async_cg_16(shared.words.address(i, 0), source.matrix(0, 0, 0, 8), i, 0, 16);
    gpu::cp_async_commit_group();
    const std::int64_t begin = gpu::clock();
    gpu::cp_async_wait_group<0>();
    *time = gpu::clock() - begin;
}

// Engines work as late as they may, so within the wait: each copy is one step of time there.
TEST(Clock, EnginesTakeTime) {
    ScopedOptions scoped(emulator::Schedule::async_latest);
    gpu::Buffer source("source", 8 * 4 * sizeof(float));
    std::int64_t times[2] = {};
    for (int i = 0; i < 2; ++i)
        ASSERT_EQ(report_of(1, 1, sizeof(Words), wait_for_copies, source.tensor<const float>(0, 0, 4, 4),
                            i == 0 ? 1 : 8, &times[i]),
                  "");
    EXPECT_EQ(times[1] - times[0], 7);
}

}  // namespace
