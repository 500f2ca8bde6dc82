// Tensor memory: where loads and stores of a warp move what, allocation, and each way of doing without a wait or a fence.
#include <algorithm>
#include <cstring>
#include <vector>

#include "common/gpu/emulator/machine.h"
#include "common/gpu/emulator/tests/cute_layout.h"
#include "common/gpu/emulator/tests/reports.h"

namespace {

struct Shared {
    gpu::SharedArray<std::uint32_t, 2> base;
};

/// What the emulator has in a cell.
std::uint32_t cell(int lane, std::uint32_t column) {
    std::uint32_t bits;
    std::memcpy(&bits, emulator::machine.current()->cta->tensor_memory.cell(lane, static_cast<int>(column)), 4);
    return bits;
}

// ---- values ----

constexpr std::uint32_t value(int thread, int i) {
    return static_cast<std::uint32_t>(thread * 128 + i + 1) * 2654435761u;
}

/// Every thread stores n registers, looks at its lane, and loads them back.
template <class R, int n, bool packed>
void there_and_back(std::uint32_t* cells, std::uint32_t* returned) {
    constexpr int columns = std::max(32, packed ? 2 * n : n);
    auto& smem = gpu::shared_memory<Shared>();
    if (gpu::warp_id() == 3) gpu::tcgen05_alloc<columns>(smem.base.address(0));
    gpu::bar_sync();
    const std::uint32_t base = smem.base(0);
    R there[n], back[n];
    for (int i = 0; i < n; ++i) {
        const std::uint32_t bits = value(threadIdx.x, i);
        std::memcpy(&there[i], &bits, 4);
    }
    const std::uint32_t own_lane = threadIdx.x / 32 * 32 << 16;  // may be said, and need not
    if constexpr (packed) {
        gpu::tcgen05_st_unpack_16b(base, there);
    } else {
        gpu::tcgen05_st(base | own_lane, there);
    }
    for (R& x : there) x = R{};  // captured
    gpu::tcgen05_wait_st();
    for (int c = 0; c < columns; ++c) cells[threadIdx.x * 256 + c] = cell(threadIdx.x, base + c);
    if constexpr (packed) {
        gpu::tcgen05_ld_pack_16b(back, base | own_lane);
    } else {
        gpu::tcgen05_ld(back, base);
    }
    gpu::tcgen05_wait_ld(back);
    std::memcpy(returned + threadIdx.x * 128, back, sizeof(back));
    gpu::tcgen05_fence_before_thread_sync();
    gpu::bar_sync();
    if (gpu::warp_id() == 1) gpu::tcgen05_dealloc<columns>(base);
}

/// CUTLASS, include/cute/atom/copy_traits_sm100.hpp, SM100_TMEM_LOAD_32dp32b{n}x and ..._16b: bit b of thread t's registers
/// is element 32 n t + b, which lies at
///   ValID = (32 n, 32):(1, DP)     _16b: ((16, 2 n), 32):((1, 32), DP)     DP = 2^21 bits, one lane; 32 bits, one column
template <class R, int n, bool packed>
void expect_there_and_back() {
    constexpr std::int64_t one_lane = 1 << 21;
    const CuteLayout cutlass =
        packed ? CuteLayout{{{16, 1}, {2 * n, 32}, {32, one_lane}}} : CuteLayout{{{32 * n, 1}, {32, one_lane}}};
    std::vector<std::uint32_t> cells(128 * 256), returned(128 * 128);
    ASSERT_EQ(report_of(1, 128, sizeof(Shared), there_and_back<R, n, packed>, cells.data(), returned.data()), "");
    for (int thread = 0; thread < 128; ++thread)
        for (int i = 0; i < n; ++i) {
            ASSERT_EQ(returned[thread * 128 + i], value(thread, i)) << n;
            for (int half = 0; half < 2; ++half) {
                const std::int64_t bit = cutlass(32 * n * (thread % 32) + 32 * i + 16 * half);
                const int lane = thread / 32 * 32 + int(bit / one_lane), column = int(bit % one_lane / 32);
                const std::uint32_t expected = value(thread, i) >> 16 * half & 0xFFFF;
                ASSERT_EQ(cells[lane * 256 + column] >> bit % 32 & 0xFFFF, expected) << n << ", register " << i;
                // The formula of tensor_memory.h.
                ASSERT_EQ(lane, thread);
                ASSERT_EQ(column, packed ? 2 * i + half : i);
                ASSERT_EQ(bit % 32, packed ? 0 : 16 * half);
            }
        }
}

template <int n>
void expect_all_forms() {
    expect_there_and_back<std::uint32_t, n, false>();
    expect_there_and_back<float, n, false>();
    expect_there_and_back<std::uint32_t, n, true>();
}

TEST(TensorMemory, LoadsAndStoresMoveWhatCutlassSaysTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        expect_all_forms<4>();
    }
    expect_all_forms<1>();
    expect_all_forms<2>();
    expect_all_forms<8>();
    expect_all_forms<16>();
    expect_all_forms<32>();
    expect_all_forms<64>();
    expect_all_forms<128>();
}

