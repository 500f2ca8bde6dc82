// 04e  persistent: 04d in CTAs that take query tile after query tile.
//
// One CTA for each multiprocessor; TileOrder (tile_order.h) says which tiles it takes, and in what order. Both roles loop over
// them, and the producer runs ahead: rings and parities go on counting over tiles, and the next tile's K is on its way
// while this one ends. Q is loaded anew when both consumers have left it (Q_full, Q_empty).
//
// K runs one tile ahead of V, as the consumers want them. Of V only rows that lie in the tensor are mended: beyond it
// there are zeros already.
//
// On chip as in 04d.
//
//   producer, for each query tile:  1. K of the last key tile   2. Q   3. K one tile ahead of V
//   consumer, for each query tile:  4. turn: S of the last key tile; softmax
//             for each key tile before it:   5. turn: S of this one, O += W V of the tile walked before; softmax; W, O = alpha O
//             6. turn: O += W V of the last tile walked
//             7. O = O / l, L = c m + log l
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/attention/tile_order.h"
#include "common/gpu/gpu.h"

namespace stage04::e {

using namespace attention;
using namespace gpu;

constexpr int consumers = 2, slots = 2;
constexpr int threads = warpgroup_size * (1 + consumers);
constexpr int threads_of_turn = 2 * warpgroup_size;
constexpr int Br = 64 * consumers;
constexpr int Bc(int d) { return d <= 128 ? 128 : 80; }

template <class T, int d>
struct Shared {
    PanelTile<T, 64, d> Q[consumers];
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
__global__ void __launch_bounds__(threads, 1)
    forward(KernelProblem problem, TileOrder tiles, const __grid_constant__ TensorMap Q_map,
            const __grid_constant__ TensorMap K_map, const __grid_constant__ TensorMap V_map, Tensor<T> O,
            Tensor<float> L) {
    constexpr int Bc = e::Bc(d);
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
        setmaxnreg_dec<24>();
        if (warp_id() != 0) return;
        int tile_count = 0, n = 0, landed_count = 0;
        for (int round = 0; tiles.has(round); ++round) {
            const auto [b, h, i0] = tiles.tile(round, Br, problem);
            const int kv_head = problem.kv_head(h);
            const Sequence sequence = problem.sequence(b);
            if (i0 >= sequence.Nq) continue;
            const Mask mask = problem.mask(sequence);
            const Range kv_tiles = mask.key_tiles(i0, Br, Bc), seen = mask.seen_keys();
            if (kv_tiles.empty()) continue;

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

            load_K(kv_tiles.end - 1, n);
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

    // ---- consumers: two warpgroups of 64 queries each ----
    setmaxnreg_inc<240>();
    const int own = warpgroup_id() - 1, thread = threadIdx.x % warpgroup_size;
    const int lane = lane_id(), g = lane / 4, t = lane % 4, warp_row = thread / warp_size * 16;
    const int own_turn = 1 + own, other_turn = 2 - own;
    // A softmax seeks the largest score: a scale that is not positive turns the products round, or makes them all 0.
    const float c = problem.scale == 0 ? 1 : fabsf(problem.scale) * log2_e;
    if (own == 1) barrier_arrive(other_turn, threads_of_turn);  // the first turn

    int tile_count = 0, n = 0;  // query tiles and key tiles so far
    for (int round = 0; tiles.has(round); ++round) {
        const auto [b, h, i0] = tiles.tile(round, Br, problem);
        const Sequence sequence = problem.sequence(b);
        if (i0 >= sequence.Nq) continue;
        const Mask mask = problem.mask(sequence);
        const Range kv_tiles = mask.key_tiles(i0, Br, Bc), full_tiles = mask.full_key_tiles(i0, Br, Bc);
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

        if (!kv_tiles.empty()) {
            // 4.
            const Place first(n);
            mbarrier_wait_parity(smem.Q_full.address(0), tile_count++ % 2);
            mbarrier_wait_parity(smem.K_full.address(first.slot), first.parity);
            barrier_sync(own_turn, threads_of_turn);
            issue_S(first);
            barrier_arrive(other_turn, threads_of_turn);
            wgmma_wait_group<0>(S);
            if (thread == 0) mbarrier_arrive(smem.K_empty.address(first.slot));
            softmax.template operator()<Tile::mixed>(kv_tiles.end - 1);
            pack_W();
            ++n;

            int kv_tile = kv_tiles.end - 2;
            const auto step = [&]<Tile kind>(int kv_tile) {
                // 5.
                const Place before(n - 1), place(n);
                mbarrier_wait_parity(smem.K_full.address(place.slot), place.parity);
                barrier_sync(own_turn, threads_of_turn);
                issue_S(place);
                mbarrier_wait_parity(smem.V_full.address(before.slot), before.parity);
                issue_O(before);
                barrier_arrive(other_turn, threads_of_turn);
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
            while (kv_tile >= kv_tiles.begin) {
                for (; kv_tile >= kv_tiles.begin && !full_tiles.contains(kv_tile); --kv_tile)
                    step.template operator()<Tile::mixed>(kv_tile);
                for (; full_tiles.contains(kv_tile); --kv_tile) step.template operator()<Tile::full>(kv_tile);
            }

            // 6. S of all key tiles is there: nobody needs Q any more.
            const Place last(n - 1);
            if (thread == 0) mbarrier_arrive(smem.Q_empty.address(0));
            mbarrier_wait_parity(smem.V_full.address(last.slot), last.parity);
            barrier_sync(own_turn, threads_of_turn);
            issue_O(last);
            barrier_arrive(other_turn, threads_of_turn);
            wgmma_wait_group<0>(O_rmem, W);
            if (thread == 0) mbarrier_arrive(smem.V_empty.address(last.slot));
        }

        // 7. A query that saw no key has l = 0: O = 0.
        const auto O_gmem = sequence.queries(O, h);
        const auto L_gmem = sequence.queries(L, h);
        for (int half = 0; half < 2; ++half) {
            l[half] += shfl_sync_bfly(l[half], 1);
            l[half] += shfl_sync_bfly(l[half], 2);
            const int i = row + 8 * half;
            if (i >= sequence.Nq) continue;
            const float factor = inverse_sum(l[half]);
#pragma unroll
            for (int n = 0; n < d / 8; ++n) {
                const float* o = &O_rmem[4 * n + 2 * half];
                O_gmem.store(i, 8 * n + 2 * t, cvt_rn<T>(Vector<float, 2>{factor * o[0], factor * o[1]}));
            }
            if (t == 0) L_gmem(i) = log_sum_exp(c * m[half], l[half]);
        }
    }
    if (own == 0) barrier_sync(own_turn, threads_of_turn);  // the turn that is left over
}

}  // namespace stage04::e
