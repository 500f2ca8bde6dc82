// Operands as copy engines see them: a tensor map for each, for copies of so many rows and all d columns (PanelTile).
#pragma once

#include "common/gpu/tensor_map.h"
#include "common/ladder/registry.h"

namespace ladder {

struct TensorMaps {
    const attention::Problem& problem;

    /// Of Q, O, dO, dQ; T: the operand's type.
    template <class T>
    gpu::TensorMap queries(const char* name, const Operand& operand, int rows) const {
        const std::int64_t total = problem.packed() ? problem.cu_q.back() : problem.Nq;
        return map<T>(name, operand, problem.Hq, total, rows);
    }
    /// Of K, V.
    template <class T>
    gpu::TensorMap keys(const char* name, const Operand& operand, int rows) const {
        const std::int64_t total = problem.packed() ? problem.cu_k.back() : problem.Nk;
        return map<T>(name, operand, problem.Hkv, total, rows);
    }

  private:
    template <class T>
    gpu::TensorMap map(const char* name, const Operand& operand, int heads, std::int64_t total, int rows) const {
        return gpu::tile_map(name, operand.as<T>(), problem.packed() ? 1 : problem.B, heads, total, rows);
    }
};

}  // namespace ladder
