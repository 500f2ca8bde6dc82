// Which rows of which heads are compared: all of them if that is cheap, else a seeded sample.
#pragma once

#include <cstdint>
#include <vector>

#include "common/attention/problem.h"

namespace verify {

struct Sample {
    int rows = 64;             // of a sampled head, about
    int heads = 4;             // sampled (sequence, head) pairs; of every other sequence only first and last row
    double all_below = 1e8;    // multiply-adds of S = Q K^T over all heads up to which everything is compared
    double key_budget = 1e11;  // multiply-adds spent on dK and dV, each row of which needs O and L of all its queries
    std::uint64_t seed = 1;
};

/// Rows of one head, ascending.
struct HeadRows {
    int b, h;
    std::vector<int> rows;
};

/// Rows of Q, O, dO and dQ. A sampled head has its first and last rows, rows on both sides of tile boundaries and of
/// the first query that sees a key, and random ones.
std::vector<HeadRows> sample_queries(const attention::Problem& problem, const Sample& sample);

/// Rows of K, V, dK and dV, likewise; h is a key/value head. At least one head, more while the budget lasts.
std::vector<HeadRows> sample_keys(const attention::Problem& problem, const Sample& sample);

}  // namespace verify
