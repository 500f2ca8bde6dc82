#include <gtest/gtest.h>

#include <cmath>
#include <ctime>

#include "02_fa1/key_tiles.h"
#include "common/reference/visibility.h"
#include "common/verify/run.h"
#include "common/verify/stage_tests/probe.h"
#include "common/verify/stage_tests/stage_tests.h"

namespace stage02 {

void register_stage(ladder::Registry& registry);

namespace {

RUNG_TESTS(Stage02Rungs, register_stage);

std::vector<ladder::Rung> rungs() {
    ladder::Registry registry;
    register_stage(registry);
    return registry.rungs();
}

TEST(Stage02, HasItsRungs) {
    EXPECT_EQ(verify::rung_names(register_stage),
              (std::vector<std::string>{"a forward", "b forward", "a backward", "b backward"}));
}

// Scratch grows with N, not with N^2.
TEST(Stage02, StoresNoMatrixOfScores) {
    attention::Problem problem, doubled;
    problem.Nq = problem.Nk = 1024;  // whole tiles
    doubled.Nq = doubled.Nk = 2048;
    for (const ladder::Rung& rung : rungs())
        EXPECT_EQ(verify::workspace_bytes(rung, doubled), 2 * verify::workspace_bytes(rung, problem)) << rung.title();
}

// Algorithm 1: K and V are read once; for each key tile Q is read, O read and written, l and m read and written. The first
// key tile reads no O, l, m; L is what a forward returns beside O.
TEST(Stage02, MovesAsManyElementsAsAlgorithm1) {
    if (!gpu::device().emulated) GTEST_SKIP() << "A GPU counts no bytes by tensor.";
    const std::uint64_t Nq = 48, Nk = 136, d = 40, heads = 2;
    attention::Problem problem = verify::small_problem(Nq, Nk, d, attention::DataType::fp32);
    problem.Hq = heads;
    const verify::Case the_case(problem);
    for (int Bc : key_tiles) {
        const ladder::Rung rung = rung_a(Bc);
        const verify::Result result = verify::Run(rung, the_case).verify();
        ASSERT_TRUE(result.verified()) << "Bc = " << Bc << ": " << result.reason();
        std::uint64_t bytes = 0;
        for (const gpu::Traffic& traffic : result.counters->tensors)
            bytes += traffic.requested_read + traffic.requested_written;
        const std::uint64_t tiles = (Nk + Bc - 1) / Bc, first_reads = Nq * d + 2 * Nq, L = Nq;
        EXPECT_EQ(bytes / sizeof(float), heads * (2 * Nk * d + tiles * (3 * Nq * d + 4 * Nq) - first_reads + L))
            << "Bc = " << Bc;
        EXPECT_EQ(result.counters->exponentials, rung.exponentials(problem)) << "Bc = " << Bc;
    }
    EXPECT_THROW(rung_a(5), std::out_of_range);
}

// Six by six tiles, of which a causal mask hides those above the diagonal.
TEST(Stage02, CausalVisits21Of36Tiles) {
    if (!gpu::device().emulated) GTEST_SKIP() << "A GPU counts no bytes by tensor.";
    const ladder::Rung rung = rung_a(16);  // tiles of 16 x 16
    attention::Problem problem = verify::small_problem(96, 96, 32, attention::DataType::fp32);
    const auto visited = [&](int tiles) {
        const verify::Case the_case(problem);
        const verify::Result result = verify::Run(rung, the_case).verify();
        ASSERT_TRUE(result.verified()) << result.reason();
        for (const gpu::Traffic& traffic : result.counters->tensors) {
            if (traffic.tensor == "Q") {
                EXPECT_EQ(traffic.requested_read, tiles * 16u * 32 * sizeof(float));
            }
        }
        EXPECT_EQ(result.counters->exponentials, tiles * 16u * (16 + 2));
        EXPECT_EQ(result.counters->rescales, tiles * 16u * 2);
    };
    visited(36);
    problem = verify::causal(problem);
    visited(21);
}

TEST(Stage02, DropoutFollowsTheReference) {
    for (const ladder::Rung& rung : rungs()) {
        for (float p : {0.1f, 0.9f}) {
            attention::Problem group = verify::small_problem(67, 150, 64, attention::DataType::fp16);
            group.Hq = 6;
            group.Hkv = 2;
            attention::Problem packed = verify::causal(verify::small_problem(40, 131, 64, attention::DataType::bf16));
            packed.B = 3;
            packed.Hq = packed.Hkv = 2;
            packed.cu_q = {0, 17, 17, 57};
            packed.cu_k = {0, 5, 136, 172};
            attention::Problem window = verify::small_problem(130, 129, 128, attention::DataType::bf16);
            window.window_left = 30;
            window.window_right = 7;
            for (attention::Problem problem : {group, packed, window}) {
                problem.scale = attention::default_scale(problem.d);
                problem.dropout = p;
                problem.dropout_seed = 0x123456789abcdef;
                problem.dropout_offset = 5;
                EXPECT_EQ(verify::failure(rung, problem), "");
            }
        }
    }
}

// All scores are equal, and V (or dO) is the unit matrix, so the output is the mask itself: 2 / 64 or exactly 0.
class Stage02Mask : public testing::Test {
  protected:
    attention::Problem problem = [] {
        attention::Problem problem = verify::small_problem(64, 64, 64, attention::DataType::fp16);
        problem.B = 2;
        problem.Hq = 6;
        problem.Hkv = 2;
        problem.dropout = 0.5f;
        problem.dropout_seed = 77;
        return problem;
    }();

