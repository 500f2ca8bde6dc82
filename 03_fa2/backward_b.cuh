// 03b backward: deterministic. Nothing is added across CTAs, so results are the same bits in every run and every order of events.
//
// backward_a adds the parts of dQ of all key tiles in whatever order they come. Here dQ has a kernel of its own with the loops the
// other way round, queries outside: one CTA for each (query tile, query head, sequence), dQ in registers, keys go by. It computes S and
// dP once more: 7 products instead of 5, and twice the exponentials. In exchange there are no sums in fp32, which took 10 d bytes a
// query and 4 d for each of its tiles, no third kernel, and neither P nor dS of the new one leaves its registers.
//
// Three kernels: `prepare` and `backward` of backward_a without dQ, and `backward_queries`. There 4 warps have 32 queries each (16 for
// d > 128), and all keys of a tile, so that the accumulators of dS are the operand registers of dQ = dS K.
//
// On chip, d = 128 (d = 64): Q, dO 128 x d, 64 KiB (32); K, V 2 x 32 x d each, 32 KiB (16). In all 97 KiB (49): two CTAs an SM, as the
// registers allow: dQ d; S, dP 64.
// A tile: 6 Br Bc d FLOPs; bytes of global memory: K, V 4 Bc d read.
//
// For each key tile that the query tile sees:
//   1. wait for K, V; start the copy of the next ones
//   2. S = Q K^T,  dP = dO V^T
//   3. dS = 2^(S - L) o (dP - D), as operand registers
//   4. dQ += dS K
#pragma once

#include "03_fa2/backward_a.cuh"

namespace stage03::b_backward {

using namespace attention;
using namespace gpu;

constexpr int warps = 4;
constexpr int threads = warps * warp_size;

template <int d>
struct Tiles {
    static constexpr int Br = d <= 128 ? 128 : 64;
    static constexpr int Bc = 32;
};

template <class T, int d>
struct Shared {
    Tile16<T, Tiles<d>::Br, d> Q, dO;
    Tile16<T, Tiles<d>::Bc, d> K[2], V[2];
    SharedArray<float, Tiles<d>::Br> L, D;
};

/// L_log2, D: from `prepare`. The longest rows of a causal mask first. modified: with softcap or ALiBi.
template <class T, int d, bool modified>
__global__ void __launch_bounds__(threads)
    backward_queries(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<const T> V, Tensor<const T> dO,
                     Tensor<const float> L_log2, Tensor<const float> D, Tensor<T> dQ) {
    constexpr int Br = Tiles<d>::Br, Bc = Tiles<d>::Bc;
    constexpr int m_tiles = Br / warps / 16, n_tiles = Bc / 8;
    auto& smem = shared_memory<Shared<T, d>>();

    const int heads = problem.B * problem.Hq, b = blockIdx.x % heads / problem.Hq, h = blockIdx.x % problem.Hq;
    const int i0 = (ceil_div(problem.Nq, Br) - 1 - int(blockIdx.x / heads)) * Br;
    const Sequence sequence = problem.sequence(b);
    if (i0 >= sequence.Nq) return;
    const Mask mask = problem.mask(sequence);
    const float scale_log2 = problem.scale * log2_e;
    const float kept_scale = problem.dropout.enabled ? problem.dropout.scale : 1.0f;
    const Range kv_tiles = mask.key_tiles(i0, Br, Bc);
    const auto K_gmem = sequence.keys(K, problem.kv_head(h));
    const auto V_gmem = sequence.keys(V, problem.kv_head(h));

    const int lane = lane_id(), g = lane / 4, t = lane % 4;
    const int row_A = lane % 16, column_A = 8 * (lane / 16);
    const int row_B = lane % 8 + 8 * (lane / 16), column_B = 8 * (lane / 8 % 2);
    const int warp_query = warp_id() * 16 * m_tiles;

    const auto copy_keys = [&](int kv_tile) {
        copy_rows<d, threads>(smem.K[kv_tile % 2], K_gmem, kv_tile * Bc, mask.seen_keys());
        copy_rows<d, threads>(smem.V[kv_tile % 2], V_gmem, kv_tile * Bc, mask.seen_keys());
        cp_async_commit_group();
    };
    if (!kv_tiles.empty()) {
        copy_rows<d, threads>(smem.Q, sequence.queries(Q, h), i0, mask.seeing_queries());
        copy_rows<d, threads>(smem.dO, sequence.queries(dO, h), i0, mask.seeing_queries());
        copy_keys(kv_tiles.begin);
    }

    if (int(threadIdx.x) < Br) {
        constexpr int scratch_Br = stage03::Tiles<d>::Br;
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
        const auto weights = [&](auto single) {
            const ScoreModifier<modified> modifier(problem, sequence, h);
            const auto kept = !single ? 0
                                      : kept_weights<m_tiles, n_tiles>(problem.dropout, b * problem.Hq + h,
                                                                       i0 + warp_query + g, j0 + 2 * t);
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int row = warp_query + 16 * m + 8 * half + g, i = i0 + row;
                    const float L_i = smem.L(row), D_i = smem.D(row);
                    const Range keys = single ? mask.keys(i) : Range{};
#pragma unroll
                    for (int n = 0; n < n_tiles; ++n) {
                        const int j = j0 + 8 * n + 2 * t;
                        float dS[2];
                        for (int c = 0; c < 2; ++c) {
                            const bool hidden = single && !keys.contains(j + c);
                            const float x = S[m][n][2 * half + c];
                            const float s = hidden     ? -infinity
                                            : modified ? modifier.score(x, i, j + c)
                                                       : x * scale_log2;
                            const float P = ex2_approx_ftz(s - L_i);
                            const int bit = 2 * ((2 * m + half) * n_tiles + n) + c;
                            const bool dropped = single && (kept >> bit & 1) == 0;
                            float dP_ij = dP[m][n][2 * half + c];
                            if (single) dP_ij = dropped ? 0.0f : kept_scale * dP_ij;
                            dS[c] = hidden ? 0.0f : modifier.derivative(x) * P * (dP_ij - D_i);
                        }
                        dS_rmem[m][n / 2][n % 2 * 2 + half] = cvt_rn_x2<T>(dS[0], dS[1]);
                    }
                }
            }
        };
        if (!modified && mask.classify(i0, Br, j0, Bc) == Tile::full && !problem.dropout.enabled) {
            weights(std::false_type());
        } else {
            weights(std::true_type());
        }

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
