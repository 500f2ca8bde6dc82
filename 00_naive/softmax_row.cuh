// One row of softmax by one warp, 16 bytes a lane at a time: what 00c and 00d have between their products.
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/merge.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage00 {

constexpr int chunk = 8;  // elements that a lane takes at once

/// Columns of S and P in memory: rows begin at multiples of 16 bytes.
GPU_HOST_DEVICE int padded(int keys) { return attention::ceil_div(keys, chunk) * chunk; }

/// P_ij = 2^(s_j - m) / l for the keys j of `columns`, where s_j = S_ij log2(e), and -inf for keys that are not `visible`;
/// m = max_j s_j, l = sum_j 2^(s_j - m). Returns m and l. `columns` begins and ends at multiples of 8. Row `warp` of `smem` holds the
/// row of S if it has no more than `held` keys; a longer one is read from memory in each of the three loops.
template <class T, int warps, int held>
__device__ inline attention::State<float> softmax_row(gpu::SharedTile<T, warps, held>& smem,
                                                      const gpu::Matrix<const T>& S_gmem, const gpu::Matrix<T>& P_gmem,
                                                      int i, attention::Range visible, attention::Range columns) {
    using namespace gpu;
    const int warp = warp_id();
    const int first = columns.begin + lane_id() * chunk;  // this lane's first chunk; the next is `stride` keys on
    constexpr int stride = warp_size * chunk;
    const bool fits = columns.end - columns.begin <= held;

    // 1. The row to shared memory. A lane copies the chunks that it will read, so nobody waits for another.
    if (fits) {
        for (int j = first; j < columns.end; j += stride) {
            for (int e = 0; e < chunk; e += 16 / sizeof(T))
                cp_async_cg_16(smem.address(warp, j - columns.begin + e), S_gmem, i, j + e, 16);
        }
        cp_async_commit_group();
        cp_async_wait_group<0>();
    }
    const auto scores = [&](int j) {
        const Vector<T, chunk> S = fits ? smem.load8(warp, j - columns.begin) : S_gmem.load8(i, j);
        Vector<float, chunk> s;
        for (int e = 0; e < chunk; ++e) s[e] = visible.contains(j + e) ? mul_rn(to_float(S[e]), log2_e) : -infinity;
        return s;
    };

    // 2. m
    float m = -infinity;
    for (int j = first; j < columns.end; j += stride) {
        const Vector<float, chunk> s = scores(j);
        for (int e = 0; e < chunk; ++e) m = fmaxf(m, s[e]);
    }
    for (int distance = 16; distance > 0; distance /= 2) m = fmaxf(m, shfl_sync_bfly(m, distance));

    // 3. l
    float l = 0;
    for (int j = first; j < columns.end; j += stride) {
        const Vector<float, chunk> s = scores(j);
        for (int e = 0; e < chunk; ++e) l += attention::weight(s[e], m);
    }
    for (int distance = 16; distance > 0; distance /= 2) l += shfl_sync_bfly(l, distance);

    // 4. P
    const float inverse = attention::inverse_sum(l);
    for (int j = first; j < columns.end; j += stride) {
        const Vector<float, chunk> s = scores(j);
        Vector<float, chunk> p;
        for (int e = 0; e < chunk; ++e) p[e] = attention::weight(s[e], m) * inverse;
        P_gmem.store(i, j, cvt_rn<T>(p));
    }
    return {m, l};
}

}  // namespace stage00
