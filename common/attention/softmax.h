// The online softmax of one query: running maximum m, running sum l of exp(S - m), and how two states become one.
//
// Base 2: kernels fold scale * log2(e) into the scores' exponent, so m is in units of the raw products Q K^T, and
//   W = 2^((QK - m) * scale_log2).
// A state that has seen no key is m = -inf, l = 0. The exponent's base is then 0, so that -inf - (-inf) never happens.
#pragma once

#include "common/gpu/math.h"

namespace attention {

/// The maximum as an exponent base: 0 while no key has been seen.
GPU_DEVICE float base(float m) { return m == -GPU_INFINITY ? 0.0f : m; }

/// alpha = 2^((m_old - m_new) * scale_log2): what l and U are multiplied by when the maximum moves from m_old to m_new.
/// 0 if nothing has been seen before.
GPU_DEVICE float rescale_factor(float m_old, float m_new, float scale_log2) {
    EMULATED(emulator::count_rescale());
    return gpu::ex2_approx_ftz((m_old - base(m_new)) * scale_log2);
}

/// One weight W = 2^((qk - m) * scale_log2), exactly 0 for a hidden key (qk = -inf).
GPU_DEVICE float weight(float qk, float m, float scale_log2) { return gpu::ex2_approx_ftz((qk - base(m)) * scale_log2); }

/// L = m + log(l) in natural units; -inf for a row that saw no key.
GPU_DEVICE float log_sum_exp(float m, float l, float scale) {
    return l == 0.0f ? -GPU_INFINITY : m * scale + logf(l);
}

/// 1 / l, and 0 for a row that saw no key, so that its O is 0. A NaN stays one.
GPU_DEVICE float inverse_sum(float l) { return l == 0.0f ? 0.0f : 1.0f / l; }

}  // namespace attention
