#include "common/gpu/emulator/trace.h"

#include "common/gpu/emulator/machine.h"

namespace emulator {

Trace trace;

bool Trace::records(const Thread& thread) const {
    return thread.cta->index == cta && thread.lane() == 0 && !thread.role.empty();
}

void Trace::waited(const Thread& thread, const Waiting& waiting, std::int64_t begin, std::int64_t end) {
    if (!records(thread) || (waiting.mbarrier == nullptr && waiting.barrier < 0)) return;
    spans.push_back(
        {gpu::TraceKind::wait, thread.warp(), thread.role, waiting.instruction, text(waiting.site), begin, end});
}

void Trace::performed(const AsyncOperation& operation, std::int64_t end) {
    const Thread& thread = *operation.issuer;
    if (!records(thread)) return;
    spans.push_back({gpu::TraceKind::engine, thread.warp(), thread.role, operation.name, text(operation.site),
                     operation.issued_at, end});
}

void Trace::exits(const Thread& thread, std::int64_t end) {
    if (!records(thread)) return;
    spans.push_back({gpu::TraceKind::part, thread.warp(), thread.role, "", "", thread.role_begin, end});
}

void role(const char* name, int number) {
    Thread& thread = machine.thread("role");
    thread.role = number < 0 ? name : std::string(name) + " " + std::to_string(number);
    thread.role_begin = machine.time();
}

}  // namespace emulator

namespace gpu {

void record_trace(std::int64_t cta) { emulator::trace = {cta, {}}; }

const std::vector<TraceSpan>& trace() { return emulator::trace.spans; }

}  // namespace gpu
