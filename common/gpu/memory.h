// Global and shared memory as kernels see them: views that name (row, column) and cost nothing on a GPU.
//
// On the emulator every access is checked (bounds, alignment, never-written or in-flight shared bytes) and counted; the
// references that the views return there are small proxies, so write `float x = tile(r, c);`, not `auto& x`.
#pragma once

#include <type_traits>

#include "common/gpu/types.h"

namespace gpu {

#if GPU_EMULATOR

/// One element of global memory that can be written: reads and writes are told apart.
template <class T>
struct GlobalReference {
    T* pointer;
    const emulator::Region* region;
    emulator::Site site;
    operator T() const {
        emulator::global_read(region, pointer, sizeof(T), site);
        return *pointer;
    }
    const GlobalReference& operator=(T value) const {
        emulator::global_write(region, pointer, sizeof(T), site);
        *pointer = value;
        return *this;
    }
    const GlobalReference& operator=(const GlobalReference& other) const { return *this = static_cast<T>(other); }
};

/// One element of shared memory.
template <class T>
struct SharedReference {
    T* pointer;
    emulator::Site site;
    operator T() const {
        emulator::shared_read(pointer, sizeof(T), site);
        return *pointer;
    }
    const SharedReference& operator=(T value) const {
        emulator::shared_write(pointer, sizeof(T), site);
        *pointer = value;
        return *this;
    }
    const SharedReference& operator=(const SharedReference& other) const { return *this = static_cast<T>(other); }
};

#endif

/// Rows of one head of one sequence: element (row, column), columns contiguous, 64-bit row stride in elements.
/// m(row, column) is an element; load2, load4 and load8 move several at once, aligned to their size, and store takes
/// them back.
template <class T>
struct Matrix {
    using Element = std::remove_const_t<T>;

    T* data;
    std::int64_t row_stride;
    int rows, columns;
#if GPU_EMULATOR
    const emulator::Region* region;
#endif

    /// Address of (row, column), where `width` elements are about to be used.
    GPU_DEVICE T* pointer(int row, int column, int width GPU_SITE) const {
        EMULATED(emulator::check_element(row, column, width, rows, columns, site));
        return data + row * row_stride + column;
    }

    /// The same without its first rows and columns, which may be more than it has. A walk by equal steps costs an
    /// addition each.
    GPU_DEVICE Matrix from(int row, int column) const {
        Matrix rest = *this;
        rest.data += row * row_stride + column;
        rest.rows -= row;
        rest.columns -= column;
        return rest;
    }

    GPU_DEVICE decltype(auto) operator()(int row, int column GPU_SITE) const {
        T* p = pointer(row, column, 1 GPU_PASS_SITE);
#if GPU_EMULATOR
        if constexpr (std::is_const_v<T>) {
            emulator::global_read(region, p, sizeof(T), site);
            return Element(*p);
        } else {
            return GlobalReference<T>{p, region, site};
        }
#else
        if constexpr (std::is_const_v<T>) {
            return __ldg(p);
        } else {
            return (*p);
        }
#endif
    }

    /// The element of a row in a matrix of one column (L, m, l, ...).
    GPU_DEVICE decltype(auto) operator()(int row GPU_SITE) const { return (*this)(row, 0 GPU_PASS_SITE); }

    GPU_DEVICE Vector<Element, 2> load2(int row, int column GPU_SITE) const {
        return load<2>(row, column GPU_PASS_SITE);
    }
    GPU_DEVICE Vector<Element, 4> load4(int row, int column GPU_SITE) const {
        return load<4>(row, column GPU_PASS_SITE);
    }

    GPU_DEVICE Vector<Element, 8> load8(int row, int column GPU_SITE) const {
        return load<8>(row, column GPU_PASS_SITE);
    }

    template <int n>
    GPU_DEVICE void store(int row, int column, Vector<Element, n> value GPU_SITE) const {
        T* p = pointer(row, column, n GPU_PASS_SITE);
        EMULATED(emulator::check_alignment(p, sizeof(value), site));
        EMULATED(emulator::global_write(region, p, sizeof(value), site));
        *reinterpret_cast<Vector<Element, n>*>(p) = value;
    }

  private:
    template <int n>
    GPU_DEVICE Vector<Element, n> load(int row, int column GPU_SITE) const {
        T* p = pointer(row, column, n GPU_PASS_SITE);
        EMULATED(emulator::check_alignment(p, n * sizeof(T), site));
        EMULATED(emulator::global_read(region, p, n * sizeof(T), site));
        return *reinterpret_cast<const Vector<Element, n>*>(p);
    }
};

/// A whole operand in global memory: (batch, head, row, column), arbitrary 64-bit strides in elements (0 and negative
/// too) for all but the columns, which are contiguous. A packed operand (total, H, d) has batch stride 0, and its rows
/// of sequence b start at cu[b].
template <class T>
struct Tensor {
    T* data;
    std::int64_t batch_stride, head_stride, row_stride;
    int columns;
#if GPU_EMULATOR
    const emulator::Region* region = nullptr;
#endif

