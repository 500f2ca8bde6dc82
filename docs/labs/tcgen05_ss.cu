// One product of the fifth tensor cores: D (128 x 64) = A (128 x 64) B (64 x 64), both operands in shared memory, D in
// tensor memory. PTX ISA: tcgen05.mma, tcgen05.commit.
//
// 1. Ordinary stores fill the tiles, both with k along the row (K-major), so B is stored as its transpose. As with wgmma the
//    tensor cores look through another door: fence_proxy_async by everybody who has stored, then a barrier.
// 2. One thread orders it all: four products of 16 k on the same D, which follow each other. The instruction descriptor
//    says what is multiplied (types, 128 x 64, majors), matrix descriptors where the operands begin.
// 3. commit: the mbarrier gets its arrival when the products are done. Who waits for that, and passes
//    fence_after_thread_sync, may look at D: row i is in lane i, so thread i of a warpgroup has all of it.
#include "docs/labs/product.h"

using namespace gpu;

namespace {

constexpr int m = 128, n = 64, k = 64, threads = 128;

struct Shared {
    PanelTile<bf16, m, k> a;
    PanelTile<bf16, n, k> b;
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
        tcgen05_alloc<n>(smem.tensor_memory.address(0));
        tcgen05_relinquish_alloc_permit();
    }

    // 1.
    const auto a_gmem = a.matrix(0, 0, 0, m), b_gmem = b.matrix(0, 0, 0, n);
    for (int i = threadIdx.x; i < m * k; i += threads) smem.a(i / k, i % k) = cvt_rn<bf16>(a_gmem(i / k, i % k));
    for (int i = threadIdx.x; i < n * k; i += threads) smem.b(i / k, i % k) = cvt_rn<bf16>(b_gmem(i / k, i % k));
    fence_proxy_async();
    bar_sync();
    const std::uint32_t sums = smem.tensor_memory(0);

    // 2.
    if (threadIdx.x == 0) {
        constexpr std::uint32_t instruction = tcgen05_instruction<bf16>(m, n, Major::k, Major::k);
        for (int k_step = 0; k_step < k; k_step += 16)
            tcgen05_mma_ss(sums, smem.a.k_major(0, k_step), smem.b.k_major(0, k_step), instruction, k_step > 0);
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
    if (warp_id() == 0) tcgen05_dealloc<n>(sums);
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
