#include "common/profile/bench.h"

#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iomanip>
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
using ladder::by_name;
using ladder::Pass;
using nlohmann::json;

constexpr int least_repetitions = 9;  // below, the bound of the median is the smallest sample or there is none

struct Options {
    std::string command;
    std::vector<Grid> grids;
    std::regex filter;
    L2 l2 = L2::warm;
    attention::InputLaw law = attention::InputLaw::normal;
    int repetitions = least_repetitions;
    std::optional<double> longest;  // milliseconds of a launch
    std::string json;
    bool list = false, in_step = false;
};

/// One rung on one problem.
struct Entry {
    const ladder::Rung* rung = nullptr;
    std::string name;  // "02b split_kv/forward/B=16 ..."
    ladder::Row row;
    std::optional<gpu::Counters> counters;
    std::unique_ptr<verify::Run> run;
    int launches = 1;  // of a sample
    std::vector<double> milliseconds;

    void end(ladder::Status status, const std::string& reason) {
        row.status = status;
        row.reason = reason;
    }
    void fail(const gpu::Error& error) {
        end(ladder::Status::wrong, std::string("Verified once, then failed while it was timed: ") + error.what());
    }
};

std::string cell(const char* format, double value) {
    char text[64];
    std::snprintf(text, sizeof(text), format, value);
    return text;
}

std::string name_of(const ladder::Rung& rung, const Problem& problem) {
    return rung.title() + '/' + ladder::name(rung.pass) + '/' + attention::describe(problem);
}

// ---- the command line ----

std::optional<Options> parse(int argc, const char* const* argv, bool emulated, std::ostream& out) {
    Options options;
    std::vector<std::string> grid_names = {emulated ? "counts" : "compare"}, problems, passes;
    std::string filter = ".", l2 = "warm", law = "normal";
    CLI::App app(
        "Verifies every rung on each problem of a grid, then times it: samples by device events, one of each rung, "
        "round after round; their median and a lower bound of it. On the emulator it counts instead.",
        "bench");
    std::string about;
    for (const Grid& grid : grids()) about += "\n  " + grid.name + ": " + grid.about;
    app.footer("Grids:" + about +
               "\nExit status: 0 all right, 1 a rung was wrong or failed, 2 bad arguments, 3 nothing was verified.");
    app.add_option("--grid", grid_names, "The problems, by the names of grids; " + grid_names[0] + " unless given")
        ->delimiter(',');
    app.add_option("--problem", problems,
                   "A problem instead, as in \"B=1 Hq=16 Hkv=16 Nq=4096 Nk=4096 d=128 bf16 causal\"; may be repeated");
    app.add_option("--filter", filter, "Only what this regular expression finds in, as in 02b or backward.*causal");
    app.add_option("--pass", passes, "Only these of forward,backward,decode")->delimiter(',');
    app.add_option("--longest", options.longest, "Leave out what takes longer than so many milliseconds a launch");
    app.add_option("--l2", l2, "warm: launches follow each other; cold: L2 is flushed before each");
    app.add_option("--input", law, "normal or outliers: a GPU runs faster on constant values than on data");
    app.add_option("--repetitions", options.repetitions, "Samples of each rung, 9 or more");
    app.add_option("--json", options.json, "Write the results to this file too");
    app.add_flag("--list", options.list, "Print the names of all measurements, and stop");
    app.add_flag("--in-step", options.in_step,
                 "Print \"ready\" and wait for a line of input before each round (common/scripts/compare.sh)");
    if (!ladder::parse(app, argc, argv, out)) return std::nullopt;
    for (const char* option : {"--longest", "--l2", "--repetitions", "--in-step"}) {
        if (emulated && app.count(option) > 0)
            throw BadArgument(std::string(option) + ": the emulator has no clock and counts once; leave it out.");
    }
    if (app.count("--grid") > 0 && !problems.empty())
        throw BadArgument("--grid and --problem: a problem is measured instead of a grid; give one of them.");
    if (options.longest && !(*options.longest >= 0))
        throw BadArgument("--longest " + cell("%g", *options.longest) + ": give milliseconds of a launch, at least 0.");
    const std::vector<Pass> all = {Pass::forward, Pass::backward, Pass::decode};
    if (problems.empty()) {
        for (const std::string& name : grid_names) {
            options.grids.push_back(by_name("--grid", name, grids(), [](const Grid& grid) { return grid.name; }));
        }
    } else {
        try {
            options.grids.push_back({"", "", {}, all});
            for (const std::string& text : problems) options.grids[0].problems.push_back(parse_problem(text));
        } catch (const attention::InvalidProblem& error) {
            throw BadArgument(std::string("--problem: ") + error.what());
        }
    }
    std::vector<Pass> chosen;
    for (const std::string& pass : passes) {
        chosen.push_back(by_name("--pass", pass, all, [](Pass value) { return ladder::name(value); }));
    }
    for (Grid& grid : options.grids) {
        if (!chosen.empty()) grid.passes = chosen;
    }
    try {
        options.filter = std::regex(filter);
    } catch (const std::regex_error&) {
        throw BadArgument("--filter " + filter + ": this is not a regular expression.");
    }
    options.l2 = by_name("--l2", l2, std::vector{L2::warm, L2::cold}, [](L2 value) { return name(value); });
    options.law = by_name("--input", law, std::vector{attention::InputLaw::normal, attention::InputLaw::outliers},
                          [](attention::InputLaw value) { return ladder::name(value); });
    if (options.repetitions < least_repetitions) {
        throw BadArgument("--repetitions " + std::to_string(options.repetitions) + ": give at least " +
                          std::to_string(least_repetitions) + ", fewer bound no median.");
    }
    options.command = ladder::command(app, argc, argv, {"--in-step"});
    return options;
}

