#include "common/verify/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "common/reference/reference.h"

#ifdef __FAST_MATH__
#error "Build the verifier without -ffast-math: the compiler may then assume that there is no NaN, and NaN would pass."
#endif

namespace verify {
namespace {

using attention::DataType;
using attention::HostTensor;
using attention::Inputs;
using attention::Problem;
using reference::Rows;

constexpr double infinity = std::numeric_limits<double>::infinity();
// The smallest normal number of fp32: a right kernel has 0 for what is smaller, since ex2.approx.ftz flushes it.
constexpr double flushed = 0x1p-126;

// NaN never passes: every comparison is written so that it must be true to pass.
bool within(double error, double limit) { return error <= limit; }

bool finite(const HostTensor& tensor) {
    return std::all_of(tensor.values.begin(), tensor.values.end(), [](float x) { return std::isfinite(x); });
}

void require_shape(const HostTensor& given, const HostTensor& expected, const char* name) {
    const bool same = given.B == expected.B && given.H == expected.H && given.N == expected.N &&
                      given.d == expected.d && given.cu == expected.cu && given.values.size() == expected.values.size();
    if (!same) throw std::invalid_argument(std::string(name) + " has not the shape that the problem asks for.");
}

std::string place(const HostTensor& tensor, int b, int h, int row, int column) {
    std::ostringstream text;
    text << "(b, h, row" << (tensor.d > 1 ? ", column" : "") << ") = (" << b << ", " << h << ", " << row;
    if (tensor.d > 1) text << ", " << column;
    text << ')';
    return text.str();
}

std::string value_and_reference(double value, double reference) {
    std::ostringstream text;
    text.precision(9);
    text << ": " << value << ", reference " << reference;
    return text.str();
}

// Names the first NaN of a tensor; empty if there is none.
std::string first_nan(const std::string& name, const HostTensor& tensor) {
    for (int b = 0; b < tensor.B; ++b) {
        for (int h = 0; h < tensor.H; ++h) {
            for (int i = 0; i < tensor.length(b); ++i) {
                const float* row = tensor.row(b, h, i);
                for (int c = 0; c < tensor.d; ++c) {
                    if (std::isnan(row[c])) return name + " is NaN (never written?) at " + place(tensor, b, h, i, c);
                }
            }
        }
    }
    return "";
}

// A reference that is too large for the type stands for infinity.
double in_range(DataType type, double reference) {
    const bool overflows =
        std::isfinite(reference) && std::isinf(attention::round_to(type, static_cast<float>(reference)));
    return overflows ? std::copysign(infinity, reference) : reference;
}

// NaN for NaN, infinity for the same infinity.
bool same_special(double value, double reference) {
    return std::isnan(reference) ? std::isnan(value) : value == reference;
}

// 2-norm and largest absolute value of the finite elements.
struct Size {
    double largest = 0.0, squares = 0.0;
    void add(double x) {
        if (!std::isfinite(x)) return;
        largest = std::max(largest, std::abs(x));
        squares += x * x;
    }
    double norm() const { return std::sqrt(squares); }
};

// One tensor against its reference. Rows are added head by head; result() applies the rules.
class Comparison {
  public:
    Comparison(std::string tensor, const HostTensor& output, DataType type)
        : tensor_(std::move(tensor)), output_(output), type_(type) {}

    // `baselines`: the plain result, in one or several variants. `allowance`: for sums in fp32, a factor of `terms`.
    void add(const HeadRows& head, const Rows& values, const std::vector<Rows>& baselines, const Rows& terms,
             double allowance) {
        for (int n = 0; n < static_cast<int>(head.rows.size()); ++n) {
            Row row{head.b, head.h, head.rows[n], 0, {}, {}, {}, {}, 0.0};
            const float* output = output_.row(head.b, head.h, row.row);
            for (int c = 0; c < values.columns; ++c) {
                const double expected = in_range(type_, values.row(n)[c]);
                const double error = std::abs(output[c] - expected);
                if (!std::isfinite(expected) || !std::isfinite(output[c])) {
                    if (!same_special(output[c], expected)) note_special(row, c, output[c], expected);
                    continue;
                }
                if (error > row.error.largest) row.worst_column = c;
                row.error.add(error);
                row.reference.add(expected);
                row.allowance.add(allowance * terms.row(n)[c]);
            }
            for (const Rows& baseline : baselines) {
                Size error;
                for (int c = 0; c < values.columns; ++c) error.add(baseline.row(n)[c] - values.row(n)[c]);
                row.baseline.largest = std::max(row.baseline.largest, error.largest);
                row.baseline.squares = std::max(row.baseline.squares, error.squares);
            }
            row.reference_value = values.row(n)[row.worst_column];
            rows_.push_back(row);
        }
    }

