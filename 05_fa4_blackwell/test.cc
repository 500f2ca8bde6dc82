#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/gpu/emulator/options.h"
#include "common/verify/run.h"
#include "common/verify/stage_tests/probe.h"
#include "common/verify/stage_tests/stage_tests.h"

namespace stage05 {

void register_stage(ladder::Registry& registry);

namespace {

using attention::DataType;
using attention::Problem;

RUNG_TESTS(Stage05Rungs, register_stage);

TEST(Stage05, HasItsRungs) {
    EXPECT_EQ(verify::rung_names(register_stage), (std::vector<std::string>{"a forward", "b forward", "c forward",
                                                                            "d forward", "e forward", "a backward"}));
}

// What a forward computes on the way stays on chip; the backward keeps L, D and the sums of dQ in whole tiles.
TEST(Stage05, ScratchGrowsWithNAtMost) {
    ladder::Registry registry;
    register_stage(registry);
    for (int d : {64, 128}) {
        const std::size_t queries = 1024, Br = 128, tiles = queries / Br + 1;
        const Problem problem = verify::small_problem(queries, queries, d, DataType::bf16);
        for (const ladder::Rung& rung : registry.rungs()) {
            const std::size_t expected = rung.pass == ladder::Pass::forward ? 0 : tiles * Br * (2 + d) * sizeof(float);
            EXPECT_EQ(verify::workspace_bytes(rung, problem), expected) << rung.title();
        }
    }
}

TEST(Stage05, RefusesOtherHeadDimensionsByName) {
    ladder::Registry registry;
    register_stage(registry);
    for (const ladder::Rung& rung : registry.rungs())
        for (int d : {8, 72, 96, 192, 256})
            EXPECT_EQ(rung.refuses(verify::small_problem(4, 4, d, DataType::bf16)).value_or(""),
                      "takes d = 64 or 128, not " + std::to_string(d));
}

// 05e: more pairs of tiles than multiprocessors, of different lengths, some without keys.
TEST(Stage05, PersistentCtasTakeManyTiles) {
    const ladder::Rung rung = verify::find_rung(register_stage, "e", ladder::Pass::forward);
    for (int d : {64, 128}) {
        Problem problem =
            verify::causal(verify::small_problem(520, 140, d, DataType::bf16));  // 380 queries see nothing
        problem.B = 10;
        problem.Hq = 2 * gpu::device().multiprocessors / (3 * problem.B) + 1;
        problem.Hkv = 1;
        problem.scale = attention::default_scale(d);
        EXPECT_EQ(verify::failure(rung, problem), "");
    }
}

// B39: one channel 50 times the others, and a second sequence that is the first once more.
TEST(Stage05, B39_LargestHeadDimensionAndASecondSequence) {
    const ladder::Rung rung = verify::find_rung(register_stage, "a", ladder::Pass::backward);
    verify::Probe probe(verify::causal(verify::small_problem(97, 97, 128, DataType::bf16)));
    probe.problem.B = 2;
    probe.problem.scale = attention::default_scale(128);
    probe.inputs = attention::make_inputs(probe.problem, attention::InputLaw::normal, 3);
    for (attention::HostTensor* tensor : {&probe.inputs.Q, &probe.inputs.K, &probe.inputs.V, &probe.inputs.dO}) {
        for (int i = 0; i < 97; ++i) {
            float& outlier = tensor->row(0, 0, i)[7];
            outlier = attention::round_to(DataType::bf16, 50 * outlier);
            std::copy_n(tensor->row(0, 0, i), 128, tensor->row(1, 0, i));
        }
    }
    const verify::Outputs outputs = probe.run(rung);
    for (const attention::HostTensor* tensor : {&outputs.dQ, &outputs.dK, &outputs.dV})
        EXPECT_TRUE(std::equal(tensor->row(0, 0, 0), tensor->row(1, 0, 0), tensor->row(1, 0, 0)));
}

// B09, B46: tiles that copies bring begin and end in other sequences, whose rows are NaN.
TEST(Stage05, B09_B46_CopiesBringNaNOfOtherSequences) {
    ladder::Registry registry;
    register_stage(registry);
    for (const ladder::Rung& rung : registry.rungs()) {
        for (int d : {64, 128}) {
            Problem problem = verify::small_problem(300, 300, d, DataType::fp16);
            problem.B = 5;
            problem.scale = attention::default_scale(d);
            // Sequences 1 and 3 are hidden: they have queries or keys alone.
            problem.cu_q = {0, 70, 75, 375, 375, 376};
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

gpu::Counters count(const std::string& letter, const Problem& problem) {
    const verify::Case the_case(problem);
    const verify::Result result =
        verify::Run(verify::find_rung(register_stage, letter, ladder::Pass::forward), the_case).verify();
    EXPECT_TRUE(result.verified()) << result.reason();
    return result.counters.value();
}

// Products read W from shared memory in 05a, 2 Br Bc bytes of a tile, which 05b has in tensor memory.
TEST(Stage05, WLeavesSharedMemoryInB) {
    if (!gpu::device().emulated) GTEST_SKIP() << "A GPU does not count shared memory.";
    for (int d : {64, 128}) {
        Problem problem = verify::small_problem(256, 384, d, DataType::bf16);
        problem.scale = attention::default_scale(d);
        const gpu::Counters a = count("a", problem), b = count("b", problem);
        const std::uint64_t tiles = 2 * 3, W = 2 * 128 * 128, Q = 2 * 128 * d, KV = 2 * 128 * d, O = 2 * 128 * d;
        // Products read Q and K, and W and V, of each tile, and each thread where tensor memory begins; in 05b O and its
        // factors go through shared memory.
        EXPECT_EQ(a.shared_read, tiles * (Q + 2 * KV + W) + 2 * 128 * 4);
        EXPECT_EQ(b.shared_read, tiles * (Q + 2 * KV) + 512 * 4 + 2 * O + tiles * 128 * 4);
        // Both fetch S and write W, of which products in tensor memory read the latter; 05a writes it elsewhere.
        EXPECT_EQ(b.tensor_memory_written - a.tensor_memory_written, tiles * W);
        EXPECT_EQ(b.tensor_memory_read - a.tensor_memory_read, tiles * W);
    }
}

// Normal inputs, N = 4096: the correction leaves out at least nine passes over O in ten, of which 05c makes one for each
// query tile and key tile but the first.
TEST(Stage05, LazyRescaleLeavesNineInTenOut) {
    if (!gpu::device().emulated) GTEST_SKIP() << "A GPU does not count what goes to tensor memory.";
    Problem problem = verify::small_problem(256, 4096, 128, DataType::bf16);
    problem.scale = attention::default_scale(128);
    const std::uint64_t passes = 2 * (4096 / 128 - 1), pass = 128 * 128 * 4;
    const gpu::Counters c = count("c", problem), d = count("d", problem);
    EXPECT_EQ(c.rescales, passes * 128);
    EXPECT_GE(c.tensor_memory_written - d.tensor_memory_written, passes * pass * 9 / 10);
}

// Scores of a million, of which the later ones are 6 higher: 2^-8.66 is the right factor of O and l to the last digits,
// though c m itself is rounded to 1/8.
TEST(Stage05, LargeScoresRescaleByTheirDifference) {
    ladder::Registry registry;
    register_stage(registry);
    for (const ladder::Rung& rung : registry.rungs()) {
        if (rung.pass != ladder::Pass::forward) continue;
        verify::Probe probe(verify::small_problem(1, 256, 64, DataType::bf16));
        probe.q(0, 0) = 1024, probe.q(0, 1) = 1;
        for (int j = 128; j < 256; ++j) probe.k(j, 0) = 1032;  // walked first
        probe.k(5, 0) = 1032, probe.k(5, 1) = 6;
        for (int j = 0; j < 256; ++j)
            for (int column = 0; column < 64; ++column) probe.v(j, column) = j < 128 ? -1 : 1;
        const double old_keys = 128 * std::exp(-6.0), expected = (old_keys - 1) / (old_keys + 1);
        EXPECT_NEAR(probe.run(rung).O.row(0, 0, 0)[0], expected, 0x1p-8) << rung.title();
    }
}

}  // namespace
}  // namespace stage05
