// fp16 and bf16 as bits, and their conversions: the emulator's counterparts of __half and __nv_bfloat16.
#pragma once

#include <bit>
#include <cstdint>

namespace emulator {

// In a namespace of their own, so that argument-dependent lookup does not find emulator::to_float beside gpu::to_float.
namespace number_types {

/// IEEE binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits.
struct fp16 {
    std::uint16_t bits;
};

/// The upper half of an fp32: 1 sign, 8 exponent (bias 127), 7 fraction bits.
struct bf16 {
    std::uint16_t bits;
};

}  // namespace number_types

using number_types::bf16;
using number_types::fp16;

/// Nearest even; subnormals kept; NaN of either sign becomes 0x7FFF.
inline bf16 to_bf16(float value) {
    const auto x = std::bit_cast<std::uint32_t>(value);
    if ((x & 0x7FFFFFFFu) > 0x7F800000u) return {0x7FFF};
    return {static_cast<std::uint16_t>((x + 0x7FFFu + (x >> 16 & 1)) >> 16)};
}

/// Nearest even; subnormals kept; beyond 65504 + half a unit: infinity; NaN of either sign becomes 0x7FFF.
inline fp16 to_fp16(float value) {
    const auto x = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>(x >> 16 & 0x8000u);
    const std::uint32_t magnitude = x & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return {0x7FFF};
    if (magnitude >= 0x47800000u) return {static_cast<std::uint16_t>(sign | 0x7C00u)};  // 65536 and above
    if (magnitude < 0x38800000u) {
        // Below 2^-14 the spacing is 2^-24, the spacing of fp32 at 0.5: adding 0.5 rounds to it.
        const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
        return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(rounded) - 0x3F000000u))};
    }
    const std::uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1);
    return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

inline float to_float(bf16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

/// Exact. NaN of either sign and any payload becomes 0x7FFFFFFF, as on an H200; a bf16 NaN above keeps its bits there.
inline float to_float(fp16 value) {
    const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
    const std::uint32_t magnitude = value.bits & 0x7FFFu;
    if (magnitude > 0x7C00u) return std::bit_cast<float>(0x7FFFFFFFu);
    if (magnitude == 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u);
    if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

}  // namespace emulator
