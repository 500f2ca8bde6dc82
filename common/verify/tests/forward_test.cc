// The judge judged: it accepts right outputs and rejects each way of being wrong that has fooled a verifier before.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/verify/tests/outputs.h"

namespace {

using attention::DataType;
using attention::HostTensor;
using attention::InputLaw;
using attention::Inputs;
using attention::Problem;
using plain::Stores;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

Problem make_problem(DataType type, int Nq, int Nk) {
    Problem problem;
    problem.Hq = 2;
    problem.Nq = Nq;
    problem.Nk = Nk;
    problem.d = 32;
    problem.type = type;
    problem.scale = attention::default_scale(32);
    return problem;
}

// One output, right at first, of a problem that is checked in full.
class RejectsForward : public testing::TestWithParam<DataType> {
  protected:
    Problem problem = make_problem(GetParam(), 130, 150);
    Inputs inputs = make_inputs(problem, InputLaw::normal, 1);
    outputs::Forward output = outputs::plain_forward(problem, inputs, {Stores::weights});

    std::vector<verify::Check> check() const {
        return verify::check_forward(problem, inputs, output.O, output.L, Stores::weights);
    }
    void expect_rejected(const std::string& tensor) { outputs::expect_rejected(check(), tensor); }
};

INSTANTIATE_TEST_SUITE_P(Types, RejectsForward, testing::Values(DataType::fp32, DataType::fp16, DataType::bf16),
                         [](const auto& info) { return name(info.param); });

TEST_P(RejectsForward, NotTheGoodOne) { outputs::expect_passed(check()); }

TEST_P(RejectsForward, B59_Nan) {
    std::fill(output.O.values.begin(), output.O.values.end(), nan);
    expect_rejected("O");
}

TEST_P(RejectsForward, B59_OneNan) {
    output.O.row(0, 1, 77)[5] = nan;
    expect_rejected("O");
}

TEST_P(RejectsForward, B59_Infinity) {
    output.O.row(0, 1, 77)[5] = std::numeric_limits<float>::infinity();
    expect_rejected("O");
}

TEST_P(RejectsForward, B59_Zeros) {
    std::fill(output.O.values.begin(), output.O.values.end(), 0.0f);
    expect_rejected("O");
}

TEST_P(RejectsForward, B59_Ones) {
    std::fill(output.O.values.begin(), output.O.values.end(), 1.0f);
    expect_rejected("O");
}

TEST_P(RejectsForward, B59_MeanOfV) {
    std::vector<double> mean(problem.d, 0.0);
    for (int j = 0; j < problem.Nk; ++j) {
        for (int c = 0; c < problem.d; ++c) mean[c] += inputs.V.row(0, 0, j)[c] / static_cast<double>(problem.Nk);
    }
    for (int h = 0; h < problem.Hq; ++h) {
        for (int i = 0; i < problem.Nq; ++i) {
            for (int c = 0; c < problem.d; ++c)
                output.O.row(0, h, i)[c] = attention::round_to(problem.type, static_cast<float>(mean[c]));
        }
    }
    expect_rejected("O");
}

TEST_P(RejectsForward, B59_ShuffledRows) {
    std::rotate(output.O.values.begin(), output.O.values.begin() + problem.d, output.O.values.end());
    expect_rejected("O");
}

TEST_P(RejectsForward, B59_SwappedHeads) {
    std::rotate(output.O.values.begin(), output.O.values.begin() + output.O.values.size() / 2, output.O.values.end());
    expect_rejected("O");
}

TEST_P(RejectsForward, B59_OneWrongElementInTheLastRow) {
    float* last = output.O.row(0, 1, problem.Nq - 1);
    std::swap(last[problem.d - 1], last[0]);
    last[0] = output.O.row(0, 0, problem.Nq - 1)[0];
    expect_rejected("O");
}

TEST_P(RejectsForward, ScaledByOnePlusOneThirtySecond) {
    for (float& value : output.O.values) value = attention::round_to(problem.type, value * (1.0f + 0x1p-5f));
    expect_rejected("O");
}

TEST_P(RejectsForward, LInBaseTwo) {
    for (float& value : output.L.values) value *= 1.44269504f;
    expect_rejected("L");
}

TEST_P(RejectsForward, LWithoutTheMaximum) {
    for (float& value : output.L.values) value -= 1.0f;
    expect_rejected("L");
}

TEST_P(RejectsForward, LInfiniteOfTheWrongSign) {
    problem.window_right = 0;
    problem.Nk = 100;  // the first 30 queries see no key
    inputs = make_inputs(problem, InputLaw::normal, 1);
    output = outputs::plain_forward(problem, inputs, {Stores::weights});
    outputs::expect_passed(check());
    *output.L.row(0, 0, 3) = std::numeric_limits<float>::infinity();
    expect_rejected("L");
    *output.L.row(0, 0, 3) = -1e30f;
    expect_rejected("L");
    *output.L.row(0, 0, 3) = nan;
    expect_rejected("L");
}

TEST_P(RejectsForward, MeanOfVInARowThatSeesNoKey) {
    problem.window_right = 0;
    problem.Nk = 100;
    inputs = make_inputs(problem, InputLaw::normal, 1);
    output = outputs::plain_forward(problem, inputs, {Stores::weights});
    output.O.row(0, 1, 3)[0] = attention::round_to(problem.type, 0.01f);  // small beside the largest element
    expect_rejected("O");
}

// The last `count` keys are not there.
Inputs without_last_keys(const Problem& problem, const Inputs& inputs, int count, Problem* smaller) {
    *smaller = problem;
    smaller->Nk -= count;
    Inputs result{inputs.Q, key_tensor(*smaller), key_tensor(*smaller), inputs.dO};
    for (int h = 0; h < problem.Hkv; ++h) {
        for (int j = 0; j < smaller->Nk; ++j) {
            std::copy_n(inputs.K.row(0, h, j), problem.d, result.K.row(0, h, j));
            std::copy_n(inputs.V.row(0, h, j), problem.d, result.V.row(0, h, j));
        }
    }
    return result;
}

TEST_P(RejectsForward, OneDroppedKeySeenInL) {
    Problem smaller;
    const Inputs fewer = without_last_keys(problem, inputs, 1, &smaller);
    output = outputs::plain_forward(smaller, fewer, {Stores::weights});
    expect_rejected("L");
}

TEST_P(RejectsForward, MissingTailTileOfKeys) {
    Problem smaller;
    const Inputs fewer = without_last_keys(problem, inputs, problem.Nk % 64, &smaller);
    output = outputs::plain_forward(smaller, fewer, {Stores::weights});
    expect_rejected("O");
    expect_rejected("L");
}

TEST_P(RejectsForward, MissingTailTileOfQueries) {
    for (int i = 128; i < problem.Nq; ++i) std::fill_n(output.O.row(0, 1, i), problem.d, 0.0f);
    expect_rejected("O");
}

// The padded keys of the last tile counted as keys of score 0.
TEST_P(RejectsForward, B15_PaddedKeysCounted) {
    Problem larger = problem;
    larger.Nk = 192;
    Inputs padded{inputs.Q, key_tensor(larger), key_tensor(larger), inputs.dO};
    for (int j = 0; j < problem.Nk; ++j) {
        std::copy_n(inputs.K.row(0, 0, j), problem.d, padded.K.row(0, 0, j));
        std::copy_n(inputs.V.row(0, 0, j), problem.d, padded.V.row(0, 0, j));
    }
    output = outputs::plain_forward(larger, padded, {Stores::weights});
    expect_rejected("O");
    expect_rejected("L");
}

// Every kind of mask and shape, full and sampled.
class AcceptsForward : public testing::TestWithParam<DataType> {
  protected:
    std::vector<Problem> problems() {
        std::vector<Problem> result;
        for (const auto& [Nq, Nk] :
             {std::pair{0, 5}, {5, 0}, {1, 1}, {1, 2}, {2, 1}, {1, 17}, {17, 65}, {64, 64}, {65, 129}, {129, 17}}) {
            for (const auto& [left, right] : {std::pair{-1, -1}, {-1, 0}, {3, 2}}) {
                Problem problem = make_problem(GetParam(), Nq, Nk);
                problem.window_left = left;
                problem.window_right = right;
                result.push_back(problem);
                problem.dropout = 0.2f;
                result.push_back(problem);
            }
        }
        return result;
    }
};

INSTANTIATE_TEST_SUITE_P(Types, AcceptsForward, testing::Values(DataType::fp32, DataType::fp16, DataType::bf16),
                         [](const auto& info) { return name(info.param); });

TEST_P(AcceptsForward, PlainRoundedAndTiledOutputs) {
    for (const Problem& problem : problems()) {
        for (InputLaw law : {InputLaw::normal, InputLaw::outliers, InputLaw::equal, InputLaw::rising}) {
            SCOPED_TRACE(describe(problem) + ", law " + std::to_string(static_cast<int>(law)));
            const Inputs inputs = make_inputs(problem, law, 3);
            const auto rounded = outputs::rounded_forward(problem, inputs);
            for (Stores stores : {Stores::scores, Stores::weights}) {
                const auto plain = outputs::plain_forward(problem, inputs, {stores});
                outputs::expect_passed(verify::check_forward(problem, inputs, plain.O, plain.L, stores));
                outputs::expect_passed(verify::check_forward(problem, inputs, rounded.O, rounded.L, stores));
            }
            const auto tiled = outputs::tiled_forward(problem, inputs, 16);
            outputs::expect_passed(verify::check_forward(problem, inputs, tiled.O, tiled.L, Stores::weights));
        }
    }
}

TEST(CheckForward, ExpectsTheReferencesNan) {
    Problem problem = make_problem(DataType::bf16, 20, 20);
    Inputs inputs = make_inputs(problem, InputLaw::normal, 1);
    inputs.Q.row(0, 1, 7)[0] = nan;
    auto output = outputs::plain_forward(problem, inputs, {Stores::weights});
    outputs::expect_passed(verify::check_forward(problem, inputs, output.O, output.L, Stores::weights));
    output.O.row(0, 1, 7)[3] = 0.0f;
    *output.L.row(0, 1, 7) = 0.0f;
    outputs::expect_rejected(verify::check_forward(problem, inputs, output.O, output.L, Stores::weights), "O");
    outputs::expect_rejected(verify::check_forward(problem, inputs, output.O, output.L, Stores::weights), "L");
}

// One key, l = 1: an exponential wrong by 8e-5 of itself makes L wrong by 8e-5, which a kernel must have stated.
TEST(CheckForward, LIsAsWrongAsTheExponentialsAreStatedToBe) {
    const Problem problem = make_problem(DataType::bf16, 1, 1);
    const Inputs inputs = make_inputs(problem, InputLaw::normal, 1);
    auto output = outputs::plain_forward(problem, inputs, {Stores::weights});
    for (int h = 0; h < problem.Hq; ++h) *output.L.row(0, h, 0) += 8e-5f;
    const auto check = [&](double stated) {
        return verify::check_forward(problem, inputs, output.O, output.L, Stores::weights, {}, stated);
    };
    outputs::expect_rejected(check(0), "L");
    outputs::expect_rejected(check(6e-5), "L");
    outputs::expect_passed(check(9e-5));
}

TEST(CheckForward, OverflowOfTheTypeIsInfinity) {
    Problem problem = make_problem(DataType::fp32, 1, 1);
    Inputs inputs = make_inputs(problem, InputLaw::normal, 1);
    problem.type = DataType::fp16;
    inputs.V.row(0, 0, 0)[0] = -1e5f;
    auto output = outputs::plain_forward(problem, inputs, {Stores::weights});
    ASSERT_TRUE(std::isinf(output.O.row(0, 0, 0)[0]));
    outputs::expect_passed(verify::check_forward(problem, inputs, output.O, output.L, Stores::weights));
    output.O.row(0, 0, 0)[0] *= -1.0f;
    outputs::expect_rejected(verify::check_forward(problem, inputs, output.O, output.L, Stores::weights), "O");
}

// One query, two keys of scores 0 and s = -87.5, values 0 and 1: O = e^s / (1 + e^s) = 2^-126.24, of which ex2.approx.ftz
// leaves 0. Twice the smallest normal number is wrong all the same, and so is 0 for a value above it.
TEST(CheckForward, WhatIsFlushedToZeroIsRight) {
    Problem problem = make_problem(DataType::fp32, 1, 2);
    problem.Hq = 1;
    problem.d = 1;
    problem.scale = 1.0f;
    Inputs inputs = make_inputs(problem, InputLaw::normal, 1);
    inputs.Q.values = {1.0f};
    inputs.K.values = {0.0f, -87.5f};
    inputs.V.values = {0.0f, 1.0f};
    auto output = outputs::rounded_forward(problem, inputs);
    ASSERT_LT(output.O.values[0], 0x1p-126f);
    ASSERT_GT(output.O.values[0], 0x1p-127f);
    const auto check = [&](float O) {
        output.O.values[0] = O;
        return verify::check_forward(problem, inputs, output.O, output.L, Stores::weights);
    };
    outputs::expect_passed(check(0.0f));
    outputs::expect_rejected(check(0x1p-125f), "O");
    outputs::expect_rejected(check(-0x1p-127f), "O");
    inputs.V.values[1] = 4.0f;
    outputs::expect_rejected(check(0.0f), "O");
}

TEST(CheckForward, RefusesAnotherShape) {
    const Problem problem = make_problem(DataType::bf16, 20, 20);
    const Inputs inputs = make_inputs(problem, InputLaw::normal, 1);
    auto output = outputs::plain_forward(problem, inputs, {Stores::weights});
    output.L.values.pop_back();
    EXPECT_THROW(verify::check_forward(problem, inputs, output.O, output.L, Stores::weights), std::invalid_argument);
}

// Large enough to be sampled.
class SampledForward : public testing::Test {
  protected:
    Problem problem = [] {
        Problem large = make_problem(DataType::bf16, 2048, 2048);
        large.window_right = 0;
        return large;
    }();
    Inputs inputs = make_inputs(problem, InputLaw::normal, 1);
    outputs::Forward output = outputs::plain_forward(problem, inputs, {Stores::weights});