// ---- one problem ----

/// Why the rung cannot run on the problem here; nullopt if it can.
std::optional<std::string> why_not(const ladder::Rung& rung, const Problem& problem, const gpu::Device& device) {
    if (auto reason = rung.refuses(problem)) return reason;
    return verify::too_large(rung, problem, device);
}

/// Verifies the rung; afterwards it can be launched, or its row says why not.
void verify_rung(Entry& entry, const verify::Case& the_case) {
    const Problem& problem = the_case.problem();
    entry.run = std::make_unique<verify::Run>(*entry.rung, the_case);
    const verify::Result result = entry.run->verify();
    entry.row.checks = result.checks;
    entry.counters = result.counters;
    if (result.refused) entry.end(ladder::Status::skipped, *result.refused);
    else if (!result.verified()) entry.end(ladder::Status::wrong, result.reason());
    else entry.row.status = ladder::Status::verified;
    if (result.counters) entry.row.bytes = result.counters->tensors;
    else if (entry.rung->traffic) entry.row.bytes = entry.rung->traffic(problem);
    if (result.counters) {
        entry.row.exponentials = double(result.counters->exponentials);
        entry.row.polynomials = double(result.counters->polynomials);
    } else {
        if (entry.rung->exponentials) entry.row.exponentials = entry.rung->exponentials(problem);
        if (entry.rung->polynomials) entry.row.polynomials = entry.rung->polynomials(problem);
    }
    if (entry.row.bytes && entry.row.bytes->empty()) entry.row.bytes.reset();
}

/// Google Benchmark runs the samples; what they say is kept by the entries and printed at the end.
struct Silent : benchmark::BenchmarkReporter {
    bool ReportContext(const Context&) override { return true; }
    void ReportRuns(const std::vector<Run>&) override {}
};

/// Registers one sample of the entry.
void register_sample(Entry& entry, Stopwatch& stopwatch) {
    const auto sample = [&entry, &stopwatch](benchmark::State& state) {
        try {
            while (state.KeepRunningBatch(entry.launches)) {
                const double seconds = stopwatch.seconds([&] { entry.run->launch(); }, entry.launches);
                state.SetIterationTime(seconds * entry.launches);
                entry.milliseconds.push_back(seconds * 1e3);
            }
        } catch (const gpu::Error& error) {
            entry.fail(error);
            state.SkipWithError(error.what());
        }
    };
    benchmark::RegisterBenchmark(entry.name.c_str(), sample)->UseManualTime()->Iterations(entry.launches);
}

/// All samples of all verified entries, round after round; every other round in reverse, so that a drift of the clock
/// meets all alike.
void measure(std::vector<Entry>& entries, const Options& options, const std::function<void()>& next_round) {
    Stopwatch stopwatch(options.l2);
    std::vector<Entry*> order;
    for (Entry& entry : entries) {
        if (entry.row.status != ladder::Status::verified) continue;
        const auto launch = [&] { entry.run->launch(); };
        try {
            if (options.longest && stopwatch.seconds(launch, 1) * 1e3 > *options.longest) {
                entry.end(ladder::Status::skipped,
                          "takes longer than the " + cell("%g", *options.longest) + " ms a launch of --longest");
                continue;
            }
            entry.launches = stopwatch.warm_up(launch);
            order.push_back(&entry);
        } catch (const gpu::Error& error) {
            entry.fail(error);
        }
    }
    Silent silent;
    for (int round = 0; round < options.repetitions; ++round) {
        next_round();
        for (Entry* entry : order) register_sample(*entry, stopwatch);
        if (!order.empty()) benchmark::RunSpecifiedBenchmarks(&silent);
        benchmark::ClearRegisteredBenchmarks();
        std::reverse(order.begin(), order.end());
    }
}

/// What the samples say.
void evaluate(Entry& entry, const Problem& problem, const std::vector<Ceiling>& ceilings) {
    ladder::Row& row = entry.row;
    if (row.status == ladder::Status::skipped) return;
    row.flops =
        entry.rung->pass == Pass::backward ? attention::backward_flops(problem) : attention::forward_flops(problem);
    if (entry.milliseconds.empty() || row.status != ladder::Status::verified) return;
    row.time_ms = median(entry.milliseconds);
    row.tflops = *row.flops / *row.time_ms * 1e-9;
    const Ceiling* mma_sync = find(ceilings, "mma.sync bf16");
    if (mma_sync && problem.type != attention::DataType::fp32)
        row.ceiling_fraction = *row.tflops * 1e12 / mma_sync->per_second;
    const std::optional<Roof> limit = roof(problem, entry.rung->pass, ceilings);
    if (limit && beats(*row.time_ms * 1e-3, *limit)) {
        entry.end(ladder::Status::wrong, "It reads faster than the ceiling \"" + limit->ceiling +
                                             "\" allows: the time or the count is wrong.");
    }
}

