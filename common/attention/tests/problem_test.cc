#include "common/attention/problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>

namespace {

using namespace attention;

constexpr float infinity = std::numeric_limits<float>::infinity();

Problem problem(int B, int Hq, int Hkv, int Nq, int Nk, int d) {
    Problem result;
    result.B = B;
    result.Hq = Hq;
    result.Hkv = Hkv;
    result.Nq = Nq;
    result.Nk = Nk;
    result.d = d;
    result.scale = default_scale(d);
    return result;
}

TEST(RoundTo, Fp32KeepsEveryValue) {
    for (float value : {0.1f, -3.4e38f, 1e-45f, infinity}) EXPECT_EQ(round_to(DataType::fp32, value), value);
}

TEST(RoundTo, TiesGoToEven) {
    // Between 2048 and 4096 fp16 has even numbers only; between 256 and 512 so has bf16.
    EXPECT_EQ(round_to(DataType::fp16, 2049.0f), 2048.0f);
    EXPECT_EQ(round_to(DataType::fp16, 2051.0f), 2052.0f);
    EXPECT_EQ(round_to(DataType::fp16, std::nextafter(2049.0f, 3000.0f)), 2050.0f);
    EXPECT_EQ(round_to(DataType::bf16, 257.0f), 256.0f);
    EXPECT_EQ(round_to(DataType::bf16, -259.0f), -260.0f);
    EXPECT_EQ(round_to(DataType::bf16, std::nextafter(257.0f, 0.0f)), 256.0f);
}

TEST(RoundTo, OverflowsToInfinity) {
    EXPECT_EQ(round_to(DataType::fp16, 65519.0f), 65504.0f);
    EXPECT_EQ(round_to(DataType::fp16, 65520.0f), infinity);
    EXPECT_EQ(round_to(DataType::fp16, -1e30f), -infinity);
    EXPECT_EQ(round_to(DataType::bf16, std::numeric_limits<float>::max()), infinity);
}

TEST(RoundTo, SubnormalsHaveAFixedGrid) {
    const float smallest = 0x1p-24f;  // of fp16
    EXPECT_EQ(round_to(DataType::fp16, smallest), smallest);
    EXPECT_EQ(round_to(DataType::fp16, 0.5f * smallest), 0.0f);
    EXPECT_EQ(round_to(DataType::fp16, std::nextafter(0.5f * smallest, 1.0f)), smallest);
    EXPECT_EQ(round_to(DataType::fp16, 1.5f * smallest), 2.0f * smallest);
    EXPECT_EQ(round_to(DataType::fp16, 1023.75f * smallest), 0x1p-14f);  // up into the normal numbers
    EXPECT_TRUE(std::signbit(round_to(DataType::fp16, -1e-30f)));
    EXPECT_EQ(round_to(DataType::bf16, 0x1.8p-133f), 0x1p-132f);
    EXPECT_EQ(round_to(DataType::bf16, 0x1p-134f), 0.0f);
}

TEST(RoundTo, NanStaysOneNan) {
    const float odd_nan = std::bit_cast<float>(0xFF800001u);
    for (DataType type : {DataType::fp32, DataType::fp16, DataType::bf16})
        EXPECT_EQ(std::bit_cast<std::uint32_t>(round_to(type, odd_nan)), 0x7FC00000u);
}

// Rounding fp16 is rounding to a multiple of its last bit, which the fp32 adder does beside a number 1.5 * 2^23 times as large.
float fp16_by_addition(float value) {
    if (std::abs(value) >= 65520.0f) return std::copysign(infinity, value);
    const float last_bit = std::ldexp(1.0f, std::max(std::ilogb(value), -14) - 10);
    const float large = 0x1.8p23f * last_bit;
    return (value + large) - large;
}

TEST(RoundTo, AgreesWithFp16ByAddition) {
    for (std::uint32_t step = 0; step < (1u << 20); ++step) {
        const float value = std::bit_cast<float>(step * 4093u);
        if (std::isnan(value)) continue;
        ASSERT_EQ(round_to(DataType::fp16, value), fp16_by_addition(value)) << value;
    }
}

// Rounding bf16 is rounding the upper half of the word, by carry.
TEST(RoundTo, AgreesWithBf16ByCarry) {
    for (std::uint32_t step = 0; step < (1u << 20); ++step) {
        const std::uint32_t word = step * 4093u;
        const float value = std::bit_cast<float>(word);
        if (!std::isfinite(value)) continue;
        const std::uint32_t expected = (word + 0x7FFFu + ((word >> 16) & 1u)) & 0xFFFF0000u;
        ASSERT_EQ(round_to(DataType::bf16, value), std::bit_cast<float>(expected)) << value;
    }
}

TEST(Validate, AcceptsEmptyProblems) {
    for (const Problem& empty : {problem(0, 1, 1, 4, 4, 64), problem(1, 1, 1, 0, 4, 64), problem(1, 1, 1, 4, 0, 64)})
        EXPECT_NO_THROW(validate(empty));
}

void expect_refused(const Problem& bad, const std::string& word) {
    try {
        validate(bad);
        ADD_FAILURE() << "accepted: " << describe(bad);
    } catch (const InvalidProblem& error) {
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
}

TEST(Validate, B53_RefusesHeadsThatDoNotDivide) {
    expect_refused(problem(1, 33, 2, 1, 17, 64), "Hq = 33 is not a multiple of Hkv = 2");
    expect_refused(problem(1, 3, 2, 1, 17, 64), "Hq = 3 is not a multiple of Hkv = 2");
    EXPECT_NO_THROW(validate(problem(1, 28, 4, 1, 17, 64)));
}

TEST(Validate, NamesTheArgument) {
    expect_refused(problem(-1, 1, 1, 1, 1, 64), "B = -1");
    expect_refused(problem(1, 0, 1, 1, 1, 64), "Hq = 0");
    expect_refused(problem(1, 1, 0, 1, 1, 64), "Hkv = 0");
    expect_refused(problem(1, 1, 1, -2, 1, 64), "Nq = -2");
    expect_refused(problem(1, 1, 1, 1, -2, 64), "Nk = -2");
    expect_refused(problem(1, 1, 1, 1, 1, 0), "d = 0");
    Problem bad = problem(1, 1, 1, 4, 4, 64);
    bad.window_left = -2;
    expect_refused(bad, "window:-2,-1");
    bad = problem(1, 1, 1, 4, 4, 64);
    bad.splits = 3;
    bad.deterministic = true;
    expect_refused(bad, "give one of them");
    bad = problem(1, 1, 1, 4, 4, 64);
    bad.dropout = 1.0f;
    expect_refused(bad, "dropout = 1");
    bad.dropout = std::numeric_limits<float>::quiet_NaN();
    expect_refused(bad, "dropout = nan");
}

// Beyond, the factors of a kernel, scale log2(e), softcap log2(e) and scale / softcap, may be infinite and scores NaN.
TEST(Validate, ScaleAndSoftcapLeaveRoomInFp32) {
    const float nan = std::numeric_limits<float>::quiet_NaN(), beyond = std::nextafter(0x1p100f, infinity);
    Problem p = problem(1, 1, 1, 4, 4, 64);
    for (float scale : {infinity, -infinity, nan, beyond, -beyond}) {
        p.scale = scale;
        expect_refused(p, "give a number from -2^100 to 2^100");
    }
    p = problem(1, 1, 1, 4, 4, 64);
    for (float softcap : {-1.0f, infinity, nan, beyond}) {
        p.softcap = softcap;
        expect_refused(p, "give a number above 0, at most 2^100, or 0 for none");
    }
    p.softcap = 0x1p-104f;  // the scale is 2^-3
    expect_refused(p, "scale / softcap is at most 2^100");
    p.softcap = 0x1p-103f;
    EXPECT_NO_THROW(validate(p));
    p.scale = -0x1p100f;
    expect_refused(p, "scale / softcap is at most 2^100");
    p.softcap = 0x1p100f;
    EXPECT_NO_THROW(validate(p));
    p.scale = 0;
    p.softcap = 0x1p-149f;
    EXPECT_NO_THROW(validate(p));
}

TEST(Validate, ChecksPackedLengths) {
    Problem packed = problem(2, 1, 1, 3, 5, 64);
    packed.cu_q = {0, 3, 4};
    expect_refused(packed, "cu_q and cu_k");
    packed.cu_k = {0, 0, 5};
    EXPECT_NO_THROW(validate(packed));
    packed.cu_k = {0, 5, 4};
    expect_refused(packed, "cu_k falls from 5 to 4 at sequence 1");
    packed.cu_k = {1, 5, 6};
    expect_refused(packed, "cu_k starts at 1");
    packed.cu_k = {0, 5};
    expect_refused(packed, "cu_k holds 2");
    packed.cu_k = {0, 4, 8};
    expect_refused(packed, "Nk = 5");
}

// Two sequences of 40 and 17 keys in pages of 16: 3 and 2 entries.
Problem paged() {
    Problem p = problem(2, 1, 1, 1, 40, 64);
    p.cu_q = {0, 1, 2};
    p.cu_k = {0, 40, 57};
    p.page_size = 16;
    p.pages = 5;
    p.page_table = {4, 0, 2, 1, 3, -1};
    return p;
}

TEST(Validate, B48_ChecksEveryPageThatHoldsAKey) {
    EXPECT_NO_THROW(validate(paged())) << "an entry that no key needs may hold anything";
    Problem shared = paged();
    shared.page_table = {4, 0, 2, 4, 0, 99};
    EXPECT_NO_THROW(validate(shared));
    Problem bad = paged();
    bad.page_table[1] = -1;
    expect_refused(bad, "page_table[0][1] = -1, where sequence 0 has keys 16 to 31; the pool has 5 pages");
    bad = paged();
    bad.page_table[4] = 5;
    expect_refused(bad, "page_table[1][1] = 5, where sequence 1 has keys 16 to 16; the pool has 5 pages");
    bad = paged();
    bad.page_table.pop_back();
    expect_refused(bad, "page_table has 5 entries; B = 2 sequences of up to 40 keys need rows of 3");
    for (int size : {-16, 8, 24, 512}) {
        bad = paged();
        bad.page_size = size;
        expect_refused(bad, "page size = " + std::to_string(size) + "; a page holds 16, 32, 64, 128 or 256 keys");
    }
    bad = paged();
    bad.splits = -1;
    expect_refused(bad, "splits = -1");
}

TEST(DrawPageTable, GivesEveryPageToOneEntryInRandomOrder) {
    Problem p = paged();
    draw_page_table(p, 7);
    EXPECT_NO_THROW(validate(p));
    ASSERT_EQ(p.page_table.size(), 6u);
    EXPECT_EQ(p.page_table[5], -1);
    EXPECT_EQ(std::set<int>(p.page_table.begin(), p.page_table.end()).size(), 6u);
    EXPECT_GT(p.pages, 5);
    Problem again = p, other = p;
    draw_page_table(again, 7);
    draw_page_table(other, 8);
    EXPECT_EQ(again.page_table, p.page_table);
    EXPECT_NE(other.page_table, p.page_table);

    Problem large = problem(1, 1, 1, 1, 16 * 1000, 64);
    large.page_size = 16;
    draw_page_table(large, 1);
    int rising = 0;
    for (int n = 1; n < 1000; ++n) rising += large.page_table[n] > large.page_table[n - 1];
    EXPECT_NEAR(rising, 500, 50);  // a standard deviation is 9
}

TEST(Describe, UsesTheWordsOfTheCommandLine) {
    Problem p = problem(2, 4, 2, 256, 256, 64);
    EXPECT_EQ(describe(p), "B=2 Hq=4 Hkv=2 Nq=256 Nk=256 d=64 bf16 none");
    p.window_right = 0;
    EXPECT_EQ(describe(p), "B=2 Hq=4 Hkv=2 Nq=256 Nk=256 d=64 bf16 causal");
    p.window_left = 16;
    p.type = DataType::fp16;
    p.scale = 1.0f;
    p.dropout = 0.25f;
    EXPECT_EQ(describe(p), "B=2 Hq=4 Hkv=2 Nq=256 Nk=256 d=64 fp16 window:16,0 scale=1 dropout=0.25");
    p = problem(2, 4, 2, 256, 256, 64);
    p.softcap = 50;
    p.alibi = true;
    EXPECT_EQ(describe(p), "B=2 Hq=4 Hkv=2 Nq=256 Nk=256 d=64 bf16 none softcap=50 alibi");
    p = problem(1, 4, 2, 1, 256, 64);
    p.page_size = 32;
    p.splits = 3;
    p.deterministic = true;
    EXPECT_EQ(describe(p), "B=1 Hq=4 Hkv=2 Nq=1 Nk=256 d=64 bf16 none pages=32 splits=3 deterministic");
    p = problem(2, 1, 1, 3, 5, 64);
    p.cu_q = {0, 3, 4};
    p.cu_k = {0, 5, 5};
    EXPECT_EQ(describe(p), "B=2 Hq=1 Hkv=1 Nq=3 Nk=5 d=64 bf16 none seqlens=3:5,1:0");
}

TEST(HostTensor, LaysOutDenseAndPackedRows) {
    const HostTensor dense = query_tensor(problem(2, 3, 1, 5, 7, 4));
    EXPECT_EQ(dense.values.size(), 2u * 3 * 5 * 4);
    EXPECT_EQ(dense.offset(1, 2, 3), ((1u * 3 + 2) * 5 + 3) * 4);
    Problem p = problem(2, 3, 1, 5, 7, 4);
    p.cu_q = {0, 5, 7};
    p.cu_k = {0, 7, 9};
    const HostTensor packed = query_tensor(p, 1.5f);
    EXPECT_EQ(packed.values.size(), 7u * 3 * 4);
    EXPECT_EQ(packed.offset(1, 2, 1), ((5u + 1) * 3 + 2) * 4);
    EXPECT_EQ(packed.values.back(), 1.5f);
    EXPECT_EQ(row_tensor(p).values.size(), 7u * 3);
    EXPECT_EQ(key_tensor(p).values.size(), 9u * 1 * 4);
}

TEST(Inputs, AreRoundedAndRepeatable) {
    const Problem p = problem(1, 2, 1, 33, 65, 64);
    for (InputLaw law : {InputLaw::normal, InputLaw::outliers, InputLaw::equal, InputLaw::rising}) {
        const Inputs a = make_inputs(p, law, 7), b = make_inputs(p, law, 7), c = make_inputs(p, law, 8);
        EXPECT_EQ(a.K.values, b.K.values);
        EXPECT_NE(a.V.values, c.V.values);
        EXPECT_NE(a.K.values, a.V.values);
        for (const HostTensor* tensor : {&a.Q, &a.K, &a.V, &a.dO}) {
            for (float value : tensor->values) ASSERT_EQ(round_to(p.type, value), value);
        }
    }
}

TEST(Inputs, NormalHasMeanZeroAndVarianceOne) {
    Problem p = problem(1, 1, 1, 4096, 1, 64);
    p.type = DataType::fp32;
    for (InputLaw law : {InputLaw::normal, InputLaw::outliers}) {
        double sum = 0.0, squares = 0.0, largest = 0.0;
        const Inputs inputs = make_inputs(p, law, 1);
        for (float value : inputs.Q.values) {
            sum += value;
            squares += static_cast<double>(value) * value;
            largest = std::max<double>(largest, std::abs(value));
        }
        const double n = static_cast<double>(inputs.Q.values.size());  // standard errors: 1 / 512 and sqrt(2) / 512
        const double variance = law == InputLaw::normal ? 1.0 : 1.1;   // 1 + 0.001 * 100
        EXPECT_NEAR(sum / n, 0.0, 0.01);
        EXPECT_NEAR(squares / n, variance, law == InputLaw::normal ? 0.015 : 0.05);
        EXPECT_EQ(largest > 10.0, law == InputLaw::outliers);
    }
}

double product(const Inputs& inputs, int i, int j) {
    double sum = 0.0;
    for (int c = 0; c < inputs.Q.d; ++c)
        sum += static_cast<double>(inputs.Q.row(0, 0, i)[c]) * inputs.K.row(0, 0, j)[c];
    return sum;
}

TEST(Inputs, LargeTensorsAreFilledByManyThreadsWithTheSameValues) {
    const auto queries = [](int Nq) {
        return make_inputs(problem(1, 1, 1, Nq, 1, 64), InputLaw::outliers, 3).Q.values;
    };
    const std::vector<float> large = queries(1 << 16), small = queries((1 << 16) - 1);  // 2^22 values, and a row less
    EXPECT_TRUE(std::equal(small.begin(), small.end(), large.begin()));
    EXPECT_NE(std::count(large.end() - 64, large.end(), 0.0f), 64);
}

TEST(Inputs, EqualGivesEveryRowOneScore) {
    const Inputs inputs = make_inputs(problem(1, 1, 1, 3, 100, 16), InputLaw::equal, 1);
    for (int j = 1; j < 100; ++j) EXPECT_EQ(product(inputs, 2, j), product(inputs, 2, 0));
    EXPECT_NE(product(inputs, 1, 0), product(inputs, 2, 0));
}

TEST(Inputs, RisingGivesStrictlyRisingScores) {
    const Inputs inputs = make_inputs(problem(1, 1, 1, 2, 5000, 16), InputLaw::rising, 1);
    for (int j = 0; j < 5000; ++j) ASSERT_EQ(product(inputs, 1, j), j / 64.0);
}

TEST(Flops, CountVisiblePairsOnly) {
    Problem p = problem(1, 1, 1, 4, 4, 64);
    EXPECT_EQ(visible_pairs(p), 16.0);
    p.window_right = 0;
    EXPECT_EQ(visible_pairs(p), 10.0);
    EXPECT_EQ(forward_flops(p), 4.0 * 64 * 10);
    EXPECT_EQ(backward_flops(p), 10.0 * 64 * 10);
    p.window_left = 1;
    EXPECT_EQ(visible_pairs(p), 7.0);
    p = problem(3, 2, 1, 5, 2, 64);  // causal with more queries than keys: 0, 0, 0, 1, 2 keys
    p.window_right = 0;
    EXPECT_EQ(visible_pairs(p), 3.0 * 2 * 3);
    p = problem(2, 1, 1, 2, 5, 64);  // causal with fewer: 4 and 5 keys; a second sequence of 1 query and 1 key
    p.window_right = 0;
    p.cu_q = {0, 2, 3};
    p.cu_k = {0, 5, 6};
    EXPECT_EQ(visible_pairs(p), 4.0 + 5.0 + 1.0);
}

}  // namespace
