// Who was at what when: the recorder behind common/gpu/trace.h.
#pragma once

#include <vector>

#include "common/gpu/trace.h"

namespace emulator {

struct AsyncOperation;
struct Thread;
struct Waiting;

struct Trace {
    std::int64_t cta = -1;  // whose threads are recorded; -1: nobody's
    std::vector<gpu::TraceSpan> spans;

    bool records(const Thread& thread) const;
    void waited(const Thread& thread, const Waiting& waiting, std::int64_t begin, std::int64_t end);
    void performed(const AsyncOperation& operation, std::int64_t end);
    void exits(const Thread& thread, std::int64_t end);
};

extern Trace trace;

}  // namespace emulator
