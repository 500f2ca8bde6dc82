#include <gtest/gtest.h>

#include "common/verify/run.h"
#include "common/verify/stage_tests/stage_tests.h"

namespace stage00 {

void register_stage(ladder::Registry& registry);

namespace {

RUNG_TESTS(Stage00Rungs, register_stage);

TEST(Stage00, HasItsRungs) { EXPECT_EQ(verify::rung_names(register_stage), (std::vector<std::string>{"a forward"})); }

// The notes' count for attention in three kernels: S is written and read, P is written and read, N^2 elements each
// time.
TEST(Stage00, MovesFourTimesNSquaredElementsOfSAndP) {
    const ladder::Rung rung = verify::find_rung(register_stage, "a", ladder::Pass::forward);
    attention::Problem problem;
    problem.Nq = problem.Nk = 160;
    problem.type = attention::DataType::fp16;
    const verify::Case the_case(problem);
    const verify::Result result = verify::Run(rung, the_case).verify();
    ASSERT_TRUE(result.verified()) << result.reason();
    if (!result.counters) GTEST_SKIP() << "A GPU counts no bytes by tensor.";
    std::uint64_t bytes = 0;
    for (const gpu::Traffic& traffic : result.counters->tensors)
        if (traffic.tensor == "S" || traffic.tensor == "P") bytes += traffic.distinct_read + traffic.distinct_written;
    EXPECT_EQ(bytes, 4u * 160 * 160 * 2);
}

}  // namespace
}  // namespace stage00
