// Conditional rescaling: an online softmax that keeps an old maximum as long as that does no harm. FlashAttention-4 (2026),
// section on conditional rescaling.
//
// A state (l, U) is relative to a base: l = sum_j 2^(s_j - base). Any base gives the same U / l and L = ln 2 (base + log2 l);
// the maximum is only the base with which no weight is above 1. When the maximum m moves, multiplying l and U by 2^(base - m) costs a
// pass over U, in FlashAttention-4 through tensor memory and on the way to the next product. So:
//
//   m - base > tau    base becomes m, and l and U are multiplied by alpha = 2^(base - m)
//   else              base stays, alpha is exactly 1, and weights are at most 2^tau
//
// What bounds tau is the type of W: 2^tau must be a number there, and for fp16 (largest 65504) 2^16 is none. Then the sums: l and U are up to
// 2^tau times larger in fp32, of which only values of V near the limit of bf16 can notice. A 16-bit W is rounded relative to itself, so nothing is lost.
#pragma once

#include "common/attention/softmax.h"

namespace attention {

/// tau of the paper, in units of the scores (log2): 2^8 in W is far from 65504.
constexpr float rescale_threshold = 8;

/// What weights are relative to from now on, and by what the state is multiplied first: exactly 1 if its base stays. Ask
/// alpha != 1, which a NaN passes, and not alpha < 1.
struct Rescale {
    float base, alpha;
};

/// For a state with this base and m, the maximum of base and of the scores to come (gpu::max_nan, or a NaN is lost). The
/// first key seen makes its m the base (alpha = 0, of a state that is 0); while no key has been seen, nothing happens. A NaN rescales, and
/// everything is NaN from there on. One exponential, whether or not it is needed: a branch costs more. tau = 0: whenever
/// the maximum moves.
GPU_DEVICE Rescale conditional_rescale(float base, float m, float tau = rescale_threshold) {
    const float alpha = gpu::ex2_approx_ftz(base - exponent_base(m));
    if (m != base && !(m - base <= tau)) {
        gpu::count_rescale();
        return {m, alpha};
    }
    gpu::count_skipped_rescale();
    return {base, 1};
}

}  // namespace attention
