#include "common/profile/bench.h"

#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>

#include "common/ladder/arguments.h"
#include "common/ladder/output_file.h"
#include "common/ladder/report.h"
#include "common/profile/context.h"
#include "common/profile/grid.h"
#include "common/profile/measure.h"
#include "common/verify/run.h"

namespace profile {
namespace {

using attention::Problem;
using ladder::BadArgument;
using ladder::Pass;
using nlohmann::json;

constexpr int least_repetitions = 9;  // below, the bound of the median is the smallest sample or there is none

struct Options {
    std::string command;
    std::vector<Problem> problems;
    std::vector<Pass> passes;
    std::regex filter;
    L2 l2 = L2::warm;
    attention::InputLaw law = attention::InputLaw::normal;
    int repetitions = least_repetitions;
    std::string json;
    bool list = false, list_problems = false, in_step = false;
};

/// One rung on one problem.
struct Entry {
    const ladder::Rung* rung;
    std::string name;  // "02b split_kv/forward/B=16 ..."
    ladder::Row row;
    std::optional<gpu::Counters> counters;
    std::unique_ptr<verify::Run> run;
    int launches = 1;  // of a sample
    std::vector<double> milliseconds;

    void fail(const std::string& reason) {
        row.status = ladder::Status::wrong;
        row.reason = reason;
    }
};

std::string name_of(const ladder::Rung& rung, const Problem& problem) {
    return rung.title() + '/' + ladder::name(rung.pass) + '/' + attention::describe(problem);
}

// ---- the command line ----

// The value with that name, or a refusal that names those there are.
template <class Value, class Name>
Value by_name(const std::string& option, const std::string& given, const std::vector<Value>& values, Name name) {
    std::string allowed;
    for (const Value& value : values) {
        if (given == name(value)) return value;
        allowed += (allowed.empty() ? "" : ", ") + std::string(name(value));
    }
    throw BadArgument(option + " " + given + ": choose among " + allowed + ".");
}

std::optional<Options> parse(int argc, const char* const* argv, bool emulated, std::ostream& out) {
    Options options;
    std::string grid_name = emulated ? "counts" : "compare", filter = ".", l2 = "warm", law = "normal";
    std::vector<std::string> problems, passes;
    CLI::App app(
        "Verifies every rung on each problem of a grid, then times it: samples by device events, round after round "
        "over "
        "all rungs, median and a lower bound of it. On the emulator it counts instead.",
        "bench");
    std::string about;
    for (const Grid& grid : grids()) about += "\n  " + grid.name + ": " + grid.about;
    app.footer("Grids:" + about +
               "\nExit status: 0 all right, 1 a rung was wrong or failed, 2 bad arguments, 3 nothing was verified.");
    app.add_option("--grid", grid_name, "The problems, by the name of a grid; " + grid_name + " unless given");
    app.add_option("--problem", problems,
                   "A problem instead, as in \"B=1 Hq=16 Hkv=16 Nq=4096 Nk=4096 d=128 bf16 causal\"; may be repeated");
    app.add_option("--filter", filter, "Only what this regular expression finds in, as in 02b or backward.*causal");
    app.add_option("--pass", passes, "Only these of forward,backward,decode")->delimiter(',');
    app.add_option("--l2", l2, "warm: launches follow each other; cold: L2 is flushed before each");
    app.add_option("--input", law, "normal or outliers: figures are taken on random values alone");
    app.add_option("--repetitions", options.repetitions, "Samples of each rung, 9 or more");
    app.add_option("--json", options.json, "Write the results to this file too");
    app.add_flag("--list", options.list, "Print the names of all measurements, and stop");
    app.add_flag("--list-problems", options.list_problems, "Print the problems, and stop");
    app.add_flag("--in-step", options.in_step,
                 "Print \"ready\" and wait for a line of input before each round (common/scripts/compare.sh)");
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        out << app.help();
        return std::nullopt;
    } catch (const CLI::ParseError& error) {
        throw BadArgument(std::string(error.what()) + " (--help lists the options.)");
    }
    const Grid grid = by_name("--grid", grid_name, grids(), [](const Grid& grid) { return grid.name; });
    options.problems = grid.problems;
    options.passes = grid.passes;
    if (!problems.empty()) {
        options.problems.clear();
        options.passes = {Pass::forward, Pass::backward, Pass::decode};
        try {
            for (const std::string& text : problems) options.problems.push_back(parse_problem(text));
        } catch (const attention::InvalidProblem& error) {
            throw BadArgument(std::string("--problem: ") + error.what());
        }
    }
    if (!passes.empty()) options.passes.clear();
    for (const std::string& pass : passes) {
        const std::vector<Pass> all = {Pass::forward, Pass::backward, Pass::decode};
        options.passes.push_back(by_name("--pass", pass, all, [](Pass value) { return ladder::name(value); }));
    }
    try {
        options.filter = std::regex(filter);
    } catch (const std::regex_error&) {
        throw BadArgument("--filter " + filter + ": this is not a regular expression.");
    }
    options.l2 = by_name("--l2", l2, std::vector{L2::warm, L2::cold}, [](L2 value) { return name(value); });
    using attention::InputLaw;
    const std::vector<InputLaw> laws = {InputLaw::normal, InputLaw::outliers, InputLaw::equal, InputLaw::rising};
    options.law = by_name("--input", law, laws, [](InputLaw value) { return ladder::name(value); });
    if (options.law != InputLaw::normal && options.law != InputLaw::outliers) {
        throw BadArgument("--input " + law +
                          ": a GPU runs faster on values without randomness than on data; figures are "
                          "taken on normal or outliers.");
    }
    if (options.repetitions < least_repetitions) {
        throw BadArgument("--repetitions " + std::to_string(options.repetitions) + ": give at least " +
                          std::to_string(least_repetitions) + ", fewer bound no median.");
    }
    options.command = "bench";
    for (int n = 1; n < argc; ++n) {
        const std::string word = argv[n];
        if (word == "--json") ++n;
        else if (word.find(' ') != word.npos) options.command += " \"" + word + '"';
        else if (word != "--in-step" && !word.starts_with("--json=")) options.command += " " + word;
    }
    return options;
}

// ---- one problem ----

/// Verifies the rung; afterwards it can be launched, or its row says why not.
void verify_rung(Entry& entry, const verify::Case& the_case, const gpu::Device& device) {
    const Problem& problem = the_case.problem();
    if (auto reason = entry.rung->refuses ? entry.rung->refuses(problem) : std::nullopt) {
        entry.row.reason = *reason;
        return;
    }
    if (auto reason = verify::too_large(*entry.rung, problem, device)) {
        entry.row.reason = *reason;
        return;
    }
    entry.run = std::make_unique<verify::Run>(*entry.rung, the_case);
    const verify::Result result = entry.run->verify();
    entry.row.checks = result.checks;
    entry.counters = result.counters;
    if (result.refused) {
        entry.row.reason = *result.refused;
    } else if (!result.verified()) {
        entry.fail(result.reason());
    } else {
        entry.row.status = ladder::Status::verified;
    }
    if (result.counters) entry.row.bytes = result.counters->tensors;
    else if (entry.rung->traffic) entry.row.bytes = entry.rung->traffic(problem);
    if (result.counters) entry.row.exponentials = double(result.counters->exponentials);
    else if (entry.rung->exponentials) entry.row.exponentials = entry.rung->exponentials(problem);
    if (entry.row.bytes && entry.row.bytes->empty()) entry.row.bytes.reset();
}

/// Takes the samples out of Google Benchmark and prints nothing.
class Collector : public benchmark::BenchmarkReporter {
  public:
    explicit Collector(std::vector<Entry>& entries) : entries_(entries) {}
    bool ReportContext(const Context&) override { return true; }
    void ReportRuns(const std::vector<Run>& runs) override {
        for (const Run& run : runs) {
            for (Entry& entry : entries_) {
                if (entry.name != run.run_name.function_name || entry.row.status != ladder::Status::verified) continue;
                entry.milliseconds.push_back(run.GetAdjustedRealTime());
            }
        }
    }

