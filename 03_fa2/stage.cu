// Registers stage 03: what each rung does, how it is launched, and what it costs in closed form.
#include "03_fa2/a_split_q.cuh"
#include "03_fa2/b_pipelined.cuh"
#include "03_fa2/backward_stage.h"
#include "03_fa2/c_lean.cuh"
#include "03_fa2/decode_stage.h"
#include "03_fa2/head_dimensions.h"
#include "common/ladder/closed_forms.h"

namespace stage03 {
namespace {

using attention::Mask;
using attention::Problem;
using attention::Range;
using gpu::Traffic;
using ladder::Operands;
using ladder::overlap;

// ---- forward ----

/// One CTA for each query tile of the longest sequence, query head and sequence; those without queries end at once.
std::int64_t forward_ctas(const Problem& problem, int Br) {
    return std::int64_t(attention::ceil_div(problem.Nq, Br)) * problem.B * problem.Hq;
}

/// Launches a forward kernel; all three rungs take the same operands.
template <class T, class Kernel>
void launch(const gpu::LaunchShape& shape, Kernel kernel, const Problem& problem, Operands& operands) {
    gpu::launch(shape, kernel, ladder::kernel_problem(problem, operands), operands.Q.as<const T>(),
                operands.K.as<const T>(), operands.V.as<const T>(), operands.O.as<T>(), operands.L.as<float>());
}

void launch_a(const Problem& problem, Operands& operands) {
    with_padded_d(problem, [&]<class T, int d>() {
        launch<T>({"stage03::a::forward", forward_ctas(problem, a::Br), a::threads, sizeof(a::Shared<T, d>)},
                  problem.modifies_scores() ? a::forward<T, d, true> : a::forward<T, d, false>, problem, operands);
    });
}

/// Whether 03b and 03c run their instances for everything beyond a mask.
bool general(const Problem& problem) {
    return problem.dropout > 0 || problem.modifies_scores() || !(problem.scale > 0);
}

void launch_b(const Problem& problem, Operands& operands) {
    with_padded_d(problem, [&]<class T, int d>() {
        const auto with = [&]<bool general>() {
            launch<T>({"stage03::b::forward", forward_ctas(problem, b::Br(d, general)), b::threads,
                       sizeof(b::Shared<T, d, general>)},
                      b::forward<T, d, general>, problem, operands);
        };
        general(problem) ? with.template operator()<true>() : with.template operator()<false>();
    });
}

void launch_c(const Problem& problem, Operands& operands) {
    with_padded_d(problem, [&]<class T, int d>() {
        const auto with = [&]<bool general>() {
            launch<T>({"stage03::c::forward", forward_ctas(problem, c::Br(d, general)), c::threads,
                       sizeof(c::Shared<T, d, general>)},
                      c::forward<T, d, general>, problem, operands);
        };
        general(problem) ? with.template operator()<true>() : with.template operator()<false>();
    });
}

/// What the query tiles of one head do, summed over the sequences and counted from the mask alone.
struct TileCounts {
    std::int64_t tiles = 0;       // (query tile, key tile) pairs visited
    std::int64_t query_rows = 0;  // queries copied: those that see some key
    std::int64_t key_rows = 0;    // keys that some query sees, over all visits
    std::int64_t tile_rows = 0;   // keys of the tiles, seen or not
};

TileCounts count_tiles(const Problem& problem, int Br, int Bc) {
    TileCounts sum;
    for (int b = 0; b < problem.B; ++b) {
        const Mask mask = attention::mask_of(problem, b);
        for (int i0 = 0; i0 < mask.Nq; i0 += Br) {
            const Range kv_tiles = mask.key_tiles(i0, Br, Bc);
            if (kv_tiles.empty()) continue;
            sum.tiles += kv_tiles.end - kv_tiles.begin;
            sum.query_rows += overlap(mask.seeing_queries(), {i0, i0 + Br});
            const Range keys = {kv_tiles.begin * Bc, kv_tiles.end * Bc};
            sum.key_rows += overlap(mask.seen_keys(), keys);
            sum.tile_rows += overlap({0, mask.Nk}, keys);
        }
    }
    return sum;
}

/// Queries and keys of a tile.
struct TileSize {
    int Br, Bc;
};
TileSize tile_size_a(const Problem& problem) { return {a::Br, a::Bc(padded(problem.d))}; }
TileSize tile_size_b(const Problem& problem) {
    return {b::Br(padded(problem.d), general(problem)), b::Bc(padded(problem.d), general(problem))};
}

TileSize tile_size_c(const Problem& problem) {
    return {c::Br(padded(problem.d), general(problem)), c::Bc(padded(problem.d), general(problem))};
}

/// all_K: hidden keys of a visited tile are copied too.
std::vector<Traffic> traffic(const Problem& problem, TileSize size, bool all_K = false) {
    const TileCounts counts = count_tiles(problem, size.Br, size.Bc);
    const std::uint64_t Hq = problem.Hq, row = attention::bytes(problem.type) * problem.d,
                        queries = ladder::total_queries(problem);
    return {{"Q", Hq * counts.query_rows * row, 0},
            {"K", Hq * (all_K ? counts.tile_rows : counts.key_rows) * row, 0},
            {"V", Hq * counts.key_rows * row, 0},
            {"O", 0, queries * row},
            {"L", 0, queries * 4}};
}

/// Every weight of a visited tile, and for each query the factor of its old state, which four lanes compute.
double exponentials(const Problem& problem, TileSize size) {
    return double(problem.Hq) * count_tiles(problem, size.Br, size.Bc).tiles * size.Br * (size.Bc + 4);
}

std::vector<ladder::Workspace> no_workspaces(const Problem&) { return {}; }

}  // namespace

void register_stage(ladder::Registry& registry) {
    registry.add({.stage = "03",
                  .letter = "a",
                  .name = "split_q",
                  .pass = ladder::Pass::forward,
                  .whole_tiles = true,
                  .modifiers = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage03::a::",
                  .refuses = refuses,
                  .workspaces = no_workspaces,
                  .launch = launch_a,
                  .exponentials = [](const Problem& problem) { return exponentials(problem, tile_size_a(problem)); },
                  .traffic = [](const Problem& problem) { return traffic(problem, tile_size_a(problem)); }});
    registry.add({.stage = "03",
                  .letter = "b",
                  .name = "pipelined",
                  .pass = ladder::Pass::forward,
                  .fast = true,
                  .whole_tiles = true,
                  .modifiers = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage03::b::",
                  .refuses = refuses,
                  .workspaces = no_workspaces,
                  .launch = launch_b,
                  .exponentials = [](const Problem& problem) { return exponentials(problem, tile_size_b(problem)); },
                  .traffic = [](const Problem& problem) { return traffic(problem, tile_size_b(problem)); }});
    registry.add({.stage = "03",
                  .letter = "c",
                  .name = "lean",
                  .pass = ladder::Pass::forward,
                  .fast = true,
                  .whole_tiles = true,
                  .modifiers = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage03::c::",
                  .refuses = refuses,
                  .workspaces = no_workspaces,
                  .launch = launch_c,
                  .exponentials = [](const Problem& problem) { return exponentials(problem, tile_size_c(problem)); },
                  .traffic = [](const Problem& problem) { return traffic(problem, tile_size_c(problem), true); }});
    register_backward(registry);
    register_decode(registry);
}

}  // namespace stage03