    // dV sums over a group, so only one head of each sequence has a dO.
    static int head_of_dV(int b) { return 1 + 4 * b; }

    attention::HostTensor mask(const ladder::Rung& rung) const {
        verify::Probe probe(problem);
        for (int b = 0; b < problem.B; ++b) {
            for (int n = 0; n < 64; ++n) {
                for (int h = 0; h < problem.Hkv; ++h) probe.v(n, n, h, b) = 1;
                probe.dO(n, n, head_of_dV(b), b) = 1;
            }
        }
        const verify::Outputs outputs = probe.run(rung);
        return rung.pass == ladder::Pass::forward ? outputs.O : outputs.dV;
    }
};

TEST_F(Stage02Mask, IsExactlyThatOfTheReference) {
    for (const ladder::Rung& rung : rungs()) {
        const bool forward = rung.pass == ladder::Pass::forward;
        const attention::HostTensor found = mask(rung);
        for (int b = 0; b < problem.B; ++b) {
            for (int h = 0; h < problem.Hq; ++h) {
                if (!forward && h != head_of_dV(b)) continue;
                for (int i = 0; i < 64; ++i) {
                    for (int j = 0; j < 64; ++j) {
                        const float value = forward ? found.row(b, h, i)[j] : found.row(b, h / problem.group(), j)[i];
                        ASSERT_EQ(value, reference::dropout_factor(problem, b, h, i, j) / 64)
                            << rung.title() << ", sequence " << b << ", head " << h << ", (" << i << ", " << j << ")";
                    }
                }
            }
        }
    }
}

TEST_F(Stage02Mask, KeepsHalfAndChangesWithTheSeed) {
    for (const ladder::Rung& rung : rungs()) {
        if (rung.pass != ladder::Pass::forward) continue;
        const attention::HostTensor first = mask(rung);
        int kept = 0, weights = 0;
        for (float value : first.values) {
            kept += value != 0;
            ++weights;
        }
        EXPECT_NEAR(kept, weights / 2, 5 * std::sqrt(weights) / 2) << rung.title();
        EXPECT_EQ(mask(rung).values, first.values);
        ++problem.dropout_seed;
        EXPECT_NE(mask(rung).values, first.values);
    }
}

// The emulator is fast enough to work with. Time of this process on the processor, so that a busy machine does not
// count.
TEST(Stage02, OneHeadOf1024QueriesTakesLessThanTwoSeconds) {
#ifndef NDEBUG
    GTEST_SKIP() << "Measured in release builds.";
#endif
    const ladder::Rung rung = verify::find_rung(register_stage, "b", ladder::Pass::forward);
    attention::Problem problem;
    problem.Nq = problem.Nk = 1024;
    problem.d = 128;
    problem.scale = attention::default_scale(128);
    const verify::Case the_case(problem);
    verify::Run run(rung, the_case);
    const verify::Result result = run.verify();
    ASSERT_TRUE(result.verified()) << result.reason();
    const std::clock_t start = std::clock();
    run.launch();
    gpu::synchronize();
    EXPECT_LT(double(std::clock() - start) / CLOCKS_PER_SEC, 2.0);
}

}  // namespace
}  // namespace stage02
