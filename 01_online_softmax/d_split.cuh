// 01d  split: the keys of a query shared out, so that one query is work for several warps. Few queries with many keys (decoding)
// then keep a GPU busy that 01c leaves idle.
//
//   partial  one warp for each query and segment of its keys: (m, l, u) of these keys, as in 01c, to global memory in fp32
//   merge    one warp for each query: the states become one, O = u / l and L
//
// The merge rule (common/attention/merge.h) holds for any two sets of keys, so the states are merged as a tree of three levels:
// segments s and s + 4, then s and s + 2, then s and s + 1. Segments are contiguous, 1, 2, 4 or 8 of them, of 64 keys or less while
// there are fewer than 8. A segment of which the query sees no key has the empty state, the rule's identity; its u is not written,
// and the merge does not look at it.
//
// Global memory beyond that of 01c: (d + 2) fp32 values for each segment of a query, written once and read once. FLOPs: 4 Nq Nk d,
// and 3 d for each of a query's 7 merges.
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/merge.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage01::d {

using namespace attention;
using namespace gpu;

constexpr int threads = 128;
constexpr int warps = threads / warp_size;
constexpr int max_d = 256;
constexpr int max_segments = 8;

/// Segments of a sequence of Nk keys, a power of two.
GPU_HOST_DEVICE int segments(int Nk) { return Nk <= 64 ? 1 : Nk <= 128 ? 2 : Nk <= 256 ? 4 : max_segments; }

/// The keys of segment s that lie in `keys`.
GPU_HOST_DEVICE Range segment(int Nk, int s, Range keys) {
    const int length = ceil_div(Nk, segments(Nk));
    const Range all = {s * length, (s + 1) * length};
    return {all.begin > keys.begin ? all.begin : keys.begin, all.end < keys.end ? all.end : keys.end};
}

struct Shared {
    SharedTile<float, warps, max_d> q;  // each warp's query, which every lane needs whole
};

/// lane_columns = ceil(d / 32): columns of u that a lane holds. m, l: a column for each segment; u: d columns for each.
template <class T, int lane_columns>
__global__ void partial(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<const T> V,
                        Tensor<float> m_partial, Tensor<float> l_partial, Tensor<float> u_partial) {
    auto& smem = shared_memory<Shared>();
    const int lane = lane_id(), warp = warp_id();
    const std::int64_t number = std::int64_t(blockIdx.x) * warps + warp;
    const int s_count = segments(problem.Nk), s_index = number % s_count;
    const auto [b, h, i] = problem.query(number / s_count);
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
    const Range keys = segment(problem.Nk, s_index, problem.mask(sequence).keys(i));
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

    if (lane == 0) {
        sequence.queries(m_partial, h)(i, s_index) = m;
        sequence.queries(l_partial, h)(i, s_index) = l;
    }
    if (keys.empty()) return;
    const auto u_gmem = sequence.queries(u_partial, h);
#pragma unroll
    for (int n = 0; n < lane_columns; ++n) {
        const int c = lane + n * warp_size;
        if (c < problem.d) u_gmem(i, s_index * problem.d + c) = u[n];
    }
}

template <class T, int lane_columns>
__global__ void merge(KernelProblem problem, Tensor<const float> m_partial, Tensor<const float> l_partial,
                      Tensor<const float> u_partial, Tensor<T> O, Tensor<float> L) {
    const int lane = lane_id();
    const auto [b, h, i] = problem.query(std::int64_t(blockIdx.x) * warps + warp_id());
    if (b >= problem.B) return;
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq) return;

    // Lane s fetches the state of segment s, then every lane holds all of them, and its columns of every u.
    State<float> mine;
    if (lane < segments(problem.Nk))
        mine = {sequence.queries(m_partial, h)(i, lane), sequence.queries(l_partial, h)(i, lane)};
    const auto u_gmem = sequence.queries(u_partial, h);
    const Range keys = problem.mask(sequence).keys(i);
    State<float> state[max_segments];
    float u[max_segments][lane_columns];
#pragma unroll
    for (int s = 0; s < max_segments; ++s) {
        state[s] = {shfl_sync_idx(mine.m, s), shfl_sync_idx(mine.l, s)};
        const bool written = s < segments(problem.Nk) && !segment(problem.Nk, s, keys).empty();
#pragma unroll
        for (int n = 0; n < lane_columns; ++n) {
            const int c = lane + n * warp_size;
            u[s][n] = written && c < problem.d ? u_gmem(i, s * problem.d + c) : 0.0f;
        }
    }

#pragma unroll
    for (int distance = max_segments / 2; distance > 0; distance /= 2) {
#pragma unroll max_segments / 2  // said in numbers: left alone, nvcc keeps u of d = 128 in local memory
        for (int s = 0; s < distance; ++s) {
            const auto both = attention::merge(state[s], state[s + distance], Base2{});
            state[s] = both.state;
#pragma unroll
            for (int n = 0; n < lane_columns; ++n) u[s][n] = both.u(u[s][n], u[s + distance][n]);
        }
    }

    const auto [m, l] = state[0];
    const auto O_gmem = sequence.queries(O, h);
#pragma unroll
    for (int n = 0; n < lane_columns; ++n) {
        const int c = lane + n * warp_size;
        if (c < problem.d) O_gmem(i, c) = cvt_rn<T>(u[0][n] * inverse_sum(l));
    }
    if (lane == 0) sequence.queries(L, h)(i) = log_sum_exp(m, l);
}

}  // namespace stage01::d
