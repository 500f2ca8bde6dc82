// 00d  cublas: a restart around NVIDIA's library, which makes the two products of 00c; the softmax is a kernel of the same kind. CUDA
// builds only.
//
//   scores   S = scale * Q K^T   cuBLAS, batched over the query heads that share a key/value head or, without groups, over all heads
//   softmax  P = softmax(S)      one warp for each row, kept in shared memory: S is read once, P written once (softmax_row.cuh)
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

#include "00_naive/softmax_row.cuh"

namespace stage00::d {

using namespace attention;
using namespace gpu;

constexpr int warps = 4;
constexpr int threads = warps * warp_size;

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

/// One warp a query.
template <class T, int held>
__global__ void __launch_bounds__(threads)
    softmax(KernelProblem problem, Tensor<const T> S, Tensor<T> P, Tensor<T> O, Tensor<float> L) {
    auto& smem = shared_memory<SharedSoftmax<T, held>>();
    const auto [b, h, i] = problem.query(std::int64_t(blockIdx.x) * warps + warp_id());
    if (b >= problem.B) return;
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq) return;

    const Mask mask = problem.mask(sequence);
    const Range keys = mask.keys(i), seen = mask.seen_keys();  // P V reads the seen ones of every row
    const auto [m, l] = softmax_row(smem.S, S.matrix(b, h, 0, sequence.Nq), P.matrix(b, h, 0, sequence.Nq), i, keys,
                                    {seen.begin / chunk * chunk, padded(seen.end)});
    if (keys.empty()) {
        const auto O_gmem = sequence.queries(O, h);
        for (int c = lane_id(); c < problem.d; c += warp_size) O_gmem(i, c) = cvt_rn<T>(0);
    }
    if (lane_id() == 0) sequence.queries(L, h)(i) = log_sum_exp(m, l);
}

}  // namespace stage00::d
