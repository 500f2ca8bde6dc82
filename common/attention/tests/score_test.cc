// The score modifiers as kernels see them, against their formulas in double precision.
#include "common/attention/score.h"

#include <gtest/gtest.h>

#include <cmath>

namespace attention {
namespace {

KernelProblem kernel_problem(float scale, float softcap, bool alibi) {
    KernelProblem problem = {};
    problem.B = 1;
    problem.Hq = 8;
    problem.Hkv = 2;
    problem.Nq = 5;
    problem.Nk = 9;
    problem.scale = scale;
    problem.softcap = softcap;
    problem.alibi = alibi;
    return problem;
}

constexpr Sequence sequence = {0, 0, 0, 5, 9};

TEST(ScoreModifier, WithoutModifiersIsOneRoundedProduct) {
    const KernelProblem problem = kernel_problem(0.3f, 0, false);
    for (float x : {0.0f, 1.7f, -250.3f}) {
        const float expected = x * (0.3f * gpu::log2_e);
        EXPECT_EQ(ScoreModifier<false>(problem, sequence, 3).score(x, 1, 2), expected);
        EXPECT_EQ(ScoreModifier<true>(problem, sequence, 3).score(x, 1, 2), expected);
        EXPECT_EQ(ScoreModifier<false>(problem, sequence, 3).derivative(x), 1.0f);
        EXPECT_EQ(ScoreModifier<true>(problem, sequence, 3).derivative(x), 1.0f);
    }
}

TEST(ScoreModifier, FollowsTheFormulas) {
    for (float scale : {0.125f, -0.5f}) {
        for (float cap : {0.0f, 2.0f, 50.0f}) {
            for (bool alibi : {false, true}) {
                const KernelProblem problem = kernel_problem(scale, cap, alibi);
                for (int h = 0; h < 8; ++h) {
                    const ScoreModifier<true> modifier(problem, sequence, h);
                    for (float x : {0.0f, 0.01f, -3.0f, 17.0f, -400.0f, 1e4f}) {
                        const double S = double(scale) * x, tanh = cap > 0 ? std::tanh(S / cap) : 0;
                        for (int i : {0, 4}) {
                            for (int j : {0, 6, 8}) {
                                const double distance = std::abs(i + 9 - 5 - j);
                                const double expected =
                                    (cap > 0 ? cap * tanh : S) - (alibi ? std::pow(0.5, h + 1) * distance : 0);
                                EXPECT_NEAR(modifier.score(x, i, j) * std::log(2.0), expected,
                                            0x1p-21 * (std::abs(S) + distance))
                                    << "scale " << scale << ", cap " << cap << ", x " << x << ", h " << h;
                            }
                        }
                        EXPECT_NEAR(modifier.derivative(x), 1 - tanh * tanh, 0x1p-21);
                    }
                }
            }
        }
    }
}

// 2^-8 (h + 1) / Hq for any number of heads.
TEST(ScoreModifier, SlopesOfNineHeads) {
    KernelProblem problem = kernel_problem(1, 0, true);
    problem.Hq = 9;
    for (int h = 0; h < 9; ++h) {
        const float score = ScoreModifier<true>(problem, sequence, h).score(0, 0, 5);
        EXPECT_NEAR(score, -std::exp2(-8.0 * (h + 1) / 9) / std::log(2.0), 1e-6);
    }
}

TEST(ScoreModifier, ANanStaysANan) {
    const ScoreModifier<true> modifier(kernel_problem(1, 2, true), sequence, 0);
    EXPECT_TRUE(std::isnan(modifier.score(std::nanf(""), 0, 0)));
    EXPECT_TRUE(std::isnan(modifier.derivative(std::nanf(""))));
}

}  // namespace
}  // namespace attention
