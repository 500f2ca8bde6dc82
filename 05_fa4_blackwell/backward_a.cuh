// 05a backward, five products: all of them on tcgen05, with S^T, dP^T, dV, dK and dQ in tensor memory. Not run on a
// Blackwell GPU yet.
//
// One CTA a tile of Bc = 128 keys, key/value head and sequence, as in the backward 04a; query tiles of Br = 128. Keys are
// the lanes of tensor memory, so that what is computed there is what the next product reads as A:
//
//   S^T = K Q^T     P^T = 2^(c S^T - L)         dV += P^T dO     A = P^T from tensor memory
//   dP^T = V dO^T   dS^T = P^T o (dP^T - D)     dK += dS^T Q     A = dS^T from tensor memory
//                                               dQ  = dS K       A = dS from shared memory: it sums over keys
//
//   warps 0-3     dQ: tensor memory to shared memory, and from there by bulk additions to sums in fp32 of all CTAs
//   warps 4-11    P and dS: thread t of both warpgroups has key t, the first 64 queries or the last
//   warp 12       one thread issues all products      warp 13   copies K, V, Q and dO, and L and D with these
//
// Tensor memory, d = 128 (64): S 128 columns, dP 128, dV 128 (64), dK 128 (64). P and dS, 16 bits, take the columns of S
// whose scores the same warp has in registers; dQ those of dP. A product is not ordered after an earlier one that reads
// what it overwrites: S of the next queries waits for dV and dK, while dQ runs; dP for dQ to be fetched.
//
// mbarriers, with arrivals:
//   KV_full, Q_full, dO_full   the bytes of the copies, or one thread where rows were mended (landed: their bytes)
//   L_full, D_full             the bytes of the copies
//   Q_empty, dO_empty          a commit; each thread of warps 4-11 has read L, D (1 + 256)
//   S_full, dP_full, dQ_full   a commit        S_free     commit of dK: dV and dK have read P and dS
//   P_ready, dS_ready          warps 4-11 (256)
//   dQ_empty                   warps 0-3 (128)           dK_full    the last commit
//
// dQ goes away in slabs of 32 columns, two on the way. The order of elements in the sums is that of the slabs: (column / 4,
// query, column % 4); `finish` knows it. The bits of dQ depend on the order of additions. `prepare` as in 04.
//
// On chip, d = 128 (64): K, V 64 KiB (32); Q two slots of 32 KiB (16), dO 32 (16); dS 32; slabs 2 x 16. A tile: 10 Br Bc d
// FLOPs; Q, dO 4 Br d bytes read, dQ 4 Br d added.
//
//   copies in   1. K, V       for each query tile of each head of the group that sees the key tile:   2. Q, L; dO, D
//   products    3. S, dP      for each:   4. dV += P^T dO   5. dK += dS^T Q, dQ = dS K   6. S, dP of the next
//   P and dS    for each:     7. P        8. dS             9. in the end dV, dK to memory
//   dQ          for each:    10. dQ from tensor memory, and away
#pragma once

#include "common/attention/backward_tiles.h"
#include "common/attention/kernel_problem.h"
#include "common/gpu/gpu.h"

