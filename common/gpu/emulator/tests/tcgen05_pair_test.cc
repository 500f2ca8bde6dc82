// tcgen05 with cta_group::2: products of a pair of CTAs, their values and places, and what each must know of the other.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "common/gpu/emulator/machine.h"
#include "common/gpu/emulator/tests/cute_layout.h"
#include "common/gpu/emulator/tests/reports.h"

namespace {

using gpu::bf16;
using gpu::Major;

constexpr int threads = 128, k_all = 64, columns = 256;

struct Shared {
    gpu::PanelTile<bf16, 128, k_all> a, b;  // of this CTA
    gpu::SharedArray<std::uint32_t, 1> base;
    gpu::SharedArray<gpu::Mbarrier, 1> done;
};

enum class Source { shared, stored, copied };
struct Shape {
    int m, n;  // of both CTAs
    Source source = Source::shared;
    int column = 0;
};
constexpr int a_column = 224;

enum class Mistake {
    none,
    odd_issues,
    no_barrier_of_the_cluster,
    other_size,
    peer_ends_early,
    only_to_itself,
    operand_overwritten_early,
    no_fence_of_operands,
    frees_early,
    one_of_the_pair
};

/// PTX ISA: cta_group::2. Both fill their halves, the even one issues, both wait.
void pair(const std::uint16_t* a, const std::uint16_t* b, Shape shape, Mistake mistake, float (*cells)[128][columns]) {
    const auto is = [&](Mistake m) { return m == mistake; };
    auto& smem = gpu::shared_memory<Shared>();
    const int rank = gpu::cluster_ctarank(), m_own = shape.m / 2, n_own = shape.n / 2;
    for (int i = threadIdx.x; i < 128 * k_all; i += threads) {
        smem.a(i / k_all, i % k_all) = i / k_all < m_own ? bf16{a[rank * m_own * k_all + i]} : bf16{};
        smem.b(i / k_all, i % k_all) = i / k_all < n_own ? bf16{b[rank * n_own * k_all + i]} : bf16{};
    }
    if (!is(Mistake::no_fence_of_operands) || rank == 0) gpu::fence_proxy_async();
    if (threadIdx.x == 0) {
        gpu::mbarrier_init(smem.done.address(0), 1);
        gpu::fence_mbarrier_init();
    }
    if (gpu::warp_id() == 1) {
        if (is(Mistake::other_size) && rank == 1) {
            gpu::tcgen05_alloc<128, 2>(smem.base.address(0));
        } else {
            gpu::tcgen05_alloc<columns, 2>(smem.base.address(0));
        }
        gpu::tcgen05_relinquish_alloc_permit<2>();
    }
    gpu::bar_sync();
    const std::uint32_t base = smem.base(0), d = base + shape.column;
    if (shape.source == Source::stored) {
        std::uint32_t x[k_all / 2];
        for (int k = 0; k < k_all; k += 2) {
            const std::uint16_t* row = a + (rank * m_own + threadIdx.x) * k_all;
            x[k / 2] = row[k] | std::uint32_t(row[k + 1]) << 16;
        }
        gpu::tcgen05_st(base + a_column, x);
        gpu::tcgen05_wait_st();
        gpu::tcgen05_fence_before_thread_sync();
    }
    const bool ends_early = is(Mistake::peer_ends_early) && rank == 1;
    if (ends_early && gpu::warp_id() == 0) gpu::tcgen05_dealloc<columns, 2>(base);
    if (!is(Mistake::no_barrier_of_the_cluster)) {
        gpu::barrier_cluster_arrive();
        gpu::barrier_cluster_wait();
    }
    if (ends_early) return;
    gpu::tcgen05_fence_after_thread_sync();
    if (threadIdx.x == 0 && rank == (is(Mistake::odd_issues) ? 1 : 0)) {
        const std::uint32_t instruction = gpu::tcgen05_instruction<bf16>(shape.m, shape.n, Major::k, Major::k);
        for (int k = 0; k < k_all; k += 16) {
            const std::uint64_t operand_b = smem.b.k_major(0, k);
            const std::uint32_t operand_a = base + a_column + k / 2;
            if (shape.source == Source::copied) gpu::tcgen05_cp_128x256b<2>(operand_a, smem.a.k_major(0, k));
            if (shape.source == Source::shared) {
                gpu::tcgen05_mma_ss<2>(d, smem.a.k_major(0, k), operand_b, instruction, k > 0);
            } else {
                gpu::tcgen05_mma_ts<2>(d, operand_a, operand_b, instruction, k > 0);
            }
        }
        if (is(Mistake::one_of_the_pair)) gpu::tcgen05_commit<1>(smem.done.address(0));
        if (is(Mistake::only_to_itself)) {
            gpu::tcgen05_commit<2>(smem.done.address(0));
        } else {
            gpu::tcgen05_commit_multicast<2>(smem.done.address(0), 3);
        }
    }
    if (is(Mistake::operand_overwritten_early) && rank == 1) smem.b(0, 0) = bf16{};
    if (is(Mistake::frees_early) && rank == 1) {
        if (gpu::warp_id() == 0) gpu::tcgen05_dealloc<columns, 2>(base);
    }
    gpu::mbarrier_wait_parity(smem.done.address(0), 0);
    for (int column = 0; column < columns; ++column)
        std::memcpy(&cells[rank][threadIdx.x][column],
                    emulator::machine.current()->cta->tensor_memory.cell(threadIdx.x, int(base) + column), 4);
    gpu::barrier_cluster_arrive();
    gpu::barrier_cluster_wait();
    if (gpu::warp_id() == 3) gpu::tcgen05_dealloc<columns, 2>(base);
}

struct Operands {
    std::vector<float> a, b;
    std::vector<std::uint16_t> a_bits, b_bits;
    Operands() {
        std::mt19937 random(5);
        for (int i = 0; i < 256 * k_all; ++i) {
            a.push_back(float(random() % 9) - 4);
            b.push_back(float(random() % 9) - 4);
        }
        for (float x : a) a_bits.push_back(gpu::cvt_rn<bf16>(x).bits);
        for (float x : b) b_bits.push_back(gpu::cvt_rn<bf16>(x).bits);
    }
};

struct Result {
    std::string report;
    std::vector<float> cells;
    auto cell(int rank, int lane, int column) const { return cells[(rank * 128 + lane) * columns + column]; }
};

Result run(const Operands& x, const Shape& shape, Mistake mistake) {
    Result result{"", std::vector<float>(2 * 128 * columns)};
    try {
        gpu::launch({"pair", 2, threads, sizeof(Shared), 2}, pair, x.a_bits.data(), x.b_bits.data(), shape, mistake,
                    reinterpret_cast<float(*)[128][columns]>(result.cells.data()));
    } catch (const gpu::Error& error) {
        result.report = error.what();
    }
    return result;
}

/// CUTLASS, include/cute/atom/mma_traits_sm100.hpp, tmem_frg for two SMs: of the rows that a CTA has, element (m, n) of D
/// lies at
///   M = 256   (128, N):(1, 128)          M = 128   (64, (N / 2, 2)):(1, (128, 64))
/// counted down the 128 lanes, then column by column.
CuteLayout cutlass_d(const Shape& shape) {
    if (shape.m == 256) return {{{128, 1}, {shape.n, 128}}};
    return {{{64, 1}, {shape.n / 2, 128}, {2, 64}}};
}

void expect_product(const Shape& shape) {
    static const Operands x;
    const Result result = run(x, shape, Mistake::none);
    ASSERT_EQ(result.report, "");
    const CuteLayout layout = cutlass_d(shape);
    const int m_own = shape.m / 2;
    for (int m = 0; m < shape.m; ++m)
        for (int n = 0; n < shape.n; ++n) {
            const int place = int(layout(m % m_own + m_own * n)), lane = place % 128, column = place / 128;
            // The formula of tcgen05.h.
            const int half = shape.m == 256 ? 0 : n / (shape.n / 2);
            ASSERT_EQ(lane, m % m_own + 64 * half);
            ASSERT_EQ(column, shape.m == 256 ? n : n % (shape.n / 2));
            float sum = 0;
            for (int k = 0; k < k_all; ++k) sum += x.a[m * k_all + k] * x.b[n * k_all + k];
            ASSERT_EQ(result.cell(m / m_own, lane, shape.column + column), sum)
                << "M = " << shape.m << ", N = " << shape.n << ", D (" << m << ", " << n << ")";
        }
    const int used = shape.m == 256 ? shape.n : shape.n / 2;
    for (int rank = 0; rank < 2; ++rank)
        for (int lane = 0; lane < 128; ++lane)
            for (int column = shape.column + used; column < a_column; ++column)
                ASSERT_TRUE(std::isnan(result.cell(rank, lane, column))) << "not of D";
}

TEST(Tcgen05Pair, ProductsTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        expect_product({256, 64});
        expect_product({128, 64});
    }
    for (const int n : {16, 48, 128, 224}) expect_product({256, n});
    for (const int n : {16, 48, 256}) expect_product({128, n});
    expect_product({256, 32, Source::shared, 5});
    expect_product({128, 32, Source::shared, 5});
    expect_product({256, 64, Source::stored});
    expect_product({256, 64, Source::copied, 16});
}

