// The order in which persistent CTAs take query tiles.
#pragma once

#include <algorithm>
#include <cmath>
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
/// in sections of an even number of rounds, and every second section begins with the way back.
struct TileOrder {
    bool longest_first;
    int rounds, heads, larger_sections;  // of all sections; the first so many have one head more than
    int section;                         // the heads of the others
    Divisor rounds_of_section, Hq;
    Divisor columns, columns_of_larger;  // heads of a section, longest first; else query tiles of a head
    struct Tile {
        int b, h, i0;  // i0 >= Nq: none, where packed sequences differ in length or a section does not fill its rounds
    };

    __device__ bool has(int round) const { return round < rounds; }
    __device__ Tile tile(int round, int Br, const KernelProblem& problem) const {
        const int number = round / rounds_of_section, first_round = number * rounds_of_section.value();
        const bool larger = number < larger_sections, back = longest_first && (round + number) % 2 == 1;
        const int first_head = number * section + (larger ? number : larger_sections);
        const int place = (round - first_round) * gridDim.x + (back ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        const Divisor& divisor = larger ? columns_of_larger : columns;
        const int row = place / divisor, column = place - row * divisor.value();
        const int head = first_head + (longest_first ? column : row);
        if (head >= heads) return {0, 0, problem.Nq};
        const int b = head / Hq, h = head - b * Hq.value();
        if (!longest_first) return {b, h, column * Br};
        const int tile = ceil_div(problem.sequence(b).Nq, Br) - 1 - row;
        return {b, h, tile < 0 ? problem.Nq : tile * Br};
    }
};

/// The order for query tiles of Br queries and a launch of so many CTAs. bytes_of_section: of K and V; an H100's L2 of 50
/// MiB holds 32 MiB of them beside Q and O.
inline TileOrder tile_order(const Problem& problem, int Br, int ctas, double bytes_of_section = 32 << 20) {
    const bool masked = problem.window_left >= 0 || problem.window_right >= 0;
    const int query_tiles = std::max(ceil_div(problem.Nq, Br), 1), heads = std::max(problem.B * problem.Hq, 1);
    const double keys = 2.0 * problem.B * problem.Hkv * problem.Nk * problem.d * bytes(problem.type);
    const int sections = masked ? std::clamp(int(std::lround(keys / bytes_of_section)), 1, heads) : 1;
    const int section = heads / sections, larger = heads % sections;
    const std::int64_t tiles = std::int64_t(query_tiles) * (section + (larger > 0));
    const int rounds = std::max(int(ceil_div(tiles, 2 * std::max(ctas, 1))) * 2, 2);
    return {masked,
            sections * rounds,
            problem.B * problem.Hq,
            larger,
            section,
            Divisor(rounds),
            Divisor(problem.Hq),
            Divisor(masked ? section : query_tiles),
            Divisor(masked ? section + 1 : query_tiles)};
}

}  // namespace attention
