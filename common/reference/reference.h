// The judge: attention in double precision, written from the formulas of common/attention/problem.h.
//
//   S = scale Q K^T    m_i = max_j S_ij    l_i = sum_j exp(S_ij - m_i)    L_i = m_i + log l_i
//   P_ij = exp(S_ij - L_i)                 O = (P o Z / (1 - p)) V        sums over visible j only
//
//   dV = (P o Z / (1 - p))^T dO            dP = (dO V^T) o Z / (1 - p)    D_i = dO_i . O_i
//   dS = P o (dP - D)                      dQ = scale dS K                dK = scale dS^T Q
//
// With softcap and ALiBi, S is what they make of scale Q K^T, and dS is multiplied by their derivative before dQ and dK.
//
// It computes the rows it is asked for, each exactly: at N = 16384 a sample of rows is checked in seconds. NaN and Inf
// flow as in the formulas. A query that sees no key, or only scores of -inf, has O = 0 and L = -inf and adds to no
// gradient.
//
// Beside each value stands `terms`, the sum of the absolute values of what was added up to get it. Whatever is summed
// in fp32 errs in proportion to that, not to the value.
#pragma once

#include <vector>

#include "common/attention/problem.h"

namespace reference {

/// Rows of one tensor, one after the other.
struct Rows {
    int columns = 0;
    std::vector<double> values;

    Rows() = default;
    Rows(int rows, int columns) : columns(columns), values(static_cast<std::size_t>(rows) * columns) {}
    double* row(int n) { return values.data() + static_cast<std::size_t>(n) * columns; }
    const double* row(int n) const { return values.data() + static_cast<std::size_t>(n) * columns; }
};

/// O and L of some queries of one head.
struct Forward {
    Rows O;
    std::vector<double> L;
};

/// O and L of queries `rows` of sequence b, query head h.
Forward forward(const attention::Problem& problem, const attention::Inputs& inputs, int b, int h,
                const std::vector<int>& rows);

/// sum_j P_ij Z_ij / (1 - p) |V_jc|, the terms of O.
Rows output_terms(const attention::Problem& problem, const attention::Inputs& inputs, int b, int h,
                  const std::vector<int>& rows);

/// |scale| max_j sum_k |q_ik k_jk| over visible j, the terms of the scores of each query; infinite sums are left
/// out, and 0 stands for none.
std::vector<double> score_terms(const attention::Problem& problem, const attention::Inputs& inputs, int b, int h,
                                const std::vector<int>& rows);

struct Gradient {
    Rows values, terms;
};

/// dQ of queries `rows` of sequence b, query head h.
Gradient query_gradient(const attention::Problem& problem, const attention::Inputs& inputs, int b, int h,
                        const std::vector<int>& rows);

struct KeyGradients {
    Gradient dK, dV;
};

/// dK and dV of keys `rows` of sequence b, key/value head h_kv, summed over the query heads of its group. `group` holds
/// forward() of each of them, for all queries of the sequence in order.
KeyGradients key_gradients(const attention::Problem& problem, const attention::Inputs& inputs, int b, int h_kv,
                           const std::vector<int>& rows, const std::vector<Forward>& group);

/// forward() of all queries of each query head of group h_kv that see one of the keys `rows`; the other queries'
/// entries are left at 0. This is the one step whose cost grows with Nq Nk d.
std::vector<Forward> forward_of_group(const attention::Problem& problem, const attention::Inputs& inputs, int b,
                                      int h_kv, const std::vector<int>& rows);

}  // namespace reference