TEST(Tcgen05Pair, TheRightWayIsRightInEveryOrder) {
    const Operands x;
    for (std::uint64_t seed = 1; seed <= 100; ++seed)
        for (const auto schedule : {emulator::Schedule::random, emulator::Schedule::priority}) {
            ScopedOptions scoped(schedule, seed);
            ASSERT_EQ(run(x, {256, 64, Source::stored}, Mistake::none).report, "");
        }
}

TEST(Tcgen05Pair, EachMistakeIsReported) {
    const Operands x;
    const auto expect = [&](const std::vector<const char*>& words, const Shape& shape, Mistake mistake) {
        for (const auto& options : emulator::standard_schedules()) {
            ScopedOptions scoped(options);
            const std::string report = run(x, shape, mistake).report;
            EXPECT_TRUE(std::any_of(words.begin(), words.end(),
                                    [&](const char* each) { return report.find(each) != report.npos; }))
                << words[0] << "\n"
                << report;
        }
    };
    const Shape shape{256, 64};
    expect({"in the odd CTA of its pair; here the even one issues for both"}, shape, Mistake::odd_issues);
    expect({"no barrier lies between", "of CTA 1: allocated are none"}, shape, Mistake::no_barrier_of_the_cluster);
    expect({"the other CTA of the pair has allocated"}, shape, Mistake::other_size);
    expect({"for CTA 1, which has exited", "of CTA 1: allocated are none"}, shape, Mistake::peer_ends_early);
    expect({"deadlock: no thread can go on"}, shape, Mistake::only_to_itself);
    expect({"no wait for the mbarrier of a tcgen05.commit that covers it", "wrote there"}, shape,
           Mistake::operand_overwritten_early);
    expect({"no fence.proxy.async of that thread lies between"}, shape, Mistake::no_fence_of_operands);
    expect({"tcgen05.dealloc of lanes 0-127", "of CTA 1: allocated are none"}, shape, Mistake::frees_early);
    expect({"tcgen05.commit with cta_group::1 in a kernel that has used cta_group::2"}, shape,
           Mistake::one_of_the_pair);
    expect({"of a pair with M = 128 and A in tensor memory"}, {128, 64, Source::stored}, Mistake::none);
    expect({"is of M = 64; with cta_group::2 it is 128 or 256"}, {64, 64}, Mistake::none);
    expect({"is of N = 24; with cta_group::2 it is 16, 32, ... 256"}, {256, 24}, Mistake::none);
}