  private:
    std::vector<Entry>& entries_;
};

/// Registers one sample of the entry.
void register_sample(Entry& entry, Stopwatch& stopwatch) {
    const auto sample = [&entry, &stopwatch](benchmark::State& state) {
        try {
            while (state.KeepRunningBatch(entry.launches)) {
                const double seconds = stopwatch.seconds([&] { entry.run->launch(); }, entry.launches);
                state.SetIterationTime(seconds * entry.launches);
            }
        } catch (const gpu::Error& error) {
            entry.fail(std::string("Verified once, then failed while it was timed: ") + error.what());
            state.SkipWithError(entry.row.reason.c_str());
        }
    };
    benchmark::RegisterBenchmark(entry.name.c_str(), sample)
        ->UseManualTime()
        ->Iterations(entry.launches)
        ->Unit(benchmark::kMillisecond);
}

/// All samples of all verified entries, round after round; every other round in reverse, so that a drift of the clock
/// meets all alike.
void measure(std::vector<Entry>& entries, const Options& options, const std::function<void()>& next_round) {
    Stopwatch stopwatch(options.l2);
    std::vector<Entry*> order;
    for (Entry& entry : entries) {
        if (entry.row.status != ladder::Status::verified) continue;
        try {
            entry.launches = stopwatch.warm_up([&] { entry.run->launch(); });
            order.push_back(&entry);
        } catch (const gpu::Error& error) {
            entry.fail(std::string("Verified once, then failed while it was timed: ") + error.what());
        }
    }
    Collector collector(entries);
    for (int round = 0; round < options.repetitions; ++round) {
        next_round();
        for (Entry* entry : order) register_sample(*entry, stopwatch);
        if (!order.empty()) benchmark::RunSpecifiedBenchmarks(&collector);
        benchmark::ClearRegisteredBenchmarks();
        std::reverse(order.begin(), order.end());
    }
}

/// What the samples say.
void evaluate(Entry& entry, const Problem& problem, const std::vector<Ceiling>& ceilings) {
    ladder::Row& row = entry.row;
    row.flops =
        entry.rung->pass == Pass::backward ? attention::backward_flops(problem) : attention::forward_flops(problem);
    if (entry.milliseconds.empty() || row.status != ladder::Status::verified) return;
    row.time_ms = median(entry.milliseconds);
    row.tflops = *row.flops / *row.time_ms * 1e-9;
    const Ceiling* mma_sync = find(ceilings, "mma.sync bf16");
    if (mma_sync && problem.type != attention::DataType::fp32)
        row.ceiling_fraction = *row.tflops * 1e12 / mma_sync->per_second;
    const std::optional<Roof> limit = roof(problem, entry.rung->pass, ceilings);
    // A warm L2 may beat the copy; no product beats the matrix units by more than the ceiling's own noise.
    if (limit && limit->ceiling != "copy" && limit->seconds * 1e3 > 1.05 * *row.time_ms) {
        entry.fail("It reads faster than the ceiling \"" + limit->ceiling +
                   "\" allows: the time or the count is wrong.");
    }
}

// ---- what is shown ----

std::string cell(const char* format, std::optional<double> value) {
    if (!value) return "-";
    char text[64];
    std::snprintf(text, sizeof(text), format, *value);
    return text;
}

json row_json(const Entry& entry, const Problem& problem, const Options& options, const std::vector<Ceiling>& ceilings,
              bool emulated) {
    const ladder::Row& row = entry.row;
    json result = ladder::to_json(row, emulated ? ladder::Source::counted : ladder::Source::modelled);
    result["problem"] = ladder::to_json(problem, ladder::name(options.law));
    if (emulated) {
        if (entry.counters) {
            const gpu::Counters& counters = *entry.counters;
            result["counts"] = {{"mma_flops", counters.mma_flops},
                                {"exponentials", counters.exponentials},
                                {"rescales", counters.rescales},
                                {"barriers", counters.barriers},
                                {"atomics", counters.atomics},
                                {"shared_read", counters.shared_read},
                                {"shared_written", counters.shared_written},
                                {"bank_conflicts", counters.bank_conflicts}};
        }
        return result;
    }
    result["l2"] = name(options.l2);
    result["ms"] = entry.milliseconds;
    if (!row.time_ms) return result;
    std::vector<double> speeds;
    for (double time : entry.milliseconds) speeds.push_back(*row.flops / time * 1e-9);
    result["tflops_low"] = lower_bound_of_median(speeds).value();
    result["bytes_per_s"] = least_bytes(problem, entry.rung->pass) / *row.time_ms * 1e3;
    if (const std::optional<Roof> limit = roof(problem, entry.rung->pass, ceilings)) {
        result["roof"] = {{"ms", limit->seconds * 1e3}, {"ceiling", limit->ceiling}};
        result["roof_fraction"] = limit->seconds * 1e3 / *row.time_ms;
    }
    return result;
}

void print(const Problem& problem, const std::vector<json>& rows, bool emulated, std::ostream& out) {
    out << '\n' << attention::describe(problem) << '\n';
    const auto number = [](const json& row, const char* key, double factor = 1.0) -> std::optional<double> {
        if (!row.contains(key) || !row[key].is_number()) return std::nullopt;
        return row[key].get<double>() * factor;
    };
    for (const json& row : rows) {
        const std::string title =
            row["stage"].get<std::string>() + row["rung"].get<std::string>() + " " + row["name"].get<std::string>();
        char line[256];
        if (row["status"] != "verified") {
            std::snprintf(line, sizeof(line), "  %-20s %-9s %s", title.c_str(),
                          row["pass"].get_ref<const std::string&>().c_str(),
                          row["status"] == "wrong" ? "WRONG" : "skipped");
            out << line << ": " << row["reason"].get<std::string>() << '\n';
            continue;
        }
        if (emulated) {
            const json& counts = row["counts"];
            std::snprintf(
                line, sizeof(line), "  %-20s %-9s exponentials %-9s rescales %-9s barriers %s", title.c_str(),
                row["pass"].get_ref<const std::string&>().c_str(), cell("%.0f", number(counts, "exponentials")).c_str(),
                cell("%.0f", number(counts, "rescales")).c_str(), cell("%.0f", number(counts, "barriers")).c_str());
        } else {
            std::snprintf(line, sizeof(line),
                          "  %-20s %-9s %9s ms %7s TFLOP/s (at least %s) %6s TB/s %6s %% of the roof (%s)",
                          title.c_str(), row["pass"].get_ref<const std::string&>().c_str(),
                          cell("%.4g", number(row, "time_ms")).c_str(), cell("%.4g", number(row, "tflops")).c_str(),
                          cell("%.4g", number(row, "tflops_low")).c_str(),
                          cell("%.3g", number(row, "bytes_per_s", 1e-12)).c_str(),
                          cell("%.3g", number(row, "roof_fraction", 100.0)).c_str(),
                          row.contains("roof") ? row["roof"]["ceiling"].get_ref<const std::string&>().c_str() : "-");
        }
        out << line << '\n';
    }
    out << std::flush;
}

int run(const ladder::Registry& registry, const Options& options, std::istream& in, std::ostream& out,
        std::ostream& err) {
    const gpu::Device device = gpu::device();
    const auto selected = [&](const ladder::Rung& rung, const Problem& problem) {
        return std::find(options.passes.begin(), options.passes.end(), rung.pass) != options.passes.end() &&
               std::regex_search(name_of(rung, problem), options.filter);
    };
    if (options.list || options.list_problems) {
        for (const Problem& problem : options.problems) {
            if (options.list_problems) out << attention::describe(problem) << '\n';
            for (const ladder::Rung& rung : registry.rungs()) {
                if (options.list && selected(rung, problem)) out << name_of(rung, problem) << '\n';
            }
        }
        return 0;
    }
    std::optional<ladder::OutputFile> file;
    if (!options.json.empty()) file.emplace(options.json);
    std::vector<Ceiling> measured;
    if (!device.emulated) measured = ceilings();
    json results = context(options.command);  // right after the ceilings: the clocks are those under load
    if (results["debug"]) err << "bench: this is a debug build; its figures are marked, and no gate takes them.\n";
    results["repetitions"] = device.emulated ? json(nullptr) : json(options.repetitions);
    results["ceilings"] = to_json(measured);
    results["rows"] = json::array();

    const auto next_round = [&] {
        if (!options.in_step) return;
        out << "ready" << std::endl;
        std::string line;
        if (!std::getline(in, line)) throw std::runtime_error("the program to keep step with is gone");
    };
    bool any_wrong = false, any_verified = false;
    for (const Problem& problem : options.problems) {
        std::vector<Entry> entries;
        for (const ladder::Rung& rung : registry.rungs()) {
            if (!selected(rung, problem)) continue;
            Entry& entry = entries.emplace_back(Entry{&rung, name_of(rung, problem), {}, {}, {}, 1, {}});
            entry.row.stage = rung.stage;
            entry.row.letter = rung.letter;
            entry.row.name = rung.name;
            entry.row.pass = rung.pass;
        }
        std::optional<verify::Case> the_case;
        if (!entries.empty()) the_case.emplace(problem, verify::Setup{options.law});
        if (const auto reason = the_case ? not_random(the_case->inputs()) : std::nullopt)
            throw std::runtime_error("the input of " + attention::describe(problem) + " " + *reason + ".");
        for (Entry& entry : entries) verify_rung(entry, *the_case, device);
        if (!device.emulated) measure(entries, options, next_round);
        std::vector<json> rows;
        for (Entry& entry : entries) {
            evaluate(entry, problem, measured);
            any_wrong = any_wrong || entry.row.status == ladder::Status::wrong;
            any_verified = any_verified || entry.row.status == ladder::Status::verified;
            rows.push_back(row_json(entry, problem, options, measured, device.emulated));
            results["rows"].push_back(rows.back());
        }
        print(problem, rows, device.emulated, out);
    }
    if (file) file->commit(results.dump(1) + "\n");
    return any_wrong ? 1 : any_verified ? 0 : 3;
}

}  // namespace

int bench(const ladder::Registry& registry, int argc, const char* const* argv, std::istream& in, std::ostream& out,
          std::ostream& err) {
    try {
        const std::optional<Options> options = parse(argc, argv, gpu::device().emulated, out);
        return options ? run(registry, *options, in, out, err) : 0;
    } catch (const BadArgument& error) {
        err << "bench: " << error.what() << '\n';
        return 2;
    } catch (const std::exception& error) {
        err << "bench: " << error.what() << '\n';
        return 1;
    }
}

int bench(void (*register_stage)(ladder::Registry&), int argc, const char* const* argv) {
    ladder::Registry registry;
    register_stage(registry);
    return bench(registry, argc, argv, std::cin, std::cout, std::cerr);
}

}  // namespace profile
