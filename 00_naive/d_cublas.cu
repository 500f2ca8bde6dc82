// 00d: asks cuBLAS for the two products. For each sequence and key/value head:
//
//   1. S = scale * Q K^T   cublasGemmStridedBatchedEx over the query heads of the group; K is the same for all of them
//   2. P = softmax(S)      as in 00c (d_softmax.cuh), all sequences and heads in one launch
//   3. O = P V             as 1
//
// Without groups a call takes all heads of a sequence, each with its own K and V. cuBLAS is column-major: a row of ours is a column of
// its. So it is asked for S^T = K Q^T and O^T = V^T P^T, where our rows of K, as it sees them, are transposed.
#include <cublas_v2.h>

#include "00_naive/d_softmax.cuh"
#include "00_naive/stage.h"

namespace stage00 {
namespace {

using attention::ceil_div;
using attention::Mask;
using attention::Problem;
using attention::Range;
using ladder::Operands;

void check(cublasStatus_t status, const char* what) {
    if (status != CUBLAS_STATUS_SUCCESS)
        throw gpu::Error(std::string("cuBLAS ") + what + ": " + cublasGetStatusString(status) + ".");
}

/// Made once, with a workspace of its own, so that cuBLAS allocates nothing while it is timed.
cublasHandle_t handle() {
    static gpu::Buffer workspace("cuBLAS workspace", 32 << 20);  // what cuBLAS recommends for compute capability 9.0
    static const cublasHandle_t result = [] {
        cublasHandle_t handle;
        check(cublasCreate(&handle), "cannot start");
        check(cublasSetWorkspace(handle, workspace.data(), workspace.bytes()), "does not take its workspace");
        return handle;
    }();
    return result;
}

template <class T>
constexpr cudaDataType_t type_of = std::is_same_v<T, float>       ? CUDA_R_32F
                                   : std::is_same_v<T, gpu::fp16> ? CUDA_R_16F
                                                                  : CUDA_R_16BF;

/// Matrices of neighbouring heads. cuBLAS takes them as column-major: a row of ours is a column of its.
template <class T>
struct Heads {
    T* data;
    std::int64_t row_stride, head_stride;
};
template <class T>
Heads<T> heads(const gpu::Tensor<T>& tensor, int batch, int head, std::int64_t first_row) {
    return {tensor.data + batch * tensor.batch_stride + head * tensor.head_stride + first_row * tensor.row_stride,
            tensor.row_stride, tensor.head_stride};
}

/// C = factor * op(A) B for `count` heads, as cuBLAS sees them: C is m x n, the inner dimension k.
template <class T>
void multiply(cublasOperation_t operation_a, std::int64_t m, std::int64_t n, std::int64_t k, float factor,
              Heads<const T> A, Heads<const T> B, Heads<T> C, int count) {
    const float zero = 0;
    check(cublasGemmStridedBatchedEx_64(handle(), operation_a, CUBLAS_OP_N, m, n, k, &factor, A.data, type_of<T>,
                                        A.row_stride, A.head_stride, B.data, type_of<T>, B.row_stride, B.head_stride,
                                        &zero, C.data, type_of<T>, C.row_stride, C.head_stride, count,
                                        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
          "cannot multiply");
}

/// Rows of Q and O, or of K and V, over all sequences: (B, H, N, d); packed sequences are one.
struct Shape {
    int B, H, N, d;
    std::int64_t rows() const { return std::int64_t(B) * H * N; }
};
Shape query_shape(const Problem& problem) {
    return {problem.packed() ? 1 : problem.B, problem.Hq, problem.packed() ? problem.cu_q.back() : problem.Nq,
            problem.d};
}
Shape key_shape(const Problem& problem) {
    return {problem.packed() ? 1 : problem.B, problem.Hkv, problem.packed() ? problem.cu_k.back() : problem.Nk,
            problem.d};
}

/// S and P: (B, Hq, Nq, padded(Nk)). The others are used only where an operand's rows do not lie in ascending order, which is
/// all that cuBLAS takes.
std::vector<ladder::Workspace> workspaces(const Problem& problem) {
    const std::size_t bytes = attention::bytes(problem.type), row = problem.d * bytes;
    const std::size_t pairs = ladder::numbered_queries(problem) * padded(problem.Nk) * bytes;
    const std::size_t queries = query_shape(problem).rows() * row, keys = key_shape(problem).rows() * row;
    return {{"S", pairs}, {"P", pairs}, {"Q_copy", queries}, {"K_copy", keys}, {"V_copy", keys}, {"O_copy", queries}};
}

template <class T>
bool ascending(const gpu::Tensor<T>& tensor, const Shape& shape) {
    return tensor.row_stride >= shape.d && tensor.head_stride >= 0;
}
template <class T>
gpu::Tensor<T> dense(const gpu::Buffer& buffer, const Shape& shape) {
    const std::int64_t head = std::int64_t(shape.N) * shape.d;
    return buffer.tensor<T>(shape.H * head, head, shape.d, shape.d);
}
template <class T>
void copy(const gpu::Tensor<const T>& from, const gpu::Tensor<T>& to, const Shape& shape) {
    gpu::launch({"stage00::d::copy_rows", ceil_div(shape.rows(), d::warps), d::threads, 0}, d::copy_rows<T>, shape.B,
                shape.H, shape.N, shape.d, from, to);
}
/// The operand, or a dense copy of it where cuBLAS cannot take it as it lies.
template <class T>
gpu::Tensor<const T> for_cublas(const ladder::Operand& operand, const gpu::Buffer& buffer, const Shape& shape) {
    const auto tensor = operand.as<const T>();
    if (ascending(tensor, shape)) return tensor;
    copy(tensor, dense<T>(buffer, shape), shape);
    return gpu::read_only(dense<T>(buffer, shape));
}

/// Keys of a row of S that `softmax` holds in shared memory.
template <class T>
constexpr int few = 8192 / sizeof(T);
template <class T>
constexpr int many = 32768 / sizeof(T);

void launch(const Problem& problem, Operands& operands) {
    ladder::with_type(problem.type, [&]<class T>() {
        const auto S = ladder::query_matrix<T>(problem, operands.workspaces[0], padded(problem.Nk));
        const auto P = ladder::query_matrix<T>(problem, operands.workspaces[1], padded(problem.Nk));
        const Shape queries_shape = query_shape(problem), keys_shape = key_shape(problem);
        const auto Q = for_cublas<T>(operands.Q, operands.workspaces[2], queries_shape);
        const auto K = for_cublas<T>(operands.K, operands.workspaces[3], keys_shape);
        const auto V = for_cublas<T>(operands.V, operands.workspaces[4], keys_shape);
        const bool O_ascends = ascending(operands.O.as<T>(), queries_shape);
        const auto O = O_ascends ? operands.O.as<T>() : dense<T>(operands.workspaces[5], queries_shape);

        // Heads that one call multiplies, and the stride of K and V between them.
        const int group = problem.group(), count = group == 1 ? problem.Hq : group;
        const auto for_each_call = [&](auto call) {
            for (int b = 0; b < problem.B; ++b) {
                const Mask mask = mask_of(problem, b);
                if (mask.seen_keys().empty() || mask.seeing_queries().empty()) continue;
                const std::int64_t first_query = problem.packed() ? problem.cu_q[b] : 0;
                const std::int64_t first_key = problem.packed() ? problem.cu_k[b] : 0;
                for (int h = 0; h < problem.Hq; h += count)
                    call(b, problem.packed() ? 0 : b, h, mask.seeing_queries(), mask.seen_keys(), first_query,
                         first_key);
            }
        };
        const auto keys_of = [&](const gpu::Tensor<const T>& tensor, int batch, int h, std::int64_t row) {
            Heads<const T> result = heads(tensor, batch, h / group, row);
            if (group > 1) result.head_stride = 0;
            return result;
        };

        for_each_call(
            [&](int b, int batch, int h, Range queries, Range keys, std::int64_t first_query, std::int64_t first_key) {
                Heads<T> result = heads(S, b, h, queries.begin);
                result.data += keys.begin;
                multiply<T>(CUBLAS_OP_T, keys.end - keys.begin, queries.end - queries.begin, problem.d, problem.scale,
                            keys_of(K, batch, h, first_key + keys.begin),
                            heads(Q, batch, h, first_query + queries.begin), result, count);
            });

        const std::int64_t rows = ladder::numbered_queries(problem);
        const auto softmax = [&]<int held>() {
            gpu::launch(
                {"stage00::d::softmax", ceil_div(rows, d::warps), d::threads, sizeof(d::SharedSoftmax<T, held>)},
                d::softmax<T, held>, ladder::kernel_problem(problem, operands), gpu::read_only(S), P, O,
                operands.L.as<float>());
        };
        if (problem.Nk <= few<T>) softmax.template operator()<few<T>>();
        else softmax.template operator()<many<T>>();

        for_each_call(
            [&](int b, int batch, int h, Range queries, Range keys, std::int64_t first_query, std::int64_t first_key) {
                Heads<const T> weights = heads(gpu::read_only(P), b, h, queries.begin);
                weights.data += keys.begin;
                multiply<T>(CUBLAS_OP_N, problem.d, queries.end - queries.begin, keys.end - keys.begin, 1.0f,
                            keys_of(V, batch, h, first_key + keys.begin), weights,
                            heads(O, batch, h, first_query + queries.begin), count);
            });
        if (!O_ascends) copy(gpu::read_only(O), operands.O.as<T>(), queries_shape);
    });
}

/// Two for each weight that `softmax` writes.
double exponentials(const Problem& problem) {
    double sum = 0;
    for (int b = 0; b < problem.B; ++b) {
        const Range seen = mask_of(problem, b).seen_keys();
        sum += 2.0 * problem.Hq * problem.queries(b) * (padded(seen.end) - seen.begin / chunk * chunk);
    }
    return sum;
}

}  // namespace

void register_cublas(ladder::Registry& registry) {
    registry.add({.stage = "00",
                  .letter = "d",
                  .name = "cublas",
                  .pass = ladder::Pass::forward,
                  .stores = ladder::Stores::scores,
                  .fast = true,
                  .whole_tiles = true,
                  .kernel_pattern = "stage00::d::",
                  .refuses = ladder::refuses_dropout,
                  .workspaces = workspaces,
                  .launch = launch,
                  .exponentials = exponentials,
                  .traffic = nullptr});  // what cuBLAS asks for is its own affair
}

}  // namespace stage00
