// Atomic additions in global memory, and counts by which CTAs wait for each other. PTX ISA: red, ld.
#pragma once

#include "common/gpu/memory.h"

namespace gpu {

/// red.global.add.f32 at (row, column). The order of additions from different threads is open, so sums may differ in
/// the last bits from run to run; subnormal results are flushed to zero.
GPU_DEVICE void red_global_add_f32(const Matrix<float>& matrix, int row, int column, float value GPU_SITE) {
    float* p = matrix.pointer(row, column, 1 GPU_PASS_SITE);
#if GPU_EMULATOR
    emulator::red_global_add(matrix.region, p, value, site);
#else
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(p), "f"(value) : "memory");
#endif
}

/// red.release.gpu.global.add.s32 at (row, column): who reads the sum with ld_acquire_gpu sees what this thread did
/// before.
GPU_DEVICE void red_release_gpu_add(const Matrix<int>& matrix, int row, int column, int value GPU_SITE) {
    int* p = matrix.pointer(row, column, 1 GPU_PASS_SITE);
#if GPU_EMULATOR
    emulator::red_release_gpu_add(matrix.region, p, value, site);
#else
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
#endif
}

/// ld.acquire.gpu.global.s32 at (row, column). In a loop it waits for another CTA, which must have a lower
/// blockIdx: GPUs start CTAs in that order, though CUDA does not promise it, and a CTA that has not begun may never do
/// so while this one occupies its place.
GPU_DEVICE int ld_acquire_gpu(const Matrix<int>& matrix, int row, int column GPU_SITE) {
    const int* p = matrix.pointer(row, column, 1 GPU_PASS_SITE);
#if GPU_EMULATOR
    return emulator::ld_acquire_gpu(matrix.region, p, site);
#else
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
#endif
}

}  // namespace gpu
