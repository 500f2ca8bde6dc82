#include <gtest/gtest.h>

#include "common/verify/run.h"
#include "common/verify/stage_tests/stage_tests.h"

namespace stage01 {

void register_stage(ladder::Registry& registry);

namespace {

using ladder::Pass;

RUNG_TESTS(Stage01Rungs, register_stage);

TEST(Stage01, HasItsRungs) {
    EXPECT_EQ(verify::rung_names(register_stage),
              (std::vector<std::string>{"a forward", "b forward", "c forward", "c backward", "d forward"}));
}

// Scratch is nothing, or grows with N, not with N^2.
TEST(Stage01, FusedRungsStoreNoMatrixOfScores) {
    attention::Problem problem, doubled;
    problem.Nq = problem.Nk = 1000;
    doubled.Nq = doubled.Nk = 2000;
    EXPECT_EQ(verify::workspace_bytes(verify::find_rung(register_stage, "c", Pass::forward), problem), 0u);
    for (const auto& [letter, pass] : {std::pair{"c", Pass::backward}, std::pair{"d", Pass::forward}}) {
        const ladder::Rung rung = verify::find_rung(register_stage, letter, pass);
        EXPECT_EQ(verify::workspace_bytes(rung, doubled), 2 * verify::workspace_bytes(rung, problem)) << rung.title();
    }
}

// What the online softmax saves: one of three readings of S.
TEST(Stage01, SafeSoftmaxReadsScoresThreeTimesAndOnlineTwice) {
    attention::Problem problem;
    problem.Nq = problem.Nk = 160;
    problem.type = attention::DataType::fp16;
    const verify::Case the_case(problem);
    for (const auto& [letter, passes] : {std::pair{"a", 3u}, std::pair{"b", 2u}}) {
        const ladder::Rung rung = verify::find_rung(register_stage, letter, Pass::forward);
        const verify::Result result = verify::Run(rung, the_case).verify();
        ASSERT_TRUE(result.verified()) << result.reason();
        if (!result.counters) GTEST_SKIP() << "A GPU counts no bytes by tensor.";
        for (const gpu::Traffic& traffic : result.counters->tensors) {
            if (traffic.tensor != "S") continue;
            EXPECT_EQ(traffic.requested_read, passes * 160 * 160 * 2);
            EXPECT_EQ(traffic.requested_written, 160u * 160 * 2);
        }
    }
}

}  // namespace
}  // namespace stage01
