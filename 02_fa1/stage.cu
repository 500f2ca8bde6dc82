// Registers stage 02: what each rung does, how it is launched, and what it costs in closed form.
#include <map>

#include "02_fa1/a_tiles.cuh"
#include "02_fa1/b_split_kv.cuh"
#include "02_fa1/backward_a.cuh"
#include "02_fa1/backward_b.cuh"
#include "02_fa1/key_tiles.h"
#include "common/ladder/closed_forms.h"

namespace stage02 {
namespace {

using attention::KernelProblem;
using attention::Mask;
using attention::Problem;
using attention::Range;
using gpu::Traffic;
using ladder::Operands;
using ladder::overlap;
using ladder::scratch;
using ladder::total_queries;

std::optional<std::string> refuses_a(const Problem& problem) {
    if (problem.d > 256) return "takes d up to 256, not " + std::to_string(problem.d);
    return std::nullopt;
}

// ---- forward ----

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

/// What the tile loops do, counted from the mask alone.
struct TileCounts {
    std::int64_t tiles = 0;       // (query tile, key tile) pairs visited
    std::int64_t query_rows = 0;  // queries copied, over all visits: those that see some key
    std::int64_t visits = 0;      // queries of visited tiles, over all visits
    std::int64_t key_rows = 0;    // keys copied, over all key tiles
    // Written to scratch and read back, over all visits but the last: tiles, and queries of theirs.
    std::int64_t carried_tiles = 0, carried = 0;
};

/// Sums over the sequences, for one head each.
TileCounts count_tiles(const Problem& problem, int Br, int Bc) {
    TileCounts sum;
    for (int b = 0; b < problem.B; ++b) {
        const Mask mask = attention::mask_of(problem, b);
        for (int i0 = 0; i0 < mask.Nq; i0 += Br) {
            const Range kv_tiles = mask.key_tiles(i0, Br, Bc), q_tile = {i0, i0 + Br};
            if (kv_tiles.empty()) continue;
            const std::int64_t visits = kv_tiles.end - kv_tiles.begin;
            sum.tiles += visits;
            sum.visits += visits * overlap({0, mask.Nq}, q_tile);
            sum.query_rows += visits * overlap(mask.seeing_queries(), q_tile);
            sum.carried_tiles += visits - 1;
            sum.carried += (visits - 1) * overlap({0, mask.Nq}, q_tile);
        }
        for (int j0 = 0; j0 < mask.Nk; j0 += Bc) {
            if (!mask.query_tiles(j0, Bc, Br).empty()) sum.key_rows += overlap(mask.seen_keys(), {j0, j0 + Bc});
        }
    }
    return sum;
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
std::vector<Traffic> traffic_forward(const Problem& problem, const TileCounts& counts, std::int64_t O_old,
                                     std::int64_t statistics) {
    const std::uint64_t Hq = problem.Hq, row = attention::bytes(problem.type) * problem.d, old = 4 * problem.d,
                        queries = total_queries(problem);
    return {{"Q", Hq * counts.query_rows * row, 0},
            {"K", Hq * counts.key_rows * row, 0},
            {"V", Hq * counts.key_rows * row, 0},
            {"O", 0, queries * row},
            {"L", 0, queries * 4},
            {"O_old", Hq * O_old * old, Hq * O_old * old},
            {"m_old", Hq * counts.carried * 4, Hq * statistics * 4},
            {"l_old", Hq * counts.carried * 4, Hq * statistics * 4}};
}

std::vector<Traffic> traffic_a(const Problem& problem, int Bc) {
    const TileCounts counts = count_tiles(problem, a::threads / Bc, Bc);
    return traffic_forward(problem, counts, counts.carried, counts.visits);
}

std::vector<Traffic> traffic_b(const Problem& problem) {
    const TileCounts counts = count_tiles(problem, b::Br, b::Bc);
    return traffic_forward(problem, counts, counts.carried_tiles * b::Br, counts.carried);
}

// ---- backward ----

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

/// Queries of all heads that see a key.
std::uint64_t seeing_queries(const Problem& problem) {
    std::uint64_t seeing = 0;
    for (int b = 0; b < problem.B; ++b) {
        const Range queries = attention::mask_of(problem, b).seeing_queries();
        if (!queries.empty()) seeing += std::uint64_t(problem.Hq) * (queries.end - queries.begin);
    }
    return seeing;
}

/// All but L and its like.
std::vector<Traffic> traffic_backward(const Problem& problem, const TileCounts& counts) {
    const std::uint64_t Hq = problem.Hq, Hkv = problem.Hkv, row = attention::bytes(problem.type) * problem.d,
                        old = 4 * problem.d;
    const std::uint64_t queries = total_queries(problem), seeing = seeing_queries(problem);
    const std::uint64_t keys = ladder::total_keys(problem);
    return {{"Q", Hq * counts.query_rows * row, 0},
            {"K", Hkv * counts.key_rows * row, 0},
            {"V", Hkv * counts.key_rows * row, 0},
            {"O", seeing * row, 0},
            {"dO", seeing * row + Hq * counts.query_rows * row, 0},
            {"dQ", 0, queries * row},
            {"dK", 0, keys * row},
            {"dV", 0, keys * row},
            {"dQ_old", Hq * counts.carried * old, Hq * counts.carried * old},
            {"D", Hq * counts.visits * 4, queries * 4}};
}

std::vector<Traffic> traffic_backward_a(const Problem& problem) {
    const TileCounts counts = count_tiles(problem, a_backward::Br, Bc_of_backward_a(problem));
    std::vector<Traffic> traffic = traffic_backward(problem, counts);
    traffic.push_back({"L", std::uint64_t(problem.Hq) * counts.visits * 4, 0});
    return traffic;
}

std::vector<Traffic> traffic_backward_b(const Problem& problem) {
    const TileCounts counts = count_tiles(problem, b_backward::Br(problem.d, problem.dropout > 0), b_backward::Bc);
    const std::uint64_t Hq = problem.Hq, queries = total_queries(problem);
    std::vector<Traffic> traffic = traffic_backward(problem, counts);
    traffic.push_back({"L", seeing_queries(problem) * 4, 0});
    traffic.push_back({"L_log2", Hq * counts.visits * 4, queries * 4});
    return traffic;
}

/// Without what depends on the size of its key tiles.
ladder::Rung rung_a() {
    ladder::Rung rung;
    rung.stage = "02";
    rung.letter = "a";
    rung.name = "tiles";
    rung.kernel_pattern = "stage02::a::";
    rung.workspaces = workspaces_a;
    return rung;
}

}  // namespace

ladder::Rung rung_a(int Bc) {
    ladder::Rung rung = rung_a();
    rung.refuses = [](const Problem& problem) -> std::optional<std::string> {
        if (problem.type != attention::DataType::fp32) return "takes fp32 when the key tile is chosen";
        if (problem.d > 64) return "takes d up to 64 when the key tile is chosen, not " + std::to_string(problem.d);
        return std::nullopt;
    };
    rung.exponentials = [Bc](const Problem& problem) { return exponentials_a(problem, Bc); };
    rung.traffic = [Bc](const Problem& problem) { return traffic_a(problem, Bc); };
    const std::map<int, void (*)(const Problem&, Operands&)> launches = {
        {4, launch_a<float, 4, 64>},   {8, launch_a<float, 8, 64>},   {16, launch_a<float, 16, 64>},
        {32, launch_a<float, 32, 64>}, {64, launch_a<float, 64, 64>}, {128, launch_a<float, 128, 64>}};
    rung.launch = launches.at(Bc);
    return rung;
}

void register_stage(ladder::Registry& registry) {
    ladder::Rung a = rung_a();
    a.refuses = refuses_a;
    a.launch = [](const Problem& problem, Operands& operands) { launch_a(problem, operands); };
    a.exponentials = [](const Problem& problem) { return exponentials_a(problem, Bc_of_a(problem)); };
    a.traffic = [](const Problem& problem) { return traffic_a(problem, Bc_of_a(problem)); };
    registry.add(std::move(a));
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
