// A tile in shared memory as copy engines and warpgroup products want it, and the descriptors that name it to a
// product. PTX ISA: wgmma, shared memory matrix layout and matrix descriptor.
//
// Columns come in panels of 64 (128 bytes); a panel is rows x 128 bytes, and the panels follow each other. Within each
// 8 rows the 16-byte chunks of a row are exchanged, chunk ^= row % 8 (the 128-byte swizzle): a product reads eight rows
// of one chunk column without bank conflicts.
#pragma once

#include "common/gpu/memory.h"

namespace gpu {

/// How an operand of a product lies in shared memory: k runs along the row (K-major), or across rows (MN-major).
enum class Major { k = 0, mn = 1 };

/// The 64-bit matrix descriptor with a 128-byte swizzle: `address` of the operand's first element, bytes from one panel
/// to the next (leading; ignored in K-major), bytes from 8 rows to the next 8 (stride).
GPU_HOST_DEVICE constexpr std::uint64_t matrix_descriptor(std::uint32_t address, int leading_bytes, int stride_bytes) {
    return (address & 0x3FFFF) >> 4 | std::uint64_t(leading_bytes >> 4) << 16 | std::uint64_t(stride_bytes >> 4) << 32 |
           std::uint64_t{1} << 62;
}

/// rows x columns 16-bit elements, both majors from one layout: as A or B with k along the columns, or with k along the
/// rows.
template <class T, int rows_, int columns_>
struct alignas(1024) PanelTile {
    static constexpr int rows = rows_, columns = columns_, panel_columns = 64;
    static_assert(sizeof(T) == 2 && rows % 8 == 0 && columns % panel_columns == 0);

    T data[rows * columns];

    /// Index of (row, column) in `data`.
    GPU_HOST_DEVICE static constexpr int offset(int row, int column) {
        return column / panel_columns * rows * panel_columns + row * panel_columns +
               (column % panel_columns ^ (row & 7) * 8);
    }

    /// The 32-bit address of the tile in the shared window, as copies take it.
    GPU_DEVICE std::uint32_t address() {
#if GPU_EMULATOR
        return emulator::shared_address(data);
#else
        return static_cast<std::uint32_t>(__cvta_generic_to_shared(data));
#endif
    }

    /// The address of (row, column): 16 bytes from there on lie together if column is a multiple of 8.
    GPU_DEVICE std::uint32_t address(int row, int column GPU_SITE) {
        EMULATED(emulator::check_element(row, column, 1, rows, columns, site));
        return address() + offset(row, column) * int(sizeof(T));
    }

    /// Descriptor of the operand whose rows begin at `row` (a multiple of 8) and whose k begins at column `k` (a
    /// multiple of 16): k along the columns.
    GPU_DEVICE std::uint64_t k_major(int row, int k) {
        return matrix_descriptor(
            address() +
                (k / panel_columns * rows * panel_columns + row * panel_columns + k % panel_columns) * int(sizeof(T)),
            16, 1024);
    }

    /// Descriptor of the operand whose k begins at row `k` (a multiple of 8) and whose m or n begins at `column` (a
    /// multiple of 64): k along the rows.
    GPU_DEVICE std::uint64_t mn_major(int k, int column) {
        return matrix_descriptor(
            address() + (column / panel_columns * rows * panel_columns + k * panel_columns) * int(sizeof(T)),
            rows * 128, 1024);
    }

    GPU_DEVICE decltype(auto) operator()(int row, int column GPU_SITE) {
        EMULATED(emulator::check_element(row, column, 1, rows, columns, site));
        T* p = data + offset(row, column);
#if GPU_EMULATOR
        return SharedReference<T>{p, site};
#else
        return (*p);
#endif
    }

    /// n elements that lie together: column and n multiples of 2, within one chunk of 8.
    template <int n>
    GPU_DEVICE void store(int row, int column, Vector<T, n> value GPU_SITE) {
        EMULATED(emulator::check_element(row, column, n, rows, columns, site));
        T* p = data + offset(row, column);
        EMULATED(emulator::check_alignment(p, sizeof(value), site));
        EMULATED(emulator::shared_write(p, sizeof(value), site));
        *reinterpret_cast<Vector<T, n>*>(p) = value;
    }

    GPU_DEVICE Vector<T, 8> load8(int row, int column GPU_SITE) {
        EMULATED(emulator::check_element(row, column, 8, rows, columns, site));
        T* p = data + offset(row, column);
        EMULATED(emulator::check_alignment(p, 16, site));
        EMULATED(emulator::shared_read(p, 16, site));
        return *reinterpret_cast<const Vector<T, 8>*>(p);
    }
};

}  // namespace gpu
