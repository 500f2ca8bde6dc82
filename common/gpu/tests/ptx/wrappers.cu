// One kernel for each wrapper of common/gpu that is an instruction of its own. golden.py compiles this file to PTX and
// compares. Operands are parameters and results go to `out` in order, so that PTX shows which operand stands where.
#include "common/gpu/gpu.h"

using namespace gpu;

#define PROBE extern "C" __global__ void

PROBE cvt_rn_fp16(fp16* out, float value) { out[0] = cvt_rn<fp16>(value); }
PROBE cvt_rn_bf16(bf16* out, float value) { out[0] = cvt_rn<bf16>(value); }
PROBE cvt_rn_x2_fp16(std::uint32_t* out, float low, float high) { out[0] = cvt_rn_x2<fp16>(low, high); }
PROBE cvt_rn_x2_bf16(std::uint32_t* out, float low, float high) { out[0] = cvt_rn_x2<bf16>(low, high); }
PROBE to_float_fp16(float* out, fp16 value) { out[0] = to_float(value); }
PROBE mul_rn(float* out, float a, float b) { out[0] = gpu::mul_rn(a, b); }
PROBE add_rn(float* out, float a, float b) { out[0] = gpu::add_rn(a, b); }
PROBE add_rm(float* out, float a, float b) { out[0] = gpu::add_rm(a, b); }
PROBE max_nan(float* out, float a, float b) { out[0] = gpu::max_nan(a, b); }
PROBE ex2_approx_ftz(float* out, float x) { out[0] = gpu::ex2_approx_ftz(x); }

PROBE bar_warp_sync(std::uint32_t mask) { gpu::bar_warp_sync(mask); }
PROBE shfl_sync_bfly(float* out, float value, int lane_mask) { out[0] = gpu::shfl_sync_bfly(value, lane_mask); }
PROBE shfl_sync_idx(float* out, float value, int source) { out[0] = gpu::shfl_sync_idx(value, source); }
PROBE vote_sync_ballot(std::uint32_t* out, int x) { out[0] = gpu::vote_sync_ballot(x > 0); }
PROBE vote_sync_any(std::uint32_t* out, int x) { out[0] = gpu::vote_sync_any(x > 0); }
PROBE vote_sync_all(std::uint32_t* out, int x) { out[0] = gpu::vote_sync_all(x > 0); }

PROBE bar_sync() { gpu::bar_sync(); }
PROBE barrier_sync(int id, int threads) { gpu::barrier_sync(id, threads); }
PROBE barrier_arrive(int id, int threads) { gpu::barrier_arrive(id, threads); }

PROBE cp_async_cg_16(std::uint32_t destination, Matrix<const std::uint32_t> source, int bytes_read) {
    gpu::cp_async_cg_16(destination, source, 0, 0, bytes_read);
}
PROBE cp_async_commit_group() { gpu::cp_async_commit_group(); }
PROBE cp_async_wait_group_0() { cp_async_wait_group<0>(); }
PROBE cp_async_wait_group_1() { cp_async_wait_group<1>(); }
PROBE cp_async_wait_group_2() { cp_async_wait_group<2>(); }

struct MatrixRegisters {
    std::uint32_t r[4];
};
PROBE ldmatrix_x4(std::uint32_t* out, std::uint32_t address) {
    std::uint32_t r[4];
    gpu::ldmatrix_x4(r, address);
    for (int i = 0; i < 4; ++i) out[i] = r[i];
}
PROBE ldmatrix_x4_trans(std::uint32_t* out, std::uint32_t address) {
    std::uint32_t r[4];
    gpu::ldmatrix_x4_trans(r, address);
    for (int i = 0; i < 4; ++i) out[i] = r[i];
}

PROBE read_clock(std::int64_t* out) { out[0] = gpu::clock(); }

PROBE stmatrix_x4(std::uint32_t address, MatrixRegisters x) { gpu::stmatrix_x4(address, x.r); }

struct MmaOperands {
    std::uint32_t a[4], b0, b1;
    float c[4];
};
template <class T>
__device__ void multiply(float* out, const MmaOperands& x) {
    float d[4] = {x.c[0], x.c[1], x.c[2], x.c[3]};
    mma_sync_m16n8k16<T>(d, x.a, x.b0, x.b1);
    for (int i = 0; i < 4; ++i) out[i] = d[i];
}
PROBE mma_sync_fp16(float* out, MmaOperands x) { multiply<fp16>(out, x); }
PROBE mma_sync_bf16(float* out, MmaOperands x) { multiply<bf16>(out, x); }

