// 04b backward: 04a's, with the additions to dQ in turn, so that it gives the same bits in every run.
//
// Each half of a tile of dQ has a count, `turns`, of the key tiles that have added to it. The lane that sends a half
// away waits until all key tiles whose turn comes before have added (ld_acquire_gpu), adds, waits until the engine has
// written, and counts (red_release_gpu_add).
//
// The last key tile that the queries see adds first. Under a causal mask that is the one on the diagonal, where a key
// tile's queries begin: its first addition waits for nobody, and of neighbours that run at once each comes to a query
// tile Bc / Br steps after the one before it in turn. In ascending order each would wait until all before it have come
// down to its diagonal. Without a mask CTAs of one head begin with the same query tile, and queue in the first round.
//
// A CTA waits only for CTAs of its head with later keys. They have a lower blockIdx, and GPUs start those first (CUDA
// does not promise it), so the wait ends. The price: under a causal mask the longest CTAs of a head start last, in 04a
// first; and dQ's shared memory is free when the engine has written, in 04a when it has read. All else is 04a's.
//
// For each query tile of each head of the group that sees the key tile:
//   1. (producer) Q, L; dO, D          2. S^T = K Q^T and dP^T = V dO^T
//   3. P = 2^(c S - L), 0 where hidden; dS = P o (dP - D), to shared memory
//   4. dV += P^T dO                    5. both consumers' dS is there: dQ = dS K, dK += dS^T Q
//   6. dQ to shared memory, and away in turn
// 7. dK and dV, by way of V's shared memory, in whole rows
#pragma once

#include "04_fa3_hopper/backward_tiles.h"
#include "04_fa3_hopper/store_rows.cuh"
#include "common/attention/kernel_problem.h"
#include "common/gpu/gpu.h"

