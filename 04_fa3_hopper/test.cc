#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "common/gpu/emulator/options.h"
#include "common/verify/run.h"
#include "common/verify/stage_tests/probe.h"
#include "common/verify/stage_tests/stage_tests.h"

namespace stage04 {

void register_stage(ladder::Registry& registry);

namespace {

using attention::DataType;
using attention::Problem;

RUNG_TESTS(Stage04Rungs, register_stage);

TEST(Stage04, HasItsRungs) {
    EXPECT_EQ(verify::rung_names(register_stage),
              (std::vector<std::string>{"a forward", "b forward", "c forward", "d forward", "e forward", "f forward",
                                        "g forward", "a backward", "b backward", "c backward"}));
}

// What a forward computes on the way stays on chip; the backward keeps L, D and the sums of dQ in whole tiles.
TEST(Stage04, ScratchGrowsWithNAtMost) {
    ladder::Registry registry;
    register_stage(registry);
    for (int d : {64, 128, 256}) {
        const std::size_t queries = 1024, Br = d == 64 ? 128 : 64, tiles = queries / Br + 1;
        const Problem problem = verify::small_problem(queries, queries, d, DataType::bf16);
        for (const ladder::Rung& rung : registry.rungs()) {
            if (!verify::takes(rung, problem)) continue;
            const std::size_t turns = rung.letter == "b" ? tiles * 2 * sizeof(int) : 0;
            const std::size_t expected =
                rung.pass == ladder::Pass::forward ? 0 : tiles * Br * (2 + d) * sizeof(float) + turns;
            EXPECT_EQ(verify::workspace_bytes(rung, problem), expected) << rung.title();
        }
    }
}

TEST(Stage04, RefusesOtherHeadDimensionsByName) {
    ladder::Registry registry;
    register_stage(registry);
    for (const ladder::Rung& rung : registry.rungs()) {
        using Taken = std::pair<std::string, std::set<int>>;
        const auto [words, taken] = rung.pass == ladder::Pass::forward ? Taken{"64, 128 or 256", {64, 128, 256}}
                                    : rung.letter == "c"               ? Taken{"256", {256}}
                                                                       : Taken{"64 or 128", {64, 128}};
        for (int d : {8, 64, 72, 96, 128, 192, 256, 264}) {
            const auto reason = rung.refuses(verify::small_problem(4, 4, d, DataType::bf16));
            EXPECT_EQ(reason.value_or(""),
                      taken.contains(d) ? "" : "takes d = " + words + ", not " + std::to_string(d));
        }
    }
}

// d = 256: forward rungs have tiles of 80 keys, and in 04f and 04g O takes the memory of Q; the backward 04c is for it
// alone.
TEST(Stage04, HeadDimension256) {
    ladder::Registry registry;
    register_stage(registry);
    for (const ladder::Rung& rung : registry.rungs()) {
        if (!verify::takes(rung, verify::small_problem(1, 1, 256, DataType::fp16))) continue;
        for (DataType type : {DataType::fp16, DataType::bf16}) {
            Problem problem = verify::small_problem(200, 250, 256, type);
            problem.Hq = 2;
            problem.scale = attention::default_scale(256);
            problem.window_left = 120;
            problem.window_right = 20;
            for (verify::Layout layout : {verify::Layout::dense, verify::Layout::strided})
                EXPECT_EQ(verify::failure(rung, problem, {.layout = layout}), "");
        }
    }
}

// 04e, f, g: more tiles than CTAs, of different lengths, so that a CTA takes several and the rings go round between
// them.
TEST(Stage04, PersistentCtasTakeManyTiles) {
    for (const char* letter : {"e", "f", "g"}) {
        const ladder::Rung rung = verify::find_rung(register_stage, letter, ladder::Pass::forward);
        for (int d : {64, 128}) {
            for (bool causal : {false, true}) {
                Problem problem = verify::small_problem(70, 190, d, DataType::bf16);
                problem.B = 20;
                problem.Hq = problem.Hkv = 8;
                problem.scale = attention::default_scale(d);
                if (causal) problem = verify::causal(problem);
                EXPECT_EQ(verify::failure(rung, problem), "") << rung.title();
            }
        }
    }
}

// B39: one channel 50 times the others, and a second sequence that is the first once more.
TEST(Stage04, B39_LargestHeadDimensionAndASecondSequence) {
    ladder::Registry registry;
    register_stage(registry);
    for (const ladder::Rung& rung : registry.rungs()) {
        if (rung.pass != ladder::Pass::backward) continue;
        // One key tile, or two in 04c: a sum of two terms is the same in either order.
        const int d = verify::usual_dimensions(rung).back();
        verify::Probe probe(verify::causal(verify::small_problem(97, 97, d, DataType::bf16)));
        probe.problem.B = 2;
        probe.problem.scale = attention::default_scale(d);
        probe.inputs = attention::make_inputs(probe.problem, attention::InputLaw::normal, 3);
        for (attention::HostTensor* tensor : {&probe.inputs.Q, &probe.inputs.K, &probe.inputs.V, &probe.inputs.dO}) {
            for (int i = 0; i < 97; ++i) {
                float& outlier = tensor->row(0, 0, i)[7];
                outlier = attention::round_to(DataType::bf16, 50 * outlier);
                std::copy_n(tensor->row(0, 0, i), d, tensor->row(1, 0, i));
            }
        }
        const verify::Outputs outputs = probe.run(rung);
        for (const attention::HostTensor* tensor : {&outputs.dQ, &outputs.dK, &outputs.dV})
            EXPECT_TRUE(std::equal(tensor->row(0, 0, 0), tensor->row(1, 0, 0), tensor->row(1, 0, 0))) << rung.title();
    }
}

// B09, B46: tiles that copies bring begin and end in other sequences, whose rows are NaN; a CTA takes tiles of several
// of them.
TEST(Stage04, B09_B46_CopiesBringNaNOfOtherSequences) {
    ladder::Registry registry;
    register_stage(registry);
    for (const ladder::Rung& rung : registry.rungs()) {
        for (int d : {64, 128, 256}) {
            if (!verify::takes(rung, verify::small_problem(1, 1, d, DataType::fp16))) continue;
            Problem problem = verify::small_problem(150, 300, d, DataType::fp16);
            problem.B = 5;
            problem.scale = attention::default_scale(d);
            // Sequences 1 and 3 are hidden: they have queries or keys alone.
            problem.cu_q = {0, 70, 75, 225, 225, 226};
            problem.cu_k = {0, 300, 300, 430, 437, 568};
            verify::Probe probe(problem);
            probe.inputs = attention::make_inputs(problem, attention::InputLaw::normal, 5);
            const auto run_with = [&](float hidden) {
                for (int i = 70; i < 75; ++i) std::fill_n(probe.inputs.Q.row(0, 0, i), d, hidden);
                for (int i = 70; i < 75; ++i) std::fill_n(probe.inputs.dO.row(0, 0, i), d, hidden);
                for (int j = 430; j < 437; ++j) std::fill_n(probe.inputs.K.row(0, 0, j), d, hidden);
                for (int j = 430; j < 437; ++j) std::fill_n(probe.inputs.V.row(0, 0, j), d, hidden);
                return probe.run(rung);
            };
            const verify::Outputs expected = run_with(0);
            const verify::Outputs outputs = run_with(std::numeric_limits<float>::quiet_NaN());
            EXPECT_TRUE(!rung.deterministic || outputs == expected) << rung.title() << ", d = " << d;
        }
    }
}

// Five key tiles add to the same dQ.
verify::Probe five_key_tiles(int d) {
    Problem problem = verify::causal(verify::small_problem(130, 600, d, DataType::fp16));
    problem.scale = attention::default_scale(d);
    verify::Probe probe(problem);
    probe.inputs = attention::make_inputs(problem, attention::InputLaw::normal, 1);
    return probe;
}

#if GPU_EMULATOR
// B41: how many of the seeds change the rung's bits; its values are right under each.
int seeds_that_change(const ladder::Rung& rung, int seeds) {
    const emulator::Options before = emulator::options();
    const verify::Probe probe = five_key_tiles(64);
    const verify::Outputs first = probe.run(rung);
    int changes = 0;
    for (int seed = 1; seed <= seeds; ++seed) {
        emulator::Options options = before;
        options.schedule = seed % 2 == 0 ? emulator::Schedule::random : emulator::Schedule::priority;
        options.seed = seed;
        options.resident_ctas = 5;  // all key tiles at once
        emulator::set_options(options);
        changes += !(probe.run(rung) == first);
    }
    emulator::set_options(before);
    return changes;
}

TEST(Stage04, BackwardBRepeatsItsBitsUnderAnySeed) {
    EXPECT_GT(seeds_that_change(verify::find_rung(register_stage, "a", ladder::Pass::backward), 3), 0);
    EXPECT_EQ(seeds_that_change(verify::find_rung(register_stage, "b", ladder::Pass::backward), 5), 0);
}
TEST(Stage04, SlowBackwardBRepeatsItsBitsUnder200Seeds) {
    EXPECT_EQ(seeds_that_change(verify::find_rung(register_stage, "b", ladder::Pass::backward), 200), 0);
}
#endif

// On whatever machine.
TEST(Stage04, BackwardBRepeatsItsBitsInManyRuns) {
    const verify::Probe probe = five_key_tiles(128);
    const ladder::Rung b = verify::find_rung(register_stage, "b", ladder::Pass::backward);
    const verify::Outputs first = probe.run(b);
    const int runs = gpu::device().emulated ? 3 : 100;
    for (int run = 1; run < runs; ++run) ASSERT_TRUE(probe.run_unjudged(b) == first) << "run " << run;
}

}  // namespace
}  // namespace stage04
