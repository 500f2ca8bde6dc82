// 02 backward of b: recomputation (Dao et al. 2022, Algorithm 4) on tensor cores.
//
// Nothing of size Nq x Nk was kept. From Q, K and the saved L a tile of P comes back as P = 2^(S - L), and with D =
// rowsum(dO o O)
//     dV += P^T dO      dP = dO V^T      dS = P o (dP - D)      dK += scale dS^T Q      dQ += scale dS K
//
// Two kernels. `row_statistics` computes D, and L in base 2, once a query. `backward`: one CTA for each (sequence,
// key/value head), 4 warps. The outer loop walks the key tiles, the inner loops walk the query heads of the group and
// the query tiles that see the key tile. dK and dV stay in registers for the whole key tile, so the sum over a group is
// an fp32 sum; dQ travels: it is read and written (fp32) once for each key tile. One CTA owns all of it, so no atomics
// and no luck: results repeat bit for bit.
//
// Split KV: each warp owns Bc / 4 = 16 keys, and works on transposed tiles S^T = K Q^T and dP^T = V dO^T: their
// accumulators are then operand registers of the products dV += P^T dO and dK += dS^T Q. For dQ = dS K all keys of the
// tile are summed: dS goes through shared memory, and each warp computes a quarter of dQ's columns. No partial sums,
// unlike forward.
//
// On chip, d = 128 (d = 64):  K, V 64 x d, 32 KiB (16);  Q, dO 2 x Br x d each, 32 KiB (32);  dS 64 x Br, 4 KiB (8).
//                             Registers: dK, dV d; S^T, dP^T Br.
// A tile: 10 Br Bc d FLOPs; global memory, in bytes: Q, dO 4 Br d read, dQ 4 Br d read and 4 Br d written.
//
// For each key tile:
//   1. copy K, V to shared memory; dK = dV = 0
//   For each query head of the group, for each query tile:
//     2. wait for Q, dO (and the last tile's dS readers); start the copy of the next Q, dO
//     3. S^T = K Q^T,  dP^T = V dO^T
//     4. P^T = 2^(S^T - L), masked;  dS^T = P^T o (dP^T - D);  dS to shared memory
//     5. dV += P^T dO,  dK += dS^T Q
//     6. dQ += dS K, in global memory; in the end as 16 bit, scaled
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

template <int d>
struct Tiles {
    static constexpr int Br = 4096 / d;  // 64 queries for d = 64, 32 for d = 128: as many as the registers hold
    static constexpr int Bc = 16 * warps;
};

template <class T, int d>
struct Shared {
    static constexpr int Br = Tiles<d>::Br, Bc = Tiles<d>::Bc;
    SharedTile<T, Bc, d, Swizzle::xor_8> K, V;
    SharedTile<T, Br, d, Swizzle::xor_8> Q[2], dO[2];
    SharedTile<std::uint32_t, Bc, Br / 2 + 4> dS;  // (key, pair of queries), padded against bank conflicts
    SharedTile<float, 1, Br> L, D;                 // of the tile's queries
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
    const int row_blocks = ceil_div(problem.Nq, warps);
    const int i = blockIdx.x % row_blocks * warps + gpu::warp();
    const int h = blockIdx.x / row_blocks % problem.Hq, b = blockIdx.x / row_blocks / problem.Hq;
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq) return;

    const auto O_gmem = sequence.queries(O, h);
    const auto dO_gmem = sequence.queries(dO, h);
    const bool sees_a_key = problem.mask(sequence).seeing_queries().contains(i);

    float sum = 0;
    if (sees_a_key) {
        for (int c = 2 * gpu::lane(); c < d; c += 2 * warp_size) {
            const Vector<T, 2> o = O_gmem.load2(i, c), g = dO_gmem.load2(i, c);
            sum += to_float(o[0]) * to_float(g[0]) + to_float(o[1]) * to_float(g[1]);
        }
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += shfl_sync_bfly(sum, lanes);
    if (gpu::lane() == 0) {
        const float l = sequence.queries(L, h)(i, 0);
        sequence.queries(L_log2, h)(i, 0) = sees_a_key ? l * log2_e : 0;
        sequence.queries(D, h)(i, 0) = sum;
    }
}

