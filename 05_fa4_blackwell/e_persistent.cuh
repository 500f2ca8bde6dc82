// 05e  persistent: 05d in CTAs that take pair after pair of query tiles, the longest first.
//
// One CTA for each multiprocessor; TileOrder (tile_order.h) says which pairs it takes, and in what order. Every role goes
// on to the next pair by itself: while the correction still scales O of one, the copies and the first products of the
// next are under way. Phases go on counting over pairs. Roles, tensor memory and phases as in 05b, and more to wait for:
//
//   Q_empty    commit of the last S_i of a pair: the next Q may come
//   W_read     now also from a pair's last step to the next pair's first (d = 128)
//   W_ready    of a pair's first keys: the correction has fetched O_i of the pair before
//   O_empty    the copy of O_i out of shared memory has read it. O has memory of its own here, for Q is being loaded
//
// On chip, d = 128 (64): Q 64 KiB (32), O 64 (32), three slots of 32 KiB (16) for K and V; 512 columns, one CTA an SM.
// setmaxnreg: 192, 80 and 48 registers.
#pragma once

#include "common/attention/exp2.h"
#include "common/attention/kernel_problem.h"
#include "common/attention/rescale.h"
#include "common/attention/tile_order.h"
#include "common/gpu/gpu.h"

namespace stage05::e {

using namespace attention;
using namespace gpu;

constexpr int tiles = 2, slots = 3;
constexpr int Br = 128, Bc = 128;  // queries, keys of a tile
constexpr int threads = 4 * warpgroup_size;
constexpr int correction_warp = 8, product_warp = 12, load_warp = 13, store_warp = 14;

/// Columns of tensor memory.
template <int d>
struct Columns {
    static constexpr bool W_in_S = d == 128;
    __device__ static constexpr int S(int i) { return Bc * i; }
    __device__ static constexpr int O(int i) { return 2 * Bc + d * i; }
    __device__ static constexpr int W(int i) { return W_in_S ? S(i) + Bc / 2 : O(2) + Bc / 2 * i; }
};

template <class T, int d>
struct Shared {
    PanelTile<T, Br, d> Q[tiles], O[tiles];
    PanelTile<T, Bc, d> KV[slots];
    SharedArray<float, Br> alpha[tiles];
    SharedArray<Mbarrier, tiles> Q_full, Q_empty, S_full, W_ready, W_last, W_read, alpha_full, alpha_empty, O_full,
        O_staged, O_empty;
    SharedArray<Mbarrier, slots> KV_full, KV_empty;
    SharedArray<Mbarrier, 1> V_landed;
    SharedArray<std::uint32_t, 1> tensor_memory;
};

/// A place in the ring: the n-th tile that passes through it, and the parity of its turn. K of step s is number 2 s, V
/// number 2 s + 1; steps are counted over all tiles of the CTA.
struct Place {
    int slot, parity;
    __device__ explicit Place(int n) : slot(n % slots), parity(n / slots % 2) {}
};

/// A pair of query tiles: who it is and what it sees.
struct Work {
    int h, i0;
    Sequence sequence;
    Mask mask;
    Range kv_tiles;  // walked from the last on
    __device__ Work(const KernelProblem& problem, const TileOrder::Tile& tile)
        : h(tile.h),
          i0(tile.i0),
          sequence(problem.sequence(tile.b)),
          mask(problem.mask(sequence)),
          kv_tiles(mask.key_tiles(i0, tiles * Br, Bc)) {}
    __device__ int steps() const { return kv_tiles.end - kv_tiles.begin; }
};

/// Exp2: which of a row's exponentials are polynomials, an Exp2Policy.
template <class T, int d, class Exp2>
__global__ void __launch_bounds__(threads, 1)
    forward(KernelProblem problem, TileOrder order, const __grid_constant__ TensorMap Q_map,
            const __grid_constant__ TensorMap K_map, const __grid_constant__ TensorMap V_map,
            const __grid_constant__ TensorMap O_map, Tensor<T> O, Tensor<float> L) {
    using Columns = e::Columns<d>;
    auto& smem = shared_memory<Shared<T, d>>();

    /// Calls work_on(work) for each pair of tiles of this CTA, in order.
    const auto for_each_work = [&](auto&& work_on) {
        for (int round = 0; order.has(round); ++round) {
            const Work work(problem, order.tile(round, tiles * Br, problem));
            if (work.i0 < work.sequence.Nq) work_on(work);
        }
    };

    if (threadIdx.x == 0) {
        for (int i = 0; i < tiles; ++i) {
            mbarrier_init(smem.Q_full.address(i), 1);
            mbarrier_init(smem.Q_empty.address(i), 1);
            mbarrier_init(smem.S_full.address(i), 1);
            mbarrier_init(smem.W_ready.address(i), 2 * warpgroup_size);
            mbarrier_init(smem.W_last.address(i), warpgroup_size);
            mbarrier_init(smem.W_read.address(i), 1);
            mbarrier_init(smem.alpha_full.address(i), warpgroup_size);
            mbarrier_init(smem.alpha_empty.address(i), warpgroup_size);
            mbarrier_init(smem.O_full.address(i), 1);
            mbarrier_init(smem.O_staged.address(i), warpgroup_size);
            mbarrier_init(smem.O_empty.address(i), 1);
        }
        for (int slot = 0; slot < slots; ++slot) {
            mbarrier_init(smem.KV_full.address(slot), 1);
            mbarrier_init(smem.KV_empty.address(slot), 1);
        }
        mbarrier_init(smem.V_landed.address(0), 1);
        fence_mbarrier_init();
    }
    if (warp_id() == product_warp) {
        tcgen05_alloc<tmem_columns>(smem.tensor_memory.address(0));
        tcgen05_relinquish_alloc_permit();
    }
    bar_sync();
    const std::uint32_t tmem = smem.tensor_memory(0);

    if (warpgroup_id() < tiles) {
        // ---- softmax: thread t has query t of its tile, in lane t of S, W and O ----
        setmaxnreg_inc<192>();
        role("softmax", warpgroup_id());
        const int own = warpgroup_id(), thread = threadIdx.x % warpgroup_size;
        const std::uint32_t S_tmem = tmem + Columns::S(own), W_tmem = tmem + Columns::W(own);
        // A softmax seeks the largest score: a scale that is not positive changes their sign, or makes them all 0.
        const float c = problem.scale == 0 ? 1 : fabsf(problem.scale) * log2_e;
        int n = 0;  // steps of all tiles so far

        // A factor for each query: the correction multiplies O by it.
        const auto send_factor = [&](int number, float factor) {
            mbarrier_wait_parity(smem.alpha_empty.address(own), number % 2 ^ 1);
            smem.alpha[own](thread) = factor;
            mbarrier_arrive(smem.alpha_full.address(own));
        };

        for_each_work([&](const Work& work) {
            const auto& [h, i0, sequence, mask, kv_tiles] = work;
            const int steps = work.steps(), row = i0 + Br * own + thread;
            const Range full_tiles = mask.full_key_tiles(i0 + Br * own, Br, Bc), keys = mask.keys(row);
            float m = -infinity, l = 0;  // m: the base of weights, at most tau behind the maximum
            for (int step = 0; step < steps; ++step, ++n) {
                const int kv_tile = kv_tiles.end - 1 - step, j0 = kv_tile * Bc;

                // 6.
                mbarrier_wait_parity(smem.S_full.address(own), n % 2);
                tcgen05_fence_after_thread_sync();
                float S[4][32];
#pragma unroll
                for (int part = 0; part < 4; ++part) tcgen05_ld(S[part], S_tmem + 32 * part);
                tcgen05_wait_ld(S);

                if (!(problem.scale > 0)) {
#pragma unroll
                    for (int i = 0; i < Bc; ++i) S[i / 32][i % 32] *= problem.scale < 0 ? -1 : 0;
                }
                if (!full_tiles.contains(kv_tile)) {
#pragma unroll
                    for (int i = 0; i < Bc; ++i)
                        if (i < keys.begin - j0 || i >= keys.end - j0) S[i / 32][i % 32] = -infinity;
                }
                float m_part[4] = {m, m, m, m};  // four chains of maxima. A NaN that the query sees goes through
#pragma unroll
                for (int i = 0; i < Bc; ++i) m_part[i % 4] = max_nan(m_part[i % 4], S[i / 32][i % 32]);
                const float m_new = max_nan(max_nan(m_part[0], m_part[1]), max_nan(m_part[2], m_part[3]));
                // Base and maximum relative to the maximum: their distance is rounded once, as are the weights'.
                const float base_before = c * (m - exponent_base(m_new)), maximum = m_new == -infinity ? -infinity : 0;
                const float alpha = conditional_rescale(base_before, maximum).alpha;
                if (alpha != 1) m = m_new;
                if (step > 0) send_factor(n - 1, alpha);

                // 7. c s - base is rounded once, but base is rounded too: all weights are too large or small by a factor
                // 2^(2^-24 |base|) at most, 1 in 16 bits unless |base| is large.
                float base = mul_rn(c, exponent_base(m));
                if (vote_sync_any(fabsf(base) > 4096)) {
                    // Row by row: a row's bits must not depend on its neighbours.
                    const float shift = fabsf(base) > 4096 ? m : 0;
#pragma unroll
                    for (int i = 0; i < Bc; ++i) S[i / 32][i % 32] -= shift;
                    base = shift == 0 ? base : 0;
                }
#pragma unroll
                for (int part = 0; part < 4; ++part) {
                    std::uint32_t W[16];
#pragma unroll
                    for (int i = 0; i < 32; i += 2) {
                        const FloatPair s = {S[part][i], S[part][i + 1]};
                        const FloatPair weights = Exp2::exp2(fma_rn_x2({c, c}, s, {-base, -base}), 32 * part + i);
                        S[part][i] = weights[0], S[part][i + 1] = weights[1];
                        W[i / 2] = cvt_rn_x2<T>(weights[0], weights[1]);
                    }
                    tcgen05_st(W_tmem + 16 * part, W);
                    if (part < 2) continue;
                    tcgen05_wait_st();
                    tcgen05_fence_before_thread_sync();
                    mbarrier_arrive((part == 2 ? smem.W_ready : smem.W_last).address(own));
                }
                // 8. The product has W by now; the sum delays nobody.
                float sum[4] = {};
#pragma unroll
                for (int i = 0; i < Bc; ++i) sum[i % 4] += S[i / 32][i % 32];
                l = l * alpha + ((sum[0] + sum[1]) + (sum[2] + sum[3]));
            }
            if (steps > 0) send_factor(n - 1, inverse_sum(l));  // a query that saw no key has l = 0: O = 0
            if (row < sequence.Nq) sequence.queries(L, h)(row) = log_sum_exp(c * m, l);
        });
        return;
    }

    if (warp_id() < product_warp) {
        // ---- correction: thread t has lane t of O_0 and O_1 ----
        setmaxnreg_dec<80>();
        role("correction");
        const int thread = threadIdx.x % warpgroup_size;
        int n = 0, pair_count = 0;  // factors of each of the two query tiles, pairs with keys so far
        for_each_work([&](const Work& work) {
            const auto& [h, i0, sequence, mask, kv_tiles] = work;
            const int steps = work.steps();
            if (steps == 0) {  // no query sees a key
                const auto O_gmem = sequence.queries(O, h);
                for (int row = i0 + thread; row < i0 + tiles * Br && row < sequence.Nq; row += warpgroup_size)
                    for (int column = 0; column < d; column += 8) O_gmem.store(row, column, Vector<T, 8>{});
                return;
            }
            // 9.
            for (int i = 0; i < tiles; ++i)
                mbarrier_arrive(smem.W_ready.address(i));  // O_i of the pair before has been fetched
            for (int step = 1; step < steps; ++step, ++n) {
                for (int i = 0; i < tiles; ++i) {
                    mbarrier_wait_parity(smem.alpha_full.address(i), n % 2);
                    const float alpha = smem.alpha[i](thread);
                    mbarrier_arrive(smem.alpha_empty.address(i));
                    if (vote_sync_any(alpha != 1)) {
                        tcgen05_fence_after_thread_sync();
#pragma unroll
                        for (int column = 0; column < d; column += 32) {
                            float O_part[32];
                            tcgen05_ld(O_part, tmem + Columns::O(i) + column);
                            tcgen05_wait_ld(O_part);
                            for (float& x : O_part) x *= alpha;
                            tcgen05_st(tmem + Columns::O(i) + column, O_part);
                        }
                        tcgen05_wait_st();
                        tcgen05_fence_before_thread_sync();
                    }
                    mbarrier_arrive(smem.W_ready.address(i));
                }
            }
            for (int i = 0; i < tiles; ++i) {
                mbarrier_wait_parity(smem.alpha_full.address(i), n % 2);
                const float factor = smem.alpha[i](thread);
                mbarrier_arrive(smem.alpha_empty.address(i));
                mbarrier_wait_parity(smem.O_full.address(i), pair_count % 2);
                tcgen05_fence_after_thread_sync();
                mbarrier_wait_parity(smem.O_empty.address(i), pair_count % 2 ^ 1);
#pragma unroll
                for (int column = 0; column < d; column += 32) {
                    float O_part[32];
                    tcgen05_ld(O_part, tmem + Columns::O(i) + column);
                    tcgen05_wait_ld(O_part);
#pragma unroll
                    for (int part = 0; part < 32; part += 8) {
                        Vector<T, 8> chunk;
                        for (int e = 0; e < 8; ++e) chunk[e] = cvt_rn<T>(factor * O_part[part + e]);
                        smem.O[i].store(thread, column + part, chunk);
                    }
                }
                fence_proxy_async();
                tcgen05_fence_before_thread_sync();
                mbarrier_arrive(smem.O_staged.address(i));
            }
            ++n, ++pair_count;
        });
        barrier_sync(1, warpgroup_size);
        if (warp_id() == correction_warp) tcgen05_dealloc<tmem_columns>(tmem);
        return;
    }

    setmaxnreg_dec<48>();
    if (warp_id() == product_warp && elect_sync()) {
        // ---- products: one thread ----
        role("products");
        constexpr std::uint32_t S_instruction = tcgen05_instruction<T>(Br, Bc, Major::k, Major::k);
        constexpr std::uint32_t O_instruction = tcgen05_instruction<T>(Br, d, Major::k, Major::mn);
        const auto wait = [&](std::uint32_t barrier, int parity) {
            mbarrier_wait_parity(barrier, parity);
            tcgen05_fence_after_thread_sync();
        };
        const auto issue_S = [&](int i, const Place& K, int number, bool last) {
            if (Columns::W_in_S && number > 0) wait(smem.W_read.address(i), (number - 1) % 2);
#pragma unroll
            for (int k = 0; k < d / 16; ++k)
                tcgen05_mma_ss(tmem + Columns::S(i), smem.Q[i].k_major(0, 16 * k), smem.KV[K.slot].k_major(0, 16 * k),
                               S_instruction, k > 0);
            tcgen05_commit(smem.S_full.address(i));
            if (last) tcgen05_commit(smem.Q_empty.address(i));
        };

        int n = 0, pair_count = 0;  // steps, pairs with keys so far
        for_each_work([&](const Work& work) {
            const int steps = work.steps();
            if (steps == 0) return;
            const Place first(2 * n);
            // 3.
            mbarrier_wait_parity(smem.KV_full.address(first.slot), first.parity);
            for (int i = 0; i < tiles; ++i) {
                mbarrier_wait_parity(smem.Q_full.address(i), pair_count % 2);
                issue_S(i, first, n, steps == 1);
            }
            tcgen05_commit(smem.KV_empty.address(first.slot));
            for (int step = 0; step < steps; ++step, ++n) {
                const Place V(2 * n + 1), K(2 * n + 2);
                const bool last = step == steps - 1;
                mbarrier_wait_parity(smem.KV_full.address(V.slot), V.parity);
                for (int i = 0; i < tiles; ++i) {
                    // 4.
                    wait(smem.W_ready.address(i), n % 2);
#pragma unroll
                    for (int k = 0; k < Bc / 16; ++k) {
                        if (k == Bc / 16 * 3 / 4) wait(smem.W_last.address(i), n % 2);
                        tcgen05_mma_ts(tmem + Columns::O(i), tmem + Columns::W(i) + 8 * k,
                                       smem.KV[V.slot].mn_major(16 * k, 0), O_instruction, step > 0 || k > 0);
                    }
                    if (Columns::W_in_S) tcgen05_commit(smem.W_read.address(i));
                    if (last) {
                        tcgen05_commit(smem.O_full.address(i));
                        continue;
                    }

                    // 5.
                    if (i == 0) mbarrier_wait_parity(smem.KV_full.address(K.slot), K.parity);
                    issue_S(i, K, n + 1, step == steps - 2);
                }
                tcgen05_commit(smem.KV_empty.address(V.slot));
                if (!last) tcgen05_commit(smem.KV_empty.address(K.slot));
            }
            ++pair_count;
        });
        // A CTA must not end before the last commits have arrived; the copies wait for those of Q and the ring.
        if (Columns::W_in_S && n > 0)
            for (int i = 0; i < tiles; ++i) mbarrier_wait_parity(smem.W_read.address(i), (n - 1) % 2);
    } else if (warp_id() == load_warp) {
        // ---- copies in ----
        role("copies in");
        int n = 0, pair_count = 0, landed_count = 0;
        for_each_work([&](const Work& work) {
            const auto& [h, i0, sequence, mask, kv_tiles] = work;
            const int steps = work.steps(), kv_head = problem.kv_head(h);
            const Range seen = mask.seen_keys();
            if (steps == 0) return;
            const auto load = [&](int number, const TensorMap& map, int j0, bool hidden) {
                const Place place(number);
                auto& tile = smem.KV[place.slot];
                const std::uint32_t full = smem.KV_full.address(place.slot), landed = smem.V_landed.address(0);
                mbarrier_wait_parity(smem.KV_empty.address(place.slot), place.parity ^ 1);
                if (elect_sync()) {
                    mbarrier_arrive_expect_tx(hidden ? landed : full, sizeof(tile));
                    cp_async_bulk_tensor_5d(tile.address(), map, 0, int(work.sequence.first_key) + j0, 0, kv_head,
                                            work.sequence.batch, hidden ? landed : full);
                }
                if (hidden) {  // zero times a NaN is a NaN: zeros take their place
                    mbarrier_wait_parity(landed, landed_count++ % 2);
                    for (int i = lane_id(); i < Bc * d / 8; i += warp_size)
                        if (!seen.contains(j0 + i / (d / 8))) tile.store(i / (d / 8), i % (d / 8) * 8, Vector<T, 8>{});
                    fence_proxy_async();
                    bar_warp_sync(all_lanes);
                    if (elect_sync()) mbarrier_arrive(full);
                }
            };
            // 2. and 1.: the first K does not wait for room for Q.
            for (int step = 0; step < steps; ++step, ++n) {
                const int j0 = (kv_tiles.end - 1 - step) * Bc;
                load(2 * n, K_map, j0, false);
                for (int i = 0; step == 0 && i < tiles; ++i) {
                    mbarrier_wait_parity(smem.Q_empty.address(i), pair_count % 2 ^ 1);
                    if (elect_sync()) {
                        mbarrier_arrive_expect_tx(smem.Q_full.address(i), sizeof(smem.Q[i]));
                        cp_async_bulk_tensor_5d(smem.Q[i].address(), Q_map, 0, int(sequence.first_query) + i0 + Br * i,
                                                0, h, sequence.batch, smem.Q_full.address(i));
                    }
                }
                // Rows that lie in the tensor and that nobody may see; beyond it there are zeros already.
                const bool hidden =
                    j0 < seen.begin || (j0 + Bc > seen.end && (problem.cu_k != nullptr || seen.end < sequence.Nk));
                load(2 * n + 1, V_map, j0, hidden);
            }
            ++pair_count;
        });
        // A CTA must not end before the last commits have arrived.
        for (int i = 0; i < tiles; ++i) mbarrier_wait_parity(smem.Q_empty.address(i), pair_count % 2 ^ 1);
        for (int tail = 2 * n; tail < 2 * n + slots; ++tail)
            mbarrier_wait_parity(smem.KV_empty.address(Place(tail).slot), Place(tail).parity ^ 1);
    } else if (warp_id() == store_warp) {
        // ---- copies out ----
        role("copies out");
        int pair_count = 0;
        for_each_work([&](const Work& work) {
            const auto& [h, i0, sequence, mask, kv_tiles] = work;
            if (kv_tiles.empty()) return;
            for (int i = 0; i < tiles; ++i) {
                const int first = i0 + Br * i;
                mbarrier_wait_parity(smem.O_staged.address(i), pair_count % 2);
                if (problem.cu_q == nullptr || first + Br <= sequence.Nq) {
                    if (elect_sync() && first < sequence.Nq) {
                        cp_async_bulk_tensor_5d_store(O_map, 0, int(sequence.first_query) + first, 0, h, sequence.batch,
                                                      smem.O[i].address());
                        cp_async_bulk_commit_group();
                    }
                    if (elect_sync()) cp_async_bulk_wait_group_read<0>();
                } else {  // a tensor knows its end, but not where one sequence ends and the next begins
                    const auto O_gmem = sequence.queries(O, h);
                    for (int e = lane_id(); e < Br * d / 8; e += warp_size) {
                        const int row = e / (d / 8), column = e % (d / 8) * 8;
                        if (first + row < sequence.Nq) O_gmem.store(first + row, column, smem.O[i].load8(row, column));
                    }
                    bar_warp_sync(all_lanes);
                }
                if (elect_sync()) mbarrier_arrive(smem.O_empty.address(i));
            }
            ++pair_count;
        });
    }
}

}  // namespace stage05::e
