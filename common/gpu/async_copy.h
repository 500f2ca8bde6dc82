// cp.async: copies from global to shared memory that go on while the thread computes. PTX ISA: cp.async.
//
// Copies belong to the thread that issued them. commit_group closes a group; wait_group N waits until at most the N
// youngest groups of this thread are under way. After the wait the data is visible to the issuing thread only: others
// need a barrier. Between issue and wait the source must not change and the destination must not be touched.
#pragma once

#include "common/gpu/memory.h"

namespace gpu {

/// cp.async.cg.shared.global [destination], [source], 16, src_size: 16 bytes, of which the first src_size (0 ... 16)
/// come from global memory and the rest are zeros. Both addresses are multiples of 16. The source is `source` from
/// (row, column) on; with src_size == 0 it is not read, and the row may lie beyond the matrix.
template <class T>
GPU_DEVICE void cp_async_cg_16(std::uint32_t destination, const Matrix<const T>& source, int row, int column,
                               int src_size GPU_SITE) {
#if GPU_EMULATOR
    const T* p = src_size == 0 ? source.data : source.pointer(row, column, src_size / int(sizeof(T)), site);
    emulator::cp_async(destination, p, source.region, 16, src_size, site);
#else
    const T* p = source.pointer(row, column, 16 / int(sizeof(T)));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(p), "r"(src_size) : "memory");
#endif
}

/// cp.async.commit_group: the copies issued since the last commit become one group.
GPU_DEVICE void cp_async_commit_group(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    emulator::cp_async_commit_group(site);
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// cp.async.wait_group pending: wait until at most `pending` of this thread's youngest groups are under way.
template <int pending>
GPU_DEVICE void cp_async_wait_group(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    emulator::cp_async_wait_group(pending, site);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

}  // namespace gpu
