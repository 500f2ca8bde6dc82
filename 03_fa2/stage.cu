// Registers stage 03: what each rung does, how it is launched, and what it costs in closed form.
#include "03_fa2/a_split_q.cuh"
#include "03_fa2/b_pipelined.cuh"
#include "03_fa2/backward_stage.h"
#include "03_fa2/head_dimensions.h"
#include "common/ladder/closed_forms.h"

namespace stage03 {
namespace {

using attention::Mask;
using attention::Problem;
using attention::Range;
using gpu::Traffic;
using ladder::Operands;
using ladder::overlap;

// ---- forward ----

/// One CTA for each query tile of the longest sequence, query head and sequence; those without queries end at once.
std::int64_t forward_ctas(const Problem& problem, int Br) {
    return std::int64_t(attention::ceil_div(problem.Nq, Br)) * problem.B * problem.Hq;
}

void launch_a(const Problem& problem, Operands& operands) {
    with_padded_d(problem, [&]<class T, int d>() {
        gpu::launch({"stage03::a::forward", forward_ctas(problem, a::Br), a::threads, sizeof(a::Shared<T, d>)},
                    a::forward<T, d>, ladder::kernel_problem(problem, operands), operands.Q.as<const T>(),
                    operands.K.as<const T>(), operands.V.as<const T>(), operands.O.as<T>(), operands.L.as<float>());
    });
}

void launch_b(const Problem& problem, Operands& operands) {
    with_padded_d(problem, [&]<class T, int d>() {
        const bool general = problem.dropout > 0 || !(problem.scale > 0);
        gpu::launch({"stage03::b::forward", forward_ctas(problem, b::Br(d)), b::threads, sizeof(b::Shared<T, d>)},
                    general ? b::forward<T, d, true> : b::forward<T, d, false>,
                    ladder::kernel_problem(problem, operands), operands.Q.as<const T>(), operands.K.as<const T>(),
                    operands.V.as<const T>(), operands.O.as<T>(), operands.L.as<float>());
    });
}

/// What the query tiles of one head do, summed over the sequences and counted from the mask alone.
struct TileCounts {
    std::int64_t tiles = 0;       // (query tile, key tile) pairs visited
    std::int64_t query_rows = 0;  // queries copied: those that see some key
    std::int64_t key_rows = 0;    // keys copied, over all visits
};

TileCounts count_tiles(const Problem& problem, int Br, int Bc) {
    TileCounts sum;
    for (int b = 0; b < problem.B; ++b) {
        const Mask mask = attention::mask_of(problem, b);
        for (int i0 = 0; i0 < mask.Nq; i0 += Br) {
            const Range kv_tiles = mask.key_tiles(i0, Br, Bc);
            if (kv_tiles.empty()) continue;
            sum.tiles += kv_tiles.end - kv_tiles.begin;
            sum.query_rows += overlap(mask.seeing_queries(), {i0, i0 + Br});
            sum.key_rows += overlap(mask.seen_keys(), {kv_tiles.begin * Bc, kv_tiles.end * Bc});
        }
    }
    return sum;
}

std::vector<Traffic> traffic_forward(const Problem& problem, int Br, int Bc) {
    const TileCounts counts = count_tiles(problem, Br, Bc);
    const std::uint64_t Hq = problem.Hq, row = attention::bytes(problem.type) * problem.d,
                        queries = ladder::total_queries(problem);
    return {{"Q", Hq * counts.query_rows * row, 0},
            {"K", Hq * counts.key_rows * row, 0},
            {"V", Hq * counts.key_rows * row, 0},
            {"O", 0, queries * row},
            {"L", 0, queries * 4}};
}

/// Every weight of a visited tile, and for each query the factor of its old state, which four lanes compute.
double exponentials_forward(const Problem& problem, int Br, int Bc) {
    return double(problem.Hq) * count_tiles(problem, Br, Bc).tiles * Br * (Bc + 4);
}

int Br_of_b(const Problem& problem) { return b::Br(padded(problem.d)); }
int Bc_of_b(const Problem& problem) { return b::Bc(padded(problem.d)); }

}  // namespace

void register_stage(ladder::Registry& registry) {
    registry.add({.stage = "03",
                  .letter = "a",
                  .name = "split_q",
                  .pass = ladder::Pass::forward,
                  .whole_tiles = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage03::a::",
                  .refuses = refuses,
                  .launch = launch_a,
                  .exponentials = [](const Problem& problem) { return exponentials_forward(problem, a::Br, a::Bc); },
                  .traffic = [](const Problem& problem) { return traffic_forward(problem, a::Br, a::Bc); }});
    registry.add(
        {.stage = "03",
         .letter = "b",
         .name = "pipelined",
         .pass = ladder::Pass::forward,
         .fast = true,
         .whole_tiles = true,
         .row_alignment = 16,
         .kernel_pattern = "stage03::b::",
         .refuses = refuses,
         .launch = launch_b,
         .exponentials =
             [](const Problem& problem) { return exponentials_forward(problem, Br_of_b(problem), Bc_of_b(problem)); },
         .traffic =
             [](const Problem& problem) { return traffic_forward(problem, Br_of_b(problem), Bc_of_b(problem)); }});
    register_backward(registry);
}

}  // namespace stage03
