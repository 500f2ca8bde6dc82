// The order in which persistent CTAs take query tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/attention/kernel_problem.h"
#include "common/gpu/machine.h"

namespace attention {

/// The query tiles of a launch in the order in which CTAs take them: one a round.
///
/// Without a mask head by head, so that CTAs that run at the same time read the same keys. With one, tiles differ in
/// length: the longest first, that is, the last rows of all heads (of each packed sequence its own last ones), and CTAs go
/// there and back, so that their sums of lengths are even. So many heads at once have more keys than L2 holds: heads go
/// in sections of four rounds (more if one head needs more), after which all sums are even again.
struct TileOrder {
    int query_tiles, heads;
    bool longest_first;
    int section, log2_rounds;  // heads that are taken together, and in how many rounds
    struct Tile {
        int head, i0;  // i0 >= Nq: none, where packed sequences differ in length or a section does not fill its rounds
    };

    __device__ bool has(int round) const { return (round >> log2_rounds) * section < heads; }
    __device__ Tile tile(int round, int Br, const KernelProblem& problem) const {
        const int cta = round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
        const int place = (round & ((1 << log2_rounds) - 1)) * gridDim.x + cta;
        const int divisor = longest_first ? section : query_tiles;
        const int quotient = place / divisor, rest = place - quotient * divisor;
        const int head = (round >> log2_rounds) * section + (longest_first ? rest : quotient);
        if (head >= heads) return {0, problem.Nq};
        if (!longest_first) return {head, rest * Br};
        const int tile = ceil_div(problem.sequence(head / problem.Hq).Nq, Br) - 1 - quotient;
        return {head, tile < 0 ? problem.Nq : tile * Br};
    }
};

/// The order for query tiles of Br queries and a launch of so many CTAs.
inline TileOrder tile_order(const Problem& problem, int Br, int ctas) {
    const bool masked = problem.window_left >= 0 || problem.window_right >= 0;
    TileOrder order = {ceil_div(problem.Nq, Br), problem.B * problem.Hq, masked, problem.B * problem.Hq, 2};
    const auto places = [&] { return std::int64_t(ctas) << order.log2_rounds; };
    if (masked && ctas > 0) order.section = int(std::clamp<std::int64_t>(places() / order.query_tiles, 1, order.heads));
    while (places() < std::int64_t(order.query_tiles) * order.section) ++order.log2_rounds;
    return order;
}

}  // namespace attention
