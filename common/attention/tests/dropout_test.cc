#include "common/attention/dropout.h"

#include <gtest/gtest.h>

#include <vector>

namespace attention {
namespace {

std::vector<std::uint32_t> philox(Words counter, std::uint64_t key) {
    const Words words = philox_4x32_10(counter, key);
    return {words[0], words[1], words[2], words[3]};
}

// From the file kat_vectors of the Random123 library.
TEST(KernelPhilox, GivesThePublishedVectors) {
    EXPECT_EQ(philox({0, 0, 0, 0}, 0), (std::vector<std::uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff),
              (std::vector<std::uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
              (std::vector<std::uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

Dropout with(float p, std::uint64_t seed = 0, std::uint32_t offset = 0) {
    Problem problem;
    problem.dropout = p;
    problem.dropout_seed = seed;
    problem.dropout_offset = offset;
    return dropout(problem);
}

// A word is kept iff it is below floor((1 - p) 2^32).
TEST(KernelDropout, KeepsTheWordsBelowTheThreshold) {
    EXPECT_TRUE(with(0.25f).keeps(0xbfffffffu));
    EXPECT_FALSE(with(0.25f).keeps(0xc0000000u));
    EXPECT_EQ(with(0.25f).scale, 1.0f / 0.75f);
    EXPECT_TRUE(with(0x1p-30f).keeps(0xfffffffbu));
    EXPECT_FALSE(with(0x1p-30f).keeps(0xfffffffcu));
    EXPECT_TRUE(with(0x1p-100f).keeps(0xffffffffu)) << "1 - p is 1 in double precision";
    EXPECT_TRUE(with(1 - 0x1p-24f).keeps(0xffu));
    EXPECT_FALSE(with(1 - 0x1p-24f).keeps(0x100u));
    EXPECT_FALSE(with(0).enabled);
    EXPECT_EQ(with(0).scale, 1.0f);
}

// Key j is word j % 4 of the draw for block j / 4. Seed, offset and head are those of the third published vector.
TEST(KernelDropout, DrawsOnceForFourNeighbouringKeys) {
    const Dropout half = with(0.5f, 0x299f31d0a4093822, 0x03707344);
    const Words words = philox_4x32_10({11, 5, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822);
    for (int w = 0; w < 4; ++w) EXPECT_EQ(half.keeps(0x13198a2e, 5, 44 + w), words[w] < 0x80000000u) << w;
}

// Over 2^20 weights the standard deviation of the kept fraction is at most 0.0005; neighbours in each index differ.
TEST(KernelDropout, KeepsTheRightFraction) {
    for (float p : {0.1f, 0.5f, 0.9f}) {
        int kept = 0;
        for (int head = 0; head < 4; ++head)
            for (int i = 0; i < 256; ++i)
                for (int j = 0; j < 1024; ++j) kept += with(p, 7).keeps(head, i, j);
        EXPECT_NEAR(kept / double(1 << 20), 1 - p, 0.0025) << p;
    }
}

TEST(KernelDropout, DependsOnEverything) {
    const Dropout some = with(0.5f, 7, 3), other_seed = with(0.5f, 7 + (std::uint64_t(1) << 32), 3),
                  other_offset = with(0.5f, 7, 4);
    int seed = 0, offset = 0, head = 0, query = 0;
    for (int j = 0; j < 4096; ++j) {
        const bool kept = some.keeps(5, 9, j);
        seed += kept != other_seed.keeps(5, 9, j);
        offset += kept != other_offset.keeps(5, 9, j);
        head += kept != some.keeps(6, 9, j);
        query += kept != some.keeps(5, 10, j);
    }
    for (int different : {seed, offset, head, query}) EXPECT_NEAR(different, 2048, 5 * 32);
}

}  // namespace
}  // namespace attention
