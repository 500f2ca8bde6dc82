// Registers stage 01: what each rung does, how it is launched, and what it costs in closed form.
#include "01_online_softmax/a_safe.cuh"
#include "01_online_softmax/b_online.cuh"
#include "01_online_softmax/backward_c.cuh"
#include "01_online_softmax/c_fused.cuh"
#include "01_online_softmax/d_split.cuh"
#include "common/ladder/closed_forms.h"

namespace stage01 {
namespace {

using attention::ceil_div;
using attention::KernelProblem;
using attention::Mask;
using attention::Problem;
using attention::Range;
using ladder::numbered_queries;
using ladder::Operands;
using ladder::scratch;
using ladder::total_queries;

// ---- what the closed forms are made of ----

std::uint64_t row_bytes(const Problem& problem) { return std::uint64_t(problem.d) * attention::bytes(problem.type); }

/// f(visible keys of a query), summed over all queries and heads.
template <class F>
std::uint64_t sum_over_queries(const Problem& problem, F&& f) {
    std::uint64_t sum = 0;
    for (int b = 0; b < problem.B; ++b) {
        const Mask mask = attention::mask_of(problem, b);
        for (int i = 0; i < mask.Nq; ++i) sum += f(mask.keys(i));
    }
    return sum * problem.Hq;
}

/// Steps of 32 keys in which a warp walks a range.
std::uint64_t key_blocks(Range keys) { return keys.empty() ? 0 : ceil_div(keys.end - keys.begin, gpu::warp_size); }

// ---- a and b: S and P in memory ----

/// S and P: (B, Hq, Nq, Nk) in the storage type.
std::vector<ladder::Workspace> workspaces_a(const Problem& problem) {
    const std::size_t bytes = numbered_queries(problem) * problem.Nk * attention::bytes(problem.type);
    return {{"S", bytes}, {"P", bytes}};
}

void launch_a(const Problem& problem, Operands& operands) {
    ladder::with_type(problem.type, [&]<class T>() {
        const KernelProblem kernel_problem = ladder::kernel_problem(problem, operands);
        const auto S = ladder::query_matrix<T>(problem, operands.workspaces[0], problem.Nk);
        const auto P = ladder::query_matrix<T>(problem, operands.workspaces[1], problem.Nk);
        gpu::launch({"stage01::a::scores", numbered_queries(problem) * ceil_div(problem.Nk, a::threads), a::threads, 0},
                    a::scores<T>, kernel_problem, operands.Q.as<const T>(), operands.K.as<const T>(), S);
        gpu::launch({"stage01::a::softmax", numbered_queries(problem), a::threads, sizeof(a::Shared)}, a::softmax<T>,
                    kernel_problem, gpu::read_only(S), P, operands.L.as<float>());
        gpu::launch({"stage01::a::output", numbered_queries(problem) * ceil_div(problem.d, a::threads), a::threads, 0},
                    a::output<T>, kernel_problem, gpu::read_only(P), operands.V.as<const T>(), operands.O.as<T>());
    });
}

void launch_b(const Problem& problem, Operands& operands) {
    ladder::with_type(problem.type, [&]<class T>() {
        const KernelProblem kernel_problem = ladder::kernel_problem(problem, operands);
        const auto S = ladder::query_matrix<T>(problem, operands.workspaces[0], problem.Nk);
        const auto P = ladder::query_matrix<T>(problem, operands.workspaces[1], problem.Nk);
        gpu::launch({"stage01::b::scores", numbered_queries(problem) * ceil_div(problem.Nk, b::threads), b::threads, 0},
                    b::scores<T>, kernel_problem, operands.Q.as<const T>(), operands.K.as<const T>(), S);
        gpu::launch({"stage01::b::softmax", ceil_div(numbered_queries(problem), b::warps), b::threads, 0},
                    b::softmax<T>, kernel_problem, gpu::read_only(S), P, operands.L.as<float>());
        gpu::launch({"stage01::b::output", numbered_queries(problem) * ceil_div(problem.d, b::threads), b::threads, 0},
                    b::output<T>, kernel_problem, gpu::read_only(P), operands.V.as<const T>(), operands.O.as<T>());
    });
}

/// The weight of each score in the sum and in P.
double exponentials_a(const Problem& problem) { return 2 * attention::visible_pairs(problem); }

/// Two factors for each score in the running state, its weight in P, and two for each of a lane's 5 merges with others.
double exponentials_b(const Problem& problem) {
    return 3 * attention::visible_pairs(problem) + 2.0 * 5 * gpu::warp_size * total_queries(problem);
}

std::vector<gpu::Traffic> traffic_in_passes(const Problem& problem, int passes) {
    const std::uint64_t element = attention::bytes(problem.type), row = row_bytes(problem);
    const std::uint64_t visible = attention::visible_pairs(problem), queries = total_queries(problem);
    const std::uint64_t pairs = ladder::total_pairs(problem);
    return {{"Q", visible * row, 0},
            {"K", visible * row, 0},
            {"V", visible * row, 0},
            {"O", 0, queries * row},
            {"L", 0, queries * 4},
            {"S", passes * visible * element, pairs * element},
            {"P", visible * row, pairs * element}};
}
std::vector<gpu::Traffic> traffic_a(const Problem& problem) { return traffic_in_passes(problem, 3); }
std::vector<gpu::Traffic> traffic_b(const Problem& problem) { return traffic_in_passes(problem, 2); }

// ---- c ----

std::optional<std::string> refuses_c(const Problem& problem) {
    if (problem.d > c::max_d) {
        return "keeps a row of u in one warp's registers and takes d up to " + std::to_string(c::max_d) + ", not " +
               std::to_string(problem.d);
    }
    return ladder::refuses_dropout(problem);
}

/// Calls f<T, lane_columns>() with the storage type and the columns of a row that a lane holds.
template <class F>
void with_type_and_lane_columns(const Problem& problem, F&& f) {
    ladder::with_type(problem.type, [&]<class T>() {
        const int lane_columns = ceil_div(problem.d, gpu::warp_size);
        if (lane_columns <= 2) return f.template operator()<T, 2>();
        if (lane_columns <= 4) return f.template operator()<T, 4>();
        f.template operator()<T, 8>();
    });
}

void launch_c(const Problem& problem, Operands& operands) {
    with_type_and_lane_columns(problem, [&]<class T, int lane_columns>() {
        gpu::launch(
            {"stage01::c::forward", ceil_div(numbered_queries(problem), c::warps), c::threads, sizeof(c::Shared)},
            c::forward<T, lane_columns>, ladder::kernel_problem(problem, operands), operands.Q.as<const T>(),
            operands.K.as<const T>(), operands.V.as<const T>(), operands.O.as<T>(), operands.L.as<float>());
    });
}

/// Every lane computes one weight and the factor of the old state for each block of 32 keys.
double exponentials_c(const Problem& problem) { return 2.0 * gpu::warp_size * sum_over_queries(problem, key_blocks); }

std::vector<gpu::Traffic> traffic_c(const Problem& problem) {
    const std::uint64_t row = row_bytes(problem), queries = total_queries(problem);
    const std::uint64_t visible = attention::visible_pairs(problem);
    return {{"Q", queries * row, 0},
            {"K", visible * row, 0},
            {"V", visible * row, 0},
            {"O", 0, queries * row},
            {"L", 0, queries * 4}};
}

// ---- c backward ----

std::vector<ladder::Workspace> workspaces_backward(const Problem& problem) {
    return {{"D", total_queries(problem) * sizeof(float)}};
}

void launch_backward(const Problem& problem, Operands& operands) {
    namespace c = c_backward;
    with_type_and_lane_columns(problem, [&]<class T, int lane_columns>() {
        const KernelProblem kernel_problem = ladder::kernel_problem(problem, operands);
        const auto D = scratch(problem, operands.workspaces[0], 1);
        const std::int64_t keys = ladder::numbered_keys(problem);
        gpu::launch({"stage01::c_backward::query_gradient", ceil_div(numbered_queries(problem), c::warps), c::threads,
                     sizeof(c::Shared)},
                    c::query_gradient<T, lane_columns>, kernel_problem, operands.Q.as<const T>(),
                    operands.K.as<const T>(), operands.V.as<const T>(), operands.O.as<const T>(),
                    operands.dO.as<const T>(), operands.L.as<const float>(), D, operands.dQ.as<T>());
        gpu::launch({"stage01::c_backward::key_gradients", ceil_div(keys, c::warps), c::threads, sizeof(c::Shared)},
                    c::key_gradients<T, lane_columns>, kernel_problem, operands.Q.as<const T>(),
                    operands.K.as<const T>(), operands.V.as<const T>(), operands.dO.as<const T>(),
                    operands.L.as<const float>(), gpu::read_only(D), operands.dK.as<T>(), operands.dV.as<T>());
    });
}

/// Each kernel brings every P back once.
double exponentials_backward(const Problem& problem) { return 2 * attention::visible_pairs(problem); }

std::vector<gpu::Traffic> traffic_backward(const Problem& problem) {
    const std::uint64_t row = row_bytes(problem), queries = total_queries(problem), keys = ladder::total_keys(problem);
    const std::uint64_t visible = attention::visible_pairs(problem);
    return {{"Q", (queries + 2 * visible) * row, 0},
            {"K", (keys + 2 * visible) * row, 0},
            {"V", (keys + visible) * row, 0},
            {"O", queries * row, 0},
            {"dO", (queries + 2 * visible) * row, 0},
            {"L", (queries * gpu::warp_size + visible) * 4, 0},
            {"D", visible * 4, queries * 4},
            {"dQ", 0, queries * row},
            {"dK", 0, keys * row},
            {"dV", 0, keys * row}};
}

// ---- d ----

std::vector<ladder::Workspace> workspaces_d(const Problem& problem) {
    const std::size_t states = total_queries(problem) * d::segments(problem.Nk) * sizeof(float);
    return {{"m_partial", states}, {"l_partial", states}, {"u_partial", states * problem.d}};
}

void launch_d(const Problem& problem, Operands& operands) {
    with_type_and_lane_columns(problem, [&]<class T, int lane_columns>() {
        const KernelProblem kernel_problem = ladder::kernel_problem(problem, operands);
        const int segments = d::segments(problem.Nk);
        const auto m = scratch(problem, operands.workspaces[0], segments);
        const auto l = scratch(problem, operands.workspaces[1], segments);
        const auto u = scratch(problem, operands.workspaces[2], segments * problem.d);
        gpu::launch({"stage01::d::partial", ceil_div(numbered_queries(problem) * segments, d::warps), d::threads,
                     sizeof(d::Shared)},
                    d::partial<T, lane_columns>, kernel_problem, operands.Q.as<const T>(), operands.K.as<const T>(),
                    operands.V.as<const T>(), m, l, u);
        gpu::launch({"stage01::d::merge", ceil_div(numbered_queries(problem), d::warps), d::threads, 0},
                    d::merge<T, lane_columns>, kernel_problem, gpu::read_only(m), gpu::read_only(l), gpu::read_only(u),
                    operands.O.as<T>(), operands.L.as<float>());
    });
}

/// f(visible keys of a query in a segment), summed over all queries, heads and segments.
template <class F>
std::uint64_t sum_over_segments(const Problem& problem, F&& f) {
    return sum_over_queries(problem, [&](Range keys) {
        std::uint64_t sum = 0;
        for (int s = 0; s < d::segments(problem.Nk); ++s) sum += f(d::segment(problem.Nk, s, keys));
        return sum;
    });
}

/// As in c for each segment; then all lanes merge 8 states in 7 steps of two factors.
double exponentials_d(const Problem& problem) {
    return 2.0 * gpu::warp_size *
           (sum_over_segments(problem, key_blocks) + (d::max_segments - 1) * total_queries(problem));
}

std::vector<gpu::Traffic> traffic_d(const Problem& problem) {
    const std::uint64_t row = row_bytes(problem), queries = total_queries(problem);
    const std::uint64_t visible = attention::visible_pairs(problem), states = queries * d::segments(problem.Nk);
    const std::uint64_t u = sum_over_segments(problem, [](Range keys) { return !keys.empty(); }) * problem.d * 4;
    return {{"Q", states * row, 0},
            {"K", visible * row, 0},
            {"V", visible * row, 0},
            {"O", 0, queries * row},
            {"L", 0, queries * 4},
            {"m_partial", states * 4, states * 4},
            {"l_partial", states * 4, states * 4},
            {"u_partial", u, u}};
}

std::vector<ladder::Workspace> no_workspaces(const Problem&) { return {}; }

}  // namespace

void register_stage(ladder::Registry& registry) {
    registry.add({.stage = "01",
                  .letter = "a",
                  .name = "safe",
                  .pass = ladder::Pass::forward,
                  .stores = ladder::Stores::scores,
                  .kernel_pattern = "stage01::a::",
                  .refuses = ladder::refuses_dropout,
                  .workspaces = workspaces_a,
                  .launch = launch_a,
                  .exponentials = exponentials_a,
                  .traffic = traffic_a});
    registry.add({.stage = "01",
                  .letter = "b",
                  .name = "online",
                  .pass = ladder::Pass::forward,
                  .stores = ladder::Stores::scores,
                  .kernel_pattern = "stage01::b::",
                  .refuses = ladder::refuses_dropout,
                  .workspaces = workspaces_a,
                  .launch = launch_b,
                  .exponentials = exponentials_b,
                  .traffic = traffic_b});
    registry.add({.stage = "01",
                  .letter = "c",
                  .name = "fused",
                  .pass = ladder::Pass::forward,
                  .kernel_pattern = "stage01::c::",
                  .refuses = refuses_c,
                  .workspaces = no_workspaces,
                  .launch = launch_c,
                  .exponentials = exponentials_c,
                  .traffic = traffic_c});
    registry.add({.stage = "01",
                  .letter = "c",
                  .name = "fused",
                  .pass = ladder::Pass::backward,
                  .kernel_pattern = "stage01::c_backward::",
                  .refuses = refuses_c,
                  .workspaces = workspaces_backward,
                  .launch = launch_backward,
                  .exponentials = exponentials_backward,
                  .traffic = traffic_backward});
    registry.add({.stage = "01",
                  .letter = "d",
                  .name = "split",
                  .pass = ladder::Pass::forward,
                  .kernel_pattern = "stage01::d::",
                  .refuses = refuses_c,
                  .workspaces = workspaces_d,
                  .launch = launch_d,
                  .exponentials = exponentials_d,
                  .traffic = traffic_d});
}

}  // namespace stage01
