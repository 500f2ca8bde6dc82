// Arithmetic whose rounding is stated: against the processor's own rounding down, and against sums that are exact in
// long double.
#include "common/gpu/math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cfenv>
#include <limits>
#include <random>

namespace {

using gpu::FloatPair;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float largest = std::numeric_limits<float>::max();
constexpr float subnormal = std::numeric_limits<float>::denorm_min();
const float nan = std::numeric_limits<float>::quiet_NaN();

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

// What the processor adds when it is told to round down.
float sum_of_processor(float a, float b) {
    const int before = std::fegetround();
    std::fesetround(FE_DOWNWARD);
    volatile float x = a, y = b;
    volatile float sum = x + y;
    std::fesetround(before);
    return sum;
}

void expect_rounded_down(float a, float b) {
    const float sum = gpu::add_rm(a, b), expected = sum_of_processor(a, b);
    if (std::isnan(expected)) EXPECT_TRUE(std::isnan(sum)) << a << " + " << b;
    else EXPECT_EQ(bits(sum), bits(expected)) << a << " + " << b;
    EXPECT_EQ(std::fegetround(), FE_TONEAREST);
}

TEST(Math, AddRoundedDownOfAnyBits) {
    std::mt19937 random(1);
    for (int i = 0; i < 1000000; ++i) {
        const float a = std::bit_cast<float>(std::uint32_t(random()));
        expect_rounded_down(a, std::bit_cast<float>(std::uint32_t(random())));
        expect_rounded_down(a, std::bit_cast<float>(bits(a) ^ std::uint32_t(random()) >> (1 + i % 31) ^ i << 31));
    }
}

TEST(Math, AddRoundedDownAtEdges) {
    const float edges[] = {0,       1,           0x1p-24f, 0x1p-25f,        1 + 0x1p-23f, 12582912,  127,
                           largest, 0x1p103f,    0x1p102f, 0x1p-126f,       subnormal,    0x1p-149f, 3 * subnormal,
                           8388608, 16777216.0f, infinity, std::exp2(0.5f), nan};
    for (float a : edges)
        for (float b : edges)
            for (int signs = 0; signs < 4; ++signs) expect_rounded_down(signs & 1 ? -a : a, signs & 2 ? -b : b);
}

// The sum that the polynomial of 2^x takes the integer part from.
TEST(Math, AddRoundedDownIsTheFloor) {
    constexpr float to_integer = 12582912;  // 1.5 * 2^23
    std::mt19937 random(2);
    std::uniform_real_distribution<float> x(-127, 128);
    for (int i = 0; i < 1000000; ++i) {
        const float y = x(random);
        const long double exact = std::floor(static_cast<long double>(to_integer) + y);
        EXPECT_EQ(gpu::add_rm(y, to_integer), exact) << y;
    }
    EXPECT_EQ(gpu::add_rm(-subnormal, to_integer), to_integer - 1);
}

TEST(Math, MaximumOfNaN) {
    for (float x : {0.0f, 1.0f, -infinity, infinity, nan, -nan}) {
        EXPECT_EQ(bits(gpu::max_nan(x, nan)), 0x7FFFFFFFu);
        EXPECT_EQ(bits(gpu::max_nan(-nan, x)), 0x7FFFFFFFu);
    }
    EXPECT_EQ(gpu::max_nan(-infinity, -3), -3);
    EXPECT_EQ(gpu::max_nan(2, infinity), infinity);
    EXPECT_EQ(bits(gpu::max_nan(-0.0f, 0.0f)), 0u);
    EXPECT_EQ(bits(gpu::max_nan(0.0f, -0.0f)), 0u);
    EXPECT_EQ(bits(gpu::max_nan(-0.0f, -0.0f)), 0x80000000u);
}

// 1 + 2^-12 squared is 1 + 2^-11 + 2^-24: rounded once, or first to 1 + 2^-11.
TEST(Math, PairsAreElementByElement) {
    const float x = 1 + 0x1p-12f, square = 1 + 0x1p-11f;
    const FloatPair a = {x, 3}, b = {x, 5}, c = {-square, 7};
    EXPECT_EQ(gpu::fma_rn_x2(a, b, c)[0], 0x1p-24f);
    EXPECT_EQ(gpu::fma_rn_x2(a, b, c)[1], 22);
    EXPECT_EQ(gpu::mul_rn_x2(a, b)[0], square);
    EXPECT_EQ(gpu::mul_rn_x2(a, b)[1], 15);
    EXPECT_EQ(gpu::add_rn_x2({1, 2}, {0x1p-25f, 5})[0], 1);
    EXPECT_EQ(gpu::add_rn_x2({1, 2}, {0x1p-25f, 5})[1], 7);
    EXPECT_EQ(gpu::add_rm_x2({1, 2}, {-0x1p-25f, 5})[0], 1 - 0x1p-24f);
    EXPECT_EQ(gpu::add_rm_x2({1, 2}, {-0x1p-25f, 5})[1], 7);
}

}  // namespace
