// 02b  split_kv: FlashAttention's forward (Dao et al. 2022, Algorithm 1) on tensor cores.
//
// Grid: one CTA of 4 warps for each (sequence, query head). The outer loop walks the key tiles; the inner loop walks the query tiles
// that see the key tile. So a key tile is read once, and the output travels: O (fp32, normalised), m and l of every query are read
// and written again for each key tile. And there are B Hq CTAs, whatever N is: few heads leave most of the GPU idle. 03 mends both
// by turning the loops inside out.
//
// Split KV: inside a tile each warp owns Bc / 4 keys and all Br queries, so each warp has a partial state (m, l, U) of every query.
// The four and the old one become one by the merge rule of the notes,
//     m = max m_w,   l = sum_w 2^(m_w - m) l_w,   U = sum_w 2^(m_w - m) U_w,   O = U / l,
// for which every U_w (Br x d, fp32) goes through shared memory. 03 splits the queries over the warps instead and merges nothing.
//
// On chip, d = 128 (d = 64):  K, V 128 x d, 64 KiB (32);  Q 2 x Br x d, 8 KiB (8);  U 4 x Br x (d + 8) fp32, 34 KiB (36).
//                             In all 107 KiB (77): two CTAs an SM on compute capability 9.0, one (two) on 8.0.
// A tile: 4 Br Bc d FLOPs on tensor cores. Global memory, in bytes: Q 2 Br d read, O 4 Br d read and 4 Br d written, m and l.
//
// For each key tile:
//   1. copy K, V and the first Q to shared memory
//   For each query tile:
//     2. wait for Q; start the copy of the next one; fetch the queries' old O, m, l
//     3. S = Q K^T, this warp's keys
//     4. mask; m_w, W = 2^(S - m_w), l_w; dropout of W
//     5. U_w = W V  (W goes from accumulator to operand registers in place)
//     6. m_w, l_w, U_w to shared memory
//     7. one thread a query: merge the states; the factor of each U_w and of the old O
//     8. O = sum of the five, to global memory; after the last key tile as 16 bit, with L
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage02::b {

using namespace attention;
using namespace gpu;

constexpr int warps = 4;
constexpr int threads = warps * warp_size;

constexpr int Br(int d) { return 2048 / d; }  // 32 queries for d = 64, 16 for d = 128: U_w takes 64 registers
constexpr int Bc = 128;
constexpr int warp_keys = Bc / warps;

template <class T, int d>
struct Shared {
    SharedTile<T, Bc, d, Swizzle::xor_8> K, V;
    SharedTile<T, Br(d), d, Swizzle::xor_8> Q[2];
    SharedTile<float, Br(d), d + 8> U[warps];    // padded: the 8-byte stores of a half-warp hit 32 different banks
    SharedTile<float, warps, Br(d)> m, l;        // each warp's state
    SharedTile<float, warps + 1, Br(d)> factor;  // of each U_w, and of the old O
};

/// Starts the copy of rows first ... first + rows - 1 to shared memory. Rows outside `kept` become zeros: no key or
/// query beyond the mask, not even a NaN, may reach a product.
template <class T, int rows, int d>
__device__ inline void copy_rows(SharedTile<T, rows, d, Swizzle::xor_8>& tile, const Matrix<const T>& source, int first,
                                 Range kept) {
    constexpr int chunk = 16 / sizeof(T), chunks = d / chunk;
#pragma unroll 1  // unrolled, its addresses would take the registers that the products need
    for (int i = threadIdx.x; i < rows * chunks; i += threads) {
        const int row = i / chunks, column = i % chunks * chunk;
        cp_async_cg_16(tile.address(row, column), source, first + row, column, kept.contains(first + row) ? 16 : 0);
    }
}

/// O_old: fp32 (queries x d); m_old, l_old: one value a query. All three are scratch between key tiles.
template <class T, int d, bool with_dropout>
__global__ void __launch_bounds__(threads)
    forward(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<const T> V, Tensor<T> O,
            Tensor<float> L, Tensor<float> O_old, Tensor<float> m_old, Tensor<float> l_old) {
    constexpr int Br = b::Br(d);
    constexpr int m_tiles = Br / 16, n_tiles = warp_keys / 8, k_steps = d / 16;
    auto& smem = shared_memory<Shared<T, d>>();

    const int h = blockIdx.x % problem.Hq;
    const Sequence sequence = problem.sequence(blockIdx.x / problem.Hq);
    const Mask mask = problem.mask(sequence);
    const float scale_log2 = problem.scale * log2_e;

    const auto Q_gmem = sequence.queries(Q, h);
    const auto K_gmem = sequence.keys(K, problem.kv_head(h));
    const auto V_gmem = sequence.keys(V, problem.kv_head(h));
    const auto O_gmem = sequence.queries(O, h);
    const auto L_gmem = sequence.queries(L, h);
    const auto O_old_gmem = sequence.queries(O_old, h);
    const auto m_old_gmem = sequence.queries(m_old, h);
    const auto l_old_gmem = sequence.queries(l_old, h);

    const int lane = lane_id(), warp = warp_id();
    const int g = lane / 4, t = lane % 4;   // of fragments: row g, columns 2t and 2t + 1 (mma.h)
    const int warp_key = warp * warp_keys;  // this warp's first key within a tile

    // For the merge (8.) a thread owns four columns of every rows_at_once-th query of a tile.
    constexpr int rows_at_once = threads / (d / 4), merge_steps = Br / rows_at_once;
    const int merge_row = threadIdx.x / (d / 4), merge_column = threadIdx.x % (d / 4) * 4;

    // Queries outside every key tile's loop: they see no key.
    for (int i0 = 0; i0 < sequence.Nq; i0 += Br) {
        if (!mask.key_tiles(i0, Br, Bc).empty()) continue;
        for (int row = i0 + merge_row; row < i0 + Br && row < sequence.Nq; row += rows_at_once) {
            O_gmem.store(row, merge_column, Vector<T, 4>{});
            if (merge_column == 0) L_gmem(row) = -infinity;
        }
    }

    for (int kv_tile = 0; kv_tile < ceil_div(sequence.Nk, Bc); ++kv_tile) {
        const int j0 = kv_tile * Bc;
        const Range q_tiles = mask.query_tiles(j0, Bc, Br);
        if (q_tiles.empty()) continue;

        // 1. K, V and the first Q on their way. The last tile's readers are past its barrier in 7.
        copy_rows(smem.K, K_gmem, j0, mask.seen_keys());
        copy_rows(smem.V, V_gmem, j0, mask.seen_keys());
        copy_rows(smem.Q[q_tiles.begin % 2], Q_gmem, q_tiles.begin * Br, mask.seeing_queries());
        cp_async_commit_group();

        for (int q_tile = q_tiles.begin; q_tile < q_tiles.end; ++q_tile) {
            const int i0 = q_tile * Br;
            const Range kv_tiles = mask.key_tiles(i0, Br, Bc);
            const bool first = kv_tile == kv_tiles.begin, last = kv_tile + 1 == kv_tiles.end;

            // 2. Everybody's copies have landed, and everybody has left the last tile's U.
            cp_async_wait_group<0>();
            bar_sync();
            if (q_tile + 1 < q_tiles.end) {
                copy_rows(smem.Q[(q_tile + 1) % 2], Q_gmem, i0 + Br, mask.seeing_queries());
                cp_async_commit_group();
            }
            Vector<float, 4> O_rmem[merge_steps] = {};
            float m_rmem = -infinity, l_rmem = 0;
            if (!first) {
                for (int step = 0; step < merge_steps; ++step) {
                    const int row = i0 + merge_row + step * rows_at_once;
                    if (row < sequence.Nq) O_rmem[step] = O_old_gmem.load4(row, merge_column);
                }
                if (threadIdx.x < Br && i0 + int(threadIdx.x) < sequence.Nq) {
                    m_rmem = m_old_gmem(i0 + threadIdx.x);
                    l_rmem = l_old_gmem(i0 + threadIdx.x);
                }
            }

            // 3. S = Q K^T.
            float S[m_tiles][n_tiles][4] = {};
            for (int k_step = 0; k_step < k_steps; ++k_step) {
                std::uint32_t Q_rmem[m_tiles][4];
                for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
                    const int row = 16 * m_tile + lane % 16;
                    ldmatrix_x4(Q_rmem[m_tile], smem.Q[q_tile % 2].address(row, 16 * k_step + 8 * (lane / 16)));
                }
                for (int n = 0; n < n_tiles; n += 2) {
                    const int key = warp_key + 8 * n + lane % 8 + 8 * (lane / 16);
                    std::uint32_t K_rmem[4];
                    ldmatrix_x4(K_rmem, smem.K.address(key, 16 * k_step + 8 * (lane / 8 % 2)));
                    for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
                        mma_sync_m16n8k16<T>(S[m_tile][n], Q_rmem[m_tile], K_rmem[0], K_rmem[1]);
                        mma_sync_m16n8k16<T>(S[m_tile][n + 1], Q_rmem[m_tile], K_rmem[2], K_rmem[3]);
                    }
                }
            }

            // 4. This warp's state of the queries. A lane holds two of them in each m_tile, and a quarter of their keys.
            // n8 tiles 2k and 2k + 1 of S become the A operand of k16 step k: registers {0, 1} and {2, 3} (mma.h).
            const bool mixed = mask.classify(i0, Br, j0, Bc) != Tile::full;
            std::uint32_t W_rmem[m_tiles][warp_keys / 16][4];
#pragma unroll
            for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int row = 16 * m_tile + g + 8 * half;
                    const Range keys = mask.keys(i0 + row);
                    float m_w = -infinity, l_w = 0;
                    for (int n = 0; n < n_tiles; ++n) {
                        for (int c = 0; c < 2; ++c) {
                            float& s = S[m_tile][n][2 * half + c];
                            const bool hidden = mixed && !keys.contains(j0 + warp_key + 8 * n + 2 * t + c);
                            s = hidden ? -infinity : mul_rn(s, scale_log2);
                            m_w = fmaxf(m_w, s);
                        }
                    }
                    m_w = fmaxf(m_w, shfl_sync_bfly(m_w, 1));
                    m_w = fmaxf(m_w, shfl_sync_bfly(m_w, 2));
                    for (int n = 0; n < n_tiles; ++n) {
                        float W0 = weight(S[m_tile][n][2 * half], m_w);
                        float W1 = weight(S[m_tile][n][2 * half + 1], m_w);
                        l_w += W0 + W1;
                        if constexpr (with_dropout) {  // the lane's two keys are two words of one draw
                            const Words words =
                                problem.dropout.words(blockIdx.x, i0 + row, (j0 + warp_key) / 4 + 2 * n + t / 2);
                            W0 = problem.dropout.keeps(t % 2 ? words[2] : words[0]) ? W0 : 0.0f;
                            W1 = problem.dropout.keeps(t % 2 ? words[3] : words[1]) ? W1 : 0.0f;
                        }
                        W_rmem[m_tile][n / 2][n % 2 * 2 + half] = cvt_rn_x2<T>(W0, W1);
                    }
                    l_w += shfl_sync_bfly(l_w, 1);
                    l_w += shfl_sync_bfly(l_w, 2);
                    if (t == 0) {
                        smem.m(warp, row) = m_w;
                        smem.l(warp, row) = l_w;
                    }
                }
            }

            // 5. U_w = W V.
            float U[m_tiles][d / 8][4] = {};
            for (int k_step = 0; k_step < warp_keys / 16; ++k_step) {
                for (int n = 0; n < d / 8; n += 2) {
                    const int key = warp_key + 16 * k_step + lane % 16;
                    std::uint32_t V_rmem[4];
                    ldmatrix_x4_trans(V_rmem, smem.V.address(key, 8 * n + 8 * (lane / 16)));
                    for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
                        mma_sync_m16n8k16<T>(U[m_tile][n], W_rmem[m_tile][k_step], V_rmem[0], V_rmem[1]);
                        mma_sync_m16n8k16<T>(U[m_tile][n + 1], W_rmem[m_tile][k_step], V_rmem[2], V_rmem[3]);
                    }
                }
            }

            // 6. U_w where every thread can read it. Kept weights count 1 / (1 - p) times: here, where nothing overflows.
            const float kept = with_dropout ? problem.dropout.scale : 1.0f;
