// 03c  pipelined: 03b with its loads hidden behind the products.
//
// One buffer for K, one for V. V_j arrives while S = Q K_j^T and its softmax are computed, K_(j-1) while W V_j is, at two barriers a
// key tile. 16-byte chunks are swizzled, so neither cp.async nor ldmatrix meets a bank conflict, without padding.
// The longest rows of a causal mask start first, so that the last CTAs to run are short; the heads of a group, which read the same
// keys, side by side.
// cp.async passes no registers, so a warp owns 32 queries up to d = 128. They are scarce all the same: addresses of ldmatrix differ by
// constants, which keys a query sees waits in shared memory until a tile must be masked, and O leaves through Q's memory.
//
// On chip, d = 128 (d = 64):  Q 128 x d, K, V 64 x d, 64 KiB (32): two CTAs an SM, as the registers allow: U 128 (64), S 64, W over S.
// A tile: as 03a.
//
//   1. start the copies of Q and the last K
//   For each key tile, from the last to the first:
//     2. wait for K; start the copy of V
//     3. S = Q K^T
//     4. mask (mixed tiles); m' = max(m, rowmax S), alpha = 2^(c m - c m'), l = alpha l, U = alpha U
//     5. W = 2^(c S - c m'), l += W; dropout of W
//     6. wait for V; start the copy of the next K
//     7. U += W V
//   8. O = U / l through the warp's rows of Q's memory, 16 bytes a store; L = c m + log l
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/score.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage03::c {

using namespace attention;
using namespace gpu;

constexpr int warps = 4;
constexpr int threads = warps * warp_size;

constexpr int Br(int d, bool general) { return d <= 128 && !general ? 128 : 64; }
constexpr int Bc(int d, bool general) { return d <= 128 || !general ? 64 : 32; }

template <class T, int d, bool general>
struct Shared {
    static constexpr int columns = (d + 63) / 64 * 64;  // xor_8 takes rows of 128 bytes; those beyond d stay unused
    SharedTile<T, Br(d, general), columns, Swizzle::xor_8> Q;
    SharedTile<T, Bc(d, general), columns, Swizzle::xor_8> K, V;
    SharedTile<int, Br(d, general), 2> keys;  // begin and end: in registers only while a mixed tile is masked
};

/// Starts the copy of rows first ... first + rows - 1 to shared memory. Rows outside `kept` become zeros (no key or query beyond
/// the mask, not even a NaN, may reach a product), and so do columns beyond the head dimension. Eight threads share 128 bytes of a
/// row, so that what a thread copies lies at constant distances: its addresses take few registers.
template <int d, class SmemTile, class T>
__device__ inline void copy_rows(SmemTile& tile, const Matrix<const T>& source, int first, Range kept) {
    constexpr int rows_at_once = threads / 8;
#pragma unroll
    for (int step = 0; step < SmemTile::rows / rows_at_once; ++step) {
        const int row = threadIdx.x / 8 + step * rows_at_once;
#pragma unroll
        for (int page = 0; page < SmemTile::columns; page += 64) {
            const int column = page + threadIdx.x % 8 * 8;
            if (column >= d) continue;
            const bool present = kept.contains(first + row) && column < source.columns;
            cp_async_cg_16(tile.address(row, column), source, first + row, column, present ? 16 : 0);
        }
    }
}

/// d: the problem's head dimension, or more: then the columns beyond it are zeros. general: has dropout, softcap or ALiBi, or a
/// scale that is not positive; c (s - m) needs c > 0. Then a score is finished before its maximum is taken, in base 2, and c = 1.
template <class T, int d, bool general>
__global__ void __launch_bounds__(threads, 2) forward(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K,
                                                      Tensor<const T> V, Tensor<T> O, Tensor<float> L) {
    constexpr int Br = c::Br(d, general), Bc = c::Bc(d, general);
    constexpr int m_tiles = Br / 16 / warps, n_tiles = Bc / 8;
    auto& smem = shared_memory<Shared<T, d, general>>();

    const int heads = problem.B * problem.Hq, head = blockIdx.x % heads, h = head % problem.Hq;
    const int i0 = (ceil_div(problem.Nq, Br) - 1 - int(blockIdx.x / heads)) * Br;
    const Sequence sequence = problem.sequence(head / problem.Hq);
    if (i0 >= sequence.Nq) return;
    const Mask mask = problem.mask(sequence);
    const Range kv_tiles = mask.key_tiles(i0, Br, Bc), full_tiles = mask.full_key_tiles(i0, Br, Bc);
    const float c = general ? 1 : problem.scale * log2_e;
    const ScoreModifier<general> modifier(problem, sequence, h);

    const auto Q_gmem = sequence.queries(Q, h);
    const auto K_gmem = sequence.keys(K, problem.kv_head(h));
    const auto V_gmem = sequence.keys(V, problem.kv_head(h));
    const auto O_gmem = sequence.queries(O, h);
    const auto L_gmem = sequence.queries(L, h);

    const int lane = lane_id(), warp_row = 16 * m_tiles * warp_id();  // this warp's first query within the tile
    const int g = lane / 4, t = lane % 4;  // of fragments: row g, columns 2t and 2t + 1 (mma.h)

    // A lane holds queries g and g + 8 of each m_tile: m, its own part of l, and two of every eight columns of U.
    float m[m_tiles][2], l[m_tiles][2] = {}, U[m_tiles][d / 8][4] = {};
    for (int m_tile = 0; m_tile < m_tiles; ++m_tile) m[m_tile][0] = m[m_tile][1] = -infinity;

    // Where this lane points ldmatrix in the first 16 x 16 block of Q, and of K and V. For K that is not the order of ldmatrix.h: its
    // registers are b0 of n 0-7, b0 of n 8-15, b1, b1, but its addresses are V's.
    const int Q_lane = smem.Q.offset(warp_row + lane % 16, 8 * (lane / 16));
    const int KV_lane = smem.K.offset(lane % 16, 8 * (lane / 16));

    const auto take = [&]<Tile kind>(int kv_tile) {
        const int j0 = kv_tile * Bc;

        // 2. Everybody's copies of K (and Q) have landed, and everybody has left V.
        cp_async_wait_group<0>();
        bar_sync();
        copy_rows<d>(smem.V, V_gmem, j0, mask.seen_keys());
        cp_async_commit_group();

        // 3. S = Q K^T.
        float S[m_tiles][n_tiles][4] = {};
#pragma unroll
        for (int k_step = 0; k_step < d / 16; ++k_step) {
            std::uint32_t Q_rmem[m_tiles][4];
            for (int m_tile = 0; m_tile < m_tiles; ++m_tile)
                ldmatrix_x4(Q_rmem[m_tile], smem.Q.address_beyond(Q_lane, 16 * m_tile, 16 * k_step));
            for (int n = 0; n < n_tiles; n += 2) {
                std::uint32_t K_rmem[4];
                ldmatrix_x4(K_rmem, smem.K.address_beyond(KV_lane, 8 * n, 16 * k_step));
                for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
                    mma_sync_m16n8k16<T>(S[m_tile][n], Q_rmem[m_tile], K_rmem[0], K_rmem[2]);
                    mma_sync_m16n8k16<T>(S[m_tile][n + 1], Q_rmem[m_tile], K_rmem[1], K_rmem[3]);
                }
            }
        }

        // 4. The maxima, and with them the factors of the old l and U.
        float base[m_tiles][2];
        bool large = false;
#pragma unroll
        for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = warp_row + 16 * m_tile + g + 8 * half;
                const Vector<int, 2> keys = smem.keys.load2(row, 0);
                float m_new = m[m_tile][half];
                for (int n = 0; n < n_tiles; ++n) {
                    for (int e = 0; e < 2; ++e) {
                        float& s = S[m_tile][n][2 * half + e];
                        const int j = j0 + 8 * n + 2 * t + e;
                        if constexpr (general) s = modifier.score(s, i0 + row, j);
                        if constexpr (kind == Tile::mixed) {
                            if (j < keys[0] || j >= keys[1]) s = -infinity;
                        }
                        m_new = fmaxf(m_new, s);
                    }
                }
                m_new = fmaxf(m_new, shfl_sync_bfly(m_new, 1));
                m_new = fmaxf(m_new, shfl_sync_bfly(m_new, 2));
                count_rescale();
                const float alpha = ex2_approx_ftz(c * (m[m_tile][half] - exponent_base(m_new)));
                l[m_tile][half] *= alpha;
                for (int n = 0; n < d / 8; ++n) {
                    U[m_tile][n][2 * half] *= alpha;
                    U[m_tile][n][2 * half + 1] *= alpha;
                }
                m[m_tile][half] = m_new;
                base[m_tile][half] = mul_rn(c, exponent_base(m_new));
                large = large || fabsf(base[m_tile][half]) > 4096;  // else 2^r is 1 in 16 bits, and O / 2^r rounds to O
            }
        }
        if (vote_sync_any(large)) {
#pragma unroll
            for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
                for (int n = 0; n < n_tiles; ++n)
                    for (int e = 0; e < 4; ++e) S[m_tile][n][e] -= exponent_base(m[m_tile][e / 2]);
                base[m_tile][0] = base[m_tile][1] = 0;
            }
        }

        // 5. n8 tiles 2k and 2k + 1 of S become the A operand of k16 step k: registers {0, 1} and {2, 3} (mma.h).
        std::uint32_t W_rmem[m_tiles][Bc / 16][4];
