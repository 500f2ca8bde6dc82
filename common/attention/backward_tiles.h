// Which tile a CTA of a backward kernel works on, what is done for a tile of queries before the main kernel, and the scratch
// tiles where that is kept.
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/gpu/gpu.h"

namespace attention {

constexpr int threads_of_tile = 128;  // of prepare and finish

/// Number, within one head, of the scratch tile of a sequence's first Br queries: each sequence starts a tile of its
/// own.
__device__ inline int first_tile(const KernelProblem& problem, int b, int Br) {
    return int((problem.cu_q == nullptr ? std::int64_t(b) * problem.Nq : problem.cu_q[b]) / Br) + b;
}

/// The tile of Br queries that a CTA of `prepare` or `finish` works on, and its scratch tile; of packed sequences some
/// have i0 >= Nq.
struct QueryTile {
    int b, h, i0, scratch;
    __device__ QueryTile(const KernelProblem& problem, int Br) {
        const int tiles = ceil_div(problem.Nq, Br), head = blockIdx.x / tiles;
        b = head / problem.Hq, h = head % problem.Hq, i0 = blockIdx.x % tiles * Br;
        scratch = first_tile(problem, b, Br) + i0 / Br;
    }
};

/// The tile of Bc keys of a CTA of `backward`. Heads are taken in sections: CTAs that run together then read the queries of
/// a few heads, which stay in L2. In a section come the first keys of all its heads, then the second, and so on. Under a
/// causal mask most queries see the first keys: long CTAs start first, and short ones fill the end (GPUs start CTAs in this
/// order, though CUDA does not promise it). Of packed sequences some have j0 >= Nk.
struct KeyTile {
    int b, kv_head, j0;
    __device__ KeyTile(const KernelProblem& problem, int Bc, int heads_of_section) {
        const int tiles = ceil_div(problem.Nk, Bc);
        const int first_head = blockIdx.x / (heads_of_section * tiles) * heads_of_section;
        const int heads_left = problem.B * problem.Hkv - first_head;
        const int heads = heads_left < heads_of_section ? heads_left : heads_of_section;
        const int number = blockIdx.x - first_head * tiles, head = first_head + number % heads;
        b = head / problem.Hkv, kv_head = head % problem.Hkv, j0 = number / heads * Bc;
    }
};

/// L in base 2, D = rowsum(dO o O), and zeros for the sums of dQ. Of a query that sees no key, and beyond the last one,
/// L and D are 0: its weights are 0 because every key is hidden. L_log2 and D: (scratch tile, query); dQ_sum: (scratch
/// tile, element).
template <class T, int d, int Br>
__device__ inline void prepare_tile(const KernelProblem& problem, const Sequence& sequence, const QueryTile& tile,
                                    const gpu::Tensor<const T>& O, const gpu::Tensor<const T>& dO,
                                    const gpu::Tensor<const float>& L, const gpu::Tensor<float>& L_log2,
                                    const gpu::Tensor<float>& D, const gpu::Tensor<float>& dQ_sum) {
    const auto O_gmem = sequence.queries(O, tile.h);
    const auto dO_gmem = sequence.queries(dO, tile.h);
    const auto L_gmem = sequence.queries(L, tile.h);
    const Range seeing = problem.mask(sequence).seeing_queries();
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

}  // namespace attention
