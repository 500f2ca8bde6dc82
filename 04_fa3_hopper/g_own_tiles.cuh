// 04g  own_tiles: three consumers at d = 64, and a consumer passes over key tiles that its own 64 queries do not see.
//
// At d = 64 S of 128 keys and O take 64 + 32 registers, so that three consumers fit: Br = 192, and K and V are read for
// more queries. But 192 is no multiple of Bc: under a causal mask a quarter of the warpgroups' tiles would be hidden
// from all of their queries. Who sees nothing of a tile releases it and passes the turn on.
//
// On chip, d = 128 (64): Q, O 32 KiB each (24); K, V 2 x 32 KiB each (2 x 16); in all 192 KiB (112).
//
//   producer, for each query tile:  1. K of the last key tile   2. Q   3. K one tile ahead of V
//   consumer, for each query tile:  4. tiles that its own 64 queries do not see: pass the turn on
//             5. turn: S of the last key tile; softmax
//             for each key tile before it:   6. turn: S of this one, O += W V of the tile walked before; softmax; W, O = alpha O
//             7. turn: O += W V of the last tile walked   8. as 4
//             9. O = O / l, L = c m + log l; store
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/attention/tile_order.h"
#include "common/gpu/gpu.h"

namespace stage04::g {

using namespace attention;
using namespace gpu;

constexpr int slots = 2;
constexpr int threads_of_turn = 2 * warpgroup_size;

/// Consumer warpgroups, of 64 queries each, and keys of a tile.
constexpr int consumers(int d) { return d == 64 ? 3 : 2; }
constexpr int Br(int d) { return 64 * consumers(d); }
constexpr int Bc(int d) { return d <= 128 ? 128 : 80; }
constexpr int threads(int d) { return warpgroup_size * (1 + consumers(d)); }

template <class T, int d>
struct Shared {
    PanelTile<T, 64, d> Q[consumers(d)], O[d < 256 ? consumers(d) : 0];  // d = 256: O takes the memory of Q
    PanelTile<T, Bc(d), d> K[slots], V[slots];
    SharedArray<Mbarrier, 1> Q_full, Q_empty, V_landed;
    SharedArray<Mbarrier, slots> K_full, K_empty, V_full, V_empty;
};

/// A place in a ring: the n-th tile that passes through it, and the parity of its turn.
struct Place {
    int slot, parity;
    __device__ explicit Place(int n) : slot(n % slots), parity(n / slots % 2) {}
};

template <class T, int d>
__global__ void __launch_bounds__(threads(d), 1)
    forward(KernelProblem problem, TileOrder tiles, const __grid_constant__ TensorMap Q_map,
            const __grid_constant__ TensorMap K_map, const __grid_constant__ TensorMap V_map,
            const __grid_constant__ TensorMap O_map, Tensor<T> O, Tensor<float> L) {
    constexpr int consumers = g::consumers(d), Br = g::Br(d), Bc = g::Bc(d);
    auto& smem = shared_memory<Shared<T, d>>();

    if (threadIdx.x == 0) {
        mbarrier_init(smem.Q_full.address(0), 1);
        mbarrier_init(smem.Q_empty.address(0), consumers);
        mbarrier_init(smem.V_landed.address(0), 1);
        for (int slot = 0; slot < slots; ++slot) {
            mbarrier_init(smem.K_full.address(slot), 1);
            mbarrier_init(smem.V_full.address(slot), 1);
            mbarrier_init(smem.K_empty.address(slot), consumers);
            mbarrier_init(smem.V_empty.address(slot), consumers);
        }
        fence_mbarrier_init();
    }
    bar_sync();

    if (warpgroup_id() == 0) {
        // ---- producer: one warp ----
        setmaxnreg_dec<consumers == 2 ? 24 : 32>();
        if (warp_id() != 0) return;
        int tile_count = 0, n = 0, landed_count = 0;
        for (int round = 0; tiles.has(round); ++round) {
            const auto [b, h, i0] = tiles.tile(round, Br, problem);
            const int kv_head = problem.kv_head(h);
            const Sequence sequence = problem.sequence(b);
            if (i0 >= sequence.Nq) continue;
            const Mask mask = problem.mask(sequence);
            const Range kv_tiles = mask.key_tiles(i0, Br, Bc), seen = mask.seen_keys();

            // 1. to 3.
            const auto load_K = [&](int kv_tile, int n) {
                const Place place(n);
                const std::uint32_t full = smem.K_full.address(place.slot);
                mbarrier_wait_parity(smem.K_empty.address(place.slot), place.parity ^ 1);
                if (elect_sync()) {
                    mbarrier_arrive_expect_tx(full, sizeof(smem.K[0]));
                    cp_async_bulk_tensor_5d(smem.K[place.slot].address(), K_map, 0,
                                            int(sequence.first_key) + kv_tile * Bc, 0, kv_head, sequence.batch, full);
                }
            };
            const auto load_V = [&](int kv_tile, int n) {
                const Place place(n);
                const std::uint32_t full = smem.V_full.address(place.slot), landed = smem.V_landed.address(0);
                const int j0 = kv_tile * Bc;
                // Rows that lie in the tensor and that nobody may see.
                const bool hidden =
                    j0 < seen.begin || (j0 + Bc > seen.end && (problem.cu_k != nullptr || seen.end < sequence.Nk));
                mbarrier_wait_parity(smem.V_empty.address(place.slot), place.parity ^ 1);
                if (elect_sync()) {
                    mbarrier_arrive_expect_tx(hidden ? landed : full, sizeof(smem.V[0]));
                    cp_async_bulk_tensor_5d(smem.V[place.slot].address(), V_map, 0, int(sequence.first_key) + j0, 0,
                                            kv_head, sequence.batch, hidden ? landed : full);
                }
                if (hidden) {  // zero times a NaN is a NaN: zeros take their place
                    mbarrier_wait_parity(landed, landed_count++ % 2);
                    for (int row = 0; row < Bc; ++row)
                        if (!seen.contains(j0 + row))
                            for (int column = 8 * lane_id(); column < d; column += 8 * warp_size)
                                smem.V[place.slot].store(row, column, Vector<T, 8>{});
                    fence_proxy_async();
                    bar_warp_sync(all_lanes);
                    if (elect_sync()) mbarrier_arrive(full);
                }
            };

            if (!kv_tiles.empty()) load_K(kv_tiles.end - 1, n);
            mbarrier_wait_parity(smem.Q_empty.address(0), tile_count++ % 2 ^ 1);
            if (elect_sync()) {
                mbarrier_arrive_expect_tx(smem.Q_full.address(0), sizeof(smem.Q));
                for (int part = 0; part < consumers; ++part)
                    cp_async_bulk_tensor_5d(smem.Q[part].address(), Q_map, 0,
                                            int(sequence.first_query) + i0 + 64 * part, 0, h, sequence.batch,
                                            smem.Q_full.address(0));
            }
            for (int kv_tile = kv_tiles.end - 1; kv_tile >= kv_tiles.begin; --kv_tile, ++n) {
                if (kv_tile > kv_tiles.begin) load_K(kv_tile - 1, n + 1);
                load_V(kv_tile, n);
            }
        }
        return;
    }

    // ---- consumers ----
    setmaxnreg_inc<consumers == 2 ? 240 : 160>();
    const int own = warpgroup_id() - 1, thread = threadIdx.x % warpgroup_size;
    const int lane = lane_id(), g = lane / 4, t = lane % 4, warp_row = thread / warp_size * 16;
    const int own_turn = 1 + own, next_turn = 1 + (own + 1) % consumers, own_barrier = 1 + consumers + own;
    // A softmax seeks the largest score: a scale that is not positive turns the products round, or makes them all 0.
    const float c = problem.scale == 0 ? 1 : fabsf(problem.scale) * log2_e;
    if (own == consumers - 1) barrier_arrive(1, threads_of_turn);  // the first turn

    int tile_count = 0, n = 0;  // query tiles and key tiles so far
    for (int round = 0; tiles.has(round); ++round) {
        const auto [b, h, i0] = tiles.tile(round, Br, problem);
        const Sequence sequence = problem.sequence(b);
        if (i0 >= sequence.Nq) continue;
        const Mask mask = problem.mask(sequence);
        const Range kv_tiles = mask.key_tiles(i0, Br, Bc);
        const Range own_tiles = mask.key_tiles(i0 + 64 * own, 64, Bc),
                    full_tiles = mask.full_key_tiles(i0 + 64 * own, 64, Bc);
        const int row = i0 + 64 * own + warp_row + g;  // and row + 8

        float O_rmem[d / 2], S[Bc / 2], m[2] = {-infinity, -infinity}, l[2] = {}, alpha[2];
        std::uint32_t W[Bc / 16][4];
        for (float& x : O_rmem) x = 0;

        // Element i of S: row g + 8 (i / 2 % 2), column 8 (i / 4) + 2t + i % 2.
        const auto softmax = [&]<Tile kind>(int kv_tile) {
            const int j0 = kv_tile * Bc;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (!(problem.scale > 0)) {
#pragma unroll
                    for (int i = 2 * half; i < Bc / 2; i += 4)
                        for (int e = 0; e < 2; ++e) S[i + e] *= problem.scale < 0 ? -1 : 0;
                }
                if constexpr (kind == Tile::mixed) {
                    const Range keys = mask.keys(row + 8 * half);
                    const int begin = keys.begin - j0 - 2 * t, end = keys.end - j0 - 2 * t;
#pragma unroll
                    for (int i = 2 * half; i < Bc / 2; i += 4)
                        for (int e = 0; e < 2; ++e)
                            if (i / 4 * 8 + e < begin || i / 4 * 8 + e >= end) S[i + e] = -infinity;
                }
                float m_new = m[half];
#pragma unroll
                for (int i = 2 * half; i < Bc / 2; i += 4) m_new = fmaxf(m_new, fmaxf(S[i], S[i + 1]));
                m_new = fmaxf(m_new, shfl_sync_bfly(m_new, 1));
                m_new = fmaxf(m_new, shfl_sync_bfly(m_new, 2));
                count_rescale();
                alpha[half] = ex2_approx_ftz(c * (m[half] - exponent_base(m_new)));
                m[half] = m_new;
                l[half] *= alpha[half];

                // c s - base is rounded once, but base is rounded too: all weights are too large or small by a factor
                // 2^(2^-24 |base|) at most, 1 in 16 bits unless |base| is large.
                float base = mul_rn(c, exponent_base(m_new));
                if (vote_sync_any(fabsf(base) > 4096)) {
                    // Row by row: a row's bits must not depend on its neighbours.
                    const float shift = fabsf(base) > 4096 ? m_new : 0;
#pragma unroll
                    for (int i = 2 * half; i < Bc / 2; i += 4)
                        for (int e = 0; e < 2; ++e) S[i + e] -= shift;
                    base = shift == 0 ? base : 0;
                }
#pragma unroll
                for (int i = 2 * half; i < Bc / 2; i += 4) {
                    for (int e = 0; e < 2; ++e) S[i + e] = ex2_approx_ftz(fmaf(c, S[i + e], -base));
                    l[half] += S[i] + S[i + 1];
                }
            }
        };

        // The weights, once the product of the old ones is done.
        const auto pack_W = [&] {
#pragma unroll
            for (int i = 0; i < Bc / 2; i += 2) W[i / 8][i / 2 % 4] = cvt_rn_x2<T>(S[i], S[i + 1]);
        };

        const auto issue_S = [&](const Place& place) {
            wgmma_fence(S);
#pragma unroll
            for (int k = 0; k < d / 16; ++k)
                wgmma_m64k16<T, Major::k, Major::k>(S, smem.Q[own].k_major(0, 16 * k),
                                                    smem.K[place.slot].k_major(0, 16 * k), k > 0);
            wgmma_commit_group();
        };
        const auto issue_O = [&](const Place& place) {
            wgmma_fence(O_rmem, W);
#pragma unroll
            for (int k = 0; k < Bc / 16; ++k)
                wgmma_m64k16<T, Major::mn>(O_rmem, W[k], smem.V[place.slot].mn_major(16 * k, 0), true);
            wgmma_commit_group();
        };

        mbarrier_wait_parity(smem.Q_full.address(0), tile_count++ % 2);
        int kv_tile = kv_tiles.end - 1;
        // 4. and 8. Tiles that others of the CTA see: released at once, and the turn passed on.
        const auto pass_over = [&](int down_to) {
            for (; kv_tile >= down_to; --kv_tile, ++n) {
                const Place place(n);
                // K need not be waited for: who sees the tile does so before it passes the turn on.
                mbarrier_wait_parity(smem.V_full.address(place.slot), place.parity);
                barrier_sync(own_turn, threads_of_turn);  // here all 128 threads have seen that the tile was there
                if (thread == 0) {
                    mbarrier_arrive(smem.K_empty.address(place.slot));
                    mbarrier_arrive(smem.V_empty.address(place.slot));
                }
                barrier_arrive(next_turn, threads_of_turn);
            }
        };
        pass_over(own_tiles.empty() ? kv_tiles.begin : own_tiles.end);
        if (!own_tiles.empty()) {
            // 5.
            const Place first(n);
            mbarrier_wait_parity(smem.K_full.address(first.slot), first.parity);
            barrier_sync(own_turn, threads_of_turn);
            issue_S(first);
            barrier_arrive(next_turn, threads_of_turn);
            wgmma_wait_group<0>(S);
            if (thread == 0) mbarrier_arrive(smem.K_empty.address(first.slot));
            softmax.template operator()<Tile::mixed>(kv_tile);
            pack_W();
            ++n, --kv_tile;

            const auto step = [&]<Tile kind>(int kv_tile) {
                // 6.
                const Place before(n - 1), place(n);
                mbarrier_wait_parity(smem.K_full.address(place.slot), place.parity);
                barrier_sync(own_turn, threads_of_turn);
                issue_S(place);
                mbarrier_wait_parity(smem.V_full.address(before.slot), before.parity);
                issue_O(before);
                barrier_arrive(next_turn, threads_of_turn);
                wgmma_wait_group<1>(S);
                if (thread == 0) mbarrier_arrive(smem.K_empty.address(place.slot));
                softmax.template operator()<kind>(kv_tile);
                wgmma_wait_group<0>(O_rmem, W);
                if (thread == 0) mbarrier_arrive(smem.V_empty.address(before.slot));
                pack_W();
#pragma unroll
                for (int i = 0; i < d / 2; ++i) O_rmem[i] *= alpha[i / 2 % 2];
                ++n;
            };
            while (kv_tile >= own_tiles.begin) {
                for (; kv_tile >= own_tiles.begin && !full_tiles.contains(kv_tile); --kv_tile)
                    step.template operator()<Tile::mixed>(kv_tile);
                for (; full_tiles.contains(kv_tile); --kv_tile) step.template operator()<Tile::full>(kv_tile);
            }

            // 7.
            const Place last(n - 1);
            mbarrier_wait_parity(smem.V_full.address(last.slot), last.parity);
            barrier_sync(own_turn, threads_of_turn);
            issue_O(last);
            barrier_arrive(next_turn, threads_of_turn);
            wgmma_wait_group<0>(O_rmem, W);
            if (thread == 0) mbarrier_arrive(smem.V_empty.address(last.slot));
        } else if (!kv_tiles.empty()) {  // as many turns as the others
            barrier_sync(own_turn, threads_of_turn);
            barrier_arrive(next_turn, threads_of_turn);
        }
        pass_over(kv_tiles.begin);

        // 9. O = O / l through shared memory: the store of the tile before has been read, and nobody needs Q any more.
        constexpr bool own_memory = d < 256;
        auto& O_smem = own_memory ? smem.O[own] : smem.Q[own];
        if (own_memory) {
            if (thread == 0) cp_async_bulk_wait_group_read<0>();
            barrier_sync(own_barrier, warpgroup_size);
            if (thread == 0) mbarrier_arrive(smem.Q_empty.address(0));  // all 128 threads have seen that Q was there
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            l[half] += shfl_sync_bfly(l[half], 1);
            l[half] += shfl_sync_bfly(l[half], 2);
            if (t == 0 && row + 8 * half < sequence.Nq)
                sequence.queries(L, h)(row + 8 * half) = log_sum_exp(c * m[half], l[half]);
        }
        const float factor[2] = {inverse_sum(l[0]), inverse_sum(l[1])};
#pragma unroll
        for (int k = 0; k < d / 16; ++k) {
            std::uint32_t packed[4];
#pragma unroll
            for (int j = 0; j < 4; ++j)
                packed[j] =
                    cvt_rn_x2<T>(factor[j % 2] * O_rmem[8 * k + 2 * j], factor[j % 2] * O_rmem[8 * k + 2 * j + 1]);
            stmatrix_x4(O_smem.address(warp_row + lane % 16, 16 * k + lane / 16 * 8), packed);
        }
        fence_proxy_async();
        barrier_sync(own_barrier, warpgroup_size);
        const int first_row = i0 + 64 * own;
        if (problem.cu_q == nullptr || first_row + 64 <= sequence.Nq) {
            if (thread == 0) {
                cp_async_bulk_tensor_5d_store(O_map, 0, int(sequence.first_query) + first_row, 0, h, sequence.batch,
                                              O_smem.address());
                cp_async_bulk_commit_group();
            }
        } else {  // a tensor knows its end, but not where one sequence ends and the next begins
            const auto O_gmem = sequence.queries(O, h);
            for (int i = thread; i < 64 * d / 8; i += warpgroup_size) {
                const int r = i / (d / 8), column = i % (d / 8) * 8;
                if (first_row + r < sequence.Nq) O_gmem.store(first_row + r, column, O_smem.load8(r, column));
            }
        }
        if (!own_memory) {
            if (thread == 0) cp_async_bulk_wait_group_read<0>();
            barrier_sync(own_barrier, warpgroup_size);
            if (thread == 0) mbarrier_arrive(smem.Q_empty.address(0));
        }
    }
    if (thread == 0) cp_async_bulk_wait_group_read<0>();
    if (own == 0) barrier_sync(own_turn, threads_of_turn);  // the turn that is left over
}

}  // namespace stage04::g
