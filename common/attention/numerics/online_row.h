// One row of attention as a kernel computes it, block by block of keys, and as it is.
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "common/attention/exp2.h"
#include "common/attention/problem.h"
#include "common/attention/rescale.h"

namespace attention::numerics {

/// Scores of a few rows, in base 2 (softmax.h), and the values of their keys.
struct Rows {
    int rows, keys;
    std::vector<float> scores;  // rows x keys
    HostTensor V;

    std::span<const float> row(int i) const { return {scores.data() + std::size_t(i) * keys, std::size_t(keys)}; }
};

/// Rows of a problem with d = 64 whose operands are drawn from `law` as fp16.
inline Rows draw_rows(int rows, int keys, InputLaw law, double scale, std::uint64_t seed) {
    Problem problem;
    problem.Nq = rows;
    problem.Nk = keys;
    problem.d = 64;
    problem.type = DataType::fp16;
    const Inputs inputs = make_inputs(problem, law, seed);
    Rows result{rows, keys, {}, inputs.V};
    for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < keys; ++j) {
            const float *q = inputs.Q.row(0, 0, i), *k = inputs.K.row(0, 0, j);
            float product = 0;
            for (int n = 0; n < problem.d; ++n) product += q[n] * k[n];
            result.scores.push_back(gpu::mul_rn(product, static_cast<float>(scale) * gpu::log2_e));
        }
    }
    return result;
}

/// What became of one row: O, L, and on the way.
struct Outcome {
    std::vector<double> O;
    double L;
    float largest_weight = 0, largest_sum = 0;  // of W as T holds it; of l and |U|
    std::vector<bool> rescaled = {};            // at each block
};

/// By the formula, in double precision.
inline Outcome exact_row(std::span<const float> s, const HostTensor& V) {
    double m = -gpu::infinity, l = 0;
    for (float score : s) m = std::isnan(score) ? score : std::max(m, double(score));
    if (m == -gpu::infinity) return {std::vector<double>(V.d), m};
    std::vector<double> O(V.d);
    for (std::size_t j = 0; j < s.size(); ++j) {
        const double weight = std::exp2(s[j] - m);
        l += weight;
        for (int n = 0; n < V.d; ++n) O[n] += weight * V.row(0, 0, int(j))[n];
    }
    for (double& x : O) x /= l;
    return {O, (m + std::log2(l)) * std::log(2.0)};
}

/// In fp32, with weights rounded to T before they are multiplied with V, exponentials by Policy and the base kept up to tau.
template <class T, class Policy>
Outcome online_row(std::span<const float> s, const HostTensor& V, float tau, int Bc = 128) {
    float base = -gpu::infinity, l = 0;
    std::vector<float> U(V.d);
    Outcome result{{}, 0};
    for (std::size_t begin = 0; begin < s.size(); begin += Bc) {
        const std::span<const float> block = s.subspan(begin, Bc);
        float m = base;
        for (float score : block) m = gpu::max_nan(m, score);
        const Rescale rescale = conditional_rescale(base, m, tau);
        result.rescaled.push_back(rescale.alpha != 1);
        base = rescale.base;
        l *= rescale.alpha;
        for (float& u : U) u *= rescale.alpha;
        for (int i = 0; i < Bc; i += 2) {
            const float shift = exponent_base(base);
            const gpu::FloatPair W = Policy::exp2({block[i] - shift, block[i + 1] - shift}, i);
            for (int e = 0; e < 2; ++e) {
                l += W[e];
                const float rounded = gpu::to_float(gpu::cvt_rn<T>(W[e]));
                result.largest_weight = std::max(result.largest_weight, rounded);
                for (int n = 0; n < V.d; ++n) {
                    U[n] += rounded * V.row(0, 0, int(begin) + i + e)[n];
                    result.largest_sum = std::max({result.largest_sum, l, std::abs(U[n])});
                }
            }
        }
    }
    for (float u : U) result.O.push_back(u * inverse_sum(l));
    result.L = log_sum_exp(base, l);
    return result;
}

}  // namespace attention::numerics