namespace stage04::b_backward {

using namespace attention;
using namespace gpu;

constexpr int consumers = 2, slots = 2;
constexpr int threads = warpgroup_size * (1 + consumers);
constexpr int Bc = 64 * consumers;
constexpr int Br(int d) { return d == 64 ? 128 : 64; }

template <class T, int d>
struct Shared {
    PanelTile<T, Bc, d> K, V;
    PanelTile<T, Br(d), d> Q[slots], dO[slots];
    PanelTile<T, Bc, Br(d)> dS[2];
    SharedArray<float, Br(d) * d / consumers> dQ[consumers];
    SharedArray<float, Br(d)> L[slots], D[slots];
    SharedArray<Mbarrier, 1> KV_full, landed;
    SharedArray<Mbarrier, slots> Q_full, Q_empty, dO_full, dO_empty;
    SharedArray<Mbarrier, consumers> dQ_full, dQ_empty;
};

/// A place in the ring: the n-th tile that passes through it, and the parity of its turn.
struct Place {
    int slot, parity;
    __device__ explicit Place(int n) : slot(n % slots), parity(n / slots % 2) {}
};

/// One CTA a query tile: what `backward` reads of it, and zeros for what it adds to, sums and turns alike.
template <class T, int d>
__global__ void __launch_bounds__(threads_of_tile)
    prepare(KernelProblem problem, Tensor<const T> O, Tensor<const T> dO, Tensor<const float> L, Tensor<float> L_log2,
            Tensor<float> D, Tensor<float> dQ_sum, Tensor<int> turns) {
    const QueryTile tile(problem, Br(d));
    const Sequence sequence = problem.sequence(tile.b);
    if (tile.i0 >= sequence.Nq) return;
    prepare_tile<T, d, Br(d)>(problem, sequence, tile, O, dO, L, L_log2, D, dQ_sum);
    if (threadIdx.x < consumers) turns.matrix(0, tile.h, tile.scratch, 1)(0, threadIdx.x) = 0;
}

template <class T, int d>
__global__ void __launch_bounds__(threads, 1)
    backward(KernelProblem problem, const __grid_constant__ TensorMap Q_map, const __grid_constant__ TensorMap K_map,
             const __grid_constant__ TensorMap V_map, const __grid_constant__ TensorMap dO_map,
             Tensor<const float> L_log2, Tensor<const float> D, Tensor<float> dQ_sum, Tensor<T> dK, Tensor<T> dV,
             Tensor<int> turns) {
    constexpr int Br = b_backward::Br(d);
    auto& smem = shared_memory<Shared<T, d>>();

    // CTAs that run at the same time share the queries of a few heads; of each head the last keys, whose turn comes first,
    // come first.
    const int kv_tiles = ceil_div(problem.Nk, Bc), sequence_head = blockIdx.x / kv_tiles;
    const int b = sequence_head / problem.Hkv, kv_head = sequence_head % problem.Hkv;
    const int j0 = (kv_tiles - 1 - blockIdx.x % kv_tiles) * Bc;
    const Sequence sequence = problem.sequence(b);
    if (j0 >= sequence.Nk) return;
    const Mask mask = problem.mask(sequence);
    const int group = problem.Hq / problem.Hkv;
    const Range q_tiles = mask.query_tiles(j0, Bc, Br);
    const int steps = q_tiles.empty() ? 0 : group * (q_tiles.end - q_tiles.begin);
    const auto scratch = first_tile(problem, b, Br);
    // The n-th step's query head and tile.
    const auto head_of = [&](int n) { return kv_head * group + n / (q_tiles.end - q_tiles.begin); };
    const auto tile_of = [&](int n) { return q_tiles.begin + n % (q_tiles.end - q_tiles.begin); };

    if (threadIdx.x == 0) {
        mbarrier_init(smem.KV_full.address(0), 1);
        mbarrier_init(smem.landed.address(0), 1);
        for (int slot = 0; slot < slots; ++slot) {
            mbarrier_init(smem.Q_full.address(slot), 1);
            mbarrier_init(smem.dO_full.address(slot), 1);
            mbarrier_init(smem.Q_empty.address(slot), consumers);
            mbarrier_init(smem.dO_empty.address(slot), consumers);
        }
        for (int part = 0; part < consumers; ++part) {
            mbarrier_init(smem.dQ_full.address(part), warpgroup_size);
            mbarrier_init(smem.dQ_empty.address(part), 1);
        }
        fence_mbarrier_init();
    }
    bar_sync();

    if (warpgroup_id() == 0) {
        setmaxnreg_dec<40>();
        if (warp_id() == 0 && steps > 0) {
            // ---- producer ----
            int n_landed = 0;
            const auto zero_hidden = [&](auto& tile, int first, const Range& kept) {
                for (int i = lane_id(); i < tile.rows * d / 8; i += warp_size)
                    if (!kept.contains(first + i / (d / 8))) tile.store(i / (d / 8), i % (d / 8) * 8, Vector<T, 8>{});
            };
            const std::uint32_t landed = smem.landed.address(0);
            const Range seen = mask.seen_keys(), seeing = mask.seeing_queries();
            {
                const int j = int(sequence.first_key) + j0;
                const bool hidden = j0 < seen.begin || j0 + Bc > seen.end;
                const std::uint32_t full = hidden ? landed : smem.KV_full.address(0);
                if (elect_sync()) {
                    mbarrier_arrive_expect_tx(full, sizeof(smem.K) + sizeof(smem.V));
                    cp_async_bulk_tensor_5d(smem.K.address(), K_map, 0, j, 0, kv_head, sequence.batch, full);
                    cp_async_bulk_tensor_5d(smem.V.address(), V_map, 0, j, 0, kv_head, sequence.batch, full);
                }
                if (hidden) {
                    mbarrier_wait_parity(landed, n_landed++ % 2);
                    zero_hidden(smem.K, j0, seen);
                    zero_hidden(smem.V, j0, seen);
                    fence_proxy_async();
                    bar_warp_sync(all_lanes);
                    if (elect_sync()) mbarrier_arrive(smem.KV_full.address(0));
                }
            }
            for (int n = 0; n < steps; ++n) {
                const Place place(n);
                const int head = head_of(n), q_tile = tile_of(n), i0 = q_tile * Br, i = int(sequence.first_query) + i0;
                const bool hidden = i0 < seeing.begin || i0 + Br > seeing.end;
                const auto load = [&](auto& tile, const TensorMap& map, auto& column, const Tensor<const float>& source,
                                      std::uint32_t full, std::uint32_t empty) {
                    mbarrier_wait_parity(empty, place.parity ^ 1);
                    const std::uint32_t barrier = hidden ? landed : full;
                    if (elect_sync()) {
                        mbarrier_arrive_expect_tx(barrier, sizeof(tile) + Br * sizeof(float));
                        cp_async_bulk_tensor_5d(tile.address(), map, 0, i, 0, head, sequence.batch, barrier);
                        cp_async_bulk(column.address(0), source.matrix(0, head, scratch + q_tile, 1), 0, 0,
                                      Br * sizeof(float), barrier);
                    }
                    if (hidden) {
                        mbarrier_wait_parity(landed, n_landed++ % 2);
                        zero_hidden(tile, i0, seeing);
                        fence_proxy_async();
                        bar_warp_sync(all_lanes);
                        if (elect_sync()) mbarrier_arrive(full);
                    }
                };
                load(smem.Q[place.slot], Q_map, smem.L[place.slot], L_log2, smem.Q_full.address(place.slot),
                     smem.Q_empty.address(place.slot));
                load(smem.dO[place.slot], dO_map, smem.D[place.slot], D, smem.dO_full.address(place.slot),
                     smem.dO_empty.address(place.slot));
            }
        } else if ((warp_id() == 1 || warp_id() == 2) && lane_id() == 0) {
            // ---- dQ leaves: one lane for each half of it ----
            constexpr int elements = Br * d / consumers;
            const int part = warp_id() - 1;
            for (int n = 0; n < steps; ++n) {
                const auto dQ_sum_gmem = dQ_sum.matrix(0, head_of(n), scratch + tile_of(n), 1);
                const auto turn = turns.matrix(0, head_of(n), scratch + tile_of(n), 1);
                // The key tiles behind this one that these queries see.
                const int before = mask.key_tiles(tile_of(n) * Br, Br, Bc).end - 1 - j0 / Bc;
                mbarrier_wait_parity(smem.dQ_full.address(part), n % 2);
                while (ld_acquire_gpu(turn, 0, part) != before) {
                }
                cp_reduce_async_bulk_add(dQ_sum_gmem, 0, part * elements, smem.dQ[part].address(0),
                                         elements * sizeof(float));
                cp_async_bulk_commit_group();
                cp_async_bulk_wait_group<0>();
                red_release_gpu_add(turn, 0, part, 1);
                mbarrier_arrive(smem.dQ_empty.address(part));
            }
        }
        return;
    }

    // ---- consumers: two warpgroups of 64 keys each ----
    setmaxnreg_inc<232>();
    const int own = warpgroup_id() - 1, thread = threadIdx.x % warpgroup_size;
    const int lane = lane_id(), g = lane / 4, t = lane % 4, warp_row = thread / warp_size * 16;
    const int j = j0 + 64 * own + warp_row + g;  // this thread has the keys j and j + 8
    const float c = problem.scale * log2_e;
    const Range seeing[2] = {mask.queries(j), mask.queries(j + 8)};

    float dK_rmem[d / 2], dV_rmem[d / 2];
    for (float& x : dK_rmem) x = 0;
    for (float& x : dV_rmem) x = 0;
    if (steps > 0) mbarrier_wait_parity(smem.KV_full.address(0), 0);
    for (int n = 0; n < steps; ++n) {
        const Place place(n);
        const int i0 = tile_of(n) * Br;
        auto& Q_smem = smem.Q[place.slot];
        auto& dO_smem = smem.dO[place.slot];
        auto& dS_smem = smem.dS[n % 2];

        // 2. S^T = K Q^T and dP^T = V dO^T.
        float S[Br / 2], dP[Br / 2];
        mbarrier_wait_parity(smem.Q_full.address(place.slot), place.parity);
        wgmma_fence(S);
#pragma unroll
        for (int k = 0; k < d / 16; ++k)
            wgmma_m64k16<T, Major::k, Major::k>(S, smem.K.k_major(64 * own, 16 * k), Q_smem.k_major(0, 16 * k), k > 0);
        wgmma_commit_group();
        mbarrier_wait_parity(smem.dO_full.address(place.slot), place.parity);
        wgmma_fence(dP);
#pragma unroll
        for (int k = 0; k < d / 16; ++k)
            wgmma_m64k16<T, Major::k, Major::k>(dP, smem.V.k_major(64 * own, 16 * k), dO_smem.k_major(0, 16 * k),
                                                k > 0);
        wgmma_commit_group();

        // 3. P and dS.
        std::uint32_t P_rmem[Br / 16][4], dS_rmem[Br / 16][4];
        const bool mixed = mask.classify(i0, Br, j0, Bc) != Tile::full;
        wgmma_wait_group<1>(S);
#pragma unroll
        for (int i = 0; i < Br / 2; i += 4) {
            const Vector<float, 2> L_i = smem.L[place.slot].load2(2 * i + 2 * t);
#pragma unroll
            for (int e = 0; e < 4; ++e) S[i + e] = ex2_approx_ftz(fmaf(c, S[i + e], -L_i[e % 2]));
        }
        if (mixed) {
#pragma unroll
            for (int i = 0; i < Br / 2; ++i)
                if (!seeing[i / 2 % 2].contains(i0 + i / 4 * 8 + 2 * t + i % 2)) S[i] = 0;
        }
#pragma unroll
        for (int k = 0; k < Br / 16; ++k)
            for (int e = 0; e < 4; ++e) P_rmem[k][e] = cvt_rn_x2<T>(S[8 * k + 2 * e], S[8 * k + 2 * e + 1]);
        wgmma_wait_group<0>(dP);
#pragma unroll
        for (int i = 0; i < Br / 2; i += 4) {
            const Vector<float, 2> D_i = smem.D[place.slot].load2(2 * i + 2 * t);
#pragma unroll
            for (int e = 0; e < 4; ++e) dP[i + e] = S[i + e] * (dP[i + e] - D_i[e % 2]);
        }
#pragma unroll
        for (int k = 0; k < Br / 16; ++k) {
            for (int e = 0; e < 4; ++e) dS_rmem[k][e] = cvt_rn_x2<T>(dP[8 * k + 2 * e], dP[8 * k + 2 * e + 1]);
            stmatrix_x4(dS_smem.address(64 * own + warp_row + lane % 16, 16 * k + lane / 16 * 8), dS_rmem[k]);
        }
        fence_proxy_async();

        // 4. dV += P^T dO.
        wgmma_fence(dV_rmem, P_rmem);
#pragma unroll
        for (int k = 0; k < Br / 16; ++k)
            wgmma_m64k16<T, Major::mn>(dV_rmem, P_rmem[k], dO_smem.mn_major(16 * k, 0), true);

        // 5. Both warpgroups' dS is there: dQ = dS K, this warpgroup's half of it; then dK += dS^T Q.
        barrier_sync(1, consumers * warpgroup_size);
        float dQ[Br * d / consumers / warpgroup_size];
        constexpr bool by_rows = Br == 128;  // halves of 64 queries, or of d / 2 columns
        wgmma_fence(dQ);
#pragma unroll
        for (int k = 0; k < Bc / 16; ++k)
            wgmma_m64k16<T, Major::mn, Major::mn>(dQ, dS_smem.mn_major(16 * k, by_rows ? 64 * own : 0),
                                                  smem.K.mn_major(16 * k, by_rows ? 0 : d / 2 * own), k > 0);
        wgmma_commit_group();
        wgmma_fence(dK_rmem, dS_rmem);
#pragma unroll
        for (int k = 0; k < Br / 16; ++k)
            wgmma_m64k16<T, Major::mn>(dK_rmem, dS_rmem[k], Q_smem.mn_major(16 * k, 0), true);
        wgmma_commit_group();

        // 6.
        wgmma_wait_group<1>(dV_rmem, P_rmem, dQ);
        if (thread == 0) mbarrier_arrive(smem.dO_empty.address(place.slot));
        mbarrier_wait_parity(smem.dQ_empty.address(own), n % 2 ^ 1);
#pragma unroll
        for (int i = 0; i < Br * d / consumers / warpgroup_size; i += 4)
            smem.dQ[own].store(0, i * warpgroup_size + 4 * thread,
                               Vector<float, 4>{dQ[i], dQ[i + 1], dQ[i + 2], dQ[i + 3]});
        fence_proxy_async();
        mbarrier_arrive(smem.dQ_full.address(own));
        wgmma_wait_group<0>(dK_rmem, dS_rmem);
        if (thread == 0) mbarrier_arrive(smem.Q_empty.address(place.slot));
    }

    // 7. dK and dV, through V, which all have read (two warp barriers in each call); zeros where no query sees the tile.
    const int row = 64 * own + warp_row;
    store_rows(sequence.keys(dV, kv_head), j0 + row, sequence.Nk, 0, dV_rmem, 1, smem.V, row);
    store_rows(sequence.keys(dK, kv_head), j0 + row, sequence.Nk, 0, dK_rmem, problem.scale, smem.V, row);
}

/// One CTA a query tile: dQ from its sums.
template <class T, int d>
__global__ void __launch_bounds__(threads_of_tile)
    finish(KernelProblem problem, Tensor<const float> dQ_sum, Tensor<T> dQ) {
    const QueryTile tile(problem, Br(d));
    const Sequence sequence = problem.sequence(tile.b);
    if (tile.i0 < sequence.Nq) finish_tile<T, d, Br(d)>(problem, sequence, tile, dQ_sum, dQ);
}

}  // namespace stage04::b_backward
