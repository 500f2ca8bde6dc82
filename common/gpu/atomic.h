// Atomic additions in global memory. PTX ISA: red.
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

}  // namespace gpu
