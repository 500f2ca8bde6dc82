// Outputs to be judged: good ones, which the tests then spoil.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/attention/problem.h"
#include "common/reference/plain.h"
#include "common/reference/reference.h"
#include "common/verify/metrics.h"

namespace outputs {

struct Forward {
    attention::HostTensor O, L;
};

struct Backward {
    attention::HostTensor dQ, dK, dV;
};

/// What the plain baseline gives.
Forward plain_forward(const attention::Problem& problem, const attention::Inputs& inputs, plain::Precision precision);
Backward plain_backward(const attention::Problem& problem, const attention::Inputs& inputs, plain::Precision precision);

/// The reference, rounded to the problem's type.
Forward rounded_forward(const attention::Problem& problem, const attention::Inputs& inputs);
Backward rounded_backward(const attention::Problem& problem, const attention::Inputs& inputs);

/// What a tiled kernel gives: running maximum, weights exp2(S - m) <= 1 rounded before the product with V, one division
/// at the end.
Forward tiled_forward(const attention::Problem& problem, const attention::Inputs& inputs, int Bc);

/// A backward by recomputation from a forward's O and L, in fp32 with P and dS rounded before the products.
Backward tiled_backward(const attention::Problem& problem, const attention::Inputs& inputs, const Forward& forward);

/// Fails the test, with the check's words, unless all checks passed.
void expect_passed(const std::vector<verify::Check>& checks);
/// Fails unless the check of `tensor` failed and says where.
void expect_rejected(const std::vector<verify::Check>& checks, const std::string& tensor);

}  // namespace outputs
