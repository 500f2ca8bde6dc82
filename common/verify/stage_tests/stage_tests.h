// The tests that every rung of every stage passes. A stage's test.cc names them after its rungs and adds what holds for
// that stage alone.
//
// "Slow" in a name: not run where time is short. "Tiny": also run under the sanitizers. "B05" and the like: a kind of
// fault that users of public attention kernels met, made small; the ids are those of docs/cases.md.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "common/ladder/registry.h"

namespace verify {

/// A property of a rung, in words that make an identifier; `holds` reports failures to GoogleTest.
struct StageTest {
    std::string name;
    std::function<void(const ladder::Rung&)> holds;
    std::function<bool(const ladder::Rung&)> applies = nullptr;  // null: to every rung
};

/// Problems of all sizes, masks, types, groups, layouts and input laws, judged by the verifier.
std::vector<StageTest> grid_tests();
/// Problems small enough to know the answer without a computer.
std::vector<StageTest> forward_cases();
std::vector<StageTest> backward_cases();
/// Where operands lie, what a hidden or visible NaN does, what is refused.
std::vector<StageTest> memory_cases();
/// Softcap and ALiBi, of rungs that take them.
std::vector<StageTest> modifier_cases();
/// What only the emulator can tell: one result on all schedules, exponentials and bytes as the rung says.
std::vector<StageTest> machine_tests();

/// One of the properties above for one rung: a parameter of a GoogleTest suite, e.g. "b_backward_B21_dV_of_a_group".
struct RungTest {
    std::string name;
    ladder::Rung rung;
    StageTest test;
};
/// All properties of all rungs of a stage.
std::vector<RungTest> rung_tests(const std::function<void(ladder::Registry&)>& register_stage);
std::ostream& operator<<(std::ostream& stream, const RungTest& test);

/// The rungs of a stage as "b forward", in the order of registration: a stage's test.cc holds the list.
std::vector<std::string> rung_names(const std::function<void(ladder::Registry&)>& register_stage);
/// One rung of a stage. Throws std::out_of_range if it is not registered.
ladder::Rung find_rung(const std::function<void(ladder::Registry&)>& register_stage, const std::string& letter,
                       ladder::Pass pass);

/// Bytes of all workspaces of a rung on a problem.
std::size_t workspace_bytes(const ladder::Rung& rung, const attention::Problem& problem);

}  // namespace verify

/// The suite `suite` over all tests of a stage: suite.Holds/b_forward_B05_...
#define RUNG_TESTS(suite, register_stage)                                                    \
    class suite : public testing::TestWithParam<verify::RungTest> {};                        \
    TEST_P(suite, Holds) { GetParam().test.holds(GetParam().rung); }                         \
    INSTANTIATE_TEST_SUITE_P(, suite, testing::ValuesIn(verify::rung_tests(register_stage)), \
                             [](const auto& parameter) { return parameter.param.name; })
