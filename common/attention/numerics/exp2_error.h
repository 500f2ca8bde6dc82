// How far a function is from 2^x, float by float.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "common/gpu/types.h"

namespace attention::numerics {

struct Exp2Error {
    double relative = 0;  // largest |value / 2^x - 1|
    double bf16 = 0;      // the same of the value rounded to bf16
    double fall = 0;      // largest relative step down from a float to the next larger one that was looked at
    std::int64_t floats = 0;
};

/// Of every stride-th float from `first` to `last`, which have one sign and grow in magnitude. 2^x in double precision,
/// wrong by 10^-16, where errors of 10^-7 are sought.
template <class Power>
Exp2Error exp2_error(float first, float last, std::uint32_t stride, Power power) {
    Exp2Error result;
    float before = power(first);
    for (std::int64_t bits = std::bit_cast<std::uint32_t>(first); bits <= std::bit_cast<std::uint32_t>(last);
         bits += stride) {
        const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits)), value = power(x);
        const double inverse = std::exp2(-static_cast<double>(x));
        result.relative = std::max(result.relative, std::abs(value * inverse - 1));
        result.bf16 = std::max(result.bf16, std::abs(gpu::to_float(gpu::cvt_rn<gpu::bf16>(value)) * inverse - 1));
        const float lower = std::signbit(x) ? value : before, upper = std::signbit(x) ? before : value;
        result.fall = std::max(result.fall, (lower - upper) * inverse);
        before = value;
        ++result.floats;
    }
    return result;
}

}  // namespace attention::numerics
