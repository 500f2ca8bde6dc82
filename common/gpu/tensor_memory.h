// Tensor memory: 128 lanes x 512 columns of 32-bit cells beside the tensor cores of a Blackwell SM. Products (tcgen05.h)
// keep their sums there, and may read A from there. PTX ISA: tcgen05, tensor memory. sm_100a.
//
// An address is lane << 16 | column; add columns as plain numbers. A warp reaches the lanes 32 q ... 32 q + 31 only, with
// q = its number in the CTA % 4, and all columns: so a warpgroup reaches all, one lane a thread.
//
// A CTA allocates columns, by one warp, and gives them back before it ends. What they hold at first is undefined.
//
// ld and st are asynchronous, as products are, and nothing orders them but
//
//   ld, wait_ld                    the registers hold the cells, which may be overwritten
//   st, wait_st                    the cells hold the registers
//   a product, commit, mbarrier    its sums are complete, its operands read
//   fence_before_thread_sync       what this thread has waited for is done, for those whom it then signals
//   fence_after_thread_sync        what this thread issues from here on comes after what it has been told of
//
// So from one thread to another: (wait_ld, wait_st), fence_before, arrive | wait, fence_after, (ld, st, product). A commit
// needs no fence before.
#pragma once

#include "common/gpu/registers.h"

namespace gpu {

constexpr int tmem_lanes = 128, tmem_columns = 512;

/// tcgen05.alloc.cta_group::ctas.sync.aligned.shared::cta.b32 [destination], columns: allocates `columns` (32, 64, 128,
/// 256 or 512; never more than the allocation before) of all lanes, waiting until they are free, and stores the address
/// of the first at the shared address `destination`: a barrier, then other warps may read it. By one warp; ctas = 2: by
/// one warp in each CTA of the pair.
template <int columns, int ctas = 1>
GPU_DEVICE void tcgen05_alloc(std::uint32_t destination GPU_SITE) {
    static_assert(columns >= 32 && columns <= tmem_columns && (columns & (columns - 1)) == 0);
#if GPU_EMULATOR
    emulator::tcgen05_alloc(destination, columns, ctas, site);
#else
    asm volatile("tcgen05.alloc.cta_group::%2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(destination), "n"(columns),
                 "n"(ctas)
                 : "memory");
#endif
}

/// tcgen05.dealloc.cta_group::ctas.sync.aligned.b32 address, columns: gives back what one alloc got, whole. By one warp
/// (ctas = 2: of each CTA), after everything that used it.
template <int columns, int ctas = 1>
GPU_DEVICE void tcgen05_dealloc(std::uint32_t address GPU_SITE) {
    static_assert(columns >= 32 && columns <= tmem_columns && (columns & (columns - 1)) == 0);
#if GPU_EMULATOR
    emulator::tcgen05_dealloc(address, columns, ctas, site);
#else
    asm volatile("tcgen05.dealloc.cta_group::%2.sync.aligned.b32 %0, %1;" ::"r"(address), "n"(columns), "n"(ctas)
                 : "memory");
#endif
}

/// tcgen05.relinquish_alloc_permit.cta_group::ctas.sync.aligned: this CTA allocates no more; another one on the SM may.
template <int ctas = 1>
GPU_DEVICE void tcgen05_relinquish_alloc_permit(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    emulator::tcgen05_relinquish_alloc_permit(ctas, site);
#else
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::%0.sync.aligned;" ::"n"(ctas) : "memory");
#endif
}

#if !GPU_EMULATOR
#include "common/gpu/tensor_memory_forms.inc"
#endif

/// tcgen05.ld.sync.aligned.32x32b.xn.b32: register i of lane t becomes the cell of the warp's lane t, column i from
/// `address` on (the same in all lanes of the warp). Not before tcgen05_wait_ld. R: float or std::uint32_t; n: 1, 2, 4,
/// ... 128.
template <class R, int n>
GPU_DEVICE void tcgen05_ld(R (&registers)[n], std::uint32_t address GPU_SITE) {
    static_assert(sizeof(R) == 4);
#if GPU_EMULATOR
    emulator::tcgen05_ld(registers, n, false, address, site);
#else
    tcgen05_ld_form(registers, address);
#endif
}

/// tcgen05.ld.sync.aligned.32x32b.xn.pack::16b.b32: register i becomes the low 16 bits of columns 2 i and 2 i + 1.
template <int n>
GPU_DEVICE void tcgen05_ld_pack_16b(std::uint32_t (&registers)[n], std::uint32_t address GPU_SITE) {
#if GPU_EMULATOR
    emulator::tcgen05_ld(registers, n, true, address, site);
#else
    tcgen05_ld_pack_16b_form(registers, address);
#endif
}

/// tcgen05.st.sync.aligned.32x32b.xn.b32: the way back. The cells hold the registers from tcgen05_wait_st on.
template <class R, int n>
GPU_DEVICE void tcgen05_st(std::uint32_t address, const R (&registers)[n] GPU_SITE) {
    static_assert(sizeof(R) == 4);
#if GPU_EMULATOR
    emulator::tcgen05_st(address, registers, n, false, site);
#else
    tcgen05_st_form(address, registers);
#endif
}

/// tcgen05.st.sync.aligned.32x32b.xn.unpack::16b.b32: the two halves of register i go to the low 16 bits of columns 2 i
/// and 2 i + 1. PTX does not say what the high ones hold then.
template <int n>
GPU_DEVICE void tcgen05_st_unpack_16b(std::uint32_t address, const std::uint32_t (&registers)[n] GPU_SITE) {
#if GPU_EMULATOR
    emulator::tcgen05_st(address, registers, n, true, site);
#else
    tcgen05_st_unpack_16b_form(address, registers);
#endif
}

/// tcgen05.wait::ld.sync.aligned: all tcgen05_ld of the warp are done. `registers` are the arrays (up to four) that they
/// filled: not to be touched before.
#if GPU_EMULATOR
inline void tcgen05_wait_ld(
    RegisterArray a = {}, RegisterArray b = {}, RegisterArray c = {}, RegisterArray d = {} GPU_SITE) {
    emulator::tcgen05_wait_ld({a, b, c, d}, site);
}
#else
template <class... Registers>
GPU_DEVICE void tcgen05_wait_ld(Registers&... registers) {
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
    (keep_in_order(registers), ...);
}
#endif

/// tcgen05.wait::st.sync.aligned: all tcgen05_st of the warp are done.
GPU_DEVICE void tcgen05_wait_st(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    emulator::tcgen05_wait_st(site);
#else
    asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
#endif
}

/// tcgen05.fence::before_thread_sync: see above.
GPU_DEVICE void tcgen05_fence_before_thread_sync(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    emulator::tcgen05_fence_before_thread_sync(site);
#else
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
#endif
}

/// tcgen05.fence::after_thread_sync: see above.
GPU_DEVICE void tcgen05_fence_after_thread_sync(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    emulator::tcgen05_fence_after_thread_sync(site);
#else
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
#endif
}

}  // namespace gpu
