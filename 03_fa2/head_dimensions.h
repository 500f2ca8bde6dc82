// Head dimensions of stage 03: kernels are compiled for six, and a problem takes the next one up, its missing columns zeros.
#pragma once

#include <optional>
#include <string>

#include "common/ladder/registry.h"

namespace stage03 {

/// The least of 32, 64, 96, 128, 192, 256 that is not below d, which is at most 256.
constexpr int padded(int d) {
    return d <= 32 ? 32 : d <= 64 ? 64 : d <= 96 ? 96 : d <= 128 ? 128 : d <= 192 ? 192 : 256;
}

/// Rung::refuses, of types and head dimensions, of every rung of this stage.
inline std::optional<std::string> refuses(const attention::Problem& problem) {
    if (problem.type == attention::DataType::fp32) return "multiplies on tensor cores and takes fp16 or bf16, not fp32";
    if (problem.d % 8 != 0 || problem.d > 256)
        return "takes d up to 256 in multiples of 8, not " + std::to_string(problem.d);
    return std::nullopt;
}

/// Calls f<T, padded(d)>() for a problem that `refuses` lets through.
template <class F>
void with_padded_d(const attention::Problem& problem, F&& f) {
    const auto with = [&]<class T>() {
        switch (padded(problem.d)) {
            case 32:
                return f.template operator()<T, 32>();
            case 64:
                return f.template operator()<T, 64>();
            case 96:
                return f.template operator()<T, 96>();
            case 128:
                return f.template operator()<T, 128>();
            case 192:
                return f.template operator()<T, 192>();
            default:
                return f.template operator()<T, 256>();
        }
    };
    if (problem.type == attention::DataType::fp16) return with.template operator()<gpu::fp16>();
    return with.template operator()<gpu::bf16>();
}

}  // namespace stage03
