#include "common/ladder/ladder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "common/ladder/arguments.h"
#include "common/ladder/explain.h"
#include "common/ladder/list.h"
#include "common/ladder/output_file.h"
#include "common/ladder/report.h"
#include "common/profile/ceiling.h"
#include "common/verify/run.h"

namespace ladder {
namespace {

constexpr int warm_up = 3;
constexpr int repetitions = 15;

std::string joined(const std::set<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text.empty() ? "none" : text;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

void refuse_unknown(const char* option, const std::vector<std::string>& given, const std::set<std::string>& known) {
    for (const std::string& name : given) {
        if (!known.contains(name)) {
            throw BadArgument(std::string(option) + " " + name + ": this build has " + joined(known) + ".");
        }
    }
}

// The rungs that were asked for, in the registry's order.
std::vector<const Rung*> select(const Registry& registry, const Arguments& arguments) {
    std::set<std::string> stages, rungs;
    for (const Rung& rung : registry.rungs()) {
        stages.insert(rung.stage);
        rungs.insert(rung.stage + rung.letter);
    }
    refuse_unknown("--stages", arguments.stages, stages);
    refuse_unknown("--rungs", arguments.rungs, rungs);
    std::vector<const Rung*> selected;
    for (const Rung& rung : registry.rungs()) {
        const bool wanted = (arguments.stages.empty() || contains(arguments.stages, rung.stage)) &&
                            (arguments.rungs.empty() || contains(arguments.rungs, rung.stage + rung.letter)) &&
                            (arguments.passes.empty() || std::find(arguments.passes.begin(), arguments.passes.end(),
                                                                   rung.pass) != arguments.passes.end());
        if (wanted) selected.push_back(&rung);
    }
    if (selected.empty() && !registry.rungs().empty()) {
        throw BadArgument("--stages, --rungs and --pass leave no rung; ladder --list shows what there is.");
    }
    return selected;
}

// Why a rung cannot run on the problem here; nullopt if it can.
std::optional<std::string> why_not(const Rung& rung, const attention::Problem& problem, const gpu::Device& device) {
    if (rung.refuses) {
        if (auto reason = rung.refuses(problem)) return reason;
    }
    return verify::too_large(rung, problem, device);
}

// Everything that can be refused before anything runs: what a rung that was asked for by name cannot do, and a problem
// for which no rung finds enough memory. Another rung that cannot run is skipped.
void refuse_early(const std::vector<const Rung*>& rungs, const Arguments& arguments, const gpu::Device& device) {
    std::optional<std::string> too_large;
    bool some_can_run = false;
    for (const Rung* rung : rungs) {
        const std::optional<std::string> refused = rung->refuses(arguments.problem);
        const bool asked_for = contains(arguments.rungs, rung->stage + rung->letter);
        if (refused && asked_for) {
            throw BadArgument("--rungs " + rung->stage + rung->letter + ": " + rung->title() + ", " + name(rung->pass) +
                              ", does not do " + attention::describe(arguments.problem) + ": it " + *refused + ".");
        }
        if (refused) continue;
        const std::optional<std::string> sentence = verify::too_large(*rung, arguments.problem, device);
        if (sentence) too_large = rung->title() + ", " + name(rung->pass) + ", " + *sentence + ".";
        if (sentence && asked_for) throw BadArgument(*too_large);
        some_can_run = some_can_run || !sentence;
    }
    if (too_large && !some_can_run) throw BadArgument(*too_large);
}

// Median milliseconds of one launch; nullopt where there is no clock to measure.
std::optional<double> median_time(verify::Run& run) {
    gpu::Timer timer;
    std::vector<double> times;
    for (int n = 0; n < warm_up; ++n) run.launch();
    for (int n = 0; n < repetitions; ++n) {
        timer.start();
        run.launch();
        const std::optional<double> milliseconds = timer.stop();
        if (!milliseconds) return std::nullopt;
        times.push_back(*milliseconds);
    }
    std::nth_element(times.begin(), times.begin() + repetitions / 2, times.end());
    return times[repetitions / 2];
}

// A row of which nothing is known yet.
Row row_of(const Rung& rung) {
    Row row;
    row.stage = rung.stage;
    row.letter = rung.letter;
    row.name = rung.name;
    row.pass = rung.pass;
    return row;
}

// ceiling: TFLOP/s of mma.sync, if it was measured and is one for this problem.
Row run_rung(const Rung& rung, const verify::Case& the_case, const Arguments& arguments, bool emulated,
             std::optional<double> ceiling) {
    const attention::Problem& problem = the_case.problem();
    Row row = row_of(rung);
    verify::Run run(rung, the_case);
    const verify::Result result = run.verify();
    row.status = result.refused ? Status::skipped : result.verified() ? Status::verified : Status::wrong;
    if (row.status != Status::verified) row.reason = result.reason();
    row.checks = result.checks;
    if (row.checks.empty()) return row;  // it did not run to its end: nothing was counted
    if (arguments.tensors) write_outputs(arguments.tensors->folder, rung, run);

    row.flops = rung.pass == Pass::backward ? attention::backward_flops(problem) : attention::forward_flops(problem);
    if (result.counters) {
        row.bytes = result.counters->tensors;
        row.exponentials = static_cast<double>(result.counters->exponentials);
        row.polynomials = static_cast<double>(result.counters->polynomials);
    } else {
        if (rung.traffic) row.bytes = rung.traffic(problem);
        if (rung.exponentials) row.exponentials = rung.exponentials(problem);
        if (rung.polynomials) row.polynomials = rung.polynomials(problem);
    }
    if (row.bytes && row.bytes->empty()) row.bytes.reset();
    if (arguments.time && !emulated && row.status == Status::verified) {
        try {
            row.time_ms = median_time(run);
            if (ceiling && row.time_ms) row.ceiling_fraction = *row.flops / *row.time_ms * 1e-9 / *ceiling;
            if (row.time_ms && *row.time_ms > 0.0) row.tflops = *row.flops / *row.time_ms * 1e-9;
        } catch (const gpu::Error& error) {
            row.status = Status::wrong;
            row.reason = std::string("Verified once, then failed while it was timed: ") + error.what();
        }
    }
    return row;
}

void print_explanation(const Arguments& arguments, std::ostream& out) {
    const attention::Problem& problem = arguments.problem;
    if (arguments.examples) return explain_examples(out);
    // A head without rows is a step all the same.
    const double heads = double(problem.B) * problem.Hq, rows = std::max(problem.Nq, 1), keys = std::max(problem.Nk, 1);
    if (heads * rows * keys * problem.d > 1 << 16) {
        throw BadArgument("--explain prints every step of every query, and " + attention::describe(problem) +
                          " has too many; B Hq Nq Nk d up to 65536 is printed, as of --shape 1,1,1,4,8,4.");
    }
    explain(
        problem,
        arguments.tensors ? arguments.tensors->inputs : attention::make_inputs(problem, arguments.law, arguments.seed),
        arguments.block, out);
}

int run_selected(const Registry& registry, const Build& build, const Arguments& arguments,
                 const std::optional<gpu::Device>& device, const std::optional<std::string>& no_device,
                 std::ostream& out, std::ostream& err) {
    const std::vector<const Rung*> rungs = select(registry, arguments);
    if (!arguments.schedule.empty()) {
        try {
            gpu::choose_schedule(arguments.schedule, arguments.seed);
        } catch (const gpu::Error& error) {
            throw BadArgument("--schedule " + arguments.schedule + ": " + error.what());
        }
    }
    if (device) refuse_early(rungs, arguments, *device);
    const auto why_skipped = [&](const Rung& rung) -> std::optional<std::string> {
        const std::optional<std::string> reason = device ? why_not(rung, arguments.problem, *device) : no_device;
        if (!reason && rung.pass == Pass::backward && arguments.tensors && !arguments.tensors->has_dO)
            return "needs dO.npy, which " + arguments.tensors->folder + " does not hold";
        return reason;
    };
    try {
        for (const Rung* rung : rungs) {
            if (arguments.tensors && !why_skipped(*rung)) check_outputs(arguments.tensors->folder, *rung);
        }
    } catch (const std::runtime_error& error) {
        throw BadArgument(std::string("--tensors ") + error.what());
    }
    std::optional<OutputFile> json;
    try {
        if (!arguments.json.empty()) json.emplace(arguments.json);
    } catch (const std::runtime_error& error) {
        throw BadArgument(std::string("--json ") + error.what());
    }

    Report report;
    report.emulated = device && device->emulated;
    report.machine = !device ? "no GPU" : device->emulated ? "emulated" : device->name;
    report.build = build.description;
    report.commit = build.commit;
    report.command = arguments.command;
    report.clock_mhz = device ? device->clock_mhz : 0;
    report.problem = arguments.problem;
    report.input = arguments.tensors ? arguments.tensors->folder : name(arguments.law);
    report.seed = arguments.seed;
    report.repetitions = arguments.time && !report.emulated ? repetitions : 0;

    std::optional<verify::Case> the_case;
    for (std::size_t n = 0; n < rungs.size(); ++n) {
        const Rung& rung = *rungs[n];
        if (const std::optional<std::string> reason = why_skipped(rung)) {
            report.rows.push_back(row_of(rung));
            report.rows.back().reason = *reason;
            continue;
        }
        const auto begin = std::chrono::steady_clock::now();
        err << '[' << n + 1 << '/' << rungs.size() << "] " << rung.title() << ", " << name(rung.pass) << " ... "
            << std::flush;
        if (!the_case) {  // the first that is not skipped: only now must the build have code for this GPU
            const verify::Setup setup{arguments.law, arguments.seed};
            if (arguments.tensors) {
                the_case.emplace(arguments.problem, arguments.tensors->inputs, setup);
            } else {
                the_case.emplace(arguments.problem, setup);
            }
            if (report.repetitions > 0 && arguments.problem.type != attention::DataType::fp32) {
                const std::optional<double> flops = profile::mma_sync_ceiling();
                if (flops) report.mma_sync_tflops = *flops * 1e-12;
            }
        }
        report.rows.push_back(run_rung(rung, *the_case, arguments, report.emulated, report.mma_sync_tflops));
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        err << name(report.rows.back().status) << " (" << std::lround(seconds.count()) << " s)" << std::endl;
    }
    print_table(report, out);
    if (json) json->commit(to_json(report).dump(2) + "\n");
    return exit_status(report);
}

}  // namespace

int run(const Registry& registry, const Build& build, int argc, const char* const* argv, std::ostream& out,
        std::ostream& err) {
    std::optional<gpu::Device> device;
    std::optional<std::string> no_device;
    try {
        device = gpu::device();
    } catch (const gpu::Error& error) {
        no_device = error.what();
    }
    try {
        const std::optional<Arguments> arguments = parse_arguments(argc, argv, device && device->emulated, out);
        if (!arguments) return 0;
        if (arguments->list) {
            print_list(registry, arguments->markdown ? ListFormat::markdown : ListFormat::text, out);
            return 0;
        }
        if (arguments->explain) {
            print_explanation(*arguments, out);
            return 0;
        }
        return run_selected(registry, build, *arguments, device, no_device, out, err);
    } catch (const BadArgument& error) {
        err << "ladder: " << error.what() << '\n';
        return 2;
    } catch (const std::bad_alloc&) {
        err << "ladder: this problem needs more memory than the host has; choose a smaller --shape.\n";
        return 2;
    }
}

}  // namespace ladder