// ---- from one warp to another ----

enum class Mistake {
    none,
    no_wait_st,
    no_fence_before_st_is_told,
    no_barrier,
    no_fence_after_st_was_told,
    no_wait_ld,
    no_fence_before_ld_is_told,
    no_fence_after_ld_was_told,
    no_fence_before_dealloc,
    registers_not_named,
    registers_changed,
    part_named,
    no_wait_between_st_and_ld,
    no_wait_between_ld_and_st,
    no_wait_between_st_and_st,
    other_quarter,
    lanes_differ,
    lane_missing,
    beyond_the_allocation,
    never_written,
    st_unwaited_at_exit,
    ld_unwaited_at_exit
};

constexpr int moved = 16;

/// Warps 0 to 3 store, warps 4 to 7 load, warps 0 to 3 store again; warp 5 frees.
void hand_over(Mistake mistake) {
    const auto is = [&](Mistake m) { return m == mistake; };
    auto& smem = gpu::shared_memory<Shared>();
    const bool first = gpu::warp_id() < 4;
    if (gpu::warp_id() == 1) {
        gpu::tcgen05_alloc<64>(smem.base.address(0));
        gpu::tcgen05_relinquish_alloc_permit();
    }
    gpu::bar_sync();
    const std::uint32_t base = smem.base(0);
    float x[moved] = {}, y[moved];
    if (first) {
        std::uint32_t address = base;
        if (is(Mistake::other_quarter)) address |= 96 << 16;
        if (is(Mistake::lanes_differ) && gpu::lane_id() == 9) address += 1;
        if (is(Mistake::beyond_the_allocation)) address += 64 - moved + 1;
        if (!is(Mistake::lane_missing) || threadIdx.x != 70) gpu::tcgen05_st(address, x);
        if (is(Mistake::no_wait_between_st_and_st)) gpu::tcgen05_st(base + moved / 2, x);
        if (is(Mistake::no_wait_between_st_and_ld)) gpu::tcgen05_ld(y, base);
        if (!is(Mistake::no_wait_st)) gpu::tcgen05_wait_st();
        if (!is(Mistake::no_fence_before_st_is_told)) gpu::tcgen05_fence_before_thread_sync();
    }
    if (!is(Mistake::no_barrier)) gpu::bar_sync();
    if (!first) {
        if (!is(Mistake::no_fence_after_st_was_told)) gpu::tcgen05_fence_after_thread_sync();
        gpu::tcgen05_ld(y, is(Mistake::never_written) ? base + 32 : base);
        if (is(Mistake::ld_unwaited_at_exit)) return;
        if (is(Mistake::registers_changed) && threadIdx.x == 200) y[3] = 1;
        if (is(Mistake::no_wait_between_ld_and_st)) gpu::tcgen05_st(base, x);
        if (is(Mistake::registers_not_named)) {
            gpu::tcgen05_wait_ld(x);
        } else if (is(Mistake::part_named)) {
            gpu::tcgen05_wait_ld(reinterpret_cast<float(&)[moved / 2]>(y));
        } else if (!is(Mistake::no_wait_ld)) {
            gpu::tcgen05_wait_ld(y);
        }
        if (!is(Mistake::no_fence_before_ld_is_told)) gpu::tcgen05_fence_before_thread_sync();
    }
    gpu::bar_sync();
    if (first) {
        if (!is(Mistake::no_fence_after_ld_was_told)) gpu::tcgen05_fence_after_thread_sync();
        gpu::tcgen05_st(base, x);
        if (is(Mistake::st_unwaited_at_exit)) return;
        gpu::tcgen05_wait_st();
        if (!is(Mistake::no_fence_before_dealloc)) gpu::tcgen05_fence_before_thread_sync();
    }
    gpu::bar_sync();
    if (gpu::warp_id() == 5) gpu::tcgen05_dealloc<64>(base);
}

