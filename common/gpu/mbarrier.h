// mbarrier: a barrier in shared memory that counts arrivals and the bytes of asynchronous copies. PTX ISA: mbarrier.
//
// It goes through phases 0, 1, 2, ... A phase is complete when all `count` arrivals of the phase have come and every
// byte that expect_tx announced has been delivered; the next phase then begins with `count` arrivals to come. A thread
// waits for the phase with a parity: wait_parity(b, p) returns once the current phase has another parity than p. So on
// a fresh barrier parity 1 is complete and parity 0 is not: a consumer waits on full[slot] with parities 0, 1, 0, ...,
// one for each turn of the ring, a producer on empty[slot] with 1, 0, 1, ... A waiter must not fall two phases behind,
// since parities repeat.
//
// Everything a thread did before its arrival, and every copy whose bytes the barrier counted, is visible to those who
// have seen the phase complete.
#pragma once

#include "common/gpu/memory.h"

namespace gpu {

/// The object itself: 8 bytes that only the instructions below may touch. Kernels keep SharedArray<Mbarrier, slots>.
struct Mbarrier {
    std::uint64_t state;
};

/// mbarrier.init.shared::cta.b64 [barrier], count: phase 0 begins, with `count` (1 ... 2^20 - 1) arrivals to come. By
/// one thread, once; then fence_mbarrier_init by the same thread and a barrier of the CTA (or cluster) before anybody
/// else uses it.
GPU_DEVICE void mbarrier_init(std::uint32_t barrier, int count GPU_SITE) {
#if GPU_EMULATOR
    emulator::mbarrier_init(barrier, count, site);
#else
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
#endif
}

/// fence.mbarrier_init.release.cluster: this thread's mbarrier_init become visible to the cluster and to the copy
/// engines.
GPU_DEVICE void fence_mbarrier_init(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    emulator::fence_mbarrier_init(site);
#else
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/// mbarrier.arrive.shared::cta.b64 _, [barrier]: one arrival.
GPU_DEVICE void mbarrier_arrive(std::uint32_t barrier GPU_SITE) {
#if GPU_EMULATOR
    emulator::mbarrier_arrive(barrier, 0, site);
#else
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

/// mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], bytes: the phase also waits for `bytes` more bytes; then one
/// arrival.
GPU_DEVICE void mbarrier_arrive_expect_tx(std::uint32_t barrier, int bytes GPU_SITE) {
#if GPU_EMULATOR
    emulator::mbarrier_arrive(barrier, bytes, site);
#else
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}

/// mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote]: one arrival at a barrier of another CTA of the
/// cluster, whose address mapa gives.
GPU_DEVICE void mbarrier_arrive_cluster(std::uint32_t remote GPU_SITE) {
#if GPU_EMULATOR
    emulator::mbarrier_arrive_cluster(remote, site);
#else
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
#endif
}

/// mbarrier.try_wait.parity.shared::cta.b64 complete, [barrier], parity: whether the phase with this parity is
/// complete. May wait a while, and may be false although it is: loop.
GPU_DEVICE bool mbarrier_try_wait_parity(std::uint32_t barrier, int parity GPU_SITE) {
#if GPU_EMULATOR
    return emulator::mbarrier_try_wait_parity(barrier, parity, site);
#else
    std::uint32_t complete;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(complete)
        : "r"(barrier), "r"(parity)
        : "memory");
    return complete != 0;
#endif
}

/// Waits until the phase with this parity is complete.
GPU_DEVICE void mbarrier_wait_parity(std::uint32_t barrier, int parity GPU_SITE) {
    while (!gpu::mbarrier_try_wait_parity(barrier, parity GPU_PASS_SITE)) {
    }
}

/// mbarrier.inval.shared::cta.b64 [barrier]: its 8 bytes are ordinary memory again.
GPU_DEVICE void mbarrier_inval(std::uint32_t barrier GPU_SITE) {
#if GPU_EMULATOR
    emulator::mbarrier_inval(barrier, site);
#else
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}

}  // namespace gpu
