// 02b backward: recomputation (Dao et al. 2022, Algorithm 4) on tensor cores. A restart: of 02a's only the loops are left.
//
// Nothing of size Nq x Nk was kept. From Q, K and the saved L a tile of P comes back as P = 2^(S - L), and with D = rowsum(dO o O)
//     dV += P^T dO      dP = dO V^T      dS = P o (dP - D)      dK += scale dS^T Q      dQ += scale dS K
//
// Two kernels. `row_statistics`: D, and L in base 2, of every query. `backward`: one CTA of 4 warps for each (sequence, key/value
// head). The outer loop walks the key tiles; the inner one walks the query heads of the group and, for each, the query tiles that
// see the key tile (one loop, `step`, so that the next copy crosses heads). dK and dV stay in registers for a whole key tile, so the
// sum over a group is an fp32 sum; dQ travels: it is read and written (fp32) for each key tile. One CTA owns all of it, so there are
// no atomics, and results repeat bit for bit; but there are only B Hkv CTAs.
//
// Split KV: each warp owns 16 keys and works on transposed tiles S^T = K Q^T and dP^T = V dO^T, whose accumulators are then operand
// registers of dV += P^T dO and dK += dS^T Q. dQ = dS K sums over all keys of the tile: dS goes through shared memory, and each warp
// computes a quarter of dQ's columns. No partial sums, unlike forward.
//
// On chip, d = 128 (d = 64):  K, V 64 x d, 32 KiB (16);  Q, dO 2 x Br x d each, 32 KiB (32);  dS 64 x (Br + 8), 5 KiB (9).
//                             In all 69 KiB (58); with dropout Br is half: 51 KiB (37). Registers: dK, dV d; S^T, dP^T Br.
// A tile: 10 Br Bc d FLOPs. Global memory, in bytes: Q, dO 4 Br d read, dQ 4 Br d read and 4 Br d written, L and D.
//
// For each key tile:
//   1. copy K, V and the first Q, dO to shared memory; dK = dV = 0
//   For each query tile of each head:
//     2. wait for Q, dO; start the copy of the next ones
//     3. S^T = K Q^T,  dP^T = V dO^T, this warp's keys
//     4. P^T = 2^(S^T - L), masked;  dS^T = P^T o (dP^T - D);  dS to shared memory. Dropout: forward's mask, drawn again
//     5. dV += P^T dO,  dK += dS^T Q
//     6. dQ += dS K, in global memory; after the last key tile as 16 bit, scaled
//   7. dK, scaled, and dV to global memory
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage02::b_backward {

using namespace attention;
using namespace gpu;

constexpr int warps = 4;
constexpr int threads = warps * warp_size;

// 64 queries for d = 64, 32 for d = 128: as many as the registers hold; half of that with dropout, whose draws take some too.
constexpr int Br(int d, bool with_dropout) { return (with_dropout ? 2048 : 4096) / d; }
constexpr int Bc = 16 * warps;

template <class T, int d, bool with_dropout>
struct Shared {
    static constexpr int Br = b_backward::Br(d, with_dropout);
    SharedTile<T, Bc, d, Swizzle::xor_8> K, V;
    SharedTile<T, Br, d, Swizzle::xor_8> Q[2], dO[2];
    SharedTile<T, Bc, Br + 8> dS;  // (key, query), as it is computed; padded against bank conflicts
    SharedArray<float, Br> L, D;   // of the tile's queries
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

/// One warp a query: D = sum_c dO_c O_c, and L in base 2. A query that sees no key gets 0 and 0 whatever its dO holds;
/// its weights are 0 because every key is hidden.
template <class T, int d>
__global__ void __launch_bounds__(threads)
    row_statistics(KernelProblem problem, Tensor<const T> O, Tensor<const T> dO, Tensor<const float> L,
                   Tensor<float> L_log2, Tensor<float> D) {
    const auto [b, h, i] = problem.query(std::int64_t(blockIdx.x) * warps + warp_id());
    if (b >= problem.B) return;
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq) return;

    const auto O_gmem = sequence.queries(O, h);
    const auto dO_gmem = sequence.queries(dO, h);
    const bool sees_a_key = problem.mask(sequence).seeing_queries().contains(i);

    float sum = 0;
    if (sees_a_key) {
        for (int c = 2 * lane_id(); c < d; c += 2 * warp_size) {
            const Vector<T, 2> o = O_gmem.load2(i, c), g = dO_gmem.load2(i, c);
            sum += to_float(o[0]) * to_float(g[0]) + to_float(o[1]) * to_float(g[1]);
        }
    }
    for (int distance = 16; distance > 0; distance /= 2) sum += shfl_sync_bfly(sum, distance);
    if (lane_id() == 0) {
        sequence.queries(L_log2, h)(i) = sees_a_key ? sequence.queries(L, h)(i) * log2_e : 0.0f;
        sequence.queries(D, h)(i) = sum;
    }
}

/// dQ_old: fp32 (queries x d), scratch between key tiles. L_log2, D: one value a query, from row_statistics.
template <class T, int d, bool with_dropout>
__global__ void __launch_bounds__(threads)
    backward(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<const T> V, Tensor<const T> dO,
             Tensor<const float> L_log2, Tensor<const float> D, Tensor<T> dQ, Tensor<T> dK, Tensor<T> dV,
             Tensor<float> dQ_old) {
    constexpr int Br = b_backward::Br(d, with_dropout);
    constexpr int n_tiles = Br / 8, k_steps = d / 16, column_tiles = d / warps / 8;
    auto& smem = shared_memory<Shared<T, d, with_dropout>>();

    const int kv_head = blockIdx.x % problem.Hkv;
    const int heads = problem.Hq / problem.Hkv;
    const Sequence sequence = problem.sequence(blockIdx.x / problem.Hkv);
    const Mask mask = problem.mask(sequence);
    const float scale_log2 = problem.scale * log2_e;
    const float kept_scale = with_dropout ? problem.dropout.scale : 1.0f;
    const int first_head = blockIdx.x / problem.Hkv * problem.Hq + kv_head * heads;  // b Hq + h of the group's first

    const auto K_gmem = sequence.keys(K, kv_head);
    const auto V_gmem = sequence.keys(V, kv_head);
    const auto dK_gmem = sequence.keys(dK, kv_head);
    const auto dV_gmem = sequence.keys(dV, kv_head);
    // The matrix of one query head of the group.
    const auto of_head = [&](const auto& tensor, int head) { return sequence.queries(tensor, kv_head * heads + head); };

    const int lane = lane_id(), warp = warp_id();
    const int g = lane / 4, t = lane % 4;      // of fragments: row g, columns 2t and 2t + 1 (mma.h)
    const int warp_key = 16 * warp;            // this warp's first key within a tile
    const int warp_column = d / warps * warp;  // this warp's first column of dQ

    // Queries outside every key tile's loop: they see no key, and their dQ is 0.
    for (int head = 0; head < heads; ++head) {
        const auto dQ_gmem = of_head(dQ, head);
        for (int i0 = 0; i0 < sequence.Nq; i0 += Br) {
            if (!mask.key_tiles(i0, Br, Bc).empty()) continue;
            for (int e = 2 * threadIdx.x; e < Br * d && i0 + e / d < sequence.Nq; e += 2 * threads) {
                dQ_gmem.store(i0 + e / d, e % d, Vector<T, 2>{});
            }
        }
    }

    for (int kv_tile = 0; kv_tile < ceil_div(sequence.Nk, Bc); ++kv_tile) {
        const int j0 = kv_tile * Bc;
        const Range q_tiles = mask.query_tiles(j0, Bc, Br);
        const int tiles = q_tiles.empty() ? 0 : q_tiles.end - q_tiles.begin;
        const int steps = heads * tiles;
        float dK_rmem[d / 8][4] = {}, dV_rmem[d / 8][4] = {};

        const auto copy_queries = [&](int step) {
            const int i0 = (q_tiles.begin + step % tiles) * Br;
            copy_rows(smem.Q[step % 2], of_head(Q, step / tiles), i0, mask.seeing_queries());
            copy_rows(smem.dO[step % 2], of_head(dO, step / tiles), i0, mask.seeing_queries());
        };

        // 1. K, V and the first Q, dO on their way, once everybody has left the last key tile.
        bar_sync();
        if (steps > 0) {
            copy_rows(smem.K, K_gmem, j0, mask.seen_keys());
            copy_rows(smem.V, V_gmem, j0, mask.seen_keys());
            copy_queries(0);
            cp_async_commit_group();
        }

        for (int step = 0; step < steps; ++step) {
            const int head = step / tiles, i0 = (q_tiles.begin + step % tiles) * Br;
            const Range kv_tiles = mask.key_tiles(i0, Br, Bc);
            const bool first = kv_tile == kv_tiles.begin, last = kv_tile + 1 == kv_tiles.end;
            auto& Q_smem = smem.Q[step % 2];
            auto& dO_smem = smem.dO[step % 2];

            // 2. Everybody's copies have landed, and everybody has left the last tile's Q, dO and dS.
            if (threadIdx.x < Br) {
                const int i = i0 + threadIdx.x;
                smem.L(threadIdx.x) = i < sequence.Nq ? of_head(L_log2, head)(i) : 0.0f;
                smem.D(threadIdx.x) = i < sequence.Nq ? of_head(D, head)(i) : 0.0f;
            }
            cp_async_wait_group<0>();
            bar_sync();
            if (step + 1 < steps) {
                copy_queries(step + 1);
                cp_async_commit_group();
            }

            // 3. S^T = K Q^T and dP^T = V dO^T, this warp's 16 keys by Br queries.
            float St[n_tiles][4] = {}, dPt[n_tiles][4] = {};
            for (int k_step = 0; k_step < k_steps; ++k_step) {
                std::uint32_t K_rmem[4], V_rmem[4];
                ldmatrix_x4(K_rmem, smem.K.address(warp_key + lane % 16, 16 * k_step + 8 * (lane / 16)));
                ldmatrix_x4(V_rmem, smem.V.address(warp_key + lane % 16, 16 * k_step + 8 * (lane / 16)));
                for (int n = 0; n < n_tiles; n += 2) {
                    const int query = 8 * n + lane % 8 + 8 * (lane / 16), column = 16 * k_step + 8 * (lane / 8 % 2);
                    std::uint32_t Q_rmem[4], dO_rmem[4];
                    ldmatrix_x4(Q_rmem, Q_smem.address(query, column));
                    ldmatrix_x4(dO_rmem, dO_smem.address(query, column));
                    mma_sync_m16n8k16<T>(St[n], K_rmem, Q_rmem[0], Q_rmem[1]);
                    mma_sync_m16n8k16<T>(St[n + 1], K_rmem, Q_rmem[2], Q_rmem[3]);
                    mma_sync_m16n8k16<T>(dPt[n], V_rmem, dO_rmem[0], dO_rmem[1]);
                    mma_sync_m16n8k16<T>(dPt[n + 1], V_rmem, dO_rmem[2], dO_rmem[3]);
                }
            }

            // 4. P^T and dS^T. Their n8 tiles 2k and 2k + 1 become the A operand of k16 step k: registers {0, 1} and {2, 3} (mma.h).
            const bool mixed = mask.classify(i0, Br, j0, Bc) != Tile::full;
            const Range queries[2] = {mask.queries(j0 + warp_key + g), mask.queries(j0 + warp_key + g + 8)};
            std::uint32_t Pt_rmem[Br / 16][4], dSt_rmem[Br / 16][4];
#pragma unroll
            for (int n = 0; n < n_tiles; ++n) {
                const Vector<float, 2> L_i = smem.L.load2(8 * n + 2 * t), D_i = smem.D.load2(8 * n + 2 * t);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float P[2], dS[2];
                    for (int c = 0; c < 2; ++c) {
                        const bool hidden = mixed && !queries[half].contains(i0 + 8 * n + 2 * t + c);
                        const float s = hidden ? -infinity : St[n][2 * half + c] * scale_log2;
                        P[c] = ex2_approx_ftz(s - L_i[c]);
                        const bool kept =
                            !with_dropout || problem.dropout.keeps(first_head + head, i0 + 8 * n + 2 * t + c,
                                                                   j0 + warp_key + g + 8 * half);
                        const float dP = kept ? kept_scale * dPt[n][2 * half + c] : 0.0f;
                        dS[c] = hidden ? 0.0f : P[c] * (dP - D_i[c]);
                        if (!kept) P[c] = 0;
                    }
                    const int reg = n % 2 * 2 + half;
                    Pt_rmem[n / 2][reg] = cvt_rn_x2<T>(P[0], P[1]);
                    dSt_rmem[n / 2][reg] = cvt_rn_x2<T>(dS[0], dS[1]);
                    smem.dS.store_x2(warp_key + g + 8 * half, 8 * n + 2 * t, dSt_rmem[n / 2][reg]);
                }
            }
            bar_sync();

            // 5. dV += P^T dO and dK += dS^T Q.
            for (int k_step = 0; k_step < Br / 16; ++k_step) {
                for (int n = 0; n < d / 8; n += 2) {
                    std::uint32_t Q_rmem[4], dO_rmem[4];
                    ldmatrix_x4_trans(Q_rmem, Q_smem.address(16 * k_step + lane % 16, 8 * n + 8 * (lane / 16)));
                    ldmatrix_x4_trans(dO_rmem, dO_smem.address(16 * k_step + lane % 16, 8 * n + 8 * (lane / 16)));
                    mma_sync_m16n8k16<T>(dV_rmem[n], Pt_rmem[k_step], dO_rmem[0], dO_rmem[1]);
                    mma_sync_m16n8k16<T>(dV_rmem[n + 1], Pt_rmem[k_step], dO_rmem[2], dO_rmem[3]);
                    mma_sync_m16n8k16<T>(dK_rmem[n], dSt_rmem[k_step], Q_rmem[0], Q_rmem[1]);
                    mma_sync_m16n8k16<T>(dK_rmem[n + 1], dSt_rmem[k_step], Q_rmem[2], Q_rmem[3]);
                }
            }

            // 6. dQ += dS K: all keys of the tile, this warp's columns. dS lies as (key, query), so A is loaded
            // transposed.
            const auto dQ_gmem = of_head(dQ, head);
            const auto dQ_old_gmem = of_head(dQ_old, head);
            for (int m_tile = 0; m_tile < Br / 16; ++m_tile) {
                float dQ_rmem[column_tiles][4] = {};
                const int rows[2] = {i0 + 16 * m_tile + g, i0 + 16 * m_tile + g + 8};
                for (int half = 0; half < 2; ++half) {
                    if (first || rows[half] >= sequence.Nq) continue;
                    for (int n = 0; n < column_tiles; ++n) {
                        const Vector<float, 2> old = dQ_old_gmem.load2(rows[half], warp_column + 8 * n + 2 * t);
                        dQ_rmem[n][2 * half] = old[0];
                        dQ_rmem[n][2 * half + 1] = old[1];
                    }
                }
                for (int k_step = 0; k_step < Bc / 16; ++k_step) {
                    const int key = 16 * k_step + lane % 8 + 8 * (lane / 16), query = 16 * m_tile + 8 * (lane / 8 % 2);
                    std::uint32_t dS_rmem[4];
                    ldmatrix_x4_trans(dS_rmem, smem.dS.address(key, query));
                    for (int n = 0; n < column_tiles; n += 2) {
                        const int column = warp_column + 8 * n + 8 * (lane / 16);
                        std::uint32_t K_rmem[4];
                        ldmatrix_x4_trans(K_rmem, smem.K.address(16 * k_step + lane % 16, column));
                        mma_sync_m16n8k16<T>(dQ_rmem[n], dS_rmem, K_rmem[0], K_rmem[1]);
                        mma_sync_m16n8k16<T>(dQ_rmem[n + 1], dS_rmem, K_rmem[2], K_rmem[3]);
                    }
                }
                for (int half = 0; half < 2; ++half) {
                    if (rows[half] >= sequence.Nq) continue;
                    for (int n = 0; n < column_tiles; ++n) {
                        const int column = warp_column + 8 * n + 2 * t;
                        const Vector<float, 2> x = {dQ_rmem[n][2 * half], dQ_rmem[n][2 * half + 1]};
                        if (last) {
                            dQ_gmem.store(rows[half], column,
                                          cvt_rn<T>(Vector<float, 2>{x[0] * problem.scale, x[1] * problem.scale}));
                        } else {
                            dQ_old_gmem.store(rows[half], column, x);
                        }
                    }
                }
            }
        }

        // 7. dK and dV of this warp's keys; zeros where no query sees the tile. A kept weight of dV counts 1 / (1 - p) times.
        for (int half = 0; half < 2; ++half) {
            const int j = j0 + warp_key + g + 8 * half;
            if (j >= sequence.Nk) continue;
            for (int n = 0; n < d / 8; ++n) {
                const Vector<float, 2> k = {dK_rmem[n][2 * half], dK_rmem[n][2 * half + 1]};
                const Vector<float, 2> v = {kept_scale * dV_rmem[n][2 * half], kept_scale * dV_rmem[n][2 * half + 1]};
                dK_gmem.store(j, 8 * n + 2 * t,
                              cvt_rn<T>(Vector<float, 2>{k[0] * problem.scale, k[1] * problem.scale}));
                dV_gmem.store(j, 8 * n + 2 * t, cvt_rn<T>(v));
            }
        }
    }
}

}  // namespace stage02::b_backward
