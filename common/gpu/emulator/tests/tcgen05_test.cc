// tcgen05.mma: the values of products, and where they lie, for every shape and source of the operands.
#include <cstring>
#include <random>
#include <vector>

#include "common/gpu/emulator/machine.h"
#include "common/gpu/emulator/tensor_core.h"
#include "common/gpu/emulator/tests/cute_layout.h"
#include "common/gpu/emulator/tests/reports.h"

namespace {

using gpu::Major;

constexpr int threads = 128, m_all = 128, n_all = 256, k_all = 64, steps = k_all / 16;

template <class T>
struct Tiles {
    gpu::PanelTile<T, m_all, k_all> a;             // [m][k]
    gpu::PanelTile<T, k_all, m_all> a_transposed;  // [k][m]
    gpu::PanelTile<T, n_all, k_all> b;             // [n][k]
    gpu::PanelTile<T, k_all, n_all> b_transposed;  // [k][n]
    gpu::SharedArray<std::uint32_t, 1> base;
    gpu::SharedArray<gpu::Mbarrier, 1> done;
};

enum class Source { shared, stored, copied };

struct Shape {
    int m, n;
    Source source = Source::shared;
    Major a_major = Major::k, b_major = Major::k;
    int column = 0, lane = 0;  // of D; of A in tensor memory the lane too
    float start = 0;           // added to, unless 0
};
constexpr int a_column = 480;  // of A in tensor memory

/// Row of D that lies in a lane; -1: none.
int row_in(int lane, const Shape& shape) {
    if (shape.m == 128) return lane;
    const int i = lane % 32 - shape.lane;
    return i >= 0 && i < 16 ? lane / 32 * 16 + i : -1;
}

/// D = A B^T + start from A as 128 rows m x k, B as 256 rows n x k; then all cells.
template <class T>
void multiply(const std::uint16_t* a, const std::uint16_t* b, Shape shape, float* cells) {
    auto& smem = gpu::shared_memory<Tiles<T>>();
    for (int i = threadIdx.x; i < m_all * k_all; i += threads) {
        smem.a(i / k_all, i % k_all) = T{a[i]};
        smem.a_transposed(i % k_all, i / k_all) = T{a[i]};
    }
    for (int i = threadIdx.x; i < n_all * k_all; i += threads) {
        smem.b(i / k_all, i % k_all) = T{b[i]};
        smem.b_transposed(i % k_all, i / k_all) = T{b[i]};
    }
    gpu::fence_proxy_async();
    if (threadIdx.x == 0) {
        gpu::mbarrier_init(smem.done.address(0), 1);
        gpu::fence_mbarrier_init();
    }
    if (gpu::warp_id() == 2) gpu::tcgen05_alloc<512>(smem.base.address(0));
    gpu::bar_sync();
    const std::uint32_t base = smem.base(0), d = base + shape.column + (shape.lane << 16);
    const std::uint32_t a_address = base + a_column + (shape.lane << 16);
    const int row = row_in(threadIdx.x, shape);
    if (shape.start != 0)
        for (int n = 0; n < shape.n; ++n) {
            const float x[1] = {shape.start};
            gpu::tcgen05_st(base + shape.column + n, x);
        }
    if (shape.source == Source::stored) {
        std::uint32_t x[k_all / 2];
        for (int k = 0; k < k_all; k += 2)
            x[k / 2] = row < 0 ? 0xFFFFFFFF : a[row * k_all + k] | std::uint32_t(a[row * k_all + k + 1]) << 16;
        gpu::tcgen05_st(base + a_column, x);
    }
    gpu::tcgen05_wait_st();
    gpu::tcgen05_fence_before_thread_sync();
    gpu::bar_sync();
    gpu::tcgen05_fence_after_thread_sync();
    if (threadIdx.x == 0) {
        const std::uint32_t instruction = gpu::tcgen05_instruction<T>(shape.m, shape.n, shape.a_major, shape.b_major);
        for (int step = 0; step < steps; ++step) {
            const bool accumulate = step > 0 || shape.start != 0;
            const std::uint64_t operand_b =
                shape.b_major == Major::k ? smem.b.k_major(0, 16 * step) : smem.b_transposed.mn_major(16 * step, 0);
            if (shape.source == Source::shared) {
                gpu::tcgen05_mma_ss(
                    d,
                    shape.a_major == Major::k ? smem.a.k_major(0, 16 * step) : smem.a_transposed.mn_major(16 * step, 0),
                    operand_b, instruction, accumulate);
                continue;
            }
            if (shape.source == Source::copied)
                gpu::tcgen05_cp_128x256b(base + a_column + 8 * step, smem.a.k_major(0, 16 * step));
            gpu::tcgen05_mma_ts(d, a_address + 8 * step, operand_b, instruction, accumulate);
        }
        gpu::tcgen05_commit(smem.done.address(0));
    }
    gpu::mbarrier_wait_parity(smem.done.address(0), 0);
    for (int column = 0; column < 512; ++column)
        std::memcpy(&cells[threadIdx.x * 512 + column],
                    emulator::machine.current()->cta->tensor_memory.cell(threadIdx.x, column), 4);
    gpu::bar_sync();
    if (gpu::warp_id() == 3) gpu::tcgen05_dealloc<512>(base);
}

/// Small integers: products and sums are exact.
template <class T>
struct Operands {
    std::vector<float> a, b;
    std::vector<std::uint16_t> a_bits, b_bits;

