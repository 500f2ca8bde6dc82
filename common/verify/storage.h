// Floats to and from the bits of a storage type. Written for the verifier alone, so that a wrong conversion in a
// kernel's number types cannot hide.
#pragma once

#include <cstddef>

#include "common/attention/problem.h"

namespace verify {

/// Writes `count` values, rounded to `type`, to `bits` (count * bytes(type) bytes).
void store(attention::DataType type, const float* values, std::size_t count, std::byte* bits);

/// The exact values of `count` elements.
void load(attention::DataType type, const std::byte* bits, std::size_t count, float* values);

}  // namespace verify
