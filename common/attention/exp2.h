// 2^x by multiplications and additions, for those of a row's exponentials that the special-function unit has no time for.
// FlashAttention-4 (2026), section on software-emulated exponentials; docs/exp2_and_rescaling.md.
//
// On a Blackwell GPU, as the paper counts, the products of a tile of 128 x 128 scores with d = 128 take 1024 clocks and
// its exponentials 1024 (16 a clock and multiprocessor). The pipes that multiply and add, 128 a clock, have time left.
//
//   x = n + f       n = floor(x), 0 <= f <= 1                                 (Cody and Waite)
//   2^x = 2^n 2^f   2^f by a polynomial p, 2^n by writing n into an exponent
//
// p(0) is exactly 1, so that 2^x is exact at integers: the largest score of a row has the weight 1, as with ex2. That costs
// accuracy (degree 3: 8.6e-5 instead of 7.5e-5), just below integers most of all. Which degree is enough depends on what
// becomes of 2^x: rounding to bf16 makes an error of 2^-8, beside which that of degree 3 is not seen.
//
// The paper adds n to the exponent of p as an integer, in one instruction. Here 2^n is a number of its own and p is
// multiplied by it: exact too, and half an instruction more per exponential, since two share one. It lets a NaN through (of which the
// addition makes 3.4e38), and below 2^-126 gives 0, as does ex2.approx.ftz.
#pragma once

#include "common/gpu/math.h"

namespace attention {

/// Coefficient k of p: the polynomial in floats with p(0) = 1 whose largest relative error on [0, 1] is least. Written by
/// common/scripts/exp2_coefficients.py; what the arithmetic of floats adds to the error is in the tests.
template <int degree>
GPU_HOST_DEVICE constexpr float exp2_coefficient(int k) {
    static_assert(2 <= degree && degree <= 5, "There are polynomials of degree 2 to 5.");
    constexpr float p[][6] = {
        {1, 0.665960968f, 0.329932362f},                                                 // degree 2: 2.05e-03
        {1, 0.695116758f, 0.227645069f, 0.0770669878f},                                  // degree 3: 8.56e-05
        {1, 0.693044841f, 0.241280228f, 0.0522424355f, 0.0134267034f},                   // degree 4: 2.90e-06
        {1, 0.693151295f, 0.240164593f, 0.0557995141f, 0.00901748054f, 0.00186695252f},  // degree 5: 8.23e-08
    };
    return p[degree - 2][k];
}

/// 1.5 * 2^23: the last bit of x + exp2_to_integer is worth 1, so rounding that sum down gives floor(x), in its low bits.
constexpr float exp2_to_integer = 12582912;

/// 2^n, from exp2_to_integer + n; 0 for n = -127.
GPU_HOST_DEVICE float exp2_of_integer(float shifted) {
    return std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23) + 0x3F800000u);
}

/// No relative error of exp2_polynomial<degree>, degree 2 to 5, is larger.
constexpr double exp2_error(int degree) {
    constexpr double error[] = {2.06e-3, 8.8e-5, 3.1e-6, 1.7e-7};
    return error[degree - 2];
}

/// 2^x for x < 128: exact at integers; relative error at most 2.06e-3, 8.8e-5, 3.1e-6 or 1.7e-7 for degree 2, 3, 4 or 5;
/// 0 below -126, -infinity included. NaN for NaN. From 128 on there are no such floats: infinity, from 129 on nonsense.
template <int degree>
GPU_HOST_DEVICE float exp2_polynomial(float x) {
    gpu::count_polynomials(1);
    x = gpu::max_nan(x, -127);
    const float shifted = gpu::add_rm(x, exp2_to_integer);
    const float f = x - (shifted - exp2_to_integer);  // rounded where -1/2 < x < 0, to 1 at most; else exact
    float p = exp2_coefficient<degree>(degree);
    for (int k = degree - 1; k >= 0; --k) p = fmaf(p, f, exp2_coefficient<degree>(k));
    return p * exp2_of_integer(shifted);
}

/// The same of two numbers, to the bit. From sm_100 on 11 instructions for degree 3, if 2^n is one: only that and the
/// maximum take one for each number.
template <int degree>
GPU_HOST_DEVICE gpu::FloatPair exp2_polynomial_x2(gpu::FloatPair x) {
    gpu::count_polynomials(2);
    const auto both = [](float value) { return gpu::FloatPair{value, value}; };
    x = {gpu::max_nan(x[0], -127), gpu::max_nan(x[1], -127)};
    const gpu::FloatPair shifted = gpu::add_rm_x2(x, both(exp2_to_integer));
    const gpu::FloatPair n = gpu::add_rn_x2(shifted, both(-exp2_to_integer));
    const gpu::FloatPair f = gpu::fma_rn_x2(n, both(-1), x);
    gpu::FloatPair p = both(exp2_coefficient<degree>(degree));
    for (int k = degree - 1; k >= 0; --k) p = gpu::fma_rn_x2(p, f, both(exp2_coefficient<degree>(k)));
    return gpu::mul_rn_x2(p, {exp2_of_integer(shifted[0]), exp2_of_integer(shifted[1])});
}

/// How a row's exponentials are shared out: of 32 consecutive ones, of_32 by polynomial, the others by the special-function
/// unit; in pairs, evenly spread, so that both have work all the time. The paper takes 10 to 25 % (4 to 8 of 32).
template <int degree, int of_32>
struct Exp2Policy {
    static_assert(0 <= of_32 && of_32 <= 32 && of_32 % 2 == 0, "Of 32 exponentials an even number are polynomials.");

    /// The largest relative error of an exponential, beside that of ex2.approx.
    static constexpr double error = of_32 > 0 ? exp2_error(degree) : 0;

    /// How many of the first n exponentials are polynomials; n is even.
    GPU_HOST_DEVICE static constexpr int polynomials(int n) { return n * of_32 / 64 * 2; }

    /// 2^x of the elements i and i + 1 of a row; i is even, and known when an unrolled loop is compiled.
    GPU_HOST_DEVICE static gpu::FloatPair exp2(gpu::FloatPair x, int i) {
        if (polynomials(i + 2) > polynomials(i)) return exp2_polynomial_x2<degree>(x);
        return {gpu::ex2_approx_ftz(x[0]), gpu::ex2_approx_ftz(x[1])};
    }
};

}  // namespace attention
