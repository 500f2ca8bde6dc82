// What NVIDIA states for the GPUs of the ladder: used where a ceiling cannot be measured, and then said to be "table".
// These are what the units do at the boost clock: bounds that nothing reaches, where a measured ceiling is what a kernel
// did reach under the power limit. What libraries reach (docs/measuring.md) is a third thing, and lower again.
#pragma once

#include <string_view>

namespace profile {

/// Dense rates, without sparsity; 0 where there is no such unit.
struct Machine {
    std::string_view name;  // part of what the GPU calls itself
    double copy;            // B/s of global memory
    double bf16, e4m3;      // FLOP/s of matrix products with fp32 sums
    std::string_view source;
};

constexpr Machine machines[] = {
    {"A100-SXM4-40GB", 1.555e12, 312e12, 0, "NVIDIA A100 Tensor Core GPU datasheet, SXM 40 GB"},
    {"A100", 2.039e12, 312e12, 0, "NVIDIA A100 Tensor Core GPU datasheet, SXM 80 GB"},
    {"H100", 3.35e12, 989e12, 1979e12, "NVIDIA H100 Tensor Core GPU datasheet, SXM"},
    {"H200", 4.8e12, 989e12, 1979e12, "NVIDIA H200 Tensor Core GPU datasheet, SXM"},
    {"B200", 8.0e12, 2250e12, 4500e12, "NVIDIA DGX B200 datasheet, an eighth of the system"},
};

/// The machine whose name is part of `gpu`, as in "NVIDIA H200"; null if the table has none.
constexpr const Machine* find_machine(std::string_view gpu) {
    for (const Machine& machine : machines) {
        if (gpu.find(machine.name) != gpu.npos) return &machine;
    }
    return nullptr;
}

}  // namespace profile