    Operands() {
        std::mt19937 random(5);
        for (int i = 0; i < m_all * k_all; ++i) a.push_back(float(random() % 9) - 4);
        for (int i = 0; i < n_all * k_all; ++i) b.push_back(float(random() % 9) - 4);
        for (float x : a) a_bits.push_back(gpu::cvt_rn<T>(x).bits);
        for (float x : b) b_bits.push_back(gpu::cvt_rn<T>(x).bits);
    }
    float sum(int m, int n) const {
        float result = 0;
        for (int k = 0; k < k_all; ++k) result += a[m * k_all + k] * b[n * k_all + k];
        return result;
    }
};

/// CUTLASS, include/cute/atom/mma_traits_sm100.hpp, tmem_frg for one SM: element (m, n) of D lies at
///   M = 128   (128, N):(1, 128)          M = 64   ((16, 4), N):((1, 32), 128)
/// counted down the 128 lanes, then column by column.
CuteLayout cutlass_d(const Shape& shape) {
    if (shape.m == 128) return {{{128, 1}, {shape.n, 128}}};
    return {{{16, 1}, {4, 32}, {shape.n, 128}}};
}

template <class T>
void expect_product(const Shape& shape) {
    static const Operands<T> x;
    std::vector<float> cells(128 * 512);
    ASSERT_EQ(
        report_of(1, threads, sizeof(Tiles<T>), multiply<T>, x.a_bits.data(), x.b_bits.data(), shape, cells.data()),
        "");
    const CuteLayout layout = cutlass_d(shape);
    std::vector<bool> is_d(128 * 512);
    for (int n = 0; n < shape.n; ++n)
        for (int m = 0; m < shape.m; ++m) {
            const int place = int(layout(m + shape.m * n)), lane = shape.lane + place % 128,
                      column = shape.column + place / 128;
            // The formula of tcgen05.h.
            ASSERT_EQ(lane, shape.lane + (shape.m == 128 ? m : 32 * (m / 16) + m % 16));
            ASSERT_EQ(column, shape.column + n);
            ASSERT_EQ(cells[lane * 512 + column], x.sum(m, n) + shape.start)
                << "M = " << shape.m << ", N = " << shape.n << ", D (" << m << ", " << n << ")";
            is_d[lane * 512 + column] = true;
        }
    for (int lane = 0; lane < 128; ++lane)
        for (int column = 0; column < a_column; ++column) {  // nothing else is touched
            if (is_d[lane * 512 + column]) continue;
            const float cell = cells[lane * 512 + column];
            ASSERT_TRUE(std::isnan(cell) || (cell == shape.start && shape.m == 64)) << lane << ", " << column;
        }
    if (shape.source == Source::shared || shape.m != 128) return;
    // A there, 16 bits each: (128, K):(1, 128), columns counted in halves of 32 bits.
    const CuteLayout cutlass_a{{{128, 1}, {k_all, 128}}};
    for (int m = 0; m < 128; ++m)
        for (int k = 0; k < k_all; ++k) {
            const int place = int(cutlass_a(m + 128 * k)), lane = place % 128, half = place / 128;
            std::uint32_t word;
            std::memcpy(&word, &cells[lane * 512 + a_column + half / 2], 4);
            ASSERT_EQ(word >> half % 2 * 16 & 0xFFFF, x.a_bits[m * k_all + k]) << m << ", " << k;
        }
}

TEST(Tcgen05, ProductsOfSharedOperandsTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        expect_product<gpu::bf16>({128, 64});
    }
    for (const int n : {8, 24, 80, 128, 256}) expect_product<gpu::bf16>({128, n});
    for (const int n : {8, 40, 256}) expect_product<gpu::bf16>({64, n});
    expect_product<gpu::fp16>({128, 128});
    expect_product<gpu::fp16>({64, 64});
}

