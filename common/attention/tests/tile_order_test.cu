// Persistent CTAs take every query tile of every sequence, once, and of a causal mask about the same number of key tiles each.
#include "common/attention/tile_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <map>
#include <tuple>
#include <vector>

#include "common/gpu/launch.h"
#include "common/gpu/memory.h"

namespace {

using namespace attention;

constexpr int Br = 16;

// Row c: how many rounds CTA c goes, and then the b, h, i0 of each.
__global__ void walk(KernelProblem problem, TileOrder order, gpu::Tensor<int> walks) {
    const auto own = walks.matrix(0, 0, blockIdx.x, 1);
    int round = 0;
    for (; order.has(round); ++round) {
        const auto [b, h, i0] = order.tile(round, Br, problem);
        own(0, 1 + 3 * round) = b;
        own(0, 2 + 3 * round) = h;
        own(0, 3 + 3 * round) = i0;
    }
    own(0, 0) = round;
}

/// The walks of all CTAs.
std::vector<std::vector<TileOrder::Tile>> walks(const Problem& problem, int ctas, int sections) {
    constexpr int most = 1024;  // rounds
    KernelProblem on_device = {};
    on_device.Hq = problem.Hq;
    on_device.Nq = problem.Nq;
    gpu::Buffer lengths("cu_q", sizeof(int) * (problem.B + 1)), buffer("walks", sizeof(int) * ctas * (1 + 3 * most));
    if (problem.packed()) {
        lengths.write(problem.cu_q.data(), lengths.bytes());
        on_device.cu_q = on_device.cu_k = static_cast<const int*>(lengths.data());
    }
    const double bytes_of_keys = 2.0 * problem.B * problem.Hkv * problem.Nk * problem.d * bytes(problem.type);
    gpu::launch({"walk", ctas, 1, 0}, walk, on_device, tile_order(problem, Br, ctas, bytes_of_keys / sections),
                buffer.tensor<int>(0, 0, 1 + 3 * most, 1 + 3 * most));
    gpu::synchronize();
    std::vector<int> numbers(buffer.bytes() / sizeof(int));
    buffer.read(numbers.data(), buffer.bytes());
    std::vector<std::vector<TileOrder::Tile>> result(ctas);
    for (int cta = 0; cta < ctas; ++cta) {
        const int* own = &numbers[std::size_t(cta) * (1 + 3 * most)];
        for (int round = 0; round < own[0]; ++round)
            result[cta].push_back({own[1 + 3 * round], own[2 + 3 * round], own[3 + 3 * round]});
    }
    return result;
}

Problem problem_of(int B, int Hq, int N, bool causal) {
    Problem problem;
    problem.B = B;
    problem.Hq = problem.Hkv = Hq;
    problem.Nq = problem.Nk = N;
    problem.d = 64;
    if (causal) problem.window_right = 0;
    return problem;
}

void expect_every_tile_once(const Problem& problem, int ctas, int sections) {
    std::map<std::tuple<int, int, int>, int> visits;
    for (const auto& cta : walks(problem, ctas, sections))
        for (const auto& [b, h, i0] : cta)
            if (i0 < problem.queries(b)) ++visits[{b, h, i0}];
    std::size_t tiles = 0;
    for (int b = 0; b < problem.B; ++b) tiles += std::size_t(problem.Hq) * ceil_div(problem.queries(b), Br);
    EXPECT_EQ(visits.size(), tiles) << describe(problem) << ", " << ctas << " CTAs, " << sections << " sections";
    for (const auto& [tile, count] : visits)
        EXPECT_EQ(count, 1) << describe(problem) << ", " << ctas << " CTAs, " << sections << " sections";
}

TEST(TileOrder, TakesEveryTileOnce) {
    for (bool causal : {false, true}) {
        for (int ctas : {1, 3, 8}) {
            for (int sections : {1, 2, 5, 1000}) {
                for (int N : {1, 16, 17, 250}) expect_every_tile_once(problem_of(3, 7, N, causal), ctas, sections);
                Problem packed = problem_of(4, 5, 100, causal);
                packed.cu_q = packed.cu_k = {0, 3, 3, 103, 133};
                expect_every_tile_once(packed, ctas, sections);
            }
        }
    }
}

TEST(TileOrder, GivesCtasOfACausalMaskAboutTheSameNumberOfKeyTiles) {
    for (int sections : {1, 4, 7}) {
        const Problem problem = problem_of(4, 16, 32 * Br, true);
        std::vector<int> work;
        for (const auto& cta : walks(problem, 33, sections)) {
            work.push_back(0);
            for (const auto& [b, h, i0] : cta) work.back() += i0 < problem.Nq ? i0 / Br + 1 : 0;
        }
        const int mean = 4 * 16 * (32 * 33 / 2) / 33, longest = 32;
        EXPECT_LE(*std::max_element(work.begin(), work.end()), mean + longest) << sections << " sections";
        EXPECT_GE(*std::min_element(work.begin(), work.end()), mean - longest) << sections << " sections";
    }
}

TEST(TileOrder, RefusesMoreTilesThanAnIntCanNumber) {
    EXPECT_THROW(tile_order(problem_of(1 << 20, 64, 1 << 15, true), Br, 132), InvalidProblem);
}

TEST(Divisor, DividesAsTheLanguageDoes) {
    for (int value : {1, 2, 3, 5, 7, 12, 64, 66, 127, 132, 528, 641, 65535, 65536, 1 << 30, INT_MAX}) {
        const Divisor divisor(value);
        for (std::int64_t n : {std::int64_t(0), std::int64_t(1), std::int64_t(value) - 1, std::int64_t(value),
                               std::int64_t(value) + 1, std::int64_t(2) * value - 1, std::int64_t(1000) * value - 1,
                               std::int64_t(1000) * value, std::int64_t(INT_MAX) - 1, std::int64_t(INT_MAX)}) {
            if (n > INT_MAX) continue;
            EXPECT_EQ(int(n) / divisor, int(n) / value) << n << " / " << value;
        }
    }
}

}  // namespace
