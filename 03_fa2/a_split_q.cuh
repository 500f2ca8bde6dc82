// 03a  split_q: FlashAttention-2's forward (Dao 2023), the notes' Algorithm 1.
//
// Grid: one CTA of 4 warps for each (tile of Br queries, query head, sequence). The loops of 02b are turned inside out: the queries
// of a CTA stay, the key tiles walk by. So m, l and U stay in registers from the first key to the last, O is written once, and CTAs
// need nothing of each other: a long sequence fills the GPU by itself. What it costs: K and V are read once for every query tile.
//
// Split Q: inside a tile each warp owns 16 queries and takes all Bc keys, which the warps share. Softmax, U and O of a query stay
// in one warp; nothing is merged. W goes from the accumulators of S to the A operand of W V without leaving its lanes.
//
// Late normalisation: U is divided by l once, at the end, not in every key tile.
//
// On chip, d = 128 (d = 64):  Q, K, V 64 x (d + 8), 51 KiB (27).  Registers of a lane: U d / 2, S 32, W 16.
// A tile: 4 Br Bc d FLOPs on tensor cores; K and V, 4 Bc d bytes of global memory, each byte used by Br queries.
//
//   1. Q to shared memory
//   For each key tile that some query of the tile sees:
//     2. K, V to shared memory; everybody waits
//     3. S = Q K^T, this warp's queries
//     4. modifiers; mask; m' = max(m, rowmax S), alpha = 2^(m - m'), W = 2^(S - m'), l = alpha l + rowsum W; dropout of W
//     5. U = alpha U + W V
//   6. O = U / l, L = m + log l
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/score.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage03::a {

using namespace attention;
using namespace gpu;

constexpr int warps = 4;
constexpr int threads = warps * warp_size;
constexpr int Br = 16 * warps;
constexpr int Bc(int d) { return d <= 192 ? 64 : 32; }

/// Rows are padded by 16 bytes: the eight rows that ldmatrix reads at once lie in different banks.
template <class T, int d>
struct Shared {
    SharedTile<T, Br, d + 8> Q;
    SharedTile<T, Bc(d), d + 8> K, V;
};

/// Copies rows first ... first + rows - 1 to shared memory, 16 bytes at a time. Rows outside `kept` become zeros (no key or query
/// beyond the mask, not even a NaN, may reach a product), and so do columns beyond the head dimension.
template <int d, class T, int rows>
__device__ inline void copy_rows(SharedTile<T, rows, d + 8>& tile, const Matrix<const T>& source, int first,
                                 Range kept) {
    constexpr int chunks = d / 8;
    for (int i = threadIdx.x; i < rows * chunks; i += threads) {
        const int row = i / chunks, column = i % chunks * 8;
        const bool present = kept.contains(first + row) && column < source.columns;
        tile.store(row, column, present ? source.load8(first + row, column) : Vector<T, 8>{});
    }
}

/// d: the problem's head dimension, or more: then the columns beyond it are zeros. modified: softcap or ALiBi (score.h).
template <class T, int d, bool modified>
__global__ void __launch_bounds__(threads) forward(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K,
                                                   Tensor<const T> V, Tensor<T> O, Tensor<float> L) {
    constexpr int Bc = a::Bc(d), n_tiles = Bc / 8;
    auto& smem = shared_memory<Shared<T, d>>();

    const int heads = problem.B * problem.Hq, head = blockIdx.x % heads, h = head % problem.Hq;
    const int i0 = blockIdx.x / heads * Br;
    const Sequence sequence = problem.sequence(head / problem.Hq);
    if (i0 >= sequence.Nq) return;
    const Mask mask = problem.mask(sequence);
    const Range kv_tiles = mask.key_tiles(i0, Br, Bc);
    const ScoreModifier<modified> modifier(problem, sequence, h);

    const auto Q_gmem = sequence.queries(Q, h);
    const auto K_gmem = sequence.keys(K, problem.kv_head(h));
    const auto V_gmem = sequence.keys(V, problem.kv_head(h));
    const auto O_gmem = sequence.queries(O, h);
    const auto L_gmem = sequence.queries(L, h);

    const int lane = lane_id(), warp_row = 16 * warp_id();  // this warp's first query within the tile
    const int g = lane / 4, t = lane % 4;                   // of fragments: row g, columns 2t and 2t + 1 (mma.h)

    // 1. The barrier in 2. makes it visible.
    copy_rows<d>(smem.Q, Q_gmem, i0, mask.seeing_queries());

    // A lane holds queries g and g + 8 of its warp: all of m and l, and two of every eight columns of U.
    float m[2] = {-infinity, -infinity}, l[2] = {}, U[d / 8][4] = {};

    for (int kv_tile = kv_tiles.begin; kv_tile < kv_tiles.end; ++kv_tile) {
        const int j0 = kv_tile * Bc;

        // 2. Not before everybody has left the last K and V.
        bar_sync();
        copy_rows<d>(smem.K, K_gmem, j0, mask.seen_keys());
        copy_rows<d>(smem.V, V_gmem, j0, mask.seen_keys());
        bar_sync();

        // 3. S = Q K^T.
        float S[n_tiles][4] = {};
        for (int k_step = 0; k_step < d / 16; ++k_step) {
            std::uint32_t Q_rmem[4];
            ldmatrix_x4(Q_rmem, smem.Q.address(warp_row + lane % 16, 16 * k_step + 8 * (lane / 16)));
            for (int n = 0; n < n_tiles; n += 2) {
                std::uint32_t K_rmem[4];
                ldmatrix_x4(K_rmem,
                            smem.K.address(8 * n + lane % 8 + 8 * (lane / 16), 16 * k_step + 8 * (lane / 8 % 2)));
                mma_sync_m16n8k16<T>(S[n], Q_rmem, K_rmem[0], K_rmem[1]);
                mma_sync_m16n8k16<T>(S[n + 1], Q_rmem, K_rmem[2], K_rmem[3]);
            }
        }

        // 4. n8 tiles 2k and 2k + 1 of S become the A operand of k16 step k: registers {0, 1} and {2, 3} (mma.h).
        const bool mixed = mask.classify(i0, Br, j0, Bc) != Tile::full;
        std::uint32_t W_rmem[Bc / 16][4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = i0 + warp_row + g + 8 * half;
            const Range keys = mask.keys(i);
            float m_new = m[half];
            for (int n = 0; n < n_tiles; ++n) {
                for (int c = 0; c < 2; ++c) {
                    float& s = S[n][2 * half + c];
                    const int j = j0 + 8 * n + 2 * t + c;
                    s = mixed && !keys.contains(j) ? -infinity : modifier.score(s, i, j);
                    m_new = fmaxf(m_new, s);
                }
            }
            m_new = fmaxf(m_new, shfl_sync_bfly(m_new, 1));
            m_new = fmaxf(m_new, shfl_sync_bfly(m_new, 2));

            float row_sum = 0;
            for (int n = 0; n < n_tiles; ++n) {
                float W0 = weight(S[n][2 * half], m_new), W1 = weight(S[n][2 * half + 1], m_new);
                row_sum += W0 + W1;
                if (problem.dropout.enabled) {  // the lane's two keys are two words of one draw
                    const Words words = problem.dropout.words(head, i, j0 / 4 + 2 * n + t / 2);
                    W0 = problem.dropout.keeps(t % 2 ? words[2] : words[0]) ? W0 : 0.0f;
                    W1 = problem.dropout.keeps(t % 2 ? words[3] : words[1]) ? W1 : 0.0f;
                }
                W_rmem[n / 2][n % 2 * 2 + half] = cvt_rn_x2<T>(W0, W1);
            }
            row_sum += shfl_sync_bfly(row_sum, 1);
            row_sum += shfl_sync_bfly(row_sum, 2);

            const float alpha = rescale_factor(m[half], m_new);
            l[half] = alpha * l[half] + row_sum;
            for (int n = 0; n < d / 8; ++n) {
                U[n][2 * half] *= alpha;
                U[n][2 * half + 1] *= alpha;
            }
            m[half] = m_new;
        }

        // 5. U += W V.
        for (int k_step = 0; k_step < Bc / 16; ++k_step) {
            for (int n = 0; n < d / 8; n += 2) {
                std::uint32_t V_rmem[4];
                ldmatrix_x4_trans(V_rmem, smem.V.address(16 * k_step + lane % 16, 8 * n + 8 * (lane / 16)));
                mma_sync_m16n8k16<T>(U[n], W_rmem[k_step], V_rmem[0], V_rmem[1]);
                mma_sync_m16n8k16<T>(U[n + 1], W_rmem[k_step], V_rmem[2], V_rmem[3]);
            }
        }
    }

    // 6. Kept weights count 1 / (1 - p) times: here, where nothing overflows. A query that saw no key has l = 0: O = 0.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int i = i0 + warp_row + g + 8 * half;
        if (i >= sequence.Nq) continue;
        const float factor = inverse_sum(l[half]) * (problem.dropout.enabled ? problem.dropout.scale : 1.0f);
        for (int n = 0; n < d / 8; ++n) {
            const Vector<float, 2> o = {factor * U[n][2 * half], factor * U[n][2 * half + 1]};
            if (8 * n < O_gmem.columns) O_gmem.store(i, 8 * n + 2 * t, cvt_rn<T>(o));
        }
        if (t == 0) L_gmem(i) = log_sum_exp(m[half], l[half]);
    }
}

}  // namespace stage03::a
