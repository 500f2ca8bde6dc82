// Clusters: CTAs that run at the same time and reach each other's shared memory. PTX ISA: barrier.cluster, mapa, ld and
// st.shared::cluster.
//
// A shared address carries the rank of its CTA in bits 24 and up. A CTA's shared memory must not be touched before it
// has started or after it has exited: a barrier of the cluster after the mbarriers are set up, and one before the end.
#pragma once

#include "common/gpu/machine.h"

namespace gpu {

/// %cluster_ctarank: the CTA's number in its cluster.
GPU_DEVICE int cluster_ctarank() {
#if GPU_EMULATOR
    return emulator::cluster_ctarank();
#else
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
#endif
}

/// barrier.cluster.arrive.release.aligned: every thread of the cluster, once a phase; what it did with ordinary
/// accesses is visible after the wait.
GPU_DEVICE void barrier_cluster_arrive(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    emulator::cluster_arrive(site);
#else
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

/// barrier.cluster.wait.acquire.aligned: waits for all threads of the cluster.
GPU_DEVICE void barrier_cluster_wait(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    emulator::cluster_wait(site);
#else
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// mapa.shared::cluster.u32: the address of the same variable in the CTA of that rank.
GPU_DEVICE std::uint32_t mapa(std::uint32_t address, int rank GPU_SITE) {
#if GPU_EMULATOR
    return emulator::mapa(address, rank, site);
#else
    std::uint32_t remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
#endif
}

/// ld.shared::cluster.f32 and st.shared::cluster.f32: one float in the shared memory of any CTA of the cluster.
GPU_DEVICE float ld_shared_cluster(std::uint32_t address GPU_SITE) {
#if GPU_EMULATOR
    return emulator::ld_shared_cluster(address, site);
#else
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
#endif
}
GPU_DEVICE void st_shared_cluster(std::uint32_t address, float value GPU_SITE) {
#if GPU_EMULATOR
    emulator::st_shared_cluster(address, value, site);
#else
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
#endif
}

}  // namespace gpu
