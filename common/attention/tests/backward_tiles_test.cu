// CTAs of a backward kernel take every tile of keys of every head, once, section by section.
#include "common/attention/backward_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "common/gpu/launch.h"

namespace {

using namespace attention;

constexpr int Bc = 16;

// Row c: b, kv_head, j0 of CTA c.
__global__ void key_tiles(KernelProblem problem, int heads_of_section, gpu::Tensor<int> tiles) {
    const KeyTile tile(problem, Bc, heads_of_section);
    const auto own = tiles.matrix(0, 0, blockIdx.x, 1);
    own(0, 0) = tile.b;
    own(0, 1) = tile.kv_head;
    own(0, 2) = tile.j0;
}

TEST(KeyTile, TakesEachTileOnceSectionBySection) {
    for (int heads_of_section : {1, 2, 5, 6}) {
        for (int Nk : {1, 16, 17, 100}) {
            constexpr int B = 3, Hkv = 2, heads = B * Hkv;
            KernelProblem problem = {};
            problem.B = B, problem.Hkv = Hkv, problem.Nk = Nk;
            std::vector<std::tuple<int, int, int>> expected;
            for (int first = 0; first < heads; first += heads_of_section)
                for (int j0 = 0; j0 < Nk; j0 += Bc)
                    for (int head = first; head < std::min(first + heads_of_section, heads); ++head)
                        expected.emplace_back(head / Hkv, head % Hkv, j0);

            gpu::Buffer buffer("tiles", sizeof(int) * 3 * expected.size());
            gpu::launch({"key_tiles", std::int64_t(expected.size()), 1, 0}, key_tiles, problem, heads_of_section,
                        buffer.tensor<int>(0, 0, 3, 3));
            gpu::synchronize();
            std::vector<int> numbers(3 * expected.size());
            buffer.read(numbers.data(), buffer.bytes());
            for (std::size_t cta = 0; cta < expected.size(); ++cta)
                EXPECT_EQ(std::tuple(numbers[3 * cta], numbers[3 * cta + 1], numbers[3 * cta + 2]), expected[cta])
                    << "CTA " << cta << ", Nk " << Nk << ", sections of " << heads_of_section;
        }
    }
}

}  // namespace
