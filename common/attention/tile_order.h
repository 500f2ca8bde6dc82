// The order in which persistent CTAs take query tiles.
#pragma once

#include <cstdint>

#include "common/gpu/machine.h"

namespace attention {

/// The query tiles of a launch in the order in which CTAs take them: longest_first, as a causal mask wants it, the last
/// rows of all heads come first, and CTAs go there and back, so that their sums of lengths are even; otherwise head by
/// head, so that CTAs that run at the same time read the same keys.
struct TileOrder {
    int query_tiles, heads;
    bool longest_first;
    struct Tile {
        int head, i0;
    };
    __device__ std::int64_t number(int round) const {
        const int cta = round % 2 == 0 || !longest_first ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
        return std::int64_t(round) * gridDim.x + cta;
    }
    __device__ bool has(std::int64_t number) const { return number < std::int64_t(query_tiles) * heads; }
    __device__ Tile tile(std::int64_t number, int Br) const {
        const int n = int(number);
        if (longest_first) return {n % heads, (query_tiles - 1 - n / heads) * Br};
        return {n / query_tiles, n % query_tiles * Br};
    }
};

}  // namespace attention
