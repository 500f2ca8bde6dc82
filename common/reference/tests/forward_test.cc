// The forward reference against values that can be worked out on paper. Names that begin with B and a number are faults
// that users reported against public attention kernels.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/reference/reference.h"
#include "common/reference/tests/small_problem.h"

namespace {

using attention::Inputs;
using attention::Problem;
using small::causal;
using small::problem;
using small::set_first_column;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

reference::Forward forward(const Problem& problem, const Inputs& inputs, int b = 0, int h = 0) {
    return reference::forward(problem, inputs, b, h, small::rows(problem.queries(b)));
}

// Scores and values of one query with d = 1 in effect.
reference::Forward one_query(const std::vector<double>& scores, const std::vector<double>& values) {
    const Problem p = problem(1, static_cast<int>(scores.size()));
    Inputs inputs = small::zeros(p);
    set_first_column(inputs.Q, [](int) { return 1.0; });
    set_first_column(inputs.K, [&](int j) { return scores[j]; });
    set_first_column(inputs.V, [&](int j) { return values[j]; });
    return forward(p, inputs);
}

// Q = K = 0 and V_j = j: a query that sees keys 0 ... n has O = n / 2 and L = ln(n + 1).
Inputs prefix_probe(const Problem& problem) {
    Inputs inputs = small::zeros(problem);
    set_first_column(inputs.V, [](int j) { return j; });
    return inputs;
}

TEST(Forward, ExponentialsOneTwoFourEight) {
    const auto result = one_query({0.0, std::log(2.0), std::log(4.0), std::log(8.0)}, {1, 2, 3, 4});
    EXPECT_NEAR(result.O.row(0)[0], 49.0 / 15.0, 1e-6);  // the scores are floats
    EXPECT_NEAR(result.L[0], std::log(15.0), 1e-6);
}

TEST(Forward, ScoresOneToFour) {
    const double e = std::exp(-1.0);
    const double l = e * e * e + e * e + e + 1.0;
    EXPECT_NEAR(l, 1.5530, 5e-5);
    const auto result = one_query({1, 2, 3, 4}, {10, 20, 30, 40});
    EXPECT_NEAR(result.O.row(0)[0], (10 * e * e * e + 20 * e * e + 30 * e + 40) / l, 1e-12);
    EXPECT_NEAR(result.O.row(0)[0], 34.93, 5e-3);
    EXPECT_NEAR(result.L[0], 4.0 + std::log(l), 1e-12);
}

TEST(Forward, B02_FirstTileMaximumIsNotZero) {
    const Problem p = causal(problem(128, 128));
    Inputs inputs = prefix_probe(p);
    set_first_column(inputs.Q, [](int) { return 1.0; });
    set_first_column(inputs.K, [](int) { return -200.0; });
    const auto result = forward(p, inputs);
    for (int i = 0; i < 128; ++i) {
        EXPECT_NEAR(result.O.row(i)[0], i / 2.0, 1e-11);
        EXPECT_NEAR(result.L[i], -200.0 + std::log(i + 1.0), 1e-11);
    }
}

TEST(Forward, B03_OneKeyAtHugeScores) {
    Problem p = problem(1, 1, 64);
    p.scale = 0.125f;
    Inputs inputs = small::zeros(p);
    for (attention::HostTensor* tensor : {&inputs.Q, &inputs.K, &inputs.V})
        std::fill(tensor->values.begin(), tensor->values.end(), 133120.0f);
    const auto result = forward(p, inputs);
    EXPECT_EQ(result.O.row(0)[63], 133120.0);
    EXPECT_EQ(result.L[0], 8.0 * 133120.0 * 133120.0);
}

TEST(Forward, B04_MaximumIsSubtracted) {
    const auto result = one_query({1e4, 0.0}, {3, -7});
    EXPECT_EQ(result.O.row(0)[0], 3.0);
    EXPECT_EQ(result.L[0], 1e4);
}

TEST(Forward, B05_RowsThatSeeNoKey) {
    const Problem p = causal(problem(5, 2));
    Inputs inputs = small::zeros(p);
    set_first_column(inputs.V, [](int j) { return j == 0 ? 10 : 30; });
    const auto result = forward(p, inputs);
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(result.O.row(i)[0], 0.0);
        EXPECT_EQ(result.L[i], -infinity);
    }
    EXPECT_EQ(result.O.row(3)[0], 10.0);
    EXPECT_EQ(result.L[3], 0.0);
    EXPECT_EQ(result.O.row(4)[0], 20.0);
    EXPECT_NEAR(result.L[4], std::log(2.0), 1e-15);
}

