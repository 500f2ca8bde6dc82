#include "common/verify/stage_tests/stage_tests.h"

#include <stdexcept>

namespace verify {
namespace {

std::vector<ladder::Rung> rungs(const std::function<void(ladder::Registry&)>& register_stage) {
    ladder::Registry registry;
    register_stage(registry);
    return registry.rungs();
}

}  // namespace

std::vector<RungTest> rung_tests(const std::function<void(ladder::Registry&)>& register_stage) {
    std::vector<RungTest> result;
    for (const ladder::Rung& rung : rungs(register_stage)) {
        const bool backward = rung.pass == ladder::Pass::backward;
        for (const auto& list : {grid_tests(), backward ? backward_cases() : forward_cases(), memory_cases(),
                                 modifier_cases(), machine_tests()}) {
            for (const StageTest& test : list) {
                if (test.applies && !test.applies(rung)) continue;
                result.push_back({rung.letter + "_" + ladder::name(rung.pass) + "_" + test.name, rung, test});
            }
        }
    }
    return result;
}

std::ostream& operator<<(std::ostream& stream, const RungTest& test) { return stream << test.name; }

std::vector<std::string> rung_names(const std::function<void(ladder::Registry&)>& register_stage) {
    std::vector<std::string> names;
    for (const ladder::Rung& rung : rungs(register_stage)) names.push_back(rung.letter + " " + ladder::name(rung.pass));
    return names;
}

ladder::Rung find_rung(const std::function<void(ladder::Registry&)>& register_stage, const std::string& letter,
                       ladder::Pass pass) {
    for (const ladder::Rung& rung : rungs(register_stage))
        if (rung.letter == letter && rung.pass == pass) return rung;
    throw std::out_of_range("No rung " + letter + ", " + ladder::name(pass) + ", is registered.");
}

std::size_t workspace_bytes(const ladder::Rung& rung, const attention::Problem& problem) {
    std::size_t bytes = 0;
    for (const ladder::Workspace& workspace : rung.workspaces(problem)) bytes += workspace.bytes;
    return bytes;
}

}  // namespace verify
