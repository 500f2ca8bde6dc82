// 03b  folded: 03a with each score cut down to what it needs.
//
// For each score: one maximum, one FMA, one ex2, one addition. m is in units of q . k; with c = scale log2(e) and base = c m, rounded,
// a weight is 2^(c s - base), c s - base rounded once. So all weights of a tile are too large by one factor 2^r, |r| <= 2^-24 |base|:
// close to 1, and l shares it, until |base| is large. Then s - m comes first.
// l stays a sum of each lane's own weights until the end, since alpha is the same for all four lanes of a query.
//
// Key tiles are walked from the last to the first. Mixed ones (the diagonal, the ends of a window, the last keys) lie at either end of
// the walk; the loop between them knows no mask.
// Grid and memory: as 03a, but for d <= 64 a warp owns 32 queries, so that each fragment of K and V serves two products. For larger d
// the copies, which pass through registers, leave too few of them.
//
//   1. Q to shared memory
//   For each key tile that some query of the tile sees, from the last to the first:
//     2. K, V to shared memory; everybody waits
//     3. S = Q K^T
//     4. mask (mixed tiles); m' = max(m, rowmax S), alpha = 2^(c m - c m'), l = alpha l, U = alpha U
//     5. W = 2^(c S - c m'), l += W; dropout of W
//     6. U += W V
//   7. O = U / l, L = c m + log l
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/score.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage03::b {

using namespace attention;
using namespace gpu;

constexpr int warps = 4;
constexpr int threads = warps * warp_size;

constexpr int Br(int d, bool general) { return d <= 64 && !general ? 128 : 64; }
constexpr int Bc(int d) { return d <= 192 ? 64 : 32; }

/// Rows are padded by 16 bytes: the eight rows that ldmatrix reads at once lie in different banks.
template <class T, int d, bool general>
struct Shared {
    SharedTile<T, Br(d, general), d + 8> Q;
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

/// d: the problem's head dimension, or more: then the columns beyond it are zeros. general: has dropout, softcap or ALiBi, or a
/// scale that is not positive; c (s - m) needs c > 0. Then a score is finished before its maximum is taken, in base 2, and c = 1.
template <class T, int d, bool general>
__global__ void __launch_bounds__(threads, 2) forward(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K,
                                                      Tensor<const T> V, Tensor<T> O, Tensor<float> L) {
    constexpr int Br = b::Br(d, general), Bc = b::Bc(d);
    constexpr int m_tiles = Br / 16 / warps, n_tiles = Bc / 8;
    auto& smem = shared_memory<Shared<T, d, general>>();

    const int heads = problem.B * problem.Hq, head = blockIdx.x % heads, h = head % problem.Hq;
    const int i0 = blockIdx.x / heads * Br;
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

    // 1. The barrier in 2. makes it visible.
    copy_rows<d>(smem.Q, Q_gmem, i0, mask.seeing_queries());

    const auto take = [&]<Tile kind>(int kv_tile) {
        const int j0 = kv_tile * Bc;

        // 2. Not before everybody has left the last K and V.
        bar_sync();
        copy_rows<d>(smem.K, K_gmem, j0, mask.seen_keys());
        copy_rows<d>(smem.V, V_gmem, j0, mask.seen_keys());
        bar_sync();

        // 3. S = Q K^T.
        float S[m_tiles][n_tiles][4] = {};
#pragma unroll
        for (int k_step = 0; k_step < d / 16; ++k_step) {
            std::uint32_t Q_rmem[m_tiles][4];
            for (int m_tile = 0; m_tile < m_tiles; ++m_tile)
                ldmatrix_x4(Q_rmem[m_tile],
                            smem.Q.address(warp_row + 16 * m_tile + lane % 16, 16 * k_step + 8 * (lane / 16)));
            for (int n = 0; n < n_tiles; n += 2) {
                std::uint32_t K_rmem[4];
                ldmatrix_x4(K_rmem,
                            smem.K.address(8 * n + lane % 8 + 8 * (lane / 16), 16 * k_step + 8 * (lane / 8 % 2)));
                for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
                    mma_sync_m16n8k16<T>(S[m_tile][n], Q_rmem[m_tile], K_rmem[0], K_rmem[1]);
                    mma_sync_m16n8k16<T>(S[m_tile][n + 1], Q_rmem[m_tile], K_rmem[2], K_rmem[3]);
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
                const Range keys = mask.keys(i0 + row);
                float m_new = m[m_tile][half];
                for (int n = 0; n < n_tiles; ++n) {
                    for (int e = 0; e < 2; ++e) {
                        float& s = S[m_tile][n][2 * half + e];
                        const int j = j0 + 8 * n + 2 * t + e;
                        if constexpr (general) s = modifier.score(s, i0 + row, j);
                        if constexpr (kind == Tile::mixed) {
                            if (!keys.contains(j)) s = -infinity;
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

        // 6. U += W V.
#pragma unroll
        for (int k_step = 0; k_step < Bc / 16; ++k_step) {
            for (int n = 0; n < d / 8; n += 2) {
                std::uint32_t V_rmem[4];
                ldmatrix_x4_trans(V_rmem, smem.V.address(16 * k_step + lane % 16, 8 * n + 8 * (lane / 16)));
                for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
                    mma_sync_m16n8k16<T>(U[m_tile][n], W_rmem[m_tile][k_step], V_rmem[0], V_rmem[1]);
                    mma_sync_m16n8k16<T>(U[m_tile][n + 1], W_rmem[m_tile][k_step], V_rmem[2], V_rmem[3]);
                }
            }
        }
    };

    for (int kv_tile = kv_tiles.end - 1; kv_tile >= kv_tiles.begin;) {
        for (; kv_tile >= kv_tiles.begin && !full_tiles.contains(kv_tile); --kv_tile)
            take.template operator()<Tile::mixed>(kv_tile);
        for (; full_tiles.contains(kv_tile); --kv_tile) take.template operator()<Tile::full>(kv_tile);
    }

    // 7. Kept weights count 1 / (1 - p) times: here, where nothing overflows. A query that saw no key has l = 0: O = 0.
    const float kept = general && problem.dropout.enabled ? problem.dropout.scale : 1.0f;
#pragma unroll
    for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = i0 + warp_row + 16 * m_tile + g + 8 * half;
            float sum = l[m_tile][half];
            sum += shfl_sync_bfly(sum, 1);
            sum += shfl_sync_bfly(sum, 2);
            if (i >= sequence.Nq) continue;
            const float factor = kept * inverse_sum(sum);
            for (int n = 0; n < d / 8; ++n) {
                const float* u = &U[m_tile][n][2 * half];
                const Vector<float, 2> o = {factor * u[0], factor * u[1]};
                if (8 * n < O_gmem.columns) O_gmem.store(i, 8 * n + 2 * t, cvt_rn<T>(o));
            }
            if (t == 0) L_gmem(i) = log_sum_exp(c * m[m_tile][half], sum);
        }
    }
}

}  // namespace stage03::b
