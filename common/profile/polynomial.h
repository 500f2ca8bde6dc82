// 2^x on the FMA pipes: what a kernel can do while the special-function units are busy with other exponentials.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "common/gpu/machine.h"

namespace profile {

/// 2^x for x <= 127, relative error at most 7.6e-5 for x >= -126; about 2^-126 below. x = n + f with n the
/// nearest integer, 2^f by the polynomial of degree 3 with the least relative error on [-1/2, 1/2] (Remez), and n added
/// to its exponent. The way of FlashAttention-4 (2026), section on software exponentials, which rounds n down instead.
GPU_HOST_DEVICE float exp2_polynomial(float x) {
    constexpr float to_integer = 12582912.0f;  // 1.5 * 2^23: the sum's last bit is worth 1
    x = fmaxf(x, -126.0f);
    const float shifted = x + to_integer;
    const float f = x - (shifted - to_integer);
    const float power = 0.99992807f + f * (0.69326099f + f * (0.24261112f + f * 0.05517167f));
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(power) + (std::bit_cast<std::uint32_t>(shifted) << 23));
}

}  // namespace profile
