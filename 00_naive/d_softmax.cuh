// 00d  cublas: the two products of 00c by NVIDIA's library, the softmax by a kernel of the same kind. CUDA builds only.
//
//   scores   S = scale * Q K^T   cuBLAS, batched over the query heads that share a key/value head or, without groups, over all heads
//   softmax  P = softmax(S)      one warp for each row, which it keeps in shared memory: S is read once, P written once
//   output   O = P V             cuBLAS, likewise
//
// The question it answers: how much of the time of 00c is left to gain in the products. The traffic of S and P is that of 00c without
// a mask, 4 Nq Nk elements; with one, cuBLAS knows nothing of it and computes the whole rectangle of queries that see a key by keys that
// some query sees, and S and P are whole on it.
//
// Hidden keys: that rectangle leaves out the keys and queries that the mask hides altogether, so that nothing they hold reaches a
// product. Inside it a hidden S is computed and dropped, and its P is 0; so a NaN in V reaches all queries of the sequence
// (0 * NaN), those too that do not see it. `softmax` writes O = 0 for queries without keys, which no product reaches.
//
// On chip: 4 rows of 8 KiB, or of 32 KiB for longer ones.
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage00::d {

using namespace attention;
using namespace gpu;

constexpr int warps = 4;
constexpr int threads = warps * warp_size;
constexpr int chunk = 8;  // elements that a lane takes at once

/// Columns of S and P in memory.
GPU_HOST_DEVICE int padded(int keys) { return ceil_div(keys, chunk) * chunk; }

template <class T, int held>
struct SharedSoftmax {
    SharedTile<T, warps, held> S;
};

/// One warp a row: a dense copy, for operands whose rows lie as cuBLAS cannot take them (in descending order, or all in one place).
/// Both hold (B, H, N, d); packed sequences are one of B = 1.
template <class T>
__global__ void __launch_bounds__(threads) copy_rows(int B, int H, int N, int d, Tensor<const T> from, Tensor<T> to) {
    const std::int64_t row = std::int64_t(blockIdx.x) * warps + warp_id();
    const int head = row / N, b = head / H;
    if (b >= B) return;
    const auto from_gmem = from.matrix(b, head % H, 0, N);
    const auto to_gmem = to.matrix(b, head % H, 0, N);
    for (int c = lane_id(); c < d; c += warp_size) to_gmem(row % N, c) = from_gmem(row % N, c);
}

/// One warp a query, in base 2 (softmax.h): m = max_j s_j, l = sum_j 2^(s_j - m), P_ij = 2^(s_j - m) / l with s_j = S_ij log2(e).
/// Each lane copies every 32nd chunk of the row to shared memory and reads its own chunks alone, so no warp waits for another. A row of
/// more than `held` keys is fetched in pieces, and again for each of the three.
template <class T, int held>
__global__ void __launch_bounds__(threads)
    softmax(KernelProblem problem, Tensor<const T> S, Tensor<T> P, Tensor<T> O, Tensor<float> L) {
    auto& smem = shared_memory<SharedSoftmax<T, held>>();
    const auto [b, h, i] = problem.query(std::int64_t(blockIdx.x) * warps + warp_id());
    if (b >= problem.B) return;
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq) return;

    const Mask mask = problem.mask(sequence);
    const Range keys = mask.keys(i);
    const auto S_gmem = S.matrix(b, h, 0, sequence.Nq);
    const auto P_gmem = P.matrix(b, h, 0, sequence.Nq);
    // What the product P V reads of this row.
    const Range seen = mask.seen_keys();
    const int begin = seen.begin / chunk * chunk, end = padded(seen.end);
    const bool again = end - begin > held;

    const int warp = warp_id(), mine = lane_id() * chunk;
    constexpr int stride = warp_size * chunk;
    const auto end_of = [&](int first) { return end - first < held ? end - first : held; };
    const auto fetch = [&](int first) {
        for (int j = mine; j < end_of(first); j += stride)
            for (int e = 0; e < chunk; e += 16 / sizeof(T))
                cp_async_cg_16(smem.S.address(warp, j + e), S_gmem, i, first + j + e, 16);
        cp_async_commit_group();
        cp_async_wait_group<0>();
        for (int j = mine; j < end_of(first); j += stride) {
            if (keys.begin <= first + j && first + j + chunk <= keys.end) continue;
            for (int e = 0; e < chunk; ++e) {
                if (!keys.contains(first + j + e)) smem.S(warp, j + e) = cvt_rn<T>(-infinity);
            }
        }
    };

    float m = -infinity;
    for (int first = begin; first < end; first += held) {
        fetch(first);
        for (int j = mine; j < end_of(first); j += stride) {
            const Vector<T, chunk> s = smem.S.load8(warp, j);
            for (int e = 0; e < chunk; ++e) m = fmaxf(m, mul_rn(to_float(s[e]), log2_e));
        }
    }
    for (int distance = 16; distance > 0; distance /= 2) m = fmaxf(m, shfl_sync_bfly(m, distance));

    float l = 0;
    for (int first = begin; first < end; first += held) {
        if (again) fetch(first);
        for (int j = mine; j < end_of(first); j += stride) {
            const Vector<T, chunk> s = smem.S.load8(warp, j);
            for (int e = 0; e < chunk; ++e) l += weight(mul_rn(to_float(s[e]), log2_e), m);
        }
    }
    for (int distance = 16; distance > 0; distance /= 2) l += shfl_sync_bfly(l, distance);

    const float inverse = inverse_sum(l);
    for (int first = begin; first < end; first += held) {
        if (again) fetch(first);
        for (int j = mine; j < end_of(first); j += stride) {
            const Vector<T, chunk> s = smem.S.load8(warp, j);
            Vector<float, chunk> p;
            for (int e = 0; e < chunk; ++e) p[e] = weight(mul_rn(to_float(s[e]), log2_e), m) * inverse;
            P_gmem.store(i, first + j, cvt_rn<T>(p));
        }
    }
    if (keys.empty()) {
        const auto O_gmem = sequence.queries(O, h);
        for (int c = lane_id(); c < problem.d; c += warp_size) O_gmem(i, c) = cvt_rn<T>(0);
    }
    if (lane_id() == 0) sequence.queries(L, h)(i) = log_sum_exp(m, l);
}

}  // namespace stage00::d
