// 00a  three_kernels: attention as the formula is written, one kernel for each of its three operators.
//
//   scores   S = scale * Q K^T   one thread for each element of S
//   softmax  P = softmax(S)      one warp for each row: maximum, sum, then the weights; also L
//   output   O = P V             one thread for each element of O
//
// S and P are whole matrices in global memory, Nq x Nk for each sequence and head, in the type of Q: S is written, read back (by
// three loops), P is written, read back. FLOPs: 4 Nq Nk d. Elements asked for, a head: 2 Nq Nk d for Q and K, as many for P and V,
// 3 Nq Nk for S. No operand is reused on chip; the caches serve most of it, and what cannot stay in them is S and P.
//
// Why it is slow: neighbouring threads of `scores` read neighbouring rows of K, so one load of a warp touches 32 sectors of 32 bytes
// and uses one element of each; and every product needs two loads.
//
// Hidden keys: S = -inf and P = 0 are stored so that S and P are whole matrices. Nobody reads them: all sums walk the visible keys
// only, so nothing that a hidden key holds, not even a NaN, reaches O.
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage00::a {

using namespace attention;
using namespace gpu;

constexpr int threads = 128;
constexpr int warps = threads / warp_size;

/// S: (B, Hq, Nq, Nk), also for packed sequences, which use a corner of it. CTA: one block of `threads` keys of one query.
template <class T>
__global__ void scores(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<T> S) {
    const int key_blocks = ceil_div(problem.Nk, threads);
    const int j = blockIdx.x % key_blocks * threads + threadIdx.x;
    const auto [b, h, i] = problem.query(blockIdx.x / key_blocks);
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq || j >= sequence.Nk) return;

    const auto Q_gmem = sequence.queries(Q, h);
    const auto K_gmem = sequence.keys(K, problem.kv_head(h));
    float s = -infinity;
    if (problem.mask(sequence).visible(i, j)) {
        s = 0;
        for (int c = 0; c < problem.d; ++c) s += to_float(Q_gmem(i, c)) * to_float(K_gmem(j, c));
        s *= problem.scale;
    }
    S.matrix(b, h, 0, sequence.Nq)(i, j) = cvt_rn<T>(s);
}

/// One warp a query, in base 2 (softmax.h): m = max_j s_j, l = sum_j 2^(s_j - m), P_ij = 2^(s_j - m) / l with s_j = S_ij log2(e).
template <class T>
__global__ void softmax(KernelProblem problem, Tensor<const T> S, Tensor<T> P, Tensor<float> L) {
    const auto [b, h, i] = problem.query(std::int64_t(blockIdx.x) * warps + warp_id());
    if (b >= problem.B) return;
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq) return;

    const Range keys = problem.mask(sequence).keys(i);
    const auto S_gmem = S.matrix(b, h, 0, sequence.Nq);
    const auto P_gmem = P.matrix(b, h, 0, sequence.Nq);

    float m = -infinity;
    for (int j = keys.begin + lane_id(); j < keys.end; j += warp_size)
        m = fmaxf(m, mul_rn(to_float(S_gmem(i, j)), log2_e));
    for (int distance = 16; distance > 0; distance /= 2) m = fmaxf(m, shfl_sync_bfly(m, distance));

    float l = 0;
    for (int j = keys.begin + lane_id(); j < keys.end; j += warp_size)
        l += weight(mul_rn(to_float(S_gmem(i, j)), log2_e), m);
    for (int distance = 16; distance > 0; distance /= 2) l += shfl_sync_bfly(l, distance);

    for (int j = lane_id(); j < sequence.Nk; j += warp_size) {
        const bool visible = keys.contains(j);
        P_gmem(i, j) = cvt_rn<T>(visible ? weight(mul_rn(to_float(S_gmem(i, j)), log2_e), m) * inverse_sum(l) : 0.0f);
    }
    if (lane_id() == 0) sequence.queries(L, h)(i) = log_sum_exp(m, l);
}

/// CTA: `threads` columns of one row of O; half of the threads have none for d = 64.
template <class T>
__global__ void output(KernelProblem problem, Tensor<const T> P, Tensor<const T> V, Tensor<T> O) {
    const int blocks = ceil_div(problem.d, threads);
    const int c = blockIdx.x % blocks * threads + threadIdx.x;
    const auto [b, h, i] = problem.query(blockIdx.x / blocks);
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq || c >= problem.d) return;

    const auto P_gmem = P.matrix(b, h, 0, sequence.Nq);
    const auto V_gmem = sequence.keys(V, problem.kv_head(h));
    const Range keys = problem.mask(sequence).keys(i);
    float o = 0;
    for (int j = keys.begin; j < keys.end; ++j) o += to_float(P_gmem(i, j)) * to_float(V_gmem(j, c));
    sequence.queries(O, h)(i, c) = cvt_rn<T>(o);
}

}  // namespace stage00::a
