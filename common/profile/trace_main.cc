// What the roles of one CTA are at while the emulator runs a rung, as a trace in Chrome's format: trace --help.
// ui.perfetto.dev opens it, and common/plots/timeline.py draws it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "common/gpu/launch.h"
#include "common/gpu/trace.h"
#include "common/ladder/output_file.h"
#include "common/ladder/registry.h"
#include "common/profile/grid.h"
#include "common/verify/run.h"

namespace {

using gpu::TraceKind;
using gpu::TraceSpan;
using nlohmann::json;

ladder::Rung find(const std::string& name, ladder::Pass pass) {
    ladder::Registry registry;
    ladder::register_stages(registry);
    for (const ladder::Rung& rung : registry.rungs())
        if (rung.stage + rung.letter == name && rung.pass == pass) return rung;
    throw std::runtime_error("There is no rung " + name + " " + ladder::name(pass) + "; `ladder --list` names all.");
}

/// nullptr: not drawn.
const char* category(const TraceSpan& span) {
    if (span.kind == TraceKind::wait) return "wait";
    if (span.what.find("mma") != std::string::npos) return "product";
    return span.what.starts_with("cp.") ? "copy" : nullptr;
}

/// Two tracks for the first warp of each role: what its engines do, if any, and what its first thread is at: waits, and
/// in between work.
json trace_events(std::vector<TraceSpan> spans, std::int64_t cta) {
    std::ranges::stable_sort(spans, {}, &TraceSpan::begin);
    std::map<std::string, int> warp_of;  // the first of each role
    if (spans.empty()) throw std::runtime_error("No thread of that CTA has a role (gpu::role).");
    for (const TraceSpan& span : spans) {
        int& first = warp_of.emplace(span.role, span.warp).first->second;
        first = std::min(first, span.warp);
    }

    json trace = json::array();
    const std::int64_t zero = spans.front().begin;
    const auto name = [&](const char* what, int track, const std::string& words) {
        trace.push_back({{"ph", "M"}, {"name", what}, {"pid", cta}, {"tid", track}, {"args", {{"name", words}}}});
    };
    const auto add = [&](int track, const std::string& words, const char* kind, std::int64_t begin, std::int64_t end) {
        trace.push_back({{"ph", "X"},
                         {"name", words},
                         {"cat", kind},
                         {"pid", cta},
                         {"tid", track},
                         {"ts", begin - zero},
                         {"dur", end - begin}});
    };
    name("process_name", 0, "CTA " + std::to_string(cta));
    for (const auto& [role, warp] : warp_of) {
        bool engines = false;
        std::int64_t free_from = -1, end = -1;
        for (const TraceSpan& span : spans)
            if (span.role == role && span.warp == warp && span.kind == TraceKind::part)
                free_from = span.begin, end = span.end;
        for (const TraceSpan& span : spans) {
            if (span.role != role || span.warp != warp || span.kind == TraceKind::part) continue;
            if (category(span) == nullptr) continue;
            const bool engine = span.kind == TraceKind::engine;
            if (!engine) {
                add(2 * warp + 1, "work", "work", free_from, span.begin);
                free_from = span.end;
            }
            engines |= engine;
            add(2 * warp + !engine, span.what + " at " + span.where.substr(span.where.rfind('/') + 1), category(span),
                span.begin, span.end);
        }
        add(2 * warp + 1, "work", "work", free_from, end);
        if (engines) name("thread_name", 2 * warp, role + ", engines");
        name("thread_name", 2 * warp + 1, role);
    }
    return trace;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app(
        "Runs a rung on the emulator and writes what the roles of one CTA are at: a trace for ui.perfetto.dev.");
    std::string rung_name, file, words = "B=1 Hq=1 Hkv=1 Nq=256 Nk=512 d=128 bf16 none", schedule = "async_latest";
    bool backward = false;
    std::int64_t cta = 0;
    std::uint64_t seed = 1;
    app.add_option("RUNG", rung_name, "As in 05b: a rung whose kernel calls gpu::role")->required();
    app.add_option("FILE", file, "The trace, in JSON")->required();
    app.add_flag("--backward", backward, "The backward rung of that name");
    app.add_option("--problem", words, "In the words of results files")->capture_default_str();
    app.add_option("--cta", cta, "Whose roles")->capture_default_str()->check(CLI::NonNegativeNumber);
    app.add_option("--schedule", schedule, "The order of events")->capture_default_str();
    app.add_option("--seed", seed, "Of the order of events")->capture_default_str();
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;
    }
    try {
        const ladder::Rung rung = find(rung_name, backward ? ladder::Pass::backward : ladder::Pass::forward);
        const attention::Problem problem = profile::parse_problem(words);
        ladder::OutputFile output(file);
        gpu::choose_schedule(schedule, seed);
        gpu::record_trace(cta);
        const verify::Case the_case(problem);
        const verify::Result result = verify::Run(rung, the_case).verify();
        if (!result.verified()) throw std::runtime_error(rung.title() + ": " + result.reason());
        const json about = {{"machine", "emulated"},
                            {"emulated", true},
                            {"clock", "logical time, emulated"},
                            {"rung", rung_name + (backward ? " backward" : "")},
                            {"problem", attention::describe(problem)},
                            {"schedule", schedule + " " + std::to_string(seed)},
                            {"cta", cta},
                            {"build", ladder::build_description()},
                            {"commit", ladder::build_commit()}};
        output.commit(json{{"traceEvents", trace_events(gpu::trace(), cta)}, {"metadata", about}}.dump() + '\n');
    } catch (const std::exception& error) {
        std::cerr << "trace: " << error.what() << '\n';
        return 1;
    }
    return 0;
}
