// Registers stage 04: what each rung does, how it is launched, and what it costs in closed form.
#include "04_fa3_hopper/a_tma_wgmma.cuh"
#include "04_fa3_hopper/b_specialised.cuh"
#include "04_fa3_hopper/backward_a.cuh"
#include "04_fa3_hopper/c_ping_pong.cuh"
#include "04_fa3_hopper/d_overlap.cuh"
#include "common/ladder/closed_forms.h"

namespace stage04 {
namespace {

using attention::Mask;
using attention::Problem;
using attention::Range;
using gpu::Traffic;
using ladder::Operands;

std::optional<std::string> refuses(const Problem& problem) {
    if (problem.type == attention::DataType::fp32) return "multiplies on tensor cores and takes fp16 or bf16, not fp32";
    if (problem.d != 64 && problem.d != 128 && problem.d != 256)
        return "takes d = 64, 128 or 256, not " + std::to_string(problem.d);
    if (!(problem.scale > 0)) return "takes a positive scale";
    return ladder::refuses_dropout(problem);
}

template <class F>
void with_type_and_d(const Problem& problem, F&& f) {
    const auto with = [&]<class T>() {
        if (problem.d == 64) return f.template operator()<T, 64>();
        if (problem.d == 128) return f.template operator()<T, 128>();
        return f.template operator()<T, 256>();
    };
    if (problem.type == attention::DataType::fp16) return with.template operator()<gpu::fp16>();
    return with.template operator()<gpu::bf16>();
}

bool masked(const Problem& problem) { return problem.window_left >= 0 || problem.window_right >= 0; }

std::int64_t rows(const Problem& problem, bool queries) {
    return problem.packed() ? (queries ? problem.cu_q : problem.cu_k).back() : queries ? problem.Nq : problem.Nk;
}

/// The map of an operand that is copied in boxes of `box` rows.
template <class T>
gpu::TensorMap map(const char* name, const Problem& problem, const ladder::Operand& operand, int heads, int box) {
    const bool queries = heads == problem.Hq && name[0] != 'K' && name[0] != 'V';
    return gpu::tile_map(name, operand.as<T>(), problem.packed() ? 1 : problem.B, heads, rows(problem, queries), box);
}

/// One CTA for each query tile of the longest sequence, query head and sequence; those without queries end at once.
std::int64_t forward_ctas(const Problem& problem, int Br) {
    return std::int64_t(attention::ceil_div(problem.Nq, Br)) * problem.B * problem.Hq;
}

/// Launches 04a, 04b or 04c, which take the same operands.
template <class T, class Kernel>
void launch(const gpu::LaunchShape& shape, Kernel kernel, const Problem& problem, Operands& operands, int Bc) {
    gpu::launch(shape, kernel, ladder::kernel_problem(problem, operands),
                map<T>("Q", problem, operands.Q, problem.Hq, 64), map<T>("K", problem, operands.K, problem.Hkv, Bc),
                map<T>("V", problem, operands.V, problem.Hkv, Bc), operands.O.as<T>(), operands.L.as<float>());
}

void launch_a(const Problem& problem, Operands& operands) {
    with_type_and_d(problem, [&]<class T, int d>() {
        launch<T>({"stage04::a::forward", forward_ctas(problem, a::Br), a::threads, sizeof(a::Shared<T, d>)},
                  a::forward<T, d>, problem, operands, a::Bc(d));
    });
}

void launch_b(const Problem& problem, Operands& operands) {
    with_type_and_d(problem, [&]<class T, int d>() {
        launch<T>({"stage04::b::forward", forward_ctas(problem, b::Br), b::threads, sizeof(b::Shared<T, d>)},
                  b::forward<T, d>, problem, operands, b::Bc(d));
    });
}

void launch_c(const Problem& problem, Operands& operands) {
    with_type_and_d(problem, [&]<class T, int d>() {
        launch<T>({"stage04::c::forward", forward_ctas(problem, c::Br), c::threads, sizeof(c::Shared<T, d>)},
                  c::forward<T, d>, problem, operands, c::Bc(d));
    });
}

void launch_d(const Problem& problem, Operands& operands) {
    static const int multiprocessors = gpu::device().multiprocessors;
    with_type_and_d(problem, [&]<class T, int d>() {
        const d::Tiles tiles = {attention::ceil_div(problem.Nq, d::Br(d)), problem.B * problem.Hq, masked(problem)};
        const std::int64_t ctas = std::min<std::int64_t>(forward_ctas(problem, d::Br(d)), multiprocessors);
        gpu::launch({"stage04::d::forward", ctas, d::threads(d), sizeof(d::Shared<T, d>)}, d::forward<T, d>,
                    ladder::kernel_problem(problem, operands), tiles, map<T>("Q", problem, operands.Q, problem.Hq, 64),
                    map<T>("K", problem, operands.K, problem.Hkv, d::Bc(d)),
                    map<T>("V", problem, operands.V, problem.Hkv, d::Bc(d)),
                    map<T>("O", problem, operands.O, problem.Hq, 64), operands.O.as<T>(), operands.L.as<float>());
    });
}

std::optional<std::string> refuses_backward(const Problem& problem) {
    if (problem.d == 256) return "takes d = 64 or 128, not 256";
    return refuses(problem);
}

std::int64_t scratch_tiles(const Problem& problem, int Br) {
    return (problem.packed() ? problem.cu_q.back() : std::int64_t(problem.B) * problem.Nq) / Br + problem.B;
}
gpu::Tensor<float> scratch(const Problem& problem, const gpu::Buffer& buffer, int Br, int tile_elements) {
    return buffer.tensor<float>(0, scratch_tiles(problem, Br) * tile_elements, tile_elements, tile_elements);
}

std::vector<ladder::Workspace> backward_workspaces(const Problem& problem) {
    const int Br = a_backward::Br(problem.d);
    const std::size_t column = problem.Hq * scratch_tiles(problem, Br) * Br * sizeof(float);
    return {{"L_log2", column}, {"D", column}, {"dQ_sum", column * problem.d}};
}

void launch_backward_a(const Problem& problem, Operands& operands) {
    namespace a = a_backward;
    ladder::with_16_bit_type_and_d(problem.type, problem.d, [&]<class T, int d>() {
        constexpr int Br = a::Br(d);
        const auto kernel_problem = ladder::kernel_problem(problem, operands);
        const auto L_log2 = scratch(problem, operands.workspaces[0], Br, Br);
        const auto D = scratch(problem, operands.workspaces[1], Br, Br);
        const auto dQ_sum = scratch(problem, operands.workspaces[2], Br, Br * d);
        const std::int64_t query_tiles = forward_ctas(problem, Br);
        const std::int64_t key_tiles = std::int64_t(attention::ceil_div(problem.Nk, a::Bc)) * problem.B * problem.Hkv;
        const gpu::LaunchShape backward = {"stage04::a_backward::backward", key_tiles, a::threads,
                                           sizeof(a::Shared<T, d>)};
        gpu::check_launch(backward);  // before anything runs
        const gpu::TensorMap Q = map<T>("Q", problem, operands.Q, problem.Hq, Br),
                             K = map<T>("K", problem, operands.K, problem.Hkv, a::Bc),
                             V = map<T>("V", problem, operands.V, problem.Hkv, a::Bc),
                             dO = map<T>("dO", problem, operands.dO, problem.Hq, Br);
        gpu::launch({"stage04::a_backward::prepare", query_tiles, a::simple_threads, 0}, a::prepare<T, d>,
                    kernel_problem, operands.O.as<const T>(), operands.dO.as<const T>(), operands.L.as<const float>(),
                    L_log2, D, dQ_sum);
        gpu::launch(backward, a::backward<T, d>, kernel_problem, Q, K, V, dO, gpu::read_only(L_log2), gpu::read_only(D),
                    dQ_sum, operands.dK.as<T>(), operands.dV.as<T>());
        gpu::launch({"stage04::a_backward::finish", query_tiles, a::simple_threads, 0}, a::finish<T, d>, kernel_problem,
                    gpu::read_only(dQ_sum), operands.dQ.as<T>());
    });
}

std::vector<ladder::Workspace> no_workspaces(const Problem&) { return {}; }

}  // namespace

void register_stage(ladder::Registry& registry) {
    registry.add({.stage = "04",
                  .letter = "a",
                  .name = "tma_wgmma",
                  .pass = ladder::Pass::forward,
                  .fast = true,
                  .whole_tiles = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage04::a::",
                  .refuses = refuses,
                  .workspaces = no_workspaces,
                  .launch = launch_a,
                  .exponentials = [](const Problem&) { return 0.0; },
                  .traffic = [](const Problem&) { return std::vector<Traffic>{}; }});
    registry.add({.stage = "04",
                  .letter = "b",
                  .name = "specialised",
                  .pass = ladder::Pass::forward,
                  .fast = true,
                  .whole_tiles = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage04::b::",
                  .refuses = refuses,
                  .workspaces = no_workspaces,
                  .launch = launch_b,
                  .exponentials = [](const Problem&) { return 0.0; },
                  .traffic = [](const Problem&) { return std::vector<Traffic>{}; }});
    registry.add({.stage = "04",
                  .letter = "c",
                  .name = "ping_pong",
                  .pass = ladder::Pass::forward,
                  .fast = true,
                  .whole_tiles = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage04::c::",
                  .refuses = refuses,
                  .workspaces = no_workspaces,
                  .launch = launch_c,
                  .exponentials = [](const Problem&) { return 0.0; },
                  .traffic = [](const Problem&) { return std::vector<Traffic>{}; }});
    registry.add({.stage = "04",
                  .letter = "d",
                  .name = "overlap",
                  .pass = ladder::Pass::forward,
                  .fast = true,
                  .whole_tiles = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage04::d::",
                  .refuses = refuses,
                  .workspaces = no_workspaces,
                  .launch = launch_d,
                  .exponentials = [](const Problem&) { return 0.0; },
                  .traffic = [](const Problem&) { return std::vector<Traffic>{}; }});
    registry.add({.stage = "04",
                  .letter = "a",
                  .name = "bulk_add",
                  .pass = ladder::Pass::backward,
                  .fast = true,
                  .deterministic = false,
                  .whole_tiles = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage04::a_backward::",
                  .refuses = refuses_backward,
                  .workspaces = backward_workspaces,
                  .launch = launch_backward_a,
                  .exponentials = [](const Problem&) { return 0.0; },
                  .traffic = [](const Problem&) { return std::vector<Traffic>{}; }});
}

}  // namespace stage04
