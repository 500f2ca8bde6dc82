// Barriers of a CTA. Each CTA has 16, numbered 0 to 15; __syncthreads() is barrier 0 with every thread. PTX ISA: bar,
// barrier.
#pragma once

#include "common/gpu/machine.h"

namespace gpu {

/// bar.sync 0, that is __syncthreads(): every thread of the CTA waits for every other; what each wrote to shared and
/// global memory before is visible to all after. All lanes of a warp come together.
GPU_DEVICE void bar_sync(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    emulator::bar_sync(0, 0, site);
#else
    __syncthreads();
#endif
}

/// barrier.sync id, threads: wait until `threads` threads (a multiple of 32) have arrived at barrier `id`. Lanes of a
/// warp may come one by one.
GPU_DEVICE void barrier_sync(int id, int threads GPU_SITE) {
#if GPU_EMULATOR
    emulator::bar_sync(id, threads, site);
#else
    asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

/// barrier.arrive id, threads: count as arrived and go on, the producer's half of a hand-over.
GPU_DEVICE void barrier_arrive(int id, int threads GPU_SITE) {
#if GPU_EMULATOR
    emulator::bar_arrive(id, threads, site);
#else
    asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

}  // namespace gpu
