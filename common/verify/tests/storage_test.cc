#include "common/verify/storage.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace {

using attention::DataType;

std::uint16_t bits_of(DataType type, float value) {
    std::uint16_t bits;
    verify::store(type, &value, 1, reinterpret_cast<std::byte*>(&bits));
    return bits;
}

float value_of(DataType type, std::uint16_t bits) {
    float value;
    verify::load(type, reinterpret_cast<const std::byte*>(&bits), 1, &value);
    return value;
}

constexpr float infinity = std::numeric_limits<float>::infinity();

// IEEE 754 binary16, and the upper half of binary32.
TEST(Storage, KnownBits) {
    const struct {
        float value;
        std::uint16_t fp16, bf16;
    } known[] = {{0.0f, 0x0000, 0x0000},     {-0.0f, 0x8000, 0x8000},    {1.0f, 0x3C00, 0x3F80},
                 {-2.0f, 0xC000, 0xC000},    {1.5f, 0x3E00, 0x3FC0},     {0x1p-14f, 0x0400, 0x3880},
                 {0x1p-24f, 0x0001, 0x3380}, {infinity, 0x7C00, 0x7F80}, {-infinity, 0xFC00, 0xFF80}};
    for (const auto& [value, fp16, bf16] : known) {
        EXPECT_EQ(bits_of(DataType::fp16, value), fp16) << value;
        EXPECT_EQ(bits_of(DataType::bf16, value), bf16) << value;
        EXPECT_EQ(value_of(DataType::fp16, fp16), value);
        EXPECT_EQ(value_of(DataType::bf16, bf16), value);
    }
    EXPECT_EQ(bits_of(DataType::fp16, 65504.0f), 0x7BFF);
    EXPECT_EQ(bits_of(DataType::fp16, 1e6f), 0x7C00);
    EXPECT_EQ(bits_of(DataType::fp16, 1.0f + 0x1p-11f), 0x3C00);  // ties go to even
    EXPECT_EQ(bits_of(DataType::bf16, 1.0f + 3 * 0x1p-8f), 0x3F82);
}

TEST(Storage, EveryNumberComesBack) {
    for (DataType type : {DataType::fp16, DataType::bf16}) {
        for (int bits = 0; bits < 65536; ++bits) {
            const float value = value_of(type, static_cast<std::uint16_t>(bits));
            if (std::isnan(value)) continue;
            EXPECT_EQ(bits_of(type, value), bits) << attention::name(type);
        }
    }
}

TEST(Storage, NanStaysNanAndIsNotPoison) {
    for (DataType type : {DataType::fp16, DataType::bf16}) {
        const std::uint16_t bits = bits_of(type, std::nanf(""));
        EXPECT_TRUE(std::isnan(value_of(type, bits)));
        EXPECT_NE(bits, 0xFFFF);
        EXPECT_TRUE(std::isnan(value_of(type, 0xFFFF)));
    }
}

}  // namespace
