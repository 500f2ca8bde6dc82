// 03a backward, atomic: FlashAttention-2's (Dao 2023, Algorithm 2), keys outside, one CTA for each (key tile, key/value head, sequence).
//
// 02b's backward gives one CTA all key tiles of a head, because dQ travels from one to the next. Here each CTA adds its part of dQ to
// a sum in fp32 that all share, by red.global.add: the order of additions decides the last bits of dQ. dK and dV stay in registers,
// over all query heads of the group. Kernels: `prepare` makes D = rowsum(dO o O), L in base 2, and zeros for the sums; `backward`;
// `finish` makes dQ of its sums. They lie in the order of `backward`'s accumulators: a warp adds 128 contiguous bytes at a time.
//
// 8 warps (d <= 64: 4) divide each product anew: S, dP, dQ 32 x 32 a warp; dV, dK, which read P and dS transposed, 32 keys x d / 2.
// One barrier a tile, after 3: who has passed it may still read Q, dO, P and dS while another warp fills the next ones, hence three
// slots of the first two and two of the others. Two and one, and a second barrier: where a CTA may not have 226 KiB (A100), for d <= 64,
// where three CTAs fill each other's waits, and for modified scores (softcap, ALiBi), which have instances of their own.
//
// On chip, d = 128 (d = 64): K, V Bc x d, 64 KiB (16); Q, dO 3 (2) x 64 x d, 96 KiB (32); P, dS 2 (1) x 64 x Bc, 64 KiB (16). In all
// 226 KiB, one CTA an SM (65 KiB, three). Registers: dK, dV d; S, dP 64, later dQ 32.
// A tile: 10 Br Bc d FLOPs; bytes of global memory: Q, dO 4 Br d read, dQ 4 Br d added, L and D.
//
// For each query tile of each head of the group that sees the key tile:
//   1. start the copy of the next Q, dO, L, D
//   2. S = Q K^T,  dP = dO V^T
//   3. P = 2^(S - L), dS = P o (dP - D), to shared memory. Only tiles that the mask cuts, or dropout, look at single weights
//   4. dV += P^T dO,  dK += dS^T Q
//   5. dQ += dS K, atomically
//   6. with two slots: wait until all have read them
#pragma once

#include "03_fa2/backward_tiles.h"

