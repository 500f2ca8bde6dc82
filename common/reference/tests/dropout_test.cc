#include <gtest/gtest.h>

#include <cmath>

#include "common/reference/philox.h"
#include "common/reference/reference.h"
#include "common/reference/tests/small_problem.h"
#include "common/reference/visibility.h"

namespace {

using attention::Problem;
using Words = std::array<std::uint32_t, 4>;

// From the file kat_vectors of the Random123 library.
TEST(Philox, GivesThePublishedVectors) {
    EXPECT_EQ(reference::philox_4x32_10({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    EXPECT_EQ(reference::philox_4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
              (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(reference::philox_4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Of the first published vector, words 0, 2 and 3 are below 0.75 * 2^32 = 0xc0000000.
TEST(Dropout, FirstFourKeysFollowThePublishedVector) {
    Problem problem = small::problem(1, 4);
    problem.dropout = 0.25f;
    auto inputs = small::zeros(problem);
    small::set_first_column(inputs.V, [](int j) { return 10 * (j + 1); });
    const auto result = reference::forward(problem, inputs, 0, 0, {0});
    EXPECT_NEAR(result.O.row(0)[0], (10 + 30 + 40) / 4.0 / 0.75, 1e-12);
    EXPECT_NEAR(result.L[0], std::log(4.0), 1e-15);  // L knows nothing of dropout
}

TEST(Dropout, KeepsTheRightFraction) {
    Problem problem = small::problem(512, 512);
    for (float p : {0.1f, 0.5f, 0.9f}) {
        problem.dropout = p;
        int kept = 0;
        for (int i = 0; i < 512; ++i) {
            for (int j = 0; j < 512; ++j) {
                const double factor = reference::dropout_factor(problem, 0, 0, i, j);
                ASSERT_TRUE(factor == 0.0 || factor == 1.0 / (1.0 - static_cast<double>(p)));
                kept += factor > 0.0;
            }
        }
        const double n = 512.0 * 512.0;
        EXPECT_NEAR(kept / n, 1.0 - p, 5.0 * std::sqrt(p * (1.0 - p) / n));  // five standard errors
    }
}

TEST(Dropout, DependsOnEveryCoordinate) {
    Problem problem = small::problem(64, 64);
    problem.B = 2;
    problem.Hq = 2;
    problem.dropout = 0.5f;
    const auto differences = [&](const Problem& other, int b, int h) {
        int count = 0;
        for (int j = 0; j < 64; ++j) {
            count += reference::dropout_factor(problem, 0, 0, 0, j) != reference::dropout_factor(other, b, h, 0, j);
        }
        return count;
    };
    Problem seed = problem, high = problem, offset = problem;
    seed.dropout_seed = 1;
    high.dropout_seed = std::uint64_t{1} << 32;
    offset.dropout_offset = 1;
    for (int count : {differences(problem, 0, 1), differences(problem, 1, 0), differences(seed, 0, 0),
                      differences(high, 0, 0), differences(offset, 0, 0)}) {
        EXPECT_GT(count, 16);
        EXPECT_LT(count, 48);
    }
    EXPECT_EQ(differences(problem, 0, 0), 0);
}

TEST(Visibility, QueriesAndKeysAgree) {
    for (const auto& [Nq, Nk] : {std::pair{7, 7}, {5, 2}, {2, 5}, {0, 3}, {3, 0}, {1, 9}}) {
        for (const auto& [left, right] :
             {std::pair{-1, -1}, {-1, 0}, {1, 0}, {2, 1}, {0, -1}, {2147483647, 2147483647}}) {
            Problem problem = small::problem(Nq, Nk);
            problem.window_left = left;
            problem.window_right = right;
            for (int i = 0; i < Nq; ++i) {
                for (int j = 0; j < Nk; ++j) {
                    const auto in = [](reference::Range range, int x) { return range.first <= x && x < range.end; };
                    const bool visible = (left == -1 || std::int64_t{j} >= std::int64_t{i} + Nk - Nq - left) &&
                                         (right == -1 || std::int64_t{j} <= std::int64_t{i} + Nk - Nq + right);
                    EXPECT_EQ(in(reference::visible_keys(problem, 0, i), j), visible) << i << ' ' << j;
                    EXPECT_EQ(in(reference::visible_queries(problem, 0, j), i), visible) << i << ' ' << j;
                }
            }
        }
    }
}

}  // namespace
