// ldmatrix: 8x8 matrices of 16-bit elements from shared memory into the register layout of mma.sync. PTX ISA: ldmatrix.
//
// Matrix i (0 ... 3) is given by the eight row addresses that lanes 8i ... 8i + 7 pass; each points at 16 bytes,
// aligned to 16. Register i of lane l then holds two elements of matrix i:
//
//           low half                     high half
//   plain   row l / 4, column 2 (l % 4)  row l / 4, column 2 (l % 4) + 1
//   .trans  row 2 (l % 4), column l / 4  row 2 (l % 4) + 1, column l / 4
//
// What lane l points at, to load a 16x16 block for mma.sync:
//
//   operand                    row                  column            form    registers
//   A, stored [m][k]           l % 16               8 (l / 16)        plain   a0 a1 a2 a3
//   A, stored [k][m]           l % 8 + 8 (l / 16)   8 (l / 8 % 2)     .trans  a0 a1 a2 a3
//   B, stored [n][k]           l % 8 + 8 (l / 16)   8 (l / 8 % 2)     plain   b0 b1 of n 0-7, b0 b1 of n 8-15
//   B, stored [k][n]           l % 16               8 (l / 16)        .trans  b0 b1 of n 0-7, b0 b1 of n 8-15
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

/// stmatrix.sync.aligned.m8n8.x4.shared.b16 [address], {r0, r1, r2, r3}: the way back, with the same addresses and
/// lanes; all 32 lanes. sm_90 and later.
GPU_DEVICE void stmatrix_x4(std::uint32_t address, const std::uint32_t (&r)[4] GPU_SITE) {
#if GPU_EMULATOR
    emulator::stmatrix_x4(address, r, site);
#else
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
#endif
}

}  // namespace gpu
