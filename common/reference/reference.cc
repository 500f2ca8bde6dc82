#include "common/reference/reference.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <limits>

#include "common/attention/parallel.h"
#include "common/reference/visibility.h"

#ifdef __FAST_MATH__
#error "Build the reference without -ffast-math: NaN and infinity have to flow as in the formulas."
#endif

namespace reference {
namespace {

using attention::HostTensor;
using attention::Inputs;
using attention::Problem;
using Eigen::VectorXd;
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixOfFloats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr double infinity = std::numeric_limits<double>::infinity();

// The (length, d) matrix of one head.
Matrix head(const HostTensor& tensor, int b, int h) {
    const Eigen::OuterStride<> stride(tensor.offset(b, h, 1) - tensor.offset(b, h, 0));
    return Eigen::Map<const MatrixOfFloats, 0, Eigen::OuterStride<>>(tensor.row(b, h, 0), tensor.length(b), tensor.d,
                                                                     stride)
        .cast<double>();
}

VectorXd vector(const HostTensor& tensor, int b, int h, int i) {
    return Eigen::Map<const Eigen::VectorXf>(tensor.row(b, h, i), tensor.d).cast<double>();
}

// Of the pair in place n.
struct Pair {
    int i, j;
};

// Scores from S = scale q k in place; the derivatives by S are returned. pair(n): query and key of S[n].
template <typename Scores, typename PairOf>
VectorXd modify(const Problem& problem, int b, int h, Scores&& S, PairOf pair) {
    VectorXd derivative = VectorXd::Ones(S.size());
    if (!problem.modifies_scores()) return derivative;
    for (int n = 0; n < S.size(); ++n) {
        derivative[n] = score_derivative(problem, S[n]);
        S[n] = modified_score(problem, b, h, pair(n).i, pair(n).j, S[n]);
    }
    return derivative;
}

Eigen::Map<VectorXd> vector(Rows& rows, int n) { return {rows.row(n), rows.columns}; }
Eigen::Map<const VectorXd> vector(const Rows& rows, int n) { return {rows.row(n), rows.columns}; }

// Softmax of the visible part of a row of scores, in place. Returns L.
template <typename Scores>
double softmax(Scores&& scores) {
    if (scores.size() == 0) return -infinity;
    const double m = scores.template maxCoeff<Eigen::PropagateNaN>();
    if (m == -infinity) {
        scores.setZero();
        return -infinity;
    }
    scores = (scores.array() - m).unaryExpr([](double x) { return std::exp(x); }).matrix();
    const double l = scores.sum();
    scores /= l;
    return m + std::log(l);
}

// Weights P o Z / (1 - p) of queries `rows` against keys `seen`, which hold all that they see; 0 where hidden.
Matrix weights(const Problem& problem, const Matrix& Q, const Matrix& K, int b, int h, const std::vector<int>& rows,
               Range seen, double* L) {
    Matrix P = static_cast<double>(problem.scale) * (Q * K.middleRows(seen.first, seen.count()).transpose());
    for (std::size_t n = 0; n < rows.size(); ++n) {
        const Range visible = visible_keys(problem, b, rows[n]);
        const int start = visible.count() > 0 ? visible.first - seen.first : 0;
        P.row(n).head(start).setZero();
        P.row(n).tail(P.cols() - start - visible.count()).setZero();
        auto S = P.row(n).segment(start, visible.count());
        modify(problem, b, h, S, [&](int column) { return Pair{rows[n], visible.first + column}; });
        L[n] = softmax(S);
        if (problem.dropout > 0.0f) {
            for (int j = visible.first; j < visible.end; ++j)
                P(n, j - seen.first) *= dropout_factor(problem, b, h, rows[n], j);
        }
    }
    return P;
}

// Calls visit(first, queries, seen) for blocks of queries, which keeps P small; of many queries for several blocks at
// once. Blocks are multiplied as matrices with zero weights where a key is hidden. That needs finite V: 0 times a hidden
// NaN would be NaN. Otherwise a block is one query.
template <typename Visit>
void for_each_block(const Problem& problem, int b, const std::vector<int>& rows, bool finite, Visit visit) {
    const std::size_t block = finite ? 128 : 1;
    const auto visit_block = [&](int n) {
        const std::size_t first = n * block;
        const std::vector<int> queries(rows.begin() + first, rows.begin() + std::min(first + block, rows.size()));
        Range seen{std::numeric_limits<int>::max(), 0};
        for (int i : queries) {
            const Range visible = visible_keys(problem, b, i);
            if (visible.count() > 0) seen = {std::min(seen.first, visible.first), std::max(seen.end, visible.end)};
        }
        if (seen.count() < 0) seen = {0, 0};
        visit(static_cast<int>(first), queries, seen);
    };
    const int blocks = static_cast<int>((rows.size() + block - 1) / block);
    attention::in_parallel(blocks, 1.0 * rows.size() * problem.keys(b) * problem.d, visit_block);
}

Matrix gather(const HostTensor& tensor, int b, int h, const std::vector<int>& rows) {
    Matrix result(rows.size(), tensor.d);
    for (std::size_t n = 0; n < rows.size(); ++n) result.row(n) = vector(tensor, b, h, rows[n]).transpose();
    return result;
}

// (P o Z / (1 - p)) V for a V that the caller chooses, V itself or |V|.
Forward weighted_sum(const Problem& problem, const Inputs& inputs, int b, int h, const std::vector<int>& rows,
                     const Matrix& V) {
    const Matrix K = head(inputs.K, b, h / problem.group());
    Forward result{Rows(static_cast<int>(rows.size()), problem.d), std::vector<double>(rows.size())};
    for_each_block(problem, b, rows, V.allFinite(), [&](int first, const std::vector<int>& queries, Range seen) {
        const Matrix P = weights(problem, gather(inputs.Q, b, h, queries), K, b, h, queries, seen, &result.L[first]);
        Eigen::Map<Matrix> O(result.O.row(first), queries.size(), problem.d);
        O = P * V.middleRows(seen.first, seen.count());
        for (std::size_t n = 0; n < queries.size(); ++n) {
            if (result.L[first + n] == -infinity) O.row(n).setZero();
        }
    });
    return result;
}

}  // namespace

Forward forward(const Problem& problem, const Inputs& inputs, int b, int h, const std::vector<int>& rows) {
    return weighted_sum(problem, inputs, b, h, rows, head(inputs.V, b, h / problem.group()));
}

Rows output_terms(const Problem& problem, const Inputs& inputs, int b, int h, const std::vector<int>& rows) {
    return weighted_sum(problem, inputs, b, h, rows, head(inputs.V, b, h / problem.group()).cwiseAbs()).O;
}

std::vector<double> score_terms(const Problem& problem, const Inputs& inputs, int b, int h,
                                const std::vector<int>& rows) {
    const Matrix K = head(inputs.K, b, h / problem.group()).cwiseAbs();
    std::vector<double> result(rows.size());
    for_each_block(problem, b, rows, true, [&](int first, const std::vector<int>& queries, Range seen) {
        const Matrix sums =
            gather(inputs.Q, b, h, queries).cwiseAbs() * K.middleRows(seen.first, seen.count()).transpose();
        for (std::size_t n = 0; n < queries.size(); ++n) {
            const Range visible = visible_keys(problem, b, queries[n]);
            double largest = 0.0;
            for (int j = visible.first; j < visible.end; ++j) {
                const double sum = sums(n, j - seen.first);
                if (std::isfinite(sum)) largest = std::max(largest, sum);
            }
            result[first + n] = std::abs(static_cast<double>(problem.scale)) * largest;
        }
    });
    return result;
}

Gradient query_gradient(const Problem& problem, const Inputs& inputs, int b, int h, const std::vector<int>& rows) {
    const Matrix K = head(inputs.K, b, h / problem.group());
    const Matrix V = head(inputs.V, b, h / problem.group());
    const double scale = problem.scale;
    Gradient dQ{Rows(static_cast<int>(rows.size()), problem.d), Rows(static_cast<int>(rows.size()), problem.d)};
    const auto gradient_of = [&](int n) {
        const int i = rows[n];
        const Range visible = visible_keys(problem, b, i);
        const auto K_seen = K.middleRows(visible.first, visible.count());
        const auto V_seen = V.middleRows(visible.first, visible.count());
        VectorXd P = scale * (K_seen * vector(inputs.Q, b, h, i));
        const VectorXd derivative = modify(problem, b, h, P, [&](int n) { return Pair{i, visible.first + n}; });
        if (softmax(P) == -infinity) return;  // the gradient stays 0

        VectorXd Z(visible.count());
        for (int j = visible.first; j < visible.end; ++j) Z[j - visible.first] = dropout_factor(problem, b, h, i, j);
        const VectorXd dO = vector(inputs.dO, b, h, i);
        const VectorXd O = V_seen.transpose() * P.cwiseProduct(Z);
        const VectorXd dP = (V_seen * dO).cwiseProduct(Z);
        const VectorXd dS = P.array() * (dP.array() - dO.dot(O)) * derivative.array();
        vector(dQ.values, n) = scale * (K_seen.transpose() * dS);

        const double D_terms = dO.cwiseAbs().dot(O.cwiseAbs());
        const VectorXd dP_terms = (V_seen.cwiseAbs() * dO.cwiseAbs()).cwiseProduct(Z);
        const VectorXd dS_terms = P.array() * (dP_terms.array() + D_terms);  // 1 - tanh^2 has terms of size 1
        vector(dQ.terms, n) = std::abs(scale) * (K_seen.cwiseAbs().transpose() * dS_terms);
    };
    attention::in_parallel(static_cast<int>(rows.size()), 1.0 * rows.size() * problem.keys(b) * problem.d, gradient_of);
    return dQ;
}

std::vector<Forward> forward_of_group(const Problem& problem, const Inputs& inputs, int b, int h_kv,
                                      const std::vector<int>& rows) {
    std::vector<bool> needed(problem.queries(b), false);
    for (int j : rows) {
        const Range visible = visible_queries(problem, b, j);
        std::fill(needed.begin() + visible.first, needed.begin() + visible.end, true);
    }
    std::vector<int> queries;
    for (int i = 0; i < problem.queries(b); ++i) {
        if (needed[i]) queries.push_back(i);
    }

    std::vector<Forward> group;
    for (int h = h_kv * problem.group(); h < (h_kv + 1) * problem.group(); ++h) {
        const Forward computed = forward(problem, inputs, b, h, queries);
        Forward all{Rows(problem.queries(b), problem.d), std::vector<double>(problem.queries(b))};
        for (std::size_t n = 0; n < queries.size(); ++n) {
            vector(all.O, queries[n]) = vector(computed.O, n);
            all.L[queries[n]] = computed.L[n];
        }
        group.push_back(std::move(all));
    }
    return group;
}

KeyGradients key_gradients(const Problem& problem, const Inputs& inputs, int b, int h_kv, const std::vector<int>& rows,
                           const std::vector<Forward>& group) {
    const int count = static_cast<int>(rows.size());
    const double scale = problem.scale;
    KeyGradients result;
    for (Gradient* gradient : {&result.dK, &result.dV}) *gradient = {Rows(count, problem.d), Rows(count, problem.d)};

    for (int member = 0; member < problem.group(); ++member) {
        const int h = h_kv * problem.group() + member;
        const Forward& saved = group[member];
        const Matrix Q = head(inputs.Q, b, h);
        const Matrix dO = head(inputs.dO, b, h);
        const Eigen::Map<const Matrix> O(saved.O.values.data(), problem.queries(b), problem.d);
        const Eigen::Map<const VectorXd> L(saved.L.data(), problem.queries(b));
        const VectorXd D = dO.cwiseProduct(O).rowwise().sum();
        const VectorXd D_terms = dO.cwiseProduct(O).cwiseAbs().rowwise().sum();

        const auto add_to = [&](int n) {
            const int j = rows[n];
            const Range seeing = visible_queries(problem, b, j);
            const auto segment = [&](const auto& all) { return all.segment(seeing.first, seeing.count()); };
            const auto Q_seeing = Q.middleRows(seeing.first, seeing.count());
            const auto dO_seeing = dO.middleRows(seeing.first, seeing.count());
            const VectorXd k = vector(inputs.K, b, h_kv, j);
            const VectorXd v = vector(inputs.V, b, h_kv, j);

            VectorXd P = scale * (Q_seeing * k);
            const VectorXd derivative = modify(problem, b, h, P, [&](int n) { return Pair{seeing.first + n, j}; });
            VectorXd Z(seeing.count());
            for (int i = seeing.first; i < seeing.end; ++i) {
                const int at = i - seeing.first;
                P[at] = L[i] == -infinity ? 0.0 : std::exp(P[at] - L[i]);
                Z[at] = dropout_factor(problem, b, h, i, j);
            }
            const VectorXd dP = (dO_seeing * v).cwiseProduct(Z);
            const VectorXd dS = P.array() * (dP - segment(D)).array() * derivative.array();
            vector(result.dV.values, n) += dO_seeing.transpose() * P.cwiseProduct(Z);
            vector(result.dK.values, n) += scale * (Q_seeing.transpose() * dS);

            const VectorXd dP_terms = (dO_seeing.cwiseAbs() * v.cwiseAbs()).cwiseProduct(Z);
            const VectorXd dS_terms = P.array() * (dP_terms + segment(D_terms)).array();
            vector(result.dV.terms, n) += dO_seeing.cwiseAbs().transpose() * P.cwiseProduct(Z);
            vector(result.dK.terms, n) += std::abs(scale) * (Q_seeing.cwiseAbs().transpose() * dS_terms);
        };
        attention::in_parallel(count, 1.0 * count * problem.queries(b) * problem.d, add_to);
    }
    return result;
}

}  // namespace reference
