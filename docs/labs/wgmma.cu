// One warpgroup product: D (64 x 64) = A (64 x 64) B (64 x 64) by 128 threads, from two tiles in shared memory. PTX
// ISA: wgmma.
//
// 1. Ordinary stores fill the tiles, both with k along the row (K-major), so B is stored as its transpose. The tensor
// cores look at shared memory through another
//    door: fence_proxy_async by everybody who has stored, then a barrier.
// 2. wgmma_fence: what ordinary code did to the registers of D is done. Four products of 16 k each are ordered, on the
// same D and so in their
//    order; a descriptor says where an operand begins. commit makes them one group.
// 3. The threads are free meanwhile, D is not: wait_group gives it back. Then thread 4 g + t of warp w holds, in
// register i, row
//    16 w + g + 8 (i / 2 % 2), column 8 (i / 4) + 2 t + i % 2.
#include <vector>

#include "docs/labs/lab.h"

using namespace gpu;

namespace {

constexpr int m = 64, n = 64, k = 64, threads = 128;

struct Shared {
    PanelTile<bf16, m, k> a;
    PanelTile<bf16, n, k> b;
};

__global__ void __launch_bounds__(threads) multiply(Tensor<const float> a, Tensor<const float> b, Tensor<float> d) {
    auto& smem = shared_memory<Shared>();
    const auto a_gmem = a.matrix(0, 0, 0, m), b_gmem = b.matrix(0, 0, 0, n);
    for (int i = threadIdx.x; i < m * k; i += threads) smem.a(i / k, i % k) = cvt_rn<bf16>(a_gmem(i / k, i % k));
    for (int i = threadIdx.x; i < n * k; i += threads) smem.b(i / k, i % k) = cvt_rn<bf16>(b_gmem(i / k, i % k));
    fence_proxy_async();
    bar_sync();

    float sums[n / 2];
    wgmma_fence(sums);
    for (int k_step = 0; k_step < k; k_step += 16)
        wgmma_m64k16<bf16, Major::k, Major::k>(sums, smem.a.k_major(0, k_step), smem.b.k_major(0, k_step), k_step > 0);
    wgmma_commit_group();
    wgmma_wait_group<0>(sums);

    const auto d_gmem = d.matrix(0, 0, 0, m);
    const int g = lane_id() / 4, t = lane_id() % 4;
    for (int i = 0; i < n / 2; ++i) d_gmem(16 * warp_id() + g + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * t + i % 2) = sums[i];
}

bool lab() {
    // Small integers: exact in bf16, and so are their products and sums in fp32.
    std::vector<float> a(m * k), b(n * k), d(m * n);
    for (int i = 0; i < m * k; ++i) a[i] = static_cast<float>(i * 37 % 17 - 8);
    for (int i = 0; i < n * k; ++i) b[i] = static_cast<float>(i * 53 % 13 - 6);
    Buffer a_gmem("A", a.size() * 4), b_gmem("B", b.size() * 4), d_gmem("D", d.size() * 4);
    a_gmem.write(a.data(), a_gmem.bytes());
    b_gmem.write(b.data(), b_gmem.bytes());
    launch({"multiply", 1, threads, sizeof(Shared)}, multiply, a_gmem.tensor<const float>(0, 0, k, k),
           b_gmem.tensor<const float>(0, 0, k, k), d_gmem.tensor<float>(0, 0, n, n));
    synchronize();
    d_gmem.read(d.data(), d_gmem.bytes());

    std::puts("D, rows and columns 0, 9, 18, ... 63");
    bool right = true;
    for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int l = 0; l < k; ++l) sum += a[i * k + l] * b[j * k + l];
            right = right && d[i * n + j] == sum;
            if (i % 9 == 0 && j % 9 == 0) std::printf("%7.0f", d[i * n + j]);
        }
        if (i % 9 == 0) std::puts("");
    }
    return right;
}

}  // namespace

int main(int argc, char** argv) { return run_lab(argc, argv, lab); }
