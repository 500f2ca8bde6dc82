// Arithmetic that has its own hardware unit, so that it can be counted: exponentials and logarithms. PTX ISA 9.7.3.
#pragma once

#include <cmath>

#include "common/gpu/machine.h"

namespace gpu {

/// ex2.approx.ftz.f32: 2^x on the special-function unit. Exact at integers, relative error at most 2^-22.7; 2^-inf = 0;
/// subnormal inputs and results are flushed to zero; NaN stays NaN. exp(x) = ex2(x * log2_e).
GPU_DEVICE float ex2_approx_ftz(float x) {
#if GPU_EMULATOR
    return emulator::ex2_approx_ftz(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

constexpr float log2_e = 1.4426950408889634f;
constexpr float ln_2 = 0.6931471805599453f;
#define GPU_INFINITY __builtin_huge_valf()

}  // namespace gpu
