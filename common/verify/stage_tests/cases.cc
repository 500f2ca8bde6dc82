// Problems whose answer is known without a computer. "ones": V = 1, so O = 1. "prefix": Q = K = 0 and V_j = j e0, so a
// query that sees keys first ... last has O = (first + last) / 2 and L = log(last - first + 1).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/verify/stage_tests/probe.h"
#include "common/verify/stage_tests/stage_tests.h"

namespace verify {
namespace {

using attention::DataType;
using attention::HostTensor;
using attention::Problem;
using ladder::Rung;

constexpr double infinity = std::numeric_limits<double>::infinity();

void expect_near(const Rung& rung, const Problem& problem, const char* tensor, int row, double value, double expected,
                 double magnitude, bool weights_are_one = true) {
    EXPECT_NEAR(value, expected, rounding(rung, problem.type, expected, magnitude, weights_are_one))
        << rung.title() << ", " << attention::describe(problem) << ", " << tensor << ", row " << row;
}

// L is fp32, whatever the type of the operands; a rung that stores S has rounded the scores before.
void expect_L(const Rung& rung, const Problem& problem, const Outputs& outputs, int row, double expected, int h = 0) {
    const double value = *outputs.L.row(0, h, row);
    if (expected == -infinity) {
        EXPECT_EQ(value, expected) << attention::describe(problem) << ", row " << row;
        return;
    }
    const double stored = rung.stores == ladder::Stores::scores ? half_ulp(problem.type, std::abs(expected) + 1) : 0;
    EXPECT_NEAR(value, expected, 1e-6 + std::abs(expected) * 0x1p-20 + stored)
        << rung.title() << ", " << attention::describe(problem) << ", L, row " << row;
}

// The prefix probe on any problem with one head: every row's O and L from the definition of the window.
void expect_prefix(const Rung& rung, const Problem& problem, float key = 0.0f) {
    Probe probe(problem);
    for (int i = 0; i < problem.Nq && key != 0; ++i) probe.q(i) = 1;
    for (int j = 0; j < problem.Nk; ++j) {
        probe.k(j) = key;
        probe.v(j) = static_cast<float>(j);
    }
    const Outputs outputs = probe.run(rung);
    for (int i = 0; i < problem.Nq; ++i) {
        double sum = 0;
        int count = 0;
        for (int j = 0; j < problem.Nk; ++j) {
            const int distance = j - (i + problem.Nk - problem.Nq);
            if (problem.window_left >= 0 && distance < -problem.window_left) continue;
            if (problem.window_right >= 0 && distance > problem.window_right) continue;
            sum += j;
            ++count;
        }
        if (count == 0) {
            EXPECT_EQ(outputs.O.row(0, 0, i)[0], 0.0f);
            expect_L(rung, problem, outputs, i, -infinity);
            continue;
        }
        expect_near(rung, problem, "O", i, outputs.O.row(0, 0, i)[0], sum / count, problem.Nk);
        for (int c = 1; c < problem.d; ++c) ASSERT_EQ(outputs.O.row(0, 0, i)[c], 0.0f) << "row " << i;
        expect_L(rung, problem, outputs, i, key + std::log(count));
    }
}

template <class F>
void for_each_type(const Rung& rung, F f) {
    for (DataType type : types(rung)) f(type, smallest_d(rung));
}

// ---- forward ----

// Rows whose first tile is hidden: their maximum must not stay at what a hidden tile left behind. Columns from the left
// in a causal problem, and a window that hides the first tile from the later rows of a query tile.
void B02_hidden_first_tile(const Rung& rung) {
    for_each_type(rung, [&](DataType type, int d) {
        expect_prefix(rung, causal(small_problem(128, 128, d, type)), -200);
        for (int left : {0, 1, 10, 30}) {
            Problem problem = small_problem(160, 160, d, type);
            problem.window_left = left;
            problem.window_right = 0;
            expect_prefix(rung, problem, -200);
        }
    });
}

void B03_largest_weight_is_one(const Rung& rung) {
    for_each_type(rung, [&](DataType type, int d) {
        if (type == DataType::fp16) return;  // 133120 is beyond its range
        Probe probe(small_problem(1, 1, d, type));
        probe.q(0) = probe.k(0) = probe.v(0) = 133120;
        const Outputs outputs = probe.run(rung);
        EXPECT_EQ(outputs.O.row(0, 0, 0)[0], 133120.0f) << attention::name(type);
        expect_L(rung, probe.problem, outputs, 0, 133120.0 * 133120.0 * probe.problem.scale);
    });
}

void B04_huge_score(const Rung& rung) {
    for_each_type(rung, [&](DataType type, int d) {
        Probe probe(small_problem(1, 2, d, type));
        const float score = type == DataType::bf16 ? 8192 : 10000;
        probe.q(0) = 1;
        probe.k(0) = score;
        probe.v(0) = 3;
        probe.v(1) = -7;
        const Outputs outputs = probe.run(rung);
        EXPECT_EQ(outputs.O.row(0, 0, 0)[0], 3.0f) << attention::name(type);
        expect_L(rung, probe.problem, outputs, 0, score);
    });
}

void B05_rows_that_see_no_key(const Rung& rung) {
    for_each_type(rung, [&](DataType type, int d) {
        for (int Nq : {5, 19, 35, 67, 131}) {
            Probe probe(causal(small_problem(Nq, 2, d, type)));
            probe.v(0) = 10;
            probe.v(1) = 30;
            const Outputs outputs = probe.run(rung);
            for (int i = 0; i < Nq - 2; ++i) {
                for (int c = 0; c < d; ++c) ASSERT_EQ(outputs.O.row(0, 0, i)[c], 0.0f) << "row " << i;
                expect_L(rung, probe.problem, outputs, i, -infinity);
            }
            expect_near(rung, probe.problem, "O", Nq - 2, outputs.O.row(0, 0, Nq - 2)[0], 10, 10);
            expect_near(rung, probe.problem, "O", Nq - 1, outputs.O.row(0, 0, Nq - 1)[0], 20, 20);
            expect_L(rung, probe.problem, outputs, Nq - 2, 0);
            expect_L(rung, probe.problem, outputs, Nq - 1, std::log(2.0));
        }
    });
}

void B12_causal_is_bottom_right(const Rung& rung) {
    for_each_type(rung, [&](DataType type, int d) {
        expect_prefix(rung, causal(small_problem(2, 5, d, type)));
        expect_prefix(rung, causal(small_problem(5, 2, d, type)));
    });
}

void B14_every_key_tile_is_visited(const Rung& rung) {
    expect_prefix(rung, causal(small_problem(384, 384, smallest_d(rung), DataType::fp16)));
    expect_prefix(rung, causal(small_problem(150, 384, 128, DataType::fp16)));
}

// A padded key with score 0 would weigh as much as a real one; a lost row would not be 1.
void ones(const Rung& rung, const std::vector<int>& queries, const std::vector<int>& keys, DataType type, int d) {
    for (int Nq : queries) {
        for (int Nk : keys) {
            Probe probe(small_problem(Nq, Nk, d, type));
            for (float& v : probe.inputs.V.values) v = 1;
            const Outputs outputs = probe.run(rung);
            for (int i = 0; i < Nq; ++i) {
                expect_near(rung, probe.problem, "O", i, outputs.O.row(0, 0, i)[d - 1], 1, 1);
                expect_L(rung, probe.problem, outputs, i, std::log(Nk));
            }
        }
    }
}
const std::vector<int> ragged = {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129};
void B15_ragged_tails(const Rung& rung) {
    for_each_type(rung, [&](DataType type, int d) {
        ones(rung, {1, 17, 65}, {1, 15, 65, 129}, type, d);
        ones(rung, {129}, {2, 127}, type, d);
    });
}
void B15_Slow_all_ragged_tails(const Rung& rung) { ones(rung, ragged, ragged, DataType::fp16, smallest_d(rung)); }

void B27_L_is_a_natural_logarithm(const Rung& rung) {
    for_each_type(rung, [&](DataType type, int d) {
        Probe zero(small_problem(1, 8, d, type));
        expect_L(rung, zero.problem, zero.run(rung), 0, std::log(8.0));
        Probe five(small_problem(1, 4, d, type));
        five.q(0) = 1;
        for (int j = 0; j < 4; ++j) five.k(j) = 5;
        expect_L(rung, five.problem, five.run(rung), 0, 5 + std::log(4.0));
    });
}

void B33_scale_zero_and_negative(const Rung& rung) {
    for_each_type(rung, [&](DataType type, int d) {
        Probe zero(causal(small_problem(2, 2, d, type)));
        zero.problem.scale = 0;
        for (int i = 0; i < 2; ++i) zero.q(i) = zero.k(i) = 100;
        zero.v(0) = 6;
        zero.v(1) = 8;
        const Outputs even = zero.run(rung);
        expect_near(rung, zero.problem, "O", 0, even.O.row(0, 0, 0)[0], 6, 6);
        expect_near(rung, zero.problem, "O", 1, even.O.row(0, 0, 1)[0], 7, 7);
        expect_L(rung, zero.problem, even, 0, 0);
        expect_L(rung, zero.problem, even, 1, std::log(2.0));

        Probe negative(small_problem(1, 2, d, type));
        negative.problem.scale = -1;
        negative.q(0) = 1;
        negative.k(1) = 100;
        negative.v(0) = 4;
        negative.v(1) = 9;
        const Outputs first = negative.run(rung);
        EXPECT_EQ(first.O.row(0, 0, 0)[0], 4.0f);
        expect_L(rung, negative.problem, first, 0, 0);
    });
}

void B34_default_scale(const Rung& rung) {
    for (DataType type : types(rung)) {
        Probe probe(small_problem(1, 2, 64, type));
        probe.problem.scale = attention::default_scale(64);
        probe.q(0) = probe.k(0) = 8;
        probe.v(0) = 1;
        const Outputs outputs = probe.run(rung);
        const double P = 1 / (1 + std::exp(-8.0));
        expect_near(rung, probe.problem, "O", 0, outputs.O.row(0, 0, 0)[0], P, 1, false);
        expect_L(rung, probe.problem, outputs, 0, 8 - std::log(P));
    }
}

void B43_window_ends_are_included(const Rung& rung) {
    for_each_type(rung, [&](DataType type, int d) {
        Problem problem = small_problem(4, 4, d, type);
        problem.window_left = 1;
        problem.window_right = 0;
        expect_prefix(rung, problem);  // O = 0, 0.5, 1.5, 2.5
        problem.window_left = 0;
        problem.window_right = 2;
        expect_prefix(rung, problem);
    });
}

// V of head (b, h) is 10 b + h, so O tells which head was read.
void B53_groups(const Rung& rung) {
    for (const auto& [Hq, Hkv] : {std::pair{28, 4}, {15, 3}, {12, 2}, {7, 1}}) {
        Problem problem = small_problem(1, 17, smallest_d(rung), DataType::fp16);
        problem.B = 2;
        problem.Hq = Hq;
        problem.Hkv = Hkv;
        Probe probe(problem);
        for (int b = 0; b < 2; ++b) {
            for (int h = 0; h < Hkv; ++h) {
                for (int j = 0; j < 17; ++j) probe.v(j, 0, h, b) = static_cast<float>(10 * b + h);
            }
        }
        const Outputs outputs = probe.run(rung);
        for (int b = 0; b < 2; ++b) {
            for (int h = 0; h < Hq; ++h) {
                const int expected = 10 * b + h / (Hq / Hkv);
                expect_near(rung, problem, "O of head", h, outputs.O.row(b, h, 0)[0], expected, expected);
            }
        }
    }
}

// More (batch, head) pairs than a grid has rows in y or z, of which all but one are empty.
void B50_many_empty_sequences(const Rung& rung) {
    Problem problem = small_problem(1, 1, smallest_d(rung), DataType::fp16);
    problem.B = 65537;
    problem.cu_q.assign(problem.B + 1, 0);
    problem.cu_q.back() = 1;
    problem.cu_k = problem.cu_q;
    Probe probe(problem);
    probe.inputs.V.values[0] = 7;
    EXPECT_EQ(probe.run(rung).O.values[0], 7.0f);
}

// Tiles for one query and key each would keep the emulator busy for minutes: only for scalar rungs.
void B50_Slow_many_heads(const Rung& rung) {
    for (const auto& [B, H] : {std::pair{65537, 1}, {1, 65537}}) {
        Problem problem = small_problem(1, 1, smallest_d(rung), DataType::fp16);
        problem.B = B;
        problem.Hq = problem.Hkv = H;
        Probe probe(problem);
        for (std::size_t n = 0; n < probe.inputs.V.values.size(); ++n)
            probe.inputs.V.values[n] = static_cast<float>(n % 2003);
        EXPECT_EQ(probe.run_unjudged(rung).O.values, probe.inputs.V.values);
    }
}

// ---- backward ----

// Padded keys of the last tile must not enter with score 0: exp(0 - L) overflows for L < -88.
void B07_padded_keys_and_small_L(const Rung& rung) {
    for_each_type(rung, [&](DataType type, int d) {
        for (int Nk : {2, 64, 192}) {
            Probe probe(small_problem(1, Nk, d, type));
            probe.q(0) = probe.dO(0) = 1;
            for (int j = 0; j < Nk; ++j) {
                probe.k(j) = -120;
                probe.k(j, 1) = j % 2 ? -1 : 1;
                probe.v(j) = j % 2 ? 1 : 3;
            }
            // P = 1 / Nk, dP = 3 and 1, D = 2, so dS = +- 1 / Nk and dQ = (0, 1).
            // In fp32, what is rounded most is S - L, of two numbers near -120.
            const double weight = type == DataType::fp32 ? 120.0 : 1.0;
            const Outputs outputs = probe.run(rung);
            expect_near(rung, probe.problem, "dQ", 0, outputs.dQ.row(0, 0, 0)[0], 0, 120 * weight, false);
            expect_near(rung, probe.problem, "dQ", 0, outputs.dQ.row(0, 0, 0)[1], 1, weight, false);
            for (int j = 0; j < Nk; ++j) {
                const double dK = (j % 2 ? -1.0 : 1.0) / Nk, dV = 1.0 / Nk;
                expect_near(rung, probe.problem, "dK", j, outputs.dK.row(0, 0, j)[0], dK, weight * dV, false);
                expect_near(rung, probe.problem, "dV", j, outputs.dV.row(0, 0, j)[0], dV, weight * dV, false);
            }
        }
    });
}

void B05_gradients_of_rows_that_see_no_key(const Rung& rung) {
    for_each_type(rung, [&](DataType type, int d) {
        for (int Nq : {5, 35, 67, 131}) {
            Probe probe(causal(small_problem(Nq, 2, d, type)));
            for (int i = 0; i < Nq; ++i) probe.dO(i) = probe.q(i, 1) = 1;
            probe.v(0) = 10;
            probe.v(1) = 30;
            // Only the last two rows count: P = (1, 0) and (1/2, 1/2).
            const Outputs outputs = probe.run(rung);
            expect_near(rung, probe.problem, "dV", 0, outputs.dV.row(0, 0, 0)[0], 1.5, 1.5, false);
            expect_near(rung, probe.problem, "dV", 1, outputs.dV.row(0, 0, 1)[0], 0.5, 0.5, false);
            for (int i = 0; i < Nq - 2; ++i)
                for (int c = 0; c < d; ++c) ASSERT_EQ(outputs.dQ.row(0, 0, i)[c], 0.0f) << "row " << i;
            // Last row: dP = (10, 30), D = 20, dS = (-5, 5).
            expect_near(rung, probe.problem, "dK", 0, outputs.dK.row(0, 0, 0)[1], -5, 30, false);
            expect_near(rung, probe.problem, "dK", 1, outputs.dK.row(0, 0, 1)[1], 5, 30, false);
        }
    });
}

void ones_backward(const Rung& rung, const std::vector<int>& queries, const std::vector<int>& keys, DataType type,
                   int d) {
    for (int Nq : queries) {
        for (int Nk : keys) {
            Probe probe(small_problem(Nq, Nk, d, type));
            for (float& v : probe.inputs.V.values) v = 1;
            for (int i = 0; i < Nq; ++i) probe.dO(i) = 1;
            const Outputs outputs = probe.run(rung);
            for (int j = 0; j < Nk; ++j) {
                const double expected = double(Nq) / Nk;
                expect_near(rung, probe.problem, "dV", j, outputs.dV.row(0, 0, j)[0], expected, expected, false);
                ASSERT_EQ(outputs.dK.row(0, 0, j)[0], 0.0f) << "Q = 0, key " << j;
            }
            for (int i = 0; i < Nq; ++i) ASSERT_EQ(outputs.dQ.row(0, 0, i)[0], 0.0f) << "K = 0, row " << i;
        }
    }
}
void B15_ragged_tails_backward(const Rung& rung) {
    for_each_type(rung, [&](DataType type, int d) {
        ones_backward(rung, {1, 17, 65}, {1, 15, 65, 129}, type, d);
        ones_backward(rung, {129}, {2, 127}, type, d);
    });
}
void B15_Slow_all_ragged_tails_backward(const Rung& rung) {
    ones_backward(rung, ragged, ragged, DataType::fp16, smallest_d(rung));
}

// P = 1, so dV is the sum of dO over the group: a running sum in fp16 would stay at 2048, partial sums would overflow.
void B21_dV_of_a_group(const Rung& rung) {
    const auto dV = [&](int group, auto dO) {
        Problem problem = small_problem(1, 1, smallest_d(rung), DataType::fp16);
        problem.Hq = group;
        Probe probe(problem);
        for (int h = 0; h < group; ++h) probe.dO(0, 0, h) = dO(h);
        return probe.run(rung).dV.row(0, 0, 0)[0];
    };
    EXPECT_EQ(dV(7, [](int h) { return h == 0 ? 2048.0f : 1.0f; }), 2054.0f);
    EXPECT_EQ(dV(8, [](int h) { return h < 4 ? 32768.0f : -32768.0f; }), 0.0f);
}

void B37_no_mask_backward(const Rung& rung) {
    for_each_type(rung, [&](DataType type, int d) {
        Probe probe(small_problem(2, 2, d, type));
        probe.k(0) = 1;
        probe.k(1) = -1;
        probe.v(0) = 3;
        probe.v(1) = 1;
        probe.dO(0) = probe.dO(1) = 1;
        const Outputs outputs = probe.run(rung);
        for (int i = 0; i < 2; ++i) {
            expect_near(rung, probe.problem, "dQ", i, outputs.dQ.row(0, 0, i)[0], 1, 1, false);
            expect_near(rung, probe.problem, "dV", i, outputs.dV.row(0, 0, i)[0], 1, 1, false);
            EXPECT_EQ(outputs.dK.row(0, 0, i)[0], 0.0f);
        }
    });
}

void B50_many_empty_sequences_backward(const Rung& rung) {
    Problem problem = small_problem(1, 1, smallest_d(rung), DataType::fp16);
    problem.B = 65537;
    problem.cu_q.assign(problem.B + 1, 0);
    problem.cu_q.back() = 1;
    problem.cu_k = problem.cu_q;
    Probe probe(problem);
    probe.inputs.dO.values[0] = 7;
    EXPECT_EQ(probe.run(rung).dV.values[0], 7.0f);
}

// Scores of 3000 and a little more: S and L, both rounded to fp32, are so far apart that P is no longer 1 to the last bit of fp16.
void scores_of_thousands(const Rung& rung) {
    const int d = usual_dimensions(rung)[0];
    for (int percent = 0; percent <= 30; ++percent) {
        Problem problem = small_problem(1, 2, d, DataType::fp16);
        problem.scale = attention::default_scale(d);
        Probe probe(problem);
        probe.inputs = attention::make_inputs(problem, attention::InputLaw::normal, percent);
        const double element = std::sqrt(3000 / (d * problem.scale)) * (1 + 0.01 * percent);
        for (attention::HostTensor* tensor : {&probe.inputs.Q, &probe.inputs.K})
            std::fill(tensor->values.begin(), tensor->values.end(),
                      attention::round_to(DataType::fp16, static_cast<float>(element)));
        probe.run(rung);
    }
}

bool stores_no_scores(const Rung& rung) { return rung.stores == ladder::Stores::weights; }

}  // namespace

std::vector<StageTest> forward_cases() {
    return {{"B02_hidden_first_tile", B02_hidden_first_tile},
            {"B03_largest_weight_is_one", B03_largest_weight_is_one},
            {"B04_huge_score", B04_huge_score},
            {"B05_rows_that_see_no_key", B05_rows_that_see_no_key},
            {"B12_causal_is_bottom_right", B12_causal_is_bottom_right},
            {"B14_every_key_tile_is_visited", B14_every_key_tile_is_visited},
            {"B15_ragged_tails", B15_ragged_tails},
            {"B15_Slow_all_ragged_tails", B15_Slow_all_ragged_tails},
            {"B27_L_is_a_natural_logarithm", B27_L_is_a_natural_logarithm},
            {"B33_scale_zero_and_negative", B33_scale_zero_and_negative},
            {"B34_default_scale", B34_default_scale},
            {"B43_window_ends_are_included", B43_window_ends_are_included},
            {"B50_Slow_many_empty_sequences", B50_many_empty_sequences},
            {"B50_Slow_many_heads", B50_Slow_many_heads, is_scalar},
            {"B53_groups", B53_groups}};
}

std::vector<StageTest> backward_cases() {
    return {{"B05_gradients_of_rows_that_see_no_key", B05_gradients_of_rows_that_see_no_key},
            {"B07_padded_keys_and_small_L", B07_padded_keys_and_small_L},
            {"B15_ragged_tails", B15_ragged_tails_backward},
            {"B15_Slow_all_ragged_tails", B15_Slow_all_ragged_tails_backward},
            {"B21_dV_of_a_group", B21_dV_of_a_group},
            {"B37_no_mask", B37_no_mask_backward},
            {"B50_Slow_many_empty_sequences", B50_many_empty_sequences_backward},
            {"scores_of_thousands", scores_of_thousands, stores_no_scores}};
}

}  // namespace verify
