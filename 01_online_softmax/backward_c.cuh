// 01c backward: recomputation. No P was kept; L, one number a query, brings each weight back as P_ij = exp(S_ij - L_i):
//
//   D_i = dO_i . O_i      dP_ij = dO_i . V_j      dS_ij = P_ij (dP_ij - D_i)
//   dQ_i = scale sum_j dS_ij K_j      dV_j = sum_i P_ij dO_i      dK_j = scale sum_i dS_ij Q_i
//
// Two kernels, since dQ sums over keys and dK, dV over queries; each sum stays in the registers of one warp, without atomics.
//
//   query_gradient  one warp a query; it walks the visible keys 32 at a time, like forward: D (also stored), then dQ
//   key_gradients   one warp a key of a key/value head; it walks the heads of the group and the queries that see the key
// In both,
//   1. each lane computes P and dS of one (query, key)
//   2. the warp adds the 32 rows; lane c holds columns c, c + 32, ... of the sums
//
// FLOPs: 14 Nq Nk d, 4 of them because both kernels recompute S and dP. Global memory: 3 Nq Nk d elements asked for by the first
// kernel, 4 Nq Nk d by the second, and nothing of size Nq x Nk is stored. As in forward, lanes read a row each, and every element
// serves one query and key; tiles mend both.
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage01::c_backward {

using namespace attention;
using namespace gpu;

constexpr int threads = 128;
constexpr int warps = threads / warp_size;
constexpr int max_d = 256;

struct Shared {
    SharedTile<float, warps, max_d> first, second;  // each warp's q and dO of its query, or k and v of its key
};

template <class T, int lane_columns>
__global__ void query_gradient(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<const T> V,
                               Tensor<const T> O, Tensor<const T> dO, Tensor<const float> L, Tensor<float> D,
                               Tensor<T> dQ) {
    auto& smem = shared_memory<Shared>();
    const int lane = lane_id(), warp = warp_id();
    const auto [b, h, i] = problem.query(std::int64_t(blockIdx.x) * warps + warp);
    if (b >= problem.B) return;
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq) return;

    const auto Q_gmem = sequence.queries(Q, h);
    const auto K_gmem = sequence.keys(K, problem.kv_head(h));
    const auto V_gmem = sequence.keys(V, problem.kv_head(h));
    const auto O_gmem = sequence.queries(O, h);
    const auto dO_gmem = sequence.queries(dO, h);
    const float scale_log2 = problem.scale * log2_e;

    float D_i = 0;
    for (int c = lane; c < problem.d; c += warp_size) {
        const float g = to_float(dO_gmem(i, c));
        smem.first(warp, c) = to_float(Q_gmem(i, c));
        smem.second(warp, c) = g;
        D_i += g * to_float(O_gmem(i, c));
    }
    for (int distance = 16; distance > 0; distance /= 2) D_i += shfl_sync_bfly(D_i, distance);
    if (lane == 0) sequence.queries(D, h)(i) = D_i;
    const float L_log2 = sequence.queries(L, h)(i) * log2_e;
    bar_warp_sync(all_lanes);

    float dQ_rmem[lane_columns] = {};
    const Range keys = problem.mask(sequence).keys(i);
    for (int j0 = keys.begin; j0 < keys.end; j0 += warp_size) {
        // 1. dS of this lane's key.
        float dS = 0;
        if (j0 + lane < keys.end) {
            float s = 0, dP = 0;
            for (int c = 0; c < problem.d; ++c) {
                s += smem.first(warp, c) * to_float(K_gmem(j0 + lane, c));
                dP += smem.second(warp, c) * to_float(V_gmem(j0 + lane, c));
            }
            dS = ex2_approx_ftz(s * scale_log2 - L_log2) * (dP - D_i);
        }

        // 2. dQ += dS K.
        for (int j = j0; j < j0 + warp_size && j < keys.end; ++j) {
            const float dS_j = shfl_sync_idx(dS, j - j0);
#pragma unroll
            for (int n = 0; n < lane_columns; ++n) {
                const int c = lane + n * warp_size;
                if (c < problem.d) dQ_rmem[n] += dS_j * to_float(K_gmem(j, c));
            }
        }
    }

    const auto dQ_gmem = sequence.queries(dQ, h);
#pragma unroll
    for (int n = 0; n < lane_columns; ++n) {
        const int c = lane + n * warp_size;
        if (c < problem.d) dQ_gmem(i, c) = cvt_rn<T>(dQ_rmem[n] * problem.scale);
    }
}

