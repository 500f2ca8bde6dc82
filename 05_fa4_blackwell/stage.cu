// Registers stage 05: what each rung does, how it is launched, and what it costs in closed form.
#include "05_fa4_blackwell/a_tensor_memory.cuh"
#include "05_fa4_blackwell/b_roles.cuh"
#include "common/ladder/closed_forms.h"
#include "common/ladder/tensor_maps.h"
#include "common/ladder/tiles.h"

namespace stage05 {
namespace {

using attention::Problem;
using gpu::Traffic;
using ladder::Operands;
using ladder::query_tile_ctas;

std::optional<std::string> refuses(const Problem& problem) {
    if (const auto reason = ladder::refuses_on_tensor_cores(problem)) return reason;
    return ladder::refuses_dropout(problem);
}

void launch_a(const Problem& problem, Operands& operands) {
    ladder::with_16_bit_type_and_d(problem.type, problem.d, [&]<class T, int d>() {
        const ladder::TensorMaps maps{problem};
        gpu::launch({"stage05::a::forward", query_tile_ctas(problem, a::Br), a::threads, sizeof(a::Shared<T, d>)},
                    a::forward<T, d>, ladder::kernel_problem(problem, operands),
                    maps.queries<T>("Q", operands.Q, a::Br), maps.keys<T>("K", operands.K, a::Bc),
                    maps.keys<T>("V", operands.V, a::Bc), operands.O.as<T>(), operands.L.as<float>());
    });
}

void launch_b(const Problem& problem, Operands& operands) {
    ladder::with_16_bit_type_and_d(problem.type, problem.d, [&]<class T, int d>() {
        const ladder::TensorMaps maps{problem};
        gpu::launch({"stage05::b::forward", query_tile_ctas(problem, b::tiles * b::Br), b::threads,
                     sizeof(b::Shared<T, d>)},
                    b::forward<T, d>, ladder::kernel_problem(problem, operands),
                    maps.queries<T>("Q", operands.Q, b::Br), maps.keys<T>("K", operands.K, b::Bc),
                    maps.keys<T>("V", operands.V, b::Bc), maps.queries<T>("O", operands.O, b::Br), operands.O.as<T>(),
                    operands.L.as<float>());
    });
}

/// `queries`: of a CTA. Copies of packed operands bring rows of the next sequence along, which has no simple form.
std::vector<Traffic> traffic(const Problem& problem, int queries) {
    if (problem.packed()) return {};
    const ladder::TileCounts counts = ladder::count_tiles(problem, queries, b::Bc);
    const std::uint64_t Hq = problem.Hq, row = attention::bytes(problem.type) * problem.d,
                        total = ladder::total_queries(problem);
    return {{"Q", Hq * counts.queries.once * row, 0},
            {"K", Hq * counts.keys.visits * row, 0},
            {"V", Hq * counts.keys.visits * row, 0},
            {"O", 0, total * row},
            {"L", 0, total * 4}};
}

/// Every weight of a tile that is worked on, and for each query the factor of its old state.
double exponentials(const Problem& problem, int queries) {
    return double(problem.Hq) * ladder::count_tiles(problem, queries, b::Bc).tiles * queries * (b::Bc + 1);
}

std::vector<ladder::Workspace> no_workspaces(const Problem&) { return {}; }

}  // namespace

void register_stage(ladder::Registry& registry) {
    /// queries: of a CTA.
    const auto add = [&](const char* letter, const char* name, void (*launch)(const Problem&, Operands&), int queries) {
        registry.add({.stage = "05",
                      .letter = letter,
                      .name = name,
                      .pass = ladder::Pass::forward,
                      .fast = true,
                      .whole_tiles = true,
                      .row_alignment = 16,
                      .tensor_maps = true,
                      .kernel_pattern = "stage05::" + std::string(letter) + "::",
                      .refuses = refuses,
                      .workspaces = no_workspaces,
                      .launch = launch,
                      .exponentials = [=](const Problem& problem) { return exponentials(problem, queries); },
                      .traffic = [=](const Problem& problem) { return traffic(problem, queries); }});
    };
    add("a", "tensor_memory", launch_a, a::Br);
    add("b", "roles", launch_b, b::tiles * b::Br);
}

}  // namespace stage05
