// How a launch is timed, and what may be said of a few times.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/attention/problem.h"
#include "common/gpu/launch.h"
#include "common/ladder/registry.h"
#include "common/profile/ceiling.h"

namespace profile {

/// warm: launches follow each other on the same operands, of which L2 keeps what fits. cold: a buffer larger than any L2
/// is written before each launch, so that every operand comes from memory.
enum class L2 { warm, cold };
constexpr const char* name(L2 l2) { return l2 == L2::warm ? "warm" : "cold"; }

/// Times launches by device events.
class Stopwatch {
  public:
    explicit Stopwatch(L2 l2 = L2::warm);
    /// Launches for about 30 ms until code is loaded and the clock has settled; returns how many launches take about 20
    /// ms (1 to 1000), what one sample should be made of. Throws gpu::Error if a launch fails.
    int warm_up(const std::function<void()>& launch);
    /// One sample: mean seconds of `launches` launches, after one that is not counted (with L2 warm it fills it), unless a
    /// single one is as long as a sample.
    double seconds(const std::function<void()>& launch, int launches);

  private:
    L2 l2_;
    gpu::Timer timer_;
    std::optional<gpu::Buffer> flush_;  // of L2::cold
};

/// Median of nine samples, after warm-up, in seconds.
double median_seconds(const std::function<void()>& launch);

/// The middle value, or the mean of the two in the middle. Not empty.
double median(std::vector<double> values);

/// A lower bound of the median of what the samples are drawn from, whatever their distribution: the largest order
/// statistic that lies below it with at least 95 % confidence (with 9 samples the second smallest: 98 %). nullopt for
/// fewer than 5 samples, which cannot give that confidence.
std::optional<double> lower_bound_of_median(std::vector<double> values);

/// Why these inputs say nothing on speed, in words that follow "the input"; nullopt if Q, K and V look drawn at random.
/// Constant operands, zeros above all, draw less power, and a GPU runs faster on them than it does on data.
std::optional<std::string> not_random(const attention::Inputs& inputs);

/// Bytes that any implementation of the pass moves: every operand that matters read once, every result written once.
double least_bytes(const attention::Problem& problem, ladder::Pass pass);

/// The least time that the machine's ceilings allow, and the ceiling that sets it.
struct Roof {
    double seconds;
    std::string ceiling;  // by name
};

/// FLOPs over the fastest matrix unit for the type, least_bytes over the copy, visible pairs over exponentials: the
/// largest of the three. nullopt for fp32, which has no matrix unit here, or without ceilings.
std::optional<Roof> roof(const attention::Problem& problem, ladder::Pass pass, const std::vector<Ceiling>& ceilings);

/// Whether a time is impossible under that roof, so that the time or the count must be wrong. 5 % are left to the ceiling's
/// own noise; a warm L2 may beat the copy.
bool beats(double seconds, const Roof& roof);

}  // namespace profile
