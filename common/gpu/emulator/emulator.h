// What the instructions in common/gpu call when the GPU is software. Each function runs in the fiber of one CUDA
// thread.
//
// A violation of a rule ends the launch: the report names the rule, the thread, the call site and the seed, and
// gpu::launch throws it as gpu::Error. Control then never returns to the kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace emulator {

/// Where an instruction stands in a kernel's source.
struct Site {
    const char* file;
    int line;
    static constexpr Site current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
};

/// One allocation of global memory (gpu::Buffer): its extent, its name and its counters.
struct Region;

// ---- plain memory accesses: checked and counted before they happen ----

/// (row, column ... column + width - 1) lies inside rows x columns, else a report.
void check_element(int row, int column, int width, int rows, int columns, Site site);
/// `pointer` is a multiple of `bytes`, else a report.
void check_alignment(const void* pointer, int bytes, Site site);

/// `bytes` at `pointer` lie in `region`, else a report.
void global_read(const Region* region, const void* pointer, int bytes, Site site);
void global_write(const Region* region, const void* pointer, int bytes, Site site);

/// `bytes` at `pointer` lie in this CTA's shared memory and are not the destination of a copy in flight; a read also
/// wants bytes that somebody has written since the CTA began.
void shared_read(const void* pointer, int bytes, Site site);
void shared_write(const void* pointer, int bytes, Site site);

/// Base of the CTA's dynamic shared memory; the launch asked for at least `bytes`.
void* shared_memory(std::size_t bytes, Site site);
/// The 32-bit address of a byte of shared memory.
std::uint32_t shared_address(const void* pointer);

// ---- warp ----

enum class Shuffle { bfly, idx };
enum class Vote { ballot, any, all };
void bar_warp_sync(std::uint32_t mask, Site site);
float shuffle(Shuffle kind, float value, int argument, Site site);
/// Bit i is the predicate of lane i, whichever vote it is for.
std::uint32_t vote(Vote kind, bool predicate, Site site);

// ---- CTA barriers ----

/// threads == 0: all threads of the CTA (bar.sync, which is .aligned: lanes of a warp come from one call site).
void bar_sync(int id, int threads, Site site);
void bar_arrive(int id, int threads, Site site);

// ---- cp.async ----

void cp_async(std::uint32_t destination, const void* source, const Region* region, int bytes, int bytes_read,
              Site site);
void cp_async_commit_group(Site site);
void cp_async_wait_group(int pending, Site site);

// ---- mbarriers and the fence between ordinary stores and engines ----

void mbarrier_init(std::uint32_t address, int count, Site site);
void mbarrier_inval(std::uint32_t address, Site site);
void fence_mbarrier_init(Site site);
/// bytes > 0: arrive.expect_tx.
void mbarrier_arrive(std::uint32_t address, int bytes, Site site);
void mbarrier_arrive_cluster(std::uint32_t address, Site site);
bool mbarrier_try_wait_parity(std::uint32_t address, int parity, Site site);
void fence_proxy_async(Site site);

// ---- tensor maps, bulk and tensor copies ----

/// gpu::TensorMap: dimension 0 is the fastest and dense.
struct TensorMap {
    char* base;
    const Region* region;
    int element_bytes, rank;
    std::int64_t size[5];    // elements
    std::int64_t stride[5];  // bytes
    int box[5];              // elements of one copy
    int swizzle_bytes;       // 0, 32, 64, 128
};

/// cta_mask == 0: to the CTA in whose shared memory `destination` lies, else to the same place in each CTA of the mask.
void tensor_load(std::uint32_t destination, const TensorMap& map, const int* coordinates, int rank,
                 std::uint32_t barrier, std::uint32_t cta_mask, Site site);
void tensor_store(const TensorMap& map, const int* coordinates, int rank, std::uint32_t source, Site site);
void bulk_load(std::uint32_t destination, const void* source, const Region* region, int bytes, std::uint32_t barrier,
               Site site);
void bulk_add(float* destination, const Region* region, std::uint32_t source, int bytes, Site site);
void bulk_commit_group(Site site);
/// read: the groups have only been read.
void bulk_wait_group(int pending, bool read, Site site);

// ---- clusters ----

