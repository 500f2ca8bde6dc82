#include "common/ladder/explain.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iomanip>
#include <limits>
#include <sstream>
#include <string>

namespace ladder {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

double power(double x) { return std::exp(x); }

std::string list(const std::vector<double>& values) {
    std::ostringstream text;
    text << std::setprecision(10);
    for (double value : values) text << (text.tellp() > 0 ? ", " : "") << value;
    return values.size() == 1 ? text.str() : "(" + text.str() + ")";
}

std::string number(double value) { return list({value}); }

void print(const std::vector<double>& S, const std::vector<std::vector<double>>& V, int block, std::ostream& out) {
    out << "  S = " << list(S) << '\n';
    attention::State<double> state;
    std::vector<double> u(V.empty() ? 0 : V[0].size(), 0.0);
    for (const Step& step : online_softmax(S, V, block)) {
        out << "  keys " << step.begin << " to " << step.end - 1 << " alone:  m = " << number(step.block.m)
            << "  l = " << number(step.block.l) << "  u = " << list(step.block_u) << '\n'
            << "    alpha = " << number(step.alpha) << "  beta = " << number(step.beta) << "  W = " << list(step.W)
            << '\n'
            << "    so far:  m = " << number(step.state.m) << "  l = " << number(step.state.l)
            << "  u = " << list(step.u) << '\n';
        state = step.state;
        u = step.u;
    }
    for (double& x : u) x = state.empty() ? 0 : x / state.l;
    out << "  O = u / l = " << list(u)
        << "  L = m + log(l) = " << number(state.empty() ? -infinity : state.m + std::log(state.l)) << "\n\n";
}

// The score of query i and key j; -inf where the mask hides it.
double score(const attention::Problem& problem, const float* q, const float* k, int b, int i, int j) {
    const std::int64_t distance = std::int64_t(j) - (std::int64_t(i) + problem.keys(b) - problem.queries(b));
    if (problem.window_left >= 0 && distance < -problem.window_left) return -infinity;
    if (problem.window_right >= 0 && distance > problem.window_right) return -infinity;
    double sum = 0;
    for (int c = 0; c < problem.d; ++c) sum += double(q[c]) * k[c];
    return sum * problem.scale;
}

}  // namespace

std::vector<Step> online_softmax(const std::vector<double>& S, const std::vector<std::vector<double>>& V, int block) {
    std::vector<Step> steps;
    const std::size_t columns = V.empty() ? 0 : V[0].size();
    const int Nk = static_cast<int>(S.size());
    attention::State<double> state;
    std::vector<double> u(columns, 0.0);
    for (int begin = 0; begin < Nk; begin += std::min(block, Nk - begin)) {
        Step step{};
        step.begin = begin;
        step.end = begin + std::min(block, Nk - begin);

        // The block alone: its keys one by one. A hidden key is no key at all.
        step.block_u.assign(columns, 0.0);
        for (int j = step.begin; j < step.end; ++j) {
            const attention::State<double> key = {S[j], S[j] == -infinity ? 0.0 : 1.0};
            const auto both = attention::merge(step.block, key, power);
            for (std::size_t c = 0; c < columns; ++c) step.block_u[c] = both.u(step.block_u[c], V[j][c]);
            step.block = both.state;
        }

        const auto both = attention::merge(state, step.block, power);
        for (std::size_t c = 0; c < columns; ++c) u[c] = both.u(u[c], step.block_u[c]);
        step.alpha = both.alpha;
        step.beta = both.beta;
        step.state = state = both.state;
        step.u = u;
        for (int j = step.begin; j < step.end; ++j)
            step.W.push_back(S[j] == -infinity ? 0.0 : std::exp(S[j] - state.m));
        steps.push_back(step);
    }
    return steps;
}

void explain_examples(std::ostream& out) {
    out << "Exponentials 1, 2, 4, 8 and values 1, 2, 3, 4: O = (1*1 + 2*2 + 4*3 + 8*4) / (1 + 2 + 4 + 8) = 49/15\n";
    print({0.0, std::log(2.0), std::log(4.0), std::log(8.0)}, {{1}, {2}, {3}, {4}}, 2, out);
    out << "Scores 1, 2, 3, 4 and values 10, 20, 30, 40: O = 34.93\n";
    print({1, 2, 3, 4}, {{10}, {20}, {30}, {40}}, 2, out);
}

void explain(const attention::Problem& problem, const attention::Inputs& inputs, int block, std::ostream& out) {
    out << attention::describe(problem) << ", blocks of " << block << " keys\n\n";
    for (int b = 0; b < problem.B; ++b) {
        for (int h = 0; h < problem.Hq; ++h) {
            const int kv_head = h / problem.group();
            for (int i = 0; i < problem.queries(b); ++i) {
                std::vector<double> S;
                std::vector<std::vector<double>> V;
                for (int j = 0; j < problem.keys(b); ++j) {
                    const float* v = inputs.V.row(b, kv_head, j);
                    S.push_back(score(problem, inputs.Q.row(b, h, i), inputs.K.row(b, kv_head, j), b, i, j));
                    V.emplace_back(v, v + problem.d);
                }
                out << "Sequence " << b << ", head " << h << ", query " << i << '\n';
                print(S, V, block, out);
            }
        }
    }
}

}  // namespace ladder
