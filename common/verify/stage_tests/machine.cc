#include <gtest/gtest.h>

#include "common/gpu/emulator/options.h"
#include "common/verify/stage_tests/probe.h"
#include "common/verify/stage_tests/stage_tests.h"

namespace verify {
namespace {

using attention::DataType;
using attention::Problem;
using ladder::Rung;

bool emulated() { return gpu::device().emulated; }

// Problems on which counts and schedules are compared: each mask, a group, packed sequences, rows without keys.
std::vector<Problem> problems(const Rung& rung) {
    std::vector<Problem> list;
    const int d = smallest_d(rung);
    list.push_back(small_problem(65, 130, d, DataType::fp16));
    list.push_back(causal(small_problem(70, 140, d, DataType::bf16)));
    list.push_back(causal(small_problem(140, 70, d, DataType::fp16)));
    Problem window = small_problem(129, 129, d, DataType::fp16);
    window.window_left = 20;
    window.window_right = 3;
    window.Hq = 3;
    list.push_back(window);
    Problem packed = causal(small_problem(40, 129, d, DataType::fp16));
    packed.B = 3;
    packed.Hq = 2;
    packed.cu_q = {0, 0, 40, 41};
    packed.cu_k = {0, 129, 134, 140};
    list.push_back(packed);
    for (Problem& problem : list) problem.scale = attention::default_scale(d);
    if (takes(rung, small_problem(1, 1, 128, DataType::fp16)))
        list.push_back(small_problem(33, 129, 128, DataType::fp16));
    return list;
}

// B41: to the bit, forward and backward; where the order of additions is open, right each time.
void one_result_on_all_schedules(const Rung& rung) {
    if (!emulated()) GTEST_SKIP() << "A GPU chooses its own schedule.";
#if GPU_EMULATOR
    const emulator::Options before = emulator::options();
    std::vector<Problem> some = {causal(small_problem(65, 140, smallest_d(rung), DataType::fp16)),
                                 small_problem(40, 129, smallest_d(rung), DataType::bf16)};
    some[1].Hq = 2;
    for (const Problem& problem : some) {
        Probe probe(problem);
        probe.inputs = attention::make_inputs(problem, attention::InputLaw::normal, 1);
        emulator::set_options(before);
        const Outputs expected = probe.run(rung);
        for (const emulator::Options& options : emulator::standard_schedules()) {
            emulator::set_options(options);
            const Outputs outputs = rung.deterministic ? probe.run_unjudged(rung) : probe.run(rung);
            EXPECT_TRUE(!rung.deterministic || outputs == expected)
                << attention::describe(problem) << ", schedule " << emulator::name(options.schedule) << ", seed "
                << options.seed;
        }
    }
    emulator::set_options(before);
#endif
}

gpu::Counters count(const Rung& rung, const Problem& problem) {
    const Case the_case(problem);
    const Result result = Run(rung, the_case).verify();
    EXPECT_TRUE(result.verified()) << result.reason();
    return result.counters.value_or(gpu::Counters{});
}

void exponentials_as_stated(const Rung& rung) {
    if (!emulated()) GTEST_SKIP() << "A GPU counts no exponentials.";
    for (const Problem& problem : problems(rung)) {
        const gpu::Counters counted = count(rung, problem);
        EXPECT_EQ(counted.exponentials, rung.exponentials(problem)) << attention::describe(problem);
        EXPECT_EQ(counted.polynomials, rung.polynomials ? rung.polynomials(problem) : 0)
            << attention::describe(problem);
    }
}

// The bytes that lanes and engines ask for, tensor by tensor, and no other tensor is touched.
void traffic_as_stated(const Rung& rung) {
    if (!emulated()) GTEST_SKIP() << "A GPU counts no bytes by tensor.";
    for (const Problem& problem : problems(rung)) {
        const std::vector<gpu::Traffic> stated = rung.traffic(problem);
        if (stated.empty()) continue;
        for (const gpu::Traffic& counted : count(rung, problem).tensors) {
            gpu::Traffic expected;
            for (const gpu::Traffic& traffic : stated)
                if (traffic.tensor == counted.tensor) expected = traffic;
            EXPECT_EQ(counted.requested_read, expected.requested_read)
                << counted.tensor << " read, " << attention::describe(problem);
            EXPECT_EQ(counted.requested_written, expected.requested_written)
                << counted.tensor << " written, " << attention::describe(problem);
        }
    }
}

// B16: the last tile must not depend on what memory held before. A sum of two terms is the same in either order, of three it
// is not.
void ten_equal_calls(const Rung& rung) {
    for (int N : {65, 127, 129}) {
        const bool same_bits = rung.deterministic || N < 128;
        const Problem problem = small_problem(17, N, smallest_d(rung), DataType::fp16);
        Probe probe(problem);
        probe.inputs = attention::make_inputs(problem, attention::InputLaw::normal, 3);
        const Outputs first = probe.run(rung);
        for (int call = 1; call < 10; ++call) {
            const Outputs outputs = same_bits ? probe.run_unjudged(rung) : probe.run(rung);
            EXPECT_TRUE(!same_bits || outputs == first) << "N = " << N;
        }
    }
}

}  // namespace

std::vector<StageTest> machine_tests() {
    return {{"one_result_on_all_schedules", one_result_on_all_schedules},
            {"exponentials_as_stated", exponentials_as_stated},
            {"traffic_as_stated", traffic_as_stated, [](const Rung& rung) { return bool(rung.traffic); }},
            {"B16_ten_equal_calls", ten_equal_calls}};
}

}  // namespace verify
