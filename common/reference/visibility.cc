#include "common/reference/visibility.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/reference/philox.h"

namespace reference {
namespace {

// The part of [first, last] that lies in [0, length). 64-bit, since a window may be as wide as an int.
Range clip(std::int64_t first, std::int64_t last, std::int64_t length) {
    first = std::clamp<std::int64_t>(first, 0, length);
    const std::int64_t end = std::clamp<std::int64_t>(last + 1, first, length);
    return {static_cast<int>(first), static_cast<int>(end)};
}

}  // namespace

Range visible_keys(const attention::Problem& problem, int b, int i) {
    const std::int64_t length = problem.keys(b);
    const std::int64_t diagonal = i + length - problem.queries(b);
    return clip(problem.window_left == -1 ? 0 : diagonal - problem.window_left,
                problem.window_right == -1 ? length - 1 : diagonal + problem.window_right, length);
}

Range visible_queries(const attention::Problem& problem, int b, int j) {
    const std::int64_t length = problem.queries(b);
    const std::int64_t diagonal = j + length - problem.keys(b);
    return clip(problem.window_right == -1 ? 0 : diagonal - problem.window_right,
                problem.window_left == -1 ? length - 1 : diagonal + problem.window_left, length);
}

double modified_score(const attention::Problem& problem, int b, int h, int i, int j, double S) {
    const double cap = problem.softcap;
    if (cap > 0.0) S = cap * std::tanh(S / cap);
    if (problem.alibi) {
        const double distance = std::abs(double(i) + problem.keys(b) - problem.queries(b) - j);
        S -= std::pow(2.0, -8.0 * (h + 1) / problem.Hq) * distance;
    }
    return S;
}

double score_derivative(const attention::Problem& problem, double S) {
    if (problem.softcap == 0.0f) return 1.0;
    const double capped = std::tanh(S / problem.softcap);
    return 1.0 - capped * capped;
}

double dropout_factor(const attention::Problem& problem, int b, int h, int i, int j) {
    if (problem.dropout == 0.0f) return 1.0;
    const double keep = 1.0 - static_cast<double>(problem.dropout);
    const auto word = [](auto value) { return static_cast<std::uint32_t>(value); };
    const auto random = philox_4x32_10({word(j / 4), word(i), word(b * problem.Hq + h), problem.dropout_offset},
                                       {word(problem.dropout_seed), word(problem.dropout_seed >> 32)});
    return random[j % 4] < std::floor(keep * 0x1p32) ? 1.0 / keep : 0.0;
}

}  // namespace reference
