// 04c backward, a restart for d = 256: two warpgroups share 64 keys and split the columns of dK, dV and dQ.
//
// 04a keeps dK and dV of 64 keys in the registers of one warpgroup: d of them a thread, which with d = 256 is more than
// a thread can have. Two warpgroups that split the columns have d / 2 each, and d / 4 for dQ. A product for half of the
// columns still sums over all queries (or keys) of the tile: both warpgroups need all of P and dS. So each computes P^T
// and dS^T for 32 of the 64 queries, both go through shared memory, and a named barrier says that they are whole.
//
// What it costs: P is stored and read too; dK and dV begin only when both warpgroups have computed dS; and products
// with N = 32 read 3 KiB of operands for a quarter of what 6 KiB give with N = 128. A CTA has half of 04a's keys, so Q
// and dO are read, and dQ is added, twice as often.
//
// P and dS have two slots in turns: who writes a slot has met the other at a barrier after both had read it. With one
// slot dS would take a second barrier (P would not: dO's slot is full again only when both have read P). dO has one
// slot, for lack of room, and is given back before dQ and dK are waited for; a warpgroup's 32 KiB of dQ leave in two
// pieces. The producer, the warps that send dQ away, the zeros in hidden rows and the three kernels are 04a's.
//
// On chip: K, V 64 KiB; Q 2 x 32, dO 32; P, dS 2 x 8 each; dQ 2 x 16; in all 224 KiB. Registers: dK, dV, dQ 64 each; S,
// dP 16 each. A tile: 10 Br Bc d FLOPs; Q, dO 4 Br d bytes read, dQ 4 Br d added.
//
// For each query tile of each head of the group that sees the key tile:
//   1. (producer) Q, L; dO, D          2. S^T = K Q^T and dP^T = V dO^T, of 32 queries
//   3. P = 2^(c S - L), 0 where hidden; dS = P o (dP - D); both to shared memory
//   4. both halves are there: dV += P^T dO, dQ = dS K, dK += dS^T Q, of 128 columns
//   5. dQ to shared memory and away, in two pieces
// 6. dK and dV, by way of V's shared memory, in whole rows
#pragma once

#include "04_fa3_hopper/backward_tiles.h"
#include "04_fa3_hopper/store_rows.cuh"
#include "common/attention/kernel_problem.h"
#include "common/gpu/gpu.h"

