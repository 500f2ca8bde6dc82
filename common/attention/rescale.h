// Conditional rescaling: an online softmax that keeps an old maximum as long as that does no harm. FlashAttention-4 (2026),
// section on rescaling; docs/exp2_and_rescaling.md.
//
// A state is relative to a base: l = sum_j 2^(s_j - base), U likewise. U / l and L = ln 2 (base + log2 l) are the same for
// any base; the maximum is the one with which no weight is above 1. When the maximum m moves, multiplying by
// 2^(base - m) is a pass over all of U, in FlashAttention-4 through tensor memory and before the next product. So:
//
//   m - base > tau    base becomes m; l and U are multiplied by alpha = 2^(base - m)
//   else              base stays, alpha is exactly 1, and weights are at most 2^tau
//
// tau is bounded by the type of W: 2^16 overflows fp16 (65504). Sums in fp32 grow by 2^tau at most. The price
// is that the largest weight is no longer 1, exactly, but rounded to 16 bits as all the others are.
#pragma once

#include "common/attention/softmax.h"

namespace attention {

/// tau of the paper, in units of the scores (base 2).
constexpr float rescale_threshold = 8;

/// What weights are relative to from now on, and what the state is multiplied by first: exactly 1 if its base stays. To
/// pass over a multiplication ask alpha != 1, which is true of a NaN, not alpha < 1.
struct Rescale {
    float base, alpha;
};

/// For a state with this base, and m the maximum of base and of the scores that come (by gpu::max_nan, which keeps a NaN).
/// The first key seen makes its m the base: alpha = 0, of a state that is 0. While none has been seen (m = -infinity),
/// nothing happens. A NaN rescales, to NaN. With tau = 0 whenever the maximum moves. alpha is computed in either case: one
/// exponential a key tile beside 128, and their number stays a closed form.
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
