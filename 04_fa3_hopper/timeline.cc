// What the warpgroups of one CTA of 04b, 04c or 04d are at, as a trace in Chrome's format: stage_04_timeline --help.
// ui.perfetto.dev opens it, and common/plots/timeline.py draws it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "04_fa3_hopper/timeline.h"
#include "common/gpu/launch.h"
#include "common/ladder/output_file.h"
#include "common/ladder/registry.h"

namespace {

using nlohmann::json;
using stage04::Event;
using stage04::Mark;

struct Span {
    const char *name, *category;
};

/// What a warpgroup's threads are at after each mark, in the order of Mark.
constexpr Span spans[] = {{"wait for a free slot", "wait"},
                          {"order K", "copy"},
                          {"order V", "copy"},
                          {"wait for K", "wait"},
                          {"wait for V", "wait"},
                          {"wait for the turn", "turn"},
                          {"issue S and wait for it", "issue"},
                          {"softmax", "softmax"},
                          {"issue O and wait for it", "issue"},
                          {nullptr, nullptr},
                          {"pack W, rescale O", "softmax"}};
static_assert(std::size(spans) == int(Mark::rescale) + 1);

/// Time of a product, from when it is issued and the one before it complete, for tensor cores carry out the products of
/// a warpgroup in order, to the end of the wait for it.
struct Product {
    const char* name;
    std::int64_t begin, end;
};

std::vector<Product> products(const std::vector<Event>& events) {
    std::vector<Product> under_way, complete;
    const auto finish = [&](const std::string& name, std::int64_t time) {
        const auto product =
            std::find_if(under_way.begin(), under_way.end(), [&](const Product& p) { return p.name == name; });
        if (product == under_way.end()) return;
        product->end = time;
        if (!complete.empty()) product->begin = std::max(product->begin, complete.back().end);
        complete.push_back(*product);
        under_way.erase(product);
    };
    for (const Event& event : events) {
        if (event.mark == Mark::S) under_way.push_back({"S", event.time, 0});
        if (event.mark == Mark::O) under_way.push_back({"O", event.time, 0});
        if (event.mark == Mark::softmax) finish("S", event.time);
        if (event.mark == Mark::O_done || event.mark == Mark::rescale) finish("O", event.time);
    }
    return complete;
}

/// Two tracks for each warpgroup w: 2 w, its products on the tensor cores, and 2 w + 1, what its threads are at. Times
/// count from the first mark.
json trace_events(const std::vector<std::vector<Event>>& warpgroups, int cta) {
    std::int64_t zero = std::numeric_limits<std::int64_t>::max();
    for (const auto& events : warpgroups)
        for (const Event& event : events) zero = std::min(zero, event.time);

    json trace = json::array();
    const auto name = [&](const char* what, int track, const std::string& name) {
        trace.push_back({{"ph", "M"}, {"name", what}, {"pid", cta}, {"tid", track}, {"args", {{"name", name}}}});
    };
    const auto add = [&](int track, Span span, std::int64_t begin, std::int64_t end) {
        trace.push_back({{"ph", "X"},
                         {"name", span.name},
                         {"cat", span.category},
                         {"pid", cta},
                         {"tid", track},
                         {"ts", begin - zero},
                         {"dur", end - begin}});
    };
    name("process_name", 0, "CTA " + std::to_string(cta));
    for (int w = 0; w < int(warpgroups.size()); ++w) {
        const std::string warpgroup = w == 0 ? "producer" : "warpgroup " + std::to_string(w);
        if (w > 0) name("thread_name", 2 * w, warpgroup + ", products");
        name("thread_name", 2 * w + 1, warpgroup);
        for (const Product& product : products(warpgroups[w]))
            add(2 * w, {product.name, "product"}, product.begin, product.end);
        const auto& events = warpgroups[w];
        for (std::size_t n = 0; n + 1 < events.size(); ++n) {
            // After O a warpgroup of 04c waits for S on, which it has issued behind O.
            const bool waits_on = events[n].mark == Mark::O_done && events[n + 1].mark == Mark::softmax;
            const Span span = spans[int(waits_on ? Mark::S : events[n].mark)];
            if (span.name != nullptr) add(2 * w + 1, span, events[n].time, events[n + 1].time);
        }
    }
    return trace;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Writes what the warpgroups of one CTA of 04b, 04c or 04d are at: a trace for ui.perfetto.dev.");
    std::string rung, file, schedule = "random";
    int query_tiles = 132, keys = 1024, cta = 0;
    std::uint64_t seed = 1;
    app.add_option("RUNG", rung, "b, c or d")->required()->check(CLI::IsMember({"b", "c", "d"}));
    app.add_option("FILE", file, "The trace, in JSON")->required();
    app.add_option("--query-tiles", query_tiles, "Tiles of 128 queries, each a CTA")
        ->capture_default_str()
        ->check(CLI::Range(1, 4096));
    app.add_option("--keys", keys, "Keys")->capture_default_str()->check(CLI::Range(1, 65536));
    app.add_option("--cta", cta, "Whose warpgroups")->capture_default_str();
    app.add_option("--schedule", schedule, "Emulator: the order of events")->capture_default_str();
    app.add_option("--seed", seed, "Emulator: of the order of events")->capture_default_str();
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;
    }
    try {
        const gpu::Device device = gpu::device();
        if (device.emulated) gpu::choose_schedule(schedule, seed);
        ladder::OutputFile output(file);
        attention::Problem problem;
        problem.Nq = 128 * query_tiles;
        problem.Nk = keys;
        problem.d = 128;
        problem.scale = attention::default_scale(problem.d);
        attention::validate(problem);
        const json trace = trace_events(stage04::record(rung, problem, cta), cta);
        const json about = {{"machine", device.emulated ? "emulated" : device.name},
                            {"emulated", device.emulated},
                            {"clock", device.emulated ? "logical time, emulated" : "cycles of the multiprocessor"},
                            {"rung", "04" + rung},
                            {"problem", attention::describe(problem)},
                            {"schedule", device.emulated ? json(schedule + " " + std::to_string(seed)) : json(nullptr)},
                            {"cta", cta},
                            {"build", ladder::build_description()},
                            {"commit", ladder::build_commit()}};
        output.commit(json{{"traceEvents", trace}, {"metadata", about}}.dump() + '\n');
    } catch (const std::exception& error) {
        std::cerr << "stage_04_timeline: " << error.what() << '\n';
        return 1;
    }
    return 0;
}
