// Registers the backward rungs of stage 04: how they are launched, and what they cost in closed form.
#include "04_fa3_hopper/backward_stage.h"

#include "04_fa3_hopper/backward_a.cuh"
#include "04_fa3_hopper/backward_b.cuh"
#include "04_fa3_hopper/backward_c.cuh"
#include "04_fa3_hopper/operands.h"

namespace stage04 {
namespace {

using attention::Problem;
using gpu::Traffic;
using ladder::heads_of_section;
using ladder::key_tile_ctas;
using ladder::Operands;
using ladder::scratch_tiles;
using ladder::tile_scratch;

std::optional<std::string> refuses_backward(const Problem& problem) {
    if (const auto reason = ladder::refuses_on_tensor_cores(problem)) return reason;
    return ladder::refuses_dropout(problem);
}

std::optional<std::string> refuses_c(const Problem& problem) {
    if (problem.d != c_backward::d) return "takes d = 256, not " + std::to_string(problem.d);
    return refuses(problem);
}

static_assert(a_backward::Br(c_backward::d) == c_backward::Br);

/// Keys of a tile; d = 256 is 04c's alone.
int Bc(const Problem& problem) { return problem.d == c_backward::d ? c_backward::Bc : a_backward::Bc; }

std::vector<ladder::Workspace> workspaces(const Problem& problem) {
    const int Br = a_backward::Br(problem.d);
    const std::size_t column = problem.Hq * scratch_tiles(problem, Br) * Br * sizeof(float);
    return {{"L_log2", column}, {"D", column}, {"dQ_sum", column * problem.d}};
}

/// Whose turn it is to add to each half of a tile of dQ.
std::vector<ladder::Workspace> workspaces_b(const Problem& problem) {
    std::vector<ladder::Workspace> all = workspaces(problem);
    const std::int64_t tiles = scratch_tiles(problem, a_backward::Br(problem.d));
    all.push_back({"turns", problem.Hq * tiles * b_backward::consumers * sizeof(int)});
    return all;
}

/// What the rungs' three kernels have in common; `more`: arguments that one rung adds.
template <class T, int Br, int Bc>
struct Launch {
    const Problem& problem;
    Operands& operands;
    const gpu::LaunchShape backward_shape;
    const ladder::TensorMaps maps{problem};
    const attention::KernelProblem kernel_problem = ladder::kernel_problem(problem, operands);
    const gpu::Tensor<float> L_log2 = tile_scratch(problem, operands.workspaces[0], Br, Br);
    const gpu::Tensor<float> D = tile_scratch(problem, operands.workspaces[1], Br, Br);
    const gpu::Tensor<float> dQ_sum = tile_scratch(problem, operands.workspaces[2], Br, Br* problem.d);
    const std::int64_t query_tiles = query_tile_ctas(problem, Br);

