// The order in which persistent CTAs take query tiles.
#pragma once

#include <cstdint>

#include "common/attention/kernel_problem.h"

namespace attention {

/// The query tiles of a launch in the order in which CTAs take them: longest_first, as a causal mask wants it, the last
/// rows of all heads come first (of each packed sequence its own last ones), and CTAs go there and back, so that their
/// sums of lengths are even; otherwise head by head, so that CTAs that run at the same time read the same keys.
struct TileOrder {
    int query_tiles, heads;
    bool longest_first;
    struct Tile {
        int head, i0;  // i0 >= Nq: none; packed sequences differ in length
    };
    __device__ std::int64_t number(int round) const {
        const int cta = round % 2 == 0 || !longest_first ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
        return std::int64_t(round) * gridDim.x + cta;
    }
    __device__ bool has(std::int64_t number) const { return number < std::int64_t(query_tiles) * heads; }
    __device__ Tile tile(std::int64_t number, int Br, const KernelProblem& problem) const {
        const int n = int(number);
        if (!longest_first) return {n / query_tiles, n % query_tiles * Br};
        const int head = n % heads, Nq = problem.sequence(head / problem.Hq).Nq;
        const int tile = ceil_div(Nq, Br) - 1 - n / heads;
        return {head, tile < 0 ? Nq : tile * Br};
    }
};

}  // namespace attention
