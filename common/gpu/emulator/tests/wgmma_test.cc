// wgmma: what a warpgroup's products give, when, and each way of using them wrongly.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "common/gpu/emulator/tensor_core.h"
#include "common/gpu/emulator/tests/reports.h"

namespace {

using emulator::Schedule;
using gpu::Major;
using testing::HasSubstr;

constexpr int threads = 128, k_all = 64, n_all = 128;

template <class T>
struct Tiles {
    gpu::PanelTile<T, 64, k_all> a, a_transposed;  // [m][k], [k][m]
    gpu::PanelTile<T, n_all, k_all> b;             // [n][k]
    gpu::PanelTile<T, k_all, n_all> b_transposed;  // [k][n]
};

/// Small numbers with few bits, A as 64 rows m x k and B as 128 rows n x k, and what A B^T is after each k step of 16.
template <class T>
struct Operands {
    gpu::Buffer a{"a", 64 * k_all * 2}, b{"b", n_all*k_all * 2}, d{"d", 64 * n_all * 4};
    std::vector<std::uint16_t> a_bits, b_bits;

    Operands() : a_bits(64 * k_all), b_bits(n_all * k_all) {
        std::mt19937 random(5);
        std::normal_distribution<float> normal;
        for (auto* bits : {&a_bits, &b_bits})
            for (auto& x : *bits) x = gpu::cvt_rn<T>(normal(random)).bits;
        a.write(a_bits.data(), a.bytes());
        b.write(b_bits.data(), b.bytes());
    }
    gpu::Matrix<const T> a_rows() const { return a.tensor<const T>(0, 0, k_all, k_all).matrix(0, 0, 0, 64); }
    gpu::Matrix<const T> b_rows() const { return b.tensor<const T>(0, 0, k_all, k_all).matrix(0, 0, 0, n_all); }
    gpu::Matrix<float> d_rows() const { return d.tensor<float>(0, 0, n_all, n_all).matrix(0, 0, 0, 64); }

