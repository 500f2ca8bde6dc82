// wgmma: what a warpgroup's products give, when, and each way of using them wrongly.
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

}  // namespace
