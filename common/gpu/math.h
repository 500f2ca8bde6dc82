// Arithmetic whose rounding or count matters, written as one instruction each.
#pragma once

#include <bit>
#include <cmath>

#include "common/gpu/types.h"

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

/// add.rn.f32: a sum that is rounded by itself, as mul_rn.
GPU_HOST_DEVICE float add_rn(float a, float b) {
#if GPU_EMULATOR || !defined(__CUDA_ARCH__)
    return a + b;
#else
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
#endif
}

/// a + b rounded toward -infinity, in the arithmetic of any processor: what add_rm is off a GPU. A sum of 0 is -0 unless
/// both are +0.
inline float sum_rounded_down(float a, float b) {
    const float sum = a + b;
    if (sum == 0) return std::signbit(a) || std::signbit(b) ? -0.0f : 0.0f;
    // What rounding to nearest left out. Each difference is a float, so nothing is rounded here (Dekker's fast two-sum);
    // doubles, because sum may be infinite where a and b are not, and then the largest number is below it.
    const bool a_is_larger = std::fabs(a) >= std::fabs(b);
    const double larger = a_is_larger ? a : b, smaller = a_is_larger ? b : a;
    const double left_out = smaller - (sum - larger);
    return left_out < 0 ? std::nextafter(sum, -HUGE_VALF) : sum;
}

/// add.rm.f32: a + b, rounded down. PTX ISA: add.
GPU_HOST_DEVICE float add_rm(float a, float b) {
#if GPU_EMULATOR || !defined(__CUDA_ARCH__)
    return sum_rounded_down(a, b);
#else
    float sum;
    asm("add.rm.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
#endif
}

/// max.NaN.f32: the larger of both; 0x7FFFFFFF if either is a NaN, which fmaxf would drop; +0 is larger than -0. sm_80.
/// PTX ISA: max.
GPU_HOST_DEVICE float max_nan(float a, float b) {
#if GPU_EMULATOR || !defined(__CUDA_ARCH__)
    if (std::isnan(a) || std::isnan(b)) return std::bit_cast<float>(0x7FFFFFFFu);
    return a > b || (a == b && !std::signbit(a)) ? a : b;
#else
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
#endif
}

// Two numbers in one instruction, element by element. From sm_100 on these are instructions of their own, on registers of
// 64 bits, element 0 below; older GPUs take two instructions for the same bits. Subnormal numbers are kept. PTX ISA: fma, mul,
// add.
using FloatPair = Vector<float, 2>;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define GPU_HAS_F32X2 1
#else
#define GPU_HAS_F32X2 0
#endif

/// fma.rn.f32x2: a b + c, rounded once.
GPU_HOST_DEVICE FloatPair fma_rn_x2(FloatPair a, FloatPair b, FloatPair c) {
#if GPU_HAS_F32X2
    std::uint64_t d;
    asm("fma.rn.f32x2 %0, %1, %2, %3;"
        : "=l"(d)
        : "l"(std::bit_cast<std::uint64_t>(a)), "l"(std::bit_cast<std::uint64_t>(b)),
          "l"(std::bit_cast<std::uint64_t>(c)));
    return std::bit_cast<FloatPair>(d);
#else
    return {fmaf(a[0], b[0], c[0]), fmaf(a[1], b[1], c[1])};
#endif
}

/// mul.rn.f32x2: a b.
GPU_HOST_DEVICE FloatPair mul_rn_x2(FloatPair a, FloatPair b) {
#if GPU_HAS_F32X2
    std::uint64_t d;
    asm("mul.rn.f32x2 %0, %1, %2;"
        : "=l"(d)
        : "l"(std::bit_cast<std::uint64_t>(a)), "l"(std::bit_cast<std::uint64_t>(b)));
    return std::bit_cast<FloatPair>(d);
#else
    return {mul_rn(a[0], b[0]), mul_rn(a[1], b[1])};
#endif
}

/// add.rn.f32x2: a + b.
GPU_HOST_DEVICE FloatPair add_rn_x2(FloatPair a, FloatPair b) {
#if GPU_HAS_F32X2
    std::uint64_t d;
    asm("add.rn.f32x2 %0, %1, %2;"
        : "=l"(d)
        : "l"(std::bit_cast<std::uint64_t>(a)), "l"(std::bit_cast<std::uint64_t>(b)));
    return std::bit_cast<FloatPair>(d);
#else
    return {add_rn(a[0], b[0]), add_rn(a[1], b[1])};
#endif
}

/// add.rm.f32x2: a + b, rounded down.
GPU_HOST_DEVICE FloatPair add_rm_x2(FloatPair a, FloatPair b) {
#if GPU_HAS_F32X2
    std::uint64_t d;
    asm("add.rm.f32x2 %0, %1, %2;"
        : "=l"(d)
        : "l"(std::bit_cast<std::uint64_t>(a)), "l"(std::bit_cast<std::uint64_t>(b)));
    return std::bit_cast<FloatPair>(d);
#else
    return {add_rm(a[0], b[0]), add_rm(a[1], b[1])};
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
/// Counts one rescale that was decided against.
GPU_HOST_DEVICE void count_skipped_rescale() { EMULATED(emulator::count_skipped_rescale()); }
/// Counts exponentials that a thread computed by multiplications and additions.
GPU_HOST_DEVICE void count_polynomials([[maybe_unused]] int count) { EMULATED(emulator::count_polynomials(count)); }

}  // namespace gpu