TEST(Forward, B09_HiddenNanHasNoEffect) {
    Problem p = causal(problem(2, 4));
    Inputs inputs = small::zeros(p);
    set_first_column(inputs.V, [](int j) { return j == 3 ? nan : 1.0f; });
    auto result = forward(p, inputs);
    EXPECT_NEAR(result.O.row(0)[0], 1.0, 1e-15);
    EXPECT_TRUE(std::isnan(result.O.row(1)[0]));
    EXPECT_NEAR(result.L[1], std::log(4.0), 1e-15);  // V has no part in L

    inputs = small::zeros(p);
    set_first_column(inputs.Q, [](int) { return 1.0; });
    set_first_column(inputs.K, [](int j) { return j == 3 ? nan : 0.0f; });
    result = forward(p, inputs);
    EXPECT_NEAR(result.L[0], std::log(3.0), 1e-15);
    EXPECT_TRUE(std::isnan(result.L[1]));
}

TEST(Forward, B10_VisibleNanReachesItsRowsOnly) {
    const Problem p = problem(4, 16, 64);
    Inputs inputs = make_inputs(p, attention::InputLaw::normal, 1);
    const auto clean = forward(p, inputs);
    inputs.Q.row(0, 0, 0)[0] = nan;
    auto result = forward(p, inputs);
    for (int c = 0; c < 64; ++c) {
        EXPECT_TRUE(std::isnan(result.O.row(0)[c]));
        for (int i = 1; i < 4; ++i) EXPECT_EQ(result.O.row(i)[c], clean.O.row(i)[c]);
    }
    inputs = make_inputs(p, attention::InputLaw::normal, 1);
    inputs.K.row(0, 0, 5)[0] = nan;
    result = forward(p, inputs);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(std::isnan(result.O.row(i)[0]) && std::isnan(result.L[i]));
}

TEST(Forward, B12_CausalIsAlignedAtTheBottomRight) {
    const Problem p = causal(problem(2, 5));
    const auto result = forward(p, prefix_probe(p));
    EXPECT_NEAR(result.O.row(0)[0], 1.5, 1e-15);
    EXPECT_NEAR(result.O.row(1)[0], 2.0, 1e-15);
    EXPECT_NEAR(result.L[0], std::log(4.0), 1e-15);
    EXPECT_NEAR(result.L[1], std::log(5.0), 1e-15);
}

TEST(Forward, B14_PrefixProbeOverManyTiles) {
    const Problem p = causal(problem(384, 384));
    const auto result = forward(p, prefix_probe(p));
    for (int i = 0; i < 384; ++i) {
        EXPECT_NEAR(result.O.row(i)[0], i / 2.0, 1e-11);
        EXPECT_NEAR(result.L[i], std::log(i + 1.0), 1e-12);
    }
}

TEST(Forward, B15_OnesProbeAtRaggedLengths) {
    for (int Nk : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129}) {
        const Problem p = problem(3, Nk);
        Inputs inputs = small::zeros(p);
        set_first_column(inputs.V, [](int) { return 1.0; });
        const auto result = forward(p, inputs);
        EXPECT_NEAR(result.O.row(2)[0], 1.0, 1e-14);
        EXPECT_NEAR(result.L[2], std::log(Nk), 1e-14);
    }
}

TEST(Forward, B27_LIsANaturalLogarithmWithTheMaximum) {
    EXPECT_NEAR(one_query(std::vector<double>(8, 0.0), std::vector<double>(8, 0.0)).L[0], 2.0794415, 1e-7);
    EXPECT_NEAR(one_query({5, 5, 5, 5}, {0, 0, 0, 0}).L[0], 6.3862944, 1e-7);
}

