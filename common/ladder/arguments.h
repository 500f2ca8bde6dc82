// The command line of the ladder.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/attention/problem.h"
#include "common/ladder/registry.h"
#include "common/ladder/tensors.h"

namespace ladder {

/// An argument that cannot be followed. what() names it, what was given and what is allowed.
struct BadArgument : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Arguments {
    std::string command;  // as it was given, without where the results go
    bool list = false;
    bool markdown = false;  // of list
    bool explain = false;
    bool examples = false;  // of explain: the notes' two, since no problem was given
    int block = 2;          // of explain: keys
    bool time = true;
    std::vector<std::string> stages, rungs;  // empty: all
    std::vector<Pass> passes;                // empty: all
    attention::Problem problem;
    attention::InputLaw law = attention::InputLaw::normal;
    std::uint64_t seed = 1;
    std::string schedule;            // empty: the emulator's default
    std::string json;                // empty: none
    std::optional<Tensors> tensors;  // inputs from files; then law and seed do not matter
};

/// nullopt if help was asked for, which then went to `out`. `emulated` chooses the default problem: one that takes
/// seconds in software, or one that keeps a GPU busy. Throws BadArgument; the problem has been validated.
std::optional<Arguments> parse_arguments(int argc, const char* const* argv, bool emulated, std::ostream& out);

/// "normal", "outliers", "equal" or "rising".
const char* name(attention::InputLaw law);
/// The mask as --mask takes it: "none", "causal" or "window:L,R".
std::string mask_name(const attention::Problem& problem);

}  // namespace ladder
