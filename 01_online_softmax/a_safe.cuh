// 01a  safe: softmax as numerical care wants it, in three passes over stored scores.
//
//   scores   S = scale * Q K^T   one thread for each element of S
//   softmax  P = softmax(S)      one CTA of 4 warps for each row; also L
//   output   O = P V             one thread for each element of O
//
// exp(s) overflows, exp(s - m) with m = max s does not, so the maximum has to be known before the first exponential, and the sum
// before the first weight. Hence three passes over a row of S, each needing the result of the one before:
//   1. m = max_j s_j              lanes by shuffles, warps through shared memory
//   2. l = sum_j exp(s_j - m)     likewise
//   3. P_ij = exp(s_j - m) / l
//
// S and P are whole matrices in global memory in the type of Q. Elements asked for, a head: 2 Nq Nk d for Q and K, as many for P and
// V; S is written once and read three times. FLOPs: 4 Nq Nk d. Exponentials: 2 Nq Nk.
//
// Hidden keys: S = -inf and P = 0 are stored so that S and P are whole matrices, and nobody reads them.
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage01::a {

using namespace attention;
using namespace gpu;

constexpr int threads = 128;
constexpr int warps = threads / warp_size;

struct Shared {
    SharedArray<float, warps> m, l;  // of each warp's keys
};

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

/// CTA: one row, in base 2 (softmax.h). A thread takes every 128th key.
template <class T>
__global__ void softmax(KernelProblem problem, Tensor<const T> S, Tensor<T> P, Tensor<float> L) {
    auto& smem = shared_memory<Shared>();
    const auto [b, h, i] = problem.query(blockIdx.x);
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq) return;

    const Range keys = problem.mask(sequence).keys(i);
    const auto S_gmem = S.matrix(b, h, 0, sequence.Nq);
    const auto P_gmem = P.matrix(b, h, 0, sequence.Nq);

    // 1. m
    float m = -infinity;
    for (int j = keys.begin + threadIdx.x; j < keys.end; j += threads)
        m = fmaxf(m, mul_rn(to_float(S_gmem(i, j)), log2_e));
    for (int distance = 16; distance > 0; distance /= 2) m = fmaxf(m, shfl_sync_bfly(m, distance));
    if (lane_id() == 0) smem.m(warp_id()) = m;
    bar_sync();
    for (int w = 0; w < warps; ++w) m = fmaxf(m, smem.m(w));

    // 2. l
    float l = 0;
    for (int j = keys.begin + threadIdx.x; j < keys.end; j += threads)
        l += weight(mul_rn(to_float(S_gmem(i, j)), log2_e), m);
    for (int distance = 16; distance > 0; distance /= 2) l += shfl_sync_bfly(l, distance);
    if (lane_id() == 0) smem.l(warp_id()) = l;
    bar_sync();
    l = 0;
    for (int w = 0; w < warps; ++w) l += smem.l(w);

    // 3. P
    for (int j = threadIdx.x; j < sequence.Nk; j += threads) {
        const bool visible = keys.contains(j);
        P_gmem(i, j) = cvt_rn<T>(visible ? weight(mul_rn(to_float(S_gmem(i, j)), log2_e), m) * inverse_sum(l) : 0.0f);
    }
    if (threadIdx.x == 0) sequence.queries(L, h)(i) = log_sum_exp(m, l);
}

/// CTA: `threads` columns of one row of O.
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

}  // namespace stage01::a