TEST(Forward, B33_ScaleZeroAndNegative) {
    Problem p = causal(problem(2, 2));
    p.scale = 0.0f;
    Inputs inputs = small::zeros(p);
    set_first_column(inputs.V, [](int j) { return j == 0 ? 6 : 8; });
    auto result = forward(p, inputs);
    EXPECT_EQ(result.O.row(0)[0], 6.0);
    EXPECT_EQ(result.O.row(1)[0], 7.0);
    EXPECT_EQ(result.L[0], 0.0);
    EXPECT_NEAR(result.L[1], std::log(2.0), 1e-15);

    p = problem(1, 2);
    p.scale = -1.0f;
    inputs = small::zeros(p);
    set_first_column(inputs.Q, [](int) { return 1.0; });
    set_first_column(inputs.K, [](int j) { return j == 0 ? 0 : 100; });
    set_first_column(inputs.V, [](int j) { return j == 0 ? 4 : 9; });
    result = forward(p, inputs);
    EXPECT_NEAR(result.O.row(0)[0], 4.0, 1e-15);
    EXPECT_NEAR(result.L[0], 0.0, 1e-15);
}

TEST(Forward, B34_DefaultScale) {
    Problem p = problem(1, 2, 64);
    p.scale = attention::default_scale(64);
    Inputs inputs = small::zeros(p);
    set_first_column(inputs.Q, [](int) { return 8.0; });
    set_first_column(inputs.K, [](int j) { return j == 0 ? 8.0 : 0.0; });
    set_first_column(inputs.V, [](int j) { return j == 0 ? 1.0 : 0.0; });
    const auto result = forward(p, inputs);
    EXPECT_NEAR(result.O.row(0)[0], 0.9996646, 1e-7);
    EXPECT_NEAR(result.L[0], 8.0003354, 1e-7);
}

TEST(Forward, B43_WindowBoundsAreInclusive) {
    Problem p = problem(4, 4);
    p.window_left = 1;
    p.window_right = 0;
    const auto result = forward(p, prefix_probe(p));
    const double expected[] = {0.0, 0.5, 1.5, 2.5};
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(result.O.row(i)[0], expected[i], 1e-15);
}

TEST(Forward, B51_NoKeysAtAll) {
    const Problem p = problem(3, 0);
    const auto result = forward(p, small::zeros(p));
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(result.O.row(i)[0], 0.0);
        EXPECT_EQ(result.L[i], -infinity);
    }
}

TEST(Forward, ScoreOfMinusInfinityHasNoWeight) {
    auto result = one_query({-infinity, 2.0}, {5, 7});
    EXPECT_EQ(result.O.row(0)[0], 7.0);
    EXPECT_EQ(result.L[0], 2.0);
    result = one_query({-infinity, -infinity}, {5, 7});
    EXPECT_EQ(result.O.row(0)[0], 0.0);
    EXPECT_EQ(result.L[0], -infinity);
}

// Scores of +-1000 become +-2.
TEST(Forward, SoftcapBoundsTheScores) {
    Problem p = problem(1, 2);
    p.scale = 10.0f;
    p.softcap = 2.0f;
    Inputs inputs = small::zeros(p);
    set_first_column(inputs.Q, [](int) { return 1.0; });
    set_first_column(inputs.K, [](int j) { return j == 0 ? 100 : -100; });
    set_first_column(inputs.V, [](int j) { return j; });
    EXPECT_NEAR(forward(p, inputs).O.row(0)[0], 1 / (1 + std::exp(4.0)), 1e-15);
    EXPECT_NEAR(forward(p, inputs).L[0], 2 + std::log1p(std::exp(-4.0)), 1e-15);

    // tanh(ln 3 / 2) = 1/2: the score 2 (ln 3 / 2) becomes 2 / 2.
    set_first_column(inputs.K, [](int j) { return j == 0 ? std::log(3.0) / 10 : 0; });
    EXPECT_NEAR(forward(p, inputs).L[0], std::log(std::exp(1.0) + 1), 1e-7);
}

// Slopes of 4 heads: 1/4, 1/16, 1/64, 1/256. With Q = 0, weights fall geometrically with the distance to the aligned key.
TEST(Forward, AlibiFallsWithTheDistance) {
    Problem p = problem(2, 5);
    p.Hq = 4;
    p.alibi = true;
    Inputs inputs = small::zeros(p);
    set_first_column(inputs.V, [](int j) { return j; });
    for (int h = 0; h < 4; ++h) {
        const double w = std::exp(-std::pow(0.25, h + 1));  // of a neighbour
        const auto result = forward(p, inputs, 0, h);
        const double first = w * w * w + w * w + w + 1 + w, last = w * w * w * w + w * w * w + w * w + w + 1;
        EXPECT_NEAR(result.L[0], std::log(first), 1e-15);  // aligned at key 3
        EXPECT_NEAR(result.L[1], std::log(last), 1e-15);   // at key 4
        EXPECT_NEAR(result.O.row(0)[0], (w * w + 2 * w + 3 + 4 * w) / first, 1e-14);
        EXPECT_NEAR(result.O.row(1)[0], (w * w * w + 2 * w * w + 3 * w + 4) / last, 1e-14);
    }
}

