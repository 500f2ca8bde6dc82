// Barriers of a CTA. Each CTA has 16, named 0 to 15; __syncthreads() is barrier 0 with every thread. PTX ISA 9.7.13.1
// (bar, barrier).
#pragma once

#include "common/gpu/machine.h"

namespace gpu {

/// barrier.sync 0: every thread of the CTA waits for every other; shared and global writes before it are visible after
/// it.
GPU_DEVICE void bar_sync(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    emulator::bar_sync(0, 0, site);
#else
    __syncthreads();
#endif
}

/// barrier.sync id, threads: wait until `threads` threads (whole warps: a multiple of 32) have arrived at barrier `id`
/// (0..15).
GPU_DEVICE void bar_sync(int id, int threads GPU_SITE) {
#if GPU_EMULATOR
    emulator::bar_sync(id, threads, site);
#else
    asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

/// barrier.arrive id, threads: count as arrived without waiting (the producer's half of a hand-over).
GPU_DEVICE void bar_arrive(int id, int threads GPU_SITE) {
#if GPU_EMULATOR
    emulator::bar_arrive(id, threads, site);
#else
    asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

}  // namespace gpu
