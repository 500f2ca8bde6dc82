// 04d  overlap: the softmax of a tile while this warpgroup's own product of the tile before is under way.
// FlashAttention-3 (Shah et al. 2024), Algorithm 2.
//
// 04c waits for W V before it begins the softmax of the next S. Here S of the next tile is ordered first, W V after it;
// the softmax begins when S is there, and W V goes on below it. So the old W must stay in its registers until W V is
// done: the new weights wait in S, in fp32, and only then become W; and O, which W V still adds to, is rescaled then,
// by an alpha that waits too. At d = 128 S, W and O are 64 + 32 + 64 registers, all of them busy at once.
//
// The mask is peeled off: mixed tiles (the diagonal, the ends of a window, the last keys) lie at both ends of the walk,
// the loop between them knows no mask. With the softmax on the way of the products, its instructions count.
//
// Producer, barriers, turns, memory and grid as in 04c.
//
//   producer, for each key tile:   1. when the slot is empty, start the copy of K;  2. of V
//   consumer: 3. turn: S of the last key tile; softmax
//             for each key tile before it:   4. turn: S of this one, O += W V of the tile walked before; softmax of S when it is there;
//                                               when O is there: W, O = alpha O; release both
//             5. turn: O += W V of the last tile walked
//   6. O = O / l, L = c m + log l
#pragma once

#include "04_fa3_hopper/marks.h"
#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage04::d {

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
    SharedArray<Mbarrier, 1> Q_full, V_landed;
    SharedArray<Mbarrier, slots> K_full, K_empty, V_full, V_empty;
};

/// A place in the ring: the n-th tile that passes through it, and the parity of its turn.
struct Place {
    int slot, parity;
    __device__ explicit Place(int n) : slot(n % slots), parity(n / slots % 2) {}
};

