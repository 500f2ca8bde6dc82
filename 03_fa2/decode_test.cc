#include <gtest/gtest.h>

#include <algorithm>
#include <climits>

#include "03_fa2/decode_stage.h"
#include "common/verify/stage_tests/probe.h"
#include "common/verify/stage_tests/stage_tests.h"

namespace stage03 {
namespace {

using attention::DataType;
using attention::HostTensor;
using attention::Problem;
using verify::Outputs;
using verify::Probe;

ladder::Rung decode() { return verify::find_rung(register_decode, "e", ladder::Pass::decode); }

Problem problem(int B, int Hq, int Hkv, int Nq, int Nk, int d = 64, DataType type = DataType::bf16) {
    Problem result = verify::causal(verify::small_problem(Nq, Nk, d, type));
    result.B = B;
    result.Hq = Hq;
    result.Hkv = Hkv;
    result.scale = attention::default_scale(d);
    return result;
}

/// One query for each sequence of these many keys.
Problem packed(const std::vector<int>& keys, int Hq, int Hkv, int d = 64) {
    Problem result = problem(static_cast<int>(keys.size()), Hq, Hkv, 1, *std::max_element(keys.begin(), keys.end()), d);
    result.cu_q = result.cu_k = {0};
    for (int n : keys) {
        result.cu_q.push_back(result.cu_q.back() + 1);
        result.cu_k.push_back(result.cu_k.back() + n);
    }
    return result;
}

Probe probe(const Problem& problem) {
    Probe result(problem);
    result.inputs = attention::make_inputs(problem, attention::InputLaw::normal, 3);
    return result;
}

TEST(Stage03Decode, TakesEveryWidth) {
    for (DataType type : {DataType::fp16, DataType::bf16}) {
        for (int d : {8, 32, 64, 72, 96, 128, 136, 192, 256}) {
            for (int page_size : {0, 16}) {
                Problem p = problem(2, 6, 2, 3, 150, d, type);
                p.page_size = page_size;
                p.splits = 2;
                EXPECT_EQ(verify::failure(decode(), p), "");
            }
        }
    }
}

TEST(Stage03Decode, AnyNumberOfSplitsIsRight) {
    for (int splits = 1; splits <= 8; ++splits) {
        Problem p = problem(2, 8, 2, 2, 500);
        p.splits = splits;
        EXPECT_EQ(verify::failure(decode(), p), "");
        p.window_left = 200;
        p.page_size = 32;
        EXPECT_EQ(verify::failure(decode(), p), "");
        p = packed({500, 0, 1, 64, 65, 300}, 4, 1);
        p.splits = splits;
        EXPECT_EQ(verify::failure(decode(), p), "");
        p.page_size = 64;
        EXPECT_EQ(verify::failure(decode(), p), "");
    }
    for (int splits : {17, 32, 33, 40}) {  // more than merge_splits takes at once
        Problem p = problem(1, 2, 1, 1, 40 * 64);
        p.splits = splits;
        EXPECT_EQ(verify::failure(decode(), p), "");
    }
}

// The largest weights are in the last split, or all of them in one.
TEST(Stage03Decode, SplitsOfAnyWeightMerge) {
    for (attention::InputLaw law :
         {attention::InputLaw::outliers, attention::InputLaw::equal, attention::InputLaw::rising}) {
        for (DataType type : {DataType::fp16, DataType::bf16}) {
            Problem p = problem(1, 4, 1, 4, 700, 128, type);
            p.splits = 5;
            EXPECT_EQ(verify::failure(decode(), p, {.law = law}), "");
        }
    }
}

// Three heads of a query are rows 15, 16 and 17: one of a tile that sees four tiles of keys, two of one that sees three.
TEST(Stage03Decode, HeadsOfAQueryMayHaveDifferentSplits) {
    Problem p = problem(1, 3, 1, 11, 250);
    p.window_left = 179;  // queries 0 and 5 see keys from 60 and from 65 on
    p.splits = 4;
    EXPECT_EQ(verify::failure(decode(), p), "");
}

TEST(Stage03Decode, PagedIsContiguousToTheBit) {
    for (const Problem& p :
         {problem(3, 8, 2, 1, 300), problem(1, 2, 2, 5, 513, 128), packed({300, 17, 0, 256}, 4, 2)}) {
        Probe contiguous = probe(p);
        const Outputs expected = contiguous.run(decode());
        for (int page_size : {16, 32, 64, 128, 256}) {
            for (unsigned seed : {1, 2}) {
                Probe paged = contiguous;
                paged.problem.page_size = page_size;
                attention::draw_page_table(paged.problem, seed);
                EXPECT_TRUE(paged.run(decode()) == expected) << page_size << ", " << attention::describe(p);
            }
        }
    }
}

// A common beginning of two sequences is kept once.
TEST(Stage03Decode, SequencesMayShareTheirPages) {
    Problem p = problem(2, 4, 2, 1, 100);
    Probe contiguous = probe(p);
    for (HostTensor* tensor : {&contiguous.inputs.K, &contiguous.inputs.V})
        for (int h = 0; h < 2; ++h) std::copy_n(tensor->row(0, h, 0), 64 * tensor->d, tensor->row(1, h, 0));
    const Outputs expected = contiguous.run(decode());
    Probe shared = contiguous;
    shared.problem.page_size = 32;
    shared.problem.pages = 7;
    shared.problem.page_table = {5, 0, 3, 1, 5, 0, 6, 2};
    EXPECT_TRUE(shared.run(decode()) == expected);
}

TEST(Stage03Decode, B48_BadPagesAreRefusedBeforeTheLaunch) {
    Problem p = problem(2, 4, 2, 1, 100);
    p.page_size = 32;
    p.pages = 8;
    for (int bad : {-1, 8, 1 << 30}) {
        p.page_table = {0, 1, 2, 3, 4, 5, 6, bad};
        EXPECT_THROW(verify::failure(decode(), p), attention::InvalidProblem) << bad;
    }
    p.page_table.back() = 7;
    EXPECT_EQ(verify::failure(decode(), p), "");
}

/// Sequence b of a problem, alone.
Probe alone(const Probe& all, int b) {
    Problem p = all.problem;
    p.B = 1;
    p.Nq = all.problem.queries(b);
    p.Nk = all.problem.keys(b);
    p.cu_q.clear();
    p.cu_k.clear();
    Probe one(p);
    const auto copy = [&](const HostTensor& from, HostTensor& to) {
        for (int h = 0; h < to.H; ++h)
            for (int i = 0; i < to.N; ++i) std::copy_n(from.row(b, h, i), to.d, to.row(0, h, i));
    };
    copy(all.inputs.Q, one.inputs.Q);
    copy(all.inputs.K, one.inputs.K);
    copy(all.inputs.V, one.inputs.V);
    return one;
}

void expect_each_as_alone(const Probe& all) {
    const Outputs together = all.run(decode());
    for (int b = 0; b < all.problem.B; ++b) {
        const Outputs single = alone(all, b).run(decode());
        for (int h = 0; h < all.problem.Hq; ++h) {
            for (int i = 0; i < all.problem.queries(b); ++i) {
                EXPECT_EQ(*together.L.row(b, h, i), *single.L.row(0, h, i)) << "sequence " << b << ", head " << h;
                for (int c = 0; c < all.problem.d; ++c)
                    ASSERT_EQ(together.O.row(b, h, i)[c], single.O.row(0, h, i)[c])
                        << "sequence " << b << ", head " << h;
            }
        }
    }
}

// Seven sequences, of one length cut into as many splits, or of any lengths with splits of one size.
TEST(Stage03Decode, ASequenceHasItsBitsInEveryBatch) {
    Problem equal = problem(7, 4, 2, 2, 400);
    equal.splits = 3;
    expect_each_as_alone(probe(equal));
    Problem any = packed({2100, 5, 1024, 1025, 0, 64, 1500}, 2, 1);
    any.deterministic = true;
    expect_each_as_alone(probe(any));
}

TEST(Stage03Decode, TrafficOfPagesIsAsStated) {
    if (!gpu::device().emulated) GTEST_SKIP() << "A GPU counts no bytes by tensor.";
    for (Problem p : {problem(2, 6, 2, 2, 300), problem(1, 3, 1, 9, 777, 128), packed({300, 17, 0, 256}, 4, 2)}) {
        p.page_size = 32;
        p.window_left = 100;
        const verify::Case the_case(p);
        const verify::Result result = verify::Run(decode(), the_case).verify();
        ASSERT_TRUE(result.verified()) << result.reason();
        const std::vector<gpu::Traffic> stated = decode().traffic(p);
        for (const gpu::Traffic& counted : result.counters->tensors) {
            const auto same =
                std::find_if(stated.begin(), stated.end(), [&](const auto& t) { return t.tensor == counted.tensor; });
            if (counted.requested_read + counted.requested_written == 0) continue;
            ASSERT_NE(same, stated.end()) << counted.tensor;
            EXPECT_EQ(counted.requested_read, same->requested_read) << counted.tensor;
            EXPECT_EQ(counted.requested_written, same->requested_written) << counted.tensor;
        }
        EXPECT_EQ(result.counters->exponentials, decode().exponentials(p));
    }
}

// A row leaves (m, l, U) for each of its splits: 4 (d + 2) bytes, written once.
TEST(Stage03Decode, PartialResultsGrowWithTheSplits) {
    if (!gpu::device().emulated) GTEST_SKIP() << "A GPU counts no bytes by tensor.";
    for (int splits : {1, 2, 4, 8}) {
        Problem p = problem(2, 6, 2, 2, 512);
        p.splits = splits;
        const verify::Case the_case(p);
        const verify::Result result = verify::Run(decode(), the_case).verify();
        ASSERT_TRUE(result.verified()) << result.reason();
        std::uint64_t written = 0;
        for (const gpu::Traffic& traffic : result.counters->tensors)
            if (traffic.tensor.ends_with("_partial")) written += traffic.requested_written;
        EXPECT_EQ(written, 2u * 6 * 2 * splits * 4 * (64 + 2)) << splits;
    }
}

TEST(Stage03Decode, SplitsFillTheGpu) {
    // 264 CTAs at once, as on 132 SMs. One sequence, 8 heads, 1024 key tiles: 33 splits would fit, 32 are of one size.
    EXPECT_EQ(split_tiles(problem(1, 32, 8, 1, 65536, 128), 264), 32);
    EXPECT_EQ(split_tiles(problem(8, 32, 8, 1, 16384, 128), 264), 64);   // 64 heads, 4 splits
    EXPECT_EQ(split_tiles(problem(32, 32, 8, 1, 8192, 128), 264), 128);  // 256 heads: no split
    EXPECT_EQ(split_tiles(problem(64, 32, 32, 1, 4096, 128), 264), 64);  // 2048 heads
    EXPECT_EQ(split_tiles(problem(1, 1, 1, 1, 64, 128), 264), 1);        // one tile
    EXPECT_EQ(split_tiles(problem(1, 1, 1, 1, 0, 128), 264), 1);         // no keys
    Problem window = problem(1, 32, 8, 1, 65536, 128);
    window.window_left = 2047;  // 32 tiles are seen: one for each CTA
    EXPECT_EQ(split_tiles(window, 264), 1);

    Problem given = problem(5, 32, 8, 1, 1000, 128);  // 16 tiles
    for (const auto& [splits, tiles] : {std::pair{1, 16}, {2, 8}, {3, 6}, {16, 1}, {99, 1}, {INT_MAX, 1}}) {
        given.splits = splits;
        EXPECT_EQ(split_tiles(given, 264), tiles) << splits;
    }
    given.splits = 0;
    given.deterministic = true;
    EXPECT_EQ(split_tiles(given, 264), 16);
    EXPECT_EQ(split_tiles(given, 4), 16);
}

}  // namespace
}  // namespace stage03