#pragma unroll
        for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
#pragma unroll
            for (int n = 0; n < n_tiles; ++n) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float W0 = ex2_approx_ftz(fmaf(c, S[m_tile][n][2 * half], -base[m_tile][half]));
                    float W1 = ex2_approx_ftz(fmaf(c, S[m_tile][n][2 * half + 1], -base[m_tile][half]));
                    l[m_tile][half] += W0 + W1;
                    if constexpr (general) {
                        if (problem.dropout.enabled) {  // the lane's two keys are two words of one draw
                            const int i = i0 + warp_row + 16 * m_tile + g + 8 * half;
                            const Words words = problem.dropout.words(head, i, j0 / 4 + 2 * n + t / 2);
                            W0 = problem.dropout.keeps(t % 2 ? words[2] : words[0]) ? W0 : 0.0f;
                            W1 = problem.dropout.keeps(t % 2 ? words[3] : words[1]) ? W1 : 0.0f;
                        }
                    }
                    W_rmem[m_tile][n / 2][n % 2 * 2 + half] = cvt_rn_x2<T>(W0, W1);
                }
            }
        }

        // 6. Everybody's copies of V have landed, and everybody has left K.
        cp_async_wait_group<0>();
        bar_sync();
        if (kv_tile > kv_tiles.begin) {
            copy_rows<d>(smem.K, K_gmem, j0 - Bc, mask.seen_keys());
            cp_async_commit_group();
        }

        // 7. U += W V.