    /// Rows first_row ... first_row + rows - 1 of one head.
    GPU_DEVICE Matrix<T> matrix(int batch, int head, std::int64_t first_row, int rows) const {
        Matrix<T> m;
        m.data = data + batch * batch_stride + head * head_stride + first_row * row_stride;
        m.row_stride = row_stride;
        m.rows = rows;
        m.columns = columns;
        EMULATED(m.region = region);
        return m;
    }
};

/// The same operand for a kernel that only reads it.
template <class T>
Tensor<const T> read_only(const Tensor<T>& tensor) {
    Tensor<const T> view;
    view.data = tensor.data;
    view.batch_stride = tensor.batch_stride;
    view.head_stride = tensor.head_stride;
    view.row_stride = tensor.row_stride;
    view.columns = tensor.columns;
    EMULATED(view.region = tensor.region);
    return view;
}

/// How the 16-byte chunks of a row lie in shared memory. xor_8: chunk ^= row & 7, so that eight consecutive rows of one
/// chunk column (one phase of ldmatrix) fall into eight different groups of four banks. Rows of 128 bytes or a multiple
/// of that.
enum class Swizzle { none, xor_8 };

/// A row-major tile in shared memory; a kernel's shared memory is a struct of these.
template <class T, int rows_, int columns_, Swizzle swizzle = Swizzle::none>
struct alignas(16) SharedTile {
    static constexpr int rows = rows_, columns = columns_;
    static_assert(swizzle == Swizzle::none || columns * sizeof(T) % 128 == 0, "xor_8: rows of 128 bytes or a multiple");

    T data[rows * columns];

    /// Index of (row, column) in `data`.
    GPU_HOST_DEVICE static constexpr int offset(int row, int column) {
        return row * columns + (swizzle == Swizzle::none ? column : column ^ ((row & 7) * int(16 / sizeof(T))));
    }

    GPU_DEVICE T* pointer(int row, int column, int width GPU_SITE) {
        EMULATED(emulator::check_element(row, column, width, rows, columns, site));
        return data + offset(row, column);
    }

    /// The 32-bit address of (row, column) in the shared window, as instructions take it.
    GPU_DEVICE std::uint32_t address(int row, int column GPU_SITE) {
#if GPU_EMULATOR
        return emulator::shared_address(pointer(row, column, 1, site));
#else
        return static_cast<std::uint32_t>(__cvta_generic_to_shared(data)) + offset(row, column) * sizeof(T);
#endif
    }

    /// The address of (row + more_rows, column + more_columns), given offset(row, column): one exclusive or and one
    /// addition of constants, so that a loop over blocks of a tile needs few registers. With a swizzle more_rows is a
    /// multiple of 8, and column + more_columns carries no bit.
    GPU_DEVICE std::uint32_t address_beyond(int offset, int more_rows, int more_columns GPU_SITE) {
        const int in_line = swizzle == Swizzle::none ? 0 : more_columns % int(128 / sizeof(T));
        const int element = (offset ^ in_line) + more_rows * columns + more_columns - in_line;
        EMULATED(emulator::check_element(element / columns, element % columns, 1, rows, columns, site));
        return address(0, 0 GPU_PASS_SITE) + element * sizeof(T);
    }

    GPU_DEVICE decltype(auto) operator()(int row, int column GPU_SITE) {
        T* p = pointer(row, column, 1 GPU_PASS_SITE);
#if GPU_EMULATOR
        return SharedReference<T>{p, site};
#else
        return (*p);
#endif
    }

    GPU_DEVICE Vector<T, 2> load2(int row, int column GPU_SITE) { return load<2>(row, column GPU_PASS_SITE); }
    GPU_DEVICE Vector<T, 4> load4(int row, int column GPU_SITE) { return load<4>(row, column GPU_PASS_SITE); }
    GPU_DEVICE Vector<T, 8> load8(int row, int column GPU_SITE) { return load<8>(row, column GPU_PASS_SITE); }

    template <int n>
    GPU_DEVICE void store(int row, int column, Vector<T, n> value GPU_SITE) {
        T* p = pointer(row, column, n GPU_PASS_SITE);
        EMULATED(emulator::check_alignment(p, sizeof(value), site));
        EMULATED(emulator::shared_write(p, sizeof(value), site));
        *reinterpret_cast<Vector<T, n>*>(p) = value;
    }

    /// Two 16-bit elements in one register, as cvt_rn_x2 returns them, to (row, column) and (row, column + 1).
    GPU_DEVICE void store_x2(int row, int column, std::uint32_t packed GPU_SITE) {
        static_assert(sizeof(T) == 2);
        T* p = pointer(row, column, 2 GPU_PASS_SITE);
        EMULATED(emulator::check_alignment(p, sizeof(packed), site));
        EMULATED(emulator::shared_write(p, sizeof(packed), site));
        *reinterpret_cast<std::uint32_t*>(p) = packed;
    }

  private:
    template <int n>
    GPU_DEVICE Vector<T, n> load(int row, int column GPU_SITE) {
        T* p = pointer(row, column, n GPU_PASS_SITE);
        EMULATED(emulator::check_alignment(p, n * sizeof(T), site));
        EMULATED(emulator::shared_read(p, n * sizeof(T), site));
        return *reinterpret_cast<const Vector<T, n>*>(p);
    }
};

/// n values in shared memory.
template <class T, int n>
struct SharedArray : SharedTile<T, 1, n> {
    using Tile = SharedTile<T, 1, n>;
    using Tile::address;
    GPU_DEVICE decltype(auto) operator()(int i GPU_SITE) { return Tile::operator()(0, i GPU_PASS_SITE); }
    GPU_DEVICE std::uint32_t address(int i GPU_SITE) { return Tile::address(0, i GPU_PASS_SITE); }
    GPU_DEVICE Vector<T, 2> load2(int i GPU_SITE) { return Tile::load2(0, i GPU_PASS_SITE); }
};

/// The CTA's dynamic shared memory as a Layout (a struct of SharedTiles and SharedArrays); the launch asks for
/// sizeof(Layout) bytes.
template <class Layout>
GPU_DEVICE Layout& shared_memory(GPU_ONLY_SITE) {
#if GPU_EMULATOR
    return *static_cast<Layout*>(emulator::shared_memory(sizeof(Layout), site));
#else
    extern __shared__ __align__(1024) unsigned char arena[];
    return *reinterpret_cast<Layout*>(arena);
#endif
}

}  // namespace gpu
