#include "common/verify/sample.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <utility>

namespace verify {
namespace {

using attention::Problem;

double multiply_adds(const Problem& problem, int b) {
    return static_cast<double>(problem.queries(b)) * problem.keys(b) * problem.d;
}

bool compare_all(const Problem& problem, const Sample& sample) {
    double work = 0.0;
    for (int b = 0; b < problem.B; ++b) work += multiply_adds(problem, b) * problem.Hq;
    return work <= sample.all_below;
}

std::vector<int> all_rows(int length) {
    std::vector<int> rows(length);
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
}

std::vector<int> ends(int length) {
    if (length == 0) return {};
    return length == 1 ? std::vector<int>{0} : std::vector<int>{0, length - 1};
}

// `diagonal`: the row that faces the first row of the other operand when the ends are aligned at the bottom right.
std::vector<int> sample_rows(int length, int diagonal, int count, std::mt19937_64& random) {
    if (length <= count) return all_rows(length);
    std::set<int> rows{0, length - 1};
    const auto add = [&](int row) {
        if (row >= 0 && row < length) rows.insert(row);
    };
    for (int tile : {16, 32, 64, 128, 256}) {
        for (int boundary : {tile, (length - 1) / tile * tile}) {
            add(boundary - 1);
            add(boundary);
        }
    }
    add(diagonal - 1);
    add(diagonal);
    while (static_cast<int>(rows.size()) < count) rows.insert(static_cast<int>(random() % length));
    return {rows.begin(), rows.end()};
}

// (sequence, head) -> whether many rows are sampled there: the first and the last pair, random ones, and for the ends
// of every sequence one head of it.
std::map<std::pair<int, int>, bool> sample_heads(const Problem& problem, int H, const Sample& sample,
                                                 std::mt19937_64& random) {
    std::map<std::pair<int, int>, bool> heads;
    for (int b = 0; b < problem.B; ++b) heads[{b, static_cast<int>(random() % H)}] = false;
    const std::int64_t pairs = static_cast<std::int64_t>(problem.B) * H;
    const auto choose = [&](std::int64_t pair) {
        heads[{static_cast<int>(pair / H), static_cast<int>(pair % H)}] = true;
    };
    choose(0);
    choose(pairs - 1);
    for (int n = 2; n < sample.heads; ++n) choose(static_cast<std::int64_t>(random() % pairs));
    return heads;
}

}  // namespace

std::vector<HeadRows> sample_queries(const Problem& problem, const Sample& sample) {
    std::vector<HeadRows> result;
    if (compare_all(problem, sample)) {
        for (int b = 0; b < problem.B; ++b) {
            for (int h = 0; h < problem.Hq; ++h) result.push_back({b, h, all_rows(problem.queries(b))});
        }
        return result;
    }
    std::mt19937_64 random(sample.seed);
    for (const auto& [head, many] : sample_heads(problem, problem.Hq, sample, random)) {
        const auto [b, h] = head;
        const int length = problem.queries(b);
        result.push_back(
            {b, h, many ? sample_rows(length, length - problem.keys(b), sample.rows, random) : ends(length)});
    }
    return result;
}

std::vector<HeadRows> sample_keys(const Problem& problem, const Sample& sample) {
    std::vector<HeadRows> result;
    if (compare_all(problem, sample)) {
        for (int b = 0; b < problem.B; ++b) {
            for (int h = 0; h < problem.Hkv; ++h) result.push_back({b, h, all_rows(problem.keys(b))});
        }
        return result;
    }
    std::mt19937_64 random(sample.seed);
    const auto heads = sample_heads(problem, problem.Hkv, sample, random);
    std::vector<std::pair<std::pair<int, int>, bool>> order(heads.begin(), heads.end());
    for (std::size_t n = order.size(); n > 1; --n) std::swap(order[n - 1], order[random() % n]);
    std::stable_partition(order.begin(), order.end(), [](const auto& head) { return head.second; });

    double left = sample.key_budget;
    for (const auto& [head, many] : order) {
        const auto [b, h] = head;
        const double cost = 2.0 * multiply_adds(problem, b) * problem.group();
        if (!result.empty() && cost > left) continue;
        left -= cost;
        const int length = problem.keys(b);
        result.push_back(
            {b, h, many ? sample_rows(length, length - problem.queries(b), sample.rows, random) : ends(length)});
    }
    return result;
}

}  // namespace verify
