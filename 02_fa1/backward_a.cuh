// 02a backward: recomputation (Dao et al. 2022, Algorithm 4), one thread a score, in fp32 arithmetic.
//
// Nothing of size Nq x Nk was kept. From Q, K and the saved L a tile of P comes back as P = e^(S - L), and with D = rowsum(dO o O)
//     dV += P^T dO      dP = dO V^T      dS = P o (dP - D)      dK += scale dS^T Q      dQ += scale dS K
//
// Two kernels. `row_dots`: D of every query. `backward`: one CTA of 8 Bc threads for each (sequence,
// key/value head). The outer loop walks the key tiles; the inner one walks the query heads of the group and, for each, the query
// tiles of Br = 8 that see the key tile. dK and dV stay on chip for a whole key tile, so the sum over a group is an fp32 sum; dQ
// travels: it is read and written (fp32) for each key tile. Every sum has one owner: no atomics, and results repeat bit for bit.
//
// On chip (fp32):  K, V, dK, dV Bc x d;  Q, dO 8 x d;  P, dS 8 x Bc. Bc d = 2048: 38 KiB for d = 64, 41 for 128, 49 for 256.
// A tile: 10 Br Bc d FLOPs. Global memory, in elements: Q, dO 2 Br d read, dQ read and written, 2 Br d, and L, D.
//
// For each key tile:
//   1. K, V to shared memory; dK = dV = 0
//   For each query tile of each head:
//     2. Q, dO, L, D to shared memory
//     3. S, dP;  P = e^(S - L);  dS = P o (dP - D). Dropout: forward's mask, drawn again
//     4. dV += P^T dO,  dK += dS^T Q
//     5. dQ += dS K, in global memory; after the last key tile in the type of Q, scaled
//   6. dK, scaled, and dV to global memory
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage02::a_backward {

using namespace attention;
using namespace gpu;

constexpr int Br = 8;
constexpr int dot_warps = 4;

template <int Bc, int max_d>
struct Shared {
    SharedTile<float, Bc, max_d + 1> K, V;  // padded: in 3. the threads of a warp read one column of different keys
    SharedTile<float, Bc, max_d> dK, dV;
    SharedTile<float, Br, max_d> Q, dO;
    SharedTile<float, Br, Bc> P, dS;
    SharedArray<float, Br> L, D;
};

/// One warp a query: D = sum_c dO_c O_c; 0 for a query that sees no key, whatever its dO holds.
template <class T>
__global__ void __launch_bounds__(dot_warps* warp_size)
    row_dots(KernelProblem problem, Tensor<const T> O, Tensor<const T> dO, Tensor<float> D) {
    const auto [b, h, i] = problem.query(std::int64_t(blockIdx.x) * dot_warps + warp_id());
    if (b >= problem.B) return;
    const Sequence sequence = problem.sequence(b);
    if (i >= sequence.Nq) return;

    const auto O_gmem = sequence.queries(O, h);
    const auto dO_gmem = sequence.queries(dO, h);
    float sum = 0;
    if (problem.mask(sequence).seeing_queries().contains(i)) {
        for (int c = lane_id(); c < problem.d; c += warp_size) sum += to_float(O_gmem(i, c)) * to_float(dO_gmem(i, c));
    }
    for (int distance = 16; distance > 0; distance /= 2) sum += shfl_sync_bfly(sum, distance);
    if (lane_id() == 0) sequence.queries(D, h)(i) = sum;
}

/// max_d: columns of the tiles; problem.d may be smaller. dQ_old: fp32 (queries x d), scratch between key tiles.
/// L, D: one value a query, from forward and row_dots. Bounds as in a_tiles.cuh.
template <class T, int Bc, int max_d>
__global__ void __launch_bounds__(Br* Bc, 2)
    backward(KernelProblem problem, Tensor<const T> Q, Tensor<const T> K, Tensor<const T> V, Tensor<const T> dO,
             Tensor<const float> L, Tensor<const float> D, Tensor<T> dQ, Tensor<T> dK, Tensor<T> dV,
             Tensor<float> dQ_old) {
    constexpr int threads = Br * Bc;
    auto& smem = shared_memory<Shared<Bc, max_d>>();

    const int d = problem.d, kv_head = blockIdx.x % problem.Hkv, b = blockIdx.x / problem.Hkv;
    const int heads = problem.Hq / problem.Hkv;
    const Sequence sequence = problem.sequence(b);
    const Mask mask = problem.mask(sequence);

    const auto K_gmem = sequence.keys(K, kv_head);
    const auto V_gmem = sequence.keys(V, kv_head);
    const auto dK_gmem = sequence.keys(dK, kv_head);
    const auto dV_gmem = sequence.keys(dV, kv_head);

    // Queries outside every key tile's loop: they see no key, and their dQ is 0.
    for (int h = kv_head * heads; h < (kv_head + 1) * heads; ++h) {
        const auto dQ_gmem = sequence.queries(dQ, h);
        for (int i0 = 0; i0 < sequence.Nq; i0 += Br) {
            if (!mask.key_tiles(i0, Br, Bc).empty()) continue;
            for (int e = threadIdx.x; e < Br * d && i0 + e / d < sequence.Nq; e += threads) {
                dQ_gmem(i0 + e / d, e % d) = cvt_rn<T>(0.0f);
            }
        }
    }

    for (int kv_tile = 0; kv_tile < ceil_div(sequence.Nk, Bc); ++kv_tile) {
        const int j0 = kv_tile * Bc;
        const Range q_tiles = mask.query_tiles(j0, Bc, Br);

        // 1. K and V of the keys that anybody sees. In 6. a thread reads only what it wrote itself, and in 5. K is read.
        bar_sync();
        for (int e = threadIdx.x; e < Bc * d; e += threads) {
            const int row = e / d, c = e % d;
            smem.dK(row, c) = 0;
            smem.dV(row, c) = 0;
            if (!mask.seen_keys().contains(j0 + row)) continue;
            smem.K(row, c) = to_float(K_gmem(j0 + row, c));
            smem.V(row, c) = to_float(V_gmem(j0 + row, c));
        }

        for (int h = kv_head * heads; h < (kv_head + 1) * heads; ++h) {
            const auto Q_gmem = sequence.queries(Q, h);
            const auto dO_gmem = sequence.queries(dO, h);
            const auto dQ_gmem = sequence.queries(dQ, h);
            const auto dQ_old_gmem = sequence.queries(dQ_old, h);

            for (int q_tile = q_tiles.begin; q_tile < q_tiles.end; ++q_tile) {
                const int i0 = q_tile * Br;
                const Range kv_tiles = mask.key_tiles(i0, Br, Bc);
                const bool first = kv_tile == kv_tiles.begin, last = kv_tile + 1 == kv_tiles.end;

                // 2. Q, dO of the queries that see a key, once everybody has left the last tile's.
                bar_sync();
                for (int e = threadIdx.x; e < Br * d; e += threads) {
                    const int row = e / d, c = e % d;
                    if (!mask.seeing_queries().contains(i0 + row)) continue;
                    smem.Q(row, c) = to_float(Q_gmem(i0 + row, c));
                    smem.dO(row, c) = to_float(dO_gmem(i0 + row, c));
                }
                if (threadIdx.x < Br && i0 + int(threadIdx.x) < sequence.Nq) {
                    smem.L(threadIdx.x) = sequence.queries(L, h)(i0 + threadIdx.x);
                    smem.D(threadIdx.x) = sequence.queries(D, h)(i0 + threadIdx.x);
                }
                bar_sync();

                // 3. One weight a thread. Hidden ones are left out of 4. and 5., so that a NaN reaches nobody who does not see it.
                const int row = threadIdx.x / Bc, key = threadIdx.x % Bc;
                if (const int i = i0 + row, j = j0 + key; mask.visible(i, j)) {
                    float s = 0, dP = 0;
                    for (int c = 0; c < d; ++c) {
                        s += smem.Q(row, c) * smem.K(key, c);
                        dP += smem.dO(row, c) * smem.V(key, c);
                    }
                    const bool kept = !problem.dropout.enabled || problem.dropout.keeps(b * problem.Hq + h, i, j);
                    const float Z = kept ? problem.dropout.scale : 0.0f;
                    const float P = ex2_approx_ftz((s * problem.scale - smem.L(row)) * log2_e);  // rounded once less
                    smem.P(row, key) = P * Z;
                    smem.dS(row, key) = P * (dP * Z - smem.D(row));
                }
                bar_sync();

                // 4. dV and dK of the tile's keys.
                for (int e = threadIdx.x; e < Bc * d; e += threads) {
                    const int key = e / d, c = e % d;
                    const Range queries = mask.queries(j0 + key);
                    float v = smem.dV(key, c), k = smem.dK(key, c);
                    for (int i = queries.begin > i0 ? queries.begin : i0; i < i0 + Br && i < queries.end; ++i) {
                        v += smem.P(i - i0, key) * smem.dO(i - i0, c);
                        k += smem.dS(i - i0, key) * smem.Q(i - i0, c);
                    }
                    smem.dV(key, c) = v;
                    smem.dK(key, c) = k;
                }

                // 5. dQ of the tile's queries.
                for (int e = threadIdx.x; e < Br * d && i0 + e / d < sequence.Nq; e += threads) {
                    const int row = e / d, c = e % d;
                    const Range keys = mask.keys(i0 + row);
                    float q = 0;
                    if (!first) q = dQ_old_gmem(i0 + row, c);
                    for (int j = keys.begin > j0 ? keys.begin : j0; j < j0 + Bc && j < keys.end; ++j) {
                        q += smem.dS(row, j - j0) * smem.K(j - j0, c);
                    }
                    if (last) {
                        dQ_gmem(i0 + row, c) = cvt_rn<T>(q * problem.scale);
                    } else {
                        dQ_old_gmem(i0 + row, c) = q;
                    }
                }
            }
        }

        // 6. Zeros where no query sees the tile.
        for (int e = threadIdx.x; e < Bc * d && j0 + e / d < sequence.Nk; e += threads) {
            const int row = e / d, c = e % d;
            dK_gmem(j0 + row, c) = cvt_rn<T>(smem.dK(row, c) * problem.scale);
            dV_gmem(j0 + row, c) = cvt_rn<T>(smem.dV(row, c));
        }
    }
}

}  // namespace stage02::a_backward