/// A product of CTA 0 alone, committed to the mbarriers of both.
void committed_to_another(bool waits) {
    auto& smem = gpu::shared_memory<Shared>();
    for (int i = gpu::lane_id(); i < 128 * k_all; i += 32) {
        smem.a(i / k_all, i % k_all) = bf16{};
        smem.b(i / k_all, i % k_all) = bf16{};
    }
    gpu::fence_proxy_async();
    if (threadIdx.x == 0) {
        gpu::mbarrier_init(smem.done.address(0), 1);
        gpu::fence_mbarrier_init();
    }
    gpu::tcgen05_alloc<32>(smem.base.address(0));
    gpu::barrier_cluster_arrive();
    gpu::barrier_cluster_wait();
    const bool orders = gpu::cluster_ctarank() == 0;
    if (orders && threadIdx.x == 0) {
        gpu::tcgen05_mma_ss(smem.base(0), smem.a.k_major(0, 0), smem.b.k_major(0, 0),
                            gpu::tcgen05_instruction<bf16>(128, 32, Major::k, Major::k), false);
        gpu::tcgen05_commit_multicast(smem.done.address(0), 3);
    }
    if (orders || waits) gpu::mbarrier_wait_parity(smem.done.address(0), 0);
    gpu::tcgen05_dealloc<32>(smem.base(0));
}

TEST(Tcgen05Pair, WhoIsToldMustNotEndBeforeTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        const auto report = [](bool waits) {
            try {
                gpu::launch({"kernel_under_test", 2, 32, sizeof(Shared), 2}, committed_to_another, waits);
            } catch (const gpu::Error& error) {
                return std::string(error.what());
            }
            return std::string();
        };
        EXPECT_EQ(report(true), "");
        EXPECT_THAT(
            report(false),
            testing::AnyOf(testing::HasSubstr("has counted copies or commits in phase 0 that nobody has waited for"),
                           testing::HasSubstr("is on its way to its shared memory"),
                           testing::HasSubstr("tcgen05.commit for CTA 1, which has exited")));
    }
}

}  // namespace
