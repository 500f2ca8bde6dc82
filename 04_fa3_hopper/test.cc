#include <gtest/gtest.h>

#include "common/verify/run.h"
#include "common/verify/stage_tests/probe.h"
#include "common/verify/stage_tests/stage_tests.h"

namespace stage04 {

void register_stage(ladder::Registry& registry);

namespace {

using attention::DataType;
using attention::Problem;

RUNG_TESTS(Stage04Rungs, register_stage);

TEST(Stage04, HasItsRungs) {
    EXPECT_EQ(verify::rung_names(register_stage),
              (std::vector<std::string>{"a forward", "b forward", "c forward", "d forward", "a backward"}));
}

}  // namespace
}  // namespace stage04
