// The backward rungs of stage 02.
#pragma once

#include <optional>
#include <string>

#include "common/ladder/registry.h"

namespace stage02 {

/// Rung::refuses of 02a, forward and backward.
inline std::optional<std::string> refuses_a(const attention::Problem& problem) {
    if (problem.d > 256) return "takes d up to 256, not " + std::to_string(problem.d);
    return std::nullopt;
}

void register_backward(ladder::Registry& registry);

}  // namespace stage02
