// Problems small enough to be written out by hand.
#pragma once

#include <functional>
#include <numeric>
#include <vector>

#include "common/attention/problem.h"

namespace small {

/// One sequence, one head, fp32, scale 1.
inline attention::Problem problem(int Nq, int Nk, int d = 16) {
    attention::Problem result;
    result.Nq = Nq;
    result.Nk = Nk;
    result.d = d;
    result.type = attention::DataType::fp32;
    result.scale = 1.0f;
    return result;
}

inline attention::Problem causal(attention::Problem problem) {
    problem.window_right = 0;
    return problem;
}

inline attention::Inputs zeros(const attention::Problem& problem) {
    return {query_tensor(problem), key_tensor(problem), key_tensor(problem), query_tensor(problem)};
}

/// Column 0 of every row of every head is value(row).
inline void set_first_column(attention::HostTensor& tensor, const std::function<double(int)>& value) {
    for (int b = 0; b < tensor.B; ++b) {
        for (int h = 0; h < tensor.H; ++h) {
            for (int i = 0; i < tensor.length(b); ++i) tensor.row(b, h, i)[0] = static_cast<float>(value(i));
        }
    }
}

inline std::vector<int> rows(int count) {
    std::vector<int> result(count);
    std::iota(result.begin(), result.end(), 0);
    return result;
}

}  // namespace small
