// The merge rule is a commutative monoid within rounding, and it means what softmax means.
#include "common/attention/merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace attention {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

double exp_e(double x) { return std::exp(x); }

// A state with one column of u.
struct Part {
    State<double> state;
    double u = 0;
};

Part merged(const Part& A, const Part& B) {
    const Merged<double> both = merge(A.state, B.state, exp_e);
    return {both.state, both.u(A.u, B.u)};
}

Part key(double s, double V) { return {{s, 1}, V}; }

// A few keys, none in one of eight parts; scores far apart and close by.
Part random_part(std::mt19937& random) {
    Part part;
    const double spread = random() % 2 ? 1e-3 : 100.0;
    for (unsigned n = random() % 8; n > 0; --n) {
        const double s = (double(random()) / random.max() - 0.5) * spread;
        part = merged(part, key(s, double(random()) / random.max() - 0.5));
    }
    return part;
}

void expect_equal(const Part& A, const Part& B) {
    EXPECT_EQ(A.state.m, B.state.m);
    EXPECT_NEAR(A.state.l, B.state.l, 1e-14 * A.state.l);
    EXPECT_NEAR(A.u, B.u, 1e-14 * A.state.l);
}

TEST(Merge, IsAssociativeAndCommutativeWithinRounding) {
    std::mt19937 random(1);
    for (int round = 0; round < 1000; ++round) {
        const Part A = random_part(random), B = random_part(random), C = random_part(random);
        expect_equal(merged(A, B), merged(B, A));
        expect_equal(merged(merged(A, B), C), merged(A, merged(B, C)));
    }
}

TEST(Merge, AnyOrderOfKeysGivesTheSoftmax) {
    std::mt19937 random(2);
    std::vector<double> s(50), V(50);
    for (int j = 0; j < 50; ++j) s[j] = random() % 1000 / 50.0, V[j] = random() % 100 / 10.0;
    double sum = 0, weighted = 0;
    for (int j = 0; j < 50; ++j) sum += std::exp(s[j]), weighted += std::exp(s[j]) * V[j];
    for (int round = 0; round < 20; ++round) {
        std::vector<Part> parts;
        for (int j = 0; j < 50; ++j) parts.push_back(key(s[j], V[j]));
        std::shuffle(parts.begin(), parts.end(), random);
        while (parts.size() > 1) {  // a random tree
            const std::size_t n = random() % (parts.size() - 1);
            parts[n] = merged(parts[n], parts[n + 1]);
            parts.erase(parts.begin() + n + 1);
        }
        EXPECT_NEAR(parts[0].state.m + std::log(parts[0].state.l), std::log(sum), 1e-13);
        EXPECT_NEAR(parts[0].u / parts[0].state.l, weighted / sum, 1e-13);
    }
}

TEST(Merge, B26_TwoEmptyStatesAreEmpty) {
    const Part both = merged({}, {});
    EXPECT_EQ(both.state.m, -infinity);
    EXPECT_EQ(both.state.l, 0);
    EXPECT_EQ(both.u, 0);
    EXPECT_TRUE(both.state.empty());
}

TEST(Merge, B26_EmptyStateIsTheIdentityBitForBit) {
    std::mt19937 random(3);
    for (int round = 0; round < 100; ++round) {
        const Part A = merged(key(0.1, 0.7), random_part(random));
        for (const Part& both : {merged(A, {}), merged({}, A)}) {
            EXPECT_EQ(both.state.m, A.state.m);
            EXPECT_EQ(both.state.l, A.state.l);
            EXPECT_EQ(both.u, A.u);
        }
    }
}

TEST(Merge, B26_WhatLiesBesideAnEmptyStateIsIgnored) {
    for (double garbage : {nan, infinity, -infinity, 1e300}) {
        const Part empty = {{}, garbage};
        EXPECT_EQ(merged(key(2, 5), empty).u, 5);
        EXPECT_EQ(merged(empty, key(2, 5)).u, 5);
        EXPECT_EQ(merged(empty, empty).u, 0);
    }
}

// L of keys with equal scores: 2 of them know log 2, 6 know log 6; in base 2 the weights would be 0.170 and 0.830.
TEST(Merge, B27_LogSumExpsMergeInBaseE) {
    const State<double> two = {std::log(2.0), 1}, six = {std::log(6.0), 1};
    const Merged<double> both = merge(two, six, exp_e);
    EXPECT_NEAR(both.alpha / both.state.l, 0.25, 1e-15);
    EXPECT_NEAR(both.beta / both.state.l, 0.75, 1e-15);
    EXPECT_NEAR(both.state.m + std::log(both.state.l), std::log(8.0), 1e-15);
}

TEST(Merge, NaNThatIsSeenStays) {
    EXPECT_TRUE(std::isnan(merged(key(nan, 1), key(2, 1)).state.l));
    EXPECT_TRUE(std::isnan(merged(key(2, 1), key(nan, 1)).state.l));
    EXPECT_TRUE(std::isnan(merged(merged(key(nan, 1), {}), {}).state.l));
    EXPECT_TRUE(std::isnan(merged(key(-1000, nan), key(1000, 1)).u));  // even where its weight is 0
}

// The kernels' own arithmetic, on the notes' example: exponentials 1, 2 | 4, 8.
TEST(Merge, KernelsMergeInBase2) {
    const State<float> A = {1, 1.5f}, B = {3, 1.5f};
    const Merged<float> both = merge(A, B, Base2{});
    EXPECT_EQ(both.alpha, 0.25f);
    EXPECT_EQ(both.beta, 1.0f);
    EXPECT_EQ(both.state.m, 3.0f);
    EXPECT_EQ(both.state.l, 1.875f);
    EXPECT_EQ(both.u(2.5f, 5.5f), 6.125f);
}

}  // namespace
}  // namespace attention
