// Registers the backward rungs of stage 02: how they are launched, and what they cost in closed form.
#include "02_fa1/backward_stage.h"

#include "02_fa1/backward_a.cuh"
#include "02_fa1/backward_b.cuh"
#include "common/ladder/closed_forms.h"

namespace stage02 {
namespace {

using attention::KernelProblem;
using attention::Problem;
using gpu::Traffic;
using ladder::count_tiles;
using ladder::Operands;
using ladder::scratch;
using ladder::total_queries;

std::vector<ladder::Workspace> workspaces_backward_a(const Problem& problem) {
    const std::size_t column = total_queries(problem) * sizeof(float);
    return {{"dQ_old", column * problem.d}, {"D", column}};
}

std::vector<ladder::Workspace> workspaces_backward_b(const Problem& problem) {
    const std::size_t column = total_queries(problem) * sizeof(float);
    return {{"dQ_old", column * problem.d}, {"L_log2", column}, {"D", column}};
}

template <class T, int Bc, int max_d>
void launch_backward_a(const Problem& problem, Operands& operands) {
    namespace a = a_backward;
    const KernelProblem kernel_problem = ladder::kernel_problem(problem, operands);
    const auto D = scratch(problem, operands.workspaces[1], 1);
    const std::int64_t queries = ladder::numbered_queries(problem);
    gpu::launch(
        {"stage02::a_backward::row_dots", attention::ceil_div(queries, a::dot_warps), a::dot_warps * gpu::warp_size, 0},
        a::row_dots<T>, kernel_problem, operands.O.as<const T>(), operands.dO.as<const T>(), D);
    gpu::launch({"stage02::a_backward::backward", std::int64_t(problem.B) * problem.Hkv, a::Br * Bc,
                 sizeof(a::Shared<Bc, max_d>)},
                a::backward<T, Bc, max_d>, kernel_problem, operands.Q.as<const T>(), operands.K.as<const T>(),
                operands.V.as<const T>(), operands.dO.as<const T>(), operands.L.as<const float>(), gpu::read_only(D),
                operands.dQ.as<T>(), operands.dK.as<T>(), operands.dV.as<T>(),
                scratch(problem, operands.workspaces[0], problem.d));
}

/// K, V, dK and dV take the same memory for each of the three widths.
int Bc_of_backward_a(const Problem& problem) { return problem.d <= 64 ? 32 : problem.d <= 128 ? 16 : 8; }

void launch_backward_a(const Problem& problem, Operands& operands) {
    ladder::with_type(problem.type, [&]<class T>() {
        if (problem.d <= 64) return launch_backward_a<T, 32, 64>(problem, operands);
        if (problem.d <= 128) return launch_backward_a<T, 16, 128>(problem, operands);
        return launch_backward_a<T, 8, 256>(problem, operands);
    });
}

template <class T, int d, bool with_dropout>
void launch_kernels_of_backward_b(const Problem& problem, Operands& operands) {
    namespace b = b_backward;
    const KernelProblem kernel_problem = ladder::kernel_problem(problem, operands);
    const auto L_log2 = scratch(problem, operands.workspaces[1], 1), D = scratch(problem, operands.workspaces[2], 1);
    const std::int64_t queries = ladder::numbered_queries(problem);
    gpu::launch({"stage02::b_backward::row_statistics", attention::ceil_div(queries, b::warps), b::threads, 0},
                b::row_statistics<T, d>, kernel_problem, operands.O.as<const T>(), operands.dO.as<const T>(),
                operands.L.as<const float>(), L_log2, D);
    gpu::launch({"stage02::b_backward::backward", std::int64_t(problem.B) * problem.Hkv, b::threads,
                 sizeof(b::Shared<T, d, with_dropout>)},
                b::backward<T, d, with_dropout>, kernel_problem, operands.Q.as<const T>(), operands.K.as<const T>(),
                operands.V.as<const T>(), operands.dO.as<const T>(), gpu::read_only(L_log2), gpu::read_only(D),
                operands.dQ.as<T>(), operands.dK.as<T>(), operands.dV.as<T>(),
                scratch(problem, operands.workspaces[0], d));
}

void launch_backward_b(const Problem& problem, Operands& operands) {
    ladder::with_16_bit_type_and_d(problem.type, problem.d, [&]<class T, int d>() {
        if (problem.dropout > 0) return launch_kernels_of_backward_b<T, d, true>(problem, operands);
        launch_kernels_of_backward_b<T, d, false>(problem, operands);
    });
}

double exponentials_backward_b(const Problem& problem) {
    const int Br = b_backward::Br(problem.d, problem.dropout > 0), Bc = b_backward::Bc;
    return double(problem.Hq) * count_tiles(problem, Br, Bc).tiles * Br * Bc;
}

/// All but L and its like.
std::vector<Traffic> traffic_backward(const Problem& problem, const ladder::TileCounts& counts) {
    const std::uint64_t Hq = problem.Hq, Hkv = problem.Hkv, row = attention::bytes(problem.type) * problem.d,
                        old = 4 * problem.d;
    const std::uint64_t queries = total_queries(problem), seeing = Hq * counts.seeing.once;
    const std::uint64_t keys = ladder::total_keys(problem);
    return {{"Q", Hq * counts.seeing.visits * row, 0},
            {"K", Hkv * counts.seen.once * row, 0},
            {"V", Hkv * counts.seen.once * row, 0},
            {"O", seeing * row, 0},
            {"dO", seeing * row + Hq * counts.seeing.visits * row, 0},
            {"dQ", 0, queries * row},
            {"dK", 0, keys * row},
            {"dV", 0, keys * row},
            {"dQ_old", Hq * counts.queries.carried() * old, Hq * counts.queries.carried() * old},
            {"D", Hq * counts.queries.visits * 4, queries * 4}};
}

std::vector<Traffic> traffic_backward_a(const Problem& problem) {
    const ladder::TileCounts counts = count_tiles(problem, a_backward::Br, Bc_of_backward_a(problem));
    std::vector<Traffic> traffic = traffic_backward(problem, counts);
    traffic.push_back({"L", std::uint64_t(problem.Hq) * counts.queries.visits * 4, 0});
    return traffic;
}

std::vector<Traffic> traffic_backward_b(const Problem& problem) {
    const ladder::TileCounts counts =
        count_tiles(problem, b_backward::Br(problem.d, problem.dropout > 0), b_backward::Bc);
    const std::uint64_t Hq = problem.Hq, queries = total_queries(problem);
    std::vector<Traffic> traffic = traffic_backward(problem, counts);
    traffic.push_back({"L", Hq * counts.seeing.once * 4, 0});
    traffic.push_back({"L_log2", Hq * counts.queries.visits * 4, queries * 4});
    return traffic;
}

}  // namespace

void register_backward(ladder::Registry& registry) {
    registry.add({.stage = "02",
                  .letter = "a",
                  .name = "tiles",
                  .pass = ladder::Pass::backward,
                  .kernel_pattern = "stage02::a_backward::",
                  .refuses = refuses_a,
                  .workspaces = workspaces_backward_a,
                  .launch = [](const Problem& problem, Operands& operands) { launch_backward_a(problem, operands); },
                  .exponentials = attention::visible_pairs,
                  .traffic = traffic_backward_a});
    registry.add({.stage = "02",
                  .letter = "b",
                  .name = "split_kv",
                  .pass = ladder::Pass::backward,
                  .fast = true,
                  .whole_tiles = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage02::b_backward::",
                  .refuses = ladder::refuses_on_tensor_cores,
                  .workspaces = workspaces_backward_b,
                  .launch = launch_backward_b,
                  .exponentials = exponentials_backward_b,
                  .traffic = traffic_backward_b});
}

}  // namespace stage02
