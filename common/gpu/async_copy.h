// cp.async: copies from global to shared memory that go on while the thread computes. PTX ISA 9.7.9.25.3 (cp.async).
//
// Copies belong to the thread that issued them. commit_group closes a group; wait_group N waits until at most the N
// youngest groups of this thread are under way. After the wait the data is visible to the issuing thread only: others
// need a barrier. Between issue and wait the source must not change and the destination must not be touched.
#pragma once

#include "common/gpu/memory.h"

namespace gpu {

/// cp.async.cg.shared.global [destination], [source], 16, bytes_read: 16 bytes, of which the first `bytes_read` (0 ...
/// 16) come from global memory and the rest are zeros. Both addresses are multiples of 16; with bytes_read == 0 the
/// source is not read. `source` is 16 / sizeof(T) elements from (row, column) on; a row beyond the matrix is allowed
/// only with bytes_read == 0.
template <class T>
GPU_DEVICE void cp_async_cg_16(std::uint32_t destination, const Matrix<const T>& source, int row, int column,
                               int bytes_read GPU_SITE) {
#if GPU_EMULATOR
    const T* p = bytes_read == 0 ? source.data : source.pointer(row, column, bytes_read / int(sizeof(T)), site);
    emulator::cp_async(destination, p, source.region, 16, bytes_read, site);
#else
    const T* p = bytes_read == 0 ? source.data : source.pointer(row, column, 16 / int(sizeof(T)));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(p), "r"(bytes_read)
                 : "memory");
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
