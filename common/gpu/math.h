// Arithmetic whose rounding or count matters, written as one instruction each.
#pragma once

#include <cmath>

#include "common/gpu/machine.h"

namespace gpu {

/// mul.rn.f32: a product that is rounded before anything else happens to it. A compiler may fuse a * b - c into one
/// rounding; where c is itself a rounded product (the maximum of the scores), 2^(a b - c) of the largest score would
/// then not be 1.
GPU_HOST_DEVICE float mul_rn(float a, float b) {
#if GPU_EMULATOR || !defined(__CUDA_ARCH__)
    return a * b;
#else
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
#endif
}

/// ex2.approx.ftz.f32: 2^x on the special-function unit. Within 2 units in the last place (on an H200: relative error
/// at most 2^-22.7, exact at integers); 2^-inf = 0; subnormal inputs and results are flushed to zero; NaN stays NaN.
/// exp(x) is ex2(x * log2_e). The host of a GPU has no such unit and computes exp2. PTX ISA: ex2.
GPU_HOST_DEVICE float ex2_approx_ftz(float x) {
#if GPU_EMULATOR
    return emulator::ex2_approx_ftz(x);
#elif !defined(__CUDA_ARCH__)
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

constexpr float log2_e = 1.4426950408889634f;
constexpr float ln_2 = 0.6931471805599453f;
constexpr float infinity = __builtin_huge_valf();

/// Counts one rescale of one query's state by one thread; costs nothing on a GPU.
GPU_HOST_DEVICE void count_rescale() { EMULATED(emulator::count_rescale()); }

}  // namespace gpu
