// 05a  tensor memory: 04a on Blackwell (not run on one yet). One thread issues a product for the whole CTA, and S and O stay beside the tensor
// cores.
//
// Grid as in 04a, one CTA of one warpgroup for each tile of Br = 128 queries. tcgen05 multiplies 128 x Bc x 16 at one
// thread's word; the sums are in tensor memory, 128 lanes x 512 columns of fp32, not in registers. A query is a lane, so a
// thread has a query of its own: the maximum and the sum of a row need no shuffle. What threads compute with must be fetched
// (tcgen05_ld) and brought back (tcgen05_st): S, and O at every key tile but the first.
//
// Nothing overlaps here, so that every hand-over can be seen. From threads to the tensor cores: the operand is written,
// fence_proxy_async for what lies in shared memory, wait_st and fence_before_thread_sync for tensor memory, a barrier,
// fence_after_thread_sync, the product. Back: commit to an mbarrier, a wait, fence_after_thread_sync, tcgen05_ld.
//
// On chip, d = 128 (64): Q, K, V 32 KiB each (16), W 32; in tensor memory S 128 columns, O d.
//
//   1. copy Q, and K and V of the last key tile that a query sees
//   for each key tile:   2. S = Q K^T   3. softmax of one row a thread; W to shared memory; O = alpha O
//                        4. O += W V    5. copy K and V of the tile before it
//   6. O = O / l, L = c m + log l
#pragma once

#include "common/attention/kernel_problem.h"
#include "common/attention/softmax.h"
#include "common/gpu/gpu.h"

namespace stage05::a {

using namespace attention;
using namespace gpu;

constexpr int Br = 128, Bc = 128;
constexpr int threads = warpgroup_size;
constexpr int columns = 256;  // of tensor memory: S, then O

template <class T, int d>
struct Shared {
    PanelTile<T, Br, d> Q;
    PanelTile<T, Bc, d> K, V;
    PanelTile<T, Br, Bc> W;
    SharedArray<Mbarrier, 1> Q_full, K_full, V_full, S_full, O_full;
    SharedArray<std::uint32_t, 1> tensor_memory;
};

template <class T, int d>
__global__ void __launch_bounds__(threads)
    forward(KernelProblem problem, const __grid_constant__ TensorMap Q_map, const __grid_constant__ TensorMap K_map,
            const __grid_constant__ TensorMap V_map, Tensor<T> O, Tensor<float> L) {
    auto& smem = shared_memory<Shared<T, d>>();

    const int heads = problem.B * problem.Hq, head = blockIdx.x % heads, h = head % problem.Hq;
    const int i0 = (ceil_div(problem.Nq, Br) - 1 - int(blockIdx.x / heads)) * Br;
    const Sequence sequence = problem.sequence(head / problem.Hq);
    if (i0 >= sequence.Nq) return;
    const Mask mask = problem.mask(sequence);
    const Range kv_tiles = mask.key_tiles(i0, Br, Bc), full_tiles = mask.full_key_tiles(i0, Br, Bc);
    const Range seen = mask.seen_keys();
    const int row = i0 + threadIdx.x;  // this thread's query, in its lane of S and O
    const Range keys = mask.keys(row);
    // A softmax seeks the largest score: a scale that is not positive changes their sign, or makes them all 0.
    const float c = problem.scale == 0 ? 1 : fabsf(problem.scale) * log2_e;

    if (threadIdx.x == 0) {
        mbarrier_init(smem.Q_full.address(0), 1);
        mbarrier_init(smem.K_full.address(0), 1);
        mbarrier_init(smem.V_full.address(0), 1);
        mbarrier_init(smem.S_full.address(0), 1);
        mbarrier_init(smem.O_full.address(0), 1);
        fence_mbarrier_init();
    }
    if (warp_id() == 0) {
        tcgen05_alloc<columns>(smem.tensor_memory.address(0));
        tcgen05_relinquish_alloc_permit();
    }
    bar_sync();
    const std::uint32_t S_tmem = smem.tensor_memory(0), O_tmem = S_tmem + Bc;
    constexpr std::uint32_t S_instruction = tcgen05_instruction<T>(Br, Bc, Major::k, Major::k);
    constexpr std::uint32_t O_instruction = tcgen05_instruction<T>(Br, d, Major::k, Major::mn);

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
        mbarrier_wait_parity(smem.Q_full.address(0), 0);
    }

