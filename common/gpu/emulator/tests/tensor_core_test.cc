// The tensor core against a second model in integers, written from the rules in words: products exact; exponents as
// encoded; zero terms left out; E the largest exponent; every term cut toward zero to a multiple of 2^(E - 25); the
// exact sum cut toward zero to 24 significant bits, fewer where the result is subnormal. Zero is +0; NaN, 0 * inf and
// inf - inf are 0x7FFFFFFF. Every tile goes through both forms, that of mma.sync and the wide one of wgmma.
#include "common/gpu/emulator/tensor_core.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "common/gpu/emulator/number_types.h"

namespace {

/// significand * 2^exponent, with the exponent of the leading place kept apart.
struct Number {
    bool negative, nan, infinite;
    std::int64_t significand;  // integer, fraction_bits places after the point
    int exponent, fraction_bits;
};

Number parse(std::uint32_t code, int bits, int fraction_bits) {
    const int exponent_bits = bits - 1 - fraction_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int field = static_cast<int>(code >> fraction_bits & ((1u << exponent_bits) - 1));
    const std::int64_t fraction = code & ((1u << fraction_bits) - 1);
    Number x{(code >> (bits - 1) & 1) != 0, false, false, fraction, 1 - bias, fraction_bits};
    if (field == (1 << exponent_bits) - 1) {
        (fraction != 0 ? x.nan : x.infinite) = true;
    } else if (field > 0) {
        x.significand += std::int64_t{1} << fraction_bits;
        x.exponent = field - bias;
    }
    return x;
}

std::uint32_t model(const std::vector<Number>& a, const std::vector<Number>& b, const Number& c) {
    constexpr std::uint32_t nan = 0x7FFFFFFF, infinity = 0x7F800000, sign = 0x80000000;
    std::vector<Number> terms{c};
    for (std::size_t k = 0; k < a.size(); ++k) {
        const bool a_zero = !a[k].infinite && a[k].significand == 0, b_zero = !b[k].infinite && b[k].significand == 0;
        if ((a[k].infinite && b_zero) || (b[k].infinite && a_zero)) return nan;
        terms.push_back({a[k].negative != b[k].negative, a[k].nan || b[k].nan, a[k].infinite || b[k].infinite,
                         a[k].significand * b[k].significand, a[k].exponent + b[k].exponent,
                         a[k].fraction_bits + b[k].fraction_bits});
    }
    bool plus = false, minus = false;
    int E = -100000;
    for (const Number& x : terms) {
        if (x.nan) return nan;
        if (x.infinite) (x.negative ? minus : plus) = true;
        if (x.significand != 0) E = std::max(E, x.exponent);
    }
    if (plus && minus) return nan;
    if (plus || minus) return infinity | (minus ? sign : 0);

    std::int64_t sum = 0;  // in units of 2^(E - 25)
    for (const Number& x : terms) {
        if (x.significand == 0) continue;
        const int shift = x.exponent - x.fraction_bits - (E - 25);
        const std::int64_t cut = shift >= 0 ? x.significand << shift : -shift > 62 ? 0 : x.significand >> -shift;
        sum += x.negative ? -cut : cut;
    }
    if (sum == 0) return 0;
    std::uint64_t magnitude = static_cast<std::uint64_t>(std::abs(sum));
    int unit = E - 25;  // magnitude * 2^unit
    const int length = 64 - std::countl_zero(magnitude);
    const int wanted = std::max(unit + length - 24, -149);  // unit of the result: 24 bits, or the subnormal spacing
    if (wanted > unit) {
        magnitude = wanted - unit > 63 ? 0 : magnitude >> (wanted - unit);
        unit = wanted;
    }
    if (length + (E - 25) > 128) return infinity | (sum < 0 ? sign : 0);
    const float result = static_cast<float>(std::ldexp(static_cast<double>(magnitude), unit));
    return std::bit_cast<std::uint32_t>(result) | (sum < 0 ? sign : 0);
}

class TensorCore : public testing::TestWithParam<bool> {
  protected:
    std::mt19937_64 random{2026};
    bool bf16 = GetParam();

