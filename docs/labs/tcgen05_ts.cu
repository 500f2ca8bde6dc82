// A product whose A lies in tensor memory: D (128 x 64) = A (128 x 64) B (64 x 64). So attention multiplies weights that
// registers have just made: they need no shared memory. PTX ISA: tcgen05.mma, tcgen05.st.
//
// 1. Thread i has row i of A: two elements of 16 bits a register, k even in the low half. One tcgen05_st brings it to lane
//    i, where row i of D will be: 64 k are 32 columns, 8 for each step of 16 k.
// 2. What a product reads there must be complete for the thread that orders it: wait_st, fence_before_thread_sync, barrier,
//    fence_after_thread_sync. B lies in shared memory with k across its rows (MN-major); for it, fence_proxy_async.
// 3. Products, commit, wait, fence, D: as in tcgen05_ss. A may be overwritten from there on, and not before.
#include "docs/labs/product.h"

using namespace gpu;

namespace {

constexpr int m = 128, n = 64, k = 64, threads = 128;
constexpr int a_column = n, columns = 128;  // D, then A

struct Shared {
    PanelTile<bf16, k, n> b;
    SharedArray<std::uint32_t, 1> tensor_memory;
    SharedArray<Mbarrier, 1> done;
};

__global__ void __launch_bounds__(threads) multiply(Tensor<const float> a, Tensor<const float> b, Tensor<float> d) {
    auto& smem = shared_memory<Shared>();
    if (threadIdx.x == 0) {
        mbarrier_init(smem.done.address(0), 1);
        fence_mbarrier_init();
    }
    if (warp_id() == 0) {
        tcgen05_alloc<columns>(smem.tensor_memory.address(0));
        tcgen05_relinquish_alloc_permit();
    }

    bar_sync();
    const std::uint32_t sums = smem.tensor_memory(0), a_tmem = sums + a_column;

    // 1.
    const auto a_gmem = a.matrix(0, 0, 0, m), b_gmem = b.matrix(0, 0, 0, n);
    std::uint32_t pairs[k / 2];
    for (int i = 0; i < k / 2; ++i)
        pairs[i] = cvt_rn_x2<bf16>(a_gmem(threadIdx.x, 2 * i), a_gmem(threadIdx.x, 2 * i + 1));
    tcgen05_st(a_tmem, pairs);
    for (int i = threadIdx.x; i < n * k; i += threads) smem.b(i % k, i / k) = cvt_rn<bf16>(b_gmem(i / k, i % k));

    // 2.
    tcgen05_wait_st();
    tcgen05_fence_before_thread_sync();
    fence_proxy_async();
    bar_sync();
    if (threadIdx.x == 0) {
        tcgen05_fence_after_thread_sync();
        constexpr std::uint32_t instruction = tcgen05_instruction<bf16>(m, n, Major::k, Major::mn);
        for (int k_step = 0; k_step < k; k_step += 16)
            tcgen05_mma_ts(sums, a_tmem + k_step / 2, smem.b.mn_major(k_step, 0), instruction, k_step > 0);
        tcgen05_commit(smem.done.address(0));
    }

    // 3.
    mbarrier_wait_parity(smem.done.address(0), 0);
    tcgen05_fence_after_thread_sync();
    float row[n];
    tcgen05_ld(row, sums);
    tcgen05_wait_ld(row);
    const auto d_gmem = d.matrix(0, 0, 0, m);
    for (int i = 0; i < n; ++i) d_gmem(threadIdx.x, i) = row[i];

    tcgen05_fence_before_thread_sync();
    bar_sync();
    if (warp_id() == 0) tcgen05_dealloc<columns>(sums);
}

bool lab() {
    Product product(m, n, k);
    launch({"multiply", 1, threads, sizeof(Shared)}, multiply, product.a_gmem.tensor<const float>(0, 0, k, k),
           product.b_gmem.tensor<const float>(0, 0, k, k), product.d_gmem.tensor<float>(0, 0, n, n));
    synchronize();
    return product.is_right();
}

}  // namespace

int main(int argc, char** argv) { return run_lab(argc, argv, lab); }
