// The arithmetic of a tensor core, apart from who holds which element.
#pragma once

#include <cstdint>

namespace emulator {

constexpr int mma_m = 16, mma_n = 8, mma_k = 16;

/// d += a b as mma.sync m16n8k16 of an H200 computes it; a and b are bf16 or fp16 bits.
void multiply_accumulate(bool bf16, const std::uint16_t (&a)[mma_m][mma_k], const std::uint16_t (&b)[mma_k][mma_n],
                         float (&d)[mma_m][mma_n]);

}  // namespace emulator
