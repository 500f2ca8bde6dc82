// gpu_probes: what the primitives of common/gpu answer on this machine, recorded or compared with a recording.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "common/gpu/launch.h"
#include "common/gpu/tests/probes/recording.h"

namespace {

/// True if nothing differs.
bool print(const std::vector<probes::Agreement>& agreements) {
    bool equal = true;
    for (const probes::Agreement& agreement : agreements) {
        std::printf("%-44s %7zu of %7zu words agree%s%s\n", agreement.name.c_str(), agreement.agreeing,
                    agreement.compared,
                    agreement.difference.empty() ? "" : "; DIFFERENT: ", agreement.difference.c_str());
        equal = equal && agreement.difference.empty();
    }
    return equal;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Runs every primitive of common/gpu on fixed operands.");
    std::string written, compared;
    bool warpgroup = false, engines = false;
    app.add_flag("--warpgroup", warpgroup, "the primitives of warpgroups instead, on a GPU of compute capability 9.0");
    app.add_flag("--engines", engines, "copy engines, mbarriers and clusters instead, likewise");
    app.add_option("--write", written, "record the answers of this machine in this file");
    app.add_option("--compare", compared, "compare the answers of this machine with this recording");
    CLI11_PARSE(app, argc, argv);
    try {
        const std::string machine = gpu::device().name;
        const std::vector<probes::Probe> answers = warpgroup ? probes::run_warpgroup_probes()
                                                   : engines ? probes::run_engine_probes()
                                                             : probes::run_probes();
        std::printf("%zu probes ran on %s\n", answers.size(), machine.c_str());
        if (!written.empty()) probes::write(written, probes::record(machine, answers));
        if (compared.empty()) return 0;
        const probes::Recording recording = probes::read(compared);
        std::printf("compared with %s:\n", recording.machine.c_str());
        return print(probes::compare(answers, recording)) ? 0 : 1;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
