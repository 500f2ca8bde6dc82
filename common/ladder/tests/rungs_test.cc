// The whole ladder: a rung that is not registered, or a stage that the build forgot, changes these numbers.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "common/ladder/registry.h"

namespace ladder {
namespace {

TEST(Rungs, EveryStageHasRegisteredAllOfThem) {
    Registry registry;
    register_stages(registry);
    std::map<std::pair<std::string, Pass>, int> rungs;
    for (const Rung& rung : registry.rungs()) ++rungs[{rung.stage, rung.pass}];
    const std::map<std::pair<std::string, Pass>, int> expected = {
        {{"00", Pass::forward}, 4},  {{"00", Pass::backward}, 1}, {{"01", Pass::forward}, 4},
        {{"01", Pass::backward}, 1}, {{"02", Pass::forward}, 2},  {{"02", Pass::backward}, 2},
        {{"03", Pass::forward}, 2}};
    EXPECT_EQ(rungs, expected);
}

TEST(Rungs, EachSaysWhatItNeedsAndCosts) {
    Registry registry;
    register_stages(registry);
    for (const Rung& rung : registry.rungs()) {
        EXPECT_TRUE(rung.refuses && rung.workspaces && rung.launch && rung.exponentials) << rung.title();
        EXPECT_FALSE(rung.kernel_pattern.empty()) << rung.title();
    }
}

TEST(Rungs, FastKernelsAreThoseOfTheFastRungs) {
    Registry registry;
    register_stages(registry);
    std::set<std::string> expected, listed;
    for (const Rung& rung : registry.rungs()) {
        if (rung.fast) expected.insert("\\b" + rung.kernel_pattern);
    }
    std::ifstream file(FAST_KERNELS);
    for (std::string line; std::getline(file, line);) {
        if (!line.empty() && line[0] != '#') listed.insert(line);
    }
    EXPECT_EQ(listed, expected) << FAST_KERNELS << " holds \\b and the kernel pattern of each rung marked as fast.";
}

}  // namespace
}  // namespace ladder
