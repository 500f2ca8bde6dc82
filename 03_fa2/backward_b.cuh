// 03b backward, deterministic. Nothing is added across CTAs, so results are the same bits in every run and every order of events.
//
// 03a adds the parts of dQ of all key tiles in whatever order they come. Here dQ has a kernel of its own with the loops the other way
// round, queries outside: one CTA for each (query tile, query head, sequence), dQ in registers, keys go by. It computes S and dP once
// more: 7 products instead of 5, and twice the exponentials. In exchange there are no sums in fp32, which took 10 d bytes a query and
// 4 d for each of its tiles, and neither P nor dS of the new kernel leaves its registers.
//
// Three kernels: `prepare`, `backward_keys`, which is 03a's without its phase 5, and `backward_queries`. There 4 warps have 32 queries
// each (16 for d > 128), and all keys of a tile, so that the accumulators of dS are the operand registers of dQ = dS K.
//
// On chip, d = 128 (d = 64), backward_queries: Q, dO 128 x d, 64 KiB (32); K, V 2 x 32 x d each, 32 KiB (16). In all 97 KiB (49): two
// CTAs an SM, as the registers allow: dQ d; S, dP 64.  A tile: 6 Br Bc d FLOPs; bytes of global memory: K, V 4 Bc d read.
//
// For each key tile that the query tile sees:
//   1. wait for K, V; start the copy of the next ones
//   2. S = Q K^T,  dP = dO V^T
//   3. dS = 2^(S - L) o (dP - D), as operand registers
//   4. dQ += dS K
#pragma once

#include "03_fa2/backward_tiles.h"

