// 05c  polynomial: 05b with some of the exponentials on the units that multiply and add.
//
// 16 exponentials a clock are as slow as the products of the tensor cores, while 128 fused multiply-adds a clock have
// little to do. 2^x = 2^floor(x) p(x - floor(x)) needs a handful of them (common/attention/exp2.h), two exponentials at a
// time. Of 32 weights of a row 4 take this way, evenly spread, the others go through the special-function unit, so that
// both may work all the time. The paper takes 10 to 25 %; how many are best depends on what else the units do. The error of
// degree 3, 8.8e-5 at most, is lost in the rounding of W to bf16; of fp16 it is less than a fifth of the largest rounding error.
//
// Roles, tensor memory, mbarriers and phases as in 05b. What differs is phase 7: scores become exponents in pairs.
#pragma once

#include "common/attention/exp2.h"
#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage05::c {

using namespace attention;
using namespace gpu;

constexpr int tiles = 2, slots = 4;
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
    PanelTile<T, Br, d> Q[tiles];  // in the end O
    PanelTile<T, Bc, d> KV[slots];
    SharedArray<float, Br> alpha[tiles];
    SharedArray<Mbarrier, tiles> Q_full, S_full, W_ready, W_last, W_read, alpha_full, alpha_empty, O_full, O_staged;
    SharedArray<Mbarrier, slots> KV_full, KV_empty;
    SharedArray<Mbarrier, 1> V_landed;
    SharedArray<std::uint32_t, 1> tensor_memory;
};

/// A place in the ring: the n-th tile that passes through it, and the parity of its turn. K of step s is number 2 s, V
/// number 2 s + 1.
struct Place {
    int slot, parity;
    __device__ explicit Place(int n) : slot(n % slots), parity(n / slots % 2) {}
};

