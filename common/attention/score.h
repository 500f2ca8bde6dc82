// What may happen to a score between its product and the softmax: the one place where kernels learn of softcap and ALiBi.
//
//   S = softcap tanh(scale x / softcap) - slope_h |i + Nk - Nq - j|       x = q k, the product as it left the tensor core
//   dx = scale (1 - tanh^2(scale x / softcap)) dS                         ALiBi adds a constant and has no derivative
//
// A kernel takes `bool modified` as a template argument, makes one ScoreModifier<modified> for its query head and sequence, and
// asks it for every score of a tile and, in the backward, for every factor of dS. ScoreModifier<false> is the plain
// S = scale x, one multiplication: whoever does not use modifiers does not pay for them. ScoreModifier<true> does both; which of
// them the problem has is asked at run time, the same for all threads. Hidden keys are set to -inf after, as ever.
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/gpu/math.h"

namespace attention {

template <bool modified>
struct ScoreModifier {
    float scale_log2;                            // scale log2(e)
    int offset;                                  // Nk - Nq
    float scale_over_cap, cap_log2, slope_log2;  // softcap log2(e), slope_h log2(e); 0: without

    GPU_HOST_DEVICE ScoreModifier(const KernelProblem& problem, const Sequence& sequence, int q_head)
        : scale_log2(problem.scale * gpu::log2_e), offset(sequence.Nk - sequence.Nq) {
        if constexpr (modified) {
            scale_over_cap = problem.softcap > 0 ? problem.scale / problem.softcap : 0;
            cap_log2 = problem.softcap * gpu::log2_e;
            slope_log2 = problem.alibi ? exp2f(-8.0f * (q_head + 1) / problem.Hq) * gpu::log2_e : 0;
        }
    }

    /// log2(e) S of query i and key j, for softmax.h: a weight is 2^(score - m).
    GPU_HOST_DEVICE float score(float x, int i, int j) const {
        if constexpr (modified) {
            const float s =
                cap_log2 > 0 ? gpu::mul_rn(cap_log2, tanhf(scale_over_cap * x)) : gpu::mul_rn(x, scale_log2);
            return s - slope_log2 * fabsf(float(i + offset - j));
        } else {
            return gpu::mul_rn(x, scale_log2);
        }
    }

    /// dS / d(scale x), by which a backward multiplies dS.
    GPU_HOST_DEVICE float derivative(float x) const {
        if constexpr (modified) {
            const float capped = tanhf(scale_over_cap * x);  // 0 without softcap
            return 1 - capped * capped;
        } else {
            return 1;
        }
    }
};

}  // namespace attention
