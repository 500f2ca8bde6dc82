// When is a kernel's output right? Rules, against the fp64 reference and the plain baseline in the kernel's precision.
//
// O, dQ, dK, dV: the largest error of an element may be 2 x that of the baseline + half an ulp of the output type at
// the largest |reference|. The 2-norm of the error of each row likewise, where the baseline is the worst row among
// those whose reference is at most twice as large, or next in size: the last rows of a long causal problem are small
// averages, and zeros there would drown in the errors of the first rows. Both allow for sums in fp32 as well, with
// 2^-20 (1 + s) times the terms added up, at most 2^-12 times, where s bounds the scores; this decides only where the
// baseline happens to be exact. And both allow each element 2^-126, the smallest normal number of fp32, of which a right
// kernel makes 0 when ex2.approx.ftz flushes a smaller weight; it decides only where nothing larger stands.
//
// L: |dL| <= 2^-20 (|L| + scale max_j sum_k |q_k k_jk|) + 1e-6, tight enough to notice one dropped key; plus 2 x the
// baseline's error for kernels that store scores in 16 bits, and the relative error that a kernel states for its
// exponentials (polynomials), for a sum of terms is as wrong as they are.
//
// Everywhere: where the reference is NaN or infinite, so must the output be, with the same sign; NaN and Inf fail
// elsewhere. No NaN may stand anywhere in the output of finite inputs, sampled or not: outputs are filled with NaN
// before a run, so that an element which was never written shows.
#pragma once

#include <string>
#include <vector>

#include "common/attention/problem.h"
#include "common/reference/plain.h"
#include "common/verify/sample.h"

namespace verify {

struct Check {
    std::string tensor;  // "O", "L", "dQ", "dK" or "dV"
    double error = 0.0;  // the largest of an element, or of the row if that rule failed; L: the worst beside its limit
    double limit = 0.0;  // what `error` may be
    bool passed = false;
    std::string where;  // rule, place (b, h, row, column), value and reference of the worst element or row
};

/// O and L of a forward pass. exponential_error: see ladder::Rung. Throws std::invalid_argument if a tensor has not the
/// problem's shape.
std::vector<Check> check_forward(const attention::Problem& problem, const attention::Inputs& inputs,
                                 const attention::HostTensor& O, const attention::HostTensor& L, plain::Stores stores,
                                 const Sample& sample = {}, double exponential_error = 0.0);

/// dQ, dK and dV of a backward pass. Throws likewise.
std::vector<Check> check_backward(const attention::Problem& problem, const attention::Inputs& inputs,
                                  const attention::HostTensor& dQ, const attention::HostTensor& dK,
                                  const attention::HostTensor& dV, plain::Stores stores, const Sample& sample = {});

/// Half the distance between neighbouring values of `type` at `magnitude`.
double half_ulp(attention::DataType type, double magnitude);

}  // namespace verify
