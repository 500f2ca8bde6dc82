#include <gtest/gtest.h>

#include "common/verify/stage_tests/stage_tests.h"

namespace stage01 {

void register_stage(ladder::Registry& registry);

namespace {

RUNG_TESTS(Stage01Rungs, register_stage);

TEST(Stage01, HasItsRungs) { EXPECT_EQ(verify::rung_names(register_stage), (std::vector<std::string>{"c forward"})); }

TEST(Stage01, StoresNoMatrixOfScores) {
    const ladder::Rung c = verify::find_rung(register_stage, "c", ladder::Pass::forward);
    attention::Problem problem;
    problem.Nq = problem.Nk = 1000;
    EXPECT_EQ(verify::workspace_bytes(c, problem), 0u);
}

}  // namespace
}  // namespace stage01
