// ldmatrix: 8x8 matrices of 16-bit elements from shared memory into the register layout of mma.sync. PTX
// ISA 9.7.14.5.15.
//
// Matrix i (0..3) is given by the eight row addresses that lanes 8i ... 8i + 7 pass; each points at 16 bytes, aligned
// to 16. Register i of a lane then holds, of matrix i:
//   plain:  row lane / 4, columns 2 (lane % 4) (low half) and 2 (lane % 4) + 1 (high half)
//   .trans: column lane / 4, rows 2 (lane % 4) (low half) and 2 (lane % 4) + 1 (high half)
//
// Lane addresses for a 16x16 block (l = lane):
//   A of an mma, stored [m][k]:         row l % 16, column 8 (l / 16), plain   -> the four registers of A
//   B of two n8 mmas, stored [n][k]:    row l % 8 + 8 (l / 16), column 8 (l / 8 % 2), plain -> {b0, b1} of n 0-7, then
//   of n 8-15 B of two n8 mmas, stored [k][n]:    row l % 16, column 8 (l / 16), .trans  -> {b0, b1} of n 0-7, then of
//   n 8-15
#pragma once

#include "common/gpu/machine.h"

namespace gpu {

/// ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r0, r1, r2, r3}, [address]; all 32 lanes.
GPU_DEVICE void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address GPU_SITE) {
#if GPU_EMULATOR
    emulator::ldmatrix_x4(r, address, false, site);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
#endif
}

/// ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {r0, r1, r2, r3}, [address]; all 32 lanes.
GPU_DEVICE void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t address GPU_SITE) {
#if GPU_EMULATOR
    emulator::ldmatrix_x4(r, address, true, site);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
#endif
}

}  // namespace gpu