/// dQ_old: fp32 (queries x d), scratch between key tiles. L_log2, D: one value a query, from row_statistics.
template <class T, int d>
__global__ void __launch_bounds__(threads, 2)
    backward(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<const T> V, Tensor<const T> dO,
             Tensor<const float> L_log2, Tensor<const float> D, Tensor<T> dQ, Tensor<T> dK, Tensor<T> dV,
             Tensor<float> dQ_old) {
    constexpr int Br = Tiles<d>::Br, Bc = Tiles<d>::Bc;
    constexpr int n_tiles = Br / 8, k_steps = d / 16, column_tiles = d / warps / 8;
    auto& smem = shared_memory<Shared<T, d>>();

    const int kv_head = blockIdx.x % problem.Hkv, b = blockIdx.x / problem.Hkv;
    const int heads = problem.Hq / problem.Hkv;
    const Sequence sequence = problem.sequence(b);
    const Mask mask = problem.mask(sequence);
    const float scale_log2 = problem.scale * log2_e;

    const auto K_gmem = sequence.keys(K, kv_head);
    const auto V_gmem = sequence.keys(V, kv_head);
    const auto dK_gmem = sequence.keys(dK, kv_head);
    const auto dV_gmem = sequence.keys(dV, kv_head);
    // The matrix of one query head of the group.
    const auto of_head = [&](const auto& tensor, int head) { return sequence.queries(tensor, kv_head * heads + head); };

    const int lane = gpu::lane(), warp = gpu::warp();
    const int group = lane / 4, pair = 2 * (lane % 4);  // this lane's row and first column in an 8x8 fragment
    const int warp_key = 16 * warp;                     // this warp's first key within a tile
    const int warp_column = d / warps * warp;           // this warp's first column of dQ

    // Queries outside every key tile's loop: they see no key, and their dQ is 0.
    for (int head = 0; head < heads; ++head) {
        const auto dQ_gmem = of_head(dQ, head);
        for (int i0 = 0; i0 < sequence.Nq; i0 += Br) {
            if (!mask.key_tiles(i0, Br, Bc).empty()) continue;
            for (int e = 2 * threadIdx.x; e < Br * d && i0 + e / d < sequence.Nq; e += 2 * threads) {
                dQ_gmem.store(i0 + e / d, e % d, Vector<T, 2>{cvt_rn<T>(0), cvt_rn<T>(0)});
            }
        }
    }

    for (int kv_tile = 0; kv_tile < ceil_div(sequence.Nk, Bc); ++kv_tile) {
        const int j0 = kv_tile * Bc;
        const Range q_tiles = mask.query_tiles(j0, Bc, Br);
        const int tiles = q_tiles.empty() ? 0 : q_tiles.end - q_tiles.begin;
        const int steps = heads * tiles;
        float dK_rmem[d / 8][4] = {}, dV_rmem[d / 8][4] = {};

        // 1. K, V and the first Q, dO on their way, once everybody has left the last key tile.
        const auto copy_queries = [&](int step) {
            const int i0 = (q_tiles.begin + step % tiles) * Br;
            copy_rows(smem.Q[step % 2], of_head(Q, step / tiles), i0, mask.seeing_queries());
            copy_rows(smem.dO[step % 2], of_head(dO, step / tiles), i0, mask.seeing_queries());
        };
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
                smem.L(0, threadIdx.x) = i < sequence.Nq ? of_head(L_log2, head)(i, 0) : 0.0f;
                smem.D(0, threadIdx.x) = i < sequence.Nq ? of_head(D, head)(i, 0) : 0.0f;
            }
            cp_async_wait_group<0>();
            bar_sync();
            if (step + 1 < steps) {
                copy_queries(step + 1);
                cp_async_commit_group();
            }

            // 3. S^T = K Q^T and dP^T = V dO^T, this warp's 16 keys by Br queries.
            float S[n_tiles][4] = {}, dP[n_tiles][4] = {};
            for (int k_step = 0; k_step < k_steps; ++k_step) {
                std::uint32_t K_rmem[4], V_rmem[4];
                ldmatrix_x4(K_rmem, smem.K.address(warp_key + lane % 16, 16 * k_step + 8 * (lane / 16)));
                ldmatrix_x4(V_rmem, smem.V.address(warp_key + lane % 16, 16 * k_step + 8 * (lane / 16)));
                for (int n = 0; n < n_tiles; n += 2) {
                    const int query = 8 * n + lane % 8 + 8 * (lane / 16), column = 16 * k_step + 8 * (lane / 8 % 2);
                    std::uint32_t Q_rmem[4], dO_rmem[4];
                    ldmatrix_x4(Q_rmem, Q_smem.address(query, column));
                    ldmatrix_x4(dO_rmem, dO_smem.address(query, column));
                    mma_sync_m16n8k16<T>(S[n], K_rmem, Q_rmem[0], Q_rmem[1]);
                    mma_sync_m16n8k16<T>(S[n + 1], K_rmem, Q_rmem[2], Q_rmem[3]);
                    mma_sync_m16n8k16<T>(dP[n], V_rmem, dO_rmem[0], dO_rmem[1]);
                    mma_sync_m16n8k16<T>(dP[n + 1], V_rmem, dO_rmem[2], dO_rmem[3]);
                }
            }

            // 4. P^T and dS^T as operands; dS^T to shared memory for 6.
            const bool mixed = mask.classify(i0, Br, j0, Bc) == Tile::mixed;
            const Range queries[2] = {mask.queries(j0 + warp_key + group), mask.queries(j0 + warp_key + group + 8)};
            std::uint32_t P_rmem[Br / 16][4], dS_rmem[Br / 16][4];
#pragma unroll
            for (int n = 0; n < n_tiles; ++n) {
                const Vector<float, 2> L = smem.L.load2(0, 8 * n + pair), D = smem.D.load2(0, 8 * n + pair);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float P[2], dS[2];
                    for (int c = 0; c < 2; ++c) {
                        const bool hidden = mixed && !queries[half].contains(i0 + 8 * n + pair + c);
                        const float s = hidden ? -GPU_INFINITY : S[n][2 * half + c] * scale_log2;
                        P[c] = ex2_approx_ftz(s - L[c]);
                        dS[c] = P[c] * (dP[n][2 * half + c] - D[c]);
                    }
                    P_rmem[n / 2][n % 2 * 2 + half] = cvt_rn_x2<T>(P[0], P[1]);
                    dS_rmem[n / 2][n % 2 * 2 + half] = cvt_rn_x2<T>(dS[0], dS[1]);
                    smem.dS(warp_key + group + 8 * half, (8 * n + pair) / 2) = dS_rmem[n / 2][n % 2 * 2 + half];
                }
            }
            bar_sync();

            // 5. dV += P^T dO and dK += dS^T Q.
            for (int k_step = 0; k_step < Br / 16; ++k_step) {
                for (int n = 0; n < d / 8; n += 2) {
                    std::uint32_t Q_rmem[4], dO_rmem[4];
                    ldmatrix_x4_trans(Q_rmem, Q_smem.address(16 * k_step + lane % 16, 8 * n + 8 * (lane / 16)));
                    ldmatrix_x4_trans(dO_rmem, dO_smem.address(16 * k_step + lane % 16, 8 * n + 8 * (lane / 16)));
                    mma_sync_m16n8k16<T>(dV_rmem[n], P_rmem[k_step], dO_rmem[0], dO_rmem[1]);
                    mma_sync_m16n8k16<T>(dV_rmem[n + 1], P_rmem[k_step], dO_rmem[2], dO_rmem[3]);
                    mma_sync_m16n8k16<T>(dK_rmem[n], dS_rmem[k_step], Q_rmem[0], Q_rmem[1]);
                    mma_sync_m16n8k16<T>(dK_rmem[n + 1], dS_rmem[k_step], Q_rmem[2], Q_rmem[3]);
                }
            }

            // 6. dQ += dS K: all keys of the tile, this warp's columns. dS lies as (key, query), so A is loaded
            // transposed.
            const auto dQ_gmem = of_head(dQ, head);
            const auto dQ_old_gmem = of_head(dQ_old, head);
            for (int m_tile = 0; m_tile < Br / 16; ++m_tile) {
                float dQ_rmem[column_tiles][4] = {};
                const int rows[2] = {i0 + 16 * m_tile + group, i0 + 16 * m_tile + group + 8};
                for (int half = 0; half < 2; ++half) {
                    if (first || rows[half] >= sequence.Nq) continue;
                    for (int n = 0; n < column_tiles; ++n) {
                        const Vector<float, 2> old = dQ_old_gmem.load2(rows[half], warp_column + 8 * n + pair);
                        dQ_rmem[n][2 * half] = old[0];
                        dQ_rmem[n][2 * half + 1] = old[1];
                    }
                }
                for (int k_step = 0; k_step < Bc / 16; ++k_step) {
                    const int key = 16 * k_step + lane % 8 + 8 * (lane / 16), query = 16 * m_tile + 8 * (lane / 8 % 2);
                    std::uint32_t dS_fragment[4];
                    ldmatrix_x4_trans(dS_fragment, smem.dS.address(key, query / 2));
                    for (int n = 0; n < column_tiles; n += 2) {
                        const int column = warp_column + 8 * n + 8 * (lane / 16);
                        std::uint32_t K_rmem[4];
                        ldmatrix_x4_trans(K_rmem, smem.K.address(16 * k_step + lane % 16, column));
                        mma_sync_m16n8k16<T>(dQ_rmem[n], dS_fragment, K_rmem[0], K_rmem[1]);
                        mma_sync_m16n8k16<T>(dQ_rmem[n + 1], dS_fragment, K_rmem[2], K_rmem[3]);
                    }
                }
                for (int half = 0; half < 2; ++half) {
                    if (rows[half] >= sequence.Nq) continue;
                    for (int n = 0; n < column_tiles; ++n) {
                        const int column = warp_column + 8 * n + pair;
                        const float x = dQ_rmem[n][2 * half], y = dQ_rmem[n][2 * half + 1];
                        if (last) {
                            dQ_gmem.store(rows[half], column,
                                          Vector<T, 2>{cvt_rn<T>(x * problem.scale), cvt_rn<T>(y * problem.scale)});
                        } else {
                            dQ_old_gmem.store(rows[half], column, Vector<float, 2>{x, y});
                        }
                    }
                }
            }
        }

        // 7. dK and dV of this warp's keys; zeros where no query sees the tile.
        for (int half = 0; half < 2; ++half) {
            const int j = j0 + warp_key + group + 8 * half;
            if (j >= sequence.Nk) continue;
            for (int n = 0; n < d / 8; ++n) {
                const float(&k)[4] = dK_rmem[n];
                const float(&v)[4] = dV_rmem[n];
                dK_gmem.store(
                    j, 8 * n + pair,
                    Vector<T, 2>{cvt_rn<T>(k[2 * half] * problem.scale), cvt_rn<T>(k[2 * half + 1] * problem.scale)});
                dV_gmem.store(j, 8 * n + pair, Vector<T, 2>{cvt_rn<T>(v[2 * half]), cvt_rn<T>(v[2 * half + 1])});
            }
        }
    }
}

}  // namespace stage02::b_backward
