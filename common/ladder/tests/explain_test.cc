// The notes' two worked examples, number by number, and that a problem's queries come out as softmax says.
#include "common/ladder/explain.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

namespace {

using ladder::Step;

constexpr double infinity = std::numeric_limits<double>::infinity();

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(Explain, ExponentialsOneTwoFourEightGive49Fifteenths) {
    const auto steps = ladder::online_softmax({0, std::log(2), std::log(4), std::log(8)}, {{1}, {2}, {3}, {4}}, 2);
    ASSERT_EQ(steps.size(), 2u);
    const Step &A = steps[0], &B = steps[1];
    EXPECT_DOUBLE_EQ(A.state.m, std::log(2));
    EXPECT_DOUBLE_EQ(A.state.l, 1.5);
    EXPECT_DOUBLE_EQ(A.u[0], 2.5);
    EXPECT_EQ(A.alpha, 0);  // there was no state before
    EXPECT_DOUBLE_EQ(B.block.m, std::log(8));
    EXPECT_DOUBLE_EQ(B.block.l, 1.5);
    EXPECT_DOUBLE_EQ(B.block_u[0], 5.5);
    EXPECT_DOUBLE_EQ(B.alpha, 0.25);
    EXPECT_EQ(B.beta, 1);
    EXPECT_DOUBLE_EQ(B.W[0], 0.5);
    EXPECT_DOUBLE_EQ(B.W[1], 1);
    EXPECT_DOUBLE_EQ(B.state.l, 1.875);
    EXPECT_DOUBLE_EQ(B.u[0], 6.125);
    EXPECT_DOUBLE_EQ(B.u[0] / B.state.l, 49.0 / 15.0);
}

TEST(Explain, ScoresOneToFourGive34Point93) {
    const auto steps = ladder::online_softmax({1, 2, 3, 4}, {{10}, {20}, {30}, {40}}, 2);
    ASSERT_EQ(steps.size(), 2u);
    EXPECT_EQ(steps[0].state.m, 2);
    EXPECT_NEAR(steps[0].state.l, 1.3679, 5e-5);
    EXPECT_NEAR(steps[0].u[0], 23.679, 5e-4);
    EXPECT_NEAR(steps[1].block.l, 1.3679, 5e-5);
    EXPECT_NEAR(steps[1].block_u[0], 51.036, 1e-3);  // 30 / e + 40; the notes round it to 51.037
    EXPECT_NEAR(steps[1].alpha, std::exp(-2), 1e-15);
    EXPECT_EQ(steps[1].state.m, 4);
    EXPECT_NEAR(steps[1].state.l, 1.5530, 5e-5);
    EXPECT_NEAR(steps[1].u[0], 54.241, 5e-4);
    EXPECT_NEAR(steps[1].u[0] / steps[1].state.l, 34.93, 5e-3);
}

TEST(Explain, ExamplesArePrinted) {
    std::ostringstream out;
    ladder::explain_examples(out);
    for (const char* part : {"49/15", "l = 1.875 ", "u = 6.125", "alpha = 0.25 ", "O = u / l = 3.266666667", "34.93",
                             "l = 1.5530", "u = 54.24", "O = u / l = 34.92"})
        EXPECT_CONTAINS(out.str(), part);
}

TEST(Explain, BlocksOfAnySizeGiveTheSoftmaxAndHiddenKeysCountForNothing) {
    const std::vector<double> S = {-infinity, -infinity, -infinity, 1, 3, -infinity, 2};
    const std::vector<std::vector<double>> V = {{std::nan("")}, {7}, {7}, {1}, {2}, {7}, {3}};
    const double sum = std::exp(1) + std::exp(3) + std::exp(2);
    for (int block : {1, 2, 3, 7, 1000}) {
        const Step last = ladder::online_softmax(S, V, block).back();
        EXPECT_NEAR(last.u[0] / last.state.l, (std::exp(1) + 2 * std::exp(3) + 3 * std::exp(2)) / sum, 1e-14);
        EXPECT_NEAR(last.state.m + std::log(last.state.l), std::log(sum), 1e-14);
    }
}

TEST(Explain, MaskHidesKeysAndRowsWithoutKeysAreZero) {
    attention::Problem problem;
    problem.Nq = 3, problem.Nk = 2, problem.d = 1;
    problem.window_right = 0;
    problem.scale = 0.5;
    attention::Inputs inputs = attention::make_inputs(problem, attention::InputLaw::normal, 1);
    inputs.Q.values = {1, 1, 1};
    inputs.K.values = {2, 2};
    inputs.V.values = {3, 5};
    std::ostringstream out;
    ladder::explain(problem, inputs, 2, out);
    EXPECT_CONTAINS(out.str(), "query 0\n  S = (-inf, -inf)");
    EXPECT_CONTAINS(out.str(), "O = u / l = 0  L = m + log(l) = -inf");
    EXPECT_CONTAINS(out.str(), "query 1\n  S = (1, -inf)");
    EXPECT_CONTAINS(out.str(), "O = u / l = 3  L = m + log(l) = 1\n");
    EXPECT_CONTAINS(out.str(), "query 2\n  S = (1, 1)");
    EXPECT_CONTAINS(out.str(), "O = u / l = 4  L = m + log(l) = 1.693147181");
}

}  // namespace