    Check result(bool inputs_are_finite) const {
        if (!special_.empty()) return {tensor_, infinity, 0.0, false, special_};
        const std::string unwritten = inputs_are_finite ? first_nan(tensor_, output_) : "";
        if (!unwritten.empty()) return {tensor_, infinity, 0.0, false, unwritten};
        if (rows_.empty()) return {tensor_, 0.0, 0.0, true, tensor_ + " has no elements"};
        const Check elements = largest_error();
        if (!elements.passed) return elements;
        const Check norms = row_norms();
        return norms.passed ? elements : norms;
    }

  private:
    struct Row {
        int b, h, row, worst_column;
        Size error, reference, baseline, allowance;
        double reference_value;
    };

    void note_special(const Row& row, int column, double value, double expected) {
        if (special_.empty())
            special_ =
                tensor_ + " at " + place(output_, row.b, row.h, row.row, column) + value_and_reference(value, expected);
    }

    Check largest_error() const {
        double baseline = 0.0, reference = 0.0, allowance = 0.0;
        for (const Row& row : rows_) {
            baseline = std::max(baseline, row.baseline.largest);
            reference = std::max(reference, row.reference.largest);
            allowance = std::max(allowance, row.allowance.largest);
        }
        const Row& worst = *std::max_element(
            rows_.begin(), rows_.end(), [](const Row& a, const Row& b) { return a.error.largest < b.error.largest; });
        const double limit = 2.0 * baseline + half_ulp(type_, reference) + allowance + flushed;
        const double value = output_.row(worst.b, worst.h, worst.row)[worst.worst_column];
        return {tensor_, worst.error.largest, limit, within(worst.error.largest, limit),
                "largest error of " + tensor_ + " at " +
                    place(output_, worst.b, worst.h, worst.row, worst.worst_column) +
                    value_and_reference(value, worst.reference_value)};
    }

    // Rows in the order of their reference's size, so that one sweep finds the worst baseline of each row's peers.
    Check row_norms() const {
        constexpr std::size_t fewest_peers = 16;
        std::vector<const Row*> order;
        for (const Row& row : rows_) order.push_back(&row);
        std::sort(order.begin(), order.end(),
                  [](const Row* a, const Row* b) { return a->reference.squares < b->reference.squares; });
        Check check{tensor_, 0.0, 0.0, true, ""};
        double baseline = 0.0;
        std::size_t peers = 0;
        for (std::size_t n = 0; n < order.size(); ++n) {
            const Row& row = *order[n];
            while (peers < order.size() &&
                   (peers < n + fewest_peers || order[peers]->reference.squares <= 4.0 * row.reference.squares))
                baseline = std::max(baseline, order[peers++]->baseline.norm());
            const double rounding = std::sqrt(output_.d) * (half_ulp(type_, row.reference.largest) + flushed);
            const double limit = 2.0 * baseline + rounding + row.allowance.norm();
            const double error = row.error.norm();
            if (within(error, limit) || (!check.passed && error * check.limit <= check.error * limit)) continue;
            const double value = output_.row(row.b, row.h, row.row)[row.worst_column];
            check = {tensor_, error, limit, false,
                     "norm of the error of a row of " + tensor_ + ", largest at " +
                         place(output_, row.b, row.h, row.row, row.worst_column) +
                         value_and_reference(value, row.reference_value)};
        }
        return check;
    }

