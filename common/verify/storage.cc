#include "common/verify/storage.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace verify {
namespace {

using attention::DataType;

// fp16: 1 bit of sign, 5 of exponent (biased by 15), 10 of fraction. `value` is representable.
std::uint16_t fp16_bits(float value) {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) return 0x7FFF;
    if (std::isinf(value)) return sign | 0x7C00;
    const float magnitude = std::abs(value);
    if (magnitude < 0x1p-14f) return sign | static_cast<std::uint16_t>(magnitude * 0x1p24f);
    const int exponent = std::ilogb(magnitude);
    const int fraction = static_cast<int>(std::ldexp(magnitude, 10 - exponent)) - 1024;
    return sign | static_cast<std::uint16_t>((exponent + 15) << 10 | fraction);
}

float fp16_value(std::uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float sign = bits & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31) {
        return fraction ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
    }
    return sign * (exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                 : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25));
}

}  // namespace

void store(DataType type, const float* values, std::size_t count, std::byte* bits) {
    for (std::size_t n = 0; n < count; ++n) {
        const float value = attention::round_to(type, values[n]);
        if (type == DataType::fp32) {
            std::memcpy(bits + 4 * n, &value, 4);
        } else {
            const std::uint16_t word = type == DataType::fp16
                                           ? fp16_bits(value)
                                           : static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
            std::memcpy(bits + 2 * n, &word, 2);
        }
    }
}

void load(DataType type, const std::byte* bits, std::size_t count, float* values) {
    for (std::size_t n = 0; n < count; ++n) {
        if (type == DataType::fp32) {
            std::memcpy(&values[n], bits + 4 * n, 4);
        } else {
            std::uint16_t word;
            std::memcpy(&word, bits + 2 * n, 2);
            values[n] = type == DataType::fp16 ? fp16_value(word)
                                               : std::bit_cast<float>(static_cast<std::uint32_t>(word) << 16);
        }
    }
}

}  // namespace verify