PROBE red_global_add_f32(Matrix<float> sums, float value) { gpu::red_global_add_f32(sums, 0, 0, value); }
PROBE red_release_gpu_add(Matrix<int> counts, int value) { gpu::red_release_gpu_add(counts, 0, 0, value); }
PROBE ld_acquire_gpu(int* out, Matrix<int> counts) { *out = gpu::ld_acquire_gpu(counts, 0, 0); }
PROBE load_vector_4(float* out, Matrix<const float> source) {
    const auto v = source.load4(0, 0);
    for (int i = 0; i < 4; ++i) out[i] = v[i];
}
PROBE store_vector_4(Matrix<float> destination, float a, float b, float c, float d) {
    destination.store(0, 0, Vector<float, 4>{a, b, c, d});
}
PROBE read_only_element(std::uint32_t* out, Matrix<const std::uint32_t> source) { out[0] = source(0, 0); }

PROBE mbarrier_init(std::uint32_t barrier, int count) { gpu::mbarrier_init(barrier, count); }
PROBE fence_mbarrier_init() { gpu::fence_mbarrier_init(); }
PROBE mbarrier_arrive(std::uint32_t barrier) { gpu::mbarrier_arrive(barrier); }
PROBE mbarrier_arrive_expect_tx(std::uint32_t barrier, int bytes) { gpu::mbarrier_arrive_expect_tx(barrier, bytes); }
PROBE mbarrier_arrive_cluster(std::uint32_t remote) { gpu::mbarrier_arrive_cluster(remote); }
PROBE mbarrier_try_wait_parity(int* out, std::uint32_t barrier, int parity) {
    out[0] = gpu::mbarrier_try_wait_parity(barrier, parity);
}
PROBE mbarrier_inval(std::uint32_t barrier) { gpu::mbarrier_inval(barrier); }
PROBE fence_proxy_async() { gpu::fence_proxy_async(); }

struct Coordinates {
    int c[5];
};
PROBE tensor_load(std::uint32_t destination, const __grid_constant__ TensorMap map, Coordinates x,
                  std::uint32_t barrier) {
    cp_async_bulk_tensor_5d(destination, map, x.c[0], x.c[1], x.c[2], x.c[3], x.c[4], barrier);
}
PROBE tensor_load_multicast(std::uint32_t destination, const __grid_constant__ TensorMap map, Coordinates x,
                            std::uint32_t barrier, std::uint16_t cta_mask) {
    cp_async_bulk_tensor_5d_multicast(destination, map, x.c[0], x.c[1], x.c[2], x.c[3], x.c[4], barrier, cta_mask);
}
PROBE tensor_store(const __grid_constant__ TensorMap map, Coordinates x, std::uint32_t source) {
    cp_async_bulk_tensor_5d_store(map, x.c[0], x.c[1], x.c[2], x.c[3], x.c[4], source);
}
PROBE prefetch_tensormap(const __grid_constant__ TensorMap map) { gpu::prefetch_tensormap(map); }
PROBE bulk_load(std::uint32_t destination, Matrix<const float> source, int bytes, std::uint32_t barrier) {
    cp_async_bulk(destination, source, 0, 0, bytes, barrier);
}
PROBE bulk_add(Matrix<float> destination, std::uint32_t source, int bytes) {
    cp_reduce_async_bulk_add(destination, 0, 0, source, bytes);
}
PROBE bulk_commit_group() { cp_async_bulk_commit_group(); }
PROBE bulk_wait_group() { cp_async_bulk_wait_group<1>(); }
PROBE bulk_wait_group_read() { cp_async_bulk_wait_group_read<1>(); }

PROBE cluster_ctarank(int* out) { out[0] = gpu::cluster_ctarank(); }
PROBE barrier_cluster_arrive() { gpu::barrier_cluster_arrive(); }
PROBE barrier_cluster_wait() { gpu::barrier_cluster_wait(); }
PROBE mapa(std::uint32_t* out, std::uint32_t address, int rank) { out[0] = gpu::mapa(address, rank); }
PROBE ld_shared_cluster(float* out, std::uint32_t address) { out[0] = gpu::ld_shared_cluster(address); }
PROBE st_shared_cluster(std::uint32_t address, float value) { gpu::st_shared_cluster(address, value); }

PROBE elect_sync(int* out) { out[0] = gpu::elect_sync(); }
