// What the warps of a CTA and their engines are at, recorded by the emulator in its logical time: who waits for whom.
// common/profile/trace_main.cc writes it as a trace file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/gpu/machine.h"

namespace gpu {

/// From here on this thread plays the part `name`, `number` if there are several (0, 1, ...; -1: one alone): a name for
/// traces. On a GPU it is nothing.
GPU_DEVICE void role([[maybe_unused]] const char* name, [[maybe_unused]] int number = -1) {
    EMULATED(emulator::role(name, number));
}

/// part: a thread's, from its call of role() to its end. wait: at a barrier. engine: an operation that it ordered, from
/// issue to end.
enum class TraceKind { part, wait, engine };

/// Of the first lane of a warp with a role. Times count all operations of all threads and engines of the launch.
struct TraceSpan {
    TraceKind kind;
    int warp;
    std::string role;   // "softmax 0"
    std::string what;   // the instruction; of a part empty
    std::string where;  // file and line
    std::int64_t begin, end;
};

#if GPU_EMULATOR
/// Launches from now on record the CTA with this number; -1: none.
void record_trace(std::int64_t cta);
/// Of all launches since record_trace().
const std::vector<TraceSpan>& trace();
#endif

}  // namespace gpu
