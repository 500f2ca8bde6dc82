// The clock of a multiprocessor. PTX ISA: %clock64.
#pragma once

#include "common/gpu/machine.h"

namespace gpu {

/// mov.u64 now, %clock64: cycles of the multiprocessor since some time in the past, the same for all threads of a CTA.
/// A compiler keeps it in place among barriers, waits and copies; arithmetic it may move past it. The emulator has no
/// cycles: there it is a logical time, the number of operations of any thread or engine since the launch began, so that
/// it tells before from after and nothing else.
GPU_DEVICE std::int64_t clock(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    return emulator::clock(site);
#else
    std::int64_t now;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
    return now;
#endif
}

}  // namespace gpu
