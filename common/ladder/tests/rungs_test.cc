// The whole ladder: a rung that is not registered, or a stage that the build forgot, changes these numbers.
#include <gtest/gtest.h>

#include <map>

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
        {{"03", Pass::forward}, 2},  {{"03", Pass::backward}, 2}, {{"03", Pass::decode}, 1}};
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

}  // namespace
}  // namespace ladder