namespace stage03::b_backward {

using namespace attention;
using namespace gpu;

constexpr int query_warps = 4;
constexpr int query_threads = query_warps * warp_size;

/// Of backward_queries.
template <int d>
struct QueryTiles {
    static constexpr int Br = d <= 128 ? 128 : 64;
    static constexpr int Bc = 32;
};

template <class T, int d, int slots>
struct Shared {
    static constexpr int Br = Tiles<d>::Br, Bc = Tiles<d>::Bc;
    Tile16<T, Bc, d> K, V;
    Tile16<T, Br, d> Q[slots], dO[slots];
    Tile16<T, Br, Bc> P[slots - 1], dS[slots - 1];
    SharedArray<float, Br> L[slots], D[slots];
};

template <class T, int d>
struct SharedOfQueries {
    Tile16<T, QueryTiles<d>::Br, d> Q, dO;
    Tile16<T, QueryTiles<d>::Bc, d> K[2], V[2];
    SharedArray<float, QueryTiles<d>::Br> L, D;
};

/// One CTA a query tile: its D and L, as (scratch tile, query).
template <class T, int d>
__global__ void __launch_bounds__(threads<d>) prepare(KernelProblem problem, Tensor<const T> O, Tensor<const T> dO,
                                                      Tensor<const float> L, Tensor<float> L_log2, Tensor<float> D) {
    const QueryTile tile(problem, Tiles<d>::Br);
    const Sequence sequence = problem.sequence(tile.b);
    if (tile.i0 < sequence.Nq) row_statistics<T, d>(problem, sequence, tile, O, dO, L, L_log2, D);
}

/// dK and dV, with the phases of 03a. L_log2, D: from `prepare`. modified: with softcap or ALiBi.
template <class T, int d, int slots, bool modified>
__global__ void __launch_bounds__(threads<d>, modified ? 1 : Tiles<d>::ctas)
    backward_keys(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<const T> V, Tensor<const T> dO,
                  Tensor<const float> L_log2, Tensor<const float> D, Tensor<T> dK, Tensor<T> dV, int heads_of_section) {
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

/// dQ. The longest rows of a causal mask first.
template <class T, int d, bool modified>
__global__ void __launch_bounds__(query_threads)
    backward_queries(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<const T> V, Tensor<const T> dO,
                     Tensor<const float> L_log2, Tensor<const float> D, Tensor<T> dQ) {
    constexpr int Br = QueryTiles<d>::Br, Bc = QueryTiles<d>::Bc;
    constexpr int m_tiles = Br / query_warps / 16, n_tiles = Bc / 8;
    auto& smem = shared_memory<SharedOfQueries<T, d>>();

    const int heads = problem.B * problem.Hq, b = blockIdx.x % heads / problem.Hq, h = blockIdx.x % problem.Hq;
    const int i0 = (ceil_div(problem.Nq, Br) - 1 - int(blockIdx.x / heads)) * Br;
    const Sequence sequence = problem.sequence(b);
    if (i0 >= sequence.Nq) return;
    const Mask mask = problem.mask(sequence);
    const Range kv_tiles = mask.key_tiles(i0, Br, Bc);
    const auto K_gmem = sequence.keys(K, problem.kv_head(h));
    const auto V_gmem = sequence.keys(V, problem.kv_head(h));

    const int lane = lane_id(), g = lane / 4, t = lane % 4;
    const int row_A = lane % 16, column_A = 8 * (lane / 16);
    const int row_B = lane % 8 + 8 * (lane / 16), column_B = 8 * (lane / 8 % 2);
    const int warp_query = warp_id() * 16 * m_tiles;

    const auto copy_keys = [&](int kv_tile) {
        copy_rows<d, query_threads>(smem.K[kv_tile % 2], K_gmem, kv_tile * Bc, mask.seen_keys());
        copy_rows<d, query_threads>(smem.V[kv_tile % 2], V_gmem, kv_tile * Bc, mask.seen_keys());
        cp_async_commit_group();
    };
    if (!kv_tiles.empty()) {
        copy_rows<d, query_threads>(smem.Q, sequence.queries(Q, h), i0, mask.seeing_queries());
        copy_rows<d, query_threads>(smem.dO, sequence.queries(dO, h), i0, mask.seeing_queries());
        copy_keys(kv_tiles.begin);
    }

    if (int(threadIdx.x) < Br) {
        constexpr int scratch_Br = Tiles<d>::Br;
        const int i = i0 + threadIdx.x, scratch = first_tile(problem, b, scratch_Br) + i / scratch_Br;
        const bool there = i < sequence.Nq;
        smem.L(threadIdx.x) = there ? L_log2.matrix(0, h, scratch, 1)(0, i % scratch_Br) : 0.0f;
        smem.D(threadIdx.x) = there ? D.matrix(0, h, scratch, 1)(0, i % scratch_Br) : 0.0f;
    }

    float dQ_rmem[m_tiles][d / 8][4] = {};
    for (int kv_tile = kv_tiles.begin; kv_tile < kv_tiles.end; ++kv_tile) {
        const int j0 = kv_tile * Bc;
        auto& K_smem = smem.K[kv_tile % 2];
        auto& V_smem = smem.V[kv_tile % 2];

        // 1. Everybody's copies have landed, and everybody has left the last tile's K and V.
        cp_async_wait_group<0>();
        bar_sync();
        if (kv_tile + 1 < kv_tiles.end) copy_keys(kv_tile + 1);

        // 2. S = Q K^T and dP = dO V^T.
        float S[m_tiles][n_tiles][4] = {}, dP[m_tiles][n_tiles][4] = {};
        const auto load_queries = [&](auto& tile) {
            return [&](auto& r, int m, int k) {
                ldmatrix_x4(r, tile.address_beyond(tile.offset(row_A, column_A), warp_query + 16 * m, 16 * k));
            };
        };
        const auto load_keys = [&](auto& tile) {
            return [&](auto& r, int n, int k) {
                ldmatrix_x4(r, tile.address_beyond(tile.offset(row_B, column_B), 8 * n, 16 * k));
            };
        };
        multiply<T, d / 16>(S, load_queries(smem.Q), load_keys(K_smem));
        multiply<T, d / 16>(dP, load_queries(smem.dO), load_keys(V_smem));

        // 3. dS. Its n8 tiles 2k and 2k + 1 become the A operand of k16 step k: registers {0, 1} and {2, 3} (mma.h).
        std::uint32_t dS_rmem[m_tiles][Bc / 16][4];
        const int i = i0 + warp_query + g, j = j0 + 2 * t;
        weights<modified>(
            S, dP, problem, sequence, mask, h, i, j, mask.classify(i0, Br, j0, Bc) == Tile::full,
            [&] { return kept_weights<m_tiles, n_tiles>(problem.dropout, b * problem.Hq + h, i, j); },
            [&](int r) {
                const int row = warp_query + g + r;
                return Vector<float, 2>{smem.L(row), smem.D(row)};
            },
            [&](int m, int half, int n, const float(&)[2], const float(&dS)[2]) {
                dS_rmem[m][n / 2][n % 2 * 2 + half] = cvt_rn_x2<T>(dS[0], dS[1]);
            });

        // 4. dQ += dS K.
        multiply<T, Bc / 16>(
            dQ_rmem,
            [&](auto& r, int m, int k) {
                for (int e = 0; e < 4; ++e) r[e] = dS_rmem[m][k][e];
            },
            [&](auto& r, int n, int k) {
                ldmatrix_x4_trans(r, K_smem.address_beyond(K_smem.offset(row_A, column_A), 16 * k, 8 * n));
            });
    }

    const auto dQ_gmem = sequence.queries(dQ, h);
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = i0 + warp_query + 16 * m + 8 * half + g;
#pragma unroll
            for (int n = 0; n < d / 8; ++n) {
                const int column = 8 * n + 2 * t;
                if (i >= sequence.Nq || column >= problem.d) continue;
                const float(&q)[4] = dQ_rmem[m][n];
                dQ_gmem.store(
                    i, column,
                    cvt_rn<T>(Vector<float, 2>{problem.scale * q[2 * half], problem.scale * q[2 * half + 1]}));
            }
        }
    }
}

}  // namespace stage03::b_backward
