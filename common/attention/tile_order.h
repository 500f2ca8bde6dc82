// The order in which persistent CTAs take query tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/attention/divisor.h"
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
    bool longest_first;
    int heads, section, log2_rounds;  // of all sequences; that are taken together, and in how many rounds
    Divisor columns, Hq;              // columns: heads of a section, longest first; else query tiles of a head
    struct Tile {
        int b, h, i0;  // i0 >= Nq: none, where packed sequences differ in length or a section does not fill its rounds
    };

    __device__ bool has(int round) const { return (round >> log2_rounds) * section < heads; }
    __device__ Tile tile(int round, int Br, const KernelProblem& problem) const {
        const int cta = round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
        const int place = (round & ((1 << log2_rounds) - 1)) * gridDim.x + cta;
        const int row = place / columns, column = place % columns;
        const int head = (round >> log2_rounds) * section + (longest_first ? column : row);
        if (head >= heads) return {0, 0, problem.Nq};
        const int b = head / Hq, h = head % Hq;
        if (!longest_first) return {b, h, column * Br};
        const int tile = ceil_div(problem.sequence(b).Nq, Br) - 1 - row;
        return {b, h, tile < 0 ? problem.Nq : tile * Br};
    }
};

/// The order for query tiles of Br queries and a launch of so many CTAs.
inline TileOrder tile_order(const Problem& problem, int Br, int ctas) {
    const bool masked = problem.window_left >= 0 || problem.window_right >= 0;
    const int query_tiles = std::max(ceil_div(problem.Nq, Br), 1), heads = problem.B * problem.Hq;
    int log2_rounds = 2, section = std::max(heads, 1);
    if (masked) section = int(std::clamp<std::int64_t>((std::int64_t(ctas) << log2_rounds) / query_tiles, 1, section));
    while (ctas > 0 && std::int64_t(ctas) << log2_rounds < std::int64_t(query_tiles) * section) ++log2_rounds;
    return {masked, heads, section, log2_rounds, Divisor(masked ? section : query_tiles), Divisor(problem.Hq)};
}

}  // namespace attention
