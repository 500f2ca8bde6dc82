// Registers 00d, and asks cuBLAS for its products.
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

/// Rows `rows` of the first of some heads, as cuBLAS sees them: column-major, each row of ours a column.
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

/// C = factor * op(A) B for `count` heads, column-major, C: m x n, inner dimension k.
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

std::optional<std::string> refuses(const Problem& problem) {
    if (problem.dropout > 0) return "has no dropout";
    return std::nullopt;
}

/// cuBLAS takes matrices whose rows follow each other without overlap.
void require_ascending_rows(const char* name, const ladder::Operand& operand, int d) {
    if (operand.row_stride >= d) return;
    throw ladder::Refused("cuBLAS takes rows that follow each other in memory: the row stride of " + std::string(name) +
                          " is " + std::to_string(operand.row_stride) +
                          " elements and must be at least d = " + std::to_string(d) + ".");
}

/// S and P: (B, Hq, Nq, padded(Nk)).
std::vector<ladder::Workspace> workspaces(const Problem& problem) {
    const std::size_t bytes = sizes(problem).all_queries * d::padded(problem.Nk) * attention::bytes(problem.type);
    return {{"S", bytes}, {"P", bytes}};
}

/// Keys of a row of S that `softmax` holds in shared memory.
template <class T>
constexpr int few = 8192 / sizeof(T);
template <class T>
constexpr int many = 32768 / sizeof(T);

/// The mask of one sequence.
Mask mask_of(const Problem& problem, int b) {
    return {problem.queries(b), problem.keys(b), problem.window_left, problem.window_right};
}

void launch(const Problem& problem, Operands& operands) {
    require_ascending_rows("Q", operands.Q, problem.d);
    require_ascending_rows("K", operands.K, problem.d);
    require_ascending_rows("V", operands.V, problem.d);
    require_ascending_rows("O", operands.O, problem.d);
    ladder::with_type(problem.type, [&]<class T>() {
        const auto S = workspace<T>(problem, operands.workspaces[0], d::padded(problem.Nk));
        const auto P = workspace<T>(problem, operands.workspaces[1], d::padded(problem.Nk));
        const auto Q = operands.Q.as<const T>(), K = operands.K.as<const T>(), V = operands.V.as<const T>();
        const auto O = operands.O.as<T>();

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

        const std::int64_t rows = sizes(problem).all_queries;
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
    });
}

/// Two for each weight that `softmax` writes.
double exponentials(const Problem& problem) {
    double sum = 0;
    for (int b = 0; b < problem.B; ++b) {
        const Range seen = mask_of(problem, b).seen_keys();
        sum += 2.0 * problem.Hq * problem.queries(b) * (d::padded(seen.end) - seen.begin / d::chunk * d::chunk);
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
                  .kernel_pattern = "stage00::d::",
                  .refuses = refuses,
                  .workspaces = workspaces,
                  .launch = launch,
                  .exponentials = exponentials,
                  .traffic = nullptr});  // what cuBLAS asks for is its own affair
}

}  // namespace stage00
