// What a run of the ladder found out, and how it is shown: the table for people, JSON for programs.
#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/attention/problem.h"
#include "common/ladder/registry.h"
#include "common/verify/metrics.h"

namespace ladder {

enum class Status { verified, wrong, skipped };
const char* name(Status status);

/// counted: by the emulator. modelled: the rung's own formulas.
enum class Source { counted, modelled };
const char* name(Source source);

/// One rung on the problem. What is not known is nullopt.
struct Row {
    std::string stage, letter, name;
    Pass pass = Pass::forward;
    Status status = Status::skipped;
    std::string reason;                 // why it was skipped or what is wrong
    std::vector<verify::Check> checks;  // one for each output
    std::optional<std::vector<gpu::Traffic>> bytes;
    std::optional<double> flops;                      // of the products over visible pairs
    std::optional<double> exponentials, polynomials;  // by special-function units, by multiplications and additions
    std::optional<double> time_ms;
    std::optional<double> tflops;
    std::optional<double> ceiling_fraction;
};

struct Report {
    std::string machine;  // "emulated", or the GPU's name
    bool emulated = true;
    int clock_mhz = 0;  // highest clock of the GPU
    std::string build, commit, command;
    attention::Problem problem;
    std::string input = "normal";  // the law of the inputs, or the folder that they came from
    std::uint64_t seed = 1;
    int repetitions = 0;                    // of a timed rung; 0: nothing was timed
    std::optional<double> mma_sync_tflops;  // what the tensor cores reached with mma.sync in this run
    std::vector<Row> rows;

    /// Where bytes and exponentials come from. Models know requested bytes only: distinct ones are then unknown.
    Source source() const { return emulated ? Source::counted : Source::modelled; }
};

/// The program's exit status: 0 all that ran is verified, 1 something is wrong, 3 nothing is verified.
int exit_status(const Report& report);

/// The table, at most 160 columns wide, and under it what its figures mean.
void print_table(const Report& report, std::ostream& out);

/// Sizes, types, mask and the law of the inputs; "text" as attention::describe has it.
nlohmann::json to_json(const attention::Problem& problem, const std::string& input);
/// {stage, rung, name, pass, status, ...}.
nlohmann::json to_json(const Row& row, Source source);
/// {schema: 1, machine, build, commit, seed, problem, rows}; what is not known is null.
nlohmann::json to_json(const Report& report);

}  // namespace ladder
