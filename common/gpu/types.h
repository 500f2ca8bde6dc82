// Number types and short vectors of kernels: CUDA's own with the toolkit, bit-for-bit equal ones without.
#pragma once

#include "common/gpu/machine.h"

#if GPU_EMULATOR
#include "common/gpu/emulator/number_types.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace gpu {

#if GPU_EMULATOR
using fp16 = emulator::fp16;
using bf16 = emulator::bf16;
#else
using fp16 = __half;
using bf16 = __nv_bfloat16;
#endif

/// n elements that one load or store moves at once (n * sizeof(T) is 4, 8 or 16 bytes, and so is the alignment).
template <class T, int n>
struct alignas(n * sizeof(T)) Vector {
    T element[n];
    GPU_HOST_DEVICE T& operator[](int i) { return element[i]; }
    GPU_HOST_DEVICE const T& operator[](int i) const { return element[i]; }
};

/// cvt.rn.{f16,bf16}.f32: nearest even; NaN becomes 0x7FFF. fp32 stays as it is. PTX ISA: cvt.
template <class T>
GPU_DEVICE T cvt_rn(float value);
template <>
GPU_DEVICE float cvt_rn<float>(float value) {
    return value;
}
template <>
GPU_DEVICE fp16 cvt_rn<fp16>(float value) {
#if GPU_EMULATOR
    return emulator::to_fp16(value);
#else
    return __float2half_rn(value);
#endif
}
template <>
GPU_DEVICE bf16 cvt_rn<bf16>(float value) {
#if GPU_EMULATOR
    return emulator::to_bf16(value);
#else
    return __float2bfloat16_rn(value);
#endif
}

/// Element by element.
template <class T, int n>
GPU_DEVICE Vector<T, n> cvt_rn(const Vector<float, n>& values) {
    Vector<T, n> result;
    for (int i = 0; i < n; ++i) result[i] = cvt_rn<T>(values[i]);
    return result;
}

/// The exact fp32 value of a stored element.
GPU_DEVICE float to_float(float value) { return value; }
#if GPU_EMULATOR
using emulator::to_float;
#else
GPU_DEVICE float to_float(fp16 value) { return __half2float(value); }
GPU_DEVICE float to_float(bf16 value) { return __bfloat162float(value); }
#endif

/// cvt.rn.{f16x2,bf16x2}.f32 d, high, low: two values rounded to T in one register, `low` in bits 15:0. PTX ISA 9.7.9
/// (cvt).
template <class T>
GPU_DEVICE std::uint32_t cvt_rn_x2(float low, float high);
template <>
GPU_DEVICE std::uint32_t cvt_rn_x2<fp16>(float low, float high) {
#if GPU_EMULATOR
    return emulator::to_fp16(low).bits | static_cast<std::uint32_t>(emulator::to_fp16(high).bits) << 16;
#else
    std::uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
#endif
}
template <>
GPU_DEVICE std::uint32_t cvt_rn_x2<bf16>(float low, float high) {
#if GPU_EMULATOR
    return emulator::to_bf16(low).bits | static_cast<std::uint32_t>(emulator::to_bf16(high).bits) << 16;
#else
    std::uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
#endif
}

}  // namespace gpu
