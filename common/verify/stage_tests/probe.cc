#include "common/verify/stage_tests/probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace verify {

using attention::DataType;
using attention::HostTensor;
using attention::Problem;
using ladder::Rung;

namespace {

bool same_bits(const HostTensor& a, const HostTensor& b) {
    return a.values.size() == b.values.size() &&
           (a.values.empty() || std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(float)) == 0);
}

Outputs outputs(const Rung& rung, const Run& run) {
    if (rung.pass == ladder::Pass::backward) return {{}, {}, run.output("dQ"), run.output("dK"), run.output("dV")};
    return {run.output("O"), run.output("L"), {}, {}, {}};
}

}  // namespace

bool Outputs::operator==(const Outputs& other) const {
    return same_bits(O, other.O) && same_bits(L, other.L) && same_bits(dQ, other.dQ) && same_bits(dK, other.dK) &&
           same_bits(dV, other.dV);
}

Probe::Probe(Problem the_problem)
    : problem(std::move(the_problem)),
      inputs{attention::query_tensor(problem), attention::key_tensor(problem), attention::key_tensor(problem),
             attention::query_tensor(problem)} {}

Outputs Probe::run(const Rung& rung) const {
    const Case the_case(problem, inputs, setup);
    Run run(rung, the_case);
    const Result result = run.verify();
    EXPECT_TRUE(result.verified()) << rung.title() << ", " << attention::describe(problem) << ": " << result.reason();
    return result.refused ? Outputs{attention::query_tensor(problem), attention::row_tensor(problem),
                                    attention::query_tensor(problem), attention::key_tensor(problem),
                                    attention::key_tensor(problem)}
                          : outputs(rung, run);
}

Outputs Probe::run_unjudged(const Rung& rung) const {
    const Case the_case(problem, inputs, setup);
    Run run(rung, the_case);
    const Result result = run.verify();
    EXPECT_FALSE(result.refused) << *result.refused;
    EXPECT_FALSE(result.fault) << *result.fault;
    return outputs(rung, run);
}

Problem small_problem(int Nq, int Nk, int d, DataType type) {
    Problem problem;
    problem.Nq = Nq;
    problem.Nk = Nk;
    problem.d = d;
    problem.type = type;
    problem.scale = 1.0f;
    return problem;
}

Problem causal(Problem problem) {
    problem.window_left = -1;
    problem.window_right = 0;
    return problem;
}

bool takes(const Rung& rung, const Problem& problem) { return !rung.refuses || !rung.refuses(problem); }

bool is_scalar(const Rung& rung) { return takes(rung, small_problem(1, 1, smallest_d(rung), DataType::fp32)); }

int smallest_d(const Rung& rung) {
    for (int d : {16, 64, 128})
        if (takes(rung, small_problem(1, 1, d, DataType::fp16))) return d;
    return 256;
}

std::vector<int> usual_dimensions(const Rung& rung) {
    const int d = smallest_d(rung);
    return d <= 64 ? std::vector{64, 128} : std::vector{d};
}

std::vector<DataType> types(const Rung& rung) {
    std::vector<DataType> result;
    for (DataType type : {DataType::fp32, DataType::fp16, DataType::bf16})
        if (takes(rung, small_problem(1, 1, smallest_d(rung), type))) result.push_back(type);
    return result;
}

double rounding(const Rung& rung, DataType type, double expected, double magnitude, bool weights_are_one) {
    const bool weights_are_exact = weights_are_one && rung.stores == ladder::Stores::weights;
    return half_ulp(type, std::abs(expected)) + magnitude * (0x1p-20 + (weights_are_exact ? 0 : 2 * half_ulp(type, 1)));
}

}  // namespace verify
