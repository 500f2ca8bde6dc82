// What the warpgroups of 04b, 04c and 04d are at, and when.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/attention/problem.h"

namespace stage04 {

/// What a warpgroup turns to. wait_...: until a slot of the ring is free, K or V has come, or it is its turn. copy_...:
/// the copy is ordered. S, O: the product is issued, then waited for. softmax: S is complete, its softmax begins.
/// O_done: O is complete. rescale: likewise, and the rest of a softmax follows.
enum class Mark { wait_slot, copy_K, copy_V, wait_K, wait_V, wait_turn, S, softmax, O, O_done, rescale };

/// At `time`, of gpu::clock, a warpgroup turned to what `mark` says.
struct Event {
    Mark mark;
    std::int64_t time;
};

/// Runs 04b, 04c or 04d (`letter`) on a problem of bf16 and d = 128, and returns what each warpgroup of a CTA did, in
/// order; on a GPU of the last of several launches. Throws std::runtime_error if rung, problem or CTA are others, or
/// the rung's results are wrong.
std::vector<std::vector<Event>> record(const std::string& letter, const attention::Problem& problem, int cta);

}  // namespace stage04
