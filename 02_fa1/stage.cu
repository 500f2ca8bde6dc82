// Registers stage 02: what each rung does, how it is launched, and what it costs in closed form.
#include <map>

#include "02_fa1/a_tiles.cuh"
#include "02_fa1/b_split_kv.cuh"
#include "02_fa1/backward_stage.h"
#include "02_fa1/key_tiles.h"
#include "common/ladder/closed_forms.h"

namespace stage02 {
namespace {

using attention::Problem;
using gpu::Traffic;
using ladder::count_tiles;
using ladder::Operands;
using ladder::scratch;
using ladder::total_queries;

std::vector<ladder::Workspace> workspaces_a(const Problem& problem) {
    const std::size_t column = total_queries(problem) * sizeof(float);
    return {{"O_old", column * problem.d}, {"m_old", column}, {"l_old", column}};
}

/// Floats of one CTA's O_old: whole query tiles.
std::int64_t O_old_of_b(const Problem& problem) {
    return std::int64_t(attention::ceil_div(problem.Nq, b::Br)) * b::Br * problem.d;
}

std::vector<ladder::Workspace> workspaces_b(const Problem& problem) {
    const std::size_t column = total_queries(problem) * sizeof(float);
    const std::size_t ctas = std::size_t(problem.B) * problem.Hq;
    return {{"O_old", ctas * O_old_of_b(problem) * sizeof(float)}, {"m_old", column}, {"l_old", column}};
}

template <class T, int Bc, int max_d>
void launch_a(const Problem& problem, Operands& operands) {
    gpu::launch({"stage02::a::forward", std::int64_t(problem.B) * problem.Hq, a::threads, sizeof(a::Shared<Bc, max_d>)},
                a::forward<T, Bc, max_d>, ladder::kernel_problem(problem, operands), operands.Q.as<const T>(),
                operands.K.as<const T>(), operands.V.as<const T>(), operands.O.as<T>(), operands.L.as<float>(),
                scratch(problem, operands.workspaces[0], problem.d), scratch(problem, operands.workspaces[1], 1),
                scratch(problem, operands.workspaces[2], 1));
}

/// Of the registered rung: K and V take the same memory for each of the three widths it is built for.
int Bc_of_a(const Problem& problem) { return problem.d <= 64 ? 64 : problem.d <= 128 ? 32 : 16; }

void launch_a(const Problem& problem, Operands& operands) {
    ladder::with_type(problem.type, [&]<class T>() {
        if (problem.d <= 64) return launch_a<T, 64, 64>(problem, operands);
        if (problem.d <= 128) return launch_a<T, 32, 128>(problem, operands);
        return launch_a<T, 16, 256>(problem, operands);
    });
}

void launch_b(const Problem& problem, Operands& operands) {
    ladder::with_16_bit_type_and_d(problem.type, problem.d, [&]<class T, int d>() {
        const auto kernel = problem.dropout > 0 ? b::forward<T, d, true> : b::forward<T, d, false>;
        gpu::launch({"stage02::b::forward", std::int64_t(problem.B) * problem.Hq, b::threads, sizeof(b::Shared<T, d>)},
                    kernel, ladder::kernel_problem(problem, operands), operands.Q.as<const T>(),
                    operands.K.as<const T>(), operands.V.as<const T>(), operands.O.as<T>(), operands.L.as<float>(),
                    operands.workspaces[0].tensor<float>(0, O_old_of_b(problem), b::Br * d, b::Br * d),
                    scratch(problem, operands.workspaces[1], 1), scratch(problem, operands.workspaces[2], 1));
    });
}

double exponentials_a(const Problem& problem, int Bc) {
    // Every weight of a visited tile, and two factors for each query.
    const int Br = a::threads / Bc;
    return double(problem.Hq) * count_tiles(problem, Br, Bc).tiles * Br * (Bc + 2);
}

double exponentials_b(const Problem& problem) {
    // Every weight of a visited tile, and for each query five factors of the merge.
    return double(problem.Hq) * count_tiles(problem, b::Br, b::Bc).tiles * b::Br * (b::Bc + b::warps + 1);
}

/// O_old: how many queries of it a head writes and reads; statistics: how many values of m, and of l, it writes.
std::vector<Traffic> traffic_forward(const Problem& problem, const ladder::TileCounts& counts, std::int64_t O_old,
                                     std::int64_t statistics) {
    const std::uint64_t Hq = problem.Hq, row = attention::bytes(problem.type) * problem.d, old = 4 * problem.d,
                        queries = total_queries(problem);
    return {{"Q", Hq * counts.seeing.visits * row, 0},
            {"K", Hq * counts.seen.once * row, 0},
            {"V", Hq * counts.seen.once * row, 0},
            {"O", 0, queries * row},
            {"L", 0, queries * 4},
            {"O_old", Hq * O_old * old, Hq * O_old * old},
            {"m_old", Hq * counts.queries.carried() * 4, Hq * statistics * 4},
            {"l_old", Hq * counts.queries.carried() * 4, Hq * statistics * 4}};
}

std::vector<Traffic> traffic_a(const Problem& problem, int Bc) {
    const ladder::TileCounts counts = count_tiles(problem, a::threads / Bc, Bc);
    return traffic_forward(problem, counts, counts.queries.carried(), counts.queries.visits);
}

std::vector<Traffic> traffic_b(const Problem& problem) {
    const ladder::TileCounts counts = count_tiles(problem, b::Br, b::Bc);
    return traffic_forward(problem, counts, (counts.tiles - counts.query_tiles) * b::Br, counts.queries.carried());
}

using Refuses = std::optional<std::string> (*)(const Problem&);
using Launch = void (*)(const Problem&, Operands&);

/// With key tiles of Bc(problem) keys.
template <class Size>
ladder::Rung rung_a(Size Bc, Refuses refuses, Launch launch) {
    return {.stage = "02",
            .letter = "a",
            .name = "tiles",
            .kernel_pattern = "stage02::a::",
            .refuses = refuses,
            .workspaces = workspaces_a,
            .launch = launch,
            .exponentials = [Bc](const Problem& problem) { return exponentials_a(problem, Bc(problem)); },
            .traffic = [Bc](const Problem& problem) { return traffic_a(problem, Bc(problem)); }};
}

std::optional<std::string> refuses_if_Bc_is_chosen(const Problem& problem) {
    if (problem.type != attention::DataType::fp32) return "takes fp32 when the key tile is chosen";
    if (problem.d > 64) return "takes d up to 64 when the key tile is chosen, not " + std::to_string(problem.d);
    return std::nullopt;
}

}  // namespace

ladder::Rung rung_a(int Bc) {
    const std::map<int, Launch> launches = {{4, launch_a<float, 4, 64>},   {8, launch_a<float, 8, 64>},
                                            {16, launch_a<float, 16, 64>}, {32, launch_a<float, 32, 64>},
                                            {64, launch_a<float, 64, 64>}, {128, launch_a<float, 128, 64>}};
    return rung_a([Bc](const Problem&) { return Bc; }, refuses_if_Bc_is_chosen, launches.at(Bc));
}

void register_stage(ladder::Registry& registry) {
    registry.add(rung_a(Bc_of_a, refuses_a, launch_a));
    registry.add({.stage = "02",
                  .letter = "b",
                  .name = "split_kv",
                  .pass = ladder::Pass::forward,
                  .fast = true,
                  .whole_tiles = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage02::b::",
                  .refuses = ladder::refuses_on_tensor_cores,
                  .workspaces = workspaces_b,
                  .launch = launch_b,
                  .exponentials = exponentials_b,
                  .traffic = traffic_b});
    register_backward(registry);
}

}  // namespace stage02
