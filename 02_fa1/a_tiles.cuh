// 02a  tiles: FlashAttention's Algorithm 1 (Dao et al. 2022) to the letter, one thread a score, in fp32 arithmetic.
//
// Grid: one CTA for each (sequence, query head). The outer loop walks the key tiles; the inner one walks the query tiles that see
// the key tile. A tile of K and V is read once and serves every query: that is what 01c lacks. The price is that O, l and m of
// all queries are read and written again for each key tile, in global memory (scratch O_old in fp32, l_old, m_old).
//
// 256 threads, Br = 256 / Bc. Thread e computes score (e / Bc, e % Bc) of a tile; a warp computes the statistics of one query at a
// time; thread e computes elements e, e + 256, ... of the tile's O.
//
// On chip (fp32):  K, V Bc x d;  Q Br x d;  S, then P~, Br x Bc. The registered rung has Bc d = 4096, so that they fit an SM of any
// GPU since 7.5, in 34 KiB for d = 64, 37 for 128, 49 for 256.
// A tile: 4 Br Bc d FLOPs. Global memory, in elements a head: K and V, 2 Nk d, once; and for each of the ceil(Nk / Bc) key tiles Q
// read, O read and written, 3 Nq d, and l, m read and written, 4 Nq. (The first key tile reads no O, l, m; L is Nq more.) With
// Bc = M / 4d that is Theta(N^2 d^2 / M), whatever Br is.
//
// For each key tile:
//   1. K_j, V_j to shared memory
//   For each query tile:
//     2. Q_i to shared memory
//     3. S = scale Q_i K_j^T, hidden keys -inf
//     4. m~ = rowmax S,  P~ = e^(S - m~),  l~ = rowsum P~: of this block alone
//     5. m_new = max(m, m~),  l_new = e^(m - m_new) l + e^(m~ - m_new) l~
//     6. O = (l e^(m - m_new) O + e^(m~ - m_new) P~ V_j) / l_new: normalised at every step; after the last key tile in the type of
//        Q, with L = m + log l
// Exponents are in base 2 (softmax.h). With dropout P~ loses weights after l~ has been summed.
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage02::a {

using namespace attention;
using namespace gpu;

constexpr int threads = 256;
constexpr int warps = threads / warp_size;

template <int Bc, int max_d>
struct Shared {
    static constexpr int Br = threads / Bc;
    SharedTile<float, Bc, max_d + 1> K;  // padded: in 3. the threads of a warp read one column of different keys
    SharedTile<float, Bc, max_d> V;
    SharedTile<float, Br, max_d> Q;
    SharedTile<float, Br, Bc> P;                // S until 4.
    SharedArray<float, Br> factor_old, factor;  // of O_old and of P~ V
};

/// max_d: columns of the tiles; problem.d may be smaller. O_old, m_old, l_old: scratch between key tiles, as in 02b.
/// Bounds for two CTAs an SM: without the 2, ptxas aims at more of them and spills.
template <class T, int Bc, int max_d>
__global__ void __launch_bounds__(threads, 2)
    forward(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<const T> V, Tensor<T> O,
            Tensor<float> L, Tensor<float> O_old, Tensor<float> m_old, Tensor<float> l_old) {
    constexpr int Br = threads / Bc;
    auto& smem = shared_memory<Shared<Bc, max_d>>();

    const int d = problem.d, head = blockIdx.x, h = head % problem.Hq;
    const Sequence sequence = problem.sequence(head / problem.Hq);
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

    // Queries outside every key tile's loop: they see no key.
    for (int i0 = 0; i0 < sequence.Nq; i0 += Br) {
        if (!mask.key_tiles(i0, Br, Bc).empty()) continue;
        for (int e = threadIdx.x; e < Br * d && i0 + e / d < sequence.Nq; e += threads) {
            O_gmem(i0 + e / d, e % d) = cvt_rn<T>(0.0f);
            if (e % d == 0) L_gmem(i0 + e / d) = -infinity;
        }
    }

    for (int kv_tile = 0; kv_tile < ceil_div(sequence.Nk, Bc); ++kv_tile) {
        const int j0 = kv_tile * Bc;
        const Range q_tiles = mask.query_tiles(j0, Bc, Br);
        if (q_tiles.empty()) continue;

        // 1. K and V of the keys that anybody sees, once everybody has left the last tile's V.
        bar_sync();
        for (int e = threadIdx.x; e < Bc * d; e += threads) {
            const int row = e / d, c = e % d;
            if (!mask.seen_keys().contains(j0 + row)) continue;
            smem.K(row, c) = to_float(K_gmem(j0 + row, c));
            smem.V(row, c) = to_float(V_gmem(j0 + row, c));
        }

        for (int q_tile = q_tiles.begin; q_tile < q_tiles.end; ++q_tile) {
            const int i0 = q_tile * Br;
            const Range kv_tiles = mask.key_tiles(i0, Br, Bc);
            const bool first = kv_tile == kv_tiles.begin, last = kv_tile + 1 == kv_tiles.end;

            // 2. Q of the queries that see a key.
            for (int e = threadIdx.x; e < Br * d; e += threads) {
                const int row = e / d, c = e % d;
                if (mask.seeing_queries().contains(i0 + row)) smem.Q(row, c) = to_float(Q_gmem(i0 + row, c));
            }
            bar_sync();

            // 3. One score a thread.
            {
                const int row = threadIdx.x / Bc, key = threadIdx.x % Bc;
                float s = -infinity;
                if (mask.visible(i0 + row, j0 + key)) {
                    s = 0;
                    for (int c = 0; c < d; ++c) s += smem.Q(row, c) * smem.K(key, c);
                    s = mul_rn(s, scale_log2);
                }
                smem.P(row, key) = s;
            }
            bar_sync();

            for (int row = warp_id(); row < Br; row += warps) {
                // 4. The block's own maximum, weights and sum.
                float m_block = -infinity, l_block = 0;
                for (int key = lane_id(); key < Bc; key += warp_size) m_block = fmaxf(m_block, smem.P(row, key));
                for (int distance = 16; distance > 0; distance /= 2) {
                    m_block = fmaxf(m_block, shfl_sync_bfly(m_block, distance));
                }
                for (int key = lane_id(); key < Bc; key += warp_size) {
                    const float P = weight(smem.P(row, key), m_block);
                    l_block += P;
                    const bool kept = !problem.dropout.enabled || problem.dropout.keeps(head, i0 + row, j0 + key);
                    smem.P(row, key) = kept ? P : 0.0f;
                }
                for (int distance = 16; distance > 0; distance /= 2) l_block += shfl_sync_bfly(l_block, distance);

                // 5. Old state and block in one scale.
                if (lane_id() == 0) {
                    const int i = i0 + row;
                    float m = -infinity, l = 0;
                    if (!first && i < sequence.Nq) {
                        m = m_old_gmem(i);
                        l = l_old_gmem(i);
                    }
                    const float m_new = fmaxf(m, m_block);
                    const float old = rescale_factor(m, m_new) * l, block = rescale_factor(m_block, m_new);
                    const float l_new = old + block * l_block;
                    smem.factor_old(row) = old * inverse_sum(l_new);
                    smem.factor(row) = block * inverse_sum(l_new) * problem.dropout.scale;
                    if (i < sequence.Nq) {
                        m_old_gmem(i) = m_new;
                        l_old_gmem(i) = l_new;
                        if (last) L_gmem(i) = log_sum_exp(m_new, l_new);
                    }
                }
            }
            bar_sync();

            // 6. O; the sum runs over visible keys only, so that a NaN in V reaches nobody who does not see it.
            for (int e = threadIdx.x; e < Br * d && i0 + e / d < sequence.Nq; e += threads) {
                const int row = e / d, c = e % d, i = i0 + row;
                const Range keys = mask.keys(i);
                float PV = 0;
                for (int j = keys.begin > j0 ? keys.begin : j0; j < j0 + Bc && j < keys.end; ++j) {
                    PV += smem.P(row, j - j0) * smem.V(j - j0, c);
                }
                float o = smem.factor(row) * PV;
                if (!first) o += smem.factor_old(row) * O_old_gmem(i, c);
                if (last) {
                    O_gmem(i, c) = cvt_rn<T>(o);
                } else {
                    O_old_gmem(i, c) = o;
                }
            }
        }
    }
}

}  // namespace stage02::a
