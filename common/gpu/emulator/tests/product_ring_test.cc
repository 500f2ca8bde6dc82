// Warpgroup products fed by tensor copies, as attention kernels on Hopper are: a producer warp fills a ring of two slots, consumer warpgroups
// multiply what is there. Right under every schedule; what is left out is reported.
#include <algorithm>
#include <vector>

#include "common/gpu/emulator/tests/reports.h"

namespace {

using gpu::bf16;
using gpu::Major;

constexpr int slots = 2, tiles = 5, n = 64, k = 64;
constexpr int tile_bytes = n * k * 2;

template <int warpgroups>
struct Ring {
    gpu::PanelTile<bf16, 64 * warpgroups, k> a;
    gpu::PanelTile<bf16, n, k> b[slots];
    gpu::SharedArray<gpu::Mbarrier, slots> full, empty;
    gpu::SharedArray<gpu::Mbarrier, 1> a_full;
};

struct Without {
    bool a_wait = false, full_wait = false, empty_wait = false;
    int early = -1;  // the warpgroup that says a slot is empty before its product is complete
    bool keeps_one_in_flight = false;
};

/// Each warpgroup: D (64 x 64) = sum over tiles of A B_tile. The slot of a tile is free when the product of the next one is under way.
template <int warpgroups>
void products(gpu::TensorMap a, gpu::TensorMap b, float* results, Without without) {
    auto& shared = gpu::shared_memory<Ring<warpgroups>>();
    if (threadIdx.x == 0) {
        gpu::mbarrier_init(shared.a_full.address(0), 1);
        for (int s = 0; s < slots; ++s) {
            gpu::mbarrier_init(shared.full.address(s), 1);
            gpu::mbarrier_init(shared.empty.address(s), warpgroups);
        }
        gpu::fence_mbarrier_init();
    }
    gpu::bar_sync();
    if (threadIdx.x >= 128 * warpgroups) {
        if (gpu::lane_id() != 0) return;
        gpu::mbarrier_arrive_expect_tx(shared.a_full.address(0), 64 * warpgroups * k * 2);
        gpu::cp_async_bulk_tensor_5d(shared.a.address(), a, 0, 0, 0, 0, 0, shared.a_full.address(0));
        for (int tile = 0; tile < tiles; ++tile) {
            const int s = tile % slots;
            if (!without.empty_wait) gpu::mbarrier_wait_parity(shared.empty.address(s), (tile / slots + 1) % 2);
            gpu::mbarrier_arrive_expect_tx(shared.full.address(s), tile_bytes);
            gpu::cp_async_bulk_tensor_5d(shared.b[s].address(), b, 0, tile * n, 0, 0, 0, shared.full.address(s));
        }
        return;
    }
    const int w = gpu::warpgroup_id();
    const auto arrive = [&](int tile) {
        gpu::barrier_sync(1 + w, 128);
        if (threadIdx.x % 128 == 0) gpu::mbarrier_arrive(shared.empty.address(tile % slots));
    };
    float d[n / 2];
    if (!without.a_wait) gpu::mbarrier_wait_parity(shared.a_full.address(0), 0);
    gpu::wgmma_fence(d);
    for (int tile = 0; tile < tiles; ++tile) {
        const int s = tile % slots;
        if (!without.full_wait) gpu::mbarrier_wait_parity(shared.full.address(s), tile / slots % 2);
        for (int step = 0; step < k; step += 16)
            gpu::wgmma_m64k16<bf16, Major::k, Major::k>(d, shared.a.k_major(64 * w, step), shared.b[s].k_major(0, step),
                                                        tile > 0 || step > 0);
        gpu::wgmma_commit_group();
        if (without.early == w) arrive(tile);
        gpu::wgmma_wait_group<1>();
        if (without.early != w && tile > 0) arrive(tile - 1);
    }
    if (!without.keeps_one_in_flight) gpu::wgmma_wait_group<0>(d);
    if (without.early != w) arrive(tiles - 1);
    std::copy_n(d, n / 2, results + threadIdx.x * (n / 2));
}

int small(int i) { return i * 37 % 11 - 5; }

gpu::Buffer filled(const char* name, int rows) {
    std::vector<bf16> values(rows * k);
    for (int i = 0; i < rows * k; ++i) values[i] = gpu::cvt_rn<bf16>(static_cast<float>(small(i)));
    gpu::Buffer buffer(name, values.size() * 2);
    buffer.write(values.data(), buffer.bytes());
    return buffer;
}

template <int warpgroups>
class Kernel {
  public:
    std::string report(Without without = {}) {
        const auto map = [](const gpu::Buffer& buffer, int rows, int box) {
            return gpu::tile_map("operand", buffer.tensor<bf16>(0, 0, k, k), 1, 1, rows, box);
        };
        return report_of(1, 128 * warpgroups + 32, sizeof(Ring<warpgroups>), products<warpgroups>,
                         map(a_, 64 * warpgroups, 64 * warpgroups), map(b_, tiles * n, n), results.data(), without);
    }
    int reports(const char* words, Without without) {
        int number = 0;
        for (const auto& options : emulator::standard_schedules()) {
            ScopedOptions scoped(options);
            const std::string text = report(without);
            if (text.empty()) continue;
            ++number;
            EXPECT_THAT(text, testing::HasSubstr(words));
        }
        return number;
    }
    static float expected(int thread, int i) {
        const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2 % 2),
                  column = 8 * (i / 4) + 2 * (thread % 4) + i % 2;
        int sum = 0;
        for (int tile = 0; tile < tiles; ++tile)
            for (int j = 0; j < k; ++j) sum += small(row * k + j) * small((tile * n + column) * k + j);
        return static_cast<float>(sum);
    }

    std::vector<float> results = std::vector<float>(128 * warpgroups * n / 2);

  private:
    gpu::Buffer a_ = filled("a", 64 * warpgroups), b_ = filled("b", tiles*n);
};

TEST(ProductRing, RightUnderEveryScheduleTiny) {
    Kernel<2> kernel;
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        ASSERT_EQ(kernel.report(), "");
        for (int thread = 0; thread < 256; ++thread)
            for (int i = 0; i < n / 2; ++i)
                ASSERT_EQ(kernel.results[thread * n / 2 + i], Kernel<2>::expected(thread, i)) << thread << ", " << i;
    }
}

TEST(ProductRing, EachMistakeIsReported) {
    const int all = static_cast<int>(emulator::standard_schedules().size());
    Kernel<2> two;
    EXPECT_EQ(two.reports("", {.a_wait = true}), all);
    EXPECT_EQ(two.reports("", {.full_wait = true}), all);
    EXPECT_EQ(two.reports("", {.empty_wait = true}), all);
    EXPECT_EQ(two.reports("wgmma issued by", {.early = 0}), all);
    EXPECT_EQ(two.reports("wgmma issued by", {.early = 1}), all);
    EXPECT_EQ(two.reports("wgmma under way", {.keeps_one_in_flight = true}), all);
    Kernel<3> three;  // a byte remembers two of its readers: of three, each in some schedule
    for (const int early : {0, 1, 2}) EXPECT_GE(three.reports("wgmma issued by", {.early = early}), 1) << early;
}

}  // namespace
