// Registers stage 00: what each rung does, how it is launched, and what it costs in closed form.
#include "00_naive/stage.h"

#include "00_naive/a_three_kernels.cuh"
#include "00_naive/b_tiled.cuh"
#include "00_naive/backward.cuh"

namespace stage00 {
namespace {

using attention::ceil_div;
using attention::Problem;
using gpu::Traffic;
using ladder::Operands;

// ---- a ----

/// S and P: (B, Hq, Nq, Nk) in the storage type.
std::vector<ladder::Workspace> workspaces(const Problem& problem) {
    const std::size_t bytes = ladder::numbered_queries(problem) * problem.Nk * attention::bytes(problem.type);
    return {{"S", bytes}, {"P", bytes}};
}

void launch_a(const Problem& problem, Operands& operands) {
    ladder::with_type(problem.type, [&]<class T>() {
        const auto kernel_problem = ladder::kernel_problem(problem, operands);
        const auto S = ladder::query_matrix<T>(problem, operands.workspaces[0], problem.Nk);
        const auto P = ladder::query_matrix<T>(problem, operands.workspaces[1], problem.Nk);
        const std::int64_t rows = ladder::numbered_queries(problem);

        gpu::launch({"stage00::a::scores", rows * ceil_div(problem.Nk, a::threads), a::threads, 0}, a::scores<T>,
                    kernel_problem, operands.Q.as<const T>(), operands.K.as<const T>(), S);
        gpu::launch({"stage00::a::softmax", ceil_div(rows, a::warps), a::threads, 0}, a::softmax<T>, kernel_problem,
                    gpu::read_only(S), P, operands.L.as<float>());
        gpu::launch({"stage00::a::output", rows * ceil_div(problem.d, a::threads), a::threads, 0}, a::output<T>,
                    kernel_problem, gpu::read_only(P), operands.V.as<const T>(), operands.O.as<T>());
    });
}

double exponentials(const Problem& problem) { return 2 * attention::visible_pairs(problem); }

std::vector<Traffic> traffic_a(const Problem& problem) {
    const std::uint64_t element = attention::bytes(problem.type);
    const std::uint64_t visible = attention::visible_pairs(problem);
    const std::uint64_t queries = ladder::total_queries(problem), pairs = ladder::total_pairs(problem);
    return {{"Q", visible * problem.d * element, 0},
            {"K", visible * problem.d * element, 0},
            {"V", visible * problem.d * element, 0},
            {"O", 0, queries * problem.d * element},
            {"L", 0, queries * 4},
            {"S", 3 * visible * element, pairs * element},
            {"P", visible * problem.d * element, pairs * element}};
}

// ---- b ----

void launch_b(const Problem& problem, Operands& operands) {
    ladder::with_type(problem.type, [&]<class T>() {
        const auto kernel_problem = ladder::kernel_problem(problem, operands);
        const auto S = ladder::query_matrix<T>(problem, operands.workspaces[0], problem.Nk);
        const auto P = ladder::query_matrix<T>(problem, operands.workspaces[1], problem.Nk);
        const std::int64_t rows = ladder::numbered_queries(problem);
        const std::int64_t q_tiles = std::int64_t(problem.B) * problem.Hq * ceil_div(problem.Nq, b::tile);

        gpu::launch({"stage00::b::scores", q_tiles * ceil_div(problem.Nk, b::tile), b::threads, sizeof(b::Shared<T>)},
                    b::scores<T>, kernel_problem, operands.Q.as<const T>(), operands.K.as<const T>(), S);
        gpu::launch({"stage00::b::softmax", ceil_div(rows, b::warps), b::threads, 0}, b::softmax<T>, kernel_problem,
                    gpu::read_only(S), P, operands.L.as<float>());
        gpu::launch({"stage00::b::output", q_tiles * ceil_div(problem.d, b::tile), b::threads, sizeof(b::Shared<T>)},
                    b::output<T>, kernel_problem, gpu::read_only(P), operands.V.as<const T>(), operands.O.as<T>());
    });
}

/// Q and K once for each visited tile of S; P and V once for each of those and each tile of columns of O.
std::vector<Traffic> traffic_b(const Problem& problem) {
    const std::uint64_t element = attention::bytes(problem.type), d = problem.d;
    const std::uint64_t visible = attention::visible_pairs(problem);
    const std::uint64_t queries = ladder::total_queries(problem), pairs = ladder::total_pairs(problem);
    std::uint64_t rows = 0, keys = 0, in_tiles = 0;  // of the visited tiles
    for (int b = 0; b < problem.B; ++b) {
        const attention::Mask mask = attention::mask_of(problem, b);
        for (int i0 = 0; i0 < mask.Nq; i0 += b::tile) {
            const attention::Range tiles = mask.key_tiles(i0, b::tile, b::tile);
            if (tiles.empty()) continue;
            const std::uint64_t i = std::min(b::tile, mask.Nq - i0);
            const std::uint64_t j = std::min(tiles.end * b::tile, mask.Nk) - tiles.begin * b::tile;
            rows += problem.Hq * i * (tiles.end - tiles.begin);
            keys += problem.Hq * j;
            in_tiles += problem.Hq * i * j;
        }
    }
    return {{"Q", rows * d * element, 0},
            {"K", keys * d * element, 0},
            {"V", keys * d * element, 0},
            {"O", 0, queries * d * element},
            {"L", 0, queries * 4},
            {"S", 3 * visible * element, pairs * element},
            {"P", in_tiles * ceil_div(problem.d, b::tile) * element, pairs * element}};
}

// ---- backward ----

/// S, P, dS in the storage type, dP in fp32: (B, Hq, Nq, Nk); D: (B, Hq, Nq).
std::vector<ladder::Workspace> workspaces_backward(const Problem& problem) {
    const std::size_t rows = ladder::numbered_queries(problem), pairs = rows * problem.Nk;
    const std::size_t stored = pairs * attention::bytes(problem.type);
    return {{"S", stored}, {"P", stored}, {"dP", pairs * 4}, {"dS", stored}, {"D", rows * 4}};
}

void launch_backward(const Problem& problem, Operands& operands) {
    namespace k = backward;
    ladder::with_type(problem.type, [&]<class T>() {
        const auto kernel_problem = ladder::kernel_problem(problem, operands);
        const auto Q = operands.Q.as<const T>(), K = operands.K.as<const T>(), V = operands.V.as<const T>();
        const auto O = operands.O.as<const T>(), dO = operands.dO.as<const T>();
        const auto S = ladder::query_matrix<T>(problem, operands.workspaces[0], problem.Nk);
        const auto P = ladder::query_matrix<T>(problem, operands.workspaces[1], problem.Nk);
        const auto dP = ladder::query_matrix<float>(problem, operands.workspaces[2], problem.Nk);
        const auto dS = ladder::query_matrix<T>(problem, operands.workspaces[3], problem.Nk);
        const auto D = ladder::query_matrix<float>(problem, operands.workspaces[4], 1);

        const std::int64_t queries = ladder::numbered_queries(problem), columns = ceil_div(problem.d, k::threads);
        const std::int64_t keys = ladder::numbered_keys(problem);
        const std::int64_t pairs = queries * ceil_div(problem.Nk, k::threads);
        gpu::launch({"stage00::backward::products", pairs, k::threads, 0}, k::products<T, T>, kernel_problem, Q, K,
                    problem.scale, -gpu::infinity, S);
        gpu::launch({"stage00::backward::softmax", ceil_div(queries, k::warps), k::threads, 0}, k::softmax<T>,
                    kernel_problem, gpu::read_only(S), P);
        gpu::launch({"stage00::backward::row_dots", ceil_div(queries, k::warps), k::threads, 0}, k::row_dots<T>,
                    kernel_problem, O, dO, D);
        gpu::launch({"stage00::backward::products", pairs, k::threads, 0}, k::products<T, float>, kernel_problem, dO, V,
                    1.0f, 0.0f, dP);
        gpu::launch({"stage00::backward::score_gradients", pairs, k::threads, 0}, k::score_gradients<T>, kernel_problem,
                    gpu::read_only(P), gpu::read_only(dP), gpu::read_only(D), dS);
        gpu::launch({"stage00::backward::query_sums", queries * columns, k::threads, 0}, k::query_sums<T>,
                    kernel_problem, gpu::read_only(dS), K, operands.dQ.as<T>());
        gpu::launch({"stage00::backward::key_sums", keys * columns, k::threads, 0}, k::key_sums<T>, kernel_problem,
                    gpu::read_only(P), dO, 1.0f, operands.dV.as<T>());
        gpu::launch({"stage00::backward::key_sums", keys * columns, k::threads, 0}, k::key_sums<T>, kernel_problem,
                    gpu::read_only(dS), Q, problem.scale, operands.dK.as<T>());
    });
}

std::vector<Traffic> traffic_backward(const Problem& problem) {
    const std::uint64_t element = attention::bytes(problem.type), d = problem.d;
    const std::uint64_t visible = attention::visible_pairs(problem);
    const std::uint64_t queries = ladder::total_queries(problem), keys = ladder::total_keys(problem);
    const std::uint64_t pairs = ladder::total_pairs(problem);
    return {{"Q", 2 * visible * d * element, 0},
            {"K", 2 * visible * d * element, 0},
            {"V", visible * d * element, 0},
            {"O", queries * d * element, 0},
            {"dO", (2 * visible + queries) * d * element, 0},
            {"dQ", 0, queries * d * element},
            {"dK", 0, keys * d * element},
            {"dV", 0, keys * d * element},
            {"S", 3 * visible * element, pairs * element},
            {"P", (d + 1) * visible * element, pairs * element},
            {"dP", visible * 4, pairs * 4},
            {"dS", 2 * d * visible * element, pairs * element},
            {"D", visible * 4, queries * 4}};
}

}  // namespace

void register_stage(ladder::Registry& registry) {
    registry.add({.stage = "00",
                  .letter = "a",
                  .name = "three_kernels",
                  .pass = ladder::Pass::forward,
                  .stores = ladder::Stores::scores,
                  .kernel_pattern = "stage00::a::",
                  .refuses = ladder::refuses_dropout,
                  .workspaces = workspaces,
                  .launch = launch_a,
                  .exponentials = exponentials,
                  .traffic = traffic_a});
    registry.add({.stage = "00",
                  .letter = "b",
                  .name = "tiled",
                  .pass = ladder::Pass::forward,
                  .stores = ladder::Stores::scores,
                  .kernel_pattern = "stage00::b::",
                  .refuses = ladder::refuses_dropout,
                  .workspaces = workspaces,
                  .launch = launch_b,
                  .exponentials = exponentials,
                  .traffic = traffic_b});
    register_tensor_cores(registry);
    register_cublas(registry);
    registry.add({.stage = "00",
                  .letter = "a",
                  .name = "three_kernels",
                  .pass = ladder::Pass::backward,
                  .stores = ladder::Stores::scores,
                  .kernel_pattern = "stage00::backward::",
                  .refuses = ladder::refuses_dropout,
                  .workspaces = workspaces_backward,
                  .launch = launch_backward,
                  .exponentials = exponentials,
                  .traffic = traffic_backward});
}

}  // namespace stage00
