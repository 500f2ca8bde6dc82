// How dK and dV leave the backward kernels of stage 04.
#pragma once

#include "common/gpu/gpu.h"

namespace stage04 {

/// Rounds `factor` times the 16 x 2N sums that this warp holds, laid out as a product leaves them, and writes them to the
/// rows gmem_row, gmem_row + 1, ... of `gmem`, those before `end`, from `column` on. They pass through `staging` from
/// (staging_row, column) on, so that the warp writes whole rows; straight from registers it would write 16 bytes of a row at a
/// time.
template <class T, int N>
__device__ inline void store_rows(const gpu::Matrix<T>& gmem, int gmem_row, int end, int column, const float (&sums)[N],
                                  float factor, auto& staging, int staging_row) {
    using namespace gpu;
    constexpr int chunks = 2 * N / 8;  // of a row
    const int lane = lane_id();
#pragma unroll
    for (int k = 0; k < N / 8; ++k) {
        std::uint32_t packed[4];
        for (int e = 0; e < 4; ++e)
            packed[e] = cvt_rn_x2<T>(factor * sums[8 * k + 2 * e], factor * sums[8 * k + 2 * e + 1]);
        stmatrix_x4(staging.address(staging_row + lane % 16, column + 16 * k + lane / 16 * 8), packed);
    }
    bar_warp_sync(all_lanes);
    for (int i = lane; i < 16 * chunks; i += warp_size) {
        const int r = i / chunks, c = column + i % chunks * 8;
        if (gmem_row + r < end) gmem.store(gmem_row + r, c, staging.load8(staging_row + r, c));
    }
    bar_warp_sync(all_lanes);  // `staging` is free again
}

}  // namespace stage04
