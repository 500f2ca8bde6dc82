#include "common/verify/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "common/verify/metrics.h"

namespace {

using attention::Problem;
using verify::HeadRows;
using verify::sample_keys;
using verify::sample_queries;

bool contains(const std::vector<int>& rows, int row) { return std::find(rows.begin(), rows.end(), row) != rows.end(); }

Problem large() {
    Problem problem;
    problem.B = 3;
    problem.Hq = 8;
    problem.Hkv = 4;
    problem.Nq = 3000;
    problem.Nk = 4000;
    problem.window_right = 0;
    return problem;
}

TEST(Sample, SmallProblemsAreComparedInFull) {
    Problem problem;
    problem.B = 2;
    problem.Hq = 4;
    problem.Hkv = 2;
    problem.Nq = 100;
    problem.Nk = 50;
    const auto queries = sample_queries(problem, {}), keys = sample_keys(problem, {});
    EXPECT_EQ(queries.size(), 8u);
    EXPECT_EQ(keys.size(), 4u);
    for (const HeadRows& head : queries) EXPECT_EQ(head.rows.size(), 100u);
    for (const HeadRows& head : keys) EXPECT_EQ(head.rows.size(), 50u);
}

TEST(Sample, LargeProblemsGiveAFewHeadsAndRows) {
    const auto heads = sample_queries(large(), {});
    EXPECT_LE(heads.size(), 7u);  // one of each sequence and four
    EXPECT_TRUE(
        std::any_of(heads.begin(), heads.end(), [](const HeadRows& head) { return head.b == 0 && head.h == 0; }));
    EXPECT_TRUE(
        std::any_of(heads.begin(), heads.end(), [](const HeadRows& head) { return head.b == 2 && head.h == 7; }));
    std::set<int> sequences;
    for (const HeadRows& head : heads) {
        sequences.insert(head.b);
        EXPECT_TRUE(std::is_sorted(head.rows.begin(), head.rows.end()));
        EXPECT_TRUE(contains(head.rows, 0));
        EXPECT_TRUE(contains(head.rows, 2999));
        EXPECT_LE(head.rows.size(), 64u);
        if (head.rows.size() == 2) continue;
        for (int row : {15, 16, 63, 64, 127, 128, 2943, 2944, 2991, 2992}) EXPECT_TRUE(contains(head.rows, row)) << row;
    }
    EXPECT_EQ(sequences.size(), 3u);
}

TEST(Sample, TheSeedDecides) {
    verify::Sample other;
    other.seed = 2;
    const auto rows = [](const std::vector<HeadRows>& heads) { return heads.front().rows; };
    EXPECT_EQ(rows(sample_queries(large(), {})), rows(sample_queries(large(), {})));
    EXPECT_NE(rows(sample_queries(large(), {})), rows(sample_queries(large(), other)));
}

TEST(Sample, RowsBesideTheFirstVisibleKeyAreIncluded) {
    Problem problem = large();
    std::swap(problem.Nq, problem.Nk);  // the first 1000 queries see no key
    const auto heads = sample_queries(problem, {});
    EXPECT_TRUE(contains(heads.front().rows, 999) && contains(heads.front().rows, 1000));
}

TEST(Sample, KeysStayWithinTheBudget) {
    verify::Sample sample;
    sample.key_budget = 0.0;
    EXPECT_EQ(sample_keys(large(), sample).size(), 1u);
    sample.key_budget = 2.5 * (2.0 * 3000 * 4000 * 64 * 2);
    EXPECT_EQ(sample_keys(large(), sample).size(), 2u);
}

TEST(Sample, PackedSequencesKeepTheirEnds) {
    Problem problem = large();
    problem.cu_q = {0, 3000, 3000, 3001};
    problem.cu_k = {0, 4000, 4100, 4100};
    for (const HeadRows& head : sample_queries(problem, {})) {
        if (head.b == 1) {
            EXPECT_TRUE(head.rows.empty());
        } else if (head.b == 2) {
            EXPECT_EQ(head.rows, std::vector<int>{0});
        }
    }
}

TEST(Sample, EmptyProblemsPass) {
    Problem problem;
    problem.B = 0;
    const auto inputs = make_inputs(problem, attention::InputLaw::normal, 1);
    const auto nothing = query_tensor(problem);
    for (const auto& check :
         verify::check_forward(problem, inputs, nothing, row_tensor(problem), plain::Stores::weights))
        EXPECT_TRUE(check.passed) << check.where;
    for (const auto& check : verify::check_backward(problem, inputs, nothing, nothing, nothing, plain::Stores::weights))
        EXPECT_TRUE(check.passed) << check.where;
}

TEST(HalfUlp, OfEachType) {
    using attention::DataType;
    EXPECT_EQ(verify::half_ulp(DataType::bf16, 1.0), 0x1p-8);
    EXPECT_EQ(verify::half_ulp(DataType::bf16, 3.9), 0x1p-7);
    EXPECT_EQ(verify::half_ulp(DataType::fp16, 1.0), 0x1p-11);
    EXPECT_EQ(verify::half_ulp(DataType::fp16, 1e-7), 0x1p-25);
    EXPECT_EQ(verify::half_ulp(DataType::fp32, 1.5), 0x1p-24);
    EXPECT_EQ(verify::half_ulp(DataType::fp32, 0.0), 0x1p-150);
}

}  // namespace
