// Shared memory has two doors: ordinary loads and stores (the generic proxy), and the engines that copy tiles or feed
// the tensor cores (the async proxy). A barrier orders threads, not doors. PTX ISA: membar / fence, proxies.
#pragma once

#include "common/gpu/machine.h"

namespace gpu {

/// fence.proxy.async.shared::cta: what this thread wrote to shared memory with ordinary stores, engines may read after
/// the next barrier. By every thread that wrote, before that barrier. Bytes that a copy engine wrote need none: who saw
/// its barrier complete may read them through either door.
GPU_DEVICE void fence_proxy_async(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    emulator::fence_proxy_async(site);
#else
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace gpu
