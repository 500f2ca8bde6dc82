#include "common/profile/measure.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace profile {
namespace {

constexpr double sample_seconds = 0.02, warm_up_seconds = 0.03;
constexpr int most_launches = 1000;
constexpr std::size_t flush_bytes = std::size_t{256} << 20;  // L2 is 40 MB on an A100, 50 on an H100, 126 on a B200

// Launches that take about `seconds`.
int launches_in(double seconds, double one) {
    return static_cast<int>(std::clamp(std::round(seconds / std::max(one, 1e-9)), 1.0, double(most_launches)));
}

}  // namespace

Stopwatch::Stopwatch(L2 l2) : l2_(l2) {
    if (l2 == L2::cold) flush_.emplace("flush of L2", flush_bytes);
}

int Stopwatch::warm_up(const std::function<void()>& launch) {
    launch();  // loads the code
    const double first = seconds(launch, 1);
    if (first >= warm_up_seconds) return 1;
    return launches_in(sample_seconds, seconds(launch, launches_in(warm_up_seconds, first)));
}

double Stopwatch::seconds(const std::function<void()>& launch, int launches) {
    if (launches > 1) launch();
    double milliseconds = 0.0;
    const auto stop = [&] {
        const std::optional<double> time = timer_.stop();
        if (!time) throw gpu::Error("The emulator has no clock: times are measured on a GPU.");
        milliseconds += *time;
    };
    if (l2_ == L2::warm) {
        timer_.start();
        for (int n = 0; n < launches; ++n) launch();
        stop();
    } else {
        for (int n = 0; n < launches; ++n) {
            flush_->poison();  // enqueued like a kernel; takes longer than the host needs for the launch
            timer_.start();
            launch();
            stop();
        }
    }
    return milliseconds * 1e-3 / launches;
}

double median_seconds(const std::function<void()>& launch) {
    Stopwatch stopwatch;
    const int launches = stopwatch.warm_up(launch);
    std::vector<double> samples;
    for (int n = 0; n < 9; ++n) samples.push_back(stopwatch.seconds(launch, launches));
    return median(std::move(samples));
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::optional<double> lower_bound_of_median(std::vector<double> values) {
    // Each value lies below the median with probability 1/2, so the k-th smallest (from 0) lies above it exactly if at
    // most k values lie below: with the probability that a binomial (n, 1/2) is at most k.
    std::sort(values.begin(), values.end());
    const int n = static_cast<int>(values.size());
    std::optional<double> bound;
    double term = std::ldexp(1.0, -n), above = 0.0;
    for (int k = 0; k < n; ++k) {
        above += term;
        if (above > 0.05) break;
        bound = values[k];
        term *= double(n - k) / (k + 1);
    }
    return bound;
}

std::optional<std::string> not_random(const attention::Inputs& inputs) {
    for (const auto& [tensor, operand] : {std::pair{"Q", &inputs.Q}, {"K", &inputs.K}, {"V", &inputs.V}}) {
        const std::vector<float>& values = operand->values;
        const std::size_t step = std::max<std::size_t>(1, values.size() / 4096);
        std::map<float, std::size_t> counts;
        std::size_t seen = 0, most = 0;
        for (std::size_t n = 0; n < values.size(); n += step, ++seen) most = std::max(most, ++counts[values[n]]);
        if (seen >= 64 && most > seen / 8) {
            return std::string("has the same value in much of ") + tensor +
                   ", and a GPU runs faster on such operands than on data; measure on random ones";
        }
    }
    return std::nullopt;
}

double least_bytes(const attention::Problem& problem, ladder::Pass pass) {
    const bool backward = pass == ladder::Pass::backward;
    const double row = double(attention::bytes(problem.type)) * problem.d;
    double bytes = 0.0;
    for (int b = 0; b < problem.B; ++b) {
        const attention::Range queries = attention::mask_of(problem, b).seeing_queries();
        const attention::Range keys = attention::mask_of(problem, b).seen_keys();
        const double seeing = queries.empty() ? 0 : queries.end - queries.begin;
        const double seen = keys.empty() ? 0 : keys.end - keys.begin;
        // Forward reads Q, writes O and L; backward reads Q, O, dO and L, writes dQ. Results are written for all rows.
        bytes += problem.Hq * (backward ? seeing * (3 * row + 4) + problem.queries(b) * row
                                        : seeing * row + problem.queries(b) * (row + 4));
        bytes += problem.Hkv * (2 * seen * row + (backward ? 2 * problem.keys(b) * row : 0.0));
    }
    return bytes;
}

std::optional<Roof> roof(const attention::Problem& problem, ladder::Pass pass, const std::vector<Ceiling>& ceilings) {
    if (problem.type == attention::DataType::fp32) return std::nullopt;
    const double flops =
        pass == ladder::Pass::backward ? attention::backward_flops(problem) : attention::forward_flops(problem);
    std::optional<Roof> highest;
    // The fastest unit of each kind, then the slowest kind.
    const auto limit = [&](double work, std::initializer_list<const char*> units) {
        const Ceiling* fastest = nullptr;
        for (const char* unit : units) {
            const Ceiling* ceiling = find(ceilings, unit);
            if (ceiling && (!fastest || ceiling->per_second > fastest->per_second)) fastest = ceiling;
        }
        if (!fastest) return;
        const double seconds = work / fastest->per_second;
        if (!highest || seconds > highest->seconds) highest = Roof{seconds, fastest->name};
    };
    limit(flops, {"mma.sync bf16", "wgmma bf16", "tcgen05 bf16"});
    limit(least_bytes(problem, pass), {"copy"});
    limit(attention::visible_pairs(problem), {"ex2 MUFU", "ex2 polynomial", "ex2 mixed"});
    return highest;
}

bool beats(double seconds, const Roof& roof) { return roof.ceiling != "copy" && 1.05 * seconds < roof.seconds; }

}  // namespace profile
