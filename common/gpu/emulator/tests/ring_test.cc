// A ring of two slots between a producer warp, whose copies fill them, and two consumer warpgroups: right under every
// schedule, and each wait, arrival and fence that is left out is reported.
#include <array>
#include <numeric>
#include <vector>

#include "common/gpu/emulator/tests/reports.h"
#include "common/gpu/panel_tile.h"

namespace {

using gpu::bf16;

constexpr int slots = 2, tiles = 7, rows = 16, columns = 64;
constexpr int consumers = 256, threads = consumers + 32;
constexpr int tile_bytes = rows * columns * 2;

struct Ring {
    gpu::PanelTile<bf16, rows, columns> slot[slots];
    gpu::SharedArray<gpu::Mbarrier, slots> full, empty;
};

/// What a kernel leaves out or gets wrong.
struct Without {
    bool init_fence = false, init_barrier = false;
    bool full_wait = false, full_arrive = false, empty_wait = false, empty_arrive = false, warp_sync = false;
    bool second_group_arrives = true, flips_parity = true;
    int empty_count = consumers / 32, bytes = tile_bytes;
};

/// Each consumer warp sums two rows of every tile, lane by lane.
void ring(gpu::TensorMap map, float* sums, Without without) {
    auto& shared = gpu::shared_memory<Ring>();
    if (threadIdx.x == 0) {
        for (int s = 0; s < slots; ++s) {
            gpu::mbarrier_init(shared.full.address(s), 1);
            gpu::mbarrier_init(shared.empty.address(s), without.empty_count);
        }
        if (!without.init_fence) gpu::fence_mbarrier_init();
    }
    if (!without.init_barrier) gpu::bar_sync();

    const auto parity = [&](int tile) { return without.flips_parity ? tile / slots % 2 : 0; };
    if (threadIdx.x >= consumers) {
        if (gpu::lane_id() != 0) return;
        for (int tile = 0; tile < tiles; ++tile) {
            const int s = tile % slots;
            if (!without.empty_wait) gpu::mbarrier_wait_parity(shared.empty.address(s), parity(tile) ^ 1);
            if (!without.full_arrive) gpu::mbarrier_arrive_expect_tx(shared.full.address(s), without.bytes);
            gpu::cp_async_bulk_tensor_5d(shared.slot[s].address(), map, 0, tile * rows, 0, 0, 0,
                                         shared.full.address(s));
        }
        return;
    }
    float sum = 0;
    for (int tile = 0; tile < tiles; ++tile) {
        const int s = tile % slots;
        if (!without.full_wait) gpu::mbarrier_wait_parity(shared.full.address(s), parity(tile));
        for (int row = 2 * gpu::warp_id(); row < 2 * gpu::warp_id() + 2; ++row)
            for (int column = gpu::lane_id(); column < columns; column += 32)
                sum += gpu::to_float(bf16(shared.slot[s](row, column)));
        if (!without.warp_sync) gpu::bar_warp_sync(gpu::all_lanes);
        const bool arrives = threadIdx.x < 128 || without.second_group_arrives;
        if (gpu::lane_id() == 0 && arrives && !without.empty_arrive) gpu::mbarrier_arrive(shared.empty.address(s));
    }
    sums[threadIdx.x] = sum;
}

struct Source {
    gpu::Buffer buffer{"source", tiles* tile_bytes};
    Source() {
        std::vector<bf16> values(tiles * rows * columns);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = gpu::cvt_rn<bf16>(static_cast<float>(i * 7 % 251));
        buffer.write(values.data(), buffer.bytes());
    }
    gpu::TensorMap map() const {
        return gpu::tile_map("source", buffer.tensor<bf16>(0, 0, columns, columns), 1, 1, tiles * rows, rows);
    }
    static float expected(int thread) {
        float sum = 0;
        for (int tile = 0; tile < tiles; ++tile)
            for (int row = 2 * (thread / 32); row < 2 * (thread / 32) + 2; ++row)
                for (int column = thread % 32; column < columns; column += 32)
                    sum += static_cast<float>(((tile * rows + row) * columns + column) * 7 % 251);
        return sum;
    }
};

TEST(Ring, RightUnderEveryScheduleTiny) {
    const Source source;
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        std::array<float, consumers> sums{};
        gpu::reset_counters();
        ASSERT_EQ(report_of(1, threads, sizeof(Ring), ring, source.map(), sums.data(), Without{}), "");
        for (int t = 0; t < consumers; ++t) ASSERT_EQ(sums[t], Source::expected(t)) << t;
        EXPECT_EQ(gpu::counters()->tensors[0].requested_read, std::uint64_t{tiles * tile_bytes});
        EXPECT_EQ(gpu::counters()->shared_written, std::uint64_t{tiles * tile_bytes});
    }
}

TEST(Ring, EachDeletionIsReported) {
    const Source source;
    std::array<float, consumers> sums{};
    const int all = static_cast<int>(emulator::standard_schedules().size());
    const auto reports = [&](const char* words, Without without) {
        return schedules_that_report(words, threads, sizeof(Ring), ring, source.map(), sums.data(), without);
    };
    EXPECT_EQ(reports("fence.mbarrier_init", {.init_fence = true}), all);
    EXPECT_EQ(reports("mbarrier", {.init_barrier = true}), all);
    EXPECT_EQ(reports("", {.full_wait = true}), all);
    EXPECT_EQ(reports("", {.full_arrive = true}), all);
    EXPECT_EQ(reports("", {.empty_wait = true}), all);
    EXPECT_EQ(reports("deadlock", {.empty_arrive = true}), all);
    EXPECT_EQ(reports("no barrier lies between", {.warp_sync = true}), all);
    EXPECT_EQ(reports("deadlock", {.second_group_arrives = false}), all);
    EXPECT_EQ(reports("no barrier lies between", {.second_group_arrives = false, .empty_count = 4}), all);
    EXPECT_EQ(reports("", {.flips_parity = false}), all);
    EXPECT_EQ(reports("", {.bytes = tile_bytes - 16}), all);
    EXPECT_EQ(reports("", {.bytes = tile_bytes + 16}), all);
}

}  // namespace