TEST(Tcgen05, MajorsTiny) {
    for (const Major a : {Major::k, Major::mn})
        for (const Major b : {Major::k, Major::mn})
            for (const int m : {64, 128}) expect_product<gpu::bf16>({m, 64, Source::shared, a, b});
}

TEST(Tcgen05, PlacesTiny) {
    for (const int column : {8, 3, 201}) expect_product<gpu::bf16>({128, 64, Source::shared, {}, {}, column});
    for (const int lane : {0, 16}) expect_product<gpu::bf16>({64, 64, Source::shared, {}, {}, 5, lane});
}

TEST(Tcgen05, ProductsAreAddedToWhatIsThereTiny) {
    expect_product<gpu::bf16>({128, 64, Source::shared, {}, {}, 0, 0, -3.5f});
    expect_product<gpu::bf16>({128, 64, Source::shared, {}, {}, 9, 0, -3.5f});
    expect_product<gpu::bf16>({64, 64, Source::shared, {}, {}, 0, 16, -3.5f});
}

TEST(Tcgen05, ProductsOfAInTensorMemoryTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        expect_product<gpu::bf16>({128, 64, Source::stored});
        expect_product<gpu::bf16>({128, 64, Source::copied});
    }
    expect_product<gpu::bf16>({128, 256, Source::stored, {}, Major::mn});
    expect_product<gpu::fp16>({128, 128, Source::copied, {}, Major::mn, 3});
    for (const int lane : {0, 16}) expect_product<gpu::fp16>({64, 64, Source::stored, {}, {}, 4, lane});
}

/// As mma.sync computes (assumed of tcgen05), bit for bit.
TEST(Tcgen05, RoundsLikeMmaSyncTiny) {
    Operands<gpu::bf16> x;
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (auto* bits : {&x.a_bits, &x.b_bits})
        for (auto& each : *bits) each = gpu::cvt_rn<gpu::bf16>(normal(random)).bits;
    std::vector<float> cells(128 * 512);
    ASSERT_EQ(report_of(1, threads, sizeof(Tiles<gpu::bf16>), multiply<gpu::bf16>, x.a_bits.data(), x.b_bits.data(),
                        Shape{128, 64}, cells.data()),
              "");
    for (int m = 0; m < 128; m += 16)
        for (int n = 0; n < 64; n += 8) {
            float sums[16][8] = {};
            for (int step = 0; step < steps; ++step) {
                std::uint16_t a[16][16], b[16][8];
                for (int i = 0; i < 16; ++i)
                    for (int k = 0; k < 16; ++k) a[i][k] = x.a_bits[(m + i) * k_all + 16 * step + k];
                for (int k = 0; k < 16; ++k)
                    for (int j = 0; j < 8; ++j) b[k][j] = x.b_bits[(n + j) * k_all + 16 * step + k];
                emulator::multiply_accumulate(true, a, b, sums);
            }
            for (int i = 0; i < 16; ++i)
                for (int j = 0; j < 8; ++j) ASSERT_EQ(cells[(m + i) * 512 + n + j], sums[i][j]);
        }
}

TEST(Tcgen05, IsCountedTiny) {
    const Operands<gpu::bf16> x;
    std::vector<float> cells(128 * 512);
    gpu::reset_counters();
    ASSERT_EQ(report_of(1, threads, sizeof(Tiles<gpu::bf16>), multiply<gpu::bf16>, x.a_bits.data(), x.b_bits.data(),
                        Shape{128, 64, Source::copied}, cells.data()),
              "");
    EXPECT_EQ(gpu::counters()->mma_flops, 2u * 128 * 64 * k_all);
    EXPECT_EQ(gpu::counters()->tensor_memory_written, 128u * k_all * 2);  // by copies
    EXPECT_EQ(gpu::counters()->tensor_memory_read, 128u * k_all * 2);     // as A
    EXPECT_EQ(gpu::counters()->shared_read, 128u * k_all * 2 + 64u * k_all * 2 + threads * 4);
}

/// PTX ISA, tables of the instruction descriptor: D type at bit 4, A and B types at 7 and 10, majors at 15 and 16, N / 8 at
/// 17, M / 16 at 24.
static_assert(gpu::tcgen05_instruction<gpu::bf16>(128, 256, Major::k, Major::k) == 0x08400490);
static_assert(gpu::tcgen05_instruction<gpu::fp16>(128, 256, Major::k, Major::k) == 0x08400010);
static_assert(gpu::tcgen05_instruction<gpu::bf16>(64, 8, Major::mn, Major::k) == 0x04028490);
static_assert(gpu::tcgen05_instruction<gpu::bf16>(256, 64, Major::k, Major::mn) == 0x10110490);

}  // namespace
