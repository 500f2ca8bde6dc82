// Who sees whom, what becomes of a score, and which weights dropout keeps: what the reference and the plain baseline must
// agree on.
#pragma once

#include <vector>

#include "common/attention/problem.h"

namespace reference {

/// Rows first, ..., end - 1.
struct Range {
    int first, end;
    int count() const { return end - first; }
};

/// The keys of sequence b that query i sees; count() == 0 if there are none.
Range visible_keys(const attention::Problem& problem, int b, int i);
/// The queries of sequence b that see key j.
Range visible_queries(const attention::Problem& problem, int b, int j);

/// The score of (i, j) in sequence b, query head h, after softcap and ALiBi, from S = scale q k.
double modified_score(const attention::Problem& problem, int b, int h, int i, int j, double S);
/// Its derivative by S.
double score_derivative(const attention::Problem& problem, double S);

/// Z_ij / (1 - p): 0 for a dropped weight, 1 / (1 - p) for a kept one; 1 without dropout.
double dropout_factor(const attention::Problem& problem, int b, int h, int i, int j);

}  // namespace reference
