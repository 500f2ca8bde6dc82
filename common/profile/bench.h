// What a stage's bench.cc consists of:
//
//   int main(int argc, char** argv) { return profile::bench(stage02::register_stage, argc, argv); }
//
// Every rung is verified on each shape it is measured on, and measured only if it passed. Google Benchmark repeats it;
// the time is the GPU's, from gpu::Timer. On the emulator there is no time to measure: rungs are then reported as
// skipped.
#pragma once

#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "common/ladder/registry.h"
#include "common/verify/run.h"

namespace profile {

/// Shapes that every stage is measured on: 16384 tokens, 2048 / d heads, bf16, with and without a causal mask.
inline std::vector<attention::Problem> standard_problems() {
    std::vector<attention::Problem> problems;
    for (int d : {64, 128}) {
        for (int N : {1024, 4096}) {
            for (int window_right : {-1, 0}) {
                attention::Problem problem;
                problem.B = 16384 / N;
                problem.Hq = problem.Hkv = 2048 / d;
                problem.Nq = problem.Nk = N;
                problem.d = d;
                problem.window_right = window_right;
                problem.scale = attention::default_scale(d);
                problems.push_back(problem);
            }
        }
    }
    return problems;
}

/// Verifies the rung, then measures it: one iteration is one launch.
inline void measure(benchmark::State& state, const ladder::Rung& rung, const attention::Problem& problem) {
    const verify::Case the_case(problem);
    verify::Run run(rung, the_case);
    const verify::Result result = run.verify();
    if (!result.verified()) return state.SkipWithError(result.reason().c_str());
    gpu::Timer timer;
    for (auto iteration : state) {
        timer.start();
        run.launch();
        state.SetIterationTime(*timer.stop() * 1e-3);
    }
    const double flops =
        rung.pass == ladder::Pass::backward ? attention::backward_flops(problem) : attention::forward_flops(problem);
    state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

/// The program: registers the stage's rungs on the standard problems and runs what the command line of Google Benchmark
/// asks for. Returns the exit status.
inline int bench(void (*register_stage)(ladder::Registry&), int argc, char** argv) {
    ladder::Registry registry;
    register_stage(registry);
    const bool emulated = gpu::device().emulated;
    for (const ladder::Rung& rung : registry.rungs()) {
        for (const attention::Problem& problem : standard_problems()) {
            const std::string name = rung.title() + '/' + ladder::name(rung.pass) + '/' + attention::describe(problem);
            benchmark::RegisterBenchmark(name.c_str(),
                                         [&rung, problem, emulated](benchmark::State& state) {
                                             if (emulated) return state.SkipWithError("emulated: there are no times");
                                             measure(state, rung, problem);
                                         })
                ->UseManualTime()
                ->Unit(benchmark::kMillisecond);
        }
    }
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
}

}  // namespace profile
