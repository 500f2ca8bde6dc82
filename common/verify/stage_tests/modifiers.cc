// Softcap and ALiBi, of rungs that take them.
#include <gtest/gtest.h>

#include <cmath>

#include "common/verify/stage_tests/probe.h"
#include "common/verify/stage_tests/stage_tests.h"

namespace verify {
namespace {

using attention::DataType;
using attention::Problem;
using ladder::Rung;

bool takes_modifiers(const Rung& rung) { return rung.modifiers; }

// Scores of +-8192 become +-2. Where tanh is 1 its slope is 0: neither Q nor K can change anything.
void softcap_bounds_the_scores(const Rung& rung) {
    for (DataType type : types(rung)) {
        Probe probe(small_problem(1, 2, smallest_d(rung), type));
        probe.problem.softcap = 2;
        probe.q(0) = probe.v(0) = probe.dO(0) = 1;
        probe.k(0) = 8192;
        probe.k(1) = -8192;
        const Outputs outputs = probe.run(rung);
        const double P = 1 / (1 + std::exp(-4.0));
        if (rung.pass == ladder::Pass::backward) {
            EXPECT_NEAR(outputs.dV.row(0, 0, 0)[0], P, rounding(rung, type, P, 1, false));
            EXPECT_EQ(outputs.dQ.row(0, 0, 0)[0], 0.0f);
            for (int j = 0; j < 2; ++j) EXPECT_EQ(outputs.dK.row(0, 0, j)[0], 0.0f) << "key " << j;
        } else {
            EXPECT_NEAR(outputs.O.row(0, 0, 0)[0], P, rounding(rung, type, P, 1, false));
            EXPECT_NEAR(*outputs.L.row(0, 0, 0), 2 - std::log(P), 1e-5);
        }
    }
}

// Q = 0 and slopes of 1/16 and 1/256: weights fall geometrically from the key that faces the query, here the last but one.
void alibi_falls_with_the_distance(const Rung& rung) {
    for (DataType type : types(rung)) {
        Problem problem = small_problem(2, 150, smallest_d(rung), type);
        problem.Hq = 2;
        problem.alibi = true;
        Probe probe(problem);
        for (int j = 0; j < 150; ++j) probe.v(j) = j == 148 ? 1 : 0;
        for (int h = 0; h < 2; ++h) probe.dO(0, 0, h) = h;
        const Outputs outputs = probe.run(rung);
        for (int h = 0; h < 2; ++h) {
            const double w = std::exp(-std::pow(2.0, -4 * (h + 1)));
            const double l = (1 - std::pow(w, 149)) / (1 - w) + w;
            if (rung.pass == ladder::Pass::backward) {
                if (h == 0) continue;  // dV is summed over the heads, and only head 1 has a dO
                for (int j : {0, 70, 149}) {
                    const double P = std::pow(w, std::abs(148 - j)) / l;
                    EXPECT_NEAR(outputs.dV.row(0, 0, j)[0], P, rounding(rung, type, P, P, false)) << "key " << j;
                }
            } else {
                EXPECT_NEAR(outputs.O.row(0, h, 0)[0], 1 / l, rounding(rung, type, 1 / l, 1 / l, false))
                    << "head " << h;
                EXPECT_NEAR(*outputs.L.row(0, h, 0), std::log(l), 1e-5) << "head " << h;
            }
        }
    }
}

// Each alone and both, with every mask, groups and packed sequences, against the reference.
void modifiers_follow_the_reference(const Rung& rung) {
    Problem causal_group = causal(small_problem(33, 150, smallest_d(rung), DataType::fp16));
    causal_group.Hq = 6;
    causal_group.Hkv = 2;
    Problem window = small_problem(70, 131, smallest_d(rung), DataType::bf16);
    window.window_left = 30;
    window.window_right = 7;
    Problem packed = small_problem(17, 131, smallest_d(rung), DataType::fp16);
    packed.B = 3;
    packed.Hq = packed.Hkv = 3;
    packed.cu_q = {0, 17, 17, 22};
    packed.cu_k = {0, 5, 136, 140};
    Problem wide = causal(small_problem(140, 40, 128, DataType::bf16));  // rows that see no key
    for (Problem problem : {causal_group, window, packed, wide}) {
        if (!takes(rung, problem)) continue;
        problem.scale = attention::default_scale(problem.d);
        for (float softcap : {0.0f, 1.5f}) {
            for (bool alibi : {false, true}) {
                problem.softcap = softcap;
                problem.alibi = alibi;
                for (attention::InputLaw law : {attention::InputLaw::normal, attention::InputLaw::outliers})
                    EXPECT_EQ(failure(rung, problem, {.law = law}), "");
            }
        }
    }
}

}  // namespace

std::vector<StageTest> modifier_cases() {
    return {{"softcap_bounds_the_scores", softcap_bounds_the_scores, takes_modifiers},
            {"alibi_falls_with_the_distance", alibi_falls_with_the_distance, takes_modifiers},
            {"modifiers_follow_the_reference", modifiers_follow_the_reference, takes_modifiers}};
}

}  // namespace verify
