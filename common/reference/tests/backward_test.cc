// The backward reference against paper values and against finite differences of the forward.
#include <gtest/gtest.h>

#include <cmath>

#include "common/reference/reference.h"
#include "common/reference/tests/small_problem.h"

namespace {

using attention::HostTensor;
using attention::Inputs;
using attention::Problem;
using small::problem;
using small::set_first_column;

reference::Rows dQ(const Problem& problem, const Inputs& inputs, int b = 0, int h = 0) {
    return reference::query_gradient(problem, inputs, b, h, small::rows(problem.queries(b))).values;
}

reference::KeyGradients dK_dV(const Problem& problem, const Inputs& inputs, int b = 0, int h_kv = 0) {
    const auto rows = small::rows(problem.keys(b));
    return reference::key_gradients(problem, inputs, b, h_kv, rows,
                                    reference::forward_of_group(problem, inputs, b, h_kv, rows));
}

// The loss whose gradient with respect to O is dO.
double loss(const Problem& problem, const Inputs& inputs) {
    double sum = 0.0;
    for (int b = 0; b < problem.B; ++b) {
        for (int h = 0; h < problem.Hq; ++h) {
            const auto O = reference::forward(problem, inputs, b, h, small::rows(problem.queries(b))).O;
            for (int i = 0; i < problem.queries(b); ++i) {
                for (int c = 0; c < problem.d; ++c) sum += inputs.dO.row(b, h, i)[c] * O.row(i)[c];
            }
        }
    }
    return sum;
}

// Two central differences, combined so that the error is of the fourth order.
double slope(const Problem& problem, Inputs inputs, HostTensor Inputs::*operand, std::size_t offset) {
    float& value = (inputs.*operand).values[offset];
    const float at = value;
    const auto central = [&](float step) {
        value = at + step;
        const double above = loss(problem, inputs);
        value = at - step;
        const double below = loss(problem, inputs);
        return (above - below) / (2.0 * step);
    };
    return (4.0 * central(0x1p-8f) - central(0x1p-7f)) / 3.0;
}

void expect_slopes(Problem p) {
    p.type = attention::DataType::bf16;  // so that value +- step are exact floats
    validate(p);
    SCOPED_TRACE(describe(p));
    const Inputs inputs = make_inputs(p, attention::InputLaw::normal, 11);
    for (int b = 0; b < p.B; ++b) {
        for (int h = 0; h < p.Hq; ++h) {
            const auto gradient = dQ(p, inputs, b, h);
            for (int i = 0; i < p.queries(b); ++i) {
                for (int c = 0; c < p.d; ++c)
                    EXPECT_NEAR(gradient.row(i)[c], slope(p, inputs, &Inputs::Q, inputs.Q.offset(b, h, i) + c), 2e-6);
            }
        }
        for (int h = 0; h < p.Hkv; ++h) {
            const auto gradient = dK_dV(p, inputs, b, h);
            for (int j = 0; j < p.keys(b); ++j) {
                for (int c = 0; c < p.d; ++c) {
                    const std::size_t offset = inputs.K.offset(b, h, j) + c;
                    EXPECT_NEAR(gradient.dK.values.row(j)[c], slope(p, inputs, &Inputs::K, offset), 2e-6);
                    EXPECT_NEAR(gradient.dV.values.row(j)[c], slope(p, inputs, &Inputs::V, offset), 2e-6);
                }
            }
        }
    }
}

TEST(Backward, IsTheSlopeOfTheForward) { expect_slopes(problem(4, 5, 3)); }

TEST(Backward, IsTheSlopeUnderCausalMaskWithEmptyRows) { expect_slopes(small::causal(problem(5, 3, 3))); }

TEST(Backward, IsTheSlopeUnderAWindowWithGroupsAndScale) {
    Problem p = problem(4, 5, 3);
    p.B = 2;
    p.Hq = 4;
    p.Hkv = 2;
    p.window_left = 1;
    p.window_right = 1;
    p.scale = -0.5f;
    expect_slopes(p);
}

TEST(Backward, IsTheSlopeWithDropout) {
    Problem p = problem(4, 5, 3);
    p.Hq = 2;
    p.dropout = 0.4f;
    p.dropout_seed = 5;
    expect_slopes(p);
}

TEST(Backward, IsTheSlopeWithSoftcapAndAlibi) {
    Problem p = problem(4, 6, 3);
    p.Hq = 4;
    p.Hkv = 2;
    p.softcap = 1.5f;
    expect_slopes(p);
    p.alibi = true;
    expect_slopes(small::causal(p));
    p.softcap = 0;
    p.dropout = 0.3f;
    expect_slopes(p);
}

TEST(Backward, IsTheSlopeOfPackedSequences) {
    Problem p = small::causal(problem(3, 4, 3));
    p.B = 3;
    p.Hq = 2;
    p.cu_q = {0, 3, 3, 5};
    p.cu_k = {0, 4, 6, 7};
    expect_slopes(p);
}

TEST(Backward, B07_ScoresFarBelowZero) {
    const Problem p = problem(1, 2);
    Inputs inputs = small::zeros(p);
    set_first_column(inputs.Q, [](int) { return 1.0; });
    set_first_column(inputs.K, [](int) { return -120.0; });
    inputs.K.row(0, 0, 0)[1] = 1.0f;
    inputs.K.row(0, 0, 1)[1] = -1.0f;
    set_first_column(inputs.V, [](int j) { return j == 0 ? 3 : 1; });
    set_first_column(inputs.dO, [](int) { return 1.0; });
    const auto forward = reference::forward(p, inputs, 0, 0, {0});
    EXPECT_EQ(forward.O.row(0)[0], 2.0);
    EXPECT_NEAR(forward.L[0], -119.3069, 5e-5);
    EXPECT_NEAR(dQ(p, inputs).row(0)[0], 0.0, 1e-12);
    EXPECT_NEAR(dQ(p, inputs).row(0)[1], 1.0, 1e-12);
    const auto gradients = dK_dV(p, inputs);
    EXPECT_NEAR(gradients.dK.values.row(0)[0], 0.5, 1e-12);
    EXPECT_NEAR(gradients.dK.values.row(1)[0], -0.5, 1e-12);
    for (int j = 0; j < 2; ++j) EXPECT_NEAR(gradients.dV.values.row(j)[0], 0.5, 1e-12);
}

TEST(Backward, B21_GradientsAreSumsOverTheGroup) {
    Problem p = problem(1, 1);
    p.Hq = 7;
    Inputs inputs = small::zeros(p);
    for (int h = 0; h < 7; ++h) inputs.dO.row(0, h, 0)[0] = h == 3 ? 2048.0f : 1.0f;
    EXPECT_EQ(dK_dV(p, inputs).dV.values.row(0)[0], 2054.0);
    p.Hq = 8;
    inputs = small::zeros(p);
    for (int h = 0; h < 8; ++h) inputs.dO.row(0, h, 0)[0] = h < 4 ? 32768.0f : -32768.0f;
    EXPECT_EQ(dK_dV(p, inputs).dV.values.row(0)[0], 0.0);
}

TEST(Backward, B37_WithoutAMaskEveryQuerySeesEveryKey) {
    const Problem p = problem(2, 2);
    Inputs inputs = small::zeros(p);
    set_first_column(inputs.K, [](int j) { return j == 0 ? 1 : -1; });
    set_first_column(inputs.V, [](int j) { return j == 0 ? 3 : 1; });
    set_first_column(inputs.dO, [](int) { return 1.0; });
    const auto gradients = dK_dV(p, inputs);
    for (int n = 0; n < 2; ++n) {
        EXPECT_NEAR(dQ(p, inputs).row(n)[0], 1.0, 1e-15);
        EXPECT_NEAR(gradients.dV.values.row(n)[0], 1.0, 1e-15);
        EXPECT_NEAR(gradients.dK.values.row(n)[0], 0.0, 1e-15);
    }
}

TEST(Backward, RowsThatSeeNoKeyAddNothing) {
    const Problem p = small::causal(problem(5, 2));
    Inputs inputs = small::zeros(p);
    set_first_column(inputs.V, [](int j) { return j == 0 ? 10 : 30; });
    for (int i = 0; i < 3; ++i)
        inputs.dO.row(0, 0, i)[0] = std::nanf("");  // dO of empty rows is hidden from every gradient
    for (int i = 3; i < 5; ++i) inputs.dO.row(0, 0, i)[0] = 1.0f;
    for (int i = 0; i < 3; ++i) EXPECT_EQ(dQ(p, inputs).row(i)[0], 0.0);
    const auto gradients = dK_dV(p, inputs);
    EXPECT_NEAR(gradients.dV.values.row(0)[0], 1.5, 1e-15);
    EXPECT_NEAR(gradients.dV.values.row(1)[0], 0.5, 1e-15);
}

TEST(Backward, SomeRowsOfManyNeedOnlyTheirQueries) {
    Problem p = small::causal(problem(50, 60));
    p.Hq = 2;
    const Inputs inputs = make_inputs(p, attention::InputLaw::normal, 9);
    const auto all = dK_dV(p, inputs);
    const std::vector<int> rows{59, 0, 30};
    const auto some =
        reference::key_gradients(p, inputs, 0, 0, rows, reference::forward_of_group(p, inputs, 0, 0, rows));
    const std::vector<int> last{59};
    EXPECT_EQ(reference::forward_of_group(p, inputs, 0, 0, last)[1].L[48], 0.0);  // not needed, left at 0
    for (std::size_t n = 0; n < rows.size(); ++n) {
        for (int c = 0; c < 16; ++c) {
            EXPECT_NEAR(some.dK.values.row(n)[c], all.dK.values.row(rows[n])[c], 1e-13);
            EXPECT_NEAR(some.dV.values.row(n)[c], all.dV.values.row(rows[n])[c], 1e-13);
        }
    }
}

}  // namespace
