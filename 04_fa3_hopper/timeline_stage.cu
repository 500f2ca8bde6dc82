// Runs 04b, 04c and 04d with marks.
#include "04_fa3_hopper/timeline.h"

#include "04_fa3_hopper/launches.h"
#include "common/verify/run.h"

namespace stage04 {

void register_stage(ladder::Registry& registry);

namespace {

using attention::Problem;
using gpu::bf16;

/// The rung without marks.
ladder::Rung plain(const std::string& letter) {
    ladder::Registry registry;
    register_stage(registry);
    for (const ladder::Rung& rung : registry.rungs())
        if (rung.letter == letter && letter != "a" && rung.pass == ladder::Pass::forward) return rung;
    throw std::runtime_error("Marks are in the rungs b, c and d, not in \"" + letter + "\".");
}

}  // namespace

std::vector<std::vector<Event>> record(const std::string& letter, const Problem& problem, int cta) {
    ladder::Rung rung = plain(letter);
    if (problem.type != attention::DataType::bf16 || problem.d != 128)
        throw std::runtime_error("Marks are in the kernels for bf16 and d = 128; the problem is " +
                                 attention::describe(problem) + ".");
    const std::int64_t tiles = query_tile_ctas(problem, b::Br), ctas = letter == "d" ? persistent_ctas(problem) : tiles;
    if (cta < 0 || cta >= ctas)
        throw std::runtime_error("CTA " + std::to_string(cta) + " is none of the launch, whose CTAs are 0 ... " +
                                 std::to_string(ctas - 1) + ".");

    // Of a key tile a warpgroup makes eight marks at most.
    const std::int64_t key_tiles = attention::ceil_div(problem.Nk, b::Bc(problem.d)) + 1,
                       most = 8 * key_tiles * attention::ceil_div(tiles, ctas);
    constexpr int warpgroups = b::threads / gpu::warpgroup_size;
    std::vector<std::int64_t> numbers(std::size_t(warpgroups * most));
    gpu::Buffer buffer("events", numbers.size() * sizeof(numbers[0]));
    rung.launch = [&](const Problem& problem, ladder::Operands& operands) {
        const Recorder marks = {buffer.tensor<std::int64_t>(0, 0, most, int(most)), cta};
        if (letter == "b") return launch_b<bf16, 128>(problem, operands, marks);
        if (letter == "c") return launch_c<bf16, 128>(problem, operands, marks);
        return launch_d<bf16, 128>(problem, operands, marks);
    };
    const verify::Case the_case(problem);
    verify::Run run(rung, the_case);
    const verify::Result result = run.verify();
    if (!result.verified()) throw std::runtime_error(rung.title() + ": " + result.reason());
    if (!gpu::device().emulated)
        for (int n = 0; n < 100; ++n) run.launch();  // until clock and caches are as they are in the middle of work
    gpu::synchronize();

    buffer.read(numbers.data(), buffer.bytes());
    std::vector<std::vector<Event>> events(warpgroups);
    for (int w = 0; w < warpgroups; ++w)
        for (std::int64_t n = 0; n < most && numbers[w * most + n] >= 0; ++n) {  // the rest is poison: negative
            const std::int64_t number = numbers[w * most + n];
            events[w].push_back({Mark(number % 16), number / 16});
        }
    return events;
}

}  // namespace stage04