    /// D = A B (+ start), the first n columns, from so many k steps.
    std::vector<float> product(int n, int steps, float start) const {
        std::vector<float> sums(64 * n, start), result(64 * n);
        auto* const blocks = reinterpret_cast<float(*)[64][8]>(sums.data());
        for (int step = 0; step < steps; ++step) {
            std::uint16_t rows[64][16];
            std::vector<std::uint16_t> columns(16 * n);
            for (int i = 0; i < 64; ++i)
                for (int k = 0; k < 16; ++k) rows[i][k] = a_bits[i * k_all + 16 * step + k];
            for (int j = 0; j < n; ++j)
                for (int k = 0; k < 16; ++k) columns[j / 8 * 128 + k * 8 + j % 8] = b_bits[j * k_all + 16 * step + k];
            emulator::multiply_accumulate_wide(std::is_same_v<T, gpu::bf16>, rows,
                                               reinterpret_cast<std::uint16_t(*)[16][8]>(columns.data()), blocks, n);
        }
        for (int i = 0; i < 64; ++i)
            for (int j = 0; j < n; ++j) result[i * n + j] = blocks[j / 8][i][j % 8];
        return result;
    }
};

template <class T>
void fill(Tiles<T>& tiles, const gpu::Matrix<const T>& a, const gpu::Matrix<const T>& b) {
    for (int i = threadIdx.x; i < 64 * k_all; i += threads) {
        tiles.a(i / k_all, i % k_all) = a(i / k_all, i % k_all);
        tiles.a_transposed(i % k_all, i / k_all) = a(i / k_all, i % k_all);
    }
    for (int i = threadIdx.x; i < n_all * k_all; i += threads) {
        tiles.b(i / k_all, i % k_all) = b(i / k_all, i % k_all);
        tiles.b_transposed(i % k_all, i / k_all) = b(i / k_all, i % k_all);
    }
}

template <int n>
void write(const float (&d)[n], const gpu::Matrix<float>& out) {
    const int g = gpu::lane_id() / 4, t = gpu::lane_id() % 4;
    for (int i = 0; i < n; ++i) out(16 * gpu::warp_id() + g + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * t + i % 2) = d[i];
}

/// The A registers of a k step, element by element.
template <class T>
void load_a(std::uint32_t (&a)[4], Tiles<T>& tiles, int step) {
    const int g = gpu::lane_id() / 4, t = gpu::lane_id() % 4;
    for (int j = 0; j < 4; ++j) {
        const int row = 16 * gpu::warp_id() + g + 8 * (j % 2), k = 16 * step + 2 * t + 8 * (j / 2);
        const T low = tiles.a(row, k), high = tiles.a(row, k + 1);
        a[j] = low.bits | high.bits << 16;
    }
}

enum class Source { k_major, mn_major, registers };

/// All k steps of D = A B + start.
template <class T, int n, Major b_major>
void multiply(gpu::Matrix<const T> a, gpu::Matrix<const T> b, gpu::Matrix<float> out, Source source, float start) {
    auto& tiles = gpu::shared_memory<Tiles<T>>();
    fill(tiles, a, b);
    gpu::fence_proxy_async();
    gpu::bar_sync();
    float d[n / 2];
    std::uint32_t registers[k_all / 16][4];
    for (float& x : d) x = start;
    if (source == Source::registers)
        for (int step = 0; step < k_all / 16; ++step) load_a(registers[step], tiles, step);
    gpu::wgmma_fence(d, registers);
    for (int step = 0; step < k_all / 16; ++step) {
        const std::uint64_t operand_b =
            b_major == Major::k ? tiles.b.k_major(0, 16 * step) : tiles.b_transposed.mn_major(16 * step, 0);
        const bool accumulate = step > 0 || start != 0;
        switch (source) {
            case Source::k_major:
                gpu::wgmma_m64k16<T, Major::k, b_major>(d, tiles.a.k_major(0, 16 * step), operand_b, accumulate);
                break;
            case Source::mn_major:
                gpu::wgmma_m64k16<T, Major::mn, b_major>(d, tiles.a_transposed.mn_major(16 * step, 0), operand_b,
                                                         accumulate);
                break;
            case Source::registers:
                gpu::wgmma_m64k16<T, b_major>(d, registers[step], operand_b, accumulate);
                break;
        }
    }
    gpu::wgmma_commit_group();
    gpu::wgmma_wait_group<0>(d, registers);
    write(d, out);
}

template <class T, int n, Major b_major>
void expect_products() {
    const Operands<T> x;
    for (const Source source : {Source::k_major, Source::mn_major, Source::registers})
        for (const float start : {0.0f, -3.5f}) {
            ASSERT_EQ(report_of(1, threads, sizeof(Tiles<T>), multiply<T, n, b_major>, x.a_rows(), x.b_rows(),
                                x.d_rows(), source, start),
                      "");
            std::vector<float> d(64 * n_all);
            x.d.read(d.data(), x.d.bytes());
            const std::vector<float> expected = x.product(n, k_all / 16, start);
            for (int i = 0; i < 64; ++i)
                for (int j = 0; j < n; ++j) ASSERT_EQ(d[i * n_all + j], expected[i * n + j]) << i << ", " << j;
        }
}

TEST(Wgmma, MultipliesTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        expect_products<gpu::bf16, 64, Major::k>();
    }
    expect_products<gpu::bf16, 128, Major::mn>();
    expect_products<gpu::fp16, 128, Major::k>();
    expect_products<gpu::fp16, 64, Major::mn>();
    expect_products<gpu::bf16, 80, Major::k>();
}

// ---- rules ----

using gpu::bf16;
constexpr int n_small = 64;

enum class Mistake {
    none,
    no_fence,
    fence_without_d,
    fence_without_a,
    d_changed_after_fence,
    d_changed_after_wait,
    d_changed_in_flight,
    a_changed_in_flight,
    wait_without_d,
    wait_without_a,
    no_commit,
    no_wait,
    no_proxy_fence,
    no_barrier,
    operand_overwritten,
    descriptor_differs,
    place_differs,
    warp_missing,
    warp_exits,
    lane_shuffles,
    instruction_differs,
    fence_in_flight,
    shape_differs,
    d_is_a
};