TEST(Forward, QueryHeadsShareTheirGroupsKeys) {
    Problem p = problem(1, 1);
    p.B = 2;
    p.Hq = 6;
    p.Hkv = 2;
    Inputs inputs = small::zeros(p);
    for (int b = 0; b < 2; ++b) {
        for (int h = 0; h < 2; ++h) inputs.V.row(b, h, 0)[0] = static_cast<float>(10 * b + h);
    }
    for (int b = 0; b < 2; ++b) {
        for (int h = 0; h < 6; ++h) EXPECT_EQ(forward(p, inputs, b, h).O.row(0)[0], 10 * b + h / 3);
    }
}

TEST(Forward, PackedSequencesAreSequencesOnTheirOwn) {
    Problem packed = causal(problem(65, 33));
    packed.B = 3;
    packed.Hq = 2;
    packed.Hkv = 1;
    packed.cu_q = {0, 65, 65, 82};
    packed.cu_k = {0, 33, 40, 73};
    validate(packed);
    const Inputs all = make_inputs(packed, attention::InputLaw::normal, 3);
    for (int b : {0, 2}) {
        Problem alone = causal(problem(packed.queries(b), packed.keys(b)));
        alone.Hq = 2;
        Inputs inputs = small::zeros(alone);
        for (int h = 0; h < 2; ++h) {
            for (int i = 0; i < alone.Nq; ++i) std::copy_n(all.Q.row(b, h, i), 16, inputs.Q.row(0, h, i));
        }
        for (int j = 0; j < alone.Nk; ++j) {
            std::copy_n(all.K.row(b, 0, j), 16, inputs.K.row(0, 0, j));
            std::copy_n(all.V.row(b, 0, j), 16, inputs.V.row(0, 0, j));
        }
        for (int h = 0; h < 2; ++h) {
            const auto expected = forward(alone, inputs, 0, h), result = forward(packed, all, b, h);
            EXPECT_EQ(result.L, expected.L);
            EXPECT_EQ(result.O.values, expected.O.values);
        }
    }
}

TEST(Forward, AnyRowsInAnyOrder) {
    Problem p = problem(100, 70);
    p.window_left = 20;
    p.window_right = 3;
    const Inputs inputs = make_inputs(p, attention::InputLaw::normal, 5);
    const auto all = forward(p, inputs);
    const std::vector<int> rows{99, 0, 40, 41};
    const auto some = reference::forward(p, inputs, 0, 0, rows);
    for (std::size_t n = 0; n < rows.size(); ++n) {
        EXPECT_DOUBLE_EQ(some.L[n], all.L[rows[n]]);
        for (int c = 0; c < 16; ++c) EXPECT_NEAR(some.O.row(n)[c], all.O.row(rows[n])[c], 1e-14);
    }
}

TEST(Terms, AreSumsOfAbsoluteValues) {
    Problem p = causal(problem(2, 2));
    p.scale = -2.0f;
    Inputs inputs = small::zeros(p);
    const auto set = [](float* row, float first, float second) { row[0] = first, row[1] = second; };
    set(inputs.Q.row(0, 0, 0), 1, -1);
    set(inputs.Q.row(0, 0, 1), 3, 3);
    set(inputs.K.row(0, 0, 0), 1, 1);
    set(inputs.K.row(0, 0, 1), 2, 0);
    set(inputs.V.row(0, 0, 0), -5, 1);
    const auto scores = reference::score_terms(p, inputs, 0, 0, {0, 1});
    EXPECT_EQ(scores[0], 4.0);   // the score is 0; key 1 is hidden
    EXPECT_EQ(scores[1], 12.0);  // both scores are -12
    const auto output = reference::output_terms(p, inputs, 0, 0, {0, 1});
    EXPECT_EQ(output.row(0)[0], 5.0);
    EXPECT_EQ(output.row(1)[0], 2.5);
}

}  // namespace
