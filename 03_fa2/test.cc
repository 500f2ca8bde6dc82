#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/gpu/emulator/options.h"
#include "common/verify/run.h"
#include "common/verify/stage_tests/probe.h"
#include "common/verify/stage_tests/stage_tests.h"

namespace stage03 {

void register_stage(ladder::Registry& registry);

namespace {

using attention::DataType;
using attention::Problem;

RUNG_TESTS(Stage03Rungs, register_stage);

/// All but the decoding rung, which has its own tests.
std::vector<ladder::Rung> rungs() {
    ladder::Registry registry;
    register_stage(registry);
    std::vector<ladder::Rung> result = registry.rungs();
    std::erase_if(result, [](const ladder::Rung& rung) { return rung.pass == ladder::Pass::decode; });
    return result;
}

TEST(Stage03, HasItsRungs) {
    EXPECT_EQ(verify::rung_names(register_stage),
              (std::vector<std::string>{"a forward", "b forward", "c forward", "d forward", "a backward", "b backward",
                                        "e decode"}));
}

// What a forward computes on the way stays on chip. Backward's L and D, and a's sums of dQ, take whole tiles of 64 queries.
TEST(Stage03, ScratchGrowsWithNAtMost) {
    const std::size_t queries = 1024, tiles = queries / 64 + 1, values = tiles * 64 * sizeof(float);
    const Problem problem = verify::small_problem(queries, queries, 64, DataType::bf16);
    for (const ladder::Rung& rung : rungs()) {
        const std::size_t expected = rung.pass == ladder::Pass::forward ? 0 : rung.letter == "a" ? 2 + 64 : 2;
        EXPECT_EQ(verify::workspace_bytes(rung, problem), expected * values) << rung.title();
    }
}

// Each head dimension that kernels are compiled for, and one that is padded to it: several tiles each way, a group, rows
// that fill no tile.
TEST(Stage03, HeadDimensions) {
    for (const ladder::Rung& rung : rungs()) {
        for (int d : {8, 32, 40, 64, 72, 96, 104, 128, 136, 192, 200, 256}) {
            Problem problem = verify::small_problem(70, 150, d, d % 3 == 0 ? DataType::fp16 : DataType::bf16);
            problem.Hq = 2;
            problem.scale = attention::default_scale(d);
            problem.window_left = 90;
            problem.window_right = 20;
            for (verify::Layout layout : {verify::Layout::dense, verify::Layout::strided})
                EXPECT_EQ(verify::failure(rung, problem, {.layout = layout}), "");
        }
    }
}

TEST(Stage03, RefusesOtherHeadDimensionsByName) {
    for (const ladder::Rung& rung : rungs()) {
        for (int d : {1, 20, 100, 264, 512}) {
            const auto reason = rung.refuses(verify::small_problem(4, 4, d, DataType::bf16));
            EXPECT_EQ(reason.value_or(""), "takes d up to 256 in multiples of 8, not " + std::to_string(d));
        }
    }
}

TEST(Stage03, DropoutFollowsTheReference) {
    for (const ladder::Rung& rung : rungs()) {
        for (float p : {0.1f, 0.9f}) {
            Problem group = verify::small_problem(67, 150, 64, DataType::fp16);
            group.Hq = 6;
            group.Hkv = 2;
            Problem packed = verify::causal(verify::small_problem(40, 131, 32, DataType::bf16));
            packed.B = 3;
            packed.Hq = packed.Hkv = 2;
            packed.cu_q = {0, 17, 17, 57};
            packed.cu_k = {0, 5, 136, 172};
            Problem window = verify::small_problem(130, 129, 128, DataType::bf16);
            window.window_left = 30;
            window.window_right = 7;
            Problem wide = verify::small_problem(20, 70, 256, DataType::fp16);
            for (Problem problem : {group, packed, window, wide}) {
                problem.scale = attention::default_scale(problem.d);
                problem.dropout = p;
                problem.dropout_seed = 0x123456789abcdef;
                problem.dropout_offset = 5;
                EXPECT_EQ(verify::failure(rung, problem), "");
            }
        }
    }
}

// A scale that is not positive turns the order of the scores round, or makes them all equal.
TEST(Stage03, AnyScale) {
    for (const ladder::Rung& rung : rungs()) {
        for (float scale : {-0.25f, 0.0f, 1e-30f, 3.0f}) {
            Problem problem = verify::causal(verify::small_problem(130, 200, 64, DataType::fp16));
            problem.scale = scale;
            EXPECT_EQ(verify::failure(rung, problem), "");
        }
    }
}

// Two keys of one score, far above a third: O is their mean, exactly, and L the score and log 2, however large the score is and
// whatever is rounded on the way to the exponent.
TEST(Stage03, TheLargestWeightsAreEqualAtAnyScore) {
    for (const ladder::Rung& rung : rungs()) {
        if (rung.pass != ladder::Pass::forward) continue;
        for (DataType type : {DataType::fp16, DataType::bf16}) {
            for (int exponent = 1; exponent <= (type == DataType::fp16 ? 20 : 60); ++exponent) {
                for (float mantissa : {1.171875f, -1.9921875f}) {
                    verify::Probe probe(verify::small_problem(1, 3, 32, type));
                    probe.problem.scale = 0.7f;
                    const float large = std::ldexp(1.0f, exponent / 2),
                                rest = std::ldexp(1.0f, exponent - exponent / 2);
                    probe.q(0, 0) = mantissa * large;
                    probe.q(0, 1) = large;
                    probe.k(0, 0) = probe.k(2, 0) = rest;
                    probe.k(1, 1) = -32 * rest;
                    probe.v(0) = 0.75f;
                    probe.v(1) = 77;
                    probe.v(2) = 1.25f;
                    const double score = double(probe.problem.scale) * mantissa * large * rest;
                    const verify::Outputs outputs = probe.run(rung);
                    EXPECT_EQ(outputs.O.row(0, 0, 0)[0], 1.0f) << rung.title() << ", score " << score;
                    EXPECT_NEAR(*outputs.L.row(0, 0, 0), score + std::log(2.0), 1e-6 + std::abs(score) * 0x1p-20);
                }
            }
        }
    }
}

// 03c copies otherwise, 03d leaves out work, and neither another rounding: the bits of 03b where it has their tiles, whatever the
// scores, masks and widths.
TEST(Stage03, PipelinedAndLeanHaveTheBitsOfFolded) {
    if (!gpu::device().emulated) GTEST_SKIP() << "nvcc may fuse l alpha + W in one file and not in the other.";
    const ladder::Rung b = verify::find_rung(register_stage, "b", ladder::Pass::forward),
                       c = verify::find_rung(register_stage, "c", ladder::Pass::forward),
                       d = verify::find_rung(register_stage, "d", ladder::Pass::forward);
    for (int width : {40, 64, 128}) {
        for (attention::InputLaw law :
             {attention::InputLaw::normal, attention::InputLaw::outliers, attention::InputLaw::rising}) {
            Problem problem = verify::small_problem(150, 500, width, DataType::bf16);
            problem.window_left = 170;
            problem.window_right = 20;
            for (float dropout : {0.0f, 0.3f}) {
                problem.dropout = dropout;
                verify::Probe probe(problem);
                probe.inputs = attention::make_inputs(problem, law, 7);
                const verify::Outputs pipelined = probe.run(c);
                EXPECT_TRUE(probe.run(d) == pipelined) << attention::describe(problem);
                if (width > 64) continue;
                EXPECT_TRUE(probe.run(b) == pipelined) << attention::describe(problem);
            }
        }
    }
}

// Without a mask every query tile reads all of K and V; nothing else is read or written twice, and ldmatrix never waits for a bank.
TEST(Stage03, ReadsKeysOncePerQueryTile) {
    if (!gpu::device().emulated) GTEST_SKIP() << "A GPU counts no bytes by tensor.";
    const std::uint64_t N = 300, d = 128, element = 2;
    for (const auto& [letter, Br] : {std::pair{"a", 64}, {"b", 64}, {"c", 128}, {"d", 128}}) {
        const ladder::Rung rung = verify::find_rung(register_stage, letter, ladder::Pass::forward);
        const verify::Case the_case(verify::small_problem(N, N, d, DataType::fp16));
        const verify::Result result = verify::Run(rung, the_case).verify();
        ASSERT_TRUE(result.verified()) << result.reason();
        EXPECT_EQ(result.counters->bank_conflicts, 0u) << rung.title();
        for (const gpu::Traffic& traffic : result.counters->tensors) {
            const std::uint64_t once = N * d * element, tiles = (N + Br - 1) / Br;
            const std::uint64_t read = traffic.tensor == "Q"                            ? once
                                       : traffic.tensor == "K" || traffic.tensor == "V" ? tiles * once
                                                                                        : 0;
            EXPECT_EQ(traffic.requested_read, read) << traffic.tensor;
            EXPECT_EQ(traffic.requested_written, traffic.tensor == "O" ? once : traffic.tensor == "L" ? 4 * N : 0);
        }
    }
}

// 384 queries and keys of 128 elements: 03a and b walk 1, 2, ... 6 of 6 key tiles, 03c's query tiles of two key tiles' height 2, 4, 6.
TEST(Stage03, CausalLeavesOutHiddenTiles) {
    if (!gpu::device().emulated) GTEST_SKIP() << "A GPU counts no bytes by tensor.";
    for (const auto& [letter, tiles] : {std::pair{"a", 21}, {"b", 21}, {"c", 12}, {"d", 12}}) {
        const ladder::Rung rung = verify::find_rung(register_stage, letter, ladder::Pass::forward);
        const verify::Case the_case(verify::causal(verify::small_problem(384, 384, 128, DataType::fp16)));
        const verify::Result result = verify::Run(rung, the_case).verify();
        ASSERT_TRUE(result.verified()) << result.reason();
        for (const gpu::Traffic& traffic : result.counters->tensors) {
            if (traffic.tensor == "K" || traffic.tensor == "V") {
                EXPECT_EQ(traffic.requested_read, tiles * 64u * 128 * 2);
            }
        }
    }
}

// B39: one channel 50 times the others, and a second sequence that is the first once more.
TEST(Stage03, B39_LargeHeadDimensionsAndASecondSequence) {
    for (const ladder::Rung& rung : rungs()) {
        if (rung.pass != ladder::Pass::backward) continue;
        for (int d : {160, 192, 224, 256}) {
            verify::Probe probe(verify::causal(verify::small_problem(97, 97, d, DataType::bf16)));
            probe.problem.B = 2;
            probe.problem.scale = attention::default_scale(d);
            probe.inputs = attention::make_inputs(probe.problem, attention::InputLaw::normal, 3);
            for (attention::HostTensor* tensor :
                 {&probe.inputs.Q, &probe.inputs.K, &probe.inputs.V, &probe.inputs.dO}) {
                for (int i = 0; i < 97; ++i) {
                    float& outlier = tensor->row(0, 0, i)[7];
                    outlier = attention::round_to(DataType::bf16, 50 * outlier);
                    std::copy_n(tensor->row(0, 0, i), d, tensor->row(1, 0, i));
                }
            }
            const verify::Outputs outputs = probe.run(rung);
            for (const attention::HostTensor* tensor : {&outputs.dQ, &outputs.dK, &outputs.dV})
                EXPECT_TRUE(std::equal(tensor->row(0, 0, 0), tensor->row(1, 0, 0), tensor->row(1, 0, 0)))
                    << rung.title() << ", d = " << d;
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

TEST(Stage03, BackwardBRepeatsItsBitsUnderAnySeed) {
    EXPECT_GT(seeds_that_change(verify::find_rung(register_stage, "a", ladder::Pass::backward), 3), 0);
    EXPECT_EQ(seeds_that_change(verify::find_rung(register_stage, "b", ladder::Pass::backward), 5), 0);
}
TEST(Stage03, SlowBackwardBRepeatsItsBitsUnder200Seeds) {
    EXPECT_EQ(seeds_that_change(verify::find_rung(register_stage, "b", ladder::Pass::backward), 200), 0);
}
#endif

// On whatever machine.
TEST(Stage03, BackwardBRepeatsItsBitsInManyRuns) {
    const verify::Probe probe = five_key_tiles(128);
    const ladder::Rung b = verify::find_rung(register_stage, "b", ladder::Pass::backward);
    const verify::Outputs first = probe.run(b);
    const int runs = gpu::device().emulated ? 3 : 100;
    for (int run = 1; run < runs; ++run) ASSERT_TRUE(probe.run_unjudged(b) == first) << "run " << run;
}

TEST(Stage03, CausalBackwardLeavesOutHiddenTiles) {
    if (!gpu::device().emulated) GTEST_SKIP() << "A GPU counts no bytes by tensor.";
    const ladder::Rung rung = verify::find_rung(register_stage, "a", ladder::Pass::backward);
    const verify::Case the_case(verify::causal(verify::small_problem(512, 512, 128, DataType::fp16)));
    const verify::Result result = verify::Run(rung, the_case).verify();
    ASSERT_TRUE(result.verified()) << result.reason();
    for (const gpu::Traffic& traffic : result.counters->tensors) {
        if (traffic.tensor == "Q") {
            EXPECT_EQ(traffic.requested_read, (8 + 6 + 4 + 2) * 64u * 128 * 2);
        }
    }
    EXPECT_EQ(result.counters->atomics, (8 + 6 + 4 + 2) * 64u * 128);
    EXPECT_EQ(result.counters->exponentials, (8 + 6 + 4 + 2) * 64u * 128);
}

}  // namespace
}  // namespace stage03