namespace stage05::a_backward {

using namespace attention;
using namespace gpu;

constexpr int Br = 128, Bc = 128, Q_slots = 2, slabs = 2, slab_columns = 32;
constexpr int threads = 4 * warpgroup_size, compute_threads = 2 * warpgroup_size;
constexpr int dealloc_warp = 4, product_warp = 12, load_warp = 13;

/// Columns of tensor memory. P and dS: of the k-th 16 queries, in the columns of S of the same 64 queries.
template <int d>
struct Columns {
    static constexpr int S = 0, dP = Br, dQ = dP, dV = dP + Br, dK = dV + d;
    __device__ static constexpr int P(int k) { return S + k / 4 * 64 + k % 4 * 8; }
    __device__ static constexpr int dS(int k) { return P(k) + 32; }
};

template <class T, int d>
struct Shared {
    PanelTile<T, Bc, d> K, V;
    PanelTile<T, Br, d> Q[Q_slots], dO;
    PanelTile<T, Bc, Br> dS;
    SharedArray<float, Br * slab_columns> dQ[slabs];
    SharedArray<float, Br> L[Q_slots], D;
    SharedArray<Mbarrier, Q_slots> Q_full, L_full, Q_empty;
    SharedArray<Mbarrier, 1> KV_full, landed, dO_full, D_full, dO_empty, S_full, S_free, P_ready, dP_full, dS_ready,
        dQ_full, dQ_empty, dK_full;
    SharedArray<std::uint32_t, 1> tensor_memory;
};

/// A place in the ring of Q: the n-th tile that passes through it, and the parity of its turn.
struct Place {
    int slot, parity;
    __device__ explicit Place(int n) : slot(n % Q_slots), parity(n / Q_slots % 2) {}
};

/// One CTA a query tile: L in base 2, D, and zeros for the sums of dQ; see prepare_tile.
template <class T, int d>
__global__ void __launch_bounds__(threads_of_tile)
    prepare(KernelProblem problem, Tensor<const T> O, Tensor<const T> dO, Tensor<const float> L, Tensor<float> L_log2,
            Tensor<float> D, Tensor<float> dQ_sum) {
    const QueryTile tile(problem, Br);
    const Sequence sequence = problem.sequence(tile.b);
    if (tile.i0 < sequence.Nq) prepare_tile<T, d, Br>(problem, sequence, tile, O, dO, L, L_log2, D, dQ_sum);
}

template <class T, int d>
__global__ void __launch_bounds__(threads, 1)
    backward(KernelProblem problem, const __grid_constant__ TensorMap Q_map, const __grid_constant__ TensorMap K_map,
             const __grid_constant__ TensorMap V_map, const __grid_constant__ TensorMap dO_map,
             Tensor<const float> L_log2, Tensor<const float> D, Tensor<float> dQ_sum, Tensor<T> dK, Tensor<T> dV,
             int heads_of_section) {
    using Columns = a_backward::Columns<d>;
    auto& smem = shared_memory<Shared<T, d>>();

    const KeyTile key_tile(problem, Bc, heads_of_section);
    const int b = key_tile.b, kv_head = key_tile.kv_head, j0 = key_tile.j0;
    const Sequence sequence = problem.sequence(b);
    if (j0 >= sequence.Nk) return;
    const Mask mask = problem.mask(sequence);
    const int group = problem.Hq / problem.Hkv;
    const Range q_tiles = mask.query_tiles(j0, Bc, Br);
    const int steps = q_tiles.empty() ? 0 : group * (q_tiles.end - q_tiles.begin);
    const int scratch = first_tile(problem, b, Br);
    // The n-th step's query head and tile.
    const auto head_of = [&](int n) { return kv_head * group + n / (q_tiles.end - q_tiles.begin); };
    const auto tile_of = [&](int n) { return q_tiles.begin + n % (q_tiles.end - q_tiles.begin); };
    const auto dK_gmem = sequence.keys(dK, kv_head);
    const auto dV_gmem = sequence.keys(dV, kv_head);
    if (steps == 0) {
        for (int row = threadIdx.x; row < Bc && j0 + row < sequence.Nk; row += threads) {
            for (int column = 0; column < d; column += 8) {
                dK_gmem.store(j0 + row, column, Vector<T, 8>{});
                dV_gmem.store(j0 + row, column, Vector<T, 8>{});
            }
        }
        return;
    }

    if (threadIdx.x == 0) {
        for (int slot = 0; slot < Q_slots; ++slot) {
            mbarrier_init(smem.Q_full.address(slot), 1);
            mbarrier_init(smem.L_full.address(slot), 1);
            mbarrier_init(smem.Q_empty.address(slot), 1 + compute_threads);  // a commit; who has read L
        }
        mbarrier_init(smem.dO_full.address(0), 1);
        mbarrier_init(smem.D_full.address(0), 1);
        mbarrier_init(smem.dO_empty.address(0), 1 + compute_threads);  // likewise, D
        mbarrier_init(smem.KV_full.address(0), 1);
        mbarrier_init(smem.landed.address(0), 1);
        mbarrier_init(smem.S_full.address(0), 1);
        mbarrier_init(smem.S_free.address(0), 1);
        mbarrier_init(smem.P_ready.address(0), compute_threads);
        mbarrier_init(smem.dP_full.address(0), 1);
        mbarrier_init(smem.dS_ready.address(0), compute_threads);
        mbarrier_init(smem.dQ_full.address(0), 1);
        mbarrier_init(smem.dQ_empty.address(0), warpgroup_size);
        mbarrier_init(smem.dK_full.address(0), 1);
        fence_mbarrier_init();
    }
    if (warp_id() == product_warp) {
        tcgen05_alloc<tmem_columns>(smem.tensor_memory.address(0));
        tcgen05_relinquish_alloc_permit();
    }
    bar_sync();
    const std::uint32_t tmem = smem.tensor_memory(0);
    const auto wait = [&](std::uint32_t barrier, int parity) {
        mbarrier_wait_parity(barrier, parity);
        tcgen05_fence_after_thread_sync();
    };

    if (warpgroup_id() == 0) {
        // ---- dQ leaves: thread t has query t ----
        setmaxnreg_inc<136>();
        role("dQ");
        const int thread = threadIdx.x;
        for (int n = 0; n < steps; ++n) {
            float dQ[d / slab_columns][slab_columns];
            // 10.
            wait(smem.dQ_full.address(0), n % 2);
#pragma unroll
            for (int slab = 0; slab < d / slab_columns; ++slab)
                tcgen05_ld(dQ[slab], tmem + Columns::dQ + slab * slab_columns);
            tcgen05_wait_ld(dQ);
            tcgen05_fence_before_thread_sync();
            mbarrier_arrive(smem.dQ_empty.address(0));
            const auto dQ_sum_gmem = dQ_sum.matrix(0, head_of(n), scratch + tile_of(n), 1);
#pragma unroll
            for (int slab = 0; slab < d / slab_columns; ++slab) {
                auto& dQ_smem = smem.dQ[slab % slabs];
                if (thread == 0) cp_async_bulk_wait_group_read<slabs - 1>();
                barrier_sync(1, warpgroup_size);
#pragma unroll
                for (int i = 0; i < slab_columns; i += 4)
                    dQ_smem.store(0, i * Br + 4 * thread,
                                  Vector<float, 4>{dQ[slab][i], dQ[slab][i + 1], dQ[slab][i + 2], dQ[slab][i + 3]});
                fence_proxy_async();
                barrier_sync(1, warpgroup_size);
                if (thread == 0) {
                    cp_reduce_async_bulk_add(dQ_sum_gmem, 0, slab * slab_columns * Br, dQ_smem.address(0),
                                             slab_columns * Br * sizeof(float));
                    cp_async_bulk_commit_group();
                }
            }
        }
        if (thread == 0) cp_async_bulk_wait_group_read<0>();
        return;
    }

    if (warp_id() < product_warp) {
        // ---- P and dS: thread t has key t and 64 queries ----
        setmaxnreg_inc<152>();
        role("P and dS", warpgroup_id() - 1);
        const int half = warpgroup_id() - 1, thread = threadIdx.x % warpgroup_size, j = j0 + thread;
        const float c = problem.scale * log2_e;
        const Range seeing = mask.queries(j);
        for (int n = 0; n < steps; ++n) {
            const Place place(n);
            const int i0 = tile_of(n) * Br + 64 * half;
            float P[2][32], dP[2][32];

            // 7.
            wait(smem.S_full.address(0), n % 2);
#pragma unroll
            for (int part = 0; part < 2; ++part) tcgen05_ld(P[part], tmem + Columns::S + 64 * half + 32 * part);
            tcgen05_wait_ld(P);
            mbarrier_wait_parity(smem.L_full.address(place.slot), place.parity);
#pragma unroll
            for (int i = 0; i < 64; i += 4) {
                const Vector<float, 4> L_i = smem.L[place.slot].load4(0, 64 * half + i);
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    P[i / 32][i % 32 + e] = ex2_approx_ftz(fmaf(c, P[i / 32][i % 32 + e], -L_i[e]));
            }
            mbarrier_arrive(smem.Q_empty.address(place.slot));
            if (mask.classify(i0 - 64 * half, Br, j0, Bc) != Tile::full) {
#pragma unroll
                for (int i = 0; i < 64; ++i)
                    if (i < seeing.begin - i0 || i >= seeing.end - i0) P[i / 32][i % 32] = 0;
            }
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                std::uint32_t packed[16];
#pragma unroll
                for (int i = 0; i < 16; ++i) packed[i] = cvt_rn_x2<T>(P[part][2 * i], P[part][2 * i + 1]);
                tcgen05_st(tmem + Columns::P(4 * half + 2 * part), packed);
            }
            tcgen05_wait_st();
            tcgen05_fence_before_thread_sync();
            mbarrier_arrive(smem.P_ready.address(0));

            // 8.
            wait(smem.dP_full.address(0), n % 2);
#pragma unroll
            for (int part = 0; part < 2; ++part) tcgen05_ld(dP[part], tmem + Columns::dP + 64 * half + 32 * part);
            tcgen05_wait_ld(dP);
            mbarrier_wait_parity(smem.D_full.address(0), n % 2);
#pragma unroll
            for (int i = 0; i < 64; i += 4) {
                const Vector<float, 4> D_i = smem.D.load4(0, 64 * half + i);
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    dP[i / 32][i % 32 + e] = P[i / 32][i % 32 + e] * (dP[i / 32][i % 32 + e] - D_i[e]);
            }
            mbarrier_arrive(smem.dO_empty.address(0));
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                std::uint32_t packed[16];
#pragma unroll
                for (int i = 0; i < 16; ++i) packed[i] = cvt_rn_x2<T>(dP[part][2 * i], dP[part][2 * i + 1]);
                tcgen05_st(tmem + Columns::dS(4 * half + 2 * part), packed);
#pragma unroll
                for (int i = 0; i < 32; i += 8) {
                    Vector<T, 8> chunk;
                    for (int e = 0; e < 8; ++e) chunk[e] = cvt_rn<T>(dP[part][i + e]);
                    smem.dS.store(thread, 64 * half + 32 * part + i, chunk);
                }
            }
            fence_proxy_async();
            tcgen05_wait_st();
            tcgen05_fence_before_thread_sync();
            mbarrier_arrive(smem.dS_ready.address(0));
        }

