// What the files that register stage 00 share.
#pragma once

#include "common/ladder/registry.h"

namespace stage00 {

/// 00c, in a file of its own because its kernels need compute capability 8.0, and 00a, 00b and the backward do not.
void register_tensor_cores(ladder::Registry& registry);
/// 00d: d_cublas.cu where there is a CUDA Toolkit, else d_without_cublas.cc, which refuses every problem.
void register_cublas(ladder::Registry& registry);

/// Rows and pairs of all sequences and query heads.
struct Sizes {
    std::uint64_t queries = 0;      // of Q
    std::uint64_t pairs = 0;        // (query, key), visible or not
    std::uint64_t all_queries = 0;  // B Hq Nq, the rows of workspaces: packed sequences use some of them
};
inline Sizes sizes(const attention::Problem& problem) {
    Sizes sum;
    for (int b = 0; b < problem.B; ++b) {
        sum.queries += std::uint64_t(problem.Hq) * problem.queries(b);
        sum.pairs += std::uint64_t(problem.Hq) * problem.queries(b) * problem.keys(b);
    }
    sum.all_queries = std::uint64_t(problem.B) * problem.Hq * problem.Nq;
    return sum;
}

/// A workspace as a matrix of (queries x columns) for each sequence and head: (B, Hq, Nq, columns).
template <class T>
gpu::Tensor<T> workspace(const attention::Problem& problem, const gpu::Buffer& buffer, int columns) {
    const std::int64_t head = std::int64_t(problem.Nq) * columns;
    return buffer.tensor<T>(problem.Hq * head, head, columns, columns);
}

}  // namespace stage00
