#include <gtest/gtest.h>

#include <ctime>

#include "common/verify/run.h"
#include "common/verify/stage_tests/stage_tests.h"

namespace stage02 {

void register_stage(ladder::Registry& registry);

namespace {

RUNG_TESTS(Stage02Rungs, register_stage);

TEST(Stage02, HasItsRungs) {
    EXPECT_EQ(verify::rung_names(register_stage), (std::vector<std::string>{"b forward", "b backward"}));
}

// Scratch grows with N, not with N^2.
TEST(Stage02, StoresNoMatrixOfScores) {
    attention::Problem problem, doubled;
    problem.Nq = problem.Nk = 1000;
    doubled.Nq = doubled.Nk = 2000;
    for (ladder::Pass pass : {ladder::Pass::forward, ladder::Pass::backward}) {
        const ladder::Rung rung = verify::find_rung(register_stage, "b", pass);
        EXPECT_EQ(verify::workspace_bytes(rung, doubled), 2 * verify::workspace_bytes(rung, problem));
    }
}

// The emulator is fast enough to work with. Time of this process on the processor, so that a busy machine does not
// count.
TEST(Stage02, OneHeadOf1024QueriesTakesLessThanTwoSeconds) {
#ifndef NDEBUG
    GTEST_SKIP() << "Measured in release builds.";
#endif
    const ladder::Rung rung = verify::find_rung(register_stage, "b", ladder::Pass::forward);
    attention::Problem problem;
    problem.Nq = problem.Nk = 1024;
    problem.d = 128;
    problem.scale = attention::default_scale(128);
    const verify::Case the_case(problem);
    verify::Run run(rung, the_case);
    const verify::Result result = run.verify();
    ASSERT_TRUE(result.verified()) << result.reason();
    const std::clock_t start = std::clock();
    run.launch();
    gpu::synchronize();
    EXPECT_LT(double(std::clock() - start) / CLOCKS_PER_SEC, 2.0);
}

}  // namespace
}  // namespace stage02
