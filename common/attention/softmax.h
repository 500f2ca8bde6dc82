// The online softmax of one query: running maximum m, running sum l of the weights, and what changes when m moves.
//
// Scores are kept in base 2: s = (q . k) * scale * log2(e), rounded (gpu::mul_rn), so that a weight is one ex2: W = 2^(s - m). A hidden key
// has s = -inf, set after scaling. A query that has seen no key has m = -inf, l = 0; its exponents are then taken
// relative to 0, so that -inf - (-inf) never happens.
#pragma once

#include "common/gpu/math.h"

namespace attention {

/// What exponents are taken relative to: m, or 0 while no key has been seen.
GPU_DEVICE float exponent_base(float m) { return m == -gpu::infinity ? 0.0f : m; }

/// W = 2^(s - m); exactly 0 for a hidden key, exactly 1 for the largest score.
GPU_DEVICE float weight(float s, float m) { return gpu::ex2_approx_ftz(s - exponent_base(m)); }

/// alpha = 2^(m_old - m_new): l and U are multiplied by it when the maximum moves. 0 if no key had been seen.
GPU_DEVICE float rescale_factor(float m_old, float m_new) {
    gpu::count_rescale();
    return gpu::ex2_approx_ftz(m_old - exponent_base(m_new));
}

/// L = log(sum_j exp(S_j)) in natural units; -inf for a query that sees no key.
GPU_DEVICE float log_sum_exp(float m, float l) { return l == 0.0f ? -gpu::infinity : (m + log2f(l)) * gpu::ln_2; }

/// 1 / l, and 0 for a query that sees no key, so that its O is 0. A NaN stays a NaN.
GPU_DEVICE float inverse_sum(float l) { return l == 0.0f ? 0.0f : 1.0f / l; }

}  // namespace attention
