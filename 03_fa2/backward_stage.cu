// Registers the backward rungs of stage 03: how they are launched, and what they cost in closed form.
#include "03_fa2/backward_stage.h"

#include <map>

#include "03_fa2/backward_a.cuh"
#include "03_fa2/backward_b.cuh"
#include "03_fa2/head_dimensions.h"
#include "common/ladder/closed_forms.h"
#include "common/ladder/tiles.h"

namespace stage03 {
namespace {

using attention::KernelProblem;
using attention::Problem;
using gpu::Traffic;
using ladder::key_tile_ctas;
using ladder::Operands;
using ladder::query_tile_ctas;
using ladder::scratch_tiles;
using ladder::tile_scratch;

/// The tiles of a kernel, and the head dimension with its padding.
struct Sizes {
    int Br, Bc, d;
};

template <template <int> class Tiles>
Sizes sizes(const Problem& problem) {
    Sizes result;
    with_padded_d(problem, [&]<class T, int d>() { result = {Tiles<d>::Br, Tiles<d>::Bc, d}; });
    return result;
}

/// Both rungs have the same tiles where keys are outside.
Sizes key_sizes(const Problem& problem) { return sizes<Tiles>(problem); }
Sizes query_sizes(const Problem& problem) { return sizes<b_backward::QueryTiles>(problem); }

std::vector<ladder::Workspace> workspaces_b(const Problem& problem) {
    const int Br = key_sizes(problem).Br;
    const std::size_t column = problem.Hq * scratch_tiles(problem, Br) * Br * sizeof(float);
    return {{"L_log2", column}, {"D", column}};
}

std::vector<ladder::Workspace> workspaces_a(const Problem& problem) {
    std::vector<ladder::Workspace> workspaces = workspaces_b(problem);
    workspaces.push_back({"dQ_sum", workspaces[0].bytes * key_sizes(problem).d});
    return workspaces;
}

/// Calls f<T, d, slots, modified>(): three slots for tiles of 128 keys, where a CTA may have that much shared memory.
template <class F>
void with_kernel(const Problem& problem, F&& f) {
    static const std::size_t shared_bytes = gpu::device().shared_bytes;
    with_padded_d(problem, [&]<class T, int d>() {
        if (problem.modifies_scores()) return f.template operator()<T, d, 2, true>();
        if constexpr (Tiles<d>::Bc == 128) {
            if (sizeof(a_backward::Shared<T, d, 3>) <= shared_bytes) return f.template operator()<T, d, 3, false>();
        }
        f.template operator()<T, d, 2, false>();
    });
}

void launch_a(const Problem& problem, Operands& operands) {
    namespace a = a_backward;
    with_kernel(problem, [&]<class T, int d, int slots, bool modified>() {
        constexpr int Br = Tiles<d>::Br;
        const KernelProblem kernel_problem = ladder::kernel_problem(problem, operands);
        const auto L_log2 = tile_scratch(problem, operands.workspaces[0], Br, Br);
        const auto D = tile_scratch(problem, operands.workspaces[1], Br, Br);
        const auto dQ_sum = tile_scratch(problem, operands.workspaces[2], Br, Br * d);
        const std::int64_t query_tiles = query_tile_ctas(problem, Br);
        const gpu::LaunchShape backward = {"stage03::a_backward::backward", key_tile_ctas(problem, Tiles<d>::Bc),
                                           threads<d>, sizeof(a::Shared<T, d, slots>)};
        gpu::check_launch(backward);  // before anything runs
        gpu::launch({"stage03::a_backward::prepare", query_tiles, threads<d>, 0}, a::prepare<T, d>, kernel_problem,
                    operands.O.as<const T>(), operands.dO.as<const T>(), operands.L.as<const float>(), L_log2, D,
                    dQ_sum);
        gpu::launch(backward, a::backward<T, d, slots, modified>, kernel_problem, operands.Q.as<const T>(),
                    operands.K.as<const T>(), operands.V.as<const T>(), operands.dO.as<const T>(),
                    gpu::read_only(L_log2), gpu::read_only(D), dQ_sum, operands.dK.as<T>(), operands.dV.as<T>(),
                    ladder::heads_of_section(problem, Tiles<d>::Bc));
        gpu::launch({"stage03::a_backward::finish", query_tiles, threads<d>, 0}, a::finish<T, d>, kernel_problem,
                    gpu::read_only(dQ_sum), operands.dQ.as<T>());
    });
}

void launch_b(const Problem& problem, Operands& operands) {
    namespace b = b_backward;
    with_kernel(problem, [&]<class T, int d, int slots, bool modified>() {
        constexpr int Br = Tiles<d>::Br;
        const KernelProblem kernel_problem = ladder::kernel_problem(problem, operands);
        const auto L_log2 = tile_scratch(problem, operands.workspaces[0], Br, Br);
        const auto D = tile_scratch(problem, operands.workspaces[1], Br, Br);
        const gpu::LaunchShape backward_keys = {"stage03::b_backward::backward_keys",
                                                key_tile_ctas(problem, Tiles<d>::Bc), threads<d>,
                                                sizeof(b::Shared<T, d, slots>)};
        gpu::check_launch(backward_keys);  // before anything runs
        gpu::launch({"stage03::b_backward::prepare", query_tile_ctas(problem, Br), threads<d>, 0}, b::prepare<T, d>,
                    kernel_problem, operands.O.as<const T>(), operands.dO.as<const T>(), operands.L.as<const float>(),
                    L_log2, D);
        gpu::launch(backward_keys, b::backward_keys<T, d, slots, modified>, kernel_problem, operands.Q.as<const T>(),
                    operands.K.as<const T>(), operands.V.as<const T>(), operands.dO.as<const T>(),
                    gpu::read_only(L_log2), gpu::read_only(D), operands.dK.as<T>(), operands.dV.as<T>(),
                    ladder::heads_of_section(problem, Tiles<d>::Bc));
        gpu::launch({"stage03::b_backward::backward_queries", query_tile_ctas(problem, b::QueryTiles<d>::Br),
                     b::query_threads, sizeof(b::SharedOfQueries<T, d>)},
                    b::backward_queries<T, d, modified>, kernel_problem, operands.Q.as<const T>(),
                    operands.K.as<const T>(), operands.V.as<const T>(), operands.dO.as<const T>(),
                    gpu::read_only(L_log2), gpu::read_only(D), operands.dQ.as<T>());
    });
}

// ---- what the kernels do ----

ladder::TileCounts count_tiles(const Problem& problem, const Sizes& sizes) {
    return ladder::count_tiles(problem, sizes.Br, sizes.Bc);
}

/// Tiles of Br queries of one head, visited or not.
std::int64_t query_tiles(const Problem& problem, int Br) {
    std::int64_t sum = 0;
    for (int b = 0; b < problem.B; ++b) sum += attention::ceil_div(problem.queries(b), Br);
    return sum;
}

double exponentials_a(const Problem& problem) {
    const Sizes sizes = key_sizes(problem);
    return double(problem.Hq) * count_tiles(problem, sizes).tiles * sizes.Br * sizes.Bc;
}

double exponentials_b(const Problem& problem) {
    const Sizes sizes = query_sizes(problem);
    return exponentials_a(problem) + double(problem.Hq) * count_tiles(problem, sizes).tiles * sizes.Br * sizes.Bc;
}

/// `prepare` and the kernel with keys outside, but for the sums of dQ.
std::vector<Traffic> traffic_keys(const Problem& problem) {
    const Sizes sizes = key_sizes(problem);
    const ladder::TileCounts counts = count_tiles(problem, sizes);
    const std::uint64_t Hq = problem.Hq, Hkv = problem.Hkv, row = attention::bytes(problem.type) * problem.d;
    const std::uint64_t queries = ladder::total_queries(problem), keys = ladder::total_keys(problem);
    const std::uint64_t seeing = Hq * counts.seeing.once, column = 4 * sizes.Br;
    const std::uint64_t tiles = Hq * query_tiles(problem, sizes.Br);
    return {{"Q", Hq * counts.seeing.visits * row, 0},
            {"K", Hkv * counts.seen.once * row, 0},
            {"V", Hkv * counts.seen.once * row, 0},
            {"O", seeing * row, 0},
            {"dO", (seeing + Hq * counts.seeing.visits) * row, 0},
            {"L", seeing * 4, 0},
            {"L_log2", Hq * counts.tiles * column, tiles * column},
            {"D", Hq * counts.tiles * column, tiles * column},
            {"dQ", 0, queries * row},
            {"dK", 0, keys * row},
            {"dV", 0, keys * row}};
}

std::vector<Traffic> traffic_a(const Problem& problem) {
    const Sizes sizes = key_sizes(problem);
    const std::uint64_t tiles = query_tiles(problem, sizes.Br) + count_tiles(problem, sizes).tiles;
    std::vector<Traffic> traffic = traffic_keys(problem);
    traffic.push_back(
        {"dQ_sum", ladder::total_queries(problem) * 4 * problem.d, problem.Hq * tiles * sizes.Br * sizes.d * 4});
    return traffic;
}

std::vector<Traffic> traffic_b(const Problem& problem) {
    const std::uint64_t Hq = problem.Hq, row = attention::bytes(problem.type) * problem.d;
    const ladder::TileCounts counts = count_tiles(problem, query_sizes(problem));
    const std::uint64_t keys = Hq * counts.seen.visits * row, seeing = Hq * counts.seeing.once * row;
    const std::uint64_t column = ladder::total_queries(problem) * 4;
    const std::map<std::string, std::uint64_t> queries_kernel = {{"Q", seeing}, {"dO", seeing},     {"K", keys},
                                                                 {"V", keys},   {"L_log2", column}, {"D", column}};
    std::vector<Traffic> traffic = traffic_keys(problem);
    for (Traffic& tensor : traffic) {
        const auto more = queries_kernel.find(tensor.tensor);
        if (more != queries_kernel.end()) tensor.requested_read += more->second;
    }
    return traffic;
}

}  // namespace

void register_backward(ladder::Registry& registry) {
    registry.add({.stage = "03",
                  .letter = "a",
                  .name = "atomic",
                  .pass = ladder::Pass::backward,
                  .fast = true,
                  .deterministic = false,
                  .whole_tiles = true,
                  .modifiers = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage03::a_backward::",
                  .refuses = refuses,
                  .workspaces = workspaces_a,
                  .launch = launch_a,
                  .exponentials = exponentials_a,
                  .traffic = traffic_a});
    registry.add({.stage = "03",
                  .letter = "b",
                  .name = "deterministic",
                  .pass = ladder::Pass::backward,
                  .fast = true,
                  .whole_tiles = true,
                  .modifiers = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage03::b_backward::",
                  .refuses = refuses,
                  .workspaces = workspaces_b,
                  .launch = launch_b,
                  .exponentials = exponentials_b,
                  .traffic = traffic_b});
}

}  // namespace stage03
