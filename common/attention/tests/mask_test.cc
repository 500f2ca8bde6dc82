// Every answer of attention::Mask against the sentence that defines it, on all small problems.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/attention/kernel_problem.h"

namespace attention {
namespace {

constexpr int windows[] = {-1, 0, 1, 2, 5, 100};

bool sees(const Mask& mask, int i, int j) {
    const int distance = j - (i + mask.Nk - mask.Nq);
    return (mask.left == -1 || distance >= -mask.left) && (mask.right == -1 || distance <= mask.right);
}

// Calls check(mask) for all lengths below `limit` and all windows.
template <class Check>
void for_all_masks(int limit, Check check) {
    for (int Nq = 0; Nq < limit; ++Nq)
        for (int Nk = 0; Nk < limit; ++Nk)
            for (int left : windows)
                for (int right : windows) check(Mask{Nq, Nk, left, right});
}

std::string text(const Mask& mask) {
    return "Nq=" + std::to_string(mask.Nq) + " Nk=" + std::to_string(mask.Nk) + " window " + std::to_string(mask.left) +
           "," + std::to_string(mask.right);
}

TEST(Mask, KeysQueriesAndVisibleFollowTheDefinition) {
    for_all_masks(9, [](const Mask& mask) {
        for (int i = 0; i < mask.Nq; ++i) {
            for (int j = 0; j < mask.Nk; ++j) {
                const bool expected = sees(mask, i, j);
                ASSERT_EQ(mask.visible(i, j), expected) << text(mask) << ", (" << i << ", " << j << ")";
                ASSERT_EQ(mask.keys(i).contains(j), expected) << text(mask) << ", (" << i << ", " << j << ")";
                ASSERT_EQ(mask.queries(j).contains(i), expected) << text(mask) << ", (" << i << ", " << j << ")";
            }
            ASSERT_GE(mask.keys(i).begin, 0);
            ASSERT_LE(mask.keys(i).end, mask.Nk);
        }
        // Rows of a tile that reach beyond the matrix.
        for (int beyond = 0; beyond < 3; ++beyond) {
            ASSERT_TRUE(mask.keys(mask.Nq + beyond).empty()) << text(mask);
            ASSERT_TRUE(mask.queries(mask.Nk + beyond).empty()) << text(mask);
        }
    });
}

TEST(Mask, SeenKeysAndSeeingQueriesFollowTheDefinition) {
    for_all_masks(9, [](const Mask& mask) {
        for (int j = 0; j < mask.Nk; ++j) {
            bool seen = false;
            for (int i = 0; i < mask.Nq; ++i) seen = seen || sees(mask, i, j);
            ASSERT_EQ(mask.seen_keys().contains(j), seen) << text(mask) << ", key " << j;
        }
        for (int i = 0; i < mask.Nq; ++i) {
            bool seeing = false;
            for (int j = 0; j < mask.Nk; ++j) seeing = seeing || sees(mask, i, j);
            ASSERT_EQ(mask.seeing_queries().contains(i), seeing) << text(mask) << ", query " << i;
        }
    });
}

// A tile is visited if and only if somebody in it sees somebody; a row of tiles is one range, since both ends of a
// window move with the query.
TEST(Mask, TilesFollowTheDefinition) {
    for_all_masks(9, [](const Mask& mask) {
        for (int Br : {1, 2, 4, 16}) {
            for (int Bc : {1, 3, 4, 16}) {
                for (int i0 = 0; i0 < mask.Nq; i0 += Br) {
                    for (int j0 = 0; j0 < mask.Nk; j0 += Bc) {
                        const int rows = std::min(Br, mask.Nq - i0);
                        int visible = 0;
                        for (int i = i0; i < i0 + rows; ++i)
                            for (int j = j0; j < j0 + Bc && j < mask.Nk; ++j) visible += sees(mask, i, j);
                        const Tile expected = visible == 0         ? Tile::hidden
                                              : visible == Br * Bc ? Tile::full
                                                                   : Tile::mixed;
                        const auto where = [&] {
                            return text(mask) + ", tile (" + std::to_string(i0) + " + " + std::to_string(Br) + ", " +
                                   std::to_string(j0) + " + " + std::to_string(Bc) + ")";
                        };
                        ASSERT_EQ(mask.key_tiles(i0, Br, Bc).contains(j0 / Bc), visible > 0) << where();
                        ASSERT_EQ(mask.full_key_tiles(i0, Br, Bc).contains(j0 / Bc), visible == rows * Bc) << where();
                        ASSERT_EQ(mask.query_tiles(j0, Bc, Br).contains(i0 / Br), visible > 0) << where();
                        ASSERT_EQ(mask.classify(i0, Br, j0, Bc), expected) << where();
                    }
                }
            }
        }
    });
}

// A window as wide as int allows, on a sequence as long: no overflow.
TEST(Mask, LargestNumbersDoNotOverflow) {
    Problem problem;
    problem.Nq = problem.Nk = longest_sequence;
    problem.window_left = problem.window_right = 2147483647;
    const Mask wide = mask_of(problem, 0);
    EXPECT_EQ(wide.keys(longest_sequence - 1).begin, 0);
    EXPECT_EQ(wide.keys(0).end, longest_sequence);
    EXPECT_EQ(wide.queries(0).end, longest_sequence);
    const Mask tall{longest_sequence, 1, -1, 0};
    EXPECT_TRUE(tall.keys(longest_sequence - 2).empty());
    EXPECT_TRUE(tall.visible(longest_sequence - 1, 0));
}

// ---- the notes' pictures ----

int visited_tiles(const Mask& mask, int Br, int Bc) {
    int tiles = 0;
    for (int i0 = 0; i0 < mask.Nq; i0 += Br) {
        const Range range = mask.key_tiles(i0, Br, Bc);
        tiles += range.end - range.begin;
    }
    return tiles;
}

TEST(Mask, TwelveTokensInTwoByTwoTilesVisit21Of36) {
    EXPECT_EQ(visited_tiles({12, 12, -1, -1}, 2, 2), 36);
    EXPECT_EQ(visited_tiles({12, 12, -1, 0}, 2, 2), 21);
}

TEST(Mask, TwentyFourTokensNeedSixOrThreeKeyTiles) {
    for (int i0 = 0; i0 < 24; i0 += 4) {
        const Range of_four = Mask{24, 24, -1, -1}.key_tiles(i0, 4, 4),
                    of_eight = Mask{24, 24, -1, -1}.key_tiles(i0, 4, 8);
        EXPECT_EQ(of_four.end - of_four.begin, 6);
        EXPECT_EQ(of_eight.end - of_eight.begin, 3);
    }
}

}  // namespace
}  // namespace attention
