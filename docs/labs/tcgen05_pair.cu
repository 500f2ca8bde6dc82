// One product of two CTAs: D (256 x 64) = A (256 x 64) B (64 x 64). Each has 128 rows of A and of D, and half of B, which both
// multipliers read: half the shared memory for B. PTX ISA: tcgen05, cta_group::2.
//
// 1. A pair is CTAs 2 i and 2 i + 1 of a cluster. Both allocate, and get the same columns; both fill their tiles, at the same
//    place of their shared memory. A barrier of the cluster: each must be there, and have filled them.
// 2. One thread of the even CTA orders the products for both: M = 256, all of N, descriptors of its own tiles.
// 3. Its commit arrives at the mbarrier in the same place of both CTAs (bits 0 and 1 of the mask). Each has its rows of D.
// 4. A CTA frees nothing and does not end while the other may still need it: again a barrier of the cluster.
#include "docs/labs/product.h"

using namespace gpu;

namespace {

constexpr int m = 256, n = 64, k = 64, threads = 128;
constexpr int m_own = m / 2, n_own = n / 2;  // rows of A, rows of B as stored

struct Shared {
    PanelTile<bf16, m_own, k> a;
    PanelTile<bf16, n_own, k> b;
    SharedArray<std::uint32_t, 1> tensor_memory;
    SharedArray<Mbarrier, 1> done;
};

__global__ void __launch_bounds__(threads) multiply(Tensor<const float> a, Tensor<const float> b, Tensor<float> d) {
    auto& smem = shared_memory<Shared>();
    const int rank = cluster_ctarank();

    // 1.
    if (threadIdx.x == 0) {
        mbarrier_init(smem.done.address(0), 1);
        fence_mbarrier_init();
    }
    if (warp_id() == 0) {
        tcgen05_alloc<n, 2>(smem.tensor_memory.address(0));
        tcgen05_relinquish_alloc_permit<2>();
    }

    const auto a_gmem = a.matrix(0, 0, rank * m_own, m_own), b_gmem = b.matrix(0, 0, rank * n_own, n_own);
    for (int i = threadIdx.x; i < m_own * k; i += threads) smem.a(i / k, i % k) = cvt_rn<bf16>(a_gmem(i / k, i % k));
    for (int i = threadIdx.x; i < n_own * k; i += threads) smem.b(i / k, i % k) = cvt_rn<bf16>(b_gmem(i / k, i % k));
    fence_proxy_async();
    barrier_cluster_arrive();
    barrier_cluster_wait();
    const std::uint32_t sums = smem.tensor_memory(0);

    // 2.
    if (rank == 0 && threadIdx.x == 0) {
        constexpr std::uint32_t instruction = tcgen05_instruction<bf16>(m, n, Major::k, Major::k);
        for (int k_step = 0; k_step < k; k_step += 16)
            tcgen05_mma_ss<2>(sums, smem.a.k_major(0, k_step), smem.b.k_major(0, k_step), instruction, k_step > 0);
        tcgen05_commit_multicast<2>(smem.done.address(0), 0b11);
    }

    // 3.
    mbarrier_wait_parity(smem.done.address(0), 0);
    tcgen05_fence_after_thread_sync();
    float row[n];
    tcgen05_ld(row, sums);
    tcgen05_wait_ld(row);
    const auto d_gmem = d.matrix(0, 0, rank * m_own, m_own);
    for (int i = 0; i < n; ++i) d_gmem(threadIdx.x, i) = row[i];

    // 4.
    tcgen05_fence_before_thread_sync();
    barrier_cluster_arrive();
    barrier_cluster_wait();
    if (warp_id() == 0) tcgen05_dealloc<n, 2>(sums);
}

bool lab() {
    Product product(m, n, k);
    launch({"multiply", 2, threads, sizeof(Shared), 2}, multiply, product.a_gmem.tensor<const float>(0, 0, k, k),
           product.b_gmem.tensor<const float>(0, 0, k, k), product.d_gmem.tensor<float>(0, 0, n, n));
    synchronize();
    return product.is_right();
}

}  // namespace

int main(int argc, char** argv) { return run_lab(argc, argv, lab); }
