// Runs the rungs of one namespace on small problems under the standard schedules until something is noticed, and says
// what: one line of JSON {kind, schedule, seed, problem, report}. A deterministic rung must repeat its bits.
// Exit 0: nothing was noticed, 1: something was, 2: there is no such rung.
#include <CLI/CLI.hpp>
#include <cstring>
#include <deque>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "common/gpu/emulator/options.h"
#include "common/verify/run.h"

namespace {

using attention::DataType;
using attention::Problem;

// Several tiles each way, so that every buffer is filled again while others may still read it; and one tile alone. For rungs with
// copy engines also sequences whose last tiles end in the rows of the next one, and the largest d, for which some lay out shared memory
// otherwise; both have more query tiles than there are CTAs at a time.
std::vector<Problem> problems(bool copy_engines) {
    Problem causal_group;
    causal_group.Hq = 2;
    causal_group.Nq = 140;
    causal_group.Nk = copy_engines ? 400 : 290;  // tiles of up to 128 keys, or of 64
    causal_group.window_right = 0;
    causal_group.type = DataType::fp16;
    Problem wide;
    wide.Nq = 70;
    wide.Nk = 270;
    wide.d = 128;
    wide.scale = attention::default_scale(128);
    Problem one_tile;
    one_tile.Nq = one_tile.Nk = 9;
    if (!copy_engines) return {one_tile, wide, causal_group};
    Problem packed;
    packed.B = 2;
    packed.Nq = 200;
    packed.Nk = 150;
    packed.cu_q = {0, 70, 270};
    packed.cu_k = {0, 150, 290};
    packed.type = DataType::fp16;
    Problem widest;
    widest.B = widest.Hq = 2;
    widest.Nq = 100;
    widest.Nk = 250;
    widest.d = 256;
    widest.cu_q = {0, 100, 120};
    widest.cu_k = {0, 250, 300};
    widest.scale = attention::default_scale(256);
    Problem widest_causal = causal_group;
    widest_causal.Nq = 100;
    widest_causal.Nk = 150;
    widest_causal.d = 256;
    widest_causal.scale = attention::default_scale(256);
    // Persistent CTAs take two or three of these, of however many queries a tile is.
    Problem sequences;
    sequences.B = 5;
    sequences.Nq = 45;
    sequences.Nk = 130;
    sequences.d = 128;
    sequences.cu_q = {0, 20, 45, 90, 110, 130};
    sequences.cu_k = {0, 130, 260, 390, 420, 500};
    sequences.scale = attention::default_scale(128);
    return {one_tile, wide, causal_group, packed, widest, widest_causal, sequences};
}

using emulator::Schedule;
constexpr Schedule seeded[] = {Schedule::random, Schedule::priority, Schedule::async_latest, Schedule::low_warps_first,
                               Schedule::high_warps_first};

std::vector<emulator::Options> seeded_schedules(int seeds) {
    std::vector<emulator::Options> result;
    for (int seed = 1; seed <= seeds; ++seed) {
        emulator::Options options;
        options.schedule = seeded[seed % std::size(seeded)];
        options.seed = seed;
        result.push_back(options);
    }
    return result;
}

const char* kind(const verify::Result& result) {
    if (!result.fault) return "wrong value";
    return result.fault->find("no barrier lies between") != std::string::npos ? "race report" : "protocol report";
}

/// What the rung has written, output after output.
std::vector<float> outputs(const ladder::Rung& rung, const verify::Run& run) {
    using Names = std::vector<const char*>;
    std::vector<float> all;
    for (const char* name : rung.pass == ladder::Pass::backward ? Names{"dQ", "dK", "dV"} : Names{"O", "L"}) {
        const attention::HostTensor output = run.output(name);
        all.insert(all.end(), output.values.begin(), output.values.end());
    }
    return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{"Runs the rungs of one namespace under many schedules"};
    std::string kernels;
    int seeds = 0;
    app.add_option("kernels", kernels, "Namespace of the rung's kernels, e.g. stage02::b")->required();
    app.add_option("--seeds", seeds,
                   "In place of the standard schedules: this many random seeds, the problems taking turns");
    CLI11_PARSE(app, argc, argv);

    ladder::Registry registry;
    ladder::register_stages(registry);
    const auto schedules = seeds > 0 ? seeded_schedules(seeds) : emulator::standard_schedules();
    bool known = false;
    for (const ladder::Rung& rung : registry.rungs()) {
        if (!std::regex_search(kernels + "::", std::regex("^" + rung.kernel_pattern + "$"))) continue;
        known = true;
        std::deque<verify::Case> cases;
        std::map<std::size_t, std::vector<float>> first;  // outputs of a case's first run
        for (const Problem& problem : problems(rung.tensor_maps))
            if (!rung.refuses(problem)) cases.emplace_back(problem);
        for (emulator::Options options : schedules) {
            options.resident_ctas = 3;  // two terms have the same sum in either order
            emulator::set_options(options);
            for (std::size_t n = 0; n < cases.size(); ++n) {
                if (seeds > 0 && options.seed / std::size(seeded) % cases.size() != n) continue;
                const verify::Case& the_case = cases[n];
                // On stderr, so that a race that ThreadSanitizer reports there can be placed.
                std::cerr << "schedule " << emulator::name(options.schedule) << ", seed " << options.seed << std::endl;
                verify::Run run(rung, the_case);
                const verify::Result result = run.verify();
                std::string report = result.verified() ? "" : result.reason();
                if (result.verified() && rung.deterministic) {
                    const std::vector<float> now = outputs(rung, run);
                    if (!same_bits(first.try_emplace(n, now).first->second, now))
                        report = "other bits than under another schedule";
                }
                if (report.empty()) continue;
                const nlohmann::json found = {{"kind", kind(result)},
                                              {"schedule", emulator::name(options.schedule)},
                                              {"seed", options.seed},
                                              {"problem", attention::describe(the_case.problem())},
                                              {"report", report}};
                std::cout << found << std::endl;
                return 1;
            }
        }
    }
    if (!known) {
        std::cerr << "No rung of this build has kernels in " << kernels << "." << std::endl;
        return 2;
    }
    return 0;
}