TEST(TensorMemory, EachMistakeIsReported) {
    const int all = static_cast<int>(emulator::standard_schedules().size());
    const auto reports = [&](const char* words, Mistake mistake) {
        return schedules_that_report(words, 256, sizeof(Shared), hand_over, mistake);
    };
    const char* const no_after = "has been told that it is done, but no tcgen05.fence::after_thread_sync follows";
    EXPECT_EQ(reports("", Mistake::none), 0);
    EXPECT_EQ(reports("no tcgen05.wait::st has covered it", Mistake::no_wait_st), all);
    EXPECT_EQ(reports("no tcgen05.fence::before_thread_sync follows its tcgen05.wait::st",
                      Mistake::no_fence_before_st_is_told),
              all);
    EXPECT_EQ(reports("tcgen05.ld of lanes", Mistake::no_barrier), all);
    EXPECT_EQ(reports(no_after, Mistake::no_fence_after_st_was_told), all);
    EXPECT_EQ(reports("no tcgen05.wait::ld has covered it", Mistake::no_wait_ld), all);
    EXPECT_EQ(reports("no tcgen05.fence::before_thread_sync follows its tcgen05.wait::ld",
                      Mistake::no_fence_before_ld_is_told),
              all);
    EXPECT_EQ(reports(no_after, Mistake::no_fence_after_ld_was_told), all);
    EXPECT_EQ(reports("tcgen05.dealloc of lanes 0-127", Mistake::no_fence_before_dealloc), all);
    EXPECT_EQ(reports("completes a load whose registers it does not name", Mistake::registers_not_named), all);
    EXPECT_EQ(reports("completes a load whose registers it does not name", Mistake::part_named), all);
    EXPECT_EQ(reports("register 3 of thread 200 (warp 6, lane 8) was changed while", Mistake::registers_changed), all);
    EXPECT_EQ(reports("no tcgen05.wait::st has covered it", Mistake::no_wait_between_st_and_ld), all);
    EXPECT_EQ(reports("no tcgen05.wait::ld has covered it", Mistake::no_wait_between_ld_and_st), all);
    EXPECT_EQ(reports("no tcgen05.wait::st has covered it", Mistake::no_wait_between_st_and_st), all);
    EXPECT_EQ(reports("tcgen05.st from lane 96 on: warp", Mistake::other_quarter), all);
    EXPECT_EQ(reports("all lanes of a warp pass the same address", Mistake::lanes_differ), all);
    EXPECT_EQ(reports("warp 2", Mistake::lane_missing), all);
    EXPECT_EQ(reports(": allocated are columns", Mistake::beyond_the_allocation), all);
    EXPECT_EQ(reports("nobody has written column", Mistake::never_written), all);
    EXPECT_EQ(reports("the thread exits while tcgen05.st of its warp issued at", Mistake::st_unwaited_at_exit), all);
    EXPECT_EQ(reports("the thread exits while tcgen05.ld of its warp issued at", Mistake::ld_unwaited_at_exit), all);
}

TEST(TensorMemory, TheRightWayIsRightInEveryOrder) {
    for (std::uint64_t seed = 1; seed <= 100; ++seed)
        for (const auto schedule : {emulator::Schedule::random, emulator::Schedule::priority}) {
            ScopedOptions scoped(schedule, seed);
            ASSERT_EQ(report_of(1, 256, sizeof(Shared), hand_over, Mistake::none), "");
        }
}

