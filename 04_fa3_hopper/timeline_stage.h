// 04b, 04c and 04d with marks: what their warpgroups are at, and when.
#pragma once

#include <string>
#include <vector>

#include "04_fa3_hopper/timeline.h"
#include "common/attention/problem.h"

namespace stage04 {

/// At `time`, of gpu::clock, a warpgroup turned to what `mark` says.
struct Event {
    Mark mark;
    std::int64_t time;
};

/// Runs 04b, 04c or 04d (`letter`) on a problem of bf16 and d = 128, and returns what each warpgroup of a CTA did, in order; on a GPU of the last
/// of several launches. Throws std::runtime_error if the problem or the CTA is another or the rung's results are wrong.
std::vector<std::vector<Event>> record(const std::string& letter, const attention::Problem& problem, int cta);

}  // namespace stage04
