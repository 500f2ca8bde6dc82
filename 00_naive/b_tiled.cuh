// 00b  tiled: the two products of 00a, with their operands reused in shared memory.
//
//   scores   S = scale * Q K^T   one CTA for each 16 x 16 tile of S, one thread for each element
//   softmax  P = softmax(S)      as in 00a
//   output   O = P V             one CTA for each 16 x 16 tile of O, one thread for each element
//
// A product walks its inner dimension in steps of 16. For each step
//   1. the CTA copies a 16 x 16 tile of either operand to shared memory, one element a thread, neighbours together
//   2. each thread adds its 16 products: its row of the left tile times its column of the right one
// so that an element which comes from global memory is used 16 times instead of once, and a warp's load touches whole sectors.
//
// Elements asked for, a head: 2 Nq Nk d / 16 for Q and K, Nq Nk d / 16 for V, Nq Nk d / 16 for P, 3 Nq Nk for S. FLOPs as in 00a:
// 4 Nq Nk d. On chip: 2 tiles, 16 x 17 each.
//
// Why it is slow still: each product needs two reads of shared memory, so shared memory, not arithmetic, sets the pace; and S and
// P travel as before.
//
// Hidden keys: a tile that no query of it sees is -inf in S without a product, and not read by `output`. In a tile that some see,
// S of a hidden key is computed and dropped; `output` bounds each thread's sum by its own query's keys.
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage00::b {

using namespace attention;
using namespace gpu;

constexpr int tile = 16;
constexpr int threads = tile * tile;
constexpr int warps = threads / warp_size;

template <class T>
struct Shared {
    SharedTile<T, tile, tile + 1> left, right;  // padded: a column of 16 rows falls into different banks
};

/// One tile of one head: the queries from i on, and the keys or columns from `column` on.
struct TileOrigin {
    int b, h, i, column;
};
__device__ inline TileOrigin tile_origin(const KernelProblem& problem, int columns) {
    const int column_tiles = ceil_div(columns, tile), query_tiles = ceil_div(problem.Nq, tile);
    const int q_tile = blockIdx.x / column_tiles, head = q_tile / query_tiles;
    return {head / problem.Hq, head % problem.Hq, q_tile % query_tiles * tile, int(blockIdx.x) % column_tiles * tile};
}

/// S: (B, Hq, Nq, Nk), also for packed sequences, which use a corner of it. CTA: one tile.
template <class T>
__global__ void __launch_bounds__(threads)
    scores(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<T> S) {
    auto& smem = shared_memory<Shared<T>>();
    const int x = threadIdx.x % tile, y = threadIdx.x / tile;
    const auto [b, h, i0, j0] = tile_origin(problem, problem.Nk);
    const Sequence sequence = problem.sequence(b);
    if (i0 >= sequence.Nq || j0 >= sequence.Nk) return;

    const auto Q_gmem = sequence.queries(Q, h);
    const auto K_gmem = sequence.keys(K, problem.kv_head(h));
    const Mask mask = problem.mask(sequence);
    const int i = i0 + y, j = j0 + x;
    const int columns = mask.classify(i0, tile, j0, tile) == Tile::hidden ? 0 : problem.d;
    float s = 0;
    for (int c0 = 0; c0 < columns; c0 += tile) {
        // 1. Thread (y, x) copies column x of row y of both tiles; what lies beyond is 0.
        const int c = c0 + x;
        smem.left(y, x) = i0 + y < sequence.Nq && c < problem.d ? Q_gmem(i0 + y, c) : cvt_rn<T>(0);
        smem.right(y, x) = j0 + y < sequence.Nk && c < problem.d ? K_gmem(j0 + y, c) : cvt_rn<T>(0);
        bar_sync();
        // 2. Row x of K's tile is column x of K^T.
        for (int k = 0; k < tile; ++k) s += to_float(smem.left(y, k)) * to_float(smem.right(x, k));
        bar_sync();
    }
    if (i >= sequence.Nq || j >= sequence.Nk) return;
    S.matrix(b, h, 0, sequence.Nq)(i, j) = cvt_rn<T>(mask.visible(i, j) ? s * problem.scale : -infinity);
}

/// One warp a query, in base 2 (softmax.h): m = max_j s_j, l = sum_j 2^(s_j - m), P_ij = 2^(s_j - m) / l with s_j = S_ij log2(e).
template <class T>
__global__ void softmax(KernelProblem problem, Tensor<const T> S, Tensor<T> P, Tensor<float> L) {
    const auto [b, h, i] = problem.query(std::int64_t(blockIdx.x) * warps + warp_id());
    if (b >= problem.B) return;
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq) return;

    const Range keys = problem.mask(sequence).keys(i);
    const auto S_gmem = S.matrix(b, h, 0, sequence.Nq);
    const auto P_gmem = P.matrix(b, h, 0, sequence.Nq);

    float m = -infinity;
    for (int j = keys.begin + lane_id(); j < keys.end; j += warp_size)
        m = fmaxf(m, mul_rn(to_float(S_gmem(i, j)), log2_e));
    for (int distance = 16; distance > 0; distance /= 2) m = fmaxf(m, shfl_sync_bfly(m, distance));

    float l = 0;
    for (int j = keys.begin + lane_id(); j < keys.end; j += warp_size)
        l += weight(mul_rn(to_float(S_gmem(i, j)), log2_e), m);
    for (int distance = 16; distance > 0; distance /= 2) l += shfl_sync_bfly(l, distance);

    for (int j = lane_id(); j < sequence.Nk; j += warp_size) {
        const bool visible = keys.contains(j);
        P_gmem(i, j) = cvt_rn<T>(visible ? weight(mul_rn(to_float(S_gmem(i, j)), log2_e), m) * inverse_sum(l) : 0.0f);
    }
    if (lane_id() == 0) sequence.queries(L, h)(i) = log_sum_exp(m, l);
}

/// CTA: one tile of O.
template <class T>
__global__ void __launch_bounds__(threads)
    output(KernelProblem problem, Tensor<const T> P, Tensor<const T> V, Tensor<T> O) {
    auto& smem = shared_memory<Shared<T>>();
    const int x = threadIdx.x % tile, y = threadIdx.x / tile;
    const auto [b, h, i0, c0] = tile_origin(problem, problem.d);
    const Sequence sequence = problem.sequence(b);
    if (i0 >= sequence.Nq) return;

    const auto P_gmem = P.matrix(b, h, 0, sequence.Nq);
    const auto V_gmem = sequence.keys(V, problem.kv_head(h));
    const Mask mask = problem.mask(sequence);
    const int i = i0 + y, c = c0 + x;
    const Range keys = mask.keys(i);
    const Range kv_tiles = mask.key_tiles(i0, tile, tile);
    float o = 0;
    for (int j0 = kv_tiles.begin * tile; j0 < kv_tiles.end * tile; j0 += tile) {
        smem.left(y, x) = i0 + y < sequence.Nq && j0 + x < sequence.Nk ? P_gmem(i0 + y, j0 + x) : cvt_rn<T>(0);
        smem.right(y, x) = j0 + y < sequence.Nk && c < problem.d ? V_gmem(j0 + y, c) : cvt_rn<T>(0);
        bar_sync();
        for (int k = 0; k < tile; ++k) {
            if (keys.contains(j0 + k)) o += to_float(smem.left(y, k)) * to_float(smem.right(k, x));
        }
        bar_sync();
    }
    if (i < sequence.Nq && c < problem.d) sequence.queries(O, h)(i, c) = cvt_rn<T>(o);
}

}  // namespace stage00::b