namespace stage03::a_backward {

using namespace attention;
using namespace gpu;

template <class T, int d, int slots>
struct Shared {
    static constexpr int Br = Tiles<d>::Br, Bc = Tiles<d>::Bc;
    Tile16<T, Bc, d> K, V;
    Tile16<T, Br, d> Q[slots], dO[slots];
    Tile16<T, Br, Bc> P[slots - 1], dS[slots - 1];
    SharedArray<float, Br> L[slots], D[slots];
};

/// One CTA a query tile: its D and L, and zeros for the sums of dQ. L_log2 and D: (scratch tile, query); dQ_sum: (scratch tile,
/// element).
template <class T, int d>
__global__ void __launch_bounds__(threads<d>)
    prepare(KernelProblem problem, Tensor<const T> O, Tensor<const T> dO, Tensor<const float> L, Tensor<float> L_log2,
            Tensor<float> D, Tensor<float> dQ_sum) {
    constexpr int Br = Tiles<d>::Br;
    const QueryTile tile(problem, Br);
    const Sequence sequence = problem.sequence(tile.b);
    if (tile.i0 >= sequence.Nq) return;
    row_statistics<T, d>(problem, sequence, tile, O, dO, L, L_log2, D);
    const auto dQ_sum_gmem = dQ_sum.matrix(0, tile.h, tile.scratch, 1);
    for (int e = 4 * threadIdx.x; e < Br * d; e += 4 * threads<d>) dQ_sum_gmem.store(0, e, Vector<float, 4>{});
}

/// L_log2, D and dQ_sum as from `prepare`. modified: with softcap or ALiBi.
template <class T, int d, int slots, bool modified>
__global__ void __launch_bounds__(threads<d>, modified ? 1 : Tiles<d>::ctas)
    backward(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<const T> V, Tensor<const T> dO,
             Tensor<const float> L_log2, Tensor<const float> D, Tensor<float> dQ_sum, Tensor<T> dK, Tensor<T> dV,
             int heads_of_section) {
    constexpr int Br = Tiles<d>::Br, Bc = Tiles<d>::Bc;
    auto& smem = shared_memory<Shared<T, d, slots>>();

    const KeyTile key_tile(problem, Bc, heads_of_section);
    const int b = key_tile.b, kv_head = key_tile.kv_head, j0 = key_tile.j0;
    const Sequence sequence = problem.sequence(b);
    if (j0 >= sequence.Nk) return;
    const Mask mask = problem.mask(sequence);
    const float kept_scale = problem.dropout.enabled ? problem.dropout.scale : 1.0f;
    const Range heads = {kv_head * (problem.Hq / problem.Hkv), (kv_head + 1) * (problem.Hq / problem.Hkv)};
    const Range q_tiles = mask.query_tiles(j0, Bc, Br);
    const auto scratch = first_tile(problem, b, Br);

    const int lane = lane_id();
    const int g = lane / 4, t = lane % 4;  // of fragments: row g, columns 2t and 2t + 1 (mma.h)
    // What this lane points at in a block of 16 x 16 (ldmatrix.h): an operand as it is stored, and the other way round.
    const int row_A = lane % 16, column_A = 8 * (lane / 16);
    const int row_B = lane % 8 + 8 * (lane / 16), column_B = 8 * (lane / 8 % 2);
    const PartOfS<d> S_part;
    const PartOfdK<d> dK_part;
    const PartOfdQ<d> dQ_part;

    const auto copy_queries = [&](int head, int q_tile, int slot) {
        copy_rows<d, threads<d>>(smem.Q[slot], sequence.queries(Q, head), q_tile * Br, mask.seeing_queries());
        copy_rows<d, threads<d>>(smem.dO[slot], sequence.queries(dO, head), q_tile * Br, mask.seeing_queries());
        const int column = 4 * threadIdx.x % Br;
        if (threadIdx.x < Br / 4) {
            const auto L_gmem = L_log2.matrix(0, head, scratch + q_tile, 1);
            cp_async_cg_16(smem.L[slot].address(0, column), L_gmem, 0, column, 16);
        } else if (threadIdx.x < Br / 2) {
            const auto D_gmem = D.matrix(0, head, scratch + q_tile, 1);
            cp_async_cg_16(smem.D[slot].address(0, column), D_gmem, 0, column, 16);
        }
        cp_async_commit_group();
    };

    if (!q_tiles.empty()) {
        copy_rows<d, threads<d>>(smem.K, sequence.keys(K, kv_head), j0, mask.seen_keys());
        copy_rows<d, threads<d>>(smem.V, sequence.keys(V, kv_head), j0, mask.seen_keys());
        copy_queries(heads.begin, q_tiles.begin, 0);
        cp_async_wait_group<0>();
        bar_sync();
    }

    typename PartOfdK<d>::Accumulator dK_rmem = {}, dV_rmem = {};
    int head = heads.begin, q_tile = q_tiles.begin;
    for (int step = 0; !q_tiles.empty() && head < heads.end; ++step) {
        const int i0 = q_tile * Br, slot = step % slots;
        auto& Q_smem = smem.Q[slot];
        auto& dO_smem = smem.dO[slot];
        auto& P_smem = smem.P[step % (slots - 1)];
        auto& dS_smem = smem.dS[step % (slots - 1)];

        // 1. This tile has landed for everybody, and everybody has left the slot of the next one.
        const bool last_tile = q_tile + 1 == q_tiles.end;
        const int next_head = head + last_tile, next_tile = last_tile ? q_tiles.begin : q_tile + 1;
        if (next_head < heads.end) copy_queries(next_head, next_tile, (step + 1) % slots);

        // 2. S = Q K^T and dP = dO V^T.
        const auto kept = kept_weights<S_part.m_tiles, S_part.n_tiles>(problem.dropout, b * problem.Hq + head,
                                                                       i0 + S_part.row + g, j0 + S_part.column + 2 * t);
        typename PartOfS<d>::Accumulator S = {}, dP = {};
        const auto load_rows = [&](auto& tile) {
            return [&](auto& r, int m, int k) {
                ldmatrix_x4(r, tile.address(S_part.row + 16 * m + row_A, 16 * k + column_A));
            };
        };
        const auto load_keys = [&](auto& tile) {
            return [&](auto& r, int n, int k) {
                ldmatrix_x4(r, tile.address(S_part.column + 8 * n + row_B, 16 * k + column_B));
            };
        };
        multiply<T, d / 16>(S, load_rows(Q_smem), load_keys(smem.K));
        multiply<T, d / 16>(dP, load_rows(dO_smem), load_keys(smem.V));

        // 3. P and dS.
        weights<modified>(
            S, dP, problem, sequence, mask, head, i0 + S_part.row + g, j0 + S_part.column + 2 * t,
            mask.classify(i0, Br, j0, Bc) == Tile::full, [&] { return kept; },
            [&](int r) {
                const int row = S_part.row + g + r;
                return Vector<float, 2>{smem.L[slot](row), smem.D[slot](row)};
            },
            [&](int m, int half, int n, const float(&P)[2], const float(&dS)[2]) {
                const int row = S_part.row + 16 * m + 8 * half + g, column = S_part.column + 8 * n + 2 * t;
                P_smem.store_x2(row, column, cvt_rn_x2<T>(P[0], P[1]));
                dS_smem.store_x2(row, column, cvt_rn_x2<T>(dS[0], dS[1]));
            });
        if constexpr (slots == 3) cp_async_wait_group<0>();
        bar_sync();

        // 4. dV += P^T dO and dK += dS^T Q, both operands transposed.
        const auto load_transposed = [&](auto& tile) {
            return [&](auto& r, int m, int k) {
                ldmatrix_x4_trans(r, tile.address(16 * k + row_B, dK_part.row + 16 * m + column_B));
            };
        };
        const auto load_queries = [&](auto& tile) {
            return [&](auto& r, int n, int k) {
                ldmatrix_x4_trans(r, tile.address(16 * k + row_A, dK_part.column + 8 * n + column_A));
            };
        };
        multiply<T, Br / 16>(dV_rmem, load_transposed(P_smem), load_queries(dO_smem));
        multiply<T, Br / 16>(dK_rmem, load_transposed(dS_smem), load_queries(Q_smem));

        // 5. dQ += dS K. Lane by lane and register by register: `finish` knows the order.
        typename PartOfdQ<d>::Accumulator dQ = {};
        multiply<T, Bc / 16>(
            dQ,
            [&](auto& r, int m, int k) {
                ldmatrix_x4(r, dS_smem.address(dQ_part.row + 16 * m + row_A, 16 * k + column_A));
            },
            [&](auto& r, int n, int k) {
                ldmatrix_x4_trans(r, smem.K.address(16 * k + row_A, dQ_part.column + 8 * n + column_A));
            });
        const auto dQ_sum_gmem = dQ_sum.matrix(0, head, scratch + q_tile, 1);
        int e = threadIdx.x;
        for (auto& row : dQ) {
            for (auto& block : row) {
                for (float x : block) {
                    red_global_add_f32(dQ_sum_gmem, 0, e, x);
                    e += threads<d>;
                }
            }
        }
        head = next_head, q_tile = next_tile;

        // 6. Everybody leaves Q, dO, P and dS; the next tile has landed.
        if constexpr (slots == 2) {
            cp_async_wait_group<0>();
            bar_sync();
        }
    }

    // dK and dV; zeros where no query sees the tile. A kept weight of dV counts 1 / (1 - p) times.
    const auto dK_gmem = sequence.keys(dK, kv_head);
    const auto dV_gmem = sequence.keys(dV, kv_head);
    for (int m = 0; m < dK_part.m_tiles; ++m) {
        for (int half = 0; half < 2; ++half) {
            const int j = j0 + dK_part.row + 16 * m + 8 * half + g;
            for (int n = 0; n < dK_part.n_tiles; ++n) {
                const int column = dK_part.column + 8 * n + 2 * t;
                if (j >= sequence.Nk || column >= problem.d) continue;
                const float(&k)[4] = dK_rmem[m][n], (&v)[4] = dV_rmem[m][n];
                dK_gmem.store(
                    j, column,
                    cvt_rn<T>(Vector<float, 2>{problem.scale * k[2 * half], problem.scale * k[2 * half + 1]}));
                dV_gmem.store(j, column,
                              cvt_rn<T>(Vector<float, 2>{kept_scale * v[2 * half], kept_scale * v[2 * half + 1]}));
            }
        }
    }
}

/// One CTA a query tile: dQ from its sums. A thread has eight columns of a query, which four lanes of `backward` added up.
template <class T, int d>
__global__ void __launch_bounds__(threads<d>) finish(KernelProblem problem, Tensor<const float> dQ_sum, Tensor<T> dQ) {
    constexpr int Br = Tiles<d>::Br;
    using Part = PartOfdQ<d>;
    const QueryTile tile(problem, Br);
    const Sequence sequence = problem.sequence(tile.b);
    const auto dQ_sum_gmem = dQ_sum.matrix(0, tile.h, tile.scratch, 1);
    const auto dQ_gmem = sequence.queries(dQ, tile.h);
    for (int e = threadIdx.x; e < Br * d / 8; e += threads<d>) {
        const int row = e / d * 8 + e % 8, column = e % d / 8 * 8;
        if (tile.i0 + row >= sequence.Nq || column >= problem.d) continue;
        const int warp = row / (16 * Part::m_tiles) * Part::column_warps + column / (8 * Part::n_tiles);
        const int m = row / 16 % Part::m_tiles, n = column / 8 % Part::n_tiles, half = row / 8 % 2;
        const int first = ((m * Part::n_tiles + n) * 4 + 2 * half) * threads<d> + warp * warp_size + row % 8 * 4;
        const Vector<float, 4> even = dQ_sum_gmem.load4(0, first), odd = dQ_sum_gmem.load4(0, first + threads<d>);
        Vector<T, 8> x;
        for (int t = 0; t < 4; ++t) {
            x[2 * t] = cvt_rn<T>(problem.scale * even[t]);
            x[2 * t + 1] = cvt_rn<T>(problem.scale * odd[t]);
        }
        dQ_gmem.store(tile.i0 + row, column, x);
    }
}

}  // namespace stage03::a_backward
