// Registers the backward rungs of stage 04: how they are launched, and what they cost in closed form.
#include "04_fa3_hopper/backward_stage.h"

#include "04_fa3_hopper/backward_a.cuh"
#include "04_fa3_hopper/operands.h"

namespace stage04 {
namespace {

using attention::Problem;
using gpu::Traffic;
using ladder::Operands;

std::optional<std::string> refuses_backward(const Problem& problem) {
    if (problem.d == 256)
        return "takes d = 64 or 128, not 256: dK and dV of a key tile would not fit into the registers";
    return refuses(problem);
}

/// Of one head: scratch tiles of Br queries, each sequence beginning one of its own.
std::int64_t scratch_tiles(const Problem& problem, int Br) {
    return (problem.packed() ? problem.cu_q.back() : std::int64_t(problem.B) * problem.Nq) / Br + problem.B;
}

/// Scratch as (head, tile, element of the tile).
gpu::Tensor<float> scratch(const Problem& problem, const gpu::Buffer& buffer, int Br, int tile_elements) {
    return buffer.tensor<float>(0, scratch_tiles(problem, Br) * tile_elements, tile_elements, tile_elements);
}

std::vector<ladder::Workspace> workspaces_a(const Problem& problem) {
    const int Br = a_backward::Br(problem.d);
    const std::size_t column = problem.Hq * scratch_tiles(problem, Br) * Br * sizeof(float);
    return {{"L_log2", column}, {"D", column}, {"dQ_sum", column * problem.d}};
}

void launch_a(const Problem& problem, Operands& operands) {
    namespace a = a_backward;
    ladder::with_16_bit_type_and_d(problem.type, problem.d, [&]<class T, int d>() {
        constexpr int Br = a::Br(d);
        const Maps maps{problem};
        const auto kernel_problem = ladder::kernel_problem(problem, operands);
        const auto L_log2 = scratch(problem, operands.workspaces[0], Br, Br);
        const auto D = scratch(problem, operands.workspaces[1], Br, Br);
        const auto dQ_sum = scratch(problem, operands.workspaces[2], Br, Br * d);
        const std::int64_t query_tiles = query_tile_ctas(problem, Br);
        const std::int64_t key_tiles = std::int64_t(attention::ceil_div(problem.Nk, a::Bc)) * problem.B * problem.Hkv;
        const gpu::LaunchShape backward = {"stage04::a_backward::backward", key_tiles, a::threads,
                                           sizeof(a::Shared<T, d>)};
        gpu::check_launch(backward);  // before anything runs
        const gpu::TensorMap Q = maps.queries<T>("Q", operands.Q, Br), dO = maps.queries<T>("dO", operands.dO, Br);
        const gpu::TensorMap K = maps.keys<T>("K", operands.K, a::Bc), V = maps.keys<T>("V", operands.V, a::Bc);
        gpu::launch({"stage04::a_backward::prepare", query_tiles, a::threads_of_tile, 0}, a::prepare<T, d>,
                    kernel_problem, operands.O.as<const T>(), operands.dO.as<const T>(), operands.L.as<const float>(),
                    L_log2, D, dQ_sum);
        gpu::launch(backward, a::backward<T, d>, kernel_problem, Q, K, V, dO, gpu::read_only(L_log2), gpu::read_only(D),
                    dQ_sum, operands.dK.as<T>(), operands.dV.as<T>());
        gpu::launch({"stage04::a_backward::finish", query_tiles, a::threads_of_tile, 0}, a::finish<T, d>,
                    kernel_problem, gpu::read_only(dQ_sum), operands.dQ.as<T>());
    });
}

ladder::TileCounts count_tiles(const Problem& problem) {
    return ladder::count_tiles(problem, a_backward::Br(problem.d), a_backward::Bc);
}

double exponentials(const Problem& problem) {
    return double(problem.Hq) * count_tiles(problem).tiles * a_backward::Br(problem.d) * a_backward::Bc;
}

/// Copies of packed operands bring rows of the next sequence along, which has no simple form.
std::vector<Traffic> traffic_a(const Problem& problem) {
    if (problem.packed()) return {};
    const ladder::TileCounts counts = count_tiles(problem);
    const int Br = a_backward::Br(problem.d);
    const std::uint64_t Hq = problem.Hq, Hkv = problem.Hkv, row = attention::bytes(problem.type) * problem.d;
    const std::uint64_t queries = ladder::total_queries(problem), keys = ladder::total_keys(problem);
    const std::uint64_t seeing = Hq * counts.seeing.once, column = 4 * Br, visits = Hq * counts.tiles;
    const std::uint64_t tiles = Hq * problem.B * attention::ceil_div(problem.Nq, Br);
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
            {"dQ_sum", tiles * column * problem.d, (tiles + visits) * column * problem.d}};
}

}  // namespace

void register_backward(ladder::Registry& registry) {
    registry.add({.stage = "04",
                  .letter = "a",
                  .name = "bulk_add",
                  .pass = ladder::Pass::backward,
                  .fast = true,
                  .deterministic = false,
                  .whole_tiles = true,
                  .row_alignment = 16,
                  .tensor_maps = true,
                  .kernel_pattern = "stage04::a_backward::",
                  .refuses = refuses_backward,
                  .workspaces = workspaces_a,
                  .launch = launch_a,
                  .exponentials = exponentials,
                  .traffic = traffic_a});
}

}  // namespace stage04
