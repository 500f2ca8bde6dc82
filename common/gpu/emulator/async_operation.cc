#include "common/gpu/emulator/async_operation.h"

#include "common/gpu/emulator/machine.h"

namespace emulator {

bool AsyncOperation::awaited() const { return counted_by() != nullptr && !counted_by()->waiting.empty(); }

void issue(AsyncOperation& operation) {
    auto& pending = operation.issuer->cta->pending;
    operation.pending_index = static_cast<int>(pending.size());
    pending.push_back(&operation);
    operation.issued_at = machine.time();
    tsan::release(operation.issued);
    if (machine.scheduler().perform_at_issue()) machine.perform(operation);
}

void finish(AsyncOperation& operation) {
    while (!operation.performed()) machine.perform(operation);
}

EngineSpeaks::EngineSpeaks(AsyncOperation& operation) : operation_(operation) {
#if GPU_TSAN
    void*& engine = operation.issuer->engine_fiber;
    if (engine == nullptr) engine = __tsan_create_fiber(0);
    self_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(engine, 1);
    tsan::acquire(operation.issued);
#endif
}

EngineSpeaks::~EngineSpeaks() {
#if GPU_TSAN
    tsan::release(operation_.done);
    __tsan_switch_to_fiber(self_, 1);
#endif
}

}  // namespace emulator