    std::string tensor_;
    const HostTensor& output_;
    DataType type_;
    std::vector<Row> rows_;
    std::string special_;  // the first element that is not finite in the way of the reference
};

double largest_norm(const HostTensor& tensor, int b, int h) {
    double largest = 0.0;
    for (int i = 0; i < tensor.length(b); ++i) {
        Size size;
        for (int c = 0; c < tensor.d; ++c) size.add(tensor.row(b, h, i)[c]);
        largest = std::max(largest, size.norm());
    }
    return largest;
}

// Weights are exponentials of scores, so that an fp32 error of a score s is a relative error of s 2^-24 or so of a
// weight.
double fp32_allowance(const Problem& problem, const Inputs& inputs, int b, int h) {
    const double scores =
        std::abs(problem.scale) * largest_norm(inputs.Q, b, h) * largest_norm(inputs.K, b, h / problem.group());
    return std::min(0x1p-20 * (1.0 + scores), 0x1p-12);
}

// Variants of the baseline, the more the fewer rows there are to average out one variant's luck.
std::vector<plain::Precision> variants(plain::Stores stores, const std::vector<HeadRows>& sample) {
    std::size_t rows = 1;
    for (const HeadRows& head : sample) rows += head.rows.size();
    const int count = static_cast<int>(std::clamp<std::size_t>(1024 / rows, 4, 16));
    std::vector<plain::Precision> result;
    for (int n = 0; n < count; ++n) {
        const float D_shift = n == 0 ? 0.0f : n % 2 ? 1.0f : -1.0f, L_shift = n == 0 ? 0.0f : n / 2 % 2 ? 1.0f : -1.0f;
        result.push_back({stores, 1.0f + static_cast<float>(n) / static_cast<float>(count), D_shift, L_shift});
    }
    return result;
}

// The rule for L, row by row; remembers the row that is worst beside its limit.
class LogSumExpCheck {
  public:
    LogSumExpCheck(const HostTensor& L, double exponential_error) : L_(L), exponential_error_(exponential_error) {}

    void add(int b, int h, int i, double expected, double score_terms, double baseline) {
        const double value = *L_.row(b, h, i);
        const bool special = !std::isfinite(expected) || !std::isfinite(value);
        const double limit = 2.0 * baseline + 0x1p-20 * (std::abs(expected) + score_terms) + 1e-6 + exponential_error_;
        double error = std::abs(value - expected);
        if (special) error = same_special(value, expected) ? 0.0 : infinity;
        const double ratio = special ? error : error / limit;
        if (ratio <= worst_) return;
        worst_ = ratio;
        check_ = {"L", error, limit, within(ratio, 1.0),
                  "L at " + place(L_, b, h, i, 0) + value_and_reference(value, expected)};
    }

    Check result(bool inputs_are_finite) const {
        const std::string unwritten = inputs_are_finite ? first_nan("L", L_) : "";
        return unwritten.empty() ? check_ : Check{"L", infinity, 0.0, false, unwritten};
    }