    std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); }
    int fraction_bits() const { return bf16 ? 7 : 10; }
    int fields() const { return bf16 ? 255 : 31; }
    std::uint16_t code(int field, std::uint32_t fraction, bool negative) const {
        return static_cast<std::uint16_t>(negative << 15 | field << fraction_bits() |
                                          (fraction & ((1u << fraction_bits()) - 1)));
    }

    using A = std::uint16_t[16][16];
    using B = std::uint16_t[16][8];
    using D = float[16][8];

    void compare(const A& a, const B& b, const D& c) {
        D d;
        std::copy(&c[0][0], &c[0][0] + 128, &d[0][0]);
        emulator::multiply_accumulate(bf16, a, b, d);
        for (int i = 0; i < 16; ++i)
            for (int j = 0; j < 8; ++j)
                ASSERT_EQ(std::bit_cast<std::uint32_t>(d[i][j]), expected(a[i], b, j, c[i][j]))
                    << "row " << i << ", column " << j;
        wide_a.insert(wide_a.end(), &a[0][0], &a[0][0] + 256);
        wide_b.insert(wide_b.end(), &b[0][0], &b[0][0] + 128);
        wide_c.insert(wide_c.end(), &c[0][0], &c[0][0] + 128);
        if (wide_a.size() == 64 * 16) compare_wide();
    }

    std::uint32_t expected(const std::uint16_t (&a)[16], const B& b, int j, float c) const {
        std::vector<Number> row, column;
        for (int k = 0; k < 16; ++k) {
            row.push_back(parse(a[k], 16, fraction_bits()));
            column.push_back(parse(b[k][j], 16, fraction_bits()));
        }
        return model(row, column, parse(std::bit_cast<std::uint32_t>(c), 32, 23));
    }

    /// The last four tiles as one product: each A meets each B, the accumulators in another order.
    void compare_wide() {
        constexpr int blocks = 4;
        std::uint16_t a[64][16], b[blocks][16][8];
        float c[blocks][64][8], d[blocks][64][8];
        std::copy(wide_a.begin(), wide_a.end(), &a[0][0]);
        std::copy(wide_b.begin(), wide_b.end(), &b[0][0][0]);
        for (int i = 0; i < blocks * 64 * 8; ++i) (&c[0][0][0])[i] = (&d[0][0][0])[i] = wide_c[i * 5 % wide_c.size()];
        emulator::multiply_accumulate_wide(bf16, a, b, d, 8 * blocks);
        for (int block = 0; block < blocks; ++block)
            for (int i = 0; i < 64; ++i)
                for (int j = 0; j < 8; ++j)
                    ASSERT_EQ(std::bit_cast<std::uint32_t>(d[block][i][j]), expected(a[i], b[block], j, c[block][i][j]))
                        << "row " << i << ", column " << 8 * block + j;
        wide_a.clear();
        wide_b.clear();
        wide_c.clear();
    }
    std::vector<std::uint16_t> wide_a, wide_b;
    std::vector<float> wide_c;

    /// `rounds` tiles whose elements come from the generators.
    template <class Element, class Accumulator>
    void compare_random(int rounds, Element element, Accumulator accumulator) {
        for (int round = 0; round < rounds && !HasFatalFailure(); ++round) {
            A a;
            B b;
            D c;
            for (auto& row : a)
                for (auto& x : row) x = element();
            for (auto& row : b)
                for (auto& x : row) x = element();
            for (auto& row : c)
                for (auto& x : row) x = accumulator();
            compare(a, b, c);
        }
    }
    float any_float() {
        const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
        return std::isfinite(x) ? x : 0.0f;
    }
};

TEST_P(TensorCore, NarrowExponentsTiny) {
    compare_random(
        400, [&] { return code(fields() / 2 - 4 + below(8), below(1 << 10), below(2)); },
        [&] {
            return static_cast<float>(std::ldexp(1.0 + random() / 1.8446744073709552e19, below(16) - 8)) *
                   (below(2) ? 1 : -1);
        });
}

TEST_P(TensorCore, WideExponents) {
    compare_random(
        600, [&] { return code(below(fields()), below(1 << 10), below(2)); }, [&] { return any_float(); });
}

TEST_P(TensorCore, SubnormalsAndZeros) {
    compare_random(
        400, [&] { return below(3) == 0 ? code(0, 0, below(2)) : code(below(4), below(1 << 10), below(2)); },
        [&] {
            const auto bits = static_cast<std::uint32_t>(random());
            return std::bit_cast<float>(below(3) == 0 ? bits & 0x80000000u : bits & 0x82FFFFFFu);
        });
}

TEST_P(TensorCore, ProductsThatCancel) {
    for (int round = 0; round < 400 && !HasFatalFailure(); ++round) {
        A a;
        B b;
        D c;
        for (int i = 0; i < 16; ++i)
            for (int k = 0; k < 16; ++k)  // the second half repeats the first; b has the sign
                a[i][k] = k < 8 ? code(fields() / 4 + below(fields() / 2), below(1 << 10), below(2)) : a[i][k - 8];
        for (int k = 0; k < 16; ++k)
            for (int j = 0; j < 8; ++j)
                b[k][j] = k < 8 ? code(fields() / 4 + below(fields() / 2), below(1 << 10), below(2))
                                : static_cast<std::uint16_t>(b[k - 8][j] ^ 0x8000u ^ (below(8) == 0));
        for (auto& row : c)
            for (float& x : row) x = below(2) ? 0.0f : below(2) ? -0.0f : any_float() * 1e-30f;
        compare(a, b, c);
    }
}

