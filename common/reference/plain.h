// The baseline: plain attention in the precision of a kernel. Products and softmax are in fp32, what a kernel stores is
// rounded to problem.type. How far this is from the reference is how far a right kernel may be expected to be.
//
// What is rounded depends on the kernel: S and P if it stores them, only P (the operand of a tensor core) otherwise. In
// the backward it is also O, from which D comes, and dS. O, dQ, dK and dV are rounded once more as results.
//
// `grid` moves the roundings in between without changing their size: x is stored as round(x * grid) / grid. With grid 1
// and a handful of others one gets several equally good baselines, and so an idea of how much luck there is in a single
// one.
#pragma once

#include <vector>

#include "common/attention/problem.h"
#include "common/reference/reference.h"

namespace plain {

/// What a kernel keeps in problem.type between its steps.
enum class Stores { scores, weights };

struct Precision {
    Stores stores = Stores::weights;
    float grid = 1.0f;     // in [1, 2): S, P and dS are stored as round(x * grid) / grid
    float D_shift = 0.0f;  // D moves by so many times u |dO o O|, about two standard errors of rounding O to u |O|
    float L_shift = 0.0f;  // L moves by so many times what saved_L() says
};

/// The saved L as a backward has it: L + shift max(0, 2^-20 |L| - 2^-12), in fp32.
///
/// P = exp(S - L) takes the difference of two large numbers where scores are large, and both are of fp32: S is summed up in an order
/// of the kernel's own, and L is allowed an error of 2^-20 (|L| + s), s being a sum no smaller than a score. Unlike in the softmax,
/// where m is one of the S, nothing of this cancels. Up to |L| = 256 it is less than the 2^-12 that is allowed for sums anyway, and L
/// stays as it is.
float saved_L(double L, float shift);

/// O and L of queries `rows` of sequence b, query head h.
reference::Forward forward(const attention::Problem& problem, const attention::Inputs& inputs, int b, int h,
                           const std::vector<int>& rows, Precision precision);

/// dQ of queries `rows`. `saved` is what a perfect forward gives for those rows.
reference::Rows query_gradient(const attention::Problem& problem, const attention::Inputs& inputs, int b, int h,
                               const std::vector<int>& rows, const reference::Forward& saved, Precision precision);

struct KeyGradients {
    reference::Rows dK, dV;
};

/// dK and dV of keys `rows`, summed in fp32 over the query heads of group h_kv. `group` is a perfect forward of each of
/// them: reference::forward_of_group.
KeyGradients key_gradients(const attention::Problem& problem, const attention::Inputs& inputs, int b, int h_kv,
                           const std::vector<int>& rows, const std::vector<reference::Forward>& group,
                           Precision precision);

}  // namespace plain
