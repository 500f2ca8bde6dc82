// Registers stage 03: what each rung does, how it is launched, and what it costs in closed form.
#include "03_fa2/a_split_q.cuh"
#include "03_fa2/b_folded.cuh"
#include "03_fa2/backward_stage.h"
#include "03_fa2/c_pipelined.cuh"
#include "03_fa2/d_lean.cuh"
#include "03_fa2/decode_stage.h"
#include "03_fa2/head_dimensions.h"
#include "common/ladder/closed_forms.h"
#include "common/ladder/tiles.h"

namespace stage03 {
namespace {

using attention::Problem;
using gpu::Traffic;
using ladder::count_tiles;
using ladder::Operands;
using ladder::query_tile_ctas;

/// Launches a forward kernel; all rungs take the same operands.
template <class T, class Kernel>
void launch(const gpu::LaunchShape& shape, Kernel kernel, const Problem& problem, Operands& operands) {
    gpu::launch(shape, kernel, ladder::kernel_problem(problem, operands), operands.Q.as<const T>(),
                operands.K.as<const T>(), operands.V.as<const T>(), operands.O.as<T>(), operands.L.as<float>());
}

void launch_a(const Problem& problem, Operands& operands) {
    with_padded_d(problem, [&]<class T, int d>() {
        launch<T>({"stage03::a::forward", query_tile_ctas(problem, a::Br), a::threads, sizeof(a::Shared<T, d>)},
                  problem.modifies_scores() ? a::forward<T, d, true> : a::forward<T, d, false>, problem, operands);
    });
}

/// Whether the rungs after 03a run their instances for everything beyond a mask.
bool general(const Problem& problem) {
    return problem.dropout > 0 || problem.modifies_scores() || !(problem.scale > 0);
}

/// Calls f<T, d, general>().
template <class F>
void with_instance(const Problem& problem, F&& f) {
    with_padded_d(problem, [&]<class T, int d>() {
        if (general(problem)) return f.template operator()<T, d, true>();
        f.template operator()<T, d, false>();
    });
}

void launch_b(const Problem& problem, Operands& operands) {
    with_instance(problem, [&]<class T, int d, bool general>() {
        launch<T>({"stage03::b::forward", query_tile_ctas(problem, b::Br(d, general)), b::threads,
                   sizeof(b::Shared<T, d, general>)},
                  b::forward<T, d, general>, problem, operands);
    });
}

void launch_c(const Problem& problem, Operands& operands) {
    with_instance(problem, [&]<class T, int d, bool general>() {
        launch<T>({"stage03::c::forward", query_tile_ctas(problem, c::Br(d, general)), c::threads,
                   sizeof(c::Shared<T, d, general>)},
                  c::forward<T, d, general>, problem, operands);
    });
}

void launch_d(const Problem& problem, Operands& operands) {
    with_instance(problem, [&]<class T, int d, bool general>() {
        launch<T>({"stage03::d::forward", query_tile_ctas(problem, d::Br(d, general)), d::threads,
                   sizeof(d::Shared<T, d, general>)},
                  d::forward<T, d, general>, problem, operands);
    });
}

/// Queries and keys of a tile.
struct TileSize {
    int Br, Bc;
};
TileSize size_a(const Problem& problem) { return {a::Br, a::Bc(padded(problem.d))}; }
TileSize size_b(const Problem& problem) {
    return {b::Br(padded(problem.d), general(problem)), b::Bc(padded(problem.d))};
}
/// 03d has the tiles of 03c.
TileSize size_c(const Problem& problem) {
    return {c::Br(padded(problem.d), general(problem)), c::Bc(padded(problem.d), general(problem))};
}

/// all_K: hidden keys of a visited tile are copied too.
std::vector<Traffic> traffic(const Problem& problem, TileSize size, bool all_K = false) {
    const ladder::TileCounts counts = count_tiles(problem, size.Br, size.Bc);
    const std::uint64_t Hq = problem.Hq, row = attention::bytes(problem.type) * problem.d,
                        queries = ladder::total_queries(problem);
    return {{"Q", Hq * counts.seeing.once * row, 0},
            {"K", Hq * (all_K ? counts.keys : counts.seen).visits * row, 0},
            {"V", Hq * counts.seen.visits * row, 0},
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
                  .exponentials = [](const Problem& problem) { return exponentials(problem, size_a(problem)); },
                  .traffic = [](const Problem& problem) { return traffic(problem, size_a(problem)); }});
    registry.add({.stage = "03",
                  .letter = "b",
                  .name = "folded",
                  .pass = ladder::Pass::forward,
                  .whole_tiles = true,
                  .modifiers = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage03::b::",
                  .refuses = refuses,
                  .workspaces = no_workspaces,
                  .launch = launch_b,
                  .exponentials = [](const Problem& problem) { return exponentials(problem, size_b(problem)); },
                  .traffic = [](const Problem& problem) { return traffic(problem, size_b(problem)); }});
    registry.add({.stage = "03",
                  .letter = "c",
                  .name = "pipelined",
                  .pass = ladder::Pass::forward,
                  .fast = true,
                  .whole_tiles = true,
                  .modifiers = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage03::c::",
                  .refuses = refuses,
                  .workspaces = no_workspaces,
                  .launch = launch_c,
                  .exponentials = [](const Problem& problem) { return exponentials(problem, size_c(problem)); },
                  .traffic = [](const Problem& problem) { return traffic(problem, size_c(problem)); }});
    registry.add({.stage = "03",
                  .letter = "d",
                  .name = "lean",
                  .pass = ladder::Pass::forward,
                  .fast = true,
                  .whole_tiles = true,
                  .modifiers = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage03::d::",
                  .refuses = refuses,
                  .workspaces = no_workspaces,
                  .launch = launch_d,
                  .exponentials = [](const Problem& problem) { return exponentials(problem, size_c(problem)); },
                  .traffic = [](const Problem& problem) { return traffic(problem, size_c(problem), true); }});
    register_backward(registry);
    register_decode(registry);
}

}  // namespace stage03