  private:
    const HostTensor& L_;
    double exponential_error_;
    Check check_{"L", 0.0, 0.0, true, "L has no elements"};
    double worst_ = -1.0;
};

}  // namespace

double half_ulp(DataType type, double magnitude) {
    const int precision = type == DataType::fp32 ? 24 : type == DataType::fp16 ? 11 : 8;
    const int min_exponent = type == DataType::fp16 ? -14 : -126;
    const int exponent = magnitude > 0.0 ? std::max(std::ilogb(magnitude), min_exponent) : min_exponent;
    return std::ldexp(1.0, exponent - precision);
}

std::vector<Check> check_forward(const Problem& problem, const Inputs& inputs, const HostTensor& O, const HostTensor& L,
                                 plain::Stores stores, const Sample& sample, double exponential_error) {
    require_shape(O, query_tensor(problem), "O");
    require_shape(L, row_tensor(problem), "L");
    Comparison output("O", O, problem.type);
    LogSumExpCheck log_sum_exp(L, exponential_error);
    const std::vector<HeadRows> heads = sample_queries(problem, sample);
    const auto precisions = variants(stores, heads);
    const bool scores_are_rounded = stores == plain::Stores::scores && problem.type != DataType::fp32;
    for (const HeadRows& head : heads) {
        const auto expected = reference::forward(problem, inputs, head.b, head.h, head.rows);
        const auto terms = reference::output_terms(problem, inputs, head.b, head.h, head.rows);
        const auto score_terms = reference::score_terms(problem, inputs, head.b, head.h, head.rows);
        std::vector<Rows> baselines;
        std::vector<double> L_errors(head.rows.size(), 0.0);
        for (const plain::Precision& precision : precisions) {
            auto baseline = plain::forward(problem, inputs, head.b, head.h, head.rows, precision);
            for (std::size_t n = 0; n < head.rows.size(); ++n) {
                const double error = std::abs(baseline.L[n] - expected.L[n]);
                if (scores_are_rounded && std::isfinite(error)) L_errors[n] = std::max(L_errors[n], error);
            }
            baselines.push_back(std::move(baseline.O));
        }
        output.add(head, expected.O, baselines, terms, fp32_allowance(problem, inputs, head.b, head.h));
        const double L_error = L_errors.empty() ? 0.0 : *std::max_element(L_errors.begin(), L_errors.end());
        for (std::size_t n = 0; n < head.rows.size(); ++n)
            log_sum_exp.add(head.b, head.h, head.rows[n], expected.L[n], score_terms[n], L_error);
    }
    const bool inputs_are_finite = finite(inputs.Q) && finite(inputs.K) && finite(inputs.V);
    return {output.result(inputs_are_finite), log_sum_exp.result(inputs_are_finite)};
}

std::vector<Check> check_backward(const Problem& problem, const Inputs& inputs, const HostTensor& dQ,
                                  const HostTensor& dK, const HostTensor& dV, plain::Stores stores,
                                  const Sample& sample) {
    require_shape(dQ, query_tensor(problem), "dQ");
    require_shape(dK, key_tensor(problem), "dK");
    require_shape(dV, key_tensor(problem), "dV");
    Comparison dQ_comparison("dQ", dQ, problem.type);
    Comparison dK_comparison("dK", dK, problem.type);
    Comparison dV_comparison("dV", dV, problem.type);

    const std::vector<HeadRows> query_heads = sample_queries(problem, sample);
    const auto query_precisions = variants(stores, query_heads);
    for (const HeadRows& head : query_heads) {
        const auto expected = reference::query_gradient(problem, inputs, head.b, head.h, head.rows);
        const auto saved = reference::forward(problem, inputs, head.b, head.h, head.rows);
        std::vector<Rows> baselines;
        for (const plain::Precision& precision : query_precisions)
            baselines.push_back(plain::query_gradient(problem, inputs, head.b, head.h, head.rows, saved, precision));
        dQ_comparison.add(head, expected.values, baselines, expected.terms,
                          fp32_allowance(problem, inputs, head.b, head.h));
    }

    const std::vector<HeadRows> key_heads = sample_keys(problem, sample);
    const auto key_precisions = variants(stores, key_heads);
    for (const HeadRows& head : key_heads) {
        const auto group = reference::forward_of_group(problem, inputs, head.b, head.h, head.rows);
        const auto expected = reference::key_gradients(problem, inputs, head.b, head.h, head.rows, group);
        std::vector<Rows> dK_baselines, dV_baselines;
        for (const plain::Precision& precision : key_precisions) {
            auto baseline = plain::key_gradients(problem, inputs, head.b, head.h, head.rows, group, precision);
            dK_baselines.push_back(std::move(baseline.dK));
            dV_baselines.push_back(std::move(baseline.dV));
        }
        double allowance = 0.0;
        for (int h = head.h * problem.group(); h < (head.h + 1) * problem.group(); ++h)
            allowance = std::max(allowance, fp32_allowance(problem, inputs, head.b, h));
        dK_comparison.add(head, expected.dK.values, dK_baselines, expected.dK.terms, allowance);
        dV_comparison.add(head, expected.dV.values, dV_baselines, expected.dV.terms, allowance);
    }
    const bool inputs_are_finite = finite(inputs.Q) && finite(inputs.K) && finite(inputs.V) && finite(inputs.dO);
    return {dQ_comparison.result(inputs_are_finite), dK_comparison.result(inputs_are_finite),
            dV_comparison.result(inputs_are_finite)};
}

}  // namespace verify
