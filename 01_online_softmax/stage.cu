// Registers stage 01: what each rung does, how it is launched, and what it costs in closed form.
#include "01_online_softmax/c_fused.cuh"
#include "common/ladder/registry.h"

namespace stage01 {
namespace {

using attention::ceil_div;
using attention::Problem;
using ladder::Operands;

std::optional<std::string> refuses_c(const Problem& problem) {
    if (problem.d > c::max_d) {
        return "keeps a query's u in one warp's registers and takes d up to " + std::to_string(c::max_d) + ", not " +
               std::to_string(problem.d);
    }
    if (problem.dropout > 0) return "has no dropout";
    return std::nullopt;
}

template <class T, int lane_columns>
void launch_columns(const Problem& problem, Operands& operands) {
    const std::int64_t queries = std::int64_t(problem.B) * problem.Hq * problem.Nq;
    gpu::launch({"stage01::c::forward", ceil_div(queries, c::warps), c::threads, sizeof(c::Shared)},
                c::forward<T, lane_columns>, ladder::kernel_problem(problem, operands), operands.Q.as<const T>(),
                operands.K.as<const T>(), operands.V.as<const T>(), operands.O.as<T>(), operands.L.as<float>());
}

void launch_c(const Problem& problem, Operands& operands) {
    ladder::with_type(problem.type, [&]<class T>() {
        const int lane_columns = ceil_div(problem.d, gpu::warp_size);
        if (lane_columns <= 2) return launch_columns<T, 2>(problem, operands);
        if (lane_columns <= 4) return launch_columns<T, 4>(problem, operands);
        launch_columns<T, 8>(problem, operands);
    });
}

/// Blocks of 32 keys that the warps walk, over all queries and heads.
std::uint64_t key_blocks(const Problem& problem) {
    std::uint64_t blocks = 0;
    for (int b = 0; b < problem.B; ++b) {
        const attention::Mask mask = attention::mask_of(problem, b);
        for (int i = 0; i < mask.Nq; ++i) {
            const attention::Range keys = mask.keys(i);
            if (!keys.empty()) blocks += ceil_div(keys.end - keys.begin, gpu::warp_size);
        }
    }
    return blocks * problem.Hq;
}

/// Every lane computes one weight and the factor of the old state for each block of 32 keys.
double exponentials_c(const Problem& problem) { return 2.0 * gpu::warp_size * key_blocks(problem); }

std::vector<gpu::Traffic> traffic_c(const Problem& problem) {
    const std::uint64_t row = std::uint64_t(problem.d) * attention::bytes(problem.type);
    const std::uint64_t visible = attention::visible_pairs(problem);
    std::uint64_t queries = 0;
    for (int b = 0; b < problem.B; ++b) queries += std::uint64_t(problem.Hq) * problem.queries(b);
    return {{"Q", queries * row, 0},
            {"K", visible * row, 0},
            {"V", visible * row, 0},
            {"O", 0, queries * row},
            {"L", 0, queries * 4}};
}

}  // namespace

void register_stage(ladder::Registry& registry) {
    registry.add({.stage = "01",
                  .letter = "c",
                  .name = "fused",
                  .pass = ladder::Pass::forward,
                  .kernel_pattern = "stage01::c::",
                  .refuses = refuses_c,
                  .workspaces = [](const Problem&) { return std::vector<ladder::Workspace>{}; },
                  .launch = launch_c,
                  .exponentials = exponentials_c,
                  .traffic = traffic_c});
}

}  // namespace stage01
