// What the backward rungs of stage 04 share: scratch tiles, and what is done for a tile of queries before and after.
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/gpu/gpu.h"

namespace stage04 {

constexpr int threads_of_tile = 128;  // of prepare and finish

/// Number, within one head, of the scratch tile of a sequence's first Br queries: each sequence starts a tile of its
/// own.
__device__ inline int first_tile(const attention::KernelProblem& problem, int b, int Br) {
    return int((problem.cu_q == nullptr ? std::int64_t(b) * problem.Nq : problem.cu_q[b]) / Br) + b;
}

/// The tile of Br queries that a CTA of `prepare` or `finish` works on, and its scratch tile; of packed sequences some
/// have i0 >= Nq.
struct QueryTile {
    int b, h, i0, scratch;
    __device__ QueryTile(const attention::KernelProblem& problem, int Br) {
        const int tiles = attention::ceil_div(problem.Nq, Br), head = blockIdx.x / tiles;
        b = head / problem.Hq, h = head % problem.Hq, i0 = blockIdx.x % tiles * Br;
        scratch = first_tile(problem, b, Br) + i0 / Br;
    }
};

/// L in base 2, D = rowsum(dO o O), and zeros for the sums of dQ. Of a query that sees no key, and beyond the last one,
/// L and D are 0: its weights are 0 because every key is hidden. L_log2 and D: (scratch tile, query); dQ_sum: (scratch
/// tile, element).
template <class T, int d, int Br>
__device__ inline void prepare_tile(const attention::KernelProblem& problem, const attention::Sequence& sequence,
                                    const QueryTile& tile, const gpu::Tensor<const T>& O,
                                    const gpu::Tensor<const T>& dO, const gpu::Tensor<const float>& L,
                                    const gpu::Tensor<float>& L_log2, const gpu::Tensor<float>& D,
                                    const gpu::Tensor<float>& dQ_sum) {
    const auto O_gmem = sequence.queries(O, tile.h);
    const auto dO_gmem = sequence.queries(dO, tile.h);
    const auto L_gmem = sequence.queries(L, tile.h);
    const attention::Range seeing = problem.mask(sequence).seeing_queries();
    const auto L_log2_gmem = L_log2.matrix(0, tile.h, tile.scratch, 1);
    const auto D_gmem = D.matrix(0, tile.h, tile.scratch, 1);

    const int t = gpu::lane_id() % 8;  // eight threads a query, 8 elements at a time
    for (int row = threadIdx.x / 8; row < Br; row += threads_of_tile / 8) {
        const int i = tile.i0 + row;
        const bool sees_a_key = seeing.contains(i);
        float sum = 0;
        for (int c = 8 * t; sees_a_key && c < d; c += 64) {
            const gpu::Vector<T, 8> o = O_gmem.load8(i, c), g = dO_gmem.load8(i, c);
            for (int e = 0; e < 8; ++e) sum += gpu::to_float(o[e]) * gpu::to_float(g[e]);
        }
        sum += gpu::shfl_sync_bfly(sum, 1);
        sum += gpu::shfl_sync_bfly(sum, 2);
        sum += gpu::shfl_sync_bfly(sum, 4);
        if (t == 0) {
            L_log2_gmem(0, row) = sees_a_key ? L_gmem(i) * gpu::log2_e : 0.0f;
            D_gmem(0, row) = sum;
        }
    }
    const auto dQ_sum_gmem = dQ_sum.matrix(0, tile.h, tile.scratch, 1);
    for (int e = 4 * threadIdx.x; e < Br * d; e += 4 * threads_of_tile)
        dQ_sum_gmem.store(0, e, gpu::Vector<float, 4>{});
}

/// dQ from its sums, of which each of two warpgroups added a half, in the order of its registers. A thread has eight
/// columns of the queries row and row + 8, which four lanes of `backward` added up.
template <class T, int d, int Br>
__device__ inline void finish_tile(const attention::KernelProblem& problem, const attention::Sequence& sequence,
                                   const QueryTile& tile, const gpu::Tensor<const float>& dQ_sum,
                                   const gpu::Tensor<T>& dQ) {
    constexpr int elements = Br * d / 2;
    constexpr bool by_rows = Br == 128;  // halves of 64 queries, or of d / 2 columns
    const auto dQ_sum_gmem = dQ_sum.matrix(0, tile.h, tile.scratch, 1);
    const auto dQ_gmem = sequence.queries(dQ, tile.h);
    for (int e = threadIdx.x; e < Br * d / 16; e += threads_of_tile) {
        const int part = e / (elements / 16), block = e % (elements / 16);
        const int n = block / 32, warp = block / 8 % 4, g = block % 8;
        gpu::Vector<T, 8> upper, lower;
        for (int t = 0; t < 4; ++t) {
            const gpu::Vector<float, 4> x =
                dQ_sum_gmem.load4(0, part * elements + n * 4 * gpu::warpgroup_size + 4 * (32 * warp + 4 * g + t));
            upper[2 * t] = gpu::cvt_rn<T>(problem.scale * x[0]),
                      upper[2 * t + 1] = gpu::cvt_rn<T>(problem.scale * x[1]);
            lower[2 * t] = gpu::cvt_rn<T>(problem.scale * x[2]),
                      lower[2 * t + 1] = gpu::cvt_rn<T>(problem.scale * x[3]);
        }
        const int row = tile.i0 + (by_rows ? 64 * part : 0) + 16 * warp + g;
        const int column = (by_rows ? 0 : d / 2 * part) + 8 * n;
        if (row < sequence.Nq) dQ_gmem.store(row, column, upper);
        if (row + 8 < sequence.Nq) dQ_gmem.store(row + 8, column, lower);
    }
}

}  // namespace stage04
