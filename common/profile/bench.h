// The programs `bench` and `stage_NN_bench`: every rung on every problem of a grid, verified, then measured, by one
// protocol (docs/measuring.md). On the emulator, which has no clock, the same program counts.
#pragma once

#include <istream>
#include <ostream>

#include "common/ladder/registry.h"

namespace profile {

/// Runs the rungs of `registry` as the arguments say, prints tables to `out`, progress and refusals to `err`; reads `in`
/// only when it is to measure in step with another program. Returns the exit status: 0 all that ran is right, 1 a rung is
/// wrong or failed, 2 bad arguments (nothing has run), 3 nothing was verified.
int bench(const ladder::Registry& registry, int argc, const char* const* argv, std::istream& in, std::ostream& out,
          std::ostream& err);

/// What a stage's bench.cc consists of: the program with the rungs that `register_stage` adds.
int bench(void (*register_stage)(ladder::Registry&), int argc, const char* const* argv);

}  // namespace profile
