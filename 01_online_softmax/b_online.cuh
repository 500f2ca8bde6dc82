// 01b  online: maximum and sum of a row in one pass over stored scores.
//
//   scores   S = scale * Q K^T   one thread for each element of S
//   softmax  P = softmax(S)      one warp for each row; also L
//   output   O = P V             one thread for each element of O
//
// A running state (m, l) holds the maximum of the scores seen and the sum of their weights relative to it. A greater score only
// rescales what was summed, by the merge rule (common/attention/merge.h), so S is read twice where 01a reads it three times:
//   1. each lane merges its scores, each the state (s, 1), into its own (m, l); then lanes merge theirs by shuffles
//   2. P_ij = exp(s_j - m) / l
//
// The products are 01a's; one warp a row leaves no merging to shared memory and barriers. S and P are whole matrices in global
// memory; S is written once and read twice. The price is arithmetic: two factors for each score instead of one weight, so 3 Nq Nk
// exponentials, and 5 merges of 32 lanes for each row.
//
// Hidden keys: S = -inf and P = 0 are stored so that S and P are whole matrices, and nobody reads them.
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/merge.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage01::b {

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

/// One warp a row, in base 2 (softmax.h). A lane takes every 32nd key.
template <class T>
__global__ void softmax(KernelProblem problem, Tensor<const T> S, Tensor<T> P, Tensor<float> L) {
    const auto [b, h, i] = problem.query(std::int64_t(blockIdx.x) * warps + warp_id());
    if (b >= problem.B) return;
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq) return;

    const Range keys = problem.mask(sequence).keys(i);
    const auto S_gmem = S.matrix(b, h, 0, sequence.Nq);
    const auto P_gmem = P.matrix(b, h, 0, sequence.Nq);

    // 1. m and l
    State<float> state;
    for (int j = keys.begin + lane_id(); j < keys.end; j += warp_size) {
        const State<float> score = {mul_rn(to_float(S_gmem(i, j)), log2_e), 1.0f};
        state = merge(state, score, Base2{}).state;
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        const State<float> other = {shfl_sync_bfly(state.m, distance), shfl_sync_bfly(state.l, distance)};
        state = merge(state, other, Base2{}).state;
    }
    const auto [m, l] = state;

    // 2. P
    for (int j = lane_id(); j < sequence.Nk; j += warp_size) {
        const bool visible = keys.contains(j);
        P_gmem(i, j) = cvt_rn<T>(visible ? weight(mul_rn(to_float(S_gmem(i, j)), log2_e), m) * inverse_sum(l) : 0.0f);
    }
    if (lane_id() == 0) sequence.queries(L, h)(i) = log_sum_exp(m, l);
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

}  // namespace stage01::b
