// Tensor maps on a real GPU: the driver encodes them. Its entry point comes through the runtime, so nothing is linked against libcuda.
#include "common/gpu/tensor_map.h"

#include <cuda.h>

#include <string>

#include "common/gpu/launch.h"

namespace gpu {

namespace {

decltype(&cuTensorMapEncodeTiled) encoder() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    if (status != cudaSuccess || found != cudaDriverEntryPointSuccess)
        throw Error("This NVIDIA driver has no cuTensorMapEncodeTiled: tensor maps need driver 525 or newer.");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

TensorMap encode_tensor_map(const char* name, TensorMapType type, void* data, const TensorMapShape& shape) {
    check_tensor_map(name, type, data, shape);
    static const auto encode = encoder();
    constexpr CUtensorMapDataType types[] = {CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                             CU_TENSOR_MAP_DATA_TYPE_FLOAT32};
    const CUtensorMapSwizzle swizzle = shape.swizzle_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                       : shape.swizzle_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                       : shape.swizzle_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                                   : CU_TENSOR_MAP_SWIZZLE_NONE;
    cuuint64_t size[5], stride_bytes[4];
    cuuint32_t box[5], every_element[5] = {1, 1, 1, 1, 1};
    for (int i = 0; i < shape.rank; ++i) {
        size[i] = static_cast<cuuint64_t>(shape.size[i]);
        box[i] = static_cast<cuuint32_t>(shape.box[i]);
        if (i > 0) stride_bytes[i - 1] = static_cast<cuuint64_t>(shape.stride[i] * element_bytes(type));
    }
    CUtensorMap map;
    const CUresult status = encode(&map, types[static_cast<int>(type)], static_cast<cuuint32_t>(shape.rank), data, size,
                                   stride_bytes, box, every_element, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status != CUDA_SUCCESS)
        throw Error(std::string("The driver refuses the tensor map of ") + name + " (CUresult " +
                    std::to_string(status) + ").");
    static_assert(sizeof(TensorMap) == sizeof(map));
    return reinterpret_cast<const TensorMap&>(map);
}

}  // namespace gpu
