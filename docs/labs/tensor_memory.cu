// Tensor memory: 128 lanes of 32-bit cells beside the tensor cores. Four warps store rows there, four others load them.
// PTX ISA: tcgen05.alloc, tcgen05.ld, tcgen05.st.
//
// 1. One warp allocates columns; where they begin comes back through shared memory, so a barrier follows.
// 2. A warp reaches the 32 lanes of its number in the CTA % 4, one lane a thread, all columns. Thread i of the first
//    four stores row i, n columns in one instruction. wait_st: the cells hold it; fence_before_thread_sync, barrier,
//    fence_after_thread_sync: and so for those who come after.
// 3. Warps 4 to 7 reach the same lanes: thread 128 + i loads row i. Its registers may be looked at after wait_ld.
// 4. When all is over for everybody (fence, barrier), one warp gives the columns back; it need not be the same.
#include <vector>

#include "docs/labs/lab.h"

using namespace gpu;

namespace {

constexpr int rows = tmem_lanes, n = 32, threads = 2 * rows;

struct Shared {
    SharedArray<std::uint32_t, 1> tensor_memory;
};

__global__ void __launch_bounds__(threads) through_tensor_memory(Tensor<const float> x, Tensor<float> y) {
    auto& smem = shared_memory<Shared>();
    const auto x_gmem = x.matrix(0, 0, 0, rows);
    const auto y_gmem = y.matrix(0, 0, 0, rows);
    const int row = threadIdx.x % rows;
    const bool stores = int(threadIdx.x) < rows;

    // 1.
    if (warp_id() == 7) {
        tcgen05_alloc<n>(smem.tensor_memory.address(0));
        tcgen05_relinquish_alloc_permit();
    }
    bar_sync();
    const std::uint32_t cells = smem.tensor_memory(0);

    // 2.
    float values[n];
    if (stores) {
        for (int i = 0; i < n; ++i) values[i] = x_gmem(row, i);
        tcgen05_st(cells, values);
        tcgen05_wait_st();
        tcgen05_fence_before_thread_sync();
    }
    bar_sync();

    // 3.
    if (!stores) {
        tcgen05_fence_after_thread_sync();
        tcgen05_ld(values, cells);
        tcgen05_wait_ld(values);
        for (int i = 0; i < n; ++i) y_gmem(row, i) = values[i];
        tcgen05_fence_before_thread_sync();
    }
    bar_sync();

    // 4.
    if (warp_id() == 0) tcgen05_dealloc<n>(cells);
}

bool lab() {
    std::vector<float> x(rows * n), y(rows * n);
    for (int i = 0; i < rows * n; ++i) x[i] = static_cast<float>(100 * (i / n) + i % n);
    Buffer x_gmem("X", x.size() * 4), y_gmem("Y", y.size() * 4);
    x_gmem.write(x.data(), x_gmem.bytes());
    launch({"through_tensor_memory", 1, threads, sizeof(Shared)}, through_tensor_memory,
           x_gmem.tensor<const float>(0, 0, n, n), y_gmem.tensor<float>(0, 0, n, n));
    synchronize();
    y_gmem.read(y.data(), y_gmem.bytes());

    std::puts("row (100s) and column of what thread 128 + i found in columns 0, 1, ... 7");
    for (int i = 0; i < rows; i += 31) {
        std::printf("i = %3d:", i);
        for (int j = 0; j < 8; ++j) std::printf("%7.0f", y[i * n + j]);
        std::puts("");
    }
    return x == y;
}

}  // namespace

int main(int argc, char** argv) { return run_lab(argc, argv, lab); }