    float m = -infinity, l = 0;
    for (int kv_tile = kv_tiles.end - 1, parity = 0; kv_tile >= kv_tiles.begin; --kv_tile, parity ^= 1) {
        const int j0 = kv_tile * Bc;
        const bool first = kv_tile == kv_tiles.end - 1;

        // 2.
        if (threadIdx.x == 0) {
            mbarrier_wait_parity(smem.K_full.address(0), parity);
#pragma unroll
            for (int k = 0; k < d / 16; ++k)
                tcgen05_mma_ss(S_tmem, smem.Q.k_major(0, 16 * k), smem.K.k_major(0, 16 * k), S_instruction, k > 0);
            tcgen05_commit(smem.S_full.address(0));
        }
        mbarrier_wait_parity(smem.S_full.address(0), parity);
        tcgen05_fence_after_thread_sync();

        // 3.
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
        float m_new = m;
#pragma unroll
        for (int i = 0; i < Bc; ++i)
            m_new = max_nan(m_new, S[i / 32][i % 32]);  // a NaN that the query sees goes through
        const float alpha = ex2_approx_ftz(c * (m - exponent_base(m_new)));
        m = m_new;
        l *= alpha;

        // c s - base is rounded once, but base is rounded too: all weights are too large or small by a factor
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
        for (int i = 0; i < Bc; i += 8) {
            Vector<float, 8> W;
            for (int e = 0; e < 8; ++e) {
                W[e] = ex2_approx_ftz(fmaf(c, S[(i + e) / 32][(i + e) % 32], -base));
                l += W[e];
            }
            smem.W.store(threadIdx.x, i, cvt_rn<T>(W));
        }
        if (!first) {
            count_rescale();
#pragma unroll
            for (int column = 0; column < d; column += 32) {
                float O_part[32];
                tcgen05_ld(O_part, O_tmem + column);
                tcgen05_wait_ld(O_part);
                for (float& x : O_part) x *= alpha;
                tcgen05_st(O_tmem + column, O_part);
            }
            tcgen05_wait_st();
        }

        // 4. Zeros in rows of V that nobody may see: they may hold a NaN, and 0 times NaN is NaN.
        mbarrier_wait_parity(smem.V_full.address(0), parity);
        // Beyond the tensor there are zeros already.
        if (j0 < seen.begin || (j0 + Bc > seen.end && (problem.cu_k != nullptr || seen.end < sequence.Nk))) {
            for (int i = threadIdx.x; i < Bc * d / 8; i += threads)
                if (!seen.contains(j0 + i / (d / 8))) smem.V.store(i / (d / 8), i % (d / 8) * 8, Vector<T, 8>{});
        }
        fence_proxy_async();
        tcgen05_fence_before_thread_sync();
        bar_sync();
        if (threadIdx.x == 0) {
            tcgen05_fence_after_thread_sync();
#pragma unroll
            for (int k = 0; k < Bc / 16; ++k)
                tcgen05_mma_ss(O_tmem, smem.W.k_major(0, 16 * k), smem.V.mn_major(16 * k, 0), O_instruction,
                               !first || k > 0);
            tcgen05_commit(smem.O_full.address(0));
        }
        mbarrier_wait_parity(smem.O_full.address(0), parity);
        tcgen05_fence_after_thread_sync();

        // 5.
        if (threadIdx.x == 0 && kv_tile > kv_tiles.begin) load_K_and_V(kv_tile - 1);
    }

    // 6. A query that saw no key has l = 0: O = 0; without any key tile tensor memory holds no O.
    float O_rmem[d / 32][32] = {};
    if (!kv_tiles.empty()) {
#pragma unroll
        for (int part = 0; part < d / 32; ++part) tcgen05_ld(O_rmem[part], O_tmem + 32 * part);
        tcgen05_wait_ld(O_rmem);
    }
    if (row < sequence.Nq) {
        const auto O_gmem = sequence.queries(O, h);
        const float factor = inverse_sum(l);
#pragma unroll
        for (int column = 0; column < d; column += 8) {
            Vector<T, 8> chunk;
            for (int e = 0; e < 8; ++e) chunk[e] = cvt_rn<T>(factor * O_rmem[column / 32][column % 32 + e]);
            O_gmem.store(row, column, chunk);
        }
        sequence.queries(L, h)(row) = log_sum_exp(c * m, l);
    }
    tcgen05_fence_before_thread_sync();
    bar_sync();
    if (warp_id() == 0) tcgen05_dealloc<columns>(S_tmem);
}

}  // namespace stage05::a
