// What the backward rungs of stage 04 share: how results leave their main kernel, and what follows it.
#pragma once

#include "common/attention/backward_tiles.h"

namespace stage04 {

using attention::first_tile;
using attention::prepare_tile;
using attention::QueryTile;
using attention::threads_of_tile;

/// `factor` times the 16 x 2N sums that this warp holds as a product left them, rounded, to the rows of `gmem` from
/// `first` on, those before `end`, and the columns from `column` on. On the way through `staging`, from (row, column) on, so
/// that lanes beside each other write what lies side by side; straight from the registers a row is written 16 bytes at a time.
template <class T, int N>
__device__ inline void store_rows(const gpu::Matrix<T>& gmem, int first, int end, int column, const float (&sums)[N],
                                  float factor, auto& staging, int row) {
    constexpr int chunks = 2 * N / 8;  // of a row
    const int lane = gpu::lane_id();
#pragma unroll
    for (int k = 0; k < N / 8; ++k) {
        std::uint32_t packed[4];
        for (int e = 0; e < 4; ++e)
            packed[e] = gpu::cvt_rn_x2<T>(factor * sums[8 * k + 2 * e], factor * sums[8 * k + 2 * e + 1]);
        gpu::stmatrix_x4(staging.address(row + lane % 16, column + 16 * k + lane / 16 * 8), packed);
    }
    gpu::bar_warp_sync(gpu::all_lanes);
    for (int i = lane; i < 16 * chunks; i += gpu::warp_size) {
        const int r = i / chunks, c = column + i % chunks * 8;
        if (first + r < end) gmem.store(first + r, c, staging.load8(row + r, c));
    }
    gpu::bar_warp_sync(gpu::all_lanes);  // `staging` is free again
}

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
