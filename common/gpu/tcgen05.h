// tcgen05: one thread issues products of a whole CTA, or of a pair of CTAs; the sums stay in tensor memory. PTX ISA:
// tcgen05.mma, tcgen05.commit, tcgen05.cp. sm_100a.
//
// D = A B^T (+ D) with A M x 16, B N x 16 in 16 bits and D M x N in fp32. B comes from shared memory by its descriptor
// (PanelTile), A too (_ss) or from tensor memory (_ts). Lane and column, relative to the address passed, of
//
//   D (m, n)           M = 128: lane m, column n        M = 64: lane 32 (m / 16) + m % 16, column n
//   A (m, k), 16 bits  the lane of D (m, 0), column k / 2, k even in the low half
//
// ctas = 2: an instruction of one thread of the even CTA works for both. M = 256: the even CTA has the rows m < 128 of A
// and D, the odd CTA the others; each has half the rows of B (n < N / 2, the others), at the same address; D has the same
// address in both. M = 128 (A from shared memory only): each has 64 rows, D (m, n) in lane m % 64 + 64 (n / (N / 2)),
// column n % (N / 2).
//
// The life of a product: the operands are there (who wrote them with ordinary stores has passed fence_proxy_async, who
// stored them to tensor memory wait_st and fence_before_thread_sync); the thread that issues has waited, and passed
// fence_after_thread_sync; products; commit, by the same thread, to an mbarrier; who has waited for that may read D and
// overwrite the operands. Products of one thread on the same D and of the same shape follow each other. No other two are
// ordered: not one that overwrites what an earlier one reads as A.
//
// The order and rounding of the sums are open in PTX and not known of a Blackwell GPU: the emulator takes the rule of an
// H200 (mma.h) for them. Assumed, not measured.
#pragma once

#include "common/gpu/panel_tile.h"
#include "common/gpu/tensor_memory.h"

namespace gpu {

/// The 32-bit instruction descriptor of kind::f16 with 16-bit operands T and fp32 sums, for products of M x N (of both
/// CTAs together). M: 64 or 128, of a pair 128 or 256; N: 8, 16, ... 256, of a pair multiples of 16.
template <class T>
GPU_HOST_DEVICE constexpr std::uint32_t tcgen05_instruction(int M, int N, Major a_major, Major b_major) {
    constexpr std::uint32_t type = std::is_same_v<T, bf16> ? 1 : 0;
    return 1u << 4 | type << 7 | type << 10 | std::uint32_t(a_major) << 15 | std::uint32_t(b_major) << 16 |
           std::uint32_t(N / 8) << 17 | std::uint32_t(M / 16) << 24;
}

/// What tells a descriptor of tcgen05 from one of wgmma, which PanelTile gives: its version.
GPU_HOST_DEVICE constexpr std::uint64_t tcgen05_descriptor(std::uint64_t matrix_descriptor) {
    return matrix_descriptor | std::uint64_t{1} << 46;
}

/// tcgen05.mma.cta_group::ctas.kind::f16 [d], a, b, instruction, accumulate: k = 16, both operands from shared memory, by
/// descriptors of PanelTile. accumulate: D = A B^T + D, else D = A B^T. By one thread.
template <int ctas = 1>
GPU_DEVICE void tcgen05_mma_ss(std::uint32_t d, std::uint64_t a, std::uint64_t b, std::uint32_t instruction,
                               bool accumulate GPU_SITE) {
#if GPU_EMULATOR
    emulator::tcgen05_mma({ctas, d, false, 0, tcgen05_descriptor(a), tcgen05_descriptor(b), instruction, accumulate},
                          site);
#else
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %4, 0;\n"
        "tcgen05.mma.cta_group::%5.kind::f16 [%0], %1, %2, %3, p;\n"
        "}" ::"r"(d),
        "l"(tcgen05_descriptor(a)), "l"(tcgen05_descriptor(b)), "r"(instruction), "r"(int(accumulate)), "n"(ctas)
        : "memory");
#endif
}

/// The same with A in tensor memory, from address `a` on.
template <int ctas = 1>
GPU_DEVICE void tcgen05_mma_ts(std::uint32_t d, std::uint32_t a, std::uint64_t b, std::uint32_t instruction,
                               bool accumulate GPU_SITE) {
#if GPU_EMULATOR
    emulator::tcgen05_mma({ctas, d, true, a, 0, tcgen05_descriptor(b), instruction, accumulate}, site);
#else
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %4, 0;\n"
        "tcgen05.mma.cta_group::%5.kind::f16 [%0], [%1], %2, %3, p;\n"
        "}" ::"r"(d),
        "r"(a), "l"(tcgen05_descriptor(b)), "r"(instruction), "r"(int(accumulate)), "n"(ctas)
        : "memory");
#endif
}

/// tcgen05.commit.cta_group::ctas.mbarrier::arrive::one.shared::cluster.b64 [barrier]: one arrival at the mbarrier when
/// all products and copies that this thread has issued so far are done. By the thread that issued them.
template <int ctas = 1>
GPU_DEVICE void tcgen05_commit(std::uint32_t barrier GPU_SITE) {
#if GPU_EMULATOR
    emulator::tcgen05_commit(barrier, ctas, 0, site);
#else
    asm volatile("tcgen05.commit.cta_group::%1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier),
                 "n"(ctas)
                 : "memory");
#endif
}

/// The same, at the mbarrier in the same place of each CTA of the cluster whose bit is set in `cta_mask`.
template <int ctas = 1>
GPU_DEVICE void tcgen05_commit_multicast(std::uint32_t barrier, std::uint16_t cta_mask GPU_SITE) {
#if GPU_EMULATOR
    emulator::tcgen05_commit(barrier, ctas, cta_mask, site);
#else
    asm volatile(
        "tcgen05.commit.cta_group::%2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
            barrier),
        "h"(cta_mask), "n"(ctas)
        : "memory");
#endif
}

/// tcgen05.cp.cta_group::ctas.128x256b [address], descriptor: copies 128 rows of 32 bytes of a K-major operand from
/// shared memory, row r to lane r, 8 columns from `address` on: A of one product. By one thread; tracked by its commit;
/// products of the same thread come after it.
template <int ctas = 1>
GPU_DEVICE void tcgen05_cp_128x256b(std::uint32_t address, std::uint64_t descriptor GPU_SITE) {
#if GPU_EMULATOR
    emulator::tcgen05_cp_128x256b(address, tcgen05_descriptor(descriptor), ctas, site);
#else
    asm volatile("tcgen05.cp.cta_group::%2.128x256b [%0], %1;" ::"r"(address), "l"(tcgen05_descriptor(descriptor)),
                 "n"(ctas)
                 : "memory");
#endif
}

}  // namespace gpu