/// D = A B twice, A in registers; one thing done wrong.
void one_mistake(gpu::Matrix<const bf16> a, gpu::Matrix<const bf16> b, gpu::Matrix<float> out, Mistake mistake) {
    auto& tiles = gpu::shared_memory<Tiles<bf16>>();
    const auto is = [&](Mistake m) { return m == mistake; };
    fill(tiles, a, b);
    if (!is(Mistake::no_proxy_fence)) gpu::fence_proxy_async();
    if (!is(Mistake::no_barrier)) gpu::bar_sync();
    float d[n_small / 2] = {}, other[n_small / 2];
    std::uint32_t registers[4] = {};
    std::uint64_t descriptor = tiles.b.k_major(0, 0);
    if (is(Mistake::descriptor_differs) && threadIdx.x == 77) descriptor = tiles.b.k_major(0, 16);
    if (is(Mistake::warp_exits) && gpu::warp_id() == 2) return;

    if (is(Mistake::fence_without_d)) {
        gpu::wgmma_fence(registers);
    } else if (is(Mistake::fence_without_a)) {
        gpu::wgmma_fence(d);
    } else if (!is(Mistake::no_fence)) {
        gpu::wgmma_fence(d, registers, other);
    }
    if (is(Mistake::d_changed_after_fence) && threadIdx.x == 70) d[5] = 1;
    if (is(Mistake::warp_missing) && gpu::warp_id() == 2) gpu::bar_sync();
    if (is(Mistake::lane_shuffles) && gpu::lane_id() == 9) gpu::shfl_sync_bfly(0, 1);
    if (is(Mistake::instruction_differs) && threadIdx.x == 44) gpu::wgmma_commit_group();
    if (is(Mistake::place_differs) && threadIdx.x < 32) {
        gpu::wgmma_m64k16<bf16, Major::k>(d, registers, descriptor, true);
    } else {
        gpu::wgmma_m64k16<bf16, Major::k>(d, registers, descriptor, true);
    }
    if (is(Mistake::fence_in_flight)) gpu::wgmma_fence(d);
    if (is(Mistake::shape_differs)) {
        auto& part = reinterpret_cast<float(&)[16]>(d);
        gpu::wgmma_m64k16<bf16, Major::k>(part, registers, descriptor, true);
    }
    if (is(Mistake::d_is_a)) {
        auto& part = reinterpret_cast<std::uint32_t(&)[4]>(d);
        gpu::wgmma_m64k16<bf16, Major::k>(other, part, descriptor, true);
    }
    if (!is(Mistake::no_commit)) gpu::wgmma_commit_group();
    if (is(Mistake::d_changed_in_flight) && threadIdx.x == 71) d[31] = 1;
    if (is(Mistake::a_changed_in_flight) && threadIdx.x == 72) registers[2] = 1;
    if (is(Mistake::operand_overwritten)) {
        if (threadIdx.x == 73) tiles.b(7, 3) = bf16{};
    }
    if (is(Mistake::wait_without_d)) {
        gpu::wgmma_wait_group<0>(registers);
    } else if (is(Mistake::wait_without_a)) {
        gpu::wgmma_wait_group<0>(d);
    } else if (!is(Mistake::no_wait)) {
        gpu::wgmma_wait_group<0>(d, registers);
    }
    if (is(Mistake::d_changed_after_wait) && threadIdx.x == 74) d[0] = 1;
    gpu::wgmma_m64k16<bf16, Major::k>(d, registers, tiles.b.k_major(0, 0), true);
    gpu::wgmma_commit_group();
    if (is(Mistake::no_wait)) return;
    gpu::wgmma_wait_group<0>(d, registers);
    write(d, out);
}