int cluster_ctarank();
void cluster_arrive(Site site);
void cluster_wait(Site site);
std::uint32_t mapa(std::uint32_t address, int rank, Site site);
float ld_shared_cluster(std::uint32_t address, Site site);
void st_shared_cluster(std::uint32_t address, float value, Site site);

// ---- tensor cores ----

void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address, bool transposed, Site site);
void stmatrix_x4(std::uint32_t address, const std::uint32_t (&r)[4], Site site);
void stmatrix_x4(std::uint32_t address, const std::uint32_t (&r)[4], Site site);
void mma_m16n8k16(bool bf16, float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1, Site site);

// ---- warpgroups ----

bool elect_sync(Site site);
/// A thread keeps (dec) or takes (inc) registers, up to this number.
void setmaxnreg(int registers, bool increase, Site site);

/// An array of a thread that stands for registers: D or A of a product.
struct RegisterArray {
    const void* data = nullptr;
    int bytes = 0;
    RegisterArray() = default;
    template <class R, int n>
    RegisterArray(R (&registers)[n]) : data(registers), bytes(sizeof(registers)) {}
};

/// One thread's operands of wgmma.mma_async m64nNk16; A in registers, or nullptr and a descriptor.
struct Wgmma {
    bool bf16;
    int n;
    float* d;
    const std::uint32_t* a;
    std::uint64_t a_descriptor, b_descriptor;
    bool a_mn_major, b_mn_major, accumulate;

    bool same_instruction(const Wgmma& other) const {
        return bf16 == other.bf16 && n == other.n && (a == nullptr) == (other.a == nullptr) &&
               a_descriptor == other.a_descriptor && b_descriptor == other.b_descriptor &&
               a_mn_major == other.a_mn_major && b_mn_major == other.b_mn_major && accumulate == other.accumulate;
    }
};

void wgmma_fence(const std::initializer_list<RegisterArray>& registers, Site site);
void wgmma(const Wgmma& operands, Site site);
void wgmma_commit_group(Site site);
/// `registers`: of the products that the wait completes.
void wgmma_wait_group(int pending, const std::initializer_list<RegisterArray>& registers, Site site);

// ---- tensor memory and its products ----

void tcgen05_alloc(std::uint32_t destination, int columns, int ctas, Site site);
void tcgen05_dealloc(std::uint32_t address, int columns, int ctas, Site site);
void tcgen05_relinquish_alloc_permit(int ctas, Site site);
/// n registers of this lane; packed: two columns each.
void tcgen05_ld(void* registers, int n, bool packed, std::uint32_t address, Site site);
void tcgen05_st(std::uint32_t address, const void* registers, int n, bool packed, Site site);
/// `registers`: of the loads that the wait completes.
void tcgen05_wait_ld(const std::initializer_list<RegisterArray>& registers, Site site);
void tcgen05_wait_st(Site site);
void tcgen05_fence_before_thread_sync(Site site);
void tcgen05_fence_after_thread_sync(Site site);

/// Operands of tcgen05.mma kind::f16; A in tensor memory, or by its descriptor.
struct TensorProduct {
    int ctas;
    std::uint32_t d;
    bool a_in_tensor_memory;
    std::uint32_t a;
    std::uint64_t a_descriptor, b_descriptor;
    std::uint32_t instruction;
    bool accumulate;
};
void tcgen05_mma(const TensorProduct& operands, Site site);
/// cta_mask == 0: the mbarrier of the CTA in whose shared memory it lies, else of each CTA of the mask.
void tcgen05_commit(std::uint32_t barrier, int ctas, std::uint32_t cta_mask, Site site);
void tcgen05_cp_128x256b(std::uint32_t address, std::uint64_t descriptor, int ctas, Site site);

// ---- arithmetic and counters ----

float ex2_approx_ftz(float x);
void count_polynomials(int count);
void count_rescale();
void count_skipped_rescale();
/// A name for traces.
void role(const char* name, int number);
/// Logical time; no two looks at it give the same.
std::int64_t clock(Site site);
void red_global_add(const Region* region, float* pointer, float value, Site site);
void red_release_gpu_add(const Region* region, int* pointer, int value, Site site);
/// A thread that finds what it found there before parks until somebody adds: a loop of loads costs nothing.
int ld_acquire_gpu(const Region* region, const int* pointer, Site site);

}  // namespace emulator
