#include "common/verify/tests/outputs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/reference/visibility.h"

namespace outputs {
namespace {

using attention::HostTensor;
using attention::Inputs;
using attention::Problem;

constexpr float infinity = std::numeric_limits<float>::infinity();

std::vector<int> all(int count) {
    std::vector<int> rows(count);
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
}

void copy(const Problem& problem, const reference::Rows& rows, HostTensor& tensor, int b, int h) {
    for (int i = 0; i < tensor.length(b); ++i) {
        for (int c = 0; c < tensor.d; ++c)
            tensor.row(b, h, i)[c] = attention::round_to(problem.type, static_cast<float>(rows.row(i)[c]));
    }
}

template <typename Compute>
Forward forward_of_heads(const Problem& problem, Compute compute) {
    Forward result{query_tensor(problem), row_tensor(problem)};
    for (int b = 0; b < problem.B; ++b) {
        for (int h = 0; h < problem.Hq; ++h) {
            const reference::Forward head = compute(b, h, all(problem.queries(b)));
            copy(problem, head.O, result.O, b, h);
            for (int i = 0; i < problem.queries(b); ++i) *result.L.row(b, h, i) = static_cast<float>(head.L[i]);
        }
    }
    return result;
}

Backward zero_gradients(const Problem& problem) {
    return {query_tensor(problem), key_tensor(problem), key_tensor(problem)};
}

float dot(const float* a, const float* b, int d) {
    float sum = 0.0f;
    for (int c = 0; c < d; ++c) sum += a[c] * b[c];
    return sum;
}

}  // namespace

Forward plain_forward(const Problem& problem, const Inputs& inputs, plain::Precision precision) {
    return forward_of_heads(problem, [&](int b, int h, const std::vector<int>& rows) {
        return plain::forward(problem, inputs, b, h, rows, precision);
    });
}

Forward rounded_forward(const Problem& problem, const Inputs& inputs) {
    return forward_of_heads(problem, [&](int b, int h, const std::vector<int>& rows) {
        return reference::forward(problem, inputs, b, h, rows);
    });
}

Backward plain_backward(const Problem& problem, const Inputs& inputs, plain::Precision precision) {
    Backward result = zero_gradients(problem);
    for (int b = 0; b < problem.B; ++b) {
        const auto queries = all(problem.queries(b)), keys = all(problem.keys(b));
        for (int h = 0; h < problem.Hq; ++h) {
            const auto saved = reference::forward(problem, inputs, b, h, queries);
            copy(problem, plain::query_gradient(problem, inputs, b, h, queries, saved, precision), result.dQ, b, h);
        }
        for (int h = 0; h < problem.Hkv; ++h) {
            const auto group = reference::forward_of_group(problem, inputs, b, h, keys);
            const auto gradients = plain::key_gradients(problem, inputs, b, h, keys, group, precision);
            copy(problem, gradients.dK, result.dK, b, h);
            copy(problem, gradients.dV, result.dV, b, h);
        }
    }
    return result;
}

Backward rounded_backward(const Problem& problem, const Inputs& inputs) {
    Backward result = zero_gradients(problem);
    for (int b = 0; b < problem.B; ++b) {
        const auto queries = all(problem.queries(b)), keys = all(problem.keys(b));
        for (int h = 0; h < problem.Hq; ++h)
            copy(problem, reference::query_gradient(problem, inputs, b, h, queries).values, result.dQ, b, h);
        for (int h = 0; h < problem.Hkv; ++h) {
            const auto group = reference::forward_of_group(problem, inputs, b, h, keys);
            const auto gradients = reference::key_gradients(problem, inputs, b, h, keys, group);
            copy(problem, gradients.dK.values, result.dK, b, h);
            copy(problem, gradients.dV.values, result.dV, b, h);
        }
    }
    return result;
}

Forward tiled_forward(const Problem& problem, const Inputs& inputs, int Bc) {
    const float log2e = 1.44269504f;
    Forward result{query_tensor(problem), row_tensor(problem)};
    for (int b = 0; b < problem.B; ++b) {
        for (int h = 0; h < problem.Hq; ++h) {
            const int h_kv = h / problem.group();
            for (int i = 0; i < problem.queries(b); ++i) {
                const auto seen = reference::visible_keys(problem, b, i);
                float m = -infinity, l = 0.0f;
                std::vector<float> U(problem.d, 0.0f);
                for (int first = seen.first; first < seen.end; first += Bc) {
                    const int end = std::min(first + Bc, seen.end);
                    std::vector<float> S;
                    for (int j = first; j < end; ++j)
                        S.push_back(problem.scale * dot(inputs.Q.row(b, h, i), inputs.K.row(b, h_kv, j), problem.d));
                    const float new_m = std::max(m, *std::max_element(S.begin(), S.end()));
                    const float alpha = std::exp2((m - new_m) * log2e);
                    m = new_m;
                    l *= alpha;
                    for (float& u : U) u *= alpha;
                    for (int j = first; j < end; ++j) {
                        const float weight = std::exp2((S[j - first] - m) * log2e);
                        const float keep = static_cast<float>(reference::dropout_factor(problem, b, h, i, j));
                        const float stored = attention::round_to(problem.type, weight * keep);
                        l += weight;
                        for (int c = 0; c < problem.d; ++c) U[c] += stored * inputs.V.row(b, h_kv, j)[c];
                    }
                }
                *result.L.row(b, h, i) = m == -infinity ? m : m + std::log(l);
                for (int c = 0; c < problem.d; ++c)
                    result.O.row(b, h, i)[c] = l == 0.0f ? 0.0f : attention::round_to(problem.type, U[c] / l);
            }
        }
    }
    return result;
}

Backward tiled_backward(const Problem& problem, const Inputs& inputs, const Forward& forward) {
    Backward result = zero_gradients(problem);
    const int d = problem.d;
    const auto add = [d](float* sum, float factor, const float* row) {
        for (int c = 0; c < d; ++c) sum[c] += factor * row[c];
    };
    for (int b = 0; b < problem.B; ++b) {
        for (int h = 0; h < problem.Hq; ++h) {
            const int h_kv = h / problem.group();
            for (int i = 0; i < problem.queries(b); ++i) {
                const float L = *forward.L.row(b, h, i);
                const float D = dot(inputs.dO.row(b, h, i), forward.O.row(b, h, i), d);
                const auto seen = reference::visible_keys(problem, b, i);
                for (int j = seen.first; j < seen.end; ++j) {
                    const float S = problem.scale * dot(inputs.Q.row(b, h, i), inputs.K.row(b, h_kv, j), d);
                    const float P = std::exp(S - L);
                    const float keep = static_cast<float>(reference::dropout_factor(problem, b, h, i, j));
                    const float dP = keep * dot(inputs.dO.row(b, h, i), inputs.V.row(b, h_kv, j), d);
                    const float dS = attention::round_to(problem.type, P * (dP - D));
                    add(result.dV.row(b, h_kv, j), attention::round_to(problem.type, P * keep), inputs.dO.row(b, h, i));
                    add(result.dQ.row(b, h, i), dS, inputs.K.row(b, h_kv, j));
                    add(result.dK.row(b, h_kv, j), dS, inputs.Q.row(b, h, i));
                }
            }
        }
    }
    for (float& value : result.dQ.values) value = attention::round_to(problem.type, problem.scale * value);
    for (float& value : result.dK.values) value = attention::round_to(problem.type, problem.scale * value);
    for (float& value : result.dV.values) value = attention::round_to(problem.type, value);
    return result;
}

void expect_passed(const std::vector<verify::Check>& checks) {
    for (const verify::Check& check : checks)
        EXPECT_TRUE(check.passed) << check.where << "; error " << check.error << ", limit " << check.limit;
}

void expect_rejected(const std::vector<verify::Check>& checks, const std::string& tensor) {
    for (const verify::Check& check : checks) {
        if (check.tensor != tensor) continue;
        EXPECT_FALSE(check.passed) << tensor << " passed; error " << check.error << ", limit " << check.limit;
        EXPECT_NE(check.where.find(tensor), std::string::npos) << check.where;
        return;
    }
    ADD_FAILURE() << "There is no check of " << tensor;
}

}  // namespace outputs