namespace stage04::c_backward {

using namespace attention;
using namespace gpu;

constexpr int d = 256;
constexpr int consumers = 2, slots = 2;
constexpr int pieces = 2;  // of dQ a step: an even number, so a piece's number is the parity of its turn
constexpr int threads = warpgroup_size * (1 + consumers);
constexpr int Bc = 64, Br = 64;
constexpr int own_queries = Br / consumers, own_columns = d / consumers;
constexpr int piece_elements = Br * own_columns / pieces;

template <class T>
struct Shared {
    PanelTile<T, Bc, d> K, V;
    PanelTile<T, Br, d> Q[slots], dO;
    PanelTile<T, Bc, Br> P[slots], dS[slots];
    SharedArray<float, piece_elements> dQ[consumers];
    SharedArray<float, Br> L[slots], D;
    SharedArray<Mbarrier, 1> KV_full, dO_full, dO_empty, landed;
    SharedArray<Mbarrier, slots> Q_full, Q_empty;
    SharedArray<Mbarrier, consumers> dQ_full, dQ_empty;
};

/// A place in the rings of Q, P and dS: the n-th tile that passes through it, and the parity of its turn.
struct Place {
    int slot, parity;
    __device__ explicit Place(int n) : slot(n % slots), parity(n / slots % 2) {}
};

/// One CTA a query tile: what `backward` reads of it, and zeros for what it adds to.
template <class T>
__global__ void __launch_bounds__(threads_of_tile)
    prepare(KernelProblem problem, Tensor<const T> O, Tensor<const T> dO, Tensor<const float> L, Tensor<float> L_log2,
            Tensor<float> D, Tensor<float> dQ_sum) {
    const QueryTile tile(problem, Br);
    const Sequence sequence = problem.sequence(tile.b);
    if (tile.i0 >= sequence.Nq) return;
    prepare_tile<T, d, Br>(problem, sequence, tile, O, dO, L, L_log2, D, dQ_sum);
}

template <class T>
__global__ void __launch_bounds__(threads, 1)
    backward(KernelProblem problem, const __grid_constant__ TensorMap Q_map, const __grid_constant__ TensorMap K_map,
             const __grid_constant__ TensorMap V_map, const __grid_constant__ TensorMap dO_map,
             Tensor<const float> L_log2, Tensor<const float> D, Tensor<float> dQ_sum, Tensor<T> dK, Tensor<T> dV,
             int heads_of_section) {
    auto& smem = shared_memory<Shared<T>>();

    const KeyTile key_tile(problem, Bc, heads_of_section);
    const int b = key_tile.b, kv_head = key_tile.kv_head, j0 = key_tile.j0;
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
        mbarrier_init(smem.dO_full.address(0), 1);
        mbarrier_init(smem.dO_empty.address(0), consumers * warpgroup_size);
        mbarrier_init(smem.landed.address(0), 1);
        for (int slot = 0; slot < slots; ++slot) {
            mbarrier_init(smem.Q_full.address(slot), 1);
            mbarrier_init(smem.Q_empty.address(slot), consumers);
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
                                      std::uint32_t full, std::uint32_t empty, int parity) {
                    mbarrier_wait_parity(empty, parity ^ 1);
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
                     smem.Q_empty.address(place.slot), place.parity);
                load(smem.dO, dO_map, smem.D, D, smem.dO_full.address(0), smem.dO_empty.address(0), n % 2);
            }
        } else if ((warp_id() == 1 || warp_id() == 2) && lane_id() == 0) {
            // ---- dQ leaves: one lane for each half of its columns ----
            const int part = warp_id() - 1;
            for (int n = 0; n < steps; ++n) {
                const auto dQ_sum_gmem = dQ_sum.matrix(0, head_of(n), scratch + tile_of(n), 1);
                for (int piece = 0; piece < pieces; ++piece) {
                    mbarrier_wait_parity(smem.dQ_full.address(part), piece);
                    cp_reduce_async_bulk_add(dQ_sum_gmem, 0, (pieces * part + piece) * piece_elements,
                                             smem.dQ[part].address(0), piece_elements * sizeof(float));
                    cp_async_bulk_commit_group();
                    cp_async_bulk_wait_group_read<0>();
                    mbarrier_arrive(smem.dQ_empty.address(part));
                }
            }
        }
        return;
    }

    // ---- consumers: two warpgroups with the same 64 keys, each with half of the queries of S and of the columns ----
    setmaxnreg_inc<232>();
    const int own = warpgroup_id() - 1, thread = threadIdx.x % warpgroup_size;
    const int lane = lane_id(), g = lane / 4, t = lane % 4, warp_row = thread / warp_size * 16;
    const int j = j0 + warp_row + g;  // this thread has the keys j and j + 8
    const float c = problem.scale * log2_e;
    const Range seeing[2] = {mask.queries(j), mask.queries(j + 8)};

    float dK_rmem[own_columns / 2], dV_rmem[own_columns / 2];
    for (float& x : dK_rmem) x = 0;
    for (float& x : dV_rmem) x = 0;
    if (steps > 0) mbarrier_wait_parity(smem.KV_full.address(0), 0);
    for (int n = 0; n < steps; ++n) {
        const Place place(n);
        const int i0 = tile_of(n) * Br + own_queries * own;
        auto& Q_smem = smem.Q[place.slot];
        auto& P_smem = smem.P[place.slot];
        auto& dS_smem = smem.dS[place.slot];

        // 2. S^T = K Q^T and dP^T = V dO^T.
        float S[own_queries / 2], dP[own_queries / 2];
        mbarrier_wait_parity(smem.Q_full.address(place.slot), place.parity);
        wgmma_fence(S);
#pragma unroll
        for (int k = 0; k < d / 16; ++k)
            wgmma_m64k16<T, Major::k, Major::k>(S, smem.K.k_major(0, 16 * k), Q_smem.k_major(own_queries * own, 16 * k),
                                                k > 0);
        wgmma_commit_group();
        mbarrier_wait_parity(smem.dO_full.address(0), n % 2);
        wgmma_fence(dP);
#pragma unroll
        for (int k = 0; k < d / 16; ++k)
            wgmma_m64k16<T, Major::k, Major::k>(dP, smem.V.k_major(0, 16 * k),
                                                smem.dO.k_major(own_queries * own, 16 * k), k > 0);
        wgmma_commit_group();

        // 3. P and dS.
        const bool mixed = mask.classify(i0, own_queries, j0, Bc) != Tile::full;
        wgmma_wait_group<1>(S);
#pragma unroll
        for (int i = 0; i < own_queries / 2; i += 4) {
            const Vector<float, 2> L_i = smem.L[place.slot].load2(own_queries * own + 2 * i + 2 * t);
#pragma unroll
            for (int e = 0; e < 4; ++e) S[i + e] = ex2_approx_ftz(fmaf(c, S[i + e], -L_i[e % 2]));
        }
        if (mixed) {
#pragma unroll
            for (int i = 0; i < own_queries / 2; ++i)
                if (!seeing[i / 2 % 2].contains(i0 + i / 4 * 8 + 2 * t + i % 2)) S[i] = 0;
        }
        wgmma_wait_group<0>(dP);
#pragma unroll
        for (int i = 0; i < own_queries / 2; i += 4) {
            const Vector<float, 2> D_i = smem.D.load2(own_queries * own + 2 * i + 2 * t);
#pragma unroll
            for (int e = 0; e < 4; ++e) dP[i + e] = S[i + e] * (dP[i + e] - D_i[e % 2]);
        }
#pragma unroll
        for (int k = 0; k < own_queries / 16; ++k) {
            const int row = warp_row + lane % 16, column = own_queries * own + 16 * k + lane / 16 * 8;
            std::uint32_t P[4], dS[4];
            for (int e = 0; e < 4; ++e) P[e] = cvt_rn_x2<T>(S[8 * k + 2 * e], S[8 * k + 2 * e + 1]);
            for (int e = 0; e < 4; ++e) dS[e] = cvt_rn_x2<T>(dP[8 * k + 2 * e], dP[8 * k + 2 * e + 1]);
            stmatrix_x4(P_smem.address(row, column), P);
            stmatrix_x4(dS_smem.address(row, column), dS);
        }
        fence_proxy_async();

        // 4. Both halves of P and dS are there: this warpgroup's columns of dV, dQ and dK.
        barrier_sync(1, consumers * warpgroup_size);
        float dQ[own_columns / 2];
        wgmma_fence(dV_rmem, dQ, dK_rmem);
#pragma unroll
        for (int k = 0; k < Br / 16; ++k)
            wgmma_m64k16<T, Major::k, Major::mn>(dV_rmem, P_smem.k_major(0, 16 * k),
                                                 smem.dO.mn_major(16 * k, own_columns * own), true);
        wgmma_commit_group();
#pragma unroll
        for (int k = 0; k < Bc / 16; ++k)
            wgmma_m64k16<T, Major::mn, Major::mn>(dQ, dS_smem.mn_major(16 * k, 0),
                                                  smem.K.mn_major(16 * k, own_columns * own), k > 0);
        wgmma_commit_group();
#pragma unroll
        for (int k = 0; k < Br / 16; ++k)
            wgmma_m64k16<T, Major::k, Major::mn>(dK_rmem, dS_smem.k_major(0, 16 * k),
                                                 Q_smem.mn_major(16 * k, own_columns * own), true);
        wgmma_commit_group();

        // 5.
        wgmma_wait_group<2>(dV_rmem);
        mbarrier_arrive(smem.dO_empty.address(0));  // all: racecheck does not see that one arrival stands for all
        wgmma_wait_group<1>(dQ);
#pragma unroll
        for (int piece = 0; piece < pieces; ++piece) {
            mbarrier_wait_parity(smem.dQ_empty.address(own), piece ^ 1);
#pragma unroll
            for (int i = 0; i < own_columns / 2 / pieces; i += 4) {
                const float* x = &dQ[own_columns / 2 / pieces * piece + i];
                smem.dQ[own].store(0, i * warpgroup_size + 4 * thread, Vector<float, 4>{x[0], x[1], x[2], x[3]});
            }
            fence_proxy_async();
            mbarrier_arrive(smem.dQ_full.address(own));
        }
        wgmma_wait_group<0>(dK_rmem);
        if (thread == 0) mbarrier_arrive(smem.Q_empty.address(place.slot));
    }

    // 6. dK and dV, through V, which all have read (two warp barriers in each call); zeros where no query sees the tile.
    store_rows(sequence.keys(dV, kv_head), j0 + warp_row, sequence.Nk, own_columns * own, dV_rmem, 1, smem.V, warp_row);
    store_rows(sequence.keys(dK, kv_head), j0 + warp_row, sequence.Nk, own_columns * own, dK_rmem, problem.scale,
               smem.V, warp_row);
}

/// One CTA a query tile: dQ from its sums.
template <class T>
__global__ void __launch_bounds__(threads_of_tile)
    finish(KernelProblem problem, Tensor<const float> dQ_sum, Tensor<T> dQ) {
    const QueryTile tile(problem, Br);
    const Sequence sequence = problem.sequence(tile.b);
    if (tile.i0 < sequence.Nq) finish_tile<T, d, Br>(problem, sequence, tile, dQ_sum, dQ);
}

}  // namespace stage04::c_backward
