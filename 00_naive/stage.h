// What the files that register stage 00 share.
#pragma once

#include "common/ladder/closed_forms.h"

namespace stage00 {

/// 00c, in a file of its own because its kernels need compute capability 8.0, and 00a, 00b and the backward do not.
void register_tensor_cores(ladder::Registry& registry);
/// 00d: d_cublas.cu where there is a CUDA Toolkit, else d_without_cublas.cc, which refuses every problem.
void register_cublas(ladder::Registry& registry);

}  // namespace stage00
