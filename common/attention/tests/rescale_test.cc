// A softmax that keeps an old maximum is the softmax: the decision case by case, then rows against double precision.
#include "common/attention/rescale.h"

#include <gtest/gtest.h>

#include <numeric>

#include "common/attention/numerics/online_row.h"
#include "common/gpu/launch.h"

namespace attention {
namespace {

using namespace numerics;
using gpu::bf16;
using gpu::fp16;

constexpr float infinity = gpu::infinity;
const float nan = std::nanf("");

using Unit = Exp2Policy<3, 0>;
using Mixed = Exp2Policy<3, 8>;

void expect_kept(float base, float m, float tau = rescale_threshold) {
    const Rescale rescale = conditional_rescale(base, m, tau);
    EXPECT_EQ(rescale.base, base) << base << ", " << m;
    EXPECT_EQ(rescale.alpha, 1) << base << ", " << m;
}

void expect_moved(float base, float m, float alpha, float tau = rescale_threshold) {
    const Rescale rescale = conditional_rescale(base, m, tau);
    EXPECT_EQ(rescale.base, m) << base << ", " << m;
    EXPECT_EQ(rescale.alpha, alpha) << base << ", " << m;
}

TEST(ConditionalRescale, WorkedExample) {
    expect_kept(3, 3);
    expect_kept(3, 10);
    expect_kept(3, 11);  // 8 is not more than tau
    expect_moved(3, 12, 0x1p-9f);
    expect_moved(3, std::nextafter(11.0f, 12.0f), gpu::ex2_approx_ftz(3 - std::nextafter(11.0f, 12.0f)));
    EXPECT_NEAR(log_sum_exp(12, (1 + 128) / 512.0f + 1), std::log(8.0 + 1024 + 4096), 1e-6);
    EXPECT_NEAR(log_sum_exp(3, 1 + 128 + 256), std::log(8.0 + 1024 + 2048), 1e-6);
    expect_moved(3, 4, 0.5f, 0);
    expect_kept(3, 3, 0);
}

TEST(ConditionalRescale, TheFirstKeySeenIsTheBase) {
    expect_kept(-infinity, -infinity);  // none yet
    for (float m : {-1e30f, -5.0f, 0.0f, 5.0f, 1e30f}) expect_moved(-infinity, m, 0);
}

// 2^27 + 24 is no float and would be rounded to 2^27 + 32: base + tau would take 16 for 8.
TEST(ConditionalRescale, FarFromZeroTheThresholdIsStillExact) {
    expect_moved(0x1p27f + 16, 0x1p27f + 32, 0x1p-16f);
    expect_moved(-0x1p30f, 0x1p30f, 0);
    expect_kept(0x1p30f, 0x1p30f);
}

TEST(ConditionalRescale, NaNRescales) {
    for (auto [base, m] : {std::pair{0.0f, nan}, {-infinity, nan}, {nan, nan}, {nan, 5.0f}}) {
        const Rescale rescale = conditional_rescale(base, m);
        EXPECT_TRUE(std::isnan(rescale.alpha) && rescale.alpha != 1);
        EXPECT_EQ(std::isnan(rescale.base), std::isnan(m));
    }
}

TEST(ConditionalRescale, OnlyRescalesAreCountedAsSuch) {
    gpu::reset_counters();
    conditional_rescale(-infinity, -infinity);
    conditional_rescale(-infinity, 3);
    conditional_rescale(3, 11);
    conditional_rescale(3, 12);
    conditional_rescale(3, 3);
    const std::optional<gpu::Counters> counted = gpu::counters();
    if (!counted) GTEST_SKIP() << "A GPU counts nothing.";
    EXPECT_EQ(counted->rescales, 2u);
    EXPECT_EQ(counted->skipped_rescales, 3u);
    EXPECT_EQ(counted->exponentials, 5u);  // alpha, needed or not
}

// ---- rows ----

constexpr int rows = 8, keys = 2048, blocks = keys / 128;

struct Law {
    const char* name;
    Rows rows;
};

// Scores with a standard deviation of 1.4 and of 12 (base 2), with outliers, and those that rise by 0.99 tau from block to block.
std::vector<Law> laws(float tau) {
    const double rising = 0.99 * std::max(tau, 1.0f) * 64 / 128 / gpu::log2_e;
    return {{"normal", draw_rows(rows, keys, InputLaw::normal, 0.125, 1)},
            {"wide", draw_rows(rows, keys, InputLaw::normal, 1, 2)},
            {"outliers", draw_rows(rows, keys, InputLaw::outliers, 0.125, 3)},
            {"rising", draw_rows(rows, keys, InputLaw::rising, rising, 4)}};
}

// Each weight is wrong by half a unit of T, by its exponential and its rounded exponent; fp16 is coarser below 2^-14; sums
// of fp32 by half a unit for each term, in U and in l.
template <class T>
double largest_error_allowed(double terms, double l, double exponential) {
    const double unit = std::is_same_v<T, bf16> ? 0x1p-8 : std::is_same_v<T, fp16> ? 0x1p-11 : 0;
    const double absolute = std::is_same_v<T, fp16> ? 0x1p-25 * keys * 5 / l : 0;
    return (unit + 2 * exponential + 2 * keys * 0x1p-24 + 0x1p-16) * terms + absolute;
}

template <class T, class Policy>
void expect_softmax(float tau, double exponential) {
    for (const Law& law : laws(tau)) {
        for (int i = 0; i < rows; ++i) {
            const Outcome exact = exact_row(law.rows.row(i), law.rows.V);
            const Outcome online = online_row<T, Policy>(law.rows.row(i), law.rows.V, tau);
            HostTensor magnitudes = law.rows.V;
            for (float& v : magnitudes.values) v = std::abs(v);
            const Outcome terms = exact_row(law.rows.row(i), magnitudes);
            for (int n = 0; n < magnitudes.d; ++n)
                EXPECT_NEAR(online.O[n], exact.O[n], largest_error_allowed<T>(terms.O[n], 1, exponential))
                    << law.name << ", tau = " << tau << ", row " << i;
            EXPECT_NEAR(online.L, exact.L, exponential + keys * 0x1p-24 + std::abs(exact.L) * 0x1p-22)
                << law.name << ", tau = " << tau << ", row " << i;
        }
    }
}

TEST(ConditionalRescale, RowsAreTheSoftmax) {
    for (float tau : {0.0f, 1.0f, 8.0f, 15.0f}) {
        expect_softmax<float, Unit>(tau, 0x1p-22);
        expect_softmax<fp16, Unit>(tau, 0x1p-22);
        expect_softmax<bf16, Mixed>(tau, 8.77e-5);
    }
}

int rescales(const Outcome& outcome) {  // after the first key
    return std::accumulate(outcome.rescaled.begin() + 1, outcome.rescaled.end(), 0);
}

// Each rescale lifts the base by more than tau, so that there are at most (last maximum - first maximum) / tau.
TEST(ConditionalRescale, RescalesAreFewerTheLargerTauIs) {
    for (const Law& law : laws(8)) {
        for (int i = 0; i < rows; ++i) {
            const auto s = law.rows.row(i);
            const float first = *std::max_element(s.begin(), s.begin() + 128),
                        last = *std::max_element(s.begin(), s.end());
            int before = blocks;
            for (float tau : {0.0f, 1.0f, 2.0f, 4.0f, 8.0f, 12.0f}) {
                const int count = rescales(online_row<bf16, Unit>(s, law.rows.V, tau));
                EXPECT_LE(count, before) << law.name;
                EXPECT_LE(count * tau, last - first) << law.name << ", tau = " << tau;
                before = count;
            }
        }
    }
}

// The adversary: 0.99 tau a block is passed over once and is too much the next time.
TEST(ConditionalRescale, ScoresThatRiseByNearlyTauHalveTheRescales) {
    const Law rising = laws(8)[3];
    for (int i = 0; i < rows; ++i) {
        const auto s = rising.rows.row(i);
        EXPECT_EQ(rescales(online_row<bf16, Unit>(s, rising.rows.V, 0)), blocks - 1);
        const Outcome outcome = online_row<bf16, Unit>(s, rising.rows.V, 8);
        for (int block = 0; block < blocks; ++block) EXPECT_EQ(outcome.rescaled[block], block % 2 == 0) << block;
    }
}

// The largest of 2048 such scores is below 8: no two maxima are more than 8 apart.
TEST(ConditionalRescale, NormalScoresRescaleInTheFirstBlockAlone) {
    const Rows normal = draw_rows(64, keys, InputLaw::normal, 0.125, 5);
    for (int i = 0; i < normal.rows; ++i)
        EXPECT_EQ(rescales(online_row<bf16, Unit>(normal.row(i), normal.V, 8)), 0) << i;
}

// ---- overflow ----

// A second block that is `rise` above the first.
Rows two_blocks(float rise) {
    Rows result = draw_rows(1, 256, InputLaw::normal, 0, 6);
    std::fill(result.scores.begin() + 128, result.scores.end(), rise);
    return result;
}

TEST(ConditionalRescale, NoWeightOrSumOverflowsAtEight) {
    for (const Law& law : laws(8)) {
        for (int i = 0; i < rows; ++i) {
            const Outcome half = online_row<fp16, Unit>(law.rows.row(i), law.rows.V, 8);
            EXPECT_LE(half.largest_weight, 256) << law.name;
            EXPECT_LE(half.largest_sum, 256 * keys * 8.0) << law.name;  // |V| < 8
            EXPECT_LE((online_row<bf16, Mixed>(law.rows.row(i), law.rows.V, 8).largest_weight), 257) << law.name;
        }
    }
    EXPECT_EQ((online_row<fp16, Unit>(two_blocks(8).row(0), two_blocks(8).V, 8).largest_weight), 256);
}

TEST(ConditionalRescale, Fp16OverflowsAtSixteen) {
    const Rows fifteen = two_blocks(15), sixteen = two_blocks(16);
    EXPECT_EQ((online_row<fp16, Unit>(fifteen.row(0), fifteen.V, 15).largest_weight), 32768);
    EXPECT_EQ((online_row<fp16, Unit>(sixteen.row(0), sixteen.V, 15).largest_weight), 1);
    const Outcome half = online_row<fp16, Unit>(sixteen.row(0), sixteen.V, 16);
    EXPECT_EQ(half.largest_weight, infinity);
    EXPECT_FALSE(std::isfinite(half.O[0]));
    const Outcome brain = online_row<bf16, Unit>(sixteen.row(0), sixteen.V, 16);
    EXPECT_EQ(brain.largest_weight, 65536);
    EXPECT_TRUE(std::isfinite(brain.O[0]));
}

// ---- what is hidden, what is no number ----

TEST(ConditionalRescale, ARowThatSeesNoKeyIsZero) {
    Rows hidden = two_blocks(0);
    hidden.scores.assign(256, -infinity);
    const Outcome outcome = online_row<bf16, Mixed>(hidden.row(0), hidden.V, 8);
    EXPECT_EQ(outcome.O, std::vector<double>(64));
    EXPECT_EQ(outcome.L, -infinity);
    EXPECT_EQ(outcome.rescaled, std::vector<bool>(2));
}

TEST(ConditionalRescale, HiddenBlocksBeforeTheFirstKeyChangeNothing) {
    Rows late = two_blocks(-100);
    std::fill(late.scores.begin(), late.scores.begin() + 128, -infinity);
    const Outcome outcome = online_row<bf16, Mixed>(late.row(0), late.V, 8), exact = exact_row(late.row(0), late.V);
    EXPECT_EQ(outcome.rescaled, (std::vector<bool>{false, true}));
    EXPECT_NEAR(outcome.L, exact.L, 1e-4);
    for (int n = 0; n < 64; ++n) EXPECT_NEAR(outcome.O[n], exact.O[n], 1e-6);
}

TEST(ConditionalRescale, ANaNReachesTheWholeRow) {
    for (int key : {0, 5, 127, 128, 255}) {  // computed by the unit and by polynomials, in the first block and later
        Rows bad = two_blocks(1);
        bad.scores[key] = nan;
        const Outcome outcome = online_row<bf16, Exp2Policy<3, 32>>(bad.row(0), bad.V, 8);
        EXPECT_TRUE(std::isnan(outcome.L)) << key;
        for (double o : outcome.O) EXPECT_TRUE(std::isnan(o)) << key;
    }
}

}  // namespace
}  // namespace attention
