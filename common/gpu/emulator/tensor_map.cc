// Tensor maps of the software GPU: what the host says, as it is.
#include "common/gpu/tensor_map.h"

#include "common/gpu/emulator/region.h"

namespace gpu {

TensorMap encode_tensor_map(const char* name, TensorMapType type, void* data, const TensorMapShape& shape,
                            const emulator::Region* region) {
    check_tensor_map(name, type, data, shape);
    if (region != nullptr) region->mapped = true;
    TensorMap map{static_cast<char*>(data), region, element_bytes(type), shape.rank, {}, {}, {}, shape.swizzle_bytes};
    for (int i = 0; i < shape.rank; ++i) {
        map.size[i] = shape.size[i];
        map.stride[i] = shape.stride[i] * map.element_bytes;
        map.box[i] = shape.box[i];
    }
    return map;
}

}  // namespace gpu
