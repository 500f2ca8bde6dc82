// A ring of two slots: a producer warp has tiles copied into them, two consumer warps sum them up. PTX ISA: mbarrier.
//
//   full[s]    1 arrival (the producer's) and the bytes of a tile    the tile is there
//   empty[s]   2 arrivals, one of each consumer warp                 the slot may be filled again
//
// A barrier goes through phases 0, 1, 2, ..., a wait names the parity of the phase it waits for. Tile i uses slot i % 2
// for the (i / 2)-th time: its consumers wait for phase i / 2 of full, the producer for phase i / 2 - 1 of empty; phase
// -1 of a fresh barrier counts as complete, so the first two waits of the producer pass.
#include <vector>

#include "docs/labs/lab.h"

using namespace gpu;

namespace {

constexpr int tiles = 8, slots = 2, columns = 256, consumer_warps = 2, threads = 32 * (consumer_warps + 1);

struct Shared {
    SharedTile<float, slots, columns> slot;
    SharedArray<Mbarrier, slots> full, empty;
};

__global__ void sum_tiles(Tensor<const float> source, Tensor<float> sums) {
    auto& smem = shared_memory<Shared>();
    const auto source_gmem = source.matrix(0, 0, 0, tiles);
    const auto sums_gmem = sums.matrix(0, 0, 0, tiles);
    if (threadIdx.x == 0) {
        for (int s = 0; s < slots; ++s) {
            mbarrier_init(smem.full.address(s), 1);
            mbarrier_init(smem.empty.address(s), consumer_warps);
        }
        fence_mbarrier_init();
    }
    bar_sync();

    if (warp_id() == consumer_warps) {  // producer: one lane
        for (int i = 0; i < tiles && lane_id() == 0; ++i) {
            const int s = i % slots, turn = i / slots;
            mbarrier_wait_parity(smem.empty.address(s), (turn + 1) % 2);
            mbarrier_arrive_expect_tx(smem.full.address(s), columns * int(sizeof(float)));
            cp_async_bulk(smem.slot.address(s, 0), source_gmem, i, 0, columns * int(sizeof(float)),
                          smem.full.address(s));
        }
    } else {  // consumers: each warp its half of every tile
        for (int i = 0; i < tiles; ++i) {
            const int s = i % slots, turn = i / slots;
            mbarrier_wait_parity(smem.full.address(s), turn % 2);
            float sum = 0;
            for (int column = threadIdx.x; column < columns; column += 32 * consumer_warps) sum += smem.slot(s, column);
            bar_warp_sync(all_lanes);  // all lanes have read; one says so for all
            if (lane_id() == 0) mbarrier_arrive(smem.empty.address(s));
            for (int mask = 16; mask > 0; mask /= 2) sum += shfl_sync_bfly(sum, mask);
            if (lane_id() == 0) sums_gmem(i, warp_id()) = sum;
        }
    }
}

bool lab() {
    std::vector<float> numbers(tiles * columns);
    for (int i = 0; i < tiles * columns; ++i) numbers[i] = static_cast<float>(i / columns + i % 3);
    Buffer source("source", numbers.size() * sizeof(float)), result("sums", tiles * consumer_warps * sizeof(float));
    source.write(numbers.data(), source.bytes());
    launch({"sum_tiles", 1, threads, sizeof(Shared)}, sum_tiles, source.tensor<const float>(0, 0, columns, columns),
           result.tensor<float>(0, 0, consumer_warps, consumer_warps));
    synchronize();
    std::vector<float> sums(tiles * consumer_warps);
    result.read(sums.data(), result.bytes());

    bool right = true;
    for (int i = 0; i < tiles; ++i) {
        float expected = 0;
        for (int column = 0; column < columns; ++column) expected += numbers[i * columns + column];
        const float sum = sums[2 * i] + sums[2 * i + 1];
        std::printf("tile %d: %g + %g = %g\n", i, sums[2 * i], sums[2 * i + 1], sum);
        right = right && sum == expected;
    }
    return right;
}

}  // namespace

int main(int argc, char** argv) { return run_lab(argc, argv, lab); }
