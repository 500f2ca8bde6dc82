// Registers stage 04: what each rung does, how it is launched, and what it costs in closed form.
#include "04_fa3_hopper/a_tma_wgmma.cuh"
#include "04_fa3_hopper/b_specialised.cuh"
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
        const auto with = [&]<int Bc>() {
            const int query_tiles = attention::ceil_div(problem.Nq, d::Br(d)), heads = problem.B * problem.Hq;
            const std::int64_t kv_bytes = std::int64_t(problem.Nk) * d * 4;
            const int section = std::max<std::int64_t>(
                1, std::min<std::int64_t>(
                       heads, (32 << 20) / std::max<std::int64_t>(kv_bytes, 1) * (problem.Hq / problem.Hkv)));
            const d::Tiles tiles = {query_tiles, heads, section, masked(problem)};
            const std::int64_t ctas = std::min<std::int64_t>(forward_ctas(problem, d::Br(d)), multiprocessors);
            gpu::launch(
                {"stage04::d::forward", ctas, d::threads(d), sizeof(d::Shared<T, d, Bc>)}, d::forward<T, d, Bc>,
                ladder::kernel_problem(problem, operands), tiles, map<T>("Q", problem, operands.Q, problem.Hq, 64),
                map<T>("K", problem, operands.K, problem.Hkv, Bc), map<T>("V", problem, operands.V, problem.Hkv, Bc),
                map<T>("O", problem, operands.O, problem.Hq, 64), operands.O.as<T>(), operands.L.as<float>());
        };
        if (d == 128 && !masked(problem)) return with.template operator()<d::Bc(d, false)>();
        with.template operator()<d::Bc(d, true)>();
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
}

}  // namespace stage04
