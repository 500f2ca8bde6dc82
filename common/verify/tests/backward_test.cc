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

Problem make_problem(DataType type, int Nq, int Nk) {
    Problem problem;
    problem.Hq = 4;
    problem.Hkv = 2;
    problem.Nq = Nq;
    problem.Nk = Nk;
    problem.d = 32;
    problem.type = type;
    problem.scale = attention::default_scale(32);
    problem.window_right = 0;
    return problem;
}

class RejectsBackward : public testing::TestWithParam<DataType> {
  protected:
    Problem problem = make_problem(GetParam(), 100, 110);
    Inputs inputs = make_inputs(problem, InputLaw::normal, 1);
    outputs::Backward output = outputs::plain_backward(problem, inputs, {Stores::weights});
    std::vector<std::pair<std::string, HostTensor*>> tensors{
        {"dQ", &output.dQ}, {"dK", &output.dK}, {"dV", &output.dV}};

    std::vector<verify::Check> check() const {
        return verify::check_backward(problem, inputs, output.dQ, output.dK, output.dV, Stores::weights);
    }

    // Spoils one gradient at a time.
    template <typename Spoil>
    void expect_rejected(Spoil spoil) {
        for (const auto& [name, tensor] : tensors) {
            const HostTensor good = *tensor;
            spoil(*tensor);
            outputs::expect_rejected(check(), name);
            *tensor = good;
        }
    }
};

INSTANTIATE_TEST_SUITE_P(Types, RejectsBackward, testing::Values(DataType::fp32, DataType::fp16, DataType::bf16),
                         [](const auto& info) { return name(info.param); });

TEST_P(RejectsBackward, NotTheGoodOne) { outputs::expect_passed(check()); }

TEST_P(RejectsBackward, B59_Zeros) {
    expect_rejected([](HostTensor& tensor) { std::fill(tensor.values.begin(), tensor.values.end(), 0.0f); });
}

TEST_P(RejectsBackward, B59_OneNan) {
    expect_rejected([](HostTensor& tensor) { tensor.row(0, 1, 50)[3] = std::numeric_limits<float>::quiet_NaN(); });
}

TEST_P(RejectsBackward, B59_OneWrongElementInTheLastRow) {
    expect_rejected([](HostTensor& tensor) {
        float* last = tensor.row(0, tensor.H - 1, tensor.N - 1);
        float* largest = std::max_element(last, last + tensor.d);
        *largest = -*largest;
    });
}

TEST_P(RejectsBackward, ShuffledRows) {
    expect_rejected([](HostTensor& tensor) {
        std::rotate(tensor.values.begin(), tensor.values.begin() + tensor.d, tensor.values.end());
    });
}

TEST_P(RejectsBackward, ScaledByOnePlusOneThirtySecond) {
    expect_rejected([&](HostTensor& tensor) {
        for (float& value : tensor.values) value = attention::round_to(problem.type, value * (1.0f + 0x1p-5f));
    });
}

TEST_P(RejectsBackward, MissingTailTile) {
    expect_rejected([](HostTensor& tensor) {
        for (int i = 96; i < tensor.N; ++i) std::fill_n(tensor.row(0, 1, i), tensor.d, 0.0f);
    });
}

// dK and dV of the first query head of each group only.
TEST_P(RejectsBackward, B21_GroupNotSummed) {
    Inputs first_only = inputs;
    for (int h : {1, 3}) std::fill_n(first_only.dO.row(0, h, 0), problem.Nq * problem.d, 0.0f);
    const auto spoiled = outputs::plain_backward(problem, first_only, {Stores::weights});
    output.dK = spoiled.dK;
    output.dV = spoiled.dV;
    outputs::expect_rejected(check(), "dK");
    outputs::expect_rejected(check(), "dV");
}

// With O = 0 a backward finds D = 0.
TEST_P(RejectsBackward, DMissing) {
    const auto forward = outputs::tiled_forward(problem, inputs, 16);
    output = outputs::tiled_backward(problem, inputs, forward);
    outputs::expect_passed(check());
    output = outputs::tiled_backward(problem, inputs, {query_tensor(problem), forward.L});
    outputs::expect_rejected(check(), "dQ");
    outputs::expect_rejected(check(), "dK");
}

