#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "common/verify/stage_tests/probe.h"
#include "common/verify/stage_tests/stage_tests.h"

namespace verify {
namespace {

using attention::DataType;
using attention::InputLaw;
using attention::Problem;
using ladder::Rung;

constexpr int lengths[] = {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000};
// Below, on and beside the tile sizes; windows that end inside a tile, on both sides and on one.
struct Window {
    int left, right;
};
constexpr Window windows[] = {{-1, -1}, {-1, 0}, {37, 11}, {-1, 5}, {70, -1}};
constexpr int groups[] = {1, 3, 5, 7};
constexpr InputLaw laws[] = {InputLaw::normal, InputLaw::outliers, InputLaw::equal, InputLaw::rising};
constexpr Layout layouts[] = {Layout::dense, Layout::strided, Layout::reversed, Layout::shared_kv};

// std::mt19937 is the same everywhere, the standard's distributions are not.
template <class List>
auto one_of(const List& list, std::mt19937& random) {
    return list[random() % std::size(list)];
}

void expect_verified(const Rung& rung, const Problem& problem, const Setup& setup = {}) {
    EXPECT_EQ(failure(rung, problem, setup), "");
}

std::vector<int> head_dimensions(const Rung& rung) {
    return is_scalar(rung) ? std::vector{1, 40, 64, 96, 128, 256} : usual_dimensions(rung);
}

// Everything about a problem that Nq, Nk and the mask leave open. Large ones have few heads and a usual d.
void draw_rest(const Rung& rung, Problem& problem, Setup& setup, std::mt19937& random) {
    const bool small = problem.Nq * problem.Nk <= 65 * 129;
    problem.d = one_of(small ? head_dimensions(rung) : usual_dimensions(rung), random);
    problem.type = one_of(types(rung), random);
    problem.scale = attention::default_scale(problem.d);
    problem.Hkv = small ? 1 + random() % 2 : 1;
    problem.Hq = problem.Hkv * (small ? one_of(groups, random) : 1 + 2 * (random() % 4 == 0));
    problem.B = small ? 1 + random() % 2 : 1;
    setup.law = one_of(laws, random);
    setup.layout = one_of(layouts, random);
    if (rung.tensor_maps && setup.layout == Layout::reversed) setup.layout = Layout::strided;
    setup.seed = random();
}

void run_pair(const Rung& rung, int Nq, int Nk, const Window& window, std::mt19937& random) {
    Problem problem;
    problem.Nq = Nq;
    problem.Nk = Nk;
    problem.window_left = window.left;
    problem.window_right = window.right;
    Setup setup;
    draw_rest(rung, problem, setup, random);
    expect_verified(rung, problem, setup);
}

// What takes longest is left to the grid of all pairs.
void sample_of_pairs(const Rung& rung) {
    std::mt19937 random(1);
    for (int problems = 0; problems < 16;) {
        const int Nq = one_of(lengths, random), Nk = one_of(lengths, random);
        if (Nq * Nk > 1000 * 65) continue;
        run_pair(rung, Nq, Nk, windows[problems++ % std::size(windows)], random);
    }
}

void all_pairs(const Rung& rung, int window) {
    std::mt19937 random(2 + window);  // another draw of all else for each window
    for (int Nq : lengths)
        for (int Nk : lengths) run_pair(rung, Nq, Nk, windows[window], random);
}

// Types, head dimensions and masks, each with each, and a group, on one pair of lengths that fills no tile.
void all_types(const Rung& rung) {
    std::mt19937 random(3);
    for (DataType type : types(rung)) {
        for (int d : head_dimensions(rung)) {
            for (const Window& window : {windows[1], windows[2]}) {
                Problem problem;
                problem.Hq = one_of(groups, random);
                problem.Nq = 19;
                problem.Nk = 70;
                problem.d = d;
                problem.type = type;
                problem.scale = attention::default_scale(d);
                problem.window_left = window.left;
                problem.window_right = window.right;
                expect_verified(rung, problem);
            }
        }
    }
}

// More rows than keys, fewer, and as many, on either side of the tile edges.
void tile_edges(const Rung& rung) {
    const int d = usual_dimensions(rung)[0];
    for (int Nq : {16, 33, 130}) {
        for (int Nk : {2, 127, 128, 257}) {
            Problem problem = causal(small_problem(Nq, Nk, d, DataType::fp16));
            problem.scale = attention::default_scale(d);
            expect_verified(rung, problem);
        }
    }
}

Problem packed(const Rung& rung, const std::vector<int>& q_lengths, const std::vector<int>& k_lengths) {
    Problem problem;
    problem.d = usual_dimensions(rung)[0];
    problem.scale = attention::default_scale(problem.d);
    problem.B = static_cast<int>(q_lengths.size());
    problem.cu_q.push_back(0);
    problem.cu_k.push_back(0);
    std::partial_sum(q_lengths.begin(), q_lengths.end(), std::back_inserter(problem.cu_q));
    std::partial_sum(k_lengths.begin(), k_lengths.end(), std::back_inserter(problem.cu_k));
    problem.Nq = *std::max_element(q_lengths.begin(), q_lengths.end());
    problem.Nk = *std::max_element(k_lengths.begin(), k_lengths.end());
    return problem;
}

void packed_sequences(const Rung& rung) {
    const std::vector<std::pair<std::vector<int>, std::vector<int>>> lists = {
        {{0, 65, 1}, {0, 65, 1}}, {{65, 0, 1}, {0, 65, 1}}, {{1, 17, 0, 33}, {130, 0, 64, 5}}, {{0, 0, 0}, {3, 0, 1}},
        {{3, 0, 1}, {0, 0, 0}},   {{0, 0}, {0, 0}},         {{129, 1, 64}, {1, 129, 64}}};
    for (const auto& [q, k] : lists) {
        for (const Window& window : windows) {
            for (Layout layout : {Layout::dense, Layout::strided, Layout::reversed}) {
                if (layout != Layout::dense && window.right != 0) continue;
                if (layout == Layout::reversed && rung.tensor_maps) continue;
                Problem problem = packed(rung, q, k);
                problem.Hq = 2;
                problem.type = DataType::fp16;
                problem.window_left = window.left;
                problem.window_right = window.right;
                expect_verified(rung, problem, {.layout = layout});
            }
        }
    }
}

// B46: one sequence after the other of length 1, and the end of the cumulative lengths.
void many_short_sequences(const Rung& rung) {
    expect_verified(rung, packed(rung, std::vector(64, 1), std::vector(64, 1)));
    Problem problem = packed(rung, {0, 65, 1}, {0, 65, 1});
    problem.Hq = problem.Hkv = 2;
    expect_verified(rung, causal(problem));
}

void tiny(const Rung& rung, Problem problem) {
    problem.d = smallest_d(rung);
    problem.scale = attention::default_scale(problem.d);
    expect_verified(rung, problem);
}

// Two key tiles, more than two query tiles, rows that fill neither.
void tiny_causal(const Rung& rung) { tiny(rung, causal(small_problem(33, 150, 64, DataType::bf16))); }

void tiny_packed_group(const Rung& rung) {
    Problem problem = packed(rung, {0, 18, 1}, {3, 7, 0});
    problem.Hq = 2;
    problem.type = DataType::fp16;
    tiny(rung, problem);
}

}  // namespace

std::vector<StageTest> grid_tests() {
    return {{"sample_of_lengths_and_masks", sample_of_pairs},
            {"Slow_all_lengths_no_mask", [](const Rung& rung) { all_pairs(rung, 0); }},
            {"Slow_all_lengths_causal", [](const Rung& rung) { all_pairs(rung, 1); }},
            {"Slow_all_lengths_window", [](const Rung& rung) { all_pairs(rung, 2); }},
            {"Slow_all_lengths_all_past_and_5_ahead", [](const Rung& rung) { all_pairs(rung, 3); }},
            {"Slow_all_lengths_70_past_and_all_ahead", [](const Rung& rung) { all_pairs(rung, 4); }},
            {"types_and_head_dimensions", all_types},
            {"tile_edges", tile_edges},
            {"packed_sequences", packed_sequences},
            {"B46_many_short_sequences", many_short_sequences},
            {"Tiny_causal", tiny_causal},
            {"Tiny_packed_group", tiny_packed_group}};
}

}  // namespace verify
