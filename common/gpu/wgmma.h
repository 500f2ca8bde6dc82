// wgmma: a warpgroup multiplies a 64 x 16 by a 16 x N matrix on the tensor cores, while its threads go on. PTX ISA:
// wgmma.
//
// D = A B (+ D) with D 64 x N in fp32, in the registers of the 128 threads. B comes from shared memory by its
// descriptor (PanelTile), A too or from registers. With w = warp of the warpgroup, g = lane / 4, t = lane % 4 a thread
// holds
//
//   D  N / 2 fp32 registers                  register i:          row 16 w + g + 8 (i / 2 % 2)   column 8 (i / 4) + 2t + i % 2
//   A  4 registers of two 16-bit elements    register j, half e:  row 16 w + g + 8 (j % 2)       k      2t + 8 (j / 2) + e
//
// So the D registers 8i ... 8i + 7 of one product, rounded to 16 bits and packed in pairs, are the A registers of k16
// step i of the next: P goes from S to P V without leaving its lanes.
//
// The life of a product: wgmma_fence once after ordinary code has touched the registers of D or A; any number of wgmma;
// commit_group; wait_group. Until the wait that covers it D and A in registers must not be touched, and shared memory
// that it reads not be written. What ordinary stores wrote into an operand needs fence_proxy_async and a barrier
// before. All 128 threads come together.
//
// PTX leaves order and rounding of the sum open. The emulator computes what an H200 does, bit for bit; the rule is that
// of mma.h.
#pragma once

#include "common/gpu/panel_tile.h"
#include "common/gpu/registers.h"

namespace gpu {

/// wgmma.fence.sync.aligned: what ordinary code did to `registers`, arrays of D or A (up to eight), is done before the
/// products that follow.
#if GPU_EMULATOR
inline void wgmma_fence(
    RegisterArray a = {}, RegisterArray b = {}, RegisterArray c = {}, RegisterArray d = {}, RegisterArray e = {},
    RegisterArray f = {}, RegisterArray g = {}, RegisterArray h = {} GPU_SITE) {
    emulator::wgmma_fence({a, b, c, d, e, f, g, h}, site);
}
#else
template <class... Registers>
GPU_DEVICE void wgmma_fence(Registers&... registers) {
    (keep_in_order(registers), ...);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
#endif

/// wgmma.commit_group.sync.aligned: the products since the last commit become one group.
GPU_DEVICE void wgmma_commit_group(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    emulator::wgmma_commit_group(site);
#else
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

/// wgmma.wait_group.sync.aligned pending: wait until at most `pending` of the youngest groups are under way.
/// `registers` are the arrays of D and A (up to eight) that the finished ones used: from here on they may be touched.
#if GPU_EMULATOR
template <int pending>
void wgmma_wait_group(
    RegisterArray a = {}, RegisterArray b = {}, RegisterArray c = {}, RegisterArray d = {}, RegisterArray e = {},
    RegisterArray f = {}, RegisterArray g = {}, RegisterArray h = {} GPU_SITE) {
    emulator::wgmma_wait_group(pending, {a, b, c, d, e, f, g, h}, site);
}
#else
template <int pending, class... Registers>
GPU_DEVICE void wgmma_wait_group(Registers&... registers) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
    (keep_in_order(registers), ...);
}
#endif

#if !GPU_EMULATOR
#include "common/gpu/wgmma_forms.inc"
#endif

/// wgmma.mma_async.sync.aligned.m64nNk16.f32.T.T d, a, b, accumulate, 1, 1, a_major, b_major (T = f16 or bf16, N = 2 x
/// size of d): both operands from shared memory. accumulate: D = A B + D, else D = A B.
template <class T, Major a_major, Major b_major, int n>
GPU_DEVICE void wgmma_m64k16(float (&d)[n], std::uint64_t a, std::uint64_t b, bool accumulate GPU_SITE) {
#if GPU_EMULATOR
    emulator::wgmma(
        {std::is_same_v<T, bf16>, 2 * n, d, nullptr, a, b, a_major == Major::mn, b_major == Major::mn, accumulate},
        site);
#else
    wgmma_form<T, int(a_major), int(b_major)>(d, a, b, accumulate);
#endif
}

/// The same with A in registers.
template <class T, Major b_major, int n>
GPU_DEVICE void wgmma_m64k16(float (&d)[n], const std::uint32_t (&a)[4], std::uint64_t b, bool accumulate GPU_SITE) {
#if GPU_EMULATOR
    emulator::wgmma({std::is_same_v<T, bf16>, 2 * n, d, a, 0, b, false, b_major == Major::mn, accumulate}, site);
#else
    wgmma_form<T, int(b_major)>(d, a, b, accumulate);
#endif
}

}  // namespace gpu
