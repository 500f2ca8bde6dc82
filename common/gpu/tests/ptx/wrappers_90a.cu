// The same for the instructions that only compute capability 9.0 has (target 90a).
#include "common/gpu/gpu.h"

using namespace gpu;

#define PROBE extern "C" __global__ void

PROBE wgmma_fence(float* out) {
    float d[2] = {out[0], out[1]};
    gpu::wgmma_fence(d);
    for (int i = 0; i < 2; ++i) out[i] = d[i];
}
PROBE wgmma_commit_group() { gpu::wgmma_commit_group(); }
PROBE wgmma_wait_group_0(float* out) {
    float d[2] = {out[0], out[1]};
    gpu::wgmma_wait_group<0>(d);
    for (int i = 0; i < 2; ++i) out[i] = d[i];
}
PROBE wgmma_wait_group_1() { gpu::wgmma_wait_group<1>(); }

struct Registers {
    float d[32];
    std::uint32_t a[4];
};
template <class T, Major a_major, Major b_major>
__device__ void multiply(float* out, Registers x, std::uint64_t a, std::uint64_t b, int accumulate) {
    wgmma_m64k16<T, a_major, b_major>(x.d, a, b, accumulate != 0);
    for (int i = 0; i < 32; ++i) out[i] = x.d[i];
}
template <class T, Major b_major>
__device__ void multiply(float* out, Registers x, std::uint64_t b, int accumulate) {
    wgmma_m64k16<T, b_major>(x.d, x.a, b, accumulate != 0);
    for (int i = 0; i < 32; ++i) out[i] = x.d[i];
}
PROBE wgmma_bf16_k_k(float* out, Registers x, std::uint64_t a, std::uint64_t b, int accumulate) {
    multiply<bf16, Major::k, Major::k>(out, x, a, b, accumulate);
}
PROBE wgmma_bf16_mn_k(float* out, Registers x, std::uint64_t a, std::uint64_t b, int accumulate) {
    multiply<bf16, Major::mn, Major::k>(out, x, a, b, accumulate);
}
PROBE wgmma_fp16_k_mn(float* out, Registers x, std::uint64_t a, std::uint64_t b, int accumulate) {
    multiply<fp16, Major::k, Major::mn>(out, x, a, b, accumulate);
}
PROBE wgmma_bf16_registers_k(float* out, Registers x, std::uint64_t b, int accumulate) {
    multiply<bf16, Major::k>(out, x, b, accumulate);
}
PROBE wgmma_fp16_registers_mn(float* out, Registers x, std::uint64_t b, int accumulate) {
    multiply<fp16, Major::mn>(out, x, b, accumulate);
}

PROBE setmaxnreg_dec_24() { setmaxnreg_dec<24>(); }
PROBE setmaxnreg_inc_240() { setmaxnreg_inc<240>(); }
