// The same for what came with compute capability 10.0: tensor memory, and two numbers at once (target 100a).
#include "common/gpu/gpu.h"

using namespace gpu;

#define PROBE extern "C" __global__ void

PROBE tcgen05_alloc_64(std::uint32_t destination) { tcgen05_alloc<64>(destination); }
PROBE tcgen05_alloc_512_2(std::uint32_t destination) { tcgen05_alloc<512, 2>(destination); }
PROBE tcgen05_dealloc_64(std::uint32_t address) { tcgen05_dealloc<64>(address); }
PROBE tcgen05_dealloc_512_2(std::uint32_t address) { tcgen05_dealloc<512, 2>(address); }
PROBE tcgen05_relinquish_alloc_permit_1() { tcgen05_relinquish_alloc_permit(); }
PROBE tcgen05_relinquish_alloc_permit_2() { tcgen05_relinquish_alloc_permit<2>(); }

struct Floats {
    float x[4];
};
struct Words {
    std::uint32_t x[2];
};
PROBE tcgen05_ld_float_4(float* out, std::uint32_t address) {
    float x[4];
    gpu::tcgen05_ld(x, address);
    for (int i = 0; i < 4; ++i) out[i] = x[i];
}
PROBE tcgen05_ld_pack_2(std::uint32_t* out, std::uint32_t address) {
    std::uint32_t x[2];
    gpu::tcgen05_ld_pack_16b(x, address);
    for (int i = 0; i < 2; ++i) out[i] = x[i];
}
PROBE tcgen05_st_float_4(std::uint32_t address, Floats registers) { gpu::tcgen05_st(address, registers.x); }
PROBE tcgen05_st_unpack_2(std::uint32_t address, Words registers) { gpu::tcgen05_st_unpack_16b(address, registers.x); }
PROBE tcgen05_wait_ld() { gpu::tcgen05_wait_ld(); }
PROBE tcgen05_wait_st() { gpu::tcgen05_wait_st(); }
PROBE tcgen05_fence_before_thread_sync() { gpu::tcgen05_fence_before_thread_sync(); }
PROBE tcgen05_fence_after_thread_sync() { gpu::tcgen05_fence_after_thread_sync(); }

PROBE tcgen05_mma_ss_1(std::uint32_t d, std::uint64_t a, std::uint64_t b, std::uint32_t instruction, int accumulate) {
    tcgen05_mma_ss(d, a, b, instruction, accumulate != 0);
}
PROBE tcgen05_mma_ss_2(std::uint32_t d, std::uint64_t a, std::uint64_t b, std::uint32_t instruction, int accumulate) {
    tcgen05_mma_ss<2>(d, a, b, instruction, accumulate != 0);
}
PROBE tcgen05_mma_ts_1(std::uint32_t d, std::uint32_t a, std::uint64_t b, std::uint32_t instruction, int accumulate) {
    tcgen05_mma_ts(d, a, b, instruction, accumulate != 0);
}
PROBE tcgen05_mma_ts_2(std::uint32_t d, std::uint32_t a, std::uint64_t b, std::uint32_t instruction, int accumulate) {
    tcgen05_mma_ts<2>(d, a, b, instruction, accumulate != 0);
}
PROBE tcgen05_commit_1(std::uint32_t barrier) { tcgen05_commit(barrier); }
PROBE tcgen05_commit_2(std::uint32_t barrier) { tcgen05_commit<2>(barrier); }
PROBE tcgen05_commit_multicast_1(std::uint32_t barrier, std::uint16_t cta_mask) {
    tcgen05_commit_multicast(barrier, cta_mask);
}
PROBE tcgen05_commit_multicast_2(std::uint32_t barrier, std::uint16_t cta_mask) {
    tcgen05_commit_multicast<2>(barrier, cta_mask);
}
PROBE tcgen05_cp_1(std::uint32_t address, std::uint64_t descriptor) { tcgen05_cp_128x256b(address, descriptor); }
PROBE tcgen05_cp_2(std::uint32_t address, std::uint64_t descriptor) { tcgen05_cp_128x256b<2>(address, descriptor); }

PROBE fma_rn_x2(FloatPair* out, FloatPair a, FloatPair b, FloatPair c) { out[0] = gpu::fma_rn_x2(a, b, c); }
PROBE mul_rn_x2(FloatPair* out, FloatPair a, FloatPair b) { out[0] = gpu::mul_rn_x2(a, b); }
PROBE add_rn_x2(FloatPair* out, FloatPair a, FloatPair b) { out[0] = gpu::add_rn_x2(a, b); }
PROBE add_rm_x2(FloatPair* out, FloatPair a, FloatPair b) { out[0] = gpu::add_rm_x2(a, b); }