#pragma unroll
        for (int k_step = 0; k_step < Bc / 16; ++k_step) {
            for (int n = 0; n < d / 8; n += 2) {
                std::uint32_t V_rmem[4];
                ldmatrix_x4_trans(V_rmem, smem.V.address_beyond(KV_lane, 16 * k_step, 8 * n));
                for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
                    mma_sync_m16n8k16<T>(U[m_tile][n], W_rmem[m_tile][k_step], V_rmem[0], V_rmem[1]);
                    mma_sync_m16n8k16<T>(U[m_tile][n + 1], W_rmem[m_tile][k_step], V_rmem[2], V_rmem[3]);
                }
            }
        }
    };

    // 1.
    if (threadIdx.x < Br) {
        const Range keys = mask.keys(i0 + threadIdx.x);
        smem.keys.store(threadIdx.x, 0, Vector<int, 2>{keys.begin, keys.end});
    }
    if (!kv_tiles.empty()) {
        copy_rows<d>(smem.Q, Q_gmem, i0, mask.seeing_queries());
        copy_rows<d>(smem.K, K_gmem, (kv_tiles.end - 1) * Bc, mask.seen_keys());
        cp_async_commit_group();
    }
    for (int kv_tile = kv_tiles.end - 1; kv_tile >= kv_tiles.begin;) {
        for (; kv_tile >= kv_tiles.begin && !full_tiles.contains(kv_tile); --kv_tile)
            take.template operator()<Tile::mixed>(kv_tile);
        for (; full_tiles.contains(kv_tile); --kv_tile) take.template operator()<Tile::full>(kv_tile);
    }

    // 8. Only this warp has read these rows of Q, and a barrier lies behind it. A query that saw no key has l = 0: O = 0.
    // Kept weights count 1 / (1 - p) times: here, where nothing overflows.
    const float kept = general && problem.dropout.enabled ? problem.dropout.scale : 1.0f;
#pragma unroll
    for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = warp_row + 16 * m_tile + g + 8 * half;
            float sum = l[m_tile][half];
            sum += shfl_sync_bfly(sum, 1);
            sum += shfl_sync_bfly(sum, 2);
            const float factor = kept * inverse_sum(sum);
            for (int n = 0; n < d / 8; ++n) {
                const float* u = &U[m_tile][n][2 * half];
                smem.Q.store_x2(row, 8 * n + 2 * t, cvt_rn_x2<T>(factor * u[0], factor * u[1]));
            }
            if (t == 0 && i0 + row < sequence.Nq) L_gmem(i0 + row) = log_sum_exp(c * m[m_tile][half], sum);
        }
    }
    bar_warp_sync(all_lanes);
    for (int i = lane; i < 16 * m_tiles * (d / 8); i += warp_size) {
        const int row = warp_row + i / (d / 8), column = i % (d / 8) * 8;
        if (i0 + row < sequence.Nq && column < O_gmem.columns)
            O_gmem.store(i0 + row, column, smem.Q.load8(row, column));
    }
}

}  // namespace stage03::c
