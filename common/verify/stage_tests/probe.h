// Small problems with inputs set by hand, and what a rung makes of them.
#pragma once

#include <functional>
#include <vector>

#include "common/verify/run.h"

namespace verify {

/// A rung's results: O and L of a forward, dQ, dK and dV of a backward.
struct Outputs {
    attention::HostTensor O, L, dQ, dK, dV;

    /// The same bits everywhere, NaNs included.
    bool operator==(const Outputs& other) const;
};

/// A problem whose inputs are zeros until set.
struct Probe {
    attention::Problem problem;
    attention::Inputs inputs;
    Setup setup;

    explicit Probe(attention::Problem problem);

    /// Q, K, V or dO of one head of one sequence: element (row, column).
    float& q(int i, int c = 0, int h = 0, int b = 0) { return inputs.Q.row(b, h, i)[c]; }
    float& k(int j, int c = 0, int h = 0, int b = 0) { return inputs.K.row(b, h, j)[c]; }
    float& v(int j, int c = 0, int h = 0, int b = 0) { return inputs.V.row(b, h, j)[c]; }
    float& dO(int i, int c = 0, int h = 0, int b = 0) { return inputs.dO.row(b, h, i)[c]; }

    /// Runs the rung, expects the verifier to be content, and returns what was written.
    Outputs run(const ladder::Rung& rung) const;
    /// The same without the verifier's opinion on the values; broken rules and refusals still fail the test.
    Outputs run_unjudged(const ladder::Rung& rung) const;
};

/// One sequence, one head, scale 1, no mask.
attention::Problem small_problem(int Nq, int Nk, int d, attention::DataType type);
attention::Problem causal(attention::Problem problem);

/// The rung takes the problem.
bool takes(const ladder::Rung& rung, const attention::Problem& problem);
/// It multiplies one by one: no tensor core mixes the elements of a tile, 0 * NaN included.
bool is_scalar(const ladder::Rung& rung);
/// The smallest head dimension of 16, 64, 128, 256 that the rung takes.
int smallest_d(const ladder::Rung& rung);
/// The usual head dimensions: 64 and 128, or smallest_d alone where that is larger than 64.
std::vector<int> usual_dimensions(const ladder::Rung& rung);
/// All types that the rung takes.
std::vector<attention::DataType> types(const ladder::Rung& rung);

/// What rounding may make of `expected`, a sum of weighted elements no larger than `magnitude`. Weights of 1 (before
/// they are divided by their sum) are exact in a rung that stores no S and P.
double rounding(const ladder::Rung& rung, attention::DataType type, double expected, double magnitude,
                bool weights_are_one = true);

}  // namespace verify
