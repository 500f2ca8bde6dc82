// 00a backward: the chain rule as it is written, one kernel for each operator, and every matrix between them in memory.
//
//   products         S = scale * Q K^T     dP = dO V^T    one thread for each element
//   softmax          P = softmax(S)                       one warp for each query
//   row_dots         D_i = sum_c dO_ic O_ic               one warp for each query
//   score_gradients  dS = P o (dP - D)                    one thread for each element
//   query_sums       dQ = scale * dS K                    one thread for each element
//   key_sums         dV = P^T dO           dK = scale * dS^T Q    one thread for each element, all query heads of its group
//
// S, P, dP, dS are whole matrices in global memory, Nq x Nk for each sequence and head. S, P, dS have the type of Q; dP is fp32, as
// dP - D cancels and would leave mostly the rounding of a 16-bit dP. S and P are the forward's, computed again: L is not needed.
// FLOPs: 10 Nq Nk d. Elements asked for, a head: 10 Nq Nk d by the five products; beside that S is written once and read three
// times, P and dP written and read once, dS written.
//
// A key's sum over the queries and over the query heads of its group stays in one thread's fp32 register, so no partial dK or dV is
// rounded or added twice.
//
// Hidden keys: S = -inf and P = dP = dS = 0 are stored so that all four are whole matrices. Nobody reads them: all sums walk the
// visible pairs only, so nothing that a hidden key or a query without keys holds, not even a NaN, reaches a gradient.
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage00::backward {

using namespace attention;
using namespace gpu;

constexpr int threads = 128;
constexpr int warps = threads / warp_size;

/// This thread's element of a matrix of (queries x keys): CTAs of `threads` keys of one query.
struct Pair {
    int b, h, i, j;
};
__device__ inline Pair pair(const KernelProblem& problem) {
    const int key_blocks = ceil_div(problem.Nk, threads);
    const auto [b, h, i] = problem.query(blockIdx.x / key_blocks);
    return {b, h, i, int(blockIdx.x % key_blocks * threads + threadIdx.x)};
}

/// C = factor * A B^T, and `hidden` for hidden keys. A: queries x d (Q, dO), B: keys x d (K, V), C: queries x keys (S, dP).
template <class T, class Result>
__global__ void products(KernelProblem problem, Tensor<const T> A, Tensor<const T> B, float factor, float hidden,
                         Tensor<Result> C) {
    const auto [b, h, i, j] = pair(problem);
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq || j >= sequence.Nk) return;

    const auto A_gmem = sequence.queries(A, h);
    const auto B_gmem = sequence.keys(B, problem.kv_head(h));
    float sum = hidden;
    if (problem.mask(sequence).visible(i, j)) {
        sum = 0;
        for (int c = 0; c < problem.d; ++c) sum += to_float(A_gmem(i, c)) * to_float(B_gmem(j, c));
        sum *= factor;
    }
    C.matrix(b, h, 0, sequence.Nq)(i, j) = cvt_rn<Result>(sum);
}

/// One warp a query, in base 2 (softmax.h): m = max_j s_j, l = sum_j 2^(s_j - m), P_ij = 2^(s_j - m) / l with s_j = S_ij log2(e).
template <class T>
__global__ void softmax(KernelProblem problem, Tensor<const T> S, Tensor<T> P) {
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
}

/// D: (B, Hq, Nq), also for packed sequences.
template <class T>
__global__ void row_dots(KernelProblem problem, Tensor<const T> O, Tensor<const T> dO, Tensor<float> D) {
    const auto [b, h, i] = problem.query(std::int64_t(blockIdx.x) * warps + warp_id());
    if (b >= problem.B) return;
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq) return;

    const auto O_gmem = sequence.queries(O, h);
    const auto dO_gmem = sequence.queries(dO, h);
    float sum = 0;
    for (int c = lane_id(); c < problem.d; c += warp_size) sum += to_float(O_gmem(i, c)) * to_float(dO_gmem(i, c));
    for (int distance = 16; distance > 0; distance /= 2) sum += shfl_sync_bfly(sum, distance);
    if (lane_id() == 0) D.matrix(b, h, 0, sequence.Nq)(i) = sum;
}

template <class T>
__global__ void score_gradients(KernelProblem problem, Tensor<const T> P, Tensor<const float> dP, Tensor<const float> D,
                                Tensor<T> dS) {
    const auto [b, h, i, j] = pair(problem);
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq || j >= sequence.Nk) return;

    float ds = 0;
    if (problem.mask(sequence).visible(i, j)) {
        const float p = to_float(P.matrix(b, h, 0, sequence.Nq)(i, j));
        const float dp = dP.matrix(b, h, 0, sequence.Nq)(i, j);
        ds = p * (dp - D.matrix(b, h, 0, sequence.Nq)(i));
    }
    dS.matrix(b, h, 0, sequence.Nq)(i, j) = cvt_rn<T>(ds);
}

/// dQ_i = scale * sum_j dS_ij K_j. CTA: `threads` columns of one row of dQ.
template <class T>
__global__ void query_sums(KernelProblem problem, Tensor<const T> dS, Tensor<const T> K, Tensor<T> dQ) {
    const int blocks = ceil_div(problem.d, threads);
    const int c = blockIdx.x % blocks * threads + threadIdx.x;
    const auto [b, h, i] = problem.query(blockIdx.x / blocks);
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq || c >= problem.d) return;

    const auto dS_gmem = dS.matrix(b, h, 0, sequence.Nq);
    const auto K_gmem = sequence.keys(K, problem.kv_head(h));
    const Range keys = problem.mask(sequence).keys(i);
    float sum = 0;
    for (int j = keys.begin; j < keys.end; ++j) sum += to_float(dS_gmem(i, j)) * to_float(K_gmem(j, c));
    sequence.queries(dQ, h)(i, c) = cvt_rn<T>(sum * problem.scale);
}

/// C_j = factor * sum_h sum_i A_ij B_i over the query heads of the key's group. A: queries x keys (P, dS), B: queries x d (dO, Q),
/// C: keys x d (dV, dK). CTA: `threads` columns of one row of C.
template <class T>
__global__ void key_sums(KernelProblem problem, Tensor<const T> A, Tensor<const T> B, float factor, Tensor<T> C) {
    const int blocks = ceil_div(problem.d, threads);
    const int c = blockIdx.x % blocks * threads + threadIdx.x;
    const int row = blockIdx.x / blocks, head = row / problem.Nk;  // of B * Hkv * Nk keys
    const int b = head / problem.Hkv, kv_head = head % problem.Hkv, j = row % problem.Nk;
    const Sequence sequence = problem.sequence(b);
    if (j >= sequence.Nk || c >= problem.d) return;

    const int heads = problem.Hq / problem.Hkv;
    const Range queries = problem.mask(sequence).queries(j);
    float sum = 0;
    for (int h = kv_head * heads; h < (kv_head + 1) * heads; ++h) {
        const auto A_gmem = A.matrix(b, h, 0, sequence.Nq);
        const auto B_gmem = sequence.queries(B, h);
        for (int i = queries.begin; i < queries.end; ++i) sum += to_float(A_gmem(i, j)) * to_float(B_gmem(i, c));
    }
    sequence.keys(C, kv_head)(j, c) = cvt_rn<T>(sum * factor);
}

}  // namespace stage00::backward
