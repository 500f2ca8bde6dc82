// A warpgroup: four consecutive warps, the first of which has a number divisible by 4. What it does as one besides
// wgmma. PTX ISA: setmaxnreg, elect.sync.
#pragma once

#include "common/gpu/warp.h"

namespace gpu {

constexpr int warpgroup_size = 128;

/// Number of this thread's warpgroup in its CTA, the same for all lanes of a warp and known so to the compiler (roles
/// are chosen by it without divergence).
GPU_DEVICE int warpgroup_id() {
#if GPU_EMULATOR
    return threadIdx.x / warpgroup_size;
#else
    return __shfl_sync(all_lanes, threadIdx.x / warpgroup_size, 0);
#endif
}

/// elect.sync _|elected, 0xFFFFFFFF: true in one lane of the warp (on an H200 the lowest), the same at every call. All
/// 32 lanes take part.
GPU_DEVICE bool elect_sync(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    return emulator::elect_sync(site);
#else
    std::uint32_t elected;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "elect.sync _|p, 0xFFFFFFFF;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(elected));
    return elected != 0;
#endif
}

/// setmaxnreg.dec.sync.aligned.u32 n: each thread of the warpgroup keeps n registers (24 ... 256, a multiple of 8) and
/// gives the rest back to the CTA. All four warps. The kernel needs __launch_bounds__: without a register count at
/// entry ptxas ignores it.
template <int n>
GPU_DEVICE void setmaxnreg_dec(GPU_ONLY_SITE) {
    static_assert(n >= 24 && n <= 256 && n % 8 == 0);
#if GPU_EMULATOR
    emulator::setmaxnreg(n, false, site);
#else
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
#endif
}

/// setmaxnreg.inc.sync.aligned.u32 n: each thread takes registers up to n, waiting until others have given enough back.
template <int n>
GPU_DEVICE void setmaxnreg_inc(GPU_ONLY_SITE) {
    static_assert(n >= 24 && n <= 256 && n % 8 == 0);
#if GPU_EMULATOR
    emulator::setmaxnreg(n, true, site);
#else
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
#endif
}

}  // namespace gpu
