// Registers that an asynchronous instruction reads or writes behind the compiler's back: arrays of a thread, named to the
// instruction that makes them ordinary registers again.
#pragma once

#include "common/gpu/types.h"

namespace gpu {

#if GPU_EMULATOR

using emulator::RegisterArray;

#else

/// Ties registers to this point of the program: neither reads nor writes of them move across it.
template <class R, int n>
GPU_DEVICE void keep_in_order(R (&registers)[n]) {
#pragma unroll
    for (int i = 0; i < n; ++i) {
        if constexpr (std::is_array_v<R>) {
            keep_in_order(registers[i]);
        } else if constexpr (std::is_same_v<R, float>) {
            asm volatile("" : "+f"(registers[i])::"memory");
        } else {
            asm volatile("" : "+r"(registers[i])::"memory");
        }
    }
}

#endif

}  // namespace gpu
