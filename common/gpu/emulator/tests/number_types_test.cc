// Conversions of fp16 and bf16 against a search over all encodings.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "common/gpu/emulator/number_types.h"

namespace {

/// The value of finite 16-bit codes from the definition of the format.
double value(int code, int fraction_bits, int bias) {
    const int fraction = code & ((1 << fraction_bits) - 1), field = (code & 0x7FFF) >> fraction_bits;
    const double significand = std::ldexp(fraction, -fraction_bits) + (field > 0 ? 1 : 0);
    return (code & 0x8000 ? -1 : 1) * std::ldexp(significand, std::max(field, 1) - bias);
}

/// Nearest code of a non-negative number, ties to the even code; codes grow with the value, and the first code past the
/// finite ones stands for infinity, where the next value of the format would be.
int nearest(double x, int fraction_bits, int bias, int infinity) {
    int low = 0, high = infinity;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        (value(middle, fraction_bits, bias) <= x ? low : high) = middle;
    }
    const double below = x - value(low, fraction_bits, bias), above = value(high, fraction_bits, bias) - x;
    if (below != above) return below < above ? low : high;
    return low % 2 == 0 ? low : high;
}

std::vector<float> inputs() {
    std::vector<float> result;
    std::mt19937 random(7);
    for (int i = 0; i < 200000; ++i) {
        const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
        if (std::isfinite(x)) result.push_back(x);
    }
    for (int i = 0; i < 200000; ++i)  // where fp16 has its values
        result.push_back(
            static_cast<float>(std::ldexp(1 + random() / 4294967296.0, static_cast<int>(random() % 44) - 27)));
    for (int code = 0; code < 0x7C00; ++code) {  // fp16 values, ties between them, and next to the ties
        const float tie = static_cast<float>((value(code, 10, 15) + value(code + 1, 10, 15)) / 2);
        for (const float x :
             {static_cast<float>(value(code, 10, 15)), tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e9f)})
            result.push_back(x);
    }
    return result;
}

TEST(NumberTypes, RoundToNearestEvenTiny) {
    for (const float x : inputs()) {
        const int sign = std::signbit(x) ? 0x8000 : 0;
        ASSERT_EQ(emulator::to_fp16(x).bits, sign | nearest(std::fabs(x), 10, 15, 0x7C00)) << x;
        ASSERT_EQ(emulator::to_bf16(x).bits, sign | nearest(std::fabs(x), 7, 127, 0x7F80)) << x;
    }
}

TEST(NumberTypes, EveryCodeBackToFp32Tiny) {
    for (int code = 0; code < 0x10000; ++code) {
        const auto bits = static_cast<std::uint16_t>(code);
        if ((code & 0x7FFF) < 0x7C00) {
            ASSERT_EQ(emulator::to_float(emulator::fp16{bits}), value(code, 10, 15));
            ASSERT_EQ(emulator::to_fp16(emulator::to_float(emulator::fp16{bits})).bits, code);
        }
        if ((code & 0x7FFF) < 0x7F80) {
            ASSERT_EQ(emulator::to_float(emulator::bf16{bits}), value(code, 7, 127));
            ASSERT_EQ(emulator::to_bf16(emulator::to_float(emulator::bf16{bits})).bits, code);
        }
    }
}

TEST(NumberTypes, SpecialValuesTiny) {
    for (const std::uint32_t nan : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu}) {
        EXPECT_EQ(emulator::to_fp16(std::bit_cast<float>(nan)).bits, 0x7FFF);
        EXPECT_EQ(emulator::to_bf16(std::bit_cast<float>(nan)).bits, 0x7FFF);
    }
    EXPECT_EQ(emulator::to_fp16(INFINITY).bits, 0x7C00);
    EXPECT_EQ(emulator::to_fp16(-INFINITY).bits, 0xFC00);
    EXPECT_EQ(emulator::to_bf16(-INFINITY).bits, 0xFF80);
    EXPECT_EQ(emulator::to_fp16(-0.0f).bits, 0x8000);
    EXPECT_EQ(emulator::to_fp16(65519.996f).bits, 0x7BFF);
    EXPECT_EQ(emulator::to_fp16(65520.0f).bits, 0x7C00);
    EXPECT_TRUE(std::isnan(emulator::to_float(emulator::fp16{0x7FFF})));
    EXPECT_EQ(emulator::to_float(emulator::fp16{0xFC00}), -INFINITY);
}

}  // namespace
