// The baseline rounds what it says it rounds, and nothing else.
#include "common/reference/plain.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/reference/tests/small_problem.h"

namespace {

using attention::DataType;
using attention::Inputs;
using attention::Problem;
using plain::Stores;
using small::problem;
using small::set_first_column;

void expect_agreement(const Problem& p) {
    const Inputs inputs = make_inputs(p, attention::InputLaw::normal, 1);
    const auto queries = small::rows(40), keys = small::rows(50);
    const auto expect_near = [](const reference::Rows& result, const reference::Rows& expected) {
        ASSERT_EQ(result.values.size(), expected.values.size());
        for (std::size_t n = 0; n < result.values.size(); ++n) EXPECT_NEAR(result.values[n], expected.values[n], 2e-5);
    };
    for (Stores stores : {Stores::scores, Stores::weights}) {
        const auto expected = reference::forward(p, inputs, 0, 3, queries);
        const auto result = plain::forward(p, inputs, 0, 3, queries, {stores});
        expect_near(result.O, expected.O);
        for (int i = 0; i < 40; ++i) EXPECT_NEAR(result.L[i], expected.L[i], 2e-6);
        expect_near(plain::query_gradient(p, inputs, 0, 3, queries, expected, {stores}),
                    reference::query_gradient(p, inputs, 0, 3, queries).values);
        const auto group = reference::forward_of_group(p, inputs, 0, 1, keys);
        const auto gradients = plain::key_gradients(p, inputs, 0, 1, keys, group, {stores});
        const auto expected_gradients = reference::key_gradients(p, inputs, 0, 1, keys, group);
        expect_near(gradients.dK, expected_gradients.dK.values);
        expect_near(gradients.dV, expected_gradients.dV.values);
    }
}

TEST(Plain, InFp32AgreesWithTheReference) {
    Problem p = small::causal(problem(40, 50));
    p.Hq = 4;
    p.Hkv = 2;
    p.scale = 0.25f;
    p.dropout = 0.25f;
    expect_agreement(p);
    p.softcap = 2;
    p.alibi = true;
    expect_agreement(p);
}

// Weights 0.6 and 0.4 with V = 2 and -3 give 0; in fp16 they are 0.60009765625 and 0.39990234375, which gives 2^-11.
TEST(Plain, RoundsWeights) {
    Problem p = problem(1, 2);
    p.type = DataType::fp16;
    Inputs inputs = small::zeros(p);
    set_first_column(inputs.Q, [](int) { return 1.0; });
    set_first_column(inputs.K, [](int j) { return j == 0 ? std::log(1.5) : 0.0; });
    set_first_column(inputs.V, [](int j) { return j == 0 ? 2.0 : -3.0; });
    EXPECT_EQ(plain::forward(p, inputs, 0, 0, {0}, {Stores::weights}).O.row(0)[0], 0x1p-11);
    p.type = DataType::fp32;
    EXPECT_NEAR(plain::forward(p, inputs, 0, 0, {0}, {Stores::weights}).O.row(0)[0], 0.0, 5e-7);
}

// The score 1 + 2^-12 is no fp16 number.
TEST(Plain, RoundsScoresOnlyIfTheyAreStored) {
    Problem p = problem(1, 1);
    p.type = DataType::fp16;
    Inputs inputs = small::zeros(p);
    inputs.Q.row(0, 0, 0)[0] = inputs.K.row(0, 0, 0)[0] = inputs.K.row(0, 0, 0)[1] = 1.0f;
    inputs.Q.row(0, 0, 0)[1] = 0x1p-12f;
    EXPECT_EQ(plain::forward(p, inputs, 0, 0, {0}, {Stores::scores}).L[0], 1.0);
    EXPECT_EQ(plain::forward(p, inputs, 0, 0, {0}, {Stores::weights}).L[0], 1.0 + 0x1p-12);
}

TEST(Plain, B21_SumsTheGroupInFp32) {
    Problem p = problem(1, 1);
    p.type = DataType::fp16;
    p.Hq = 7;
    Inputs inputs = small::zeros(p);
    for (int h = 0; h < 7; ++h) inputs.dO.row(0, h, 0)[0] = h == 0 ? 2048.0f : 1.0f;
    const auto group = reference::forward_of_group(p, inputs, 0, 0, {0});
    EXPECT_EQ(plain::key_gradients(p, inputs, 0, 0, {0}, group, {Stores::weights}).dV.row(0)[0], 2054.0);
}

// One key, so that S = L and P = exp(S - L) = 1, and less by what L has moved.
TEST(Plain, AnLOfThousandsMovesWeights) {
    EXPECT_EQ(plain::saved_L(3000, 1), 3000 + 11 * 0x1p-12f);  // 3000 2^-20 - 2^-12 = 10.7 2^-12, in multiples of 2^-12
    EXPECT_EQ(plain::saved_L(-3000, -1), -plain::saved_L(3000, 1));
    EXPECT_EQ(plain::saved_L(256, 1), 256.0f);
    EXPECT_EQ(plain::saved_L(-std::numeric_limits<double>::infinity(), 1), -std::numeric_limits<float>::infinity());
    for (double score : {256.0, 3000.0}) {
        Problem p = problem(1, 1);
        Inputs inputs = small::zeros(p);
        inputs.Q.row(0, 0, 0)[0] = 1;
        inputs.K.row(0, 0, 0)[0] = static_cast<float>(score);
        inputs.dO.row(0, 0, 0)[0] = 1;
        const auto group = reference::forward_of_group(p, inputs, 0, 0, {0});
        const auto dV = plain::key_gradients(p, inputs, 0, 0, {0}, group, {Stores::weights, 1, 0, 1}).dV;
        EXPECT_NEAR(dV.row(0)[0], std::exp(-std::max(0.0, score * 0x1p-20 - 0x1p-12)), 0x1p-12);
    }
}

// So that the limits at ordinary scores are what they were without it.
TEST(Plain, AnOrdinaryLStaysAsItIs) {
    for (DataType type : {DataType::fp32, DataType::fp16, DataType::bf16}) {
        for (attention::InputLaw law : {attention::InputLaw::normal, attention::InputLaw::equal}) {
            Problem p = small::causal(problem(40, 50));
            p.type = type;
            const Inputs inputs = make_inputs(p, law, 1);
            const auto queries = small::rows(40), keys = small::rows(50);
            const auto saved = reference::forward(p, inputs, 0, 0, queries);
            const auto group = reference::forward_of_group(p, inputs, 0, 0, keys);
            const plain::Precision precision{Stores::weights, 1.3f}, shifted{Stores::weights, 1.3f, 0, 1};
            EXPECT_EQ(plain::query_gradient(p, inputs, 0, 0, queries, saved, precision).values,
                      plain::query_gradient(p, inputs, 0, 0, queries, saved, shifted).values);
            const auto gradients = plain::key_gradients(p, inputs, 0, 0, keys, group, precision);
            const auto gradients_shifted = plain::key_gradients(p, inputs, 0, 0, keys, group, shifted);
            EXPECT_EQ(gradients.dK.values, gradients_shifted.dK.values);
            EXPECT_EQ(gradients.dV.values, gradients_shifted.dV.values);
        }
    }
}

TEST(Plain, ResultsAreValuesOfTheType) {
    for (DataType type : {DataType::fp16, DataType::bf16}) {
        Problem p = problem(20, 30);
        p.type = type;
        const Inputs inputs = make_inputs(p, attention::InputLaw::normal, 2);
        const auto rows = small::rows(20);
        for (double value : plain::forward(p, inputs, 0, 0, rows, {Stores::weights, 1.3f}).O.values)
            EXPECT_EQ(value, attention::round_to(type, static_cast<float>(value)));
    }
}

}  // namespace
