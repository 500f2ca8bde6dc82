// mma.sync: one warp multiplies a 16x16 by a 16x8 matrix on the tensor cores. PTX ISA: mma, m16n8k16.
//
// D = A B + C with A 16x16 (m x k), B 16x8 (k x n), C and D 16x8 in fp32. A lane with g = lane / 4 and t = lane % 4
// holds
//
//   A  4 registers of two 16-bit elements  register j, half e:  row g + 8 (j % 2)      k 2t + 8 (j / 2) + e
//   B  2 registers of two 16-bit elements  register j, half e:  k 2t + 8j + e          column g
//   C  4 fp32 registers, and so D          register j:          row g + 8 (j / 2)      column 2t + j % 2
//
// (half e = 0 is the low one). So the D registers of two neighbouring n8 products, rounded to 16 bits and packed as
// {d0, d1}, {d2, d3}, {d4, d5}, {d6, d7}, are the A registers of one k16 step: P goes from S to P V without leaving its
// lanes.
//
// PTX leaves order and rounding of the sum open. The emulator computes what an H200 does, bit for bit: products exact,
// every term and C cut toward zero to 25 bits below the largest exponent, added exactly, cut toward zero to fp32.
#pragma once

#include "common/gpu/types.h"

namespace gpu {

/// mma.sync.aligned.m16n8k16.row.col.f32.T.T.f32 d, a, b, d (T = f16 or bf16); all 32 lanes. d is C and becomes D.
template <class T>
GPU_DEVICE void mma_sync_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                  std::uint32_t b1 GPU_SITE) {
#if GPU_EMULATOR
    emulator::mma_m16n8k16(std::is_same_v<T, bf16>, d, a, b0, b1, site);
#else
    if constexpr (std::is_same_v<T, bf16>) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
#endif
}

}  // namespace gpu
