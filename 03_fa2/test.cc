#include <gtest/gtest.h>

#include "common/verify/stage_tests/probe.h"
#include "common/verify/stage_tests/stage_tests.h"

namespace stage03 {

void register_stage(ladder::Registry& registry);

namespace {

RUNG_TESTS(Stage03Rungs, register_stage);

}  // namespace
}  // namespace stage03