/// Exp2: which of a row's exponentials are polynomials, an Exp2Policy.
template <class T, int d, class Exp2>
__global__ void __launch_bounds__(threads, 1)
    forward(KernelProblem problem, const __grid_constant__ TensorMap Q_map, const __grid_constant__ TensorMap K_map,
            const __grid_constant__ TensorMap V_map, const __grid_constant__ TensorMap O_map, Tensor<T> O,
            Tensor<float> L) {
    using Columns = c::Columns<d>;
    auto& smem = shared_memory<Shared<T, d>>();

    const int heads = problem.B * problem.Hq, head = blockIdx.x % heads, h = head % problem.Hq;
    const int i0 = (ceil_div(problem.Nq, tiles * Br) - 1 - int(blockIdx.x / heads)) * tiles * Br;
    const Sequence sequence = problem.sequence(head / problem.Hq);
    if (i0 >= sequence.Nq) return;
    const Mask mask = problem.mask(sequence);
    const Range kv_tiles = mask.key_tiles(i0, tiles * Br, Bc);
    const int steps = kv_tiles.end - kv_tiles.begin;  // the last key tile first
    if (kv_tiles.empty()) {
        const auto O_gmem = sequence.queries(O, h);
        for (int row = threadIdx.x; row < tiles * Br && i0 + row < sequence.Nq; row += threads) {
            for (int column = 0; column < d; column += 8) O_gmem.store(i0 + row, column, Vector<T, 8>{});
            sequence.queries(L, h)(i0 + row) = -infinity;
        }
        return;
    }

    if (threadIdx.x == 0) {
        for (int i = 0; i < tiles; ++i) {
            mbarrier_init(smem.Q_full.address(i), 1);
            mbarrier_init(smem.S_full.address(i), 1);
            mbarrier_init(smem.W_ready.address(i), 2 * warpgroup_size);
            mbarrier_init(smem.W_last.address(i), warpgroup_size);
            mbarrier_init(smem.W_read.address(i), 1);
            mbarrier_init(smem.alpha_full.address(i), warpgroup_size);
            mbarrier_init(smem.alpha_empty.address(i), warpgroup_size);
            mbarrier_init(smem.O_full.address(i), 1);
            mbarrier_init(smem.O_staged.address(i), warpgroup_size);
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
        setmaxnreg_inc<184>();
        role("softmax", warpgroup_id());
        const int own = warpgroup_id(), thread = threadIdx.x % warpgroup_size, row = i0 + Br * own + thread;
        const std::uint32_t S_tmem = tmem + Columns::S(own), W_tmem = tmem + Columns::W(own);
        const Range full_tiles = mask.full_key_tiles(i0 + Br * own, Br, Bc), keys = mask.keys(row);
        // A softmax seeks the largest score: a scale that is not positive changes their sign, or makes them all 0.
        const float c = problem.scale == 0 ? 1 : fabsf(problem.scale) * log2_e;
        float m = -infinity, l = 0;

        // A factor for each query: the correction multiplies O by it.
        const auto send_factor = [&](int number, float factor) {
            mbarrier_wait_parity(smem.alpha_empty.address(own), number % 2 ^ 1);
            smem.alpha[own](thread) = factor;
            mbarrier_arrive(smem.alpha_full.address(own));
        };

        for (int step = 0; step < steps; ++step) {
            const int kv_tile = kv_tiles.end - 1 - step, j0 = kv_tile * Bc;

            // 6.
            mbarrier_wait_parity(smem.S_full.address(own), step % 2);
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
            const float alpha = ex2_approx_ftz(c * (m - exponent_base(m_new)));
            m = m_new;
            if (step > 0) send_factor(step - 1, alpha);

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
        send_factor(steps - 1, inverse_sum(l));  // a query that saw no key has l = 0: O = 0
        if (row < sequence.Nq) sequence.queries(L, h)(row) = log_sum_exp(c * m, l);
        return;
    }

    if (warp_id() < product_warp) {
        // ---- correction: thread t has lane t of O_0 and O_1 ----
        setmaxnreg_dec<80>();
        role("correction");
        const int thread = threadIdx.x % warpgroup_size;
        // 9.
        for (int i = 0; i < tiles; ++i) mbarrier_arrive(smem.W_ready.address(i));  // there is no O yet
        for (int step = 1; step < steps; ++step) {
            for (int i = 0; i < tiles; ++i) {
                mbarrier_wait_parity(smem.alpha_full.address(i), (step - 1) % 2);
                const float alpha = smem.alpha[i](thread);
                mbarrier_arrive(smem.alpha_empty.address(i));
                tcgen05_fence_after_thread_sync();
                count_rescale();
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
                mbarrier_arrive(smem.W_ready.address(i));
            }
        }
        // 10.
        for (int i = 0; i < tiles; ++i) {
            mbarrier_wait_parity(smem.alpha_full.address(i), (steps - 1) % 2);
            const float factor = smem.alpha[i](thread);
            mbarrier_wait_parity(smem.O_full.address(i), 0);
            tcgen05_fence_after_thread_sync();
#pragma unroll
            for (int column = 0; column < d; column += 32) {
                float O_part[32];
                tcgen05_ld(O_part, tmem + Columns::O(i) + column);
                tcgen05_wait_ld(O_part);
#pragma unroll
                for (int part = 0; part < 32; part += 8) {
                    Vector<T, 8> chunk;
                    for (int e = 0; e < 8; ++e) chunk[e] = cvt_rn<T>(factor * O_part[part + e]);
                    smem.Q[i].store(thread, column + part, chunk);
                }
            }
            fence_proxy_async();
            mbarrier_arrive(smem.O_staged.address(i));
        }
        tcgen05_fence_before_thread_sync();
        barrier_sync(1, warpgroup_size);
        if (warp_id() == correction_warp) tcgen05_dealloc<tmem_columns>(tmem);
        return;
    }

    setmaxnreg_dec<64>();
    if (warp_id() == product_warp && elect_sync()) {
        // ---- products: one thread ----
        role("products");
        constexpr std::uint32_t S_instruction = tcgen05_instruction<T>(Br, Bc, Major::k, Major::k);
        constexpr std::uint32_t O_instruction = tcgen05_instruction<T>(Br, d, Major::k, Major::mn);
        const auto wait = [&](std::uint32_t barrier, int parity) {
            mbarrier_wait_parity(barrier, parity);
            tcgen05_fence_after_thread_sync();
        };
        const auto issue_S = [&](int i, const Place& K, int number) {
            if (Columns::W_in_S && number > 0) wait(smem.W_read.address(i), (number - 1) % 2);
#pragma unroll
            for (int k = 0; k < d / 16; ++k)
                tcgen05_mma_ss(tmem + Columns::S(i), smem.Q[i].k_major(0, 16 * k), smem.KV[K.slot].k_major(0, 16 * k),
                               S_instruction, k > 0);
            tcgen05_commit(smem.S_full.address(i));
        };

        // 3.
        const Place first(0);
        mbarrier_wait_parity(smem.KV_full.address(first.slot), first.parity);
        for (int i = 0; i < tiles; ++i) {
            mbarrier_wait_parity(smem.Q_full.address(i), 0);
            issue_S(i, first, 0);
        }
        tcgen05_commit(smem.KV_empty.address(first.slot));
        for (int step = 0; step < steps; ++step) {
            const Place V(2 * step + 1), K(2 * step + 2);
            const bool last = step == steps - 1;
            mbarrier_wait_parity(smem.KV_full.address(V.slot), V.parity);
            for (int i = 0; i < tiles; ++i) {
                // 4.
                wait(smem.W_ready.address(i), step % 2);
#pragma unroll
                for (int k = 0; k < Bc / 16; ++k) {
                    if (k == Bc / 16 * 3 / 4) wait(smem.W_last.address(i), step % 2);
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
                issue_S(i, K, step + 1);
            }
            tcgen05_commit(smem.KV_empty.address(V.slot));
            if (!last) tcgen05_commit(smem.KV_empty.address(K.slot));
        }
        // A CTA must not end before the last commits have arrived; the copies wait for those of the ring.
        if (Columns::W_in_S)
            for (int i = 0; i < tiles; ++i) mbarrier_wait_parity(smem.W_read.address(i), (steps - 1) % 2);
    } else if (warp_id() == load_warp) {
        // ---- copies in ----
        role("copies in");
        const Range seen = mask.seen_keys();
        const int kv_head = problem.kv_head(h);
        int landed_count = 0;
        const auto load = [&](int number, const TensorMap& map, int j0, bool hidden) {
            const Place place(number);
            auto& tile = smem.KV[place.slot];
            const std::uint32_t full = smem.KV_full.address(place.slot), landed = smem.V_landed.address(0);
            mbarrier_wait_parity(smem.KV_empty.address(place.slot), place.parity ^ 1);
            if (elect_sync()) {
                mbarrier_arrive_expect_tx(hidden ? landed : full, sizeof(tile));
                cp_async_bulk_tensor_5d(tile.address(), map, 0, int(sequence.first_key) + j0, 0, kv_head,
                                        sequence.batch, hidden ? landed : full);
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
        // 1.
        for (int i = 0; i < tiles; ++i) {
            if (elect_sync()) {
                mbarrier_arrive_expect_tx(smem.Q_full.address(i), sizeof(smem.Q[i]));
                cp_async_bulk_tensor_5d(smem.Q[i].address(), Q_map, 0, int(sequence.first_query) + i0 + Br * i, 0, h,
                                        sequence.batch, smem.Q_full.address(i));
            }
        }
        // 2.
        for (int step = 0; step < steps; ++step) {
            const int j0 = (kv_tiles.end - 1 - step) * Bc;
            load(2 * step, K_map, j0, false);
            // Rows that lie in the tensor and that nobody may see; beyond it there are zeros already.
            const bool hidden =
                j0 < seen.begin || (j0 + Bc > seen.end && (problem.cu_k != nullptr || seen.end < sequence.Nk));
            load(2 * step + 1, V_map, j0, hidden);
        }
        // A CTA must not end before the last commits have arrived.
        for (int n = 2 * steps; n < 2 * steps + slots; ++n)
            mbarrier_wait_parity(smem.KV_empty.address(Place(n).slot), Place(n).parity ^ 1);
    } else if (warp_id() == store_warp) {
        // ---- copies out ----
        role("copies out");
        // 11.
        for (int i = 0; i < tiles; ++i) {
            const int first = i0 + Br * i;
            mbarrier_wait_parity(smem.O_staged.address(i), 0);
            if (problem.cu_q == nullptr || first + Br <= sequence.Nq) {
                if (elect_sync() && first < sequence.Nq) {
                    cp_async_bulk_tensor_5d_store(O_map, 0, int(sequence.first_query) + first, 0, h, sequence.batch,
                                                  smem.Q[i].address());
                    cp_async_bulk_commit_group();
                }
            } else {  // a tensor knows its end, but not where one sequence ends and the next begins
                const auto O_gmem = sequence.queries(O, h);
                for (int e = lane_id(); e < Br * d / 8; e += warp_size) {
                    const int row = e / (d / 8), column = e % (d / 8) * 8;
                    if (first + row < sequence.Nq) O_gmem.store(first + row, column, smem.Q[i].load8(row, column));
                }
            }
        }
        if (elect_sync()) cp_async_bulk_wait_group_read<0>();
    }
}

}  // namespace stage05::c
