// The whole ladder: a rung that is not registered, or a stage that the build forgot, changes these numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <vector>

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
        {{"03", Pass::forward}, 4},  {{"03", Pass::backward}, 2}, {{"03", Pass::decode}, 1},
        {{"04", Pass::forward}, 7},  {{"04", Pass::backward}, 3}, {{"05", Pass::forward}, 5},
        {{"05", Pass::backward}, 1}};
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
    std::vector<std::string> patterns;
    for (const Rung& rung : registry.rungs()) {
        if (rung.fast) patterns.push_back("\\b" + rung.kernel_pattern);
    }
    std::vector<std::string> listed;
    std::ifstream file(FAST_KERNELS);
    for (std::string line; std::getline(file, line);) {
        if (!line.empty() && line[0] != '#') listed.push_back(line);
    }
    // A line may narrow its rung's pattern, to the head dimensions for which it claims speed.
    for (const std::string& line : listed) {
        const auto begins = [&](const std::string& pattern) { return line.starts_with(pattern); };
        EXPECT_TRUE(std::any_of(patterns.begin(), patterns.end(), begins)) << "no fast rung claims " << line;
    }
    for (const std::string& pattern : patterns) {
        const auto begins = [&](const std::string& line) { return line.starts_with(pattern); };
        EXPECT_TRUE(std::any_of(listed.begin(), listed.end(), begins)) << FAST_KERNELS << " lacks " << pattern;
    }
}

}  // namespace
}  // namespace ladder
