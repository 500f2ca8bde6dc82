// 00a  three_kernels: attention as the formula is written, one kernel for each of its three operators.
//
//   scores   S = scale * Q K^T   one thread for each element of S
//   softmax  P = softmax(S)      one warp for each row: maximum, sum, then the weights; also L
//   output   O = P V             one thread for each element of O
//
// S and P are whole matrices in global memory, Nq x Nk for each sequence and head, in the type of Q: S is written, read
// back, P is written, read back. These four transfers of N^2 elements are what the rest of this repository removes.
// (softmax asks for S three times; the caches serve two of them while a row is short.)
//
// Keys that a query does not see get S = -inf and P = 0, and the sums walk the visible keys only, so nothing that a
// hidden key holds, not even a NaN, can reach O.
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage00::a {

using namespace attention;
using namespace gpu;

constexpr int threads = 128;
constexpr int warps = threads / warp_size;

/// S: (B, Hq, Nq, Nk). CTA: one block of `threads` keys of one query.
template <class T>
__global__ void scores(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<T> S) {
    const int key_blocks = ceil_div(problem.Nk, threads);
    const int j = blockIdx.x % key_blocks * threads + threadIdx.x;
    const std::int64_t row = blockIdx.x / key_blocks;  // (b, h, i)
    const int i = row % problem.Nq, h = row / problem.Nq % problem.Hq, b = row / problem.Nq / problem.Hq;
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq || j >= sequence.Nk) return;

    const auto q = sequence.queries(Q, h);
    const auto k = sequence.keys(K, problem.kv_head(h));
    float s = -GPU_INFINITY;
    if (problem.mask(sequence).visible(i, j)) {
        s = 0;
        for (int c = 0; c < problem.d; ++c) s += to_float(q(i, c)) * to_float(k(j, c));
        s *= problem.scale;
    }
    S.matrix(b, h, 0, sequence.Nq)(i, j) = cvt_rn<T>(s);
}

/// One warp a query: m = max_j S_ij, l = sum_j exp(S_ij - m), P_ij = exp(S_ij - m) / l, L_i = m + log(l).
template <class T>
__global__ void softmax(KernelProblem problem, Tensor<const T> S, Tensor<T> P, Tensor<float> L) {
    const std::int64_t row = std::int64_t(blockIdx.x) * warps + gpu::warp();  // (b, h, i)
    const int i = row % problem.Nq, h = row / problem.Nq % problem.Hq, b = row / problem.Nq / problem.Hq;
    if (b >= problem.B) return;
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq) return;

    const Range keys = problem.mask(sequence).keys(i);
    const auto s = S.matrix(b, h, 0, sequence.Nq);
    const auto p = P.matrix(b, h, 0, sequence.Nq);

    float m = -GPU_INFINITY;
    for (int j = keys.begin + gpu::lane(); j < keys.end; j += warp_size) m = fmaxf(m, to_float(s(i, j)) * log2_e);
    for (int lanes = 16; lanes > 0; lanes /= 2) m = fmaxf(m, shfl_sync_bfly(m, lanes));

    float l = 0;
    for (int j = keys.begin + gpu::lane(); j < keys.end; j += warp_size) l += weight(to_float(s(i, j)) * log2_e, m);
    for (int lanes = 16; lanes > 0; lanes /= 2) l += shfl_sync_bfly(l, lanes);

    for (int j = gpu::lane(); j < sequence.Nk; j += warp_size) {
        const bool visible = keys.contains(j);
        p(i, j) = cvt_rn<T>(visible ? weight(to_float(s(i, j)) * log2_e, m) * inverse_sum(l) : 0.0f);
    }
    if (gpu::lane() == 0) sequence.queries(L, h)(i, 0) = log_sum_exp(m, l);
}

/// CTA: one block of `threads` elements of one head's O.
template <class T>
__global__ void output(KernelProblem problem, Tensor<const T> P, Tensor<const T> V, Tensor<T> O) {
    const int blocks = ceil_div(problem.d, threads);
    const int c = blockIdx.x % blocks * threads + threadIdx.x;
    const std::int64_t row = blockIdx.x / blocks;  // (b, h, i)
    const int i = row % problem.Nq, h = row / problem.Nq % problem.Hq, b = row / problem.Nq / problem.Hq;
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq || c >= problem.d) return;

    const auto p = P.matrix(b, h, 0, sequence.Nq);
    const auto v = sequence.keys(V, problem.kv_head(h));
    const Range keys = problem.mask(sequence).keys(i);
    float o = 0;
    for (int j = keys.begin; j < keys.end; ++j) o += to_float(p(i, j)) * to_float(v(j, c));
    sequence.queries(O, h)(i, c) = cvt_rn<T>(o);
}

}  // namespace stage00::a
