// Registers the decoding rung of stage 03.
#include "03_fa2/decode_stage.h"

#include <bit>
#include <limits>
#include <map>

#include "03_fa2/decode.cuh"
#include "03_fa2/head_dimensions.h"
#include "common/ladder/closed_forms.h"

namespace stage03 {
namespace {

using attention::ceil_div;
using attention::Mask;
using attention::Problem;
using attention::Range;
using decode::Splits;
using ladder::Operands;
using ladder::scratch;

constexpr int deterministic_tiles = 16;
constexpr int start_and_end = 4;  // of a CTA, in key tiles

std::optional<std::string> refuses_decode(const Problem& problem) {
    if (auto reason = refuses(problem)) return reason;
    return ladder::refuses_dropout(problem);
}

/// f(mask, tile of rows, its rows) for every tile of rows of one key/value head, over all sequences.
template <class F>
void for_each_row_tile(const Problem& problem, F&& f) {
    for (int b = 0; b < problem.B; ++b) {
        const Mask mask = attention::mask_of(problem, b);
        const int rows = mask.Nq * problem.group();
        for (int row_tile = 0; row_tile * decode::rows < rows; ++row_tile)
            f(mask, row_tile, std::min(decode::rows, rows - row_tile * decode::rows));
    }
}

int tiles_seen(const Problem& problem, const Mask& mask, int row_tile) {
    const Range tiles = decode::key_tiles(mask, row_tile, problem.group());
    return tiles.end - tiles.begin;
}

/// Two CTAs fit an SM; of the widest, one.
Splits splits(const Problem& problem) {
    static const int multiprocessors = gpu::device().multiprocessors;
    const int tiles = split_tiles(problem, multiprocessors * (problem.d <= 128 ? 2 : 1));
    int longest = 0;
    for_each_row_tile(problem, [&](const Mask& mask, int row_tile, int) {
        longest = std::max(longest, tiles_seen(problem, mask, row_tile));
    });
    const int page_bits = problem.page_size > 0 ? std::countr_zero(static_cast<unsigned>(problem.page_size)) : 0;
    return {ceil_div(longest, tiles), tiles, page_bits};
}

std::vector<ladder::Workspace> workspaces(const Problem& problem) {
    const std::size_t states = ladder::total_queries(problem) * splits(problem).count * sizeof(float);
    return {{"m_partial", states}, {"l_partial", states}, {"U_partial", states * problem.d}};
}

/// Calls f<T, width, paged, modified>().
template <class F>
void with_kernel(const Problem& problem, F&& f) {
    const auto with_modified = [&]<class T, int width, bool paged>() {
        if (problem.modifies_scores()) return f.template operator()<T, width, paged, true>();
        f.template operator()<T, width, paged, false>();
    };
    const auto with_paged = [&]<class T, int width>() {
        if (problem.page_size > 0) return with_modified.template operator()<T, width, true>();
        with_modified.template operator()<T, width, false>();
    };
    const auto with_width = [&]<class T>() {
        if (problem.d <= 64) return with_paged.template operator()<T, 64>();
        if (problem.d <= 128) return with_paged.template operator()<T, 128>();
        with_paged.template operator()<T, 256>();
    };
    if (problem.type == attention::DataType::fp16) return with_width.template operator()<gpu::fp16>();
    with_width.template operator()<gpu::bf16>();
}

void launch(const Problem& problem, Operands& operands) {
    const attention::KernelProblem kernel_problem = ladder::kernel_problem(problem, operands);
    const Splits splits = stage03::splits(problem);
    const auto m = scratch(problem, operands.workspaces[0], splits.count);
    const auto l = scratch(problem, operands.workspaces[1], splits.count);
    const auto U = scratch(problem, operands.workspaces[2], splits.count * problem.d);
    with_kernel(problem, [&]<class T, int width, bool paged, bool modified>() {
        const std::int64_t row_tiles = ceil_div(std::int64_t(problem.Nq) * problem.group(), decode::rows);
        gpu::launch({"stage03::decode::partial", row_tiles * problem.Hkv * splits.count * problem.B, decode::threads,
                     sizeof(decode::Shared<T, width>)},
                    decode::partial<T, width, paged, modified>, kernel_problem, splits, operands.Q.as<const T>(),
                    operands.K.as<const T>(), operands.V.as<const T>(),
                    paged ? operands.page_table.as<const int>() : gpu::Tensor<const int>{}, m, l, U);
        gpu::launch({"stage03::decode::merge_splits",
                     ladder::numbered_queries(problem) * ceil_div(problem.d, decode::merge_columns), decode::threads,
                     sizeof(decode::SharedOfMerge)},
                    decode::merge_splits<T>, kernel_problem, splits, gpu::read_only(m), gpu::read_only(l),
                    gpu::read_only(U), operands.O.as<T>(), operands.L.as<float>());
    });
}

/// What the tiles of rows of one key/value head do, counted from the mask alone.
struct Counts {
    std::int64_t row_splits = 0;  // splits of a row, summed over the rows
    std::int64_t row_groups = 0;  // likewise, of as many as merge_splits merges at once
    std::int64_t rows = 0;
    std::int64_t tiles = 0;     // of keys, visited
    std::int64_t key_rows = 0;  // keys copied
    std::int64_t steps = 0;     // of a warp, with a key that is seen
};

Counts count(const Problem& problem) {
    const int tiles_of_split = splits(problem).tiles;
    Counts sum;
    for_each_row_tile(problem, [&](const Mask& mask, int row_tile, int rows) {
        const int tiles = tiles_seen(problem, mask, row_tile);
        sum.rows += rows;
        const int splits = ceil_div(tiles, tiles_of_split);
        sum.row_splits += std::int64_t(rows) * splits;
        sum.row_groups += std::int64_t(rows) * ceil_div(splits, decode::at_once);
        sum.tiles += tiles;
        if (tiles == 0) return;
        const Range queries = decode::queries_of(row_tile, problem.group());
        const int begin = mask.keys(queries.begin).begin, end = mask.keys(std::min(queries.end, mask.Nq) - 1).end;
        sum.key_rows += end - begin;
        sum.steps += ceil_div(end, decode::warp_keys) - begin / decode::warp_keys;
    });
    return sum;
}

/// A tile: its weights, and two factors in every lane. Merging two states takes two factors, and every thread that holds columns of
/// u computes them: for each row and split a thread for four columns, three times; then for each query and 128 columns a warp,
/// four times for four splits and three times for the tree.
double exponentials(const Problem& problem) {
    const Counts counts = count(problem);
    const double merges = 3.0 * problem.d / 4 * counts.row_splits +
                          double(gpu::warp_size) * ceil_div(problem.d, decode::merge_columns) *
                              (decode::at_once * counts.row_groups + (decode::warps - 1) * counts.rows);
    return problem.Hkv * (double(counts.tiles) * (decode::rows * decode::Bc + 2 * decode::threads) + 2 * merges);
}

std::vector<gpu::Traffic> traffic(const Problem& problem) {
    const Counts counts = count(problem);
    const std::uint64_t Hkv = problem.Hkv, row = attention::bytes(problem.type) * problem.d;
    const std::uint64_t blocks = ceil_div(problem.d, decode::merge_columns), queries = Hkv * counts.rows;
    const std::uint64_t states = Hkv * counts.row_splits * sizeof(float), read = states * gpu::warp_size * blocks;
    return {{"Q", Hkv * counts.row_splits * row, 0},
            {"K", Hkv * counts.key_rows * row, 0},
            {"V", Hkv * counts.key_rows * row, 0},
            {"O", 0, queries * row},
            {"L", 0, queries * 4},
            {"page_table", problem.page_size > 0 ? Hkv * counts.steps * gpu::warp_size * sizeof(int) : 0, 0},
            {"m_partial", read, states},
            {"l_partial", read, states},
            {"U_partial", states * problem.d, states * problem.d}};
}

}  // namespace

int split_tiles(const Problem& problem, int resident_ctas) {
    std::map<int, std::int64_t> ctas;  // key tiles -> how many CTAs would have them without splits
    for_each_row_tile(problem, [&](const Mask& mask, int row_tile, int) {
        ctas[tiles_seen(problem, mask, row_tile)] += problem.Hkv;
    });
    const int longest = ctas.empty() ? 0 : ctas.rbegin()->first;
    if (longest == 0) return 1;
    if (problem.splits > 0) return ceil_div(longest, std::min(problem.splits, longest));
    if (problem.deterministic) return deterministic_tiles;

    int best = longest;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (int splits = 1; splits <= longest; ++splits) {
        const int tiles = ceil_div(longest, splits);
        std::int64_t needed = 0;
        for (const auto& [seen, number] : ctas) needed += number * ceil_div(seen, tiles);
        if (splits > 1 && needed > 4 * resident_ctas) break;  // beyond, splits only add starts
        const std::int64_t time = ceil_div(needed, resident_ctas) * (tiles + start_and_end);
        if (time >= least) continue;
        least = time;
        best = tiles;
    }
    return best;
}

void register_decode(ladder::Registry& registry) {
    registry.add({.stage = "03",
                  .letter = "e",
                  .name = "decode",
                  .pass = ladder::Pass::decode,
                  .fast = true,
                  .whole_tiles = true,
                  .modifiers = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage03::decode::",
                  .refuses = refuses_decode,
                  .workspaces = workspaces,
                  .launch = launch,
                  .exponentials = exponentials,
                  .traffic = traffic});
}

}  // namespace stage03
