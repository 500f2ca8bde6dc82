// The arithmetic of a tensor core, apart from who holds which element.
#pragma once

#include <cstdint>

namespace emulator {

constexpr int mma_m = 16, mma_n = 8, mma_k = 16;

/// d += a b as mma.sync m16n8k16 of an H200 computes it; a and b are bf16 or fp16 bits.
void multiply_accumulate(bool bf16, const std::uint16_t (&a)[mma_m][mma_k], const std::uint16_t (&b)[mma_k][mma_n],
                         float (&d)[mma_m][mma_n]);

constexpr int wgmma_m = 64;

/// d += a b as one wgmma m64nNk16 computes it: the same rule, for n columns (a multiple of 8) in blocks of eight.
void multiply_accumulate_wide(bool bf16, const std::uint16_t (&a)[wgmma_m][mma_k],
                              const std::uint16_t (*b)[mma_k][mma_n], float (*d)[wgmma_m][mma_n], int n);

}  // namespace emulator
