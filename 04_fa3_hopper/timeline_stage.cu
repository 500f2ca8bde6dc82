// Runs 04b, 04c and 04d with marks.
#include "04_fa3_hopper/timeline.h"

#include "04_fa3_hopper/b_specialised.cuh"
#include "04_fa3_hopper/c_ping_pong.cuh"
#include "04_fa3_hopper/d_overlap.cuh"
#include "04_fa3_hopper/operands.h"
#include "common/verify/run.h"

namespace stage04 {

void register_stage(ladder::Registry& registry);

namespace {

using attention::Problem;

ladder::Rung without_marks(const std::string& letter) {
    ladder::Registry registry;
    register_stage(registry);
    for (const ladder::Rung& rung : registry.rungs())
        if (rung.letter == letter && rung.pass == ladder::Pass::forward && letter >= "b" && letter <= "d") return rung;
    throw std::runtime_error("Marks are in 04b, 04c and 04d, not in 04" + letter + ".");
}

/// Launches 04b, 04c or 04d, whose grids and shared memory are alike.
void launch_with(const Recorder& marks, const std::string& letter, const Problem& problem, ladder::Operands& operands) {
    using T = gpu::bf16;
    constexpr int d = 128;
    const auto kernel = letter == "b"   ? b::forward<T, d, Recorder>
                        : letter == "c" ? c::forward<T, d, Recorder>
                                        : d::forward<T, d, Recorder>;
    launch<T>({"stage04 with marks", query_tile_ctas(problem, b::Br), b::threads, sizeof(b::Shared<T, d>)}, kernel,
              problem, operands, b::Bc(d), marks);
}

}  // namespace

std::vector<std::vector<Event>> record(const std::string& letter, const Problem& problem, int cta) {
    ladder::Rung rung = without_marks(letter);
    if (problem.type != attention::DataType::bf16 || problem.d != 128)
        throw std::runtime_error("Marks are in the kernels for bf16 and d = 128, and the problem is " +
                                 attention::describe(problem) + ".");
    const std::int64_t ctas = query_tile_ctas(problem, b::Br);
    if (cta < 0 || cta >= ctas)
        throw std::runtime_error("CTA " + std::to_string(cta) + " is none of the launch, whose CTAs are 0 to " +
                                 std::to_string(ctas - 1) + ".");

    constexpr int warpgroups = b::threads / gpu::warpgroup_size, marks_of_a_tile = 8;
    const int most = marks_of_a_tile * (attention::ceil_div(problem.Nk, b::Bc(problem.d)) + 1);
    std::vector<std::int64_t> numbers(std::size_t(warpgroups) * most);
    const gpu::Buffer buffer("marks", numbers.size() * sizeof(numbers[0]));
    const Recorder marks = {buffer.tensor<std::int64_t>(0, 0, most, most), cta};
    rung.launch = [&](const Problem& problem, ladder::Operands& operands) {
        launch_with(marks, letter, problem, operands);
    };
    const verify::Case the_case(problem);
    verify::Run run(rung, the_case);
    const verify::Result result = run.verify();
    if (!result.verified()) throw std::runtime_error(rung.title() + " with marks: " + result.reason());
    const int more = gpu::device().emulated ? 0 : 1000;  // until clock and caches are as in the middle of work
    for (int n = 0; n < more; ++n) run.launch();
    gpu::synchronize();

    buffer.read(numbers.data(), buffer.bytes());
    std::vector<std::vector<Event>> events(warpgroups);
    for (int w = 0; w < warpgroups; ++w)
        for (int n = 0; n < most && numbers[w * most + n] >= 0; ++n)  // the rest is poison, and negative
            events[w].push_back({Mark(numbers[w * most + n] % 16), numbers[w * most + n] / 16});
    return events;
}

}  // namespace stage04