template <class T, int lane_columns>
__global__ void key_gradients(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<const T> V,
                              Tensor<const T> dO, Tensor<const float> L, Tensor<const float> D, Tensor<T> dK,
                              Tensor<T> dV) {
    auto& smem = shared_memory<Shared>();
    const int lane = lane_id(), warp = warp_id();
    const std::int64_t key = std::int64_t(blockIdx.x) * warps + warp;
    const int j = key % problem.Nk, kv_head = key / problem.Nk % problem.Hkv, b = key / problem.Nk / problem.Hkv;
    if (b >= problem.B) return;
    const Sequence sequence = problem.sequence(b);
    if (j >= sequence.Nk) return;

    const auto K_gmem = sequence.keys(K, kv_head);
    const auto V_gmem = sequence.keys(V, kv_head);
    const float scale_log2 = problem.scale * log2_e;

    for (int c = lane; c < problem.d; c += warp_size) {
        smem.first(warp, c) = to_float(K_gmem(j, c));
        smem.second(warp, c) = to_float(V_gmem(j, c));
    }
    bar_warp_sync(all_lanes);

    float dK_rmem[lane_columns] = {}, dV_rmem[lane_columns] = {};
    const Range queries = problem.mask(sequence).queries(j);
    const int group = problem.Hq / problem.Hkv;
    for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        const auto Q_gmem = sequence.queries(Q, h);
        const auto dO_gmem = sequence.queries(dO, h);
        const auto L_gmem = sequence.queries(L, h);
        const auto D_gmem = sequence.queries(D, h);
        for (int i0 = queries.begin; i0 < queries.end; i0 += warp_size) {
            // 1. P and dS of this lane's query.
            float P = 0, dS = 0;
            if (i0 + lane < queries.end) {
                float s = 0, dP = 0;
                for (int c = 0; c < problem.d; ++c) {
                    s += to_float(Q_gmem(i0 + lane, c)) * smem.first(warp, c);
                    dP += to_float(dO_gmem(i0 + lane, c)) * smem.second(warp, c);
                }
                P = ex2_approx_ftz(s * scale_log2 - L_gmem(i0 + lane) * log2_e);
                dS = P * (dP - D_gmem(i0 + lane));
            }

            // 2. dV += P^T dO and dK += dS^T Q.
            for (int i = i0; i < i0 + warp_size && i < queries.end; ++i) {
                const float P_i = shfl_sync_idx(P, i - i0), dS_i = shfl_sync_idx(dS, i - i0);
#pragma unroll
                for (int n = 0; n < lane_columns; ++n) {
                    const int c = lane + n * warp_size;
                    if (c >= problem.d) continue;
                    dV_rmem[n] += P_i * to_float(dO_gmem(i, c));
                    dK_rmem[n] += dS_i * to_float(Q_gmem(i, c));
                }
            }
        }
    }

    const auto dK_gmem = sequence.keys(dK, kv_head);
    const auto dV_gmem = sequence.keys(dV, kv_head);
#pragma unroll
    for (int n = 0; n < lane_columns; ++n) {
        const int c = lane + n * warp_size;
        if (c >= problem.d) continue;
        dK_gmem(j, c) = cvt_rn<T>(dK_rmem[n] * problem.scale);
        dV_gmem(j, c) = cvt_rn<T>(dV_rmem[n]);
    }
}

}  // namespace stage01::c_backward
