#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/verify/stage_tests/probe.h"
#include "common/verify/stage_tests/stage_tests.h"

namespace verify {
namespace {

using attention::DataType;
using attention::HostTensor;
using attention::Problem;
using ladder::Pass;
using ladder::Rung;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

bool is_backward(const Rung& rung) { return rung.pass == Pass::backward; }

Probe random_probe(const Problem& problem) {
    Probe probe(problem);
    probe.problem.scale = attention::default_scale(problem.d);
    probe.inputs = attention::make_inputs(problem, attention::InputLaw::normal, 5);
    return probe;
}

// Fills every row of a tensor for which hidden(b, row) holds.
template <class Hidden>
void fill(HostTensor& tensor, float value, Hidden hidden) {
    for (int b = 0; b < tensor.B; ++b) {
        for (int h = 0; h < tensor.H; ++h) {
            for (int i = 0; i < tensor.length(b); ++i) {
                if (hidden(b, i)) std::fill_n(tensor.row(b, h, i), tensor.d, value);
            }
        }
    }
}

// Whether query i of sequence b sees key j, from the definition.
bool sees(const Problem& problem, int b, int i, int j) {
    const int distance = j - (i + problem.keys(b) - problem.queries(b));
    return (problem.window_left < 0 || distance >= -problem.window_left) &&
           (problem.window_right < 0 || distance <= problem.window_right);
}

bool key_is_hidden(const Problem& problem, int b, int j) {
    for (int i = 0; i < problem.queries(b); ++i)
        if (sees(problem, b, i, j)) return false;
    return true;
}

bool query_sees_nothing(const Problem& problem, int b, int i) {
    for (int j = 0; j < problem.keys(b); ++j)
        if (sees(problem, b, i, j)) return false;
    return true;
}

// What nobody sees has no effect: the same bits as with zeros there.
void expect_hidden_has_no_effect(const Rung& rung, const Problem& problem) {
    Probe probe = random_probe(problem);
    const auto run_with = [&](float value) {
        for (HostTensor* tensor : {&probe.inputs.K, &probe.inputs.V})
            fill(*tensor, value, [&](int b, int j) { return key_is_hidden(problem, b, j); });
        for (HostTensor* tensor : {&probe.inputs.Q, &probe.inputs.dO})
            fill(*tensor, value, [&](int b, int i) { return query_sees_nothing(problem, b, i); });
        return probe.run(rung);
    };
    const Outputs expected = run_with(0);
    EXPECT_TRUE(run_with(nan) == expected) << "NaN, " << attention::describe(problem);
    EXPECT_TRUE(run_with(infinity) == expected) << "Inf, " << attention::describe(problem);
}

void B09_hidden_NaN(const Rung& rung) {
    const int d = usual_dimensions(rung)[0];
    for (DataType type : types(rung)) {
        Problem window = small_problem(5, 100, d, type);  // keys 92 ... 99 are seen
        window.window_left = 3;
        window.window_right = 0;
        expect_hidden_has_no_effect(rung, window);
        window.Nq = 70;
        window.Nk = 200;  // keys 120 ... 199: tiles that are hidden, begin hidden, and are seen
        window.window_left = 10;
        expect_hidden_has_no_effect(rung, window);
        // Rows that see no key: the last tile is ragged; no tile of 64 or of 128 is.
        for (int Nq : {140, 192, 256}) expect_hidden_has_no_effect(rung, causal(small_problem(Nq, 9, d, type)));
        window.softcap = 5;
        window.alibi = true;
        if (rung.modifiers) expect_hidden_has_no_effect(rung, window);

        Problem cache = small_problem(1, 13, d, type);  // 3 slots used, 13 slots of nobody
        cache.B = 2;
        cache.cu_q = {0, 1, 1};
        cache.cu_k = {0, 3, 16};
        expect_hidden_has_no_effect(rung, cache);
    }
}

// A NaN that one row sees and another does not stays apart where elements are multiplied one by one. On
// tensor cores 0 * NaN inside one tile may reach every row of it.
void B09_NaN_of_a_neighbour(const Rung& rung) {
    for (DataType type : types(rung)) {
        Probe probe(causal(small_problem(2, 4, smallest_d(rung), type)));
        for (int j = 0; j < 4; ++j) probe.v(j) = j == 3 ? nan : 1;
        const Outputs outputs = probe.run(rung);
        if (is_backward(rung)) {  // Q = K = 0: so is every gradient that no NaN enters
            for (int c = 0; c < outputs.dQ.d; ++c) EXPECT_EQ(outputs.dQ.row(0, 0, 0)[c], 0.0f);
            EXPECT_TRUE(std::isnan(outputs.dQ.row(0, 0, 1)[0]));
        } else {
            EXPECT_NEAR(outputs.O.row(0, 0, 0)[0], 1.0f, rounding(rung, type, 1, 1));
            EXPECT_TRUE(std::isnan(outputs.O.row(0, 0, 1)[0]));
        }
    }
}

void expect_nan_row(const HostTensor& tensor, int row) {
    for (int c = 0; c < tensor.d; ++c)
        ASSERT_TRUE(std::isnan(tensor.row(0, 0, row)[c])) << "row " << row << ", column " << c;
}

// A NaN that is seen reaches every row that sees it, and in Q no other row.
void B10_visible_NaN(const Rung& rung) {
    const int d = usual_dimensions(rung)[0];
    for (DataType type : types(rung)) {
        for (int Nk : {16, 127, 150}) {
            // A sum of two terms has the same bits in either order, of three it has not.
            const bool same_bits = rung.deterministic || Nk < 128;
            Probe clean = random_probe(small_problem(4, Nk, d, type));
            const Outputs expected = clean.run(rung);
            Probe in_q = clean;
            in_q.q(0) = nan;
            const Outputs outputs = in_q.run_unjudged(rung);
            const HostTensor& rows = is_backward(rung) ? outputs.dQ : outputs.O;
            const HostTensor& clean_rows = is_backward(rung) ? expected.dQ : expected.O;
            expect_nan_row(rows, 0);
            for (int i = 1; i < 4; ++i) {
                for (int c = 0; c < d; ++c) {
                    const float value = rows.row(0, 0, i)[c], clean_value = clean_rows.row(0, 0, i)[c];
                    const float rounding = same_bits ? 0 : 0x1p-7f * std::abs(clean_value) + 1e-5f;
                    ASSERT_LE(std::abs(value - clean_value), rounding) << "row " << i;
                }
            }
            if (is_backward(rung)) {
                for (int j = 0; j < Nk; ++j) expect_nan_row(outputs.dK, j);
            } else {
                EXPECT_TRUE(std::isnan(outputs.L.row(0, 0, 0)[0]));
            }
            for (int key : {5, Nk - 1}) {
                Probe in_k = clean;
                in_k.k(key) = nan;
                const Outputs seen = in_k.run_unjudged(rung);
                for (int i = 0; i < 4; ++i) expect_nan_row(is_backward(rung) ? seen.dQ : seen.O, i);
            }
        }
    }
}

// The same values in another place give the same bits; B55: also where rows lie from the last to the first.
void B23_other_strides(const Rung& rung) {
    const int d = usual_dimensions(rung)[0];
    for (int Nk : {33, 65}) {
        Problem problem = causal(small_problem(33, Nk, d, DataType::fp16));
        problem.B = problem.Hq = problem.Hkv = 2;
        Probe probe = random_probe(problem);
        const Outputs expected = probe.run(rung);
        for (const char* only : {"Q", "K", "V", ""}) {
            for (Layout layout : {Layout::strided, Layout::reversed}) {
                if (layout == Layout::reversed && rung.tensor_maps) continue;  // refused, see below
                probe.setup = {.layout = layout, .only = only};
                EXPECT_TRUE(probe.run(rung) == expected) << only << " " << name(layout);
            }
        }
        if (rung.tensor_maps) {
            const Case reversed(problem, probe.inputs, {.layout = Layout::reversed, .only = "K"});
            const std::string refused = Run(rung, reversed).verify().refused.value_or("");
            EXPECT_NE(refused.find("of K is -"), std::string::npos) << refused;
        }
        // One key/value head in memory for all: as with copies of it.
        probe.setup = {};
        for (HostTensor* tensor : {&probe.inputs.K, &probe.inputs.V})
            for (int b = 0; b < 2; ++b)
                for (int j = 0; j < Nk; ++j) std::copy_n(tensor->row(b, 0, j), d, tensor->row(b, 1, j));
        const Outputs copies = probe.run(rung);
        for (const char* only : {"K", "V", ""}) {
            probe.setup = {.layout = Layout::shared_kv, .only = only};
            EXPECT_TRUE(probe.run(rung) == copies) << only << " shared";
        }
    }
}

// Operands that do not begin at multiples of 16 bytes: the right result, or a refusal that names what is needed before
// anything is launched; a good call works afterwards.
void B45_misaligned(const Rung& rung) {
    Probe probe = random_probe(small_problem(17, 40, usual_dimensions(rung)[0], DataType::bf16));
    const Outputs expected = probe.run(rung);
    const std::vector<const char*> operands = is_backward(rung) ? std::vector{"Q", "K", "V", "dO", "dQ", "dK", "dV", ""}
                                                                : std::vector{"Q", "K", "V", "O", ""};
    for (Layout layout : {Layout::misaligned, Layout::odd_rows}) {
        for (const char* only : operands) {
            const Case the_case(probe.problem, probe.inputs, {.layout = layout, .only = only});
            const Result result = Run(rung, the_case).verify();
            if (!result.refused) {
                EXPECT_TRUE(result.verified()) << only << " " << name(layout) << ": " << result.reason();
                continue;
            }
            EXPECT_NE(result.refused->find("16"), std::string::npos) << *result.refused;
            EXPECT_NE(result.refused->find(" " + std::string(only)), std::string::npos) << *result.refused;
        }
    }
    EXPECT_TRUE(probe.run(rung) == expected);
    const Problem odd = small_problem(17, 40, 46, DataType::bf16);
    if (takes(rung, odd)) {
        EXPECT_EQ(failure(rung, odd), "");
    } else {
        EXPECT_NE(rung.refuses(odd)->find("46"), std::string::npos) << *rung.refuses(odd);
    }
}

void B51_empty_problems(const Rung& rung) {
    const int d = smallest_d(rung);
    const auto run = [&](int B, int Nq, int Nk) {
        Problem problem = small_problem(Nq, Nk, d, DataType::fp16);
        problem.B = B;
        return random_probe(problem).run(rung);
    };
    EXPECT_EQ(run(0, 3, 3).O.values.size(), 0u);
    EXPECT_EQ(run(2, 0, 3).O.values.size(), 0u);
    run(2, 0, 0);
    const Outputs no_keys = run(2, 3, 0);
    for (float o : no_keys.O.values) EXPECT_EQ(o, 0.0f);
    for (float l : no_keys.L.values) EXPECT_EQ(l, -infinity);
    for (float dq : no_keys.dQ.values) EXPECT_EQ(dq, 0.0f);
    const Outputs no_queries = run(2, 0, 70);
    for (float dk : no_queries.dK.values) EXPECT_EQ(dk, 0.0f);
    for (float dv : no_queries.dV.values) EXPECT_EQ(dv, 0.0f);

    Problem packed = small_problem(0, 0, d, DataType::fp16);
    packed.B = 2;
    packed.cu_q = packed.cu_k = {0, 0, 0};
    random_probe(packed).run(rung);
}

void B53_group_that_does_not_divide(const Rung& rung) {
    for (const auto& [Hq, Hkv] : {std::pair{33, 2}, {3, 2}}) {
        Problem problem = small_problem(1, 17, smallest_d(rung), DataType::fp16);
        problem.Hq = Hq;
        problem.Hkv = Hkv;
        try {
            failure(rung, problem);
            ADD_FAILURE() << Hq << " query heads for " << Hkv << " key/value heads were not refused";
        } catch (const attention::InvalidProblem& refusal) {
            const std::string sentence = refusal.what();
            EXPECT_NE(sentence.find(std::to_string(Hq)), std::string::npos) << sentence;
            EXPECT_NE(sentence.find(std::to_string(Hkv)), std::string::npos) << sentence;
        }
    }
}

void refuses_in_words(const Rung& rung) {
    Problem dropout = small_problem(4, 4, smallest_d(rung), DataType::fp16);
    dropout.dropout = 0.5f;
    if (takes(rung, dropout)) {
        EXPECT_EQ(failure(rung, dropout), "");
    } else {
        EXPECT_NE(rung.refuses(dropout)->find("dropout"), std::string::npos);
    }
    if (const Problem wide = small_problem(4, 4, 4096, DataType::fp16); !takes(rung, wide)) {
        EXPECT_NE(rung.refuses(wide)->find("4096"), std::string::npos) << *rung.refuses(wide);
    }
    if (const Problem fp32 = small_problem(4, 4, smallest_d(rung), DataType::fp32); !takes(rung, fp32)) {
        EXPECT_NE(rung.refuses(fp32)->find("fp32"), std::string::npos) << *rung.refuses(fp32);
    }
}

}  // namespace

std::vector<StageTest> memory_cases() {
    return {{"B09_hidden_NaN", B09_hidden_NaN},
            {"B09_NaN_of_a_neighbour", B09_NaN_of_a_neighbour, [](const Rung& rung) { return !rung.whole_tiles; }},
            {"B10_visible_NaN", B10_visible_NaN},
            {"B23_other_strides", B23_other_strides},
            {"B45_misaligned", B45_misaligned},
            {"B51_empty_problems", B51_empty_problems},
            {"B53_group_that_does_not_divide", B53_group_that_does_not_divide},
            {"refuses_in_words", refuses_in_words}};
}

}  // namespace verify
