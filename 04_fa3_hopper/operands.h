// What stage 04 takes, and its operands as copy engines see them.
#pragma once

#include <optional>
#include <string>

#include "common/ladder/closed_forms.h"
#include "common/ladder/tensor_maps.h"
#include "common/ladder/tiles.h"

namespace stage04 {

using ladder::query_tile_ctas;

/// Rung::refuses of the forward rungs; the backward 04c asks it too.
inline std::optional<std::string> refuses(const attention::Problem& problem) {
    if (problem.type == attention::DataType::fp32) return "multiplies on tensor cores and takes fp16 or bf16, not fp32";
    if (problem.d != 64 && problem.d != 128 && problem.d != 256)
        return "takes d = 64, 128 or 256, not " + std::to_string(problem.d);
    return ladder::refuses_dropout(problem);
}

/// Launches 04a, b, c or d, which take the same operands, and marks (marks.h) behind them, except 04a.
template <class T, class Kernel, class... Marks>
void launch(const gpu::LaunchShape& shape, Kernel kernel, const attention::Problem& problem, ladder::Operands& operands,
            int Bc, Marks... marks) {
    const ladder::TensorMaps maps{problem};
    gpu::launch(shape, kernel, ladder::kernel_problem(problem, operands), maps.queries<T>("Q", operands.Q, 64),
                maps.keys<T>("K", operands.K, Bc), maps.keys<T>("V", operands.V, Bc), operands.O.as<T>(),
                operands.L.as<float>(), marks...);
}

}  // namespace stage04