TEST(CheckBackward, B21_RunningSumInFp16IsRejected) {
    Problem problem = make_problem(DataType::fp16, 1, 1);
    problem.Hq = 7;
    problem.Hkv = 1;
    Inputs inputs{query_tensor(problem), key_tensor(problem), key_tensor(problem), query_tensor(problem)};
    for (int h = 0; h < 7; ++h) inputs.dO.row(0, h, 0)[0] = h == 0 ? 2048.0f : 1.0f;
    const HostTensor dQ = query_tensor(problem), dK = key_tensor(problem);
    HostTensor dV = key_tensor(problem);
    dV.values[0] = 2054.0f;
    outputs::expect_passed(verify::check_backward(problem, inputs, dQ, dK, dV, Stores::weights));
    dV.values[0] = 2048.0f;
    outputs::expect_rejected(verify::check_backward(problem, inputs, dQ, dK, dV, Stores::weights), "dV");
}

class AcceptsBackward : public testing::TestWithParam<DataType> {};

INSTANTIATE_TEST_SUITE_P(Types, AcceptsBackward, testing::Values(DataType::fp32, DataType::fp16, DataType::bf16),
                         [](const auto& info) { return name(info.param); });

TEST_P(AcceptsBackward, PlainRoundedAndTiledOutputs) {
    for (const auto& [Nq, Nk] :
         {std::pair{0, 5}, {5, 0}, {1, 1}, {1, 2}, {2, 1}, {1, 17}, {17, 65}, {64, 64}, {65, 33}}) {
        for (const auto& [left, right] : {std::pair{-1, -1}, {-1, 0}, {3, 2}}) {
            for (float dropout : {0.0f, 0.2f}) {
                for (InputLaw law : {InputLaw::normal, InputLaw::outliers, InputLaw::equal, InputLaw::rising}) {
                    Problem problem = make_problem(GetParam(), Nq, Nk);
                    problem.window_left = left;
                    problem.window_right = right;
                    problem.dropout = dropout;
                    SCOPED_TRACE(describe(problem) + ", law " + std::to_string(static_cast<int>(law)));
                    const Inputs inputs = make_inputs(problem, law, 3);
                    const auto accept = [&](const outputs::Backward& output, Stores stores) {
                        outputs::expect_passed(
                            verify::check_backward(problem, inputs, output.dQ, output.dK, output.dV, stores));
                    };
                    accept(outputs::rounded_backward(problem, inputs), Stores::weights);
                    accept(outputs::plain_backward(problem, inputs, {Stores::scores}), Stores::scores);
                    accept(outputs::plain_backward(problem, inputs, {Stores::weights}), Stores::weights);
                    const auto forward = outputs::tiled_forward(problem, inputs, 16);
                    accept(outputs::tiled_backward(problem, inputs, forward), Stores::weights);
                }
            }
        }
    }
}

// Keys of one score: P is 1/2 whatever the score, give or take what fp32 loses of a score of 3000, 0.3 %.
TEST(CheckBackward, ScoresOfThousandsWidenNoMoreThanFp32Asks) {
    Problem problem = make_problem(DataType::fp16, 1, 2);
    problem.Hq = problem.Hkv = 1;
    Inputs inputs{query_tensor(problem), key_tensor(problem), key_tensor(problem), query_tensor(problem)};
    std::fill_n(inputs.dO.row(0, 0, 0), 32, 1.0f);
    for (const auto& [element, widest] : {std::pair{1.0f, 0.0004f}, {23.03f, 0.008f}}) {
        for (HostTensor* tensor : {&inputs.Q, &inputs.K})
            std::fill(tensor->values.begin(), tensor->values.end(), attention::round_to(problem.type, element));
        const HostTensor dQ = query_tensor(problem), dK = key_tensor(problem);
        HostTensor dV = key_tensor(problem);
        const auto check = [&](float error) {
            std::fill(dV.values.begin(), dV.values.end(), 0.5f * (1 + error));
            return verify::check_backward(problem, inputs, dQ, dK, dV, Stores::weights);
        };
        outputs::expect_passed(check(widest / 2));
        outputs::expect_rejected(check(2 * widest), "dV");
    }
}

TEST(CheckBackward, SampledProblemsAreCheckedToo) {
    Problem problem = make_problem(DataType::bf16, 1500, 1500);
    const Inputs inputs = make_inputs(problem, InputLaw::normal, 1);
    auto output = outputs::plain_backward(problem, inputs, {Stores::weights});
    const auto check = [&] {
        return verify::check_backward(problem, inputs, output.dQ, output.dK, output.dV, Stores::weights);
    };
    ASSERT_LT(verify::sample_keys(problem, {})[0].rows.size(), 200u);
    outputs::expect_passed(check());
    for (HostTensor* tensor : {&output.dQ, &output.dK, &output.dV})
        std::fill_n(tensor->row(0, tensor->H - 1, 1499), 32, 0.0f);
    for (const char* name : {"dQ", "dK", "dV"}) outputs::expect_rejected(check(), name);
}

}  // namespace
