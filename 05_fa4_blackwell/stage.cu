// Registers stage 05: what each rung does, how it is launched, and what it costs in closed form.
#include <algorithm>

#include "05_fa4_blackwell/a_tensor_memory.cuh"
#include "05_fa4_blackwell/b_roles.cuh"
#include "05_fa4_blackwell/backward_a.cuh"
#include "05_fa4_blackwell/c_polynomial.cuh"
#include "05_fa4_blackwell/d_lazy_rescale.cuh"
#include "05_fa4_blackwell/e_persistent.cuh"
#include "common/ladder/closed_forms.h"
#include "common/ladder/tensor_maps.h"
#include "common/ladder/tiles.h"

namespace stage05 {
namespace {

using attention::Problem;
using gpu::Traffic;
using ladder::Operands;
using ladder::query_tile_ctas;

constexpr int queries_of_pair = b::tiles * b::Br;  // of a CTA from 05b on

/// In 05c, d and e: of 32 exponentials 4 are polynomials of degree 3.
using Exp2 = attention::Exp2Policy<3, 4>;

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

/// Launches 05b, c or d, which take the same operands, grid and shared memory.
template <class T, int d, class Kernel>
void launch(const char* name, Kernel kernel, const Problem& problem, Operands& operands) {
    static_assert(sizeof(b::Shared<T, d>) == sizeof(c::Shared<T, d>) &&
                  sizeof(b::Shared<T, d>) == sizeof(stage05::d::Shared<T, d>));
    const ladder::TensorMaps maps{problem};
    gpu::launch({name, query_tile_ctas(problem, queries_of_pair), b::threads, sizeof(b::Shared<T, d>)}, kernel,
                ladder::kernel_problem(problem, operands), maps.queries<T>("Q", operands.Q, b::Br),
                maps.keys<T>("K", operands.K, b::Bc), maps.keys<T>("V", operands.V, b::Bc),
                maps.queries<T>("O", operands.O, b::Br), operands.O.as<T>(), operands.L.as<float>());
}

void launch_b(const Problem& problem, Operands& operands) {
    ladder::with_16_bit_type_and_d(problem.type, problem.d, [&]<class T, int d>() {
        launch<T, d>("stage05::b::forward", b::forward<T, d>, problem, operands);
    });
}

void launch_c(const Problem& problem, Operands& operands) {
    ladder::with_16_bit_type_and_d(problem.type, problem.d, [&]<class T, int d>() {
        launch<T, d>("stage05::c::forward", c::forward<T, d, Exp2>, problem, operands);
    });
}

void launch_d(const Problem& problem, Operands& operands) {
    ladder::with_16_bit_type_and_d(problem.type, problem.d, [&]<class T, int d>() {
        launch<T, d>("stage05::d::forward", stage05::d::forward<T, d, Exp2>, problem, operands);
    });
}

void launch_e(const Problem& problem, Operands& operands) {
    ladder::with_16_bit_type_and_d(problem.type, problem.d, [&]<class T, int d>() {
        const ladder::TensorMaps maps{problem};
        const std::int64_t ctas =
            std::min<std::int64_t>(query_tile_ctas(problem, queries_of_pair), ladder::multiprocessors());
        const attention::TileOrder order = attention::tile_order(problem, queries_of_pair, int(ctas));
        gpu::launch({"stage05::e::forward", ctas, e::threads, sizeof(e::Shared<T, d>)}, e::forward<T, d, Exp2>,
                    ladder::kernel_problem(problem, operands), order, maps.queries<T>("Q", operands.Q, e::Br),
                    maps.keys<T>("K", operands.K, e::Bc), maps.keys<T>("V", operands.V, e::Bc),
                    maps.queries<T>("O", operands.O, e::Br), operands.O.as<T>(), operands.L.as<float>());
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

/// Rows of all tiles that CTAs of so many queries work on.
double rows(const Problem& problem, int queries) {
    return double(problem.Hq) * ladder::count_tiles(problem, queries, b::Bc).tiles * queries;
}

// ---- backward ----

std::vector<ladder::Workspace> backward_workspaces(const Problem& problem) {
    const std::size_t tile = a_backward::Br * sizeof(float);
    const std::size_t column = problem.Hq * ladder::scratch_tiles(problem, a_backward::Br) * tile;
    return {{"L_log2", column}, {"D", column}, {"dQ_sum", column * problem.d}};
}

void launch_backward(const Problem& problem, Operands& operands) {
    namespace a = a_backward;
    ladder::with_16_bit_type_and_d(problem.type, problem.d, [&]<class T, int d>() {
        const ladder::TensorMaps maps{problem};
        const attention::KernelProblem kernel_problem = ladder::kernel_problem(problem, operands);
        const auto L_log2 = ladder::tile_scratch(problem, operands.workspaces[0], a::Br, a::Br);
        const auto D = ladder::tile_scratch(problem, operands.workspaces[1], a::Br, a::Br);
        const auto dQ_sum = ladder::tile_scratch(problem, operands.workspaces[2], a::Br, a::Br * d);
        const std::int64_t query_tiles = query_tile_ctas(problem, a::Br);
        const gpu::LaunchShape backward = {"stage05::a_backward::backward", ladder::key_tile_ctas(problem, a::Bc),
                                           a::threads, sizeof(a::Shared<T, d>)};
        gpu::check_launch(backward);  // before anything runs
        gpu::launch({"stage05::a_backward::prepare", query_tiles, attention::threads_of_tile, 0}, a::prepare<T, d>,
                    kernel_problem, operands.O.as<const T>(), operands.dO.as<const T>(), operands.L.as<const float>(),
                    L_log2, D, dQ_sum);
        gpu::launch(backward, a::backward<T, d>, kernel_problem, maps.queries<T>("Q", operands.Q, a::Br),
                    maps.keys<T>("K", operands.K, a::Bc), maps.keys<T>("V", operands.V, a::Bc),
                    maps.queries<T>("dO", operands.dO, a::Br), gpu::read_only(L_log2), gpu::read_only(D), dQ_sum,
                    operands.dK.as<T>(), operands.dV.as<T>(), ladder::heads_of_section(problem, a::Bc));
        gpu::launch({"stage05::a_backward::finish", query_tiles, attention::threads_of_tile, 0}, a::finish<T, d>,
                    kernel_problem, gpu::read_only(dQ_sum), operands.dQ.as<T>());
    });
}

ladder::TileCounts backward_tiles(const Problem& problem) {
    return ladder::count_tiles(problem, a_backward::Br, a_backward::Bc);
}

double backward_exponentials(const Problem& problem) {
    return double(problem.Hq) * backward_tiles(problem).tiles * a_backward::Br * a_backward::Bc;
}

std::vector<Traffic> backward_traffic(const Problem& problem) {
    if (problem.packed()) return {};
    const ladder::TileCounts counts = backward_tiles(problem);
    const std::uint64_t Hq = problem.Hq, Hkv = problem.Hkv, row = attention::bytes(problem.type) * problem.d;
    const std::uint64_t queries = ladder::total_queries(problem), keys = ladder::total_keys(problem);
    const std::uint64_t seeing = Hq * counts.seeing.once, column = 4 * a_backward::Br, visits = Hq * counts.tiles;
    const std::uint64_t tiles = Hq * problem.B * attention::ceil_div(problem.Nq, a_backward::Br);
    return {{"Q", Hq * counts.queries.visits * row, 0},
            {"K", Hkv * counts.keys.once * row, 0},
            {"V", Hkv * counts.keys.once * row, 0},
            {"O", seeing * row, 0},
            {"dO", (seeing + Hq * counts.queries.visits) * row, 0},
            {"L", seeing * 4, 0},
            {"L_log2", visits * column, tiles * column},
            {"D", visits * column, tiles * column},
            {"dQ", 0, queries * row},
            {"dK", 0, keys * row},
            {"dV", 0, keys * row},
            {"dQ_sum", queries * problem.d * 4, (tiles + visits) * column * problem.d}};
}

std::vector<ladder::Workspace> no_workspaces(const Problem&) { return {}; }

}  // namespace

void register_stage(ladder::Registry& registry) {
    /// queries: of a CTA. polynomials: of the weights of a row of a tile; the others, and for each query the factor of its
    /// old state, are exponentials.
    const auto add = [&](const char* letter, const char* name, void (*launch)(const Problem&, Operands&), int queries,
                         int polynomials) {
        registry.add(
            {.stage = "05",
             .letter = letter,
             .name = name,
             .pass = ladder::Pass::forward,
             .fast = true,
             .whole_tiles = true,
             .exponential_error = polynomials > 0 ? Exp2::error : 0,
             .row_alignment = 16,
             .tensor_maps = true,
             .kernel_pattern = "stage05::" + std::string(letter) + "::",
             .refuses = refuses,
             .workspaces = no_workspaces,
             .launch = launch,
             .exponentials = [=](const Problem& problem) { return rows(problem, queries) * (b::Bc - polynomials + 1); },
             .polynomials = [=](const Problem& problem) { return rows(problem, queries) * polynomials; },
             .traffic = [=](const Problem& problem) { return traffic(problem, queries); }});
    };
    add("a", "tensor_memory", launch_a, a::Br, 0);
    add("b", "roles", launch_b, queries_of_pair, 0);
    add("c", "polynomial", launch_c, queries_of_pair, Exp2::polynomials(b::Bc));
    add("d", "lazy_rescale", launch_d, queries_of_pair, Exp2::polynomials(b::Bc));
    add("e", "persistent", launch_e, queries_of_pair, Exp2::polynomials(b::Bc));
    registry.add({.stage = "05",
                  .letter = "a",
                  .name = "five_products",
                  .pass = ladder::Pass::backward,
                  .fast = true,
                  .deterministic = false,
                  .whole_tiles = true,
                  .row_alignment = 16,
                  .tensor_maps = true,
                  .kernel_pattern = "stage05::a_backward::",
                  .refuses = refuses,
                  .workspaces = backward_workspaces,
                  .launch = launch_backward,
                  .exponentials = backward_exponentials,
                  .traffic = backward_traffic});
}

}  // namespace stage05
