// The order in which persistent CTAs take query tiles.
#pragma once

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <string>

#include "common/attention/divisor.h"
#include "common/attention/kernel_problem.h"
#include "common/gpu/machine.h"

namespace attention {

/// The query tiles of a launch in the order in which CTAs take them: one a round.
///
/// Without a mask head by head, so that CTAs that run at the same time read the same keys. With one, tiles differ in
/// length: the longest first, that is, the last rows of all heads (of each packed sequence its own last ones), and CTAs go
/// there and back, so that their sums of lengths are even. So many heads at once have more keys than L2 holds: heads go
/// in sections of an even number of rounds, and every second section begins with the way back, so that what is left over
/// is not left to the same CTAs each time. Packed sequences of very different lengths leave CTAs uneven.
struct TileOrder {
    bool longest_first;
    int heads;            // of all sequences
    int rounds;           // of all sections
    int larger_sections;  // the first ones: one head more each
    Divisor rounds_of_section, Hq;
    Divisor columns, columns_of_larger;  // heads of a section; without a mask query tiles of a head
    struct Tile {
        int b, h, i0;  // i0 >= Nq: none, where packed sequences differ in length or a section does not fill its rounds
    };

    __device__ bool has(int round) const { return round < rounds; }
    __device__ Tile tile(int round, int Br, const KernelProblem& problem) const {
        const int number = round / rounds_of_section, first_round = number * rounds_of_section.value();
        const bool larger = number < larger_sections, back = longest_first && (round + number) % 2 == 1;
        const int place = (round - first_round) * gridDim.x + (back ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        const Divisor& divisor = larger ? columns_of_larger : columns;
        const int row = place / divisor, column = place - row * divisor.value();
        const int first_head = number * columns.value() + (larger ? number : larger_sections);
        const int head = first_head + (longest_first ? column : row);
        if (head >= heads) return {0, 0, problem.Nq};
        const int b = head / Hq, h = head - b * Hq.value();
        if (!longest_first) return {b, h, column * Br};
        const int tile = ceil_div(problem.sequence(b).Nq, Br) - 1 - row;
        return {b, h, tile < 0 ? problem.Nq : tile * Br};
    }
};

/// The order for query tiles of Br queries and a launch of so many CTAs. bytes_of_section: of K and V, about; an H100's L2
/// of 50 MiB holds 32 MiB of them beside Q and O. Throws InvalidProblem if there are more tiles than an int can number.
inline TileOrder tile_order(const Problem& problem, int Br, int ctas, double bytes_of_section = 32 << 20) {
    const bool masked = problem.window_left >= 0 || problem.window_right >= 0;
    const int query_tiles = std::max(ceil_div(problem.Nq, Br), 1);
    const std::int64_t heads = std::max<std::int64_t>(std::int64_t(problem.B) * problem.Hq, 1);
    if (heads * query_tiles > INT_MAX / 4)
        throw InvalidProblem(describe(problem) + " has " + std::to_string(heads * query_tiles) +
                             " query tiles; persistent CTAs number at most " + std::to_string(INT_MAX / 4) + ".");
    const double bytes_of_keys = 2.0 * problem.B * problem.Hkv * problem.Nk * problem.d * bytes(problem.type);
    const int sections = masked ? int(std::clamp(std::round(bytes_of_keys / bytes_of_section), 1.0, double(heads))) : 1;
    const int section = int(heads / sections), larger_sections = int(heads % sections);
    const int tiles = query_tiles * (section + (larger_sections > 0));
    const int rounds = 2 * std::max(ceil_div(tiles, 2 * std::max(ctas, 1)), 1);
    return {masked,
            problem.B * problem.Hq,
            sections * rounds,
            larger_sections,
            Divisor(rounds),
            Divisor(problem.Hq),
            Divisor(masked ? section : query_tiles),
            Divisor(section + 1)};
}

}  // namespace attention
