// 01c  fused: the first attention that never stores S or P. One kernel; each query carries (m, l, u) and forgets its
// scores.
//
// One warp a query, four queries a CTA. The warp walks the visible keys 32 at a time:
//   1. each lane scores one key:           s = q . k * scale
//   2. the new maximum of all keys so far: m' = max(m, max over lanes of s)
//   3. the state moves to it:              alpha = 2^(m - m'),  W = 2^(s - m')
//   4. and takes the 32 keys in:           l = alpha l + sum of W,  u = alpha u + sum of W V
// and in the end O = u / l, L = m + log(l). Lane c of the warp holds columns c, c + 32, ... of u.
//
// Global memory: K and V are read once a query, 2 Nk d elements, so Nq Nk d in all: more than 00a reads, and every
// element is used once. No element of an N x N matrix is stored; what is missing is reuse, which 02 brings with tiles.
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage01::c {

using namespace attention;
using namespace gpu;

constexpr int threads = 128;
constexpr int warps = threads / warp_size;
constexpr int max_d = 256;

struct Shared {
    SharedTile<float, warps, max_d> q;  // each warp's query, which every lane needs whole
};

/// lane_columns = ceil(d / 32): columns of u that a lane holds.
template <class T, int lane_columns>
__global__ void forward(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<const T> V, Tensor<T> O,
                        Tensor<float> L) {
    auto& smem = shared_memory<Shared>();
    const int lane = gpu::lane(), warp = gpu::warp();
    const std::int64_t row = std::int64_t(blockIdx.x) * warps + warp;  // (b, h, i)
    const int i = row % problem.Nq, h = row / problem.Nq % problem.Hq, b = row / problem.Nq / problem.Hq;
    if (b >= problem.B) return;
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq) return;

    const auto q_gmem = sequence.queries(Q, h);
    const auto k_gmem = sequence.keys(K, problem.kv_head(h));
    const auto v_gmem = sequence.keys(V, problem.kv_head(h));
    const float scale_log2 = problem.scale * log2_e;

    for (int c = lane; c < problem.d; c += warp_size) smem.q(warp, c) = to_float(q_gmem(i, c));
    bar_warp_sync(all_lanes);

    float m = -GPU_INFINITY, l = 0, u[lane_columns] = {};
    const Range keys = problem.mask(sequence).keys(i);
    for (int j0 = keys.begin; j0 < keys.end; j0 += warp_size) {
        // 1. The score of this lane's key; lanes beyond the last key hold a hidden one.
        float s = -GPU_INFINITY;
        if (j0 + lane < keys.end) {
            s = 0;
            for (int c = 0; c < problem.d; ++c) s += smem.q(warp, c) * to_float(k_gmem(j0 + lane, c));
            s *= scale_log2;
        }

        // 2. The new maximum.
        float m_new = fmaxf(m, s);
        for (int lanes = 16; lanes > 0; lanes /= 2) m_new = fmaxf(m_new, shfl_sync_bfly(m_new, lanes));

        // 3. The factor of the old state, and this key's weight.
        const float alpha = rescale_factor(m, m_new);
        const float W = weight(s, m_new);
        m = m_new;

        // 4. Old state and 32 new keys in one scale.
        float W_sum = W;
        for (int lanes = 16; lanes > 0; lanes /= 2) W_sum += shfl_sync_bfly(W_sum, lanes);
        l = alpha * l + W_sum;
        for (int n = 0; n < lane_columns; ++n) u[n] *= alpha;
        for (int j = j0; j < j0 + warp_size && j < keys.end; ++j) {
            const float W_j = shfl_sync_idx(W, j - j0);
#pragma unroll
            for (int n = 0; n < lane_columns; ++n) {
                const int c = lane + n * warp_size;
                if (c < problem.d) u[n] += W_j * to_float(v_gmem(j, c));
            }
        }
    }

    const auto o_gmem = sequence.queries(O, h);
#pragma unroll
    for (int n = 0; n < lane_columns; ++n) {
        const int c = lane + n * warp_size;
        if (c < problem.d) o_gmem(i, c) = cvt_rn<T>(u[n] * inverse_sum(l));
    }
    if (lane == 0) sequence.queries(L, h)(i, 0) = log_sum_exp(m, l);
}

}  // namespace stage01::c