#pragma unroll
            for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
                for (int n = 0; n < d / 8; ++n) {
                    const float(&u)[4] = U[m_tile][n];
                    smem.U[warp].store(16 * m_tile + g, 8 * n + 2 * t, Vector<float, 2>{kept * u[0], kept * u[1]});
                    smem.U[warp].store(16 * m_tile + g + 8, 8 * n + 2 * t, Vector<float, 2>{kept * u[2], kept * u[3]});
                }
            }
            bar_sync();

            // 7. l = sum_w 2^(m_w - m) l_w, the old state being one of them; factor_w = 2^(m_w - m) / l.
            if (threadIdx.x < Br) {
                const int row = threadIdx.x;
                float m = m_rmem;
                for (int w = 0; w < warps; ++w) m = fmaxf(m, smem.m(w, row));
                float factor[warps + 1], l = 0;
                for (int w = 0; w < warps; ++w) {
                    factor[w] = rescale_factor(smem.m(w, row), m);
                    l += factor[w] * smem.l(w, row);
                }
                factor[warps] = rescale_factor(m_rmem, m) * l_rmem;  // U_old = l_old O_old
                l += factor[warps];
                for (int w = 0; w <= warps; ++w) smem.factor(w, row) = factor[w] * inverse_sum(l);
                if (i0 + row < sequence.Nq) {
                    if (last) {
                        L_gmem(i0 + row) = log_sum_exp(m, l);
                    } else {
                        m_old_gmem(i0 + row) = m;
                        l_old_gmem(i0 + row) = l;
                    }
                }
            }
            bar_sync();

            // 8. O = sum_w factor_w U_w + factor_old O_old.
            for (int step = 0; step < merge_steps; ++step) {
                const int row = merge_row + step * rows_at_once;
                if (i0 + row >= sequence.Nq) continue;
                Vector<float, 4> o = O_rmem[step];
                const float factor_old = smem.factor(warps, row);
                for (int c = 0; c < 4; ++c) o[c] *= factor_old;
                for (int w = 0; w < warps; ++w) {
                    const Vector<float, 4> u = smem.U[w].load4(row, merge_column);
                    const float factor = smem.factor(w, row);
                    for (int c = 0; c < 4; ++c) o[c] += factor * u[c];
                }
                if (last) {
                    O_gmem.store(i0 + row, merge_column, cvt_rn<T>(o));
                } else {
                    O_old_gmem.store(i0 + row, merge_column, o);
                }
            }
        }
    }
}

}  // namespace stage02::b
