// One tensor copy (TMA): a box of 16 rows x 64 columns of bf16, where each of its chunks lies in shared memory, and
// what arrives beyond the tensor. PTX ISA: cp.async.bulk.tensor.
//
// 1. The host encodes a tensor map: 20 rows, boxes of 16, 128-byte swizzle.
// 2. One thread sets up an mbarrier, says how many bytes it expects, orders the copy from row 8 on, so that 4 rows of
// the
//    box lie beyond the tensor. They count all the same, and zeros arrive.
// 3. Whoever has seen the barrier complete may read the bytes: here as they lie, without undoing the swizzle.
#include <bit>
#include <vector>

#include "docs/labs/lab.h"

using namespace gpu;

namespace {

constexpr int tensor_rows = 20, first_row = 8, rows = 16, columns = 64, chunk = 8;  // 8 bf16 are 16 bytes

struct alignas(1024) Shared {
    SharedTile<bf16, rows, columns> box;  // 128 bytes a row: one line of the swizzle
    SharedArray<Mbarrier, 1> barrier;
};

__global__ void load_box(const __grid_constant__ TensorMap map, Tensor<float> lies) {
    auto& smem = shared_memory<Shared>();
    const std::uint32_t barrier = smem.barrier.address(0);
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init();
    }
    bar_sync();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(barrier, rows * columns * int(sizeof(bf16)));
        cp_async_bulk_tensor_5d(smem.box.address(0, 0), map, 0, first_row, 0, 0, 0, barrier);
    }
    mbarrier_wait_parity(barrier, 0);
    for (int row = 0; row < rows; ++row)
        for (int column = threadIdx.x; column < columns; column += blockDim.x)
            lies.matrix(0, 0, 0, rows)(row, column) = to_float(bf16(smem.box(row, column)));
}

bool lab() {
    // Element (row, column) says where it comes from: 8 row + chunk + 1, exact in bf16, the upper half of fp32.
    std::vector<std::uint16_t> tensor(tensor_rows * columns);
    for (int i = 0; i < tensor_rows * columns; ++i) {
        const auto number = static_cast<float>(i / columns * 8 + i % columns / chunk + 1);
        tensor[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(number) >> 16);
    }
    Buffer source("tensor", tensor.size() * sizeof(bf16)), result("result", rows * columns * sizeof(float));
    source.write(tensor.data(), source.bytes());
    const TensorMap map = tile_map("tensor", source.tensor<bf16>(0, 0, columns, columns), 1, 1, tensor_rows, rows);
    launch({"load_box", 1, 32, sizeof(Shared)}, load_box, map, result.tensor<float>(0, 0, columns, columns));
    synchronize();
    std::vector<float> lies(rows * columns);
    result.read(lies.data(), result.bytes());

    bool right = true;
    std::puts("16-byte chunks as they lie in shared memory, row.chunk of the tensor; - is a zero from beyond it");
    for (int row = 0; row < rows; ++row) {
        std::printf("byte %4d", row * 128);
        for (int place = 0; place < 8; ++place) {
            const int value = static_cast<int>(lies[row * columns + place * chunk]);
            if (value == 0) std::printf("    -  ");
            if (value != 0) std::printf("  %2d.%d ", (value - 1) / 8, (value - 1) % 8);
            const int tensor_row = first_row + row, tensor_chunk = place ^ row % 8;
            right = right && value == (tensor_row < tensor_rows ? tensor_row * 8 + tensor_chunk + 1 : 0);
        }
        std::puts("");
    }
    return right;
}

}  // namespace

int main(int argc, char** argv) { return run_lab(argc, argv, lab); }