template <class T, int d, class Marks>
__global__ void __launch_bounds__(threads, 1)
    forward(KernelProblem problem, const __grid_constant__ TensorMap Q_map, const __grid_constant__ TensorMap K_map,
            const __grid_constant__ TensorMap V_map, Tensor<T> O, Tensor<float> L, Marks marks) {
    constexpr int Bc = d::Bc(d);
    auto& smem = shared_memory<Shared<T, d>>();

    const int heads = problem.B * problem.Hq, head = blockIdx.x % heads, h = head % problem.Hq;
    const int i0 = (ceil_div(problem.Nq, Br) - 1 - int(blockIdx.x / heads)) * Br;
    const Sequence sequence = problem.sequence(head / problem.Hq);
    if (i0 >= sequence.Nq) return;
    const Mask mask = problem.mask(sequence);
    const Range kv_tiles = mask.key_tiles(i0, Br, Bc), full_tiles = mask.full_key_tiles(i0, Br, Bc);
    // A softmax seeks the largest score: a scale that is not positive turns the products round, or makes them all 0.
    const float c = problem.scale == 0 ? 1 : fabsf(problem.scale) * log2_e;

    if (threadIdx.x == 0) {
        mbarrier_init(smem.Q_full.address(0), 1);
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

    // ---- producer: one warp ----
    if (warpgroup_id() == 0) {
        setmaxnreg_dec<24>();
        if (warp_id() != 0 || kv_tiles.empty()) return;
        const Range seen = mask.seen_keys();
        const int kv_head = problem.kv_head(h);
        if (elect_sync()) {
            mbarrier_arrive_expect_tx(smem.Q_full.address(0), sizeof(smem.Q));
            for (int part = 0; part < consumers; ++part)
                cp_async_bulk_tensor_5d(smem.Q[part].address(), Q_map, 0, int(sequence.first_query) + i0 + 64 * part, 0,
                                        h, sequence.batch, smem.Q_full.address(0));
        }
        for (int kv_tile = kv_tiles.end - 1, n = 0, n_landed = 0; kv_tile >= kv_tiles.begin; --kv_tile, ++n) {
            const Place place(n);
            const int j0 = kv_tile * Bc, j = int(sequence.first_key) + j0;
            const std::uint32_t K_full = smem.K_full.address(place.slot), V_full = smem.V_full.address(place.slot);

            // 1.
            marks(Mark::wait_slot);
            mbarrier_wait_parity(smem.K_empty.address(place.slot), place.parity ^ 1);
            if (elect_sync()) {
                mbarrier_arrive_expect_tx(K_full, sizeof(smem.K[0]));
                cp_async_bulk_tensor_5d(smem.K[place.slot].address(), K_map, 0, j, 0, kv_head, sequence.batch, K_full);
            }
            marks(Mark::copy_K);

            // 2. Rows of V that nobody may see become zeros on the way: the tile lands, is mended, and only then is
            // full.
            const bool hidden = j0 < seen.begin || j0 + Bc > seen.end;
            const std::uint32_t landed = hidden ? smem.V_landed.address(0) : V_full;
            marks(Mark::wait_slot);
            mbarrier_wait_parity(smem.V_empty.address(place.slot), place.parity ^ 1);
            if (elect_sync()) {
                mbarrier_arrive_expect_tx(landed, sizeof(smem.V[0]));
                cp_async_bulk_tensor_5d(smem.V[place.slot].address(), V_map, 0, j, 0, kv_head, sequence.batch, landed);
            }
            marks(Mark::copy_V);
            if (hidden) {
                mbarrier_wait_parity(landed, n_landed++ % 2);
                for (int i = lane_id(); i < Bc * d / 8; i += warp_size)
                    if (!seen.contains(j0 + i / (d / 8)))
                        smem.V[place.slot].store(i / (d / 8), i % (d / 8) * 8, Vector<T, 8>{});
                fence_proxy_async();
                bar_warp_sync(all_lanes);
                if (elect_sync()) mbarrier_arrive(V_full);
            }
        }
        return;
    }

    // ---- consumers: two warpgroups of 64 queries each ----
    setmaxnreg_inc<240>();
    const int own = warpgroup_id() - 1, thread = threadIdx.x % warpgroup_size;
    const int lane = lane_id(), g = lane / 4, t = lane % 4;  // row g, columns 2t and 2t + 1 of a fragment (wgmma.h)
    const int row = i0 + 64 * own + thread / warp_size * 16 + g;  // this thread has the queries row and row + 8

    float O_rmem[d / 2], S[Bc / 2], m[2] = {-infinity, -infinity}, l[2] = {}, alpha[2];
    std::uint32_t W[Bc / 16][4];
    for (float& x : O_rmem) x = 0;

    // Element i of S: row g + 8 (i / 2 % 2), column 8 (i / 4) + 2t + i % 2.
    const auto softmax = [&]<Tile kind>(int kv_tile) {
        marks(Mark::softmax);
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
#pragma unroll
                for (int i = 2 * half; i < Bc / 2; i += 4)
                    for (int e = 0; e < 2; ++e) S[i + e] -= exponent_base(m_new);
                base = 0;
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
        marks(Mark::S);
        wgmma_fence(S);
#pragma unroll
        for (int k = 0; k < d / 16; ++k)
            wgmma_m64k16<T, Major::k, Major::k>(S, smem.Q[own].k_major(0, 16 * k),
                                                smem.K[place.slot].k_major(0, 16 * k), k > 0);
        wgmma_commit_group();
    };
    const auto issue_O = [&](const Place& place) {
        marks(Mark::O);
        wgmma_fence(O_rmem, W);
#pragma unroll
        for (int k = 0; k < Bc / 16; ++k)
            wgmma_m64k16<T, Major::mn>(O_rmem, W[k], smem.V[place.slot].mn_major(16 * k, 0), true);
        wgmma_commit_group();
    };

    // Barriers 1 and 2: whose turn it is to multiply. The second warpgroup gives the first its first turn.
    const int own_turn = 1 + own, other_turn = 2 - own;
    if (own == 1) barrier_arrive(other_turn, threads_of_turn);

    if (!kv_tiles.empty()) {
        // 3.
        mbarrier_wait_parity(smem.Q_full.address(0), 0);
        marks(Mark::wait_K);
        mbarrier_wait_parity(smem.K_full.address(0), 0);
        marks(Mark::wait_turn);
        barrier_sync(own_turn, threads_of_turn);
        issue_S(Place(0));
        barrier_arrive(other_turn, threads_of_turn);
        wgmma_wait_group<0>(S);
        if (thread == 0) mbarrier_arrive(smem.K_empty.address(0));
        softmax.template operator()<Tile::mixed>(kv_tiles.end - 1);
        pack_W();

        int n = 1, kv_tile = kv_tiles.end - 2;
        const auto step = [&]<Tile kind>(int kv_tile) {
            // 4.
            const Place before(n - 1), place(n);
            marks(Mark::wait_K);
            mbarrier_wait_parity(smem.K_full.address(place.slot), place.parity);
            marks(Mark::wait_turn);
            barrier_sync(own_turn, threads_of_turn);
            issue_S(place);
            marks(Mark::wait_V);
            mbarrier_wait_parity(smem.V_full.address(before.slot), before.parity);
            issue_O(before);
            barrier_arrive(other_turn, threads_of_turn);
            wgmma_wait_group<1>(S);
            if (thread == 0) mbarrier_arrive(smem.K_empty.address(place.slot));
            softmax.template operator()<kind>(kv_tile);
            wgmma_wait_group<0>(O_rmem, W);
            marks(Mark::rescale);
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

        // 5.
        const Place last(n - 1);
        marks(Mark::wait_V);
        mbarrier_wait_parity(smem.V_full.address(last.slot), last.parity);
        marks(Mark::wait_turn);
        barrier_sync(own_turn, threads_of_turn);
        issue_O(last);
        barrier_arrive(other_turn, threads_of_turn);
        wgmma_wait_group<0>(O_rmem, W);
        marks(Mark::O_done);
    }
    if (own == 0) barrier_sync(own_turn, threads_of_turn);  // the turn that is left over

    // 6. A query that saw no key has l = 0: O = 0.
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

}  // namespace stage04::d
