// 2^x by polynomial: its error over the floats, where it is exact, and whose turn it is.
#include "common/attention/exp2.h"

#include <gtest/gtest.h>

#include <array>
#include <cfloat>
#include <random>

#include "common/attention/numerics/exp2_error.h"
#include "common/gpu/launch.h"

namespace attention {
namespace {

using gpu::FloatPair;
using numerics::Exp2Error;

constexpr float infinity = gpu::infinity;
const float nan = std::nanf("");

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

// f(x) for each degree.
template <class F>
void for_each_degree(F f) {
    f(2, exp2_polynomial<2>);
    f(3, exp2_polynomial<3>);
    f(4, exp2_polynomial<4>);
    f(5, exp2_polynomial<5>);
}

// FlashAttention-4 (2026) reports 8.77e-5, 3.05e-6 and 1.44e-7 for degree 3 to 5 in fp32, and 3.90e-3 for degree 3 rounded
// to bf16; of degree 2 the theory allows 2.05e-3 and the arithmetic adds no more than to degree 3. bf16 alone makes
// 2^-8 / (1 + 2^-8). For -1/2 < x < 0, f is rounded to a multiple of 2^-24: 2^f is wrong by 2^-25 ln 2 of itself.
void expect_small(int degree, const Exp2Error& error, bool rounded_f) {
    const std::array limit = {2.06e-3, 8.77e-5, 3.05e-6, 1.44e-7};
    EXPECT_LE(error.relative, limit[degree - 2] + (rounded_f ? 0x1p-25 * 0.6932 : 0)) << "degree " << degree;
    EXPECT_LE(error.relative, exp2_error(degree)) << "degree " << degree;
    EXPECT_LE(error.bf16, degree == 2 ? 0x1p-8 + 2.06e-3 : 3.905e-3) << "degree " << degree;
    EXPECT_EQ(error.fall, 0) << "degree " << degree;
}

void expect_small_for_each_degree(float first, float last, std::uint32_t stride) {
    const bool rounded_f = std::signbit(first) && first > -0.5f;
    for_each_degree([&](int degree, auto power) {
        expect_small(degree, numerics::exp2_error(first, last, stride, power), rounded_f);
    });
}

TEST(Exp2Polynomial, ErrorOfASample) {
    expect_small_for_each_degree(-0.0f, -0.5f, 1499);
    expect_small_for_each_degree(-0.5f, -126, 149);
    expect_small_for_each_degree(0, 8, 1499);
    expect_small_for_each_degree(8, 127.9f, 149);
}

// No polynomial with p(0) = 1 has a smaller error: a figure below it would mean that the comparison is blind.
TEST(Exp2Polynomial, ErrorIsNotBelowThatOfTheBestPolynomial) {
    const std::array least = {2.05e-3, 8.55e-5, 2.89e-6, 8.2e-8};
    for_each_degree([&](int degree, auto power) {
        EXPECT_GE(numerics::exp2_error(-1, -2, 7, power).relative, least[degree - 2]) << "degree " << degree;
    });
    EXPECT_GE(numerics::exp2_error(-1, -2, 7, exp2_polynomial<3>).bf16, 0x1p-8 / (1 + 0x1p-8) - 1e-6);
}

TEST(Exp2Polynomial, ReferenceInDoublePrecisionIsGoodEnough) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> x(-126, 128);
    for (int i = 0; i < 100000; ++i) {
        const float y = x(random);
        EXPECT_NEAR(std::exp2(double(y)) / std::exp2(static_cast<long double>(y)), 1, 1e-15) << y;
    }
}

TEST(Exp2Polynomial, EveryFloatFromMinusOneHalfSlow) { expect_small_for_each_degree(-0.5f, -126, 1); }
TEST(Exp2Polynomial, EveryFloatToMinusOneHalfSlow) { expect_small_for_each_degree(-0x1p-25f, -0.5f, 1); }
TEST(Exp2Polynomial, EveryFloatToEightSlow) { expect_small_for_each_degree(0x1p-25f, 8, 1); }

// Closer to 0 there is one value for all floats, and 2^x lies between those of the ends.
void expect_constant(float first, float last) {
    for_each_degree([&](int degree, auto power) {
        const std::uint32_t expected = bits(power(first));
        std::int64_t others = 0;
        for (std::uint32_t x = bits(first); x <= bits(last); ++x)
            others += bits(power(std::bit_cast<float>(x))) != expected;
        EXPECT_EQ(others, 0) << "degree " << degree;
        expect_small(degree, numerics::exp2_error(first, last, bits(last) - bits(first), power), std::signbit(first));
    });
}
TEST(Exp2Polynomial, EverySmallFloatSlow) { expect_constant(0x1p-76f, 0x1p-25f); }
TEST(Exp2Polynomial, EveryTinyFloatSlow) { expect_constant(0, 0x1p-76f); }
TEST(Exp2Polynomial, EverySmallNegativeFloatSlow) { expect_constant(-0x1p-76f, -0x1p-25f); }
TEST(Exp2Polynomial, EveryTinyNegativeFloatSlow) { expect_constant(-0x1p-149f, -0x1p-76f); }

TEST(Exp2Polynomial, ExactAtIntegers) {
    for_each_degree([](int degree, auto power) {
        for (int n = -126; n <= 127; ++n) EXPECT_EQ(power(float(n)), std::ldexp(1.0f, n)) << "degree " << degree;
        EXPECT_EQ(power(-0.0f), 1);
        EXPECT_EQ(power(128), infinity);
    });
}

TEST(Exp2Polynomial, ZeroBelowTheNormalNumbers) {
    for_each_degree([](int degree, auto power) {
        for (float x : {std::nextafter(-126.0f, -200.0f), -126.5f, -127.0f, std::nextafter(-127.0f, -200.0f), -128.0f,
                        -150.0f, -1e30f, -FLT_MAX, -infinity})
            EXPECT_EQ(bits(power(x)), 0u) << "degree " << degree << ", x = " << x;
    });
}

// Added to the exponent as an integer, n would make 3.4e38 of it.
TEST(Exp2Polynomial, NaNStaysNaN) {
    for_each_degree([](int degree, auto power) {
        for (std::uint32_t x : {0x7FFFFFFFu, 0x7FC00000u, 0xFFC00000u, 0xFFFFFFFFu, 0x7FC12345u})
            EXPECT_TRUE(std::isnan(power(std::bit_cast<float>(x)))) << "degree " << degree << ", " << std::hex << x;
    });
    const FloatPair pair = exp2_polynomial_x2<3>({nan, -2});
    EXPECT_TRUE(std::isnan(pair[0]));
    EXPECT_EQ(pair[1], 0.25f);
}

// The whole error of p stands at f = 1: 2^x is too small just below an integer, and steps up there.
TEST(Exp2Polynomial, StepsUpAtIntegers) {
    const std::array step = {2.05e-3, 8.56e-5, 2.90e-6, 8.2e-8};
    for_each_degree([&](int degree, auto power) {
        for (float n : {-100.0f, -1.0f, 0.0f, 5.0f}) {
            const double below = power(std::nextafter(n, -200.0f));
            const double expected = (1 - step[degree - 2]) * std::exp2(double(std::nextafter(n, -200.0f)));
            EXPECT_NEAR(below / expected, 1, 0.01 * step[degree - 2] + 0x1p-23) << "degree " << degree;
            EXPECT_LT(below, power(n)) << "degree " << degree;
        }
    });
}

template <int degree>
void expect_equal_pairs() {
    std::mt19937 random(degree);
    for (int i = 0; i < 100000; ++i) {
        // Every other one anywhere, the others in the range that softmax asks for.
        const auto draw = [&] {
            const auto word = std::uint32_t(random());
            return i % 2 ? std::bit_cast<float>(word) : float(word) * -0x1p-27f + 8;
        };
        const FloatPair x = {draw(), draw()}, pair = exp2_polynomial_x2<degree>(x);
        for (int e = 0; e < 2; ++e) {
            if (std::isnan(x[e])) {
                EXPECT_TRUE(std::isnan(pair[e]));
            } else if (x[e] < 129) {
                EXPECT_EQ(bits(pair[e]), bits(exp2_polynomial<degree>(x[e]))) << x[e];
            }
        }
    }
}

TEST(Exp2Polynomial, PairsAreScalarsToTheBit) {
    expect_equal_pairs<2>();
    expect_equal_pairs<3>();
    expect_equal_pairs<4>();
    expect_equal_pairs<5>();
}

// Which elements of a row are polynomials, found out by a number that the two ways do not agree on.
template <int of_32>
std::vector<bool> polynomials_of_row(int n) {
    const float x = -0.3f;
    std::vector<bool> result;
    for (int i = 0; i < n; i += 2) {
        const FloatPair y = Exp2Policy<3, of_32>::exp2({x, x}, i);
        for (int e = 0; e < 2; ++e) {
            result.push_back(y[e] == exp2_polynomial<3>(x));
            EXPECT_TRUE(result.back() || y[e] == gpu::ex2_approx_ftz(x));
        }
    }
    return result;
}

template <int of_32>
void expect_share() {
    const std::vector<bool> row = polynomials_of_row<of_32>(160);
    for (int begin = 0; begin <= 128; begin += 2)
        EXPECT_EQ(std::count(row.begin() + begin, row.begin() + begin + 32, true), of_32) << begin;
    for (int n = 0; n <= 160; n += 2)
        EXPECT_EQ((Exp2Policy<3, of_32>::polynomials(n)), std::count(row.begin(), row.begin() + n, true)) << n;
    // Evenly spread: of any 8, a quarter of 32, no more than a pair too many or too few.
    for (int begin = 0; begin <= 152; begin += 2)
        EXPECT_NEAR(std::count(row.begin() + begin, row.begin() + begin + 8, true), of_32 / 4.0, 2.0) << begin;
}

TEST(Exp2Policy, OfAny32ConsecutiveElementsTheShareIsExact) {
    EXPECT_NE(exp2_polynomial<3>(-0.3f), gpu::ex2_approx_ftz(-0.3f));
    expect_share<0>();
    expect_share<2>();
    expect_share<4>();
    expect_share<6>();
    expect_share<8>();
    expect_share<10>();
    expect_share<16>();
    expect_share<30>();
    expect_share<32>();
}

TEST(Exp2Policy, BothKindsAreCounted) {
    gpu::reset_counters();
    for (int i = 0; i < 128; i += 2) Exp2Policy<3, 6>::exp2({-1, -2}, i);
    const std::optional<gpu::Counters> counted = gpu::counters();
    if (!counted) GTEST_SKIP() << "A GPU counts no exponentials.";
    EXPECT_EQ(counted->polynomials, 24u);
    EXPECT_EQ(counted->exponentials, 104u);
}

}  // namespace
}  // namespace attention
