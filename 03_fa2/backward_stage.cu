// Registers the backward rungs of stage 03: how they are launched, and what they cost in closed form.
#include "03_fa2/backward_stage.h"

#include "03_fa2/backward_a.cuh"
#include "03_fa2/head_dimensions.h"
#include "common/ladder/closed_forms.h"

namespace stage03 {
namespace {

using attention::KernelProblem;
using attention::Mask;
using attention::Problem;
using attention::Range;
using gpu::Traffic;
using ladder::Operands;
using ladder::overlap;

/// Calls f(Tiles<padded d>()), which has the sizes of backward_a's tiles.
template <class F>
auto with_tiles(const Problem& problem, F&& f) {
    decltype(f(a_backward::Tiles<64>())) result;
    with_padded_d(problem, [&]<class T, int d>() { result = f(a_backward::Tiles<d>()); });
    return result;
}

/// Of one head: scratch tiles of Br queries, each sequence beginning one of its own.
std::int64_t scratch_tiles(const Problem& problem, int Br) {
    return (problem.packed() ? problem.cu_q.back() : std::int64_t(problem.B) * problem.Nq) / Br + problem.B;
}

/// Scratch as (head, tile, element of the tile).
gpu::Tensor<float> scratch(const Problem& problem, const gpu::Buffer& buffer, int Br, int tile_elements) {
    return buffer.tensor<float>(0, scratch_tiles(problem, Br) * tile_elements, tile_elements, tile_elements);
}

std::int64_t query_tile_ctas(const Problem& problem, int Br) {
    return std::int64_t(attention::ceil_div(problem.Nq, Br)) * problem.Hq * problem.B;
}

std::int64_t key_tile_ctas(const Problem& problem, int Bc) {
    return std::int64_t(attention::ceil_div(problem.Nk, Bc)) * problem.Hkv * problem.B;
}

std::vector<ladder::Workspace> workspaces_a(const Problem& problem) {
    return with_tiles(problem, [&](auto tiles) -> std::vector<ladder::Workspace> {
        const std::size_t column = problem.Hq * scratch_tiles(problem, tiles.Br) * sizeof(float);
        return {{"L_log2", column * tiles.Br}, {"D", column * tiles.Br}, {"dQ_sum", column * tiles.tile_elements}};
    });
}

void launch_a(const Problem& problem, Operands& operands) {
    namespace a = a_backward;
    with_padded_d(problem, [&]<class T, int d>() {
        constexpr int Br = a::Tiles<d>::Br;
        const KernelProblem kernel_problem = ladder::kernel_problem(problem, operands);
        const auto L_log2 = scratch(problem, operands.workspaces[0], Br, Br);
        const auto D = scratch(problem, operands.workspaces[1], Br, Br);
        const auto dQ_sum = scratch(problem, operands.workspaces[2], Br, a::Tiles<d>::tile_elements);
        const std::int64_t query_tiles = query_tile_ctas(problem, Br);
        const gpu::LaunchShape backward = {"stage03::a_backward::backward", key_tile_ctas(problem, a::Tiles<d>::Bc),
                                           a::threads, sizeof(a::Shared<T, d>)};
        gpu::check_launch(backward);  // before anything runs
        gpu::launch({"stage03::a_backward::prepare", query_tiles, a::threads, 0}, a::prepare<T, d>, kernel_problem,
                    operands.O.as<const T>(), operands.dO.as<const T>(), operands.L.as<const float>(), L_log2, D,
                    dQ_sum);
        gpu::launch(backward, a::backward<T, d>, kernel_problem, operands.Q.as<const T>(), operands.K.as<const T>(),
                    operands.V.as<const T>(), operands.dO.as<const T>(), gpu::read_only(L_log2), gpu::read_only(D),
                    dQ_sum, operands.dK.as<T>(), operands.dV.as<T>());
        gpu::launch({"stage03::a_backward::finish", query_tiles, a::threads, 0}, a::finish<T, d>, kernel_problem,
                    gpu::read_only(dQ_sum), operands.dQ.as<T>());
    });
}

/// What the key tiles of one key/value head do for one query head, summed over the sequences and counted from the mask alone.
struct TileCounts {
    std::int64_t tiles = 0;        // (key tile, query tile) pairs visited
    std::int64_t query_rows = 0;   // queries copied, over all visits: those that see some key
    std::int64_t key_rows = 0;     // keys copied, over all key tiles
    std::int64_t query_tiles = 0;  // of all sequences
    std::int64_t seeing_rows = 0;  // queries that see some key
};

TileCounts count_tiles(const Problem& problem, int Br, int Bc) {
    TileCounts sum;
    for (int b = 0; b < problem.B; ++b) {
        const Mask mask = attention::mask_of(problem, b);
        for (int j0 = 0; j0 < mask.Nk; j0 += Bc) {
            const Range q_tiles = mask.query_tiles(j0, Bc, Br);
            if (q_tiles.empty()) continue;
            sum.tiles += q_tiles.end - q_tiles.begin;
            sum.query_rows += overlap(mask.seeing_queries(), {q_tiles.begin * Br, q_tiles.end * Br});
            sum.key_rows += overlap(mask.seen_keys(), {j0, j0 + Bc});
        }
        sum.query_tiles += attention::ceil_div(mask.Nq, Br);
        sum.seeing_rows += overlap(mask.seeing_queries(), {0, mask.Nq});
    }
    return sum;
}

double exponentials_a(const Problem& problem) {
    return with_tiles(problem, [&](auto tiles) {
        return double(problem.Hq) * count_tiles(problem, tiles.Br, tiles.Bc).tiles * tiles.Br * tiles.Bc;
    });
}

std::vector<Traffic> traffic_a(const Problem& problem) {
    return with_tiles(problem, [&](auto tiles) -> std::vector<Traffic> {
        const TileCounts counts = count_tiles(problem, tiles.Br, tiles.Bc);
        const std::uint64_t Hq = problem.Hq, Hkv = problem.Hkv, row = attention::bytes(problem.type) * problem.d;
        const std::uint64_t queries = ladder::total_queries(problem), keys = ladder::total_keys(problem);
        const std::uint64_t column = 4 * tiles.Br, sums = 4 * tiles.tile_elements;
        return {{"Q", Hq * counts.query_rows * row, 0},
                {"K", Hkv * counts.key_rows * row, 0},
                {"V", Hkv * counts.key_rows * row, 0},
                {"O", Hq * counts.seeing_rows * row, 0},
                {"dO", Hq * (counts.seeing_rows + counts.query_rows) * row, 0},
                {"L", Hq * counts.seeing_rows * 4, 0},
                {"L_log2", Hq * counts.tiles * column, Hq * counts.query_tiles * column},
                {"D", Hq * counts.tiles * column, Hq * counts.query_tiles * column},
                {"dQ_sum", queries * 4 * problem.d, Hq * (counts.query_tiles + counts.tiles) * sums},
                {"dQ", 0, queries * row},
                {"dK", 0, keys * row},
                {"dV", 0, keys * row}};
    });
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
                  .row_alignment = 16,
                  .kernel_pattern = "stage03::a_backward::",
                  .refuses = refuses,
                  .workspaces = workspaces_a,
                  .launch = launch_a,
                  .exponentials = exponentials_a,
                  .traffic = traffic_a});
}

}  // namespace stage03
