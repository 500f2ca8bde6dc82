// Marks of 04b, 04c and 04d, recorded.
#include "04_fa3_hopper/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

namespace stage04 {
namespace {

constexpr int key_tiles = 3;

attention::Problem three_key_tiles() {
    attention::Problem problem;
    problem.Nq = 256;
    problem.Nk = 128 * key_tiles - 10;
    problem.d = 128;
    problem.scale = attention::default_scale(problem.d);
    return problem;
}

TEST(Timeline, EveryTileHasItsCopiesProductsAndSoftmax) {
    for (const char* letter : {"b", "c", "d"}) {
        const auto warpgroups = record(letter, three_key_tiles(), 1);
        ASSERT_EQ(warpgroups.size(), 3u);
        for (std::size_t w = 0; w < warpgroups.size(); ++w) {
            std::map<Mark, int> counts;
            for (std::size_t n = 0; n < warpgroups[w].size(); ++n) {
                ++counts[warpgroups[w][n].mark];
                if (n > 0) {
                    EXPECT_LT(warpgroups[w][n - 1].time, warpgroups[w][n].time);
                }
            }
            const int consumer = w > 0 ? key_tiles : 0, producer = w == 0 ? key_tiles : 0;
            for (Mark mark : {Mark::S, Mark::softmax, Mark::O, Mark::wait_K, Mark::wait_V})
                EXPECT_EQ(counts[mark], consumer) << letter << w;
            EXPECT_EQ(counts[Mark::O_done] + counts[Mark::rescale], consumer) << letter << w;
            EXPECT_EQ(counts[Mark::copy_K], producer) << letter;
            EXPECT_EQ(counts[Mark::copy_V], producer) << letter;
            EXPECT_EQ(counts[Mark::wait_slot], 2 * producer) << letter;
        }
    }
}

// S of the first tile, O and S of two, O of the last; 1 and 2 in turn. In 04b there are no turns.
TEST(Timeline, WarpgroupsTakeTurns) {
    for (const auto& [letter, turns] : {std::pair{"b", 0}, {"c", key_tiles + 1}, {"d", key_tiles + 1}}) {
        const auto warpgroups = record(letter, three_key_tiles(), 0);
        std::vector<std::pair<std::int64_t, int>> begins;
        for (int w = 1; w <= 2; ++w)
            for (std::size_t n = 0; n < warpgroups[w].size(); ++n)
                if (warpgroups[w][n].mark == Mark::wait_turn) begins.emplace_back(warpgroups[w].at(n + 1).time, w);
        std::sort(begins.begin(), begins.end());
        ASSERT_EQ(int(begins.size()), 2 * turns) << letter;
        for (int n = 0; n < int(begins.size()); ++n) EXPECT_EQ(begins[n].second, 1 + n % 2) << letter;
    }
}

TEST(Timeline, RefusesWhatHasNoMarks) {
    EXPECT_THROW(record("a", three_key_tiles(), 0), std::runtime_error);
    EXPECT_THROW(record("e", three_key_tiles(), 0), std::runtime_error);
    EXPECT_THROW(record("c", three_key_tiles(), 2), std::runtime_error);
    EXPECT_THROW(record("c", three_key_tiles(), -1), std::runtime_error);
    attention::Problem problem = three_key_tiles();
    problem.d = 64;
    EXPECT_THROW(record("c", problem, 0), std::runtime_error);
}

}  // namespace
}  // namespace stage04
