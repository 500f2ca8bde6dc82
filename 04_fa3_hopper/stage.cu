// Registers stage 04: what each rung does, how it is launched, and what it costs in closed form.
#include "04_fa3_hopper/a_tma_wgmma.cuh"
#include "04_fa3_hopper/b_specialised.cuh"
#include "04_fa3_hopper/backward_stage.h"
#include "04_fa3_hopper/c_ping_pong.cuh"
#include "04_fa3_hopper/d_overlap.cuh"
#include "04_fa3_hopper/e_persistent.cuh"
#include "04_fa3_hopper/f_tma_store.cuh"
#include "04_fa3_hopper/g_own_tiles.cuh"
#include "04_fa3_hopper/operands.h"

namespace stage04 {
namespace {

using attention::Problem;
using gpu::Traffic;
using ladder::Operands;

/// Calls f<T, d>() for a problem that `refuses` lets through.
template <class F>
void with_type_and_d(const Problem& problem, F&& f) {
    const auto with = [&]<class T>() {
        if (problem.d == 64) return f.template operator()<T, 64>();
        if (problem.d == 128) return f.template operator()<T, 128>();
        return f.template operator()<T, 256>();
    };
    if (problem.type == attention::DataType::fp16) return with.template operator()<gpu::fp16>();
    return with.template operator()<gpu::bf16>();
}

void launch_a(const Problem& problem, Operands& operands) {
    with_type_and_d(problem, [&]<class T, int d>() {
        launch<T>({"stage04::a::forward", query_tile_ctas(problem, a::Br), a::threads, sizeof(a::Shared<T, d>)},
                  a::forward<T, d>, problem, operands, a::Bc(d));
    });
}

void launch_b(const Problem& problem, Operands& operands) {
    with_type_and_d(problem, [&]<class T, int d>() {
        launch<T>({"stage04::b::forward", query_tile_ctas(problem, b::Br), b::threads, sizeof(b::Shared<T, d>)},
                  b::forward<T, d, NoMarks>, problem, operands, b::Bc(d), NoMarks{});
    });
}

void launch_c(const Problem& problem, Operands& operands) {
    with_type_and_d(problem, [&]<class T, int d>() {
        launch<T>({"stage04::c::forward", query_tile_ctas(problem, c::Br), c::threads, sizeof(c::Shared<T, d>)},
                  c::forward<T, d, NoMarks>, problem, operands, c::Bc(d), NoMarks{});
    });
}

void launch_d(const Problem& problem, Operands& operands) {
    with_type_and_d(problem, [&]<class T, int d>() {
        launch<T>({"stage04::d::forward", query_tile_ctas(problem, d::Br), d::threads, sizeof(d::Shared<T, d>)},
                  d::forward<T, d, NoMarks>, problem, operands, d::Bc(d), NoMarks{});
    });
}

/// Launches 04e, 04f or 04g. shape.ctas: of all query tiles; no more are launched than there are multiprocessors. O_map:
/// of the rungs that store O by tensor copies.
template <class T, class Kernel, class... O_map>
void launch_persistent(gpu::LaunchShape shape, Kernel kernel, const Problem& problem, Operands& operands, int Br,
                       int Bc, const O_map&... map) {
    const ladder::TensorMaps maps{problem};
    shape.ctas = std::min<std::int64_t>(shape.ctas, ladder::multiprocessors());
    const attention::TileOrder tiles = attention::tile_order(problem, Br, int(shape.ctas));
    gpu::launch(shape, kernel, ladder::kernel_problem(problem, operands), tiles, maps.queries<T>("Q", operands.Q, 64),
                maps.keys<T>("K", operands.K, Bc), maps.keys<T>("V", operands.V, Bc), map..., operands.O.as<T>(),
                operands.L.as<float>());
}

void launch_e(const Problem& problem, Operands& operands) {
    with_type_and_d(problem, [&]<class T, int d>() {
        launch_persistent<T>(
            {"stage04::e::forward", query_tile_ctas(problem, e::Br), e::threads, sizeof(e::Shared<T, d>)},
            e::forward<T, d>, problem, operands, e::Br, e::Bc(d));
    });
}

void launch_f(const Problem& problem, Operands& operands) {
    with_type_and_d(problem, [&]<class T, int d>() {
        launch_persistent<T>(
            {"stage04::f::forward", query_tile_ctas(problem, f::Br), f::threads, sizeof(f::Shared<T, d>)},
            f::forward<T, d>, problem, operands, f::Br, f::Bc(d),
            ladder::TensorMaps{problem}.queries<T>("O", operands.O, 64));
    });
}

void launch_g(const Problem& problem, Operands& operands) {
    with_type_and_d(problem, [&]<class T, int d>() {
        launch_persistent<T>(
            {"stage04::g::forward", query_tile_ctas(problem, g::Br(d)), g::threads(d), sizeof(g::Shared<T, d>)},
            g::forward<T, d>, problem, operands, g::Br(d), g::Bc(d),
            ladder::TensorMaps{problem}.queries<T>("O", operands.O, 64));
    });
}

/// Queries and keys of a tile.
struct TileSize {
    int Br, Bc;
};
TileSize size_a(const Problem& problem) { return {a::Br, a::Bc(problem.d)}; }
TileSize size_b(const Problem& problem) { return {b::Br, b::Bc(problem.d)}; }
TileSize size_g(const Problem& problem) { return {g::Br(problem.d), g::Bc(problem.d)}; }

/// all_Q: of tiles that see no key too. Copies of packed operands bring rows of the next sequence along, which has no
/// simple form.
std::vector<Traffic> traffic(const Problem& problem, TileSize size, bool all_Q = false) {
    if (problem.packed()) return {};
    const ladder::TileCounts counts = ladder::count_tiles(problem, size.Br, size.Bc);
    const std::uint64_t Hq = problem.Hq, row = attention::bytes(problem.type) * problem.d,
                        queries = ladder::total_queries(problem);
    return {{"Q", (all_Q ? queries : Hq * counts.queries.once) * row, 0},
            {"K", Hq * counts.keys.visits * row, 0},
            {"V", Hq * counts.keys.visits * row, 0},
            {"O", 0, queries * row},
            {"L", 0, queries * 4}};
}

/// Every weight of a tile that is worked on, and for each query the factor of its old state, which four lanes compute.
double exponentials(const Problem& problem, TileSize size) {
    return double(problem.Hq) * ladder::count_tiles(problem, size.Br, size.Bc).tiles * size.Br * (size.Bc + 4);
}
/// A consumer of 04g passes over tiles that its 64 queries do not see.
TileSize work_g(const Problem& problem) { return {64, g::Bc(problem.d)}; }

std::vector<ladder::Workspace> no_workspaces(const Problem&) { return {}; }

}  // namespace

void register_stage(ladder::Registry& registry) {
    const auto add = [&](const char* letter, const char* name, void (*launch)(const Problem&, Operands&),
                         TileSize (*size)(const Problem&), TileSize (*work)(const Problem&), bool all_Q) {
        registry.add({.stage = "04",
                      .letter = letter,
                      .name = name,
                      .pass = ladder::Pass::forward,
                      .fast = true,
                      .whole_tiles = true,
                      .row_alignment = 16,
                      .tensor_maps = true,
                      .kernel_pattern = "stage04::" + std::string(letter) + "::",
                      .refuses = refuses,
                      .workspaces = no_workspaces,
                      .launch = launch,
                      .exponentials = [=](const Problem& problem) { return exponentials(problem, work(problem)); },
                      .traffic = [=](const Problem& problem) { return traffic(problem, size(problem), all_Q); }});
    };
    add("a", "tma_wgmma", launch_a, size_a, size_a, false);
    add("b", "specialised", launch_b, size_b, size_b, false);
    add("c", "ping_pong", launch_c, size_b, size_b, false);
    add("d", "overlap", launch_d, size_b, size_b, false);
    add("e", "persistent", launch_e, size_b, size_b, false);
    add("f", "tma_store", launch_f, size_b, size_b, true);
    add("g", "own_tiles", launch_g, size_g, work_g, true);
    register_backward(registry);
}

}  // namespace stage04
