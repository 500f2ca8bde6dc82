#include "common/gpu/tensor_map.h"

#include <string>

#include "common/gpu/launch.h"

namespace gpu {

void check_tensor_map(const char* name, TensorMapType type, const void* data, const TensorMapShape& shape) {
    const auto refuse = [&](const std::string& what) {
        throw Error(std::string("The tensor map of ") + name + ": " + what);
    };
    const auto number = [](std::int64_t value) { return std::to_string(value); };
    const int bytes = element_bytes(type);
    if (shape.rank < 1 || shape.rank > 5) refuse(number(shape.rank) + " dimensions; a map has 1 to 5.");
    if (reinterpret_cast<std::uintptr_t>(data) % 16 != 0)
        refuse("the tensor does not begin at a multiple of 16 bytes.");
    for (int i = 0; i < shape.rank; ++i) {
        const std::string dimension = "dimension " + number(i) + " ";
        if (shape.size[i] < 1 || shape.size[i] > std::int64_t{1} << 32)
            refuse(dimension + "has " + number(shape.size[i]) + " elements; allowed are 1 to 2^32.");
        if (shape.box[i] < 1 || shape.box[i] > 256)
            refuse(dimension + "is copied " + number(shape.box[i]) + " elements at a time; allowed are 1 to 256.");
        const std::int64_t stride = shape.stride[i] * bytes;
        if (i > 0 && (stride < 0 || stride >= std::int64_t{1} << 40 || stride % 16 != 0))
            refuse(dimension + "has a stride of " + number(stride) +
                   " bytes; allowed are multiples of 16 from 0 to 2^40 - 16.");
    }
    if (shape.stride[0] != 1) refuse("dimension 0 is not dense.");
    if (shape.box[0] * bytes % 16 != 0)
        refuse("a row of the box has " + number(shape.box[0] * bytes) + " bytes; allowed are multiples of 16.");
    const int span = shape.swizzle_bytes;
    if (span != 0 && span != 32 && span != 64 && span != 128)
        refuse("a swizzle of " + number(span) + " bytes; there are 0, 32, 64 and 128.");
    if (span != 0 && shape.box[0] * bytes > span)
        refuse("a row of the box has " + number(shape.box[0] * bytes) + " bytes, more than the swizzle of " +
               number(span) + ".");
}

}  // namespace gpu
