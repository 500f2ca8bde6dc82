// 03d  lean: 03c with fewer instructions. Of a full key tile (d = 128, sm_90) nvcc makes 1315 for 03c, 256 of them products; here
// 994. Same tiles and memory and, where nobody fuses l alpha + W, same bits; what goes:
//
// Moves. mma.sync takes b0 and b1 of a fragment from neighbouring registers, an aligned pair. 03c points ldmatrix at K as at V, which
// saves one address and returns b0, b0, b1, b1: some moves for each ldmatrix of K, more than 200 a tile.
// Addresses of copies. A thread's rows are equally far apart: one pointer is computed a tile and stepped by 64-bit additions, not
// products, and columns are constants beside it.
// Bounds of copies. Every row of a full tile of V is seen. And only the last tile of K has rows to leave out, those beyond the last
// key: a hidden key of other tiles costs nothing but its bytes, as its score is overwritten, be it NaN.
// Rescaling. alpha = 1 for all 16 queries of an m_tile is common once some tiles have been walked: a vote then skips the d / 2
// multiplications of U that 03c does a lane.
// Exponentials among products. For d <= 64 registers are free for the next copy's addresses before W is made, so the weights of each
// 16 keys come just before their products, and MUFU and tensor cores work at the same time.
//
//   1. to 4. as 03c, but U = alpha U unless alpha = 1
//   For each 16 keys (d > 64: for all of them)
//     5. W = 2^(c S - c m'), l += W; dropout of W
//     6. once: wait for V, start the copy of the next K (d <= 64: before 5.)
//     7. U += W V
//   8. as 03c
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/score.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage03::d {

using namespace attention;
using namespace gpu;

constexpr int warps = 4;
constexpr int threads = warps * warp_size;

constexpr int Br(int d, bool general) { return d <= 128 && !general ? 128 : 64; }
constexpr int Bc(int d, bool general) { return d <= 128 || !general ? 64 : 32; }

/// For how many k16 steps W is made before it is multiplied: for one, so that exponentials and products mix, where there are registers
/// for the addresses of K that 6. needs meanwhile; else for all.
constexpr int steps(int d, int Bc) { return d <= 64 ? 1 : Bc / 16; }

template <class T, int d, bool general>
struct Shared {
    static constexpr int columns = (d + 63) / 64 * 64;  // xor_8 takes rows of 128 bytes; those beyond d stay unused
    SharedTile<T, Br(d, general), columns, Swizzle::xor_8> Q;
    SharedTile<T, Bc(d, general), columns, Swizzle::xor_8> K, V;
    SharedTile<int, Br(d, general), 2> keys;  // begin and end: in registers only while a mixed tile is masked
};

/// Starts the copy of rows first ... first + rows - 1 to shared memory. Rows outside `kept` become zeros, unless all are copied, and
/// so do columns beyond the head dimension. Eight threads share 128 bytes of a row.
template <int d, bool all, class SmemTile, class T>
__device__ inline void copy_rows(SmemTile& tile, const Matrix<const T>& source, int first, Range kept) {
    constexpr int rows_at_once = threads / 8;
    const int row = threadIdx.x / 8, column = threadIdx.x % 8 * 8, offset = tile.offset(row, column);
    Matrix<const T> rest = source.from(first + row, column);
#pragma unroll
    for (int step = 0; step < SmemTile::rows; step += rows_at_once) {
#pragma unroll
        for (int page = 0; page < SmemTile::columns; page += 64) {
            if (page + column >= d) continue;
            const bool present = (all || kept.contains(first + row + step)) && page + column < source.columns;
            cp_async_cg_16(tile.address_beyond(offset, step, page), rest, 0, page, present ? 16 : 0);
        }
        rest = rest.from(rows_at_once, 0);
    }
}

/// d: the problem's head dimension, or more: then the columns beyond it are zeros. general: has dropout, softcap or ALiBi, or a
/// scale that is not positive; c (s - m) needs c > 0. Then a score is finished before its maximum is taken, in base 2, and c = 1.
template <class T, int d, bool general>
__global__ void __launch_bounds__(threads, 2) forward(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K,
                                                      Tensor<const T> V, Tensor<T> O, Tensor<float> L) {
    constexpr int Br = d::Br(d, general), Bc = d::Bc(d, general);
    constexpr int m_tiles = Br / 16 / warps, n_tiles = Bc / 8, steps = d::steps(d, Bc);
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

    // Where this lane points ldmatrix in the first 16 x 16 block.
    const int Q_lane = smem.Q.offset(warp_row + lane % 16, 8 * (lane / 16));
    const int K_lane = smem.K.offset(lane % 8 + 8 * (lane / 16), 8 * (lane / 8 % 2));
    const int V_lane = smem.V.offset(lane % 16, 8 * (lane / 16));

    const auto take = [&]<Tile kind>(int kv_tile) {
        const int j0 = kv_tile * Bc;

        // 2. Everybody's copies of K (and Q) have landed, and everybody has left V.
        cp_async_wait_group<0>();
        bar_sync();
        copy_rows<d, kind == Tile::full>(smem.V, V_gmem, j0, mask.seen_keys());
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
                ldmatrix_x4(K_rmem, smem.K.address_beyond(K_lane, 8 * n, 16 * k_step));
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
            float alpha[2];
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
                alpha[half] = ex2_approx_ftz(c * (m[m_tile][half] - exponent_base(m_new)));
                l[m_tile][half] *= alpha[half];
                m[m_tile][half] = m_new;
                base[m_tile][half] = mul_rn(c, exponent_base(m_new));
                large = large || fabsf(base[m_tile][half]) > 4096;  // else 2^r is 1 in 16 bits, and O / 2^r rounds to O
            }
            if (vote_sync_any(alpha[0] != 1 || alpha[1] != 1)) {
                for (int n = 0; n < d / 8; ++n)
                    for (int e = 0; e < 4; ++e) U[m_tile][n][e] *= alpha[e / 2];
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

        // 6. Everybody's copies of V have landed, and everybody has left K.
        const auto turn_to_V = [&] {
            cp_async_wait_group<0>();
            bar_sync();
            if (kv_tile > kv_tiles.begin) {
                copy_rows<d, true>(smem.K, K_gmem, j0 - Bc, {});
                cp_async_commit_group();
            }
        };
        if constexpr (steps < Bc / 16) turn_to_V();

#pragma unroll
        for (int first_step = 0; first_step < Bc / 16; first_step += steps) {
            // 5. n8 tiles 2k and 2k + 1 of S become the A operand of k16 step k: registers {0, 1} and {2, 3} (mma.h).
            std::uint32_t W_rmem[m_tiles][steps][4];
#pragma unroll
            for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
#pragma unroll
                for (int r = 0; r < 4 * steps; ++r) {
                    const int n = 2 * first_step + r / 2, half = r % 2;
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
                    W_rmem[m_tile][r / 4][r % 4] = cvt_rn_x2<T>(W0, W1);
                }
            }

            if constexpr (steps == Bc / 16) turn_to_V();

            // 7. U += W V.
            for (int step = 0; step < steps; ++step) {
                for (int n = 0; n < d / 8; n += 2) {
                    std::uint32_t V_rmem[4];
                    ldmatrix_x4_trans(V_rmem, smem.V.address_beyond(V_lane, 16 * (first_step + step), 8 * n));
                    for (int m_tile = 0; m_tile < m_tiles; ++m_tile) {
                        mma_sync_m16n8k16<T>(U[m_tile][n], W_rmem[m_tile][step], V_rmem[0], V_rmem[1]);
                        mma_sync_m16n8k16<T>(U[m_tile][n + 1], W_rmem[m_tile][step], V_rmem[2], V_rmem[3]);
                    }
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
        copy_rows<d, false>(smem.Q, Q_gmem, i0, mask.seeing_queries());
        copy_rows<d, false>(smem.K, K_gmem, (kv_tiles.end - 1) * Bc, {0, sequence.Nk});
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

}  // namespace stage03::d
