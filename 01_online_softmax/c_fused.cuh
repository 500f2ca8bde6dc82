// 01c  fused: the first attention that never stores S or P. One kernel; each query carries (m, l, u) and forgets its
// scores.
//
// One warp a query, four queries a CTA. The warp walks the visible keys 32 at a time:
//   1. each lane scores one key:           s = q . k * scale
//   2. the new maximum of all keys so far: m_new = max(m, max over lanes of s)
//   3. the state moves to it:              alpha = 2^(m - m_new),  W = 2^(s - m_new)
//   4. and takes the 32 keys in:           l = alpha l + sum of W,  u = alpha u + sum of W V
// and in the end O = u / l, L = m + log(l). Lane c of the warp holds columns c, c + 32, ... of u.
//
// Global memory: each query reads K and V once, 2 Nq Nk d elements in all (00a asks for more than 4 Nq Nk d), and nothing of size
// Nq x Nk is stored. FLOPs: 4 Nq Nk d. Still slow: a lane's key is a row of its own, so one load of a warp touches 32 sectors, and
// every element of K and V serves one query. Reuse is what 02 brings, with tiles.
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
    const int lane = lane_id(), warp = warp_id();
    const auto [b, h, i] = problem.query(std::int64_t(blockIdx.x) * warps + warp);
    if (b >= problem.B) return;
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq) return;

    const auto Q_gmem = sequence.queries(Q, h);
    const auto K_gmem = sequence.keys(K, problem.kv_head(h));
    const auto V_gmem = sequence.keys(V, problem.kv_head(h));
    const float scale_log2 = problem.scale * log2_e;

    for (int c = lane; c < problem.d; c += warp_size) smem.q(warp, c) = to_float(Q_gmem(i, c));
    bar_warp_sync(all_lanes);

    float m = -infinity, l = 0, u[lane_columns] = {};
    const Range keys = problem.mask(sequence).keys(i);
    for (int j0 = keys.begin; j0 < keys.end; j0 += warp_size) {
        // 1. The score of this lane's key; lanes beyond the last key hold a hidden one.
        float s = -infinity;
        if (j0 + lane < keys.end) {
            s = 0;
            for (int c = 0; c < problem.d; ++c) s += smem.q(warp, c) * to_float(K_gmem(j0 + lane, c));
            s = mul_rn(s, scale_log2);
        }

        // 2. The new maximum.
        float m_new = fmaxf(m, s);
        for (int distance = 16; distance > 0; distance /= 2) m_new = fmaxf(m_new, shfl_sync_bfly(m_new, distance));

        // 3. The factor of the old state, and this key's weight.
        const float alpha = rescale_factor(m, m_new);
        const float W = weight(s, m_new);
        m = m_new;

        // 4. Old state and 32 new keys in one scale.
        float W_sum = W;
        for (int distance = 16; distance > 0; distance /= 2) W_sum += shfl_sync_bfly(W_sum, distance);
        l = alpha * l + W_sum;
        for (int n = 0; n < lane_columns; ++n) u[n] *= alpha;
        for (int j = j0; j < j0 + warp_size && j < keys.end; ++j) {
            const float W_j = shfl_sync_idx(W, j - j0);
#pragma unroll
            for (int n = 0; n < lane_columns; ++n) {
                const int c = lane + n * warp_size;
                if (c < problem.d) u[n] += W_j * to_float(V_gmem(j, c));
            }
        }
    }

    const auto O_gmem = sequence.queries(O, h);
#pragma unroll
    for (int n = 0; n < lane_columns; ++n) {
        const int c = lane + n * warp_size;
        if (c < problem.d) O_gmem(i, c) = cvt_rn<T>(u[n] * inverse_sum(l));
    }
    if (lane == 0) sequence.queries(L, h)(i) = log_sum_exp(m, l);
}

}  // namespace stage01::c
