// 04a  TMA and WGMMA: FlashAttention-2's loop in Hopper's own words, nothing overlapped yet. A restart.
//
// Grid: one CTA for each (tile of Br = 64 queries, query head, sequence), the longest rows of a causal mask first. A
// CTA is one warpgroup, 128 threads, which owns all 64 queries: S = Q K^T is one product of 64 x Bc x d, and so is W V.
//
// Two words are new. TMA (bulk_copy.h): one thread names a tile of a tensor, an engine brings it, swizzled, and reports
// its bytes to an mbarrier; in 03 every thread computed addresses. WGMMA (wgmma.h): four warps multiply as one and take
// K and V from shared memory by descriptor; in 03 ldmatrix brought every fragment into registers first. Only W is an
// operand in registers, where S left it.
//
// Each step waits for the one before, the product for the copy, the softmax for the product: the tensor cores idle
// meanwhile, unless the second CTA on the multiprocessor happens to fill the gap.
//
// On chip, d = 128 (64): Q 64 x d, 16 KiB (8); K, V Bc x d, 32 KiB (16) each; in all 80 KiB (40), two CTAs an SM.
// Registers of a thread: O d / 2, S Bc / 2, W Bc / 4. A tile: 4 Br Bc d FLOPs; K and V, 4 Bc d bytes of global memory.
//
//   1. start the copies of Q and of the last K and V
//   For each key tile that a query of the tile sees, from the last to the first:
//     2. wait for K; S = Q K^T
//     3. mask; m' = max(m, rowmax S), alpha = 2^(c m - c m'), W = 2^(c S - c m'), l = alpha l + rowsum W, O = alpha O
//     4. wait for V; zeros where a row of it is hidden; O += W V
//     5. everybody has left K and V: start the copies of the next
//   6. O = O / l, L = c m + log l
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage04::a {

using namespace attention;
using namespace gpu;

constexpr int threads = warpgroup_size;
constexpr int Br = 64;
constexpr int Bc(int d) { return d <= 128 ? 128 : 80; }

template <class T, int d>
struct Shared {
    PanelTile<T, Br, d> Q;
    PanelTile<T, Bc(d), d> K, V;
    SharedArray<Mbarrier, 1> Q_full, K_full, V_full;
};

template <class T, int d>
__global__ void __launch_bounds__(threads, d <= 128 ? 2 : 1)
    forward(KernelProblem problem, const __grid_constant__ TensorMap Q_map, const __grid_constant__ TensorMap K_map,
            const __grid_constant__ TensorMap V_map, Tensor<T> O, Tensor<float> L) {
    constexpr int Bc = a::Bc(d);
    auto& smem = shared_memory<Shared<T, d>>();

    const int heads = problem.B * problem.Hq, head = blockIdx.x % heads, h = head % problem.Hq;
    const int i0 = (ceil_div(problem.Nq, Br) - 1 - int(blockIdx.x / heads)) * Br;
    const Sequence sequence = problem.sequence(head / problem.Hq);
    if (i0 >= sequence.Nq) return;
    const Mask mask = problem.mask(sequence);
    const Range kv_tiles = mask.key_tiles(i0, Br, Bc), full_tiles = mask.full_key_tiles(i0, Br, Bc);
    const Range seen = mask.seen_keys();
    // A softmax seeks the largest score: a scale that is not positive turns the products round, or makes them all 0.
    const float c = problem.scale == 0 ? 1 : fabsf(problem.scale) * log2_e;

    const int lane = lane_id(), g = lane / 4, t = lane % 4;  // row g, columns 2t and 2t + 1 of a fragment (wgmma.h)
    const int row = i0 + 16 * warp_id() + g;                 // this thread has the queries row and row + 8

    if (threadIdx.x == 0) {
        mbarrier_init(smem.Q_full.address(0), 1);
        mbarrier_init(smem.K_full.address(0), 1);
        mbarrier_init(smem.V_full.address(0), 1);
        fence_mbarrier_init();
    }
    bar_sync();

    const auto load_K_and_V = [&](int kv_tile) {
        const int j = int(sequence.first_key) + kv_tile * Bc, kv_head = problem.kv_head(h);
        mbarrier_arrive_expect_tx(smem.K_full.address(0), sizeof(smem.K));
        cp_async_bulk_tensor_5d(smem.K.address(), K_map, 0, j, 0, kv_head, sequence.batch, smem.K_full.address(0));
        mbarrier_arrive_expect_tx(smem.V_full.address(0), sizeof(smem.V));
        cp_async_bulk_tensor_5d(smem.V.address(), V_map, 0, j, 0, kv_head, sequence.batch, smem.V_full.address(0));
    };

    // 1.
    if (threadIdx.x == 0 && !kv_tiles.empty()) {
        mbarrier_arrive_expect_tx(smem.Q_full.address(0), sizeof(smem.Q));
        cp_async_bulk_tensor_5d(smem.Q.address(), Q_map, 0, int(sequence.first_query) + i0, 0, h, sequence.batch,
                                smem.Q_full.address(0));
        load_K_and_V(kv_tiles.end - 1);
    }

    float O_rmem[d / 2], S[Bc / 2], m[2] = {-infinity, -infinity}, l[2] = {};
    std::uint32_t W[Bc / 16][4];
    for (float& x : O_rmem) x = 0;
    if (!kv_tiles.empty()) mbarrier_wait_parity(smem.Q_full.address(0), 0);
    for (int kv_tile = kv_tiles.end - 1, parity = 0; kv_tile >= kv_tiles.begin; --kv_tile, parity ^= 1) {
        const int j0 = kv_tile * Bc;

        // 2.
        mbarrier_wait_parity(smem.K_full.address(0), parity);
        wgmma_fence(S);
#pragma unroll
        for (int k = 0; k < d / 16; ++k)
            wgmma_m64k16<T, Major::k, Major::k>(S, smem.Q.k_major(0, 16 * k), smem.K.k_major(0, 16 * k), k > 0);
        wgmma_commit_group();
        wgmma_wait_group<0>(S);

        // 3. Element i of S: row g + 8 (i / 2 % 2), column 8 (i / 4) + 2t + i % 2.
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (!(problem.scale > 0)) {
#pragma unroll
                for (int i = 2 * half; i < Bc / 2; i += 4)
                    for (int e = 0; e < 2; ++e) S[i + e] *= problem.scale < 0 ? -1 : 0;
            }
            if (!full_tiles.contains(kv_tile)) {
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
            const float alpha = ex2_approx_ftz(c * (m[half] - exponent_base(m_new)));
            m[half] = m_new;
            l[half] *= alpha;

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
                const float W0 = ex2_approx_ftz(fmaf(c, S[i], -base)), W1 = ex2_approx_ftz(fmaf(c, S[i + 1], -base));
                l[half] += W0 + W1;
                W[i / 8][i / 2 % 4] = cvt_rn_x2<T>(W0, W1);
            }
#pragma unroll
            for (int i = 2 * half; i < d / 2; i += 4) {
                O_rmem[i] *= alpha;
                O_rmem[i + 1] *= alpha;
            }
        }

        // 4. Zeros in rows of V that nobody may see: they may hold a NaN, and 0 times NaN is NaN.
        mbarrier_wait_parity(smem.V_full.address(0), parity);
        if (j0 < seen.begin || j0 + Bc > seen.end) {
            for (int i = threadIdx.x; i < Bc * d / 8; i += threads)
                if (!seen.contains(j0 + i / (d / 8))) smem.V.store(i / (d / 8), i % (d / 8) * 8, Vector<T, 8>{});
            fence_proxy_async();
            bar_sync();
        }
        wgmma_fence(O_rmem, W);
#pragma unroll
        for (int k = 0; k < Bc / 16; ++k) wgmma_m64k16<T, Major::mn>(O_rmem, W[k], smem.V.mn_major(16 * k, 0), true);
        wgmma_commit_group();
        wgmma_wait_group<0>(O_rmem, W);

        // 5.
        if (threadIdx.x == 0 && kv_tile > kv_tiles.begin) load_K_and_V(kv_tile - 1);
    }

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

}  // namespace stage04::a
