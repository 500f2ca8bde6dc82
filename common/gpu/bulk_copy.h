// Copies that one thread orders and an engine carries out. PTX ISA: cp.async.bulk, cp.async.bulk.tensor,
// cp.reduce.async.bulk.
//
// Loads report their bytes to an mbarrier; the whole box counts, rows beyond the tensor too. Stores and reductions
// belong to bulk groups of the thread that ordered them. Until a load is seen complete its destination must not be
// touched; until a store has been read (wait_group_read) its source must not be changed. What ordinary stores wrote
// into the source needs fence_proxy_async and a barrier before.
#pragma once

#include "common/gpu/mbarrier.h"
#include "common/gpu/tensor_map.h"

namespace gpu {

/// cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [destination], [map, {c0, ...,
/// c4}], [barrier]: the box that begins at the coordinates, fastest dimension first, to shared memory (a multiple of
/// 128 bytes; a tile with a 128-byte swizzle wants 1024). Coordinates may lie outside the tensor, negative too: zeros
/// arrive. c0 is a multiple of 16 bytes.
GPU_DEVICE void cp_async_bulk_tensor_5d(std::uint32_t destination, const TensorMap& map, int c0, int c1, int c2, int c3,
                                        int c4, std::uint32_t barrier GPU_SITE) {
#if GPU_EMULATOR
    const int coordinates[5] = {c0, c1, c2, c3, c4};
    emulator::tensor_load(destination, map, coordinates, 5, barrier, 0, site);
#else
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, "
        "%6}], "
        "[%7];" ::"r"(destination),
        "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(barrier)
        : "memory");
#endif
}

/// The same to the same offset in every CTA of the cluster whose bit is set in cta_mask; each one's own mbarrier at the
/// offset of `barrier` counts the bytes: ....multicast::cluster [destination], [map, {...}], [barrier], cta_mask.
GPU_DEVICE void cp_async_bulk_tensor_5d_multicast(std::uint32_t destination, const TensorMap& map, int c0, int c1,
                                                  int c2, int c3, int c4, std::uint32_t barrier,
                                                  std::uint16_t cta_mask GPU_SITE) {
#if GPU_EMULATOR
    const int coordinates[5] = {c0, c1, c2, c3, c4};
    emulator::tensor_load(destination, map, coordinates, 5, barrier, cta_mask, site);
#else
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(destination),
        "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(barrier), "h"(cta_mask)
        : "memory");
#endif
}

/// cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [map, {c0, ..., c4}], [source]: the box in shared memory
/// to the tensor. Coordinates are not negative; elements beyond the tensor are left out.
GPU_DEVICE void cp_async_bulk_tensor_5d_store(const TensorMap& map, int c0, int c1, int c2, int c3, int c4,
                                              std::uint32_t source GPU_SITE) {
#if GPU_EMULATOR
    const int coordinates[5] = {c0, c1, c2, c3, c4};
    emulator::tensor_store(map, coordinates, 5, source, site);
#else
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(&map),
        "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(source)
        : "memory");
#endif
}

/// cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [destination], [source], bytes, [barrier]: `bytes`
/// bytes of one row, from (row, column) on. Both addresses and `bytes` are multiples of 16.
template <class T>
GPU_DEVICE void cp_async_bulk(std::uint32_t destination, const Matrix<const T>& source, int row, int column, int bytes,
                              std::uint32_t barrier GPU_SITE) {
#if GPU_EMULATOR
    const T* p = source.pointer(row, column, bytes / int(sizeof(T)), site);
    emulator::bulk_load(destination, p, source.region, bytes, barrier, site);
#else
    const T* p = source.pointer(row, column, bytes / int(sizeof(T)));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
        "l"(p), "r"(bytes), "r"(barrier)
        : "memory");
#endif
}

/// cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [destination], [source], bytes: adds bytes / 4 floats of
/// shared memory to one row, from (row, column) on, each addition atomic, in no order. Addresses and `bytes` are
/// multiples of 16.
GPU_DEVICE void cp_reduce_async_bulk_add(const Matrix<float>& destination, int row, int column, std::uint32_t source,
                                         int bytes GPU_SITE) {
#if GPU_EMULATOR
    float* p = destination.pointer(row, column, bytes / 4, site);
    emulator::bulk_add(p, destination.region, source, bytes, site);
#else
    float* p = destination.pointer(row, column, bytes / 4);
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(p), "r"(source),
                 "r"(bytes)
                 : "memory");
#endif
}

/// cp.async.bulk.commit_group: the stores and reductions that this thread ordered since the last commit become one
/// group.
GPU_DEVICE void cp_async_bulk_commit_group(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    emulator::bulk_commit_group(site);
#else
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

/// cp.async.bulk.wait_group pending: wait until at most `pending` of this thread's youngest groups are under way; what
/// the others wrote is in global memory.
template <int pending>
GPU_DEVICE void cp_async_bulk_wait_group(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    emulator::bulk_wait_group(pending, false, site);
#else
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

/// cp.async.bulk.wait_group.read pending: the same, but the others have only been read: their source may be written
/// again.
template <int pending>
GPU_DEVICE void cp_async_bulk_wait_group_read(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    emulator::bulk_wait_group(pending, true, site);
#else
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
#endif
}

/// prefetch.tensormap [map]: brings the map into the cache of the copy engine; a hint.
GPU_DEVICE void prefetch_tensormap(const TensorMap& map) {
#if GPU_EMULATOR
    (void)map;
#else
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

}  // namespace gpu