TEST_P(TensorCore, NearOverflow) {
    compare_random(
        300, [&] { return code(fields() - 1 - below(3), below(1 << 10), below(2)); },
        [&] { return std::bit_cast<float>((0x7F7FFFFFu - below(4)) | below(2) << 31); });
    // c = FLT_MAX and one product: half a unit is cut, a whole one overflows.
    const int bias = bf16 ? 127 : 15;
    for (const int exponent : {103, 104}) {
        if (!bf16) break;  // fp16 products do not reach there
        A a = {};
        B b = {};
        D c = {};
        a[0][0] = code(exponent + bias - 10, 0, false);
        b[0][0] = code(10 + bias, 0, false);
        c[0][0] = 0x1.FFFFFEp127f;
        compare(a, b, c);
        D d = {{0x1.FFFFFEp127f}};
        emulator::multiply_accumulate(bf16, a, b, d);
        EXPECT_EQ(d[0][0], exponent == 103 ? 0x1.FFFFFEp127f : INFINITY);
    }
}

TEST_P(TensorCore, InfinitiesAndNaN) {
    compare_random(
        600,
        [&] {
            const std::uint32_t kind = below(40);
            return kind == 0   ? code(fields(), 0, below(2))
                   : kind == 1 ? code(fields(), below(1 << 10), below(2))
                   : kind == 2 ? code(0, 0, below(2))
                               : code(below(fields()), below(1 << 10), below(2));
        },
        [&] {
            const std::uint32_t kind = below(20);
            return kind == 0 ? INFINITY : kind == 1 ? -INFINITY : kind == 2 ? NAN : any_float();
        });
}

/// Sixteen products just below the most that they can be, and c as large: the sum fills 31 bits and more.
TEST_P(TensorCore, LargestSums) {
    const auto fraction = [&] { return below(6) == 0 ? below(1 << 10) : (1u << 10) - 1 - below(2); };
    compare_random(
        200, [&] { return code(fields() / 2, fraction(), below(40) == 0); },
        [&] { return std::bit_cast<float>(below(2) << 31 | (127 + below(4)) << 23 | (0x7FFFFF - below(8))); });
    compare_random(
        200, [&] { return code(fields() / 2, fraction(), below(16) == 0); },
        [&] { return std::bit_cast<float>((127 + below(4)) << 23 | (0x7FFFFF - below(8))); });
}

/// Products and accumulators around the exponents where the wide form hands over to the other.
TEST_P(TensorCore, EdgesOfTheWideForm) {
    const auto accumulator = [&] {
        return std::bit_cast<float>(below(2) << 31 | (25 + below(5)) << 23 | below(1 << 23));
    };
    for (const int middle : bf16 ? std::vector<int>{127 - 50, 127 + 60, 127 + 63} : std::vector<int>{2})
        compare_random(
            200,
            [&] {
                return below(4) == 0 ? code(0, 0, below(2)) : code(middle - 1 + below(3), below(1 << 10), below(2));
            },
            [&] { return below(3) == 0 ? 0.0f : accumulator(); });
    compare_random(
        200, [&] { return code(0, 0, below(2)); }, accumulator);
}

/// Neighbours of every kind in one product.
TEST_P(TensorCore, MixedTilesTiny) {
    for (int round = 0; round < 100 && !HasFatalFailure(); ++round) {
        const std::uint32_t kind = below(4);
        compare_random(
            1,
            [&] {
                return kind == 0   ? code(below(fields() + 1), below(1 << 10), below(2))
                       : kind == 1 ? code(below(fields()), below(1 << 10), below(2))
                       : kind == 2 ? code(0, 0, below(2))
                                   : code(fields() / 2 - 4 + below(8), below(1 << 10), below(2));
            },
            [&] {
                return kind == 2 ? 0.0f : kind == 3 ? 4.0f * (below(1 << 24) - (1 << 23)) * 0x1p-23f : any_float();
            });
    }
}

TEST_P(TensorCore, SignedZerosTiny) {
    for (const std::uint16_t zero : {0x0000, 0x8000})
        for (const float c0 : {0.0f, -0.0f}) {
            A a;
            B b;
            D d;
            for (auto& row : a) std::fill(std::begin(row), std::end(row), zero);
            for (auto& row : b) std::fill(std::begin(row), std::end(row), code(fields() / 2, 0, false));
            for (auto& row : d) std::fill(std::begin(row), std::end(row), c0);
            emulator::multiply_accumulate(bf16, a, b, d);
            for (auto& row : d)
                for (float x : row) EXPECT_EQ(std::bit_cast<std::uint32_t>(x), 0u);
        }
}

INSTANTIATE_TEST_SUITE_P(Types, TensorCore, testing::Bool(),
                         [](const auto& info) { return info.param ? "bf16" : "fp16"; });

}  // namespace
