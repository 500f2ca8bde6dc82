// Registers stage 02: what each rung does, how it is launched, and what it costs in closed form.
#include "02_fa1/b_split_kv.cuh"
#include "02_fa1/backward_b.cuh"
#include "common/ladder/registry.h"

namespace stage02 {
namespace {

using attention::KernelProblem;
using attention::Mask;
using attention::Problem;
using attention::Range;
using gpu::Traffic;
using ladder::Operands;

std::optional<std::string> refuses_b(const Problem& problem) {
    if (problem.type == attention::DataType::fp32) return "multiplies on tensor cores and takes fp16 or bf16, not fp32";
    if (problem.d != 64 && problem.d != 128) return "takes d = 64 or 128, not " + std::to_string(problem.d);
    if (problem.dropout > 0) return "has no dropout";
    return std::nullopt;
}

/// Queries of all sequences and heads: one value each in L, m, l, D.
std::int64_t total_queries(const Problem& problem) {
    std::int64_t queries = 0;
    for (int b = 0; b < problem.B; ++b) queries += problem.queries(b);
    return queries * problem.Hq;
}

/// Scratch of `columns` fp32 values a query: (B, Hq, Nq, columns), or (total, Hq, columns) if packed.
gpu::Tensor<float> scratch(const Problem& problem, const gpu::Buffer& buffer, int columns) {
    if (problem.packed()) return buffer.tensor<float>(0, columns, std::int64_t(problem.Hq) * columns, columns);
    const std::int64_t head = std::int64_t(problem.Nq) * columns;
    return buffer.tensor<float>(problem.Hq * head, head, columns, columns);
}

// ---- forward ----

std::vector<ladder::Workspace> workspaces_b(const Problem& problem) {
    const std::size_t column = total_queries(problem) * sizeof(float);
    return {{"O_old", column * problem.d}, {"m_old", column}, {"l_old", column}};
}

void launch_b(const Problem& problem, Operands& operands) {
    ladder::with_16_bit_type_and_d(problem.type, problem.d, [&]<class T, int d>() {
        gpu::launch({"stage02::b::forward", std::int64_t(problem.B) * problem.Hq, b::threads, sizeof(b::Shared<T, d>)},
                    b::forward<T, d>, ladder::kernel_problem(problem, operands), operands.Q.as<const T>(),
                    operands.K.as<const T>(), operands.V.as<const T>(), operands.O.as<T>(), operands.L.as<float>(),
                    scratch(problem, operands.workspaces[0], d), scratch(problem, operands.workspaces[1], 1),
                    scratch(problem, operands.workspaces[2], 1));
    });
}

/// What the tile loops of one sequence and head do, counted from the mask alone.
struct TileCounts {
    std::int64_t tiles = 0;       // (query tile, key tile) pairs visited
    std::int64_t query_rows = 0;  // queries copied, over all visits: those that see some key
    std::int64_t visits = 0;      // queries of visited tiles, over all visits
    std::int64_t key_rows = 0;    // keys copied, over all key tiles
    std::int64_t carried = 0;  // queries whose state is written to scratch and read back, over all visits but the last
};

TileCounts count_tiles(const Mask& mask, int Br, int Bc) {
    const auto overlap = [](Range a, Range b) {
        return std::max(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
    };
    TileCounts counts;
    for (int i0 = 0; i0 < mask.Nq; i0 += Br) {
        const Range kv_tiles = mask.key_tiles(i0, Br, Bc);
        if (kv_tiles.empty()) continue;
        const int visits = kv_tiles.end - kv_tiles.begin;
        counts.tiles += visits;
        counts.visits += std::int64_t(visits) * overlap({0, mask.Nq}, {i0, i0 + Br});
        counts.query_rows += std::int64_t(visits) * overlap(mask.seeing_queries(), {i0, i0 + Br});
        counts.carried += std::int64_t(visits - 1) * overlap({0, mask.Nq}, {i0, i0 + Br});
    }
    for (int j0 = 0; j0 < mask.Nk; j0 += Bc) {
        if (!mask.query_tiles(j0, Bc, Br).empty()) counts.key_rows += overlap(mask.seen_keys(), {j0, j0 + Bc});
    }
    return counts;
}

/// Sums over the sequences, for one head each.
TileCounts count_tiles(const Problem& problem, int Br, int Bc) {
    TileCounts sum;
    for (int b = 0; b < problem.B; ++b) {
        const Mask mask = attention::mask_of(problem, b);
        const TileCounts counts = count_tiles(mask, Br, Bc);
        sum.tiles += counts.tiles;
        sum.query_rows += counts.query_rows;
        sum.visits += counts.visits;
        sum.key_rows += counts.key_rows;
        sum.carried += counts.carried;
    }
    return sum;
}

double exponentials_b(const Problem& problem) {
    // Every weight of a visited tile, and for each query five factors of the merge.
    return double(problem.Hq) * count_tiles(problem, b::Br(problem.d), b::Bc).tiles * b::Br(problem.d) *
           (b::Bc + b::warps + 1);
}

std::vector<Traffic> traffic_b(const Problem& problem) {
    const TileCounts counts = count_tiles(problem, b::Br(problem.d), b::Bc);
    const std::uint64_t Hq = problem.Hq, row = 2 * problem.d, old = 4 * problem.d, queries = total_queries(problem);
    return {{"Q", Hq * counts.query_rows * row, 0},
            {"K", Hq * counts.key_rows * row, 0},
            {"V", Hq * counts.key_rows * row, 0},
            {"O", 0, queries * row},
            {"L", 0, queries * 4},
            {"O_old", Hq * counts.carried * old, Hq * counts.carried * old},
            {"m_old", Hq * counts.carried * 4, Hq * counts.carried * 4},
            {"l_old", Hq * counts.carried * 4, Hq * counts.carried * 4}};
}

// ---- backward ----

std::vector<ladder::Workspace> workspaces_backward(const Problem& problem) {
    const std::size_t column = total_queries(problem) * sizeof(float);
    return {{"dQ_old", column * problem.d}, {"L_log2", column}, {"D", column}};
}

void launch_backward(const Problem& problem, Operands& operands) {
    namespace b = b_backward;
    ladder::with_16_bit_type_and_d(problem.type, problem.d, [&]<class T, int d>() {
        const KernelProblem kernel_problem = ladder::kernel_problem(problem, operands);
        const auto L_log2 = scratch(problem, operands.workspaces[1], 1),
                   D = scratch(problem, operands.workspaces[2], 1);
        const std::int64_t queries = std::int64_t(problem.B) * problem.Hq * problem.Nq;
        gpu::launch({"stage02::b_backward::row_statistics", attention::ceil_div(queries, b::warps), b::threads, 0},
                    b::row_statistics<T, d>, kernel_problem, operands.O.as<const T>(), operands.dO.as<const T>(),
                    operands.L.as<const float>(), L_log2, D);
        gpu::launch({"stage02::b_backward::backward", std::int64_t(problem.B) * problem.Hkv, b::threads,
                     sizeof(b::Shared<T, d>)},
                    b::backward<T, d>, kernel_problem, operands.Q.as<const T>(), operands.K.as<const T>(),
                    operands.V.as<const T>(), operands.dO.as<const T>(), gpu::read_only(L_log2), gpu::read_only(D),
                    operands.dQ.as<T>(), operands.dK.as<T>(), operands.dV.as<T>(),
                    scratch(problem, operands.workspaces[0], d));
    });
}

double exponentials_backward(const Problem& problem) {
    namespace b = b_backward;
    return double(problem.Hq) * count_tiles(problem, b::Br(problem.d), b::Bc).tiles * b::Br(problem.d) * b::Bc;
}

std::vector<Traffic> traffic_backward(const Problem& problem) {
    namespace b = b_backward;
    const TileCounts counts = count_tiles(problem, b::Br(problem.d), b::Bc);
    const std::uint64_t Hq = problem.Hq, Hkv = problem.Hkv, row = 2 * problem.d, old = 4 * problem.d;
    const std::uint64_t queries = total_queries(problem);
    std::uint64_t seeing = 0, keys = 0;
    for (int b = 0; b < problem.B; ++b) {
        const Mask mask = attention::mask_of(problem, b);
        const Range queries_that_see = mask.seeing_queries();
        if (!queries_that_see.empty()) seeing += Hq * (queries_that_see.end - queries_that_see.begin);
        keys += Hkv * problem.keys(b);
    }
    return {{"Q", Hq * counts.query_rows * row, 0},
            {"K", Hkv * counts.key_rows * row, 0},
            {"V", Hkv * counts.key_rows * row, 0},
            {"O", seeing * row, 0},
            {"L", seeing * 4, 0},
            {"dO", seeing * row + Hq * counts.query_rows * row, 0},
            {"dQ", 0, queries * row},
            {"dK", 0, keys * row},
            {"dV", 0, keys * row},
            {"dQ_old", Hq * counts.carried * old, Hq * counts.carried * old},
            {"L_log2", Hq * counts.visits * 4, queries * 4},
            {"D", Hq * counts.visits * 4, queries * 4}};
}

}  // namespace

void register_stage(ladder::Registry& registry) {
    registry.add({.stage = "02",
                  .letter = "b",
                  .name = "split_kv",
                  .pass = ladder::Pass::forward,
                  .fast = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage02::b::",
                  .refuses = refuses_b,
                  .workspaces = workspaces_b,
                  .launch = launch_b,
                  .exponentials = exponentials_b,
                  .traffic = traffic_b});
    registry.add({.stage = "02",
                  .letter = "b",
                  .name = "split_kv",
                  .pass = ladder::Pass::backward,
                  .fast = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage02::b_backward::",
                  .refuses = refuses_b,
                  .workspaces = workspaces_backward,
                  .launch = launch_backward,
                  .exponentials = exponentials_backward,
                  .traffic = traffic_backward});
}

}  // namespace stage02
