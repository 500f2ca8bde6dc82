#include <gtest/gtest.h>

#include "common/verify/run.h"
#include "common/verify/stage_tests/stage_tests.h"

namespace stage00 {

void register_stage(ladder::Registry& registry);

namespace {

// The rungs that this build can run: d refuses every problem where there is no cuBLAS.
void register_runnable(ladder::Registry& registry) {
    ladder::Registry all;
    register_stage(all);
    for (const ladder::Rung& rung : all.rungs())
        if (!rung.refuses(attention::Problem{})) registry.add(rung);
}

RUNG_TESTS(Stage00Rungs, register_runnable);

TEST(Stage00, HasItsRungs) {
    EXPECT_EQ(verify::rung_names(register_stage),
              (std::vector<std::string>{"a forward", "b forward", "c forward", "d forward", "a backward"}));
}

TEST(Stage00, WithoutCublasSaysSo) {
    const auto reason = verify::find_rung(register_stage, "d", ladder::Pass::forward).refuses(attention::Problem{});
    if (!gpu::device().emulated) {
        EXPECT_EQ(reason, std::nullopt);
    } else {
        EXPECT_EQ(reason, "needs cuBLAS, which only the CUDA build has");
    }
}

// The notes' count for attention in three kernels: S is written and read, P is written and read, N^2 elements each
// time. Better kernels change how often they are asked for, not how many there are.
TEST(Stage00, MovesFourTimesNSquaredElementsOfSAndP) {
    ladder::Registry registry;
    register_runnable(registry);
    for (const ladder::Rung& rung : registry.rungs()) {
        if (rung.pass != ladder::Pass::forward) continue;
        attention::Problem problem;
        problem.Nq = problem.Nk = 160;
        problem.type = attention::DataType::fp16;
        const verify::Case the_case(problem);
        const verify::Result result = verify::Run(rung, the_case).verify();
        ASSERT_TRUE(result.verified()) << rung.title() << ": " << result.reason();
        if (!result.counters) GTEST_SKIP() << "A GPU counts no bytes by tensor.";
        std::uint64_t distinct = 0, requested = 0;
        for (const gpu::Traffic& traffic : result.counters->tensors) {
            if (traffic.tensor != "S" && traffic.tensor != "P") continue;
            distinct += traffic.distinct_read + traffic.distinct_written;
            requested += traffic.requested_read + traffic.requested_written;
        }
        EXPECT_EQ(distinct, 4u * 160 * 160 * 2) << rung.title();
        // 00c asks for each of them once.
        if (rung.letter == "c") {
            EXPECT_EQ(requested, 4u * 160 * 160 * 2);
        }
    }
}

// A row longer than what a warp holds is fetched for maximum, sum and weights each; the answer is the same.
TEST(Stage00, LongRowsAreFetchedThreeTimes) {
    const ladder::Rung rung = verify::find_rung(register_stage, "c", ladder::Pass::forward);
    for (const auto& [keys, fetches] : {std::pair{4096, 1u}, {4097, 1u}, {16384, 1u}, {16385, 3u}}) {
        attention::Problem problem;
        problem.Nq = 2;
        problem.Nk = keys;
        const verify::Case the_case(problem);
        const verify::Result result = verify::Run(rung, the_case).verify();
        ASSERT_TRUE(result.verified()) << result.reason();
        if (!result.counters) continue;
        for (const gpu::Traffic& traffic : result.counters->tensors) {
            if (traffic.tensor == "S") {
                EXPECT_EQ(traffic.requested_read, fetches * traffic.distinct_read) << keys;
            }
        }
    }
}

// Backward keeps four matrices of Nq x Nk; in bf16 ten bytes for each pair, as dP is fp32.
TEST(Stage00, BackwardKeepsFourMatrices) {
    const ladder::Rung rung = verify::find_rung(register_stage, "a", ladder::Pass::backward);
    attention::Problem problem;
    problem.Hq = 3;
    problem.Nq = 100;
    problem.Nk = 200;
    EXPECT_EQ(verify::workspace_bytes(rung, problem), 3u * 100 * (200 * 10 + 4));
}

}  // namespace
}  // namespace stage00
