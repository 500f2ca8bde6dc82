#include "common/reference/plain.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/attention/parallel.h"
#include "common/reference/visibility.h"

namespace plain {
namespace {

using attention::HostTensor;
using attention::Inputs;
using attention::Problem;
using Eigen::VectorXf;
using reference::Range;
using reference::Rows;
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixView = Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>;

constexpr float infinity = std::numeric_limits<float>::infinity();

MatrixView view(const HostTensor& tensor, int b, int h, Range rows) {
    const Eigen::OuterStride<> stride(tensor.offset(b, h, 1) - tensor.offset(b, h, 0));
    return {tensor.row(b, h, rows.first), rows.count(), tensor.d, stride};
}

Eigen::Map<const VectorXf> vector(const HostTensor& tensor, int b, int h, int i) {
    return {tensor.row(b, h, i), tensor.d};
}

// `values` as they are after having been stored in problem.type.
VectorXf stored(const Problem& problem, const VectorXf& values, float grid = 1.0f) {
    return values.unaryExpr([&](float x) { return attention::round_to(problem.type, x * grid) / grid; });
}

void store_result(const Problem& problem, const VectorXf& values, Rows& rows, int n) {
    Eigen::Map<Eigen::VectorXd>(rows.row(n), rows.columns) = stored(problem, values).cast<double>();
}

// Scores as the softmax takes them, and their derivatives by scale q k.
struct Scores {
    VectorXf values, derivative;
};

// pair(n): query and key of products[n].
template <typename PairOf>
Scores scores(const Problem& problem, int b, int h, const VectorXf& products, Precision precision, PairOf pair) {
    Scores S{problem.scale * products, VectorXf::Ones(products.size())};
    for (int n = 0; n < products.size() && problem.modifies_scores(); ++n) {
        const auto [i, j] = pair(n);
        S.derivative[n] = static_cast<float>(reference::score_derivative(problem, S.values[n]));
        S.values[n] = static_cast<float>(reference::modified_score(problem, b, h, i, j, S.values[n]));
    }
    if (precision.stores == Stores::scores) S.values = stored(problem, S.values, precision.grid);
    return S;
}

VectorXf exponentials(const VectorXf& S, float base) {
    return (S.array() - base).unaryExpr([](float x) { return std::exp(x); });
}

float unit_roundoff(attention::DataType type) {
    switch (type) {
        case attention::DataType::fp16:
            return 0x1p-11f;
        case attention::DataType::bf16:
            return 0x1p-8f;
        default:
            return 0x1p-24f;
    }
}

// D_i = dO_i . O_i from the stored O.
float row_dot(const Problem& problem, const Inputs& inputs, int b, int h, int i, const double* O_i,
              Precision precision) {
    const VectorXf O = stored(problem, Eigen::Map<const Eigen::VectorXd>(O_i, problem.d).cast<float>());
    const VectorXf products = vector(inputs.dO, b, h, i).cwiseProduct(O);
    return products.sum() + precision.D_shift * unit_roundoff(problem.type) * products.norm();
}

// dS = P o (dP - D), times the derivative of the scores, where a kernel that stores P has only the stored P left, and Z already
// holds 1 / (1 - p).
struct Weights {
    VectorXf for_V;  // the stored P o Z / (1 - p)
    VectorXf dS;     // stored
};

Weights backward_weights(const Problem& problem, const VectorXf& P, const VectorXf& Z, const VectorXf& dP,
                         const VectorXf& D, const VectorXf& derivative, Precision precision) {
    const VectorXf P_kept = precision.stores == Stores::scores ? stored(problem, P, precision.grid) : P;
    const VectorXf dS = P_kept.array() * (dP.cwiseProduct(Z) - D).array() * derivative.array();
    return {stored(problem, P.cwiseProduct(Z), precision.grid), stored(problem, dS, precision.grid)};
}

}  // namespace

float saved_L(double L, float shift) {
    const float saved = static_cast<float>(L);
    if (std::abs(saved) == infinity) return saved;
    return saved + shift * std::max(0.0f, 0x1p-20f * std::abs(saved) - 0x1p-12f);
}

reference::Forward forward(const Problem& problem, const Inputs& inputs, int b, int h, const std::vector<int>& rows,
                           Precision precision) {
    const int h_kv = h / problem.group();
    reference::Forward result{Rows(static_cast<int>(rows.size()), problem.d), std::vector<double>(rows.size())};
    const auto compute = [&](int n) {
        const int i = rows[n];
        const Range seen = reference::visible_keys(problem, b, i);
        const VectorXf S =
            scores(problem, b, h, view(inputs.K, b, h_kv, seen) * vector(inputs.Q, b, h, i), precision, [&](int n) {
                return std::pair{i, seen.first + n};
            }).values;
        const float m = S.size() > 0 ? S.maxCoeff<Eigen::PropagateNaN>() : -infinity;
        result.L[n] = m;
        if (m == -infinity) return;  // O stays 0

        VectorXf P = exponentials(S, m);
        const float l = P.sum();
        result.L[n] = m + std::log(l);
        P /= l;
        for (int j = seen.first; j < seen.end; ++j)
            P[j - seen.first] *= static_cast<float>(reference::dropout_factor(problem, b, h, i, j));
        P = stored(problem, P, precision.grid);
        store_result(problem, view(inputs.V, b, h_kv, seen).transpose() * P, result.O, n);
    };
    attention::in_parallel(static_cast<int>(rows.size()), 1.0 * rows.size() * problem.keys(b) * problem.d, compute);
    return result;
}

Rows query_gradient(const Problem& problem, const Inputs& inputs, int b, int h, const std::vector<int>& rows,
                    const reference::Forward& saved, Precision precision) {
    const int h_kv = h / problem.group();
    Rows dQ(static_cast<int>(rows.size()), problem.d);
    const auto gradient_of = [&](int n) {
        const int i = rows[n];
        const float L = saved_L(saved.L[n], precision.L_shift);
        if (L == -infinity) return;  // dQ stays 0
        const Range seen = reference::visible_keys(problem, b, i);
        const auto K = view(inputs.K, b, h_kv, seen);
        const auto dO = vector(inputs.dO, b, h, i);

        const Scores S = scores(problem, b, h, K * vector(inputs.Q, b, h, i), precision, [&](int n) {
            return std::pair{i, seen.first + n};
        });
        const VectorXf P = exponentials(S.values, L);
        VectorXf Z(seen.count());
        for (int j = seen.first; j < seen.end; ++j)
            Z[j - seen.first] = static_cast<float>(reference::dropout_factor(problem, b, h, i, j));
        const VectorXf dP = view(inputs.V, b, h_kv, seen) * dO;
        const VectorXf D =
            VectorXf::Constant(seen.count(), row_dot(problem, inputs, b, h, i, saved.O.row(n), precision));
        const VectorXf dS = backward_weights(problem, P, Z, dP, D, S.derivative, precision).dS;
        store_result(problem, problem.scale * (K.transpose() * dS), dQ, n);
    };
    attention::in_parallel(static_cast<int>(rows.size()), 1.0 * rows.size() * problem.keys(b) * problem.d, gradient_of);
    return dQ;
}

KeyGradients key_gradients(const Problem& problem, const Inputs& inputs, int b, int h_kv, const std::vector<int>& rows,
                           const std::vector<reference::Forward>& group, Precision precision) {
    const int count = static_cast<int>(rows.size());
    Matrix dK = Matrix::Zero(count, problem.d);
    Matrix dV = Matrix::Zero(count, problem.d);
    for (int member = 0; member < problem.group(); ++member) {
        const int h = h_kv * problem.group() + member;
        const reference::Forward& saved = group[member];
        VectorXf D_of_all(problem.queries(b));
        for (int i = 0; i < problem.queries(b); ++i)
            D_of_all[i] = row_dot(problem, inputs, b, h, i, saved.O.row(i), precision);
        const auto add_to = [&](int n) {
            const int j = rows[n];
            const Range seeing = reference::visible_queries(problem, b, j);
            const auto Q = view(inputs.Q, b, h, seeing);
            const auto dO = view(inputs.dO, b, h, seeing);
            const Scores S = scores(problem, b, h, Q * vector(inputs.K, b, h_kv, j), precision, [&](int n) {
                return std::pair{seeing.first + n, j};
            });
            VectorXf P(seeing.count()), Z(seeing.count());
            for (int i = seeing.first; i < seeing.end; ++i) {
                const int at = i - seeing.first;
                const float L = saved_L(saved.L[i], precision.L_shift);
                P[at] = L == -infinity ? 0.0f : std::exp(S.values[at] - L);
                Z[at] = static_cast<float>(reference::dropout_factor(problem, b, h, i, j));
            }
            const VectorXf dP = dO * vector(inputs.V, b, h_kv, j);
            const Weights weights = backward_weights(problem, P, Z, dP, D_of_all.segment(seeing.first, seeing.count()),
                                                     S.derivative, precision);
            dV.row(n) += (dO.transpose() * weights.for_V).transpose();
            dK.row(n) += problem.scale * (Q.transpose() * weights.dS).transpose();
        };
        attention::in_parallel(count, 1.0 * count * problem.queries(b) * problem.d, add_to);
    }
    KeyGradients result{Rows(count, problem.d), Rows(count, problem.d)};
    for (int n = 0; n < count; ++n) {
        store_result(problem, dK.row(n).transpose(), result.dK, n);
        store_result(problem, dV.row(n).transpose(), result.dV, n);
    }
    return result;
}

}  // namespace plain
