// Registers stage 00: what each rung does, how it is launched, and what it costs in closed form.
#include "00_naive/a_three_kernels.cuh"
#include "common/ladder/registry.h"

namespace stage00 {
namespace {

using attention::ceil_div;
using attention::Problem;
using ladder::Operands;

std::optional<std::string> refuses_a(const Problem& problem) {
    if (problem.dropout > 0) return "has no dropout";
    return std::nullopt;
}

/// S and P: (B, Hq, Nq, Nk) in the storage type.
std::vector<ladder::Workspace> workspaces_a(const Problem& problem) {
    const std::size_t bytes =
        std::size_t(problem.B) * problem.Hq * problem.Nq * problem.Nk * attention::bytes(problem.type);
    return {{"S", bytes}, {"P", bytes}};
}

void launch_a(const Problem& problem, Operands& operands) {
    ladder::with_type(problem.type, [&]<class T>() {
        const auto kernel_problem = ladder::kernel_problem(problem, operands);
        const std::int64_t head = std::int64_t(problem.Nq) * problem.Nk;
        const auto S = operands.workspaces[0].tensor<T>(problem.Hq * head, head, problem.Nk, problem.Nk);
        const auto P = operands.workspaces[1].tensor<T>(problem.Hq * head, head, problem.Nk, problem.Nk);
        const std::int64_t rows = std::int64_t(problem.B) * problem.Hq * problem.Nq;

        gpu::launch({"stage00::a::scores", rows * ceil_div(problem.Nk, a::threads), a::threads, 0}, a::scores<T>,
                    kernel_problem, operands.Q.as<const T>(), operands.K.as<const T>(), S);
        gpu::launch({"stage00::a::softmax", ceil_div(rows, a::warps), a::threads, 0}, a::softmax<T>, kernel_problem,
                    gpu::read_only(S), P, operands.L.as<float>());
        gpu::launch({"stage00::a::output", rows * ceil_div(problem.d, a::threads), a::threads, 0}, a::output<T>,
                    kernel_problem, gpu::read_only(P), operands.V.as<const T>(), operands.O.as<T>());
    });
}

double exponentials_a(const Problem& problem) { return 2 * attention::visible_pairs(problem); }

std::vector<gpu::Traffic> traffic_a(const Problem& problem) {
    const std::uint64_t element = attention::bytes(problem.type);
    const std::uint64_t visible = attention::visible_pairs(problem);
    std::uint64_t queries = 0, pairs = 0;
    for (int b = 0; b < problem.B; ++b) {
        queries += std::uint64_t(problem.Hq) * problem.queries(b);
        pairs += std::uint64_t(problem.Hq) * problem.queries(b) * problem.keys(b);
    }
    return {{"Q", visible * problem.d * element, 0},
            {"K", visible * problem.d * element, 0},
            {"V", visible * problem.d * element, 0},
            {"O", 0, queries * problem.d * element},
            {"L", 0, queries * 4},
            {"S", 3 * visible * element, pairs * element},
            {"P", visible * problem.d * element, pairs * element}};
}

}  // namespace

void register_stage(ladder::Registry& registry) {
    registry.add({.stage = "00",
                  .letter = "a",
                  .name = "three_kernels",
                  .pass = ladder::Pass::forward,
                  .stores = ladder::Stores::scores,
                  .kernel_pattern = "stage00::a::",
                  .refuses = refuses_a,
                  .workspaces = workspaces_a,
                  .launch = launch_a,
                  .exponentials = exponentials_a,
                  .traffic = traffic_a});
}

}  // namespace stage00
