// Registers 00d where there is no cuBLAS: known by name, so that a list of rungs is the same everywhere, and refused in words.
#include "00_naive/stage.h"

namespace stage00 {

void register_cublas(ladder::Registry& registry) {
    registry.add(
        {.stage = "00",
         .letter = "d",
         .name = "cublas",
         .pass = ladder::Pass::forward,
         .stores = ladder::Stores::scores,
         .fast = true,
         .kernel_pattern = "stage00::d::",
         .refuses = [](const attention::Problem&) { return "needs cuBLAS, which only the CUDA build has"; },
         .workspaces = [](const attention::Problem&) { return std::vector<ladder::Workspace>{}; },
         .launch = [](const attention::Problem&,
                      ladder::Operands&) { throw std::logic_error("A rung that refuses every problem was launched."); },
         .exponentials = [](const attention::Problem&) { return 0.0; },
         .traffic = nullptr});
}

}  // namespace stage00
