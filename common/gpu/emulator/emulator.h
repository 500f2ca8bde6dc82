// What the instructions in common/gpu call when the GPU is software. Each function runs in the fiber of one CUDA
// thread.
//
// A violation of a rule ends the launch: the report names the rule, the thread, the call site and the seed, and
// gpu::launch throws it as gpu::Error. Control then never returns to the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

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

// ---- tensor cores ----

void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address, bool transposed, Site site);
void mma_m16n8k16(bool bf16, float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1, Site site);

// ---- arithmetic and counters ----

float ex2_approx_ftz(float x);
void count_rescale();
void red_global_add(const Region* region, float* pointer, float value, Site site);

}  // namespace emulator
