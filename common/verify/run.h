// One rung on one problem, judged: the entry point of every stage's tests, of the ladder and of the benchmarks.
//
// Every operand lies in poisoned memory between guard zones. A run is right if the launch broke no rule, every output
// element was written, nothing else was touched (guard zones, gaps between rows, inputs), and the values pass the
// checks of common/verify/metrics.h. A backward is fed O and L of a perfect forward, so that it is judged alone.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "common/attention/problem.h"
#include "common/ladder/registry.h"
#include "common/verify/metrics.h"

namespace verify {

/// How operands lie in memory. Gaps between rows are NaN and must stay as they are.
enum class Layout {
    dense,       // (B, H, N, d) or packed (total, H, d), C order
    strided,     // (B, N, H, d) with 16 bytes of gap after each row, and one row before the first
    reversed,    // like strided, with the rows from the last to the first: negative batch and row strides
    shared_kv,   // dense; all key/value heads of K, and of V, are one: their head stride is 0
    misaligned,  // dense, one element after an aligned address
    odd_rows,    // dense with one element of gap after each row
};
const char* name(Layout layout);

struct Setup {
    attention::InputLaw law = attention::InputLaw::normal;
    std::uint64_t seed = 1;
    Layout layout = Layout::dense;
    std::string only = {};  // the one operand that lies so ("K"), all others being dense; empty: all of them

    Layout layout_of(const std::string& operand) const {
        return only.empty() || only == operand ? layout : Layout::dense;
    }
};

/// A problem with its inputs, shared by the rungs that are run on it. A paged problem without a page table gets one with the pages
/// in random order; slots of the pool that hold no key are NaN.
class Case {
  public:
    /// Throws attention::InvalidProblem, for a page number outside of the pool too.
    explicit Case(attention::Problem problem, Setup setup = {});
    /// With inputs of one's own, of the problem's shapes and representable in its type; setup.law and seed are ignored.
    Case(attention::Problem problem, attention::Inputs inputs, Setup setup = {});

    const attention::Problem& problem() const { return problem_; }
    const Setup& setup() const { return setup_; }
    const attention::Inputs& inputs() const { return inputs_; }
    /// O and L of a perfect forward, rounded to their storage types; computed when first asked for, in seconds. Beyond
    /// 1e11 multiply-adds of S only the rows that matter to what is compared; the others have O = 0 and an L so large
    /// that they add nothing to any gradient.
    const attention::HostTensor& O() const;
    const attention::HostTensor& L() const;

  private:
    void compute_forward() const;

    attention::Problem problem_;
    Setup setup_;
    attention::Inputs inputs_;
    mutable std::optional<attention::HostTensor> O_, L_;
};

struct Result {
    std::optional<std::string> refused;  // why the rung does not do this problem, or cannot run here
    std::optional<std::string> fault;    // the rule that was broken: then nothing was compared
    std::vector<Check> checks;
    std::optional<gpu::Counters> counters;

    bool verified() const;
    /// Why it is not verified, in one sentence; empty if it is.
    std::string reason() const;
};

/// Device memory for the rung's operands and workspaces, in bytes; a double, since sizes on the command line may be
/// absurd.
double device_bytes(const ladder::Rung& rung, const attention::Problem& problem, Layout layout = Layout::dense);

/// Whether there is too little memory for device_bytes and, on the emulator, whose device memory is the host's, for the
/// operands on the host too: then the bytes needed and present, in words that follow "it". Likewise for more heads than are
/// launched and judged within minutes, B Hq up to 2^18 on the emulator and 2^24 on a GPU. Else nullopt.
std::optional<std::string> too_large(const ladder::Rung& rung, const attention::Problem& problem,
                                     const gpu::Device& device);

/// A rung with its operands on the device. `rung` and `the_case` outlive it.
class Run {
  public:
    Run(const ladder::Rung& rung, const Case& the_case);
    ~Run();
    /// Allocates, launches, synchronises, judges. A refusal or an error of the GPU is part of the result, not thrown.
    Result verify();
    /// Enqueues the rung once more on the same operands, after verify() has passed: for timing.
    void launch();
    /// After verify(), unless it refused: an operand of the pass as it is in device memory now ("O", "L", "dQ", ...).
    attention::HostTensor output(const std::string& name) const;

  private:
    struct Placed;  // an operand in device memory
    void allocate();
    std::optional<std::string> broken_rule() const;
    std::vector<Check> compare() const;

    const ladder::Rung& rung_;
    const Case& case_;
    ladder::Operands operands_;
    std::deque<Placed> placed_;
    std::deque<gpu::Buffer> numbers_;  // cumulative lengths, the page table
};

/// Runs `rung` once and says what is wrong, naming stage, rung, pass, problem, layout and element; empty if it is
/// verified. A refusal is a failure here: ask rung.refuses first where one is expected.
std::string failure(const ladder::Rung& rung, const Case& the_case);
std::string failure(const ladder::Rung& rung, const attention::Problem& problem, const Setup& setup = {});

}  // namespace verify
