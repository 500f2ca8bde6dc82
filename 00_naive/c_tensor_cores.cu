// Registers 00c.
#include "00_naive/c_tensor_cores.cuh"

#include "00_naive/stage.h"

namespace stage00 {
namespace {

using attention::ceil_div;
using attention::Mask;
using attention::Problem;
using attention::Range;
using ladder::Operands;
using ladder::overlap;

std::optional<std::string> refuses(const Problem& problem) {
    if (auto reason = ladder::refuses_on_tensor_cores(problem)) return reason;
    return ladder::refuses_dropout(problem);
}

/// S and P: (B, Hq, Nq, padded(Nk)).
std::vector<ladder::Workspace> workspaces(const Problem& problem) {
    const std::size_t bytes = ladder::numbered_queries(problem) * padded(problem.Nk) * 2;
    return {{"S", bytes}, {"P", bytes}};
}

void launch(const Problem& problem, Operands& operands) {
    ladder::with_16_bit_type_and_d(problem.type, problem.d, [&]<class T, int d>() {
        const auto kernel_problem = ladder::kernel_problem(problem, operands);
        const auto S = ladder::query_matrix<T>(problem, operands.workspaces[0], padded(problem.Nk));
        const auto P = ladder::query_matrix<T>(problem, operands.workspaces[1], padded(problem.Nk));
        const std::int64_t rows = ladder::numbered_queries(problem);
        const std::int64_t q_tiles = std::int64_t(problem.B) * problem.Hq * ceil_div(problem.Nq, c::Br);

        gpu::launch(
            {"stage00::c::scores", q_tiles * ceil_div(problem.Nk, c::Bc), c::threads, sizeof(c::SharedScores<T, d>)},
            c::scores<T, d>, kernel_problem, operands.Q.as<const T>(), operands.K.as<const T>(), S);
        const auto softmax = [&]<int held>() {
            gpu::launch(
                {"stage00::c::softmax", ceil_div(rows, c::warps), c::threads, sizeof(c::SharedSoftmax<T, held>)},
                c::softmax<T, held>, kernel_problem, gpu::read_only(S), P, operands.L.as<float>());
        };
        if (c::held(problem.Nk) == 4096) softmax.template operator()<4096>();
        else softmax.template operator()<16384>();
        gpu::launch({"stage00::c::output", q_tiles, c::threads, sizeof(c::SharedOutput<T, d>)}, c::output<T, d>,
                    kernel_problem, gpu::read_only(P), operands.V.as<const T>(), operands.O.as<T>());
    });
}

/// What the kernels move for one head of every sequence, in rows and elements, counted from the mask alone.
struct Counts {
    std::uint64_t Q_rows = 0, K_rows = 0, S_written = 0;  // by `scores`
    std::uint64_t weights = 0;                            // read from S and written to P by `softmax`, read by `output`
    std::uint64_t S_fetches = 0;                          // elements of S read, long rows three times
    std::uint64_t V_rows = 0;                             // by `output`
};
Counts count(const Problem& problem) {
    Counts sum;
    for (int b = 0; b < problem.B; ++b) {
        const Mask mask = attention::mask_of(problem, b);
        const int columns = padded(mask.Nk);
        for (int i0 = 0; i0 < mask.Nq; i0 += c::Br) {
            const std::uint64_t rows = overlap({0, mask.Nq}, {i0, i0 + c::Br});
            const Range blocks = mask.key_tiles(i0, c::Br, c::Bc);
            for (int j0 = blocks.begin * c::Bc; j0 < blocks.end * c::Bc; j0 += c::Bc) {
                sum.Q_rows += overlap(mask.seeing_queries(), {i0, i0 + c::Br});
                sum.K_rows += overlap(mask.seen_keys(), {j0, j0 + c::Bc});
                sum.S_written += rows * overlap({0, columns}, {j0, j0 + c::Bc});
            }
            const Range tiles = mask.key_tiles(i0, c::Br, c::step);
            const Range keys = {tiles.begin * c::step, tiles.end * c::step};
            const std::uint64_t of_row = overlap({0, columns}, keys);
            sum.weights += rows * of_row;
            sum.S_fetches += rows * of_row * (of_row > std::uint64_t(c::held(problem.Nk)) ? 3 : 1);
            sum.V_rows += overlap(mask.seen_keys(), keys);
        }
    }
    return sum;
}

double exponentials(const Problem& problem) { return 2.0 * problem.Hq * count(problem).weights; }

std::vector<gpu::Traffic> traffic(const Problem& problem) {
    const Counts counts = count(problem);
    const std::uint64_t Hq = problem.Hq, row = 2 * problem.d, queries = ladder::total_queries(problem);
    return {{"Q", Hq * counts.Q_rows * row, 0},
            {"K", Hq * counts.K_rows * row, 0},
            {"V", Hq * counts.V_rows * row, 0},
            {"O", 0, queries * row},
            {"L", 0, queries * 4},
            {"S", Hq * counts.S_fetches * 2, Hq * counts.S_written * 2},
            {"P", Hq * counts.weights * 2, Hq * counts.weights * 2}};
}

}  // namespace

void register_tensor_cores(ladder::Registry& registry) {
    registry.add({.stage = "00",
                  .letter = "c",
                  .name = "tensor_cores",
                  .pass = ladder::Pass::forward,
                  .stores = ladder::Stores::scores,
                  .fast = true,
                  .whole_tiles = true,
                  .row_alignment = 16,
                  .kernel_pattern = "stage00::c::",
                  .refuses = refuses,
                  .workspaces = workspaces,
                  .launch = launch,
                  .exponentials = exponentials,
                  .traffic = traffic});
}

}  // namespace stage00
