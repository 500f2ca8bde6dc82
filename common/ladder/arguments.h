// The command line of the ladder, and what other programs share of it.
#pragma once

#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "common/attention/problem.h"
#include "common/ladder/registry.h"
#include "common/ladder/tensors.h"

namespace CLI {
class App;
}

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

/// A whole number that an Integer holds; nullopt for anything else.
template <class Integer = int>
std::optional<Integer> whole_number(std::string_view text) {
    Integer value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

/// The value of which `name` gives what was given. Throws BadArgument, with the names there are.
template <class Values, class Name>
auto by_name(const std::string& option, const std::string& given, const Values& values, Name name) {
    std::string allowed;
    for (const auto& value : values) {
        if (given == name(value)) return value;
        allowed += (allowed.empty() ? "" : ", ") + std::string(name(value));
    }
    throw BadArgument(option + " " + given + ": choose among " + allowed + ".");
}

/// Sets the mask that "none", "causal" or "window:L,R" (L, R at least -1) names; false if it is none of these.
bool set_mask(attention::Problem& problem, std::string_view given);

/// Packs sequences of the lengths "5,0,17" (queries, and as many keys) or "5:7,0:3" (queries and keys apart): sets cu_q, cu_k, B,
/// Nq and Nk. Returns what is allowed where `given` is neither, which then leaves the problem half set; else nothing.
std::string set_lengths(attention::Problem& problem, const std::string& given);

/// Reads the arguments; false if help was asked for, which then went to `out`. Throws BadArgument.
bool parse(CLI::App& app, int argc, const char* const* argv, std::ostream& out);

/// The command as it was given, without where the results go (--json) and without the words `left_out`.
std::string command(const CLI::App& app, int argc, const char* const* argv,
                    std::initializer_list<std::string_view> left_out = {});

}  // namespace ladder
