// What the backward rungs of stage 04 do for a tile of queries after their main kernel.
#pragma once

#include "common/attention/backward_tiles.h"

namespace stage04 {

using attention::first_tile;
using attention::prepare_tile;
using attention::QueryTile;
using attention::threads_of_tile;

/// dQ from its sums, of which each of two warpgroups added a half, in the order of its registers. A thread has eight
/// columns of the queries row and row + 8, which four lanes of `backward` added up; its neighbours have the next eight
/// columns, so that rows are written whole.
template <class T, int d, int Br>
__device__ inline void finish_tile(const attention::KernelProblem& problem, const attention::Sequence& sequence,
                                   const QueryTile& tile, const gpu::Tensor<const float>& dQ_sum,
                                   const gpu::Tensor<T>& dQ) {
    constexpr bool by_rows = Br == 128;  // halves of 64 queries, or of d / 2 columns
    constexpr int elements = Br * d / 2, chunks = by_rows ? d / 8 : d / 16;
    const auto dQ_sum_gmem = dQ_sum.matrix(0, tile.h, tile.scratch, 1);
    const auto dQ_gmem = sequence.queries(dQ, tile.h);
    for (int e = threadIdx.x; e < Br * d / 16; e += threads_of_tile) {
        const int n = e % chunks, g = e / chunks % 8, warp = e / (8 * chunks) % 4, part = e / (32 * chunks);
        gpu::Vector<T, 8> upper, lower;
        for (int t = 0; t < 4; ++t) {
            const gpu::Vector<float, 4> x =
                dQ_sum_gmem.load4(0, part * elements + n * 4 * gpu::warpgroup_size + 4 * (32 * warp + 4 * g + t));
            upper[2 * t] = gpu::cvt_rn<T>(problem.scale * x[0]);
            upper[2 * t + 1] = gpu::cvt_rn<T>(problem.scale * x[1]);
            lower[2 * t] = gpu::cvt_rn<T>(problem.scale * x[2]);
            lower[2 * t + 1] = gpu::cvt_rn<T>(problem.scale * x[3]);
        }
        const int row = tile.i0 + (by_rows ? 64 * part : 0) + 16 * warp + g;
        const int column = (by_rows ? 0 : d / 2 * part) + 8 * n;
        if (row < sequence.Nq) dQ_gmem.store(row, column, upper);
        if (row + 8 < sequence.Nq) dQ_gmem.store(row + 8, column, lower);
    }
}

}  // namespace stage04