TEST(Wgmma, EachMistakeIsReported) {
    const Operands<bf16> x;
    const int all = static_cast<int>(emulator::standard_schedules().size());
    const auto reports = [&](const char* words, Mistake mistake) {
        return schedules_that_report(words, threads, sizeof(Tiles<bf16>), one_mistake, x.a_rows(), x.b_rows(),
                                     x.d_rows(), mistake);
    };
    EXPECT_EQ(reports("", Mistake::none), 0);
    EXPECT_EQ(reports("no wgmma_fence comes before the first product", Mistake::no_fence), all);
    EXPECT_EQ(reports("no wgmma_fence names the registers of D", Mistake::fence_without_d), all);
    EXPECT_EQ(reports("no wgmma_fence names the registers of A", Mistake::fence_without_a), all);
    EXPECT_EQ(reports("ordinary code has changed register 5 of D in thread 70", Mistake::d_changed_after_fence), all);
    EXPECT_EQ(reports("ordinary code has changed register 0 of D in thread 74", Mistake::d_changed_after_wait), all);
    EXPECT_EQ(reports("register 31 of D in thread 71 (warp 2, lane 7) was changed while", Mistake::d_changed_in_flight),
              all);
    EXPECT_EQ(reports("register 2 of A in thread 72 (warp 2, lane 8) was changed while", Mistake::a_changed_in_flight),
              all);
    EXPECT_EQ(
        reports("wgmma_wait_group completes a product whose registers it does not name: D", Mistake::wait_without_d),
        all);
    EXPECT_EQ(
        reports("wgmma_wait_group completes a product whose registers it does not name: A", Mistake::wait_without_a),
        all);
    EXPECT_EQ(reports("wgmma.wait_group while 1 products are not committed", Mistake::no_commit), all);
    EXPECT_EQ(reports("the thread exits with 2 wgmma under way", Mistake::no_wait), all);
    EXPECT_EQ(reports("no fence.proxy.async of that thread lies", Mistake::no_proxy_fence), all);
    EXPECT_EQ(reports("wrote there and no barrier lies between", Mistake::no_barrier), all);
    EXPECT_EQ(reports("wgmma issued by thread", Mistake::operand_overwritten), all);
    EXPECT_EQ(reports("all threads of a warpgroup pass the same", Mistake::descriptor_differs), all);
    EXPECT_EQ(reports("warpgroup 0 diverged", Mistake::place_differs), all);
    EXPECT_EQ(reports("threads 64-95", Mistake::warp_missing), all);
    EXPECT_EQ(reports("exit", Mistake::warp_exits), all);
    EXPECT_EQ(reports("diverged: lane", Mistake::lane_shuffles), all);
    EXPECT_EQ(reports("warpgroup 0 diverged", Mistake::instruction_differs), all);
    EXPECT_EQ(reports("wgmma.fence names registers that are D of the product in flight", Mistake::fence_in_flight),
              all);
    EXPECT_EQ(reports("registers of D are D of another shape", Mistake::shape_differs), all);
    EXPECT_EQ(reports("registers of A are D of", Mistake::d_is_a), all);
    EXPECT_THAT(report_of(1, 96, sizeof(Tiles<bf16>), one_mistake, x.a_rows(), x.b_rows(), x.d_rows(), Mistake::none),
                HasSubstr("wgmma.fence needs a whole warpgroup"));
}

/// Nothing of D is to be seen before the wait that covers it, and an older group is complete before a younger one.
void look_early(gpu::Matrix<const bf16> a, gpu::Matrix<const bf16> b, gpu::Matrix<float> out, int (*counts)[5]) {
    int(&numbers)[5] = counts[threadIdx.x];
    auto& tiles = gpu::shared_memory<Tiles<bf16>>();
    fill(tiles, a, b);
    gpu::fence_proxy_async();
    gpu::bar_sync();
    float first[n_small / 2] = {}, second[n_small / 2] = {};
    gpu::wgmma_fence(first, second);
    const auto multiply = [&](float(&d)[n_small / 2], int step) {
        gpu::wgmma_m64k16<bf16, Major::k, Major::k>(d, tiles.a.k_major(0, 16 * step), tiles.b.k_major(0, 16 * step),
                                                    true);
        gpu::wgmma_commit_group();
    };
    const auto count = [&](const float(&d)[n_small / 2]) {
        return static_cast<int>(std::count_if(std::begin(d), std::end(d), [](float x) { return !std::isnan(x); }));
    };
    multiply(first, 0);
    multiply(second, 0);
    multiply(first, 1);  // keeps `first` in flight beyond its first group
    multiply(second, 1);
    numbers[0] += count(first) + count(second);
    gpu::wgmma_wait_group<3>();
    gpu::wgmma_wait_group<2>();
    numbers[1] += count(first) + count(second);
    gpu::wgmma_wait_group<1>(first);
    numbers[2] += count(first);
    numbers[3] += count(second);
    gpu::wgmma_wait_group<0>(second);
    numbers[4] += count(second);
    for (int i = 0; i < n_small / 2; ++i) first[i] -= second[i];
    write(first, out);
}