    void prepare(const char* name, auto kernel, const auto&... more) const {
        gpu::check_launch(backward_shape);  // refused before the first kernel runs
        gpu::launch({name, query_tiles, threads_of_tile, 0}, kernel, kernel_problem, operands.O.template as<const T>(),
                    operands.dO.template as<const T>(), operands.L.template as<const float>(), L_log2, D, dQ_sum,
                    more...);
    }
    void backward(auto kernel, const auto&... more) const {
        gpu::launch(backward_shape, kernel, kernel_problem, maps.queries<T>("Q", operands.Q, Br),
                    maps.keys<T>("K", operands.K, Bc), maps.keys<T>("V", operands.V, Bc),
                    maps.queries<T>("dO", operands.dO, Br), gpu::read_only(L_log2), gpu::read_only(D), dQ_sum,
                    operands.dK.template as<T>(), operands.dV.template as<T>(), more...);
    }
    void finish(const char* name, auto kernel) const {
        gpu::launch({name, query_tiles, threads_of_tile, 0}, kernel, kernel_problem, gpu::read_only(dQ_sum),
                    operands.dQ.template as<T>());
    }
};

void launch_a(const Problem& problem, Operands& operands) {
    namespace a = a_backward;
    ladder::with_16_bit_type_and_d(problem.type, problem.d, [&]<class T, int d>() {
        const Launch<T, a::Br(d), a::Bc> launch{
            problem,
            operands,
            {"stage04::a_backward::backward", key_tile_ctas(problem, a::Bc), a::threads, sizeof(a::Shared<T, d>)}};
        launch.prepare("stage04::a_backward::prepare", a::prepare<T, d>);
        launch.backward(a::backward<T, d>, heads_of_section(problem, a::Bc));
        launch.finish("stage04::a_backward::finish", a::finish<T, d>);
    });
}

void launch_b(const Problem& problem, Operands& operands) {
    namespace b = b_backward;
    ladder::with_16_bit_type_and_d(problem.type, problem.d, [&]<class T, int d>() {
        const std::int64_t head = scratch_tiles(problem, b::Br(d)) * b::consumers;
        const auto turns = operands.workspaces[3].tensor<int>(0, head, b::consumers, b::consumers);
        const Launch<T, b::Br(d), b::Bc> launch{
            problem,
            operands,
            {"stage04::b_backward::backward", key_tile_ctas(problem, b::Bc), b::threads, sizeof(b::Shared<T, d>)}};
        launch.prepare("stage04::b_backward::prepare", b::prepare<T, d>, turns);
        launch.backward(b::backward<T, d>, turns);
        launch.finish("stage04::b_backward::finish", b::finish<T, d>);
    });
}

void launch_c(const Problem& problem, Operands& operands) {
    namespace c = c_backward;
    const auto launch_with = [&]<class T>() {
        const Launch<T, c::Br, c::Bc> launch{
            problem,
            operands,
            {"stage04::c_backward::backward", key_tile_ctas(problem, c::Bc), c::threads, sizeof(c::Shared<T>)}};
        launch.prepare("stage04::c_backward::prepare", c::prepare<T>);
        launch.backward(c::backward<T>, heads_of_section(problem, c::Bc));
        launch.finish("stage04::c_backward::finish", c::finish<T>);
    };
    if (problem.type == attention::DataType::fp16) return launch_with.template operator()<gpu::fp16>();
    return launch_with.template operator()<gpu::bf16>();
}

ladder::TileCounts count_tiles(const Problem& problem) {
    return ladder::count_tiles(problem, a_backward::Br(problem.d), Bc(problem));
}

double exponentials(const Problem& problem) {
    return double(problem.Hq) * count_tiles(problem).tiles * a_backward::Br(problem.d) * Bc(problem);
}

/// Copies of packed operands bring rows of the next sequence along, which has no simple form.
std::vector<Traffic> traffic(const Problem& problem) {
    if (problem.packed()) return {};
    const ladder::TileCounts counts = count_tiles(problem);
    const int Br = a_backward::Br(problem.d);
    const std::uint64_t Hq = problem.Hq, Hkv = problem.Hkv, row = attention::bytes(problem.type) * problem.d;
    const std::uint64_t queries = ladder::total_queries(problem), keys = ladder::total_keys(problem);
    const std::uint64_t seeing = Hq * counts.seeing.once, column = 4 * Br, visits = Hq * counts.tiles;
    const std::uint64_t tiles = Hq * problem.B * attention::ceil_div(problem.Nq, Br);
    return {{"Q", Hq * counts.queries.visits * row, 0},
            {"K", Hkv * counts.keys.once * row, 0},
            {"V", Hkv * counts.keys.once * row, 0},
            {"O", seeing * row, 0},
            {"dO", (seeing + Hq * counts.queries.visits) * row, 0},
            {"L", seeing * 4, 0},
            {"L_log2", visits * column, tiles * column},
            {"D", visits * column, tiles * column},
            {"dQ", 0, queries * row},
            {"dK", 0, keys * row},
            {"dV", 0, keys * row},
            {"dQ_sum", tiles * column * problem.d, (tiles + visits) * column * problem.d}};
}

/// A turn of each half for each visit, and none before the first.
std::vector<Traffic> traffic_b(const Problem& problem) {
    std::vector<Traffic> all = traffic(problem);
    if (all.empty()) return all;
    const std::uint64_t tiles = problem.B * attention::ceil_div(problem.Nq, a_backward::Br(problem.d));
    all.push_back({"turns", 0, problem.Hq * (tiles + count_tiles(problem).tiles) * b_backward::consumers * 4});
    return all;
}

}  // namespace

void register_backward(ladder::Registry& registry) {
    registry.add({.stage = "04",
                  .letter = "a",
                  .name = "bulk_add",
                  .pass = ladder::Pass::backward,
                  .fast = true,
                  .deterministic = false,
                  .whole_tiles = true,
                  .row_alignment = 16,
                  .tensor_maps = true,
                  .kernel_pattern = "stage04::a_backward::",
                  .refuses = refuses_backward,
                  .workspaces = workspaces,
                  .launch = launch_a,
                  .exponentials = exponentials,
                  .traffic = traffic});
    registry.add({.stage = "04",
                  .letter = "b",
                  .name = "in_turn",
                  .pass = ladder::Pass::backward,
                  .fast = true,
                  .whole_tiles = true,
                  .row_alignment = 16,
                  .tensor_maps = true,
                  .kernel_pattern = "stage04::b_backward::",
                  .refuses = refuses_backward,
                  .workspaces = workspaces_b,
                  .launch = launch_b,
                  .exponentials = exponentials,
                  .traffic = traffic_b});
    registry.add({.stage = "04",
                  .letter = "c",
                  .name = "split_columns",
                  .pass = ladder::Pass::backward,
                  .fast = true,
                  .deterministic = false,
                  .whole_tiles = true,
                  .row_alignment = 16,
                  .tensor_maps = true,
                  .kernel_pattern = "stage04::c_backward::",
                  .refuses = refuses_c,
                  .workspaces = workspaces,
                  .launch = launch_c,
                  .exponentials = exponentials,
                  .traffic = traffic});
}

}  // namespace stage04
