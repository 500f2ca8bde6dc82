// Under which circumstances figures came about: they stand at the top of every results file.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/profile/ceiling.h"

namespace profile {

/// {schema, machine, emulated, multiprocessors, clock_mhz, smi, build, debug, commit, command, repetitions}.
/// smi: what nvidia-smi says now: sm_mhz, memory_mhz, power_w, power_limit_w, temperature_c, driver; null without it.
/// debug: assertions are on, so that the host's part is slow; figures of such a build are refused by the gate.
nlohmann::json context(const std::string& command);

/// {name: {per_second, unit, source}}.
nlohmann::json to_json(const std::vector<Ceiling>& ceilings);

}  // namespace profile
