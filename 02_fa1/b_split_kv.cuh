// 02b  split_kv: FlashAttention's forward (Dao et al. 2022, Algorithm 1) on tensor cores. A restart: of 02a only the loops are left.
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
// Each warp merges, and owns, a quarter of the columns of O. Shared memory carries accumulators as they lie in registers: a lane
// reads what the same lane of another warp wrote, 16 bytes at a time. So does O on its way to global memory and back, which nobody
// else reads: only after the last key tile it becomes rows and columns.
//
// On chip, d = 128 (d = 64):  K, V 128 x d, 64 KiB (32);  Q 32 x d, 8 KiB (4);  U 4 x 32 x 64 fp32, 32 KiB, 64 columns at a time.
//                             In all 106 KiB (70): two CTAs an SM on compute capability 9.0, one (two) on 8.0.
// A tile: 4 Br Bc d FLOPs on tensor cores. Global memory, in bytes: Q 2 Br d read, O 4 Br d read and 4 Br d written, m and l.
//
// For each key tile:
//   1. copy K, V and the first Q to shared memory
//   For each query tile:
//     2. wait for Q; fetch the queries' old O, m, l
//     3. S = Q K^T, this warp's keys
//     4. mask; m_w, W = 2^(S - m_w), l_w; dropout of W;  m_w, l_w to shared memory; then start the copy of the next Q
//     5. one thread a query: merge m and l; the factor of each U_w and of the old O
//     For each 64 columns:
//       6. U_w = W V  (W went from accumulator to operand registers in place), to shared memory
//       7. O = sum of the five, in the columns that this warp owns
//     8. O to global memory; after the last key tile as 16 bit, with L
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage02::b {

using namespace attention;
using namespace gpu;

constexpr int warps = 4;
constexpr int threads = warps * warp_size;

constexpr int Br = 32;
constexpr int Bc = 128;
constexpr int warp_keys = Bc / warps;
constexpr int columns = 64;  // of U_w at a time: 64 registers of a thread
constexpr int warp_columns = columns / warps;

constexpr int warp_n_tiles = warp_columns / 8;

/// What a lane holds of 16 x 8 values: rows g and g + 8, columns 2t and 2t + 1 (mma.h).
using Fragment = Vector<float, 4>;
constexpr int warp_fragments = Br / 16 * warp_n_tiles;  // of the columns that a warp owns

template <class T, int d>
struct Shared {
    SharedTile<T, Bc, d, Swizzle::xor_8> K, V;
    SharedTile<T, Br, d, Swizzle::xor_8> Q;
    // U[owner][source]: a row is one fragment of each lane.
    SharedTile<float, warp_fragments, 4 * warp_size> U[warps][warps];
    SharedTile<float, warps, Br> m, l;    // each warp's state
    SharedTile<float, Br, warps> factor;  // of each U_w
    SharedArray<float, Br> factor_old;
};

/// Starts the copy of rows first ... first + rows - 1 to shared memory. Rows outside `kept` become zeros: no key or
/// query beyond the mask, not even a NaN, may reach a product.
template <class T, int rows, int d>
__device__ inline void copy_rows(SharedTile<T, rows, d, Swizzle::xor_8>& tile, const Matrix<const T>& source, int first,
                                 Range kept) {
    constexpr int chunk = 16 / sizeof(T), chunks = d / chunk;
    for (int row = threadIdx.x / chunks; row < rows; row += threads / chunks) {
        const int column = threadIdx.x % chunks * chunk;
        cp_async_cg_16(tile.address(row, column), source, first + row, column, kept.contains(first + row) ? 16 : 0);
    }
}

/// O_old: fp32, a matrix for each CTA, a row for each query tile; m_old, l_old: one value a query. All three are scratch between key
/// tiles.
template <class T, int d, bool with_dropout>
__global__ void __launch_bounds__(threads, 2)
    forward(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<const T> V, Tensor<T> O,
            Tensor<float> L, Tensor<float> O_old, Tensor<float> m_old, Tensor<float> l_old) {
    constexpr int m_tiles = Br / 16, n_tiles = warp_keys / 8, k_steps = d / 16;
    constexpr int O_fragments = d / columns * warp_fragments;  // 64 columns after 64 columns
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
    const auto O_old_gmem = O_old.matrix(0, blockIdx.x, 0, ceil_div(sequence.Nq, Br));
    const auto m_old_gmem = sequence.queries(m_old, h);
    const auto l_old_gmem = sequence.queries(l_old, h);

    const int lane = lane_id(), warp = warp_id();
    const int g = lane / 4, t = lane % 4;   // of fragments: row g, columns 2t and 2t + 1 (mma.h)
    const int warp_key = warp * warp_keys;  // this warp's first key within a tile

    // Queries outside every key tile's loop: they see no key.
    for (int i0 = 0; i0 < sequence.Nq; i0 += Br) {
        if (!mask.key_tiles(i0, Br, Bc).empty()) continue;
        for (int i = threadIdx.x; i < Br * d / 8; i += threads) {
            const int row = i0 + i / (d / 8);
            if (row >= sequence.Nq) break;
            O_gmem.store(row, i % (d / 8) * 8, Vector<T, 8>{});
            if (i % (d / 8) == 0) L_gmem(row) = -infinity;
        }
    }

    for (int kv_tile = 0; kv_tile < ceil_div(sequence.Nk, Bc); ++kv_tile) {
        const int j0 = kv_tile * Bc;
        const Range q_tiles = mask.query_tiles(j0, Bc, Br);
        if (q_tiles.empty()) continue;

        // 1. K, V and the first Q on their way. The last tile's readers are past a barrier in 6.
        copy_rows(smem.K, K_gmem, j0, mask.seen_keys());
        copy_rows(smem.V, V_gmem, j0, mask.seen_keys());
        copy_rows(smem.Q, Q_gmem, q_tiles.begin * Br, mask.seeing_queries());
        cp_async_commit_group();

        for (int q_tile = q_tiles.begin; q_tile < q_tiles.end; ++q_tile) {
            const int i0 = q_tile * Br;
            const Range kv_tiles = mask.key_tiles(i0, Br, Bc);
            const bool first = kv_tile == kv_tiles.begin, last = kv_tile + 1 == kv_tiles.end;

            // 2. Everybody's copies have landed, and everybody has left the last tile's U and factors.
            cp_async_wait_group<0>();
            bar_sync();
            Fragment O_rmem[O_fragments] = {};
            float m_rmem = -infinity, l_rmem = 0;
            if (!first) {
                for (int i = 0; i < O_fragments; ++i) {
                    O_rmem[i] = O_old_gmem.load4(q_tile, 4 * (threads * i + threadIdx.x));
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
                    ldmatrix_x4(Q_rmem[m_tile], smem.Q.address(row, 16 * k_step + 8 * (lane / 16)));
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
            for (auto& row_of_tiles : S) {
                for (auto& fragment : row_of_tiles) {
                    for (float& s : fragment) s = mul_rn(s, scale_log2);
                }
            }
            if (mask.classify(i0, Br, j0, Bc) != Tile::full) {
#pragma unroll
                for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
                    for (int c = 0; c < 4; ++c) {
                        const Range keys = mask.keys(i0 + 16 * m_tile + g + c / 2 * 8);
                        for (int n = 0; n < n_tiles; ++n) {
                            const bool visible = keys.contains(j0 + warp_key + 8 * n + 2 * t + c % 2);
                            if (!visible) S[m_tile][n][c] = -infinity;
                        }
                    }
                }
            }
            std::uint32_t W_rmem[m_tiles][warp_keys / 16][4];
#pragma unroll
            for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int row = 16 * m_tile + g + 8 * half;
                    float m_w = -infinity, l_w = 0;
                    for (int n = 0; n < n_tiles; ++n) {
                        m_w = fmaxf(m_w, fmaxf(S[m_tile][n][2 * half], S[m_tile][n][2 * half + 1]));
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

            bar_sync();
            if (q_tile + 1 < q_tiles.end) {
                copy_rows(smem.Q, Q_gmem, i0 + Br, mask.seeing_queries());
                cp_async_commit_group();
            }

            // 5. l = sum_w 2^(m_w - m) l_w, the old state being one of them; factor_w = 2^(m_w - m) / l. The other warps go on.
            if (threadIdx.x < Br) {
                const int row = threadIdx.x;
                float m = m_rmem;
                for (int w = 0; w < warps; ++w) m = fmaxf(m, smem.m(w, row));
                const float factor_old = rescale_factor(m_rmem, m) * l_rmem;  // U_old = l_old O_old
                float factor[warps], l = factor_old;
                for (int w = 0; w < warps; ++w) {
                    factor[w] = rescale_factor(smem.m(w, row), m);
                    l += factor[w] * smem.l(w, row);
                }
                for (int w = 0; w < warps; ++w) smem.factor(row, w) = factor[w] * inverse_sum(l);
                smem.factor_old(row) = factor_old * inverse_sum(l);
                if (i0 + row < sequence.Nq) {
                    if (last) {
                        L_gmem(i0 + row) = log_sum_exp(m, l);
                    } else {
                        m_old_gmem(i0 + row) = m;
                        l_old_gmem(i0 + row) = l;
                    }
                }
            }

            // Kept weights count 1 / (1 - p) times: in 7, where nothing overflows.
            const float kept = with_dropout ? problem.dropout.scale : 1.0f;
            constexpr int rows = Br / 8;  // of a lane: g + 8 row
            Vector<float, warps> factor[rows];
            float factor_old[rows];
#pragma unroll
            for (int k = 0; k < d / columns; ++k) {
                // 6. U_w = W V, as fragments where their owners find them.
                float U[m_tiles][columns / 8][4] = {};
                for (int k_step = 0; k_step < warp_keys / 16; ++k_step) {
                    const int key = warp_key + 16 * k_step + lane % 16;
                    for (int n = 0; n < columns / 8; n += 2) {
                        std::uint32_t V_rmem[4];
                        ldmatrix_x4_trans(V_rmem, smem.V.address(key, columns * k + 8 * n + 8 * (lane / 16)));
                        for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
                            mma_sync_m16n8k16<T>(U[m_tile][n], W_rmem[m_tile][k_step], V_rmem[0], V_rmem[1]);
                            mma_sync_m16n8k16<T>(U[m_tile][n + 1], W_rmem[m_tile][k_step], V_rmem[2], V_rmem[3]);
                        }
                    }
                }
                if (k > 0) bar_sync();  // everybody has left the last columns' U
#pragma unroll
                for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
#pragma unroll
                    for (int n = 0; n < columns / 8; ++n) {
                        const float(&u)[4] = U[m_tile][n];
                        const int owner = n / warp_n_tiles, fragment = m_tile * warp_n_tiles + n % warp_n_tiles;
                        smem.U[owner][warp].store(fragment, 4 * lane, Fragment{u[0], u[1], u[2], u[3]});
                    }
                }
                bar_sync();

                // 7. O = sum_w factor_w U_w + factor_old O_old.
                if (k == 0) {
#pragma unroll
                    for (int row = 0; row < rows; ++row) {
                        factor[row] = smem.factor.load4(g + 8 * row, 0);
                        factor_old[row] = smem.factor_old(g + 8 * row);
                    }
                }
#pragma unroll
                for (int i = 0; i < warp_fragments; ++i) {
                    Fragment& o = O_rmem[k * warp_fragments + i];
                    const int row = i / warp_n_tiles * 2;
                    for (int c = 0; c < 4; ++c) o[c] *= factor_old[row + c / 2];
                    for (int w = 0; w < warps; ++w) {
                        const Fragment u = smem.U[warp][w].load4(i, 4 * lane);
                        for (int c = 0; c < 4; ++c) o[c] += kept * factor[row + c / 2][w] * u[c];
                    }
                }
            }

            // 8. O to global memory, as it lies in registers or, at last, as a matrix.
#pragma unroll
            for (int i = 0; i < O_fragments; ++i) {
                const Fragment& o = O_rmem[i];
                if (!last) {
                    O_old_gmem.store(q_tile, 4 * (threads * i + threadIdx.x), o);
                    continue;
                }
                const int row = i0 + 16 * (i % warp_fragments / warp_n_tiles) + g;
                const int column = i / warp_fragments * columns + warp_columns * warp + 8 * (i % warp_n_tiles) + 2 * t;
                if (row < sequence.Nq) O_gmem.store(row, column, cvt_rn<T>(Vector<float, 2>{o[0], o[1]}));
                if (row + 8 < sequence.Nq) O_gmem.store(row + 8, column, cvt_rn<T>(Vector<float, 2>{o[2], o[3]}));
            }
        }
    }
}

}  // namespace stage02::b
