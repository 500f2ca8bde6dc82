// Tensor maps: how a copy engine (TMA) finds a tile of a tensor in global memory and where it puts it in shared memory.
// Encoded by the host, handed to the kernel as a `const __grid_constant__ TensorMap`. CUDA driver API:
// cuTensorMapEncodeTiled.
//
// A tensor of attention is a map of five dimensions, fastest first: 64 columns (128 bytes of 16-bit elements, the width
// of the swizzle), rows, panels of 64 columns, heads, batches. One copy brings a box of 64 x rows x panels: the panels
// one after the other, each row 128 bytes, as PanelTile describes it. Rows beyond the tensor arrive as zeros and are
// not written by a store.
#pragma once

#include <algorithm>

#include "common/gpu/memory.h"

namespace gpu {

#if GPU_EMULATOR
using TensorMap = emulator::TensorMap;
#else
/// 128 bytes that only the hardware reads.
struct alignas(64) TensorMap {
    unsigned char opaque[128];
};
#endif

/// What a map says. Dimension 0 is the fastest and dense.
struct TensorMapShape {
    int rank;                // 1 ... 5
    std::int64_t size[5];    // elements of the tensor
    std::int64_t stride[5];  // in elements; of dimension 0: 1
    int box[5];              // elements of one copy, 1 ... 256 each
    int swizzle_bytes;       // 0, 32, 64, 128: box[0] * sizeof(element) is at most that
};

enum class TensorMapType { fp16, bf16, fp32 };

template <class T>
constexpr TensorMapType tensor_map_type = std::is_same_v<T, fp16>   ? TensorMapType::fp16
                                          : std::is_same_v<T, bf16> ? TensorMapType::bf16
                                                                    : TensorMapType::fp32;
constexpr int element_bytes(TensorMapType type) { return type == TensorMapType::fp32 ? 4 : 2; }

/// Throws Error, naming the dimension and the limit: base and strides are multiples of 16 bytes, strides are not
/// negative and below 2^40 bytes, a row of the box is a multiple of 16 bytes and fits the swizzle.
void check_tensor_map(const char* name, TensorMapType type, const void* data, const TensorMapShape& shape);

#if GPU_EMULATOR
/// Encodes a map; checks it first.
TensorMap encode_tensor_map(const char* name, TensorMapType type, void* data, const TensorMapShape& shape,
                            const emulator::Region* region);
#else
TensorMap encode_tensor_map(const char* name, TensorMapType type, void* data, const TensorMapShape& shape);
#endif

/// The map of a tensor whose memory begins at tensor.data; its strides are those of `shape`.
template <class T>
TensorMap encode_tensor_map(const char* name, const Tensor<T>& tensor, const TensorMapShape& shape) {
    using Element = std::remove_const_t<T>;
    Element* const data = const_cast<Element*>(tensor.data);
#if GPU_EMULATOR
    return encode_tensor_map(name, tensor_map_type<Element>, data, shape, tensor.region);
#else
    return encode_tensor_map(name, tensor_map_type<Element>, data, shape);
#endif
}

/// The map of `batches` x `heads` matrices of `rows` rows of 16-bit elements, columns a multiple of 64, copied in tiles
/// of box_rows rows and all columns (PanelTile<T, box_rows, columns>). Of a dimension of one element the stride is
/// ignored; an empty tensor gets the map of one element, from which nothing may be copied.
template <class T>
TensorMap tile_map(const char* name, const Tensor<T>& tensor, int batches, int heads, std::int64_t rows, int box_rows) {
    const auto at_least_1 = [](std::int64_t size) { return std::max<std::int64_t>(size, 1); };
    const auto stride = [](std::int64_t size, std::int64_t elements) { return size <= 1 ? 64 : elements; };
    const TensorMapShape shape{5,
                               {64, at_least_1(rows), tensor.columns / 64, at_least_1(heads), at_least_1(batches)},
                               {1, stride(rows, tensor.row_stride), 64, stride(heads, tensor.head_stride),
                                stride(batches, tensor.batch_stride)},
                               {64, box_rows, tensor.columns / 64, 1, 1},
                               128};
    return encode_tensor_map(name, tensor, shape);
}

}  // namespace gpu