        // 9. dV is the first warpgroup's to store, dK the second's.
        wait(smem.dK_full.address(0), 0);
        float sum[d / 32][32];
#pragma unroll
        for (int part = 0; part < d / 32; ++part)
            tcgen05_ld(sum[part], tmem + (half == 0 ? Columns::dV : Columns::dK) + 32 * part);
        tcgen05_wait_ld(sum);
        if (j < sequence.Nk) {
            const auto& gmem = half == 0 ? dV_gmem : dK_gmem;
            const float factor = half == 0 ? 1 : problem.scale;
#pragma unroll
            for (int column = 0; column < d; column += 8) {
                Vector<T, 8> chunk;
                for (int e = 0; e < 8; ++e) chunk[e] = cvt_rn<T>(factor * sum[column / 32][column % 32 + e]);
                gmem.store(j, column, chunk);
            }
        }
        tcgen05_fence_before_thread_sync();
        barrier_sync(2, compute_threads);
        if (warp_id() == dealloc_warp) {
            mbarrier_wait_parity(smem.dQ_empty.address(0), (steps - 1) % 2);
            tcgen05_dealloc<tmem_columns>(tmem);
        }
        return;
    }

    setmaxnreg_dec<72>();
    if (warp_id() == product_warp && elect_sync()) {
        // ---- products: one thread ----
        role("products");
        constexpr std::uint32_t S_instruction = tcgen05_instruction<T>(Bc, Br, Major::k, Major::k);
        constexpr std::uint32_t dV_instruction = tcgen05_instruction<T>(Bc, d, Major::k, Major::mn);
        constexpr std::uint32_t dQ_instruction = tcgen05_instruction<T>(Br, d, Major::mn, Major::mn);
        const auto issue_S_and_dP = [&](int n) {
            const Place place(n);
            mbarrier_wait_parity(smem.Q_full.address(place.slot), place.parity);
#pragma unroll
            for (int k = 0; k < d / 16; ++k)
                tcgen05_mma_ss(tmem + Columns::S, smem.K.k_major(0, 16 * k), smem.Q[place.slot].k_major(0, 16 * k),
                               S_instruction, k > 0);
            tcgen05_commit(smem.S_full.address(0));
            mbarrier_wait_parity(smem.dO_full.address(0), n % 2);
            if (n > 0) wait(smem.dQ_empty.address(0), (n - 1) % 2);
#pragma unroll
            for (int k = 0; k < d / 16; ++k)
                tcgen05_mma_ss(tmem + Columns::dP, smem.V.k_major(0, 16 * k), smem.dO.k_major(0, 16 * k), S_instruction,
                               k > 0);
            tcgen05_commit(smem.dP_full.address(0));
        };
        // 3.
        mbarrier_wait_parity(smem.KV_full.address(0), 0);
        issue_S_and_dP(0);
        for (int n = 0; n < steps; ++n) {
            const Place place(n);

            // 4.
            wait(smem.P_ready.address(0), n % 2);
#pragma unroll
            for (int k = 0; k < Br / 16; ++k)
                tcgen05_mma_ts(tmem + Columns::dV, tmem + Columns::P(k), smem.dO.mn_major(16 * k, 0), dV_instruction,
                               n > 0 || k > 0);
            tcgen05_commit(smem.dO_empty.address(0));

            // 5.
            wait(smem.dS_ready.address(0), n % 2);
#pragma unroll
            for (int k = 0; k < Br / 16; ++k)
                tcgen05_mma_ts(tmem + Columns::dK, tmem + Columns::dS(k), smem.Q[place.slot].mn_major(16 * k, 0),
                               dV_instruction, n > 0 || k > 0);
            tcgen05_commit(smem.Q_empty.address(place.slot));
            tcgen05_commit(smem.S_free.address(0));
#pragma unroll
            for (int k = 0; k < Bc / 16; ++k)
                tcgen05_mma_ss(tmem + Columns::dQ, smem.dS.mn_major(16 * k, 0), smem.K.mn_major(16 * k, 0),
                               dQ_instruction, k > 0);
            tcgen05_commit(smem.dQ_full.address(0));

            // 6.
            wait(smem.S_free.address(0), n % 2);
            if (n + 1 < steps) issue_S_and_dP(n + 1);
        }
        tcgen05_commit(smem.dK_full.address(0));
    } else if (warp_id() == load_warp) {
        // ---- copies in ----
        role("copies in");
        const Range seen = mask.seen_keys(), seeing = mask.seeing_queries();
        const std::uint32_t landed = smem.landed.address(0);
        int landed_count = 0;
        const auto zero_hidden = [&](auto& tile, int first, const Range& kept) {
            for (int i = lane_id(); i < tile.rows * d / 8; i += warp_size)
                if (!kept.contains(first + i / (d / 8))) tile.store(i / (d / 8), i % (d / 8) * 8, Vector<T, 8>{});
        };
        // 1.
        {
            const int key = int(sequence.first_key) + j0;
            const bool hidden = j0 < seen.begin || j0 + Bc > seen.end;
            const std::uint32_t full = smem.KV_full.address(0), barrier = hidden ? landed : full;
            if (elect_sync()) {
                mbarrier_arrive_expect_tx(barrier, sizeof(smem.K) + sizeof(smem.V));
                cp_async_bulk_tensor_5d(smem.K.address(), K_map, 0, key, 0, kv_head, sequence.batch, barrier);
                cp_async_bulk_tensor_5d(smem.V.address(), V_map, 0, key, 0, kv_head, sequence.batch, barrier);
            }
            if (hidden) {  // zero times a NaN is a NaN: zeros take their place
                mbarrier_wait_parity(landed, landed_count++ % 2);
                zero_hidden(smem.K, j0, seen);
                zero_hidden(smem.V, j0, seen);
                fence_proxy_async();
                bar_warp_sync(all_lanes);
                if (elect_sync()) mbarrier_arrive(full);
            }
        }
        // 2.
        for (int n = 0; n < steps; ++n) {
            const Place place(n);
            const int head = head_of(n), q_tile = tile_of(n), i0 = q_tile * Br, i = int(sequence.first_query) + i0;
            const bool hidden = i0 < seeing.begin || i0 + Br > seeing.end;
            const auto load = [&](auto& tile, const TensorMap& map, auto& column, const Tensor<const float>& source,
                                  std::uint32_t full, std::uint32_t column_full) {
                const std::uint32_t barrier = hidden ? landed : full;
                if (elect_sync()) {
                    mbarrier_arrive_expect_tx(barrier, sizeof(tile));
                    cp_async_bulk_tensor_5d(tile.address(), map, 0, i, 0, head, sequence.batch, barrier);
                    mbarrier_arrive_expect_tx(column_full, sizeof(column));
                    cp_async_bulk(column.address(0), source.matrix(0, head, scratch + q_tile, 1), 0, 0, sizeof(column),
                                  column_full);
                }
                if (hidden) {
                    mbarrier_wait_parity(landed, landed_count++ % 2);
                    zero_hidden(tile, i0, seeing);
                    fence_proxy_async();
                    bar_warp_sync(all_lanes);
                    if (elect_sync()) mbarrier_arrive(full);
                }
            };
            mbarrier_wait_parity(smem.Q_empty.address(place.slot), place.parity ^ 1);
            load(smem.Q[place.slot], Q_map, smem.L[place.slot], L_log2, smem.Q_full.address(place.slot),
                 smem.L_full.address(place.slot));
            mbarrier_wait_parity(smem.dO_empty.address(0), n % 2 ^ 1);
            load(smem.dO, dO_map, smem.D, D, smem.dO_full.address(0), smem.D_full.address(0));
        }
        // A CTA must not end before the last commits have arrived.
        for (int n = steps; n < steps + Q_slots; ++n)
            mbarrier_wait_parity(smem.Q_empty.address(Place(n).slot), Place(n).parity ^ 1);
        mbarrier_wait_parity(smem.dO_empty.address(0), steps % 2 ^ 1);
    }
}

/// One CTA a query tile: dQ from its sums, a query a thread.
template <class T, int d>
__global__ void __launch_bounds__(threads_of_tile)
    finish(KernelProblem problem, Tensor<const float> dQ_sum, Tensor<T> dQ) {
    const QueryTile tile(problem, Br);
    const Sequence sequence = problem.sequence(tile.b);
    const int row = threadIdx.x;
    if (tile.i0 + row >= sequence.Nq) return;
    const auto dQ_sum_gmem = dQ_sum.matrix(0, tile.h, tile.scratch, 1);
    const auto dQ_gmem = sequence.queries(dQ, tile.h);
    for (int column = 0; column < d; column += 8) {
        Vector<T, 8> chunk;
        for (int e = 0; e < 8; e += 4) {
            const Vector<float, 4> sum = dQ_sum_gmem.load4(0, (column + e) * Br + 4 * row);
            for (int i = 0; i < 4; ++i) chunk[e + i] = cvt_rn<T>(problem.scale * sum[i]);
        }
        dQ_gmem.store(tile.i0 + row, column, chunk);
    }
}

}  // namespace stage05::a_backward