    std::vector<verify::Check> check() const {
        return verify::check_forward(problem, inputs, output.O, output.L, Stores::weights);
    }
};

TEST_F(SampledForward, AcceptsPlain) {
    ASSERT_LT(verify::sample_queries(problem, {})[0].rows.size(), 200u);
    outputs::expect_passed(check());
}

TEST_F(SampledForward, FindsAnUnwrittenElementThatIsNotSampled) {
    const auto sampled = verify::sample_queries(problem, {})[0].rows;
    int row = 1000;
    while (std::find(sampled.begin(), sampled.end(), row) != sampled.end()) ++row;
    output.O.row(0, 0, row)[31] = nan;
    outputs::expect_rejected(check(), "O");
}

TEST_F(SampledForward, FindsAnUnwrittenL) {
    const auto sampled = verify::sample_queries(problem, {})[0].rows;
    int row = 1000;
    while (std::find(sampled.begin(), sampled.end(), row) != sampled.end()) ++row;
    *output.L.row(0, 0, row) = nan;
    outputs::expect_rejected(check(), "L");
}

// Averages over 2000 keys are small beside the first rows.
TEST_F(SampledForward, FindsZerosInTheLastTile) {
    for (int i = 1984; i < 2048; ++i) std::fill_n(output.O.row(0, 0, i), problem.d, 0.0f);
    outputs::expect_rejected(check(), "O");
}

TEST_F(SampledForward, FindsOneWrongElementInTheLastRow) {
    output.O.row(0, 1, 2047)[31] += 0.125f;
    outputs::expect_rejected(check(), "O");
}

TEST(CheckForward, OneDroppedKeyOfManyIsSeenInL) {
    Problem problem = make_problem(DataType::bf16, 4, 16384);
    const Inputs inputs = make_inputs(problem, InputLaw::equal, 1);
    auto output = outputs::plain_forward(problem, inputs, {Stores::weights});
    outputs::expect_passed(verify::check_forward(problem, inputs, output.O, output.L, Stores::weights));
    for (float& L : output.L.values) L += std::log1p(-1.0f / 16384.0f);
    outputs::expect_rejected(verify::check_forward(problem, inputs, output.O, output.L, Stores::weights), "L");
}

}  // namespace