TEST(Wgmma, WaitsCoverExactlyTheirGroupsTiny) {
    const Operands<bf16> x;
    constexpr int all = n_small / 2;
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        int numbers[threads][5] = {};
        ASSERT_EQ(report_of(1, threads, sizeof(Tiles<bf16>), look_early, x.a_rows(), x.b_rows(), x.d_rows(), numbers),
                  "");
        EXPECT_THAT(numbers, testing::Each(testing::ElementsAre(0, 0, all, 0, all)));
        std::vector<float> d(64 * n_all);
        x.d.read(d.data(), x.d.bytes());
        for (int i = 0; i < 64; ++i)
            for (int j = 0; j < n_small; ++j) ASSERT_EQ(d[i * n_all + j], 0);
    }
}

/// Two warpgroups, each with its own D and the same operands; a third overwrites an operand when both are done.
void two_warpgroups(gpu::Matrix<const bf16> a, gpu::Matrix<const bf16> b, float* sums, bool wait) {
    auto& tiles = gpu::shared_memory<Tiles<bf16>>();
    const int group = gpu::warpgroup_id();
    if (group == 0) fill(tiles, a, b);
    gpu::fence_proxy_async();
    gpu::bar_sync();
    float d[n_small / 2] = {};
    if (group < 2) {
        gpu::wgmma_fence(d);
        for (int step = 0; step <= group; ++step)
            gpu::wgmma_m64k16<bf16, Major::k, Major::mn>(d, tiles.a.k_major(0, 16 * step),
                                                         tiles.b_transposed.mn_major(16 * step, 0), true);
        gpu::wgmma_commit_group();
        if (wait || group == 0) gpu::wgmma_wait_group<0>(d);
        if (group == 0) gpu::barrier_arrive(1, 384);
    }
    if (group == 1) gpu::barrier_arrive(1, 384);
    if (group == 2) {
        gpu::barrier_sync(1, 384);
        if (threadIdx.x % 128 < 32) tiles.b_transposed(threadIdx.x % 128, 5) = bf16{};
    }
    if (group == 1 && !wait) gpu::wgmma_wait_group<0>(d);
    if (threadIdx.x % 128 == 0) sums[group] = d[0];
}

TEST(Wgmma, WarpgroupsOnTheirOwnTiny) {
    const Operands<bf16> x;
    const float expected[] = {x.product(n_small, 1, 0)[0], x.product(n_small, 2, 0)[0]};
    float sums[3];
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        ASSERT_EQ(report_of(1, 384, sizeof(Tiles<bf16>), two_warpgroups, x.a_rows(), x.b_rows(), sums, true), "");
        EXPECT_EQ(sums[0], expected[0]);
        EXPECT_EQ(sums[1], expected[1]);
        // Without its wait the second may still be reading what the third overwrites.
        EXPECT_THAT(report_of(1, 384, sizeof(Tiles<bf16>), two_warpgroups, x.a_rows(), x.b_rows(), sums, false),
                    HasSubstr("may still be reading there: no wait_group that covers it"));
    }
}

TEST(Wgmma, IsCountedTiny) {
    const Operands<bf16> x;
    gpu::reset_counters();
    ASSERT_EQ(report_of(1, threads, sizeof(Tiles<bf16>), multiply<bf16, 64, Major::k>, x.a_rows(), x.b_rows(),
                        x.d_rows(), Source::k_major, 0.0f),
              "");
    EXPECT_EQ(gpu::counters()->mma_flops, 2u * 64 * 64 * k_all);
    EXPECT_EQ(gpu::counters()->shared_read, 2u * (64 + 64) * k_all);
}

}  // namespace
