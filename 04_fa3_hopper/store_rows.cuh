// How dK and dV leave the backward kernels of stage 04.
#pragma once

#include "common/gpu/gpu.h"

namespace stage04 {

/// `factor` times the 16 x 2N sums that this warp holds as a product left them, rounded, to the rows of `gmem` from
/// `first` on, those before `end`, and the columns from `column` on. On the way through `staging`, from (row, column) on, so
/// that lanes beside each other write what lies side by side; straight from the registers a row is written 16 bytes at a time.
template <class T, int N>
__device__ inline void store_rows(const gpu::Matrix<T>& gmem, int first, int end, int column, const float (&sums)[N],
                                  float factor, auto& staging, int row) {
    using namespace gpu;
    constexpr int chunks = 2 * N / 8;  // of a row
    const int lane = lane_id();
#pragma unroll
    for (int k = 0; k < N / 8; ++k) {
        std::uint32_t packed[4];
        for (int e = 0; e < 4; ++e)
            packed[e] = cvt_rn_x2<T>(factor * sums[8 * k + 2 * e], factor * sums[8 * k + 2 * e + 1]);
        stmatrix_x4(staging.address(row + lane % 16, column + 16 * k + lane / 16 * 8), packed);
    }
    bar_warp_sync(all_lanes);
    for (int i = lane; i < 16 * chunks; i += warp_size) {
        const int r = i / chunks, c = column + i % chunks * 8;
        if (first + r < end) gmem.store(first + r, c, staging.load8(row + r, c));
    }
    bar_warp_sync(all_lanes);  // `staging` is free again
}

}  // namespace stage04