/// Warps 4, 8 and 12 load what warp 0 has stored and then stores anew; one of them passes no fence in between.
void three_readers(int warp_without_fence) {
    auto& smem = gpu::shared_memory<Shared>();
    if (gpu::warp_id() == 0) gpu::tcgen05_alloc<32>(smem.base.address(0));
    gpu::bar_sync();
    const std::uint32_t base = smem.base(0);
    float x[moved] = {};
    for (int turn = 0; turn < 2; ++turn) {
        if (gpu::warp_id() == 0) {
            gpu::tcgen05_fence_after_thread_sync();
            gpu::tcgen05_st(base, x);
            gpu::tcgen05_wait_st();
            gpu::tcgen05_fence_before_thread_sync();
        }
        gpu::bar_sync();
        if (gpu::warp_id() % 4 == 0 && gpu::warp_id() > 0) {
            gpu::tcgen05_fence_after_thread_sync();
            gpu::tcgen05_ld(x, base);
            gpu::tcgen05_wait_ld(x);
            if (turn > 0 || gpu::warp_id() != warp_without_fence) gpu::tcgen05_fence_before_thread_sync();
        }
        gpu::bar_sync();
    }
    if (gpu::warp_id() == 0) gpu::tcgen05_dealloc<32>(base);
}

TEST(TensorMemory, EveryWarpThatLoadsIsWaitedFor) {
    const int all = static_cast<int>(emulator::standard_schedules().size());
    const auto reports = [&](const char* words, int warp_without_fence) {
        return schedules_that_report(words, 512, sizeof(Shared), three_readers, warp_without_fence);
    };
    EXPECT_EQ(reports("", -1), 0);
    for (int warp : {4, 8, 12})
        EXPECT_EQ(reports("no tcgen05.fence::before_thread_sync follows its tcgen05.wait::ld", warp), all) << warp;
}

/// Loads deliver at their wait, and not before; a store counts the registers of its issue.
void look_early(int (*counts)[3], float* last) {
    int(&numbers)[3] = counts[threadIdx.x];
    auto& smem = gpu::shared_memory<Shared>();
    gpu::tcgen05_alloc<32>(smem.base.address(0));
    gpu::bar_warp_sync(0xFFFFFFFF);
    const std::uint32_t base = smem.base(0);
    float x[8], y[8], z[8];
    for (float& each : x) each = 5;
    gpu::tcgen05_st(base, x);
    for (float& each : x) each = 6;
    gpu::tcgen05_wait_st();
    const auto count = [](const float(&d)[8]) {
        return static_cast<int>(std::count_if(std::begin(d), std::end(d), [](float each) { return each == 5; }));
    };
    gpu::tcgen05_ld(y, base);
    gpu::tcgen05_ld(z, base);
    numbers[0] = count(y) + count(z);
    gpu::tcgen05_wait_st();  // of stores alone
    numbers[1] = count(y) + count(z);
    gpu::tcgen05_wait_ld(z, y);
    numbers[2] = count(y) + count(z);
    gpu::tcgen05_st(base, x);
    gpu::tcgen05_wait_st();
    gpu::tcgen05_ld(y, base);
    gpu::tcgen05_wait_ld(y);
    if (gpu::lane_id() == 0) *last = y[7];
    gpu::tcgen05_dealloc<32>(base);
}

TEST(TensorMemory, LoadsDeliverAtTheirWaitTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        int numbers[32][3] = {};
        float last = 0;
        ASSERT_EQ(report_of(1, 32, sizeof(Shared), look_early, numbers, &last), "");
        EXPECT_THAT(numbers, testing::Each(testing::ElementsAre(0, 0, 2 * 8)));
        EXPECT_EQ(last, 6);
    }
}

TEST(TensorMemory, IsCountedTiny) {
    gpu::reset_counters();
    ASSERT_EQ(report_of(1, 256, sizeof(Shared), hand_over, Mistake::none), "");
    EXPECT_EQ(gpu::counters()->tensor_memory_written, 2u * 128 * moved * 4);
    EXPECT_EQ(gpu::counters()->tensor_memory_read, 1u * 128 * moved * 4);
}

}  // namespace