// ---- what is shown ----

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
                                {"polynomials", counters.polynomials},
                                {"rescales", counters.rescales},
                                {"skipped_rescales", counters.skipped_rescales},
                                {"barriers", counters.barriers},
                                {"atomics", counters.atomics},
                                {"shared_read", counters.shared_read},
                                {"shared_written", counters.shared_written},
                                {"tensor_memory_read", counters.tensor_memory_read},
                                {"tensor_memory_written", counters.tensor_memory_written},
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

/// What a row has to say, in one line.
std::string said(const json& row) {
    if (row["status"] != "verified") {
        return (row["status"] == "wrong" ? "WRONG: " : "skipped: ") + row["reason"].get<std::string>();
    }
    if (row.contains("counts")) {
        const json& counts = row["counts"];
        return "exponentials " + counts["exponentials"].dump() + ", rescales " + counts["rescales"].dump() +
               ", barriers " + counts["barriers"].dump();
    }
    std::string text = cell("%9.4g ms ", row["time_ms"]) + cell("%7.4g TFLOP/s ", row["tflops"]) +
                       cell("(at least %.4g) ", row["tflops_low"]) +
                       cell("%6.3g TB/s", row["bytes_per_s"].get<double>() * 1e-12);
    if (row.contains("roof")) {
        text += cell(" %6.3g %% of the roof (", row["roof_fraction"].get<double>() * 100.0) +
                row["roof"]["ceiling"].get<std::string>() + ")";
    }
    return text;
}

void print(const Problem& problem, const std::vector<Entry>& entries, const std::vector<json>& rows,
           std::ostream& out) {
    out << '\n' << attention::describe(problem) << '\n';
    for (std::size_t n = 0; n < rows.size(); ++n) {
        const ladder::Rung& rung = *entries[n].rung;
        out << "  " << std::left << std::setw(21) << rung.title() << std::setw(10) << ladder::name(rung.pass)
            << said(rows[n]) << '\n';
    }
    out << std::flush;
}

int run(const ladder::Registry& registry, const Options& options, std::istream& in, std::ostream& out,
        std::ostream& err) {
    const gpu::Device device = gpu::device();
    // What is measured on each problem; problems without a measurement are left out.
    std::vector<std::pair<const Problem*, std::vector<Entry>>> chosen;
    for (const Grid& grid : options.grids) {
        for (const Problem& problem : grid.problems) {
            std::vector<Entry> entries;
            for (const ladder::Rung& rung : registry.rungs()) {
                const std::string name = name_of(rung, problem);
                if (std::find(grid.passes.begin(), grid.passes.end(), rung.pass) == grid.passes.end()) continue;
                if (!std::regex_search(name, options.filter)) continue;
                if (options.list) out << name << '\n';
                Entry& entry = entries.emplace_back();
                entry.rung = &rung;
                entry.name = name;
                entry.row.stage = rung.stage;
                entry.row.letter = rung.letter;
                entry.row.name = rung.name;
                entry.row.pass = rung.pass;
            }
            if (!entries.empty()) chosen.emplace_back(&problem, std::move(entries));
        }
    }
    if (options.list) return 0;
    std::optional<ladder::OutputFile> file;
    try {
        if (!options.json.empty()) file.emplace(options.json);
    } catch (const std::runtime_error& error) {
        throw BadArgument(std::string("--json ") + error.what());
    }
    if (chosen.empty()) err << "bench: no rung of this build is chosen; bench --list prints what there is.\n";
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
    for (auto& [chosen_problem, entries] : chosen) {
        const Problem& problem = *chosen_problem;
        std::optional<verify::Case> the_case;
        for (Entry& entry : entries) {
            if (const auto reason = why_not(*entry.rung, problem, device)) {
                entry.end(ladder::Status::skipped, *reason);
                continue;
            }
            if (!the_case) the_case.emplace(problem, verify::Setup{options.law});
            if (const auto reason = not_random(the_case->inputs()))
                throw std::runtime_error("the input of " + attention::describe(problem) + " " + *reason + ".");
            verify_rung(entry, *the_case);
        }
        if (!device.emulated) measure(entries, options, next_round);
        std::vector<json> rows;
        for (Entry& entry : entries) {
            evaluate(entry, problem, measured);
            any_wrong = any_wrong || entry.row.status == ladder::Status::wrong;
            any_verified = any_verified || entry.row.status == ladder::Status::verified;
            rows.push_back(row_json(entry, problem, options, measured, device.emulated));
            results["rows"].push_back(rows.back());
        }
        print(problem, entries, rows, out);
        entries.clear();  // and with them the memory of their problem
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
