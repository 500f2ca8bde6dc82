// One allocation of global memory and what launches did to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/gpu/emulator/emulator.h"

namespace emulator {

/// The last ordinary store somewhere: by which thread of the launch, and how many proxy fences that had executed before.
struct Stored {
    std::uint64_t thread = 0;  // 0: nobody
    std::uint32_t fences = 0;
};

struct Region {
    std::string name;
    char* begin = nullptr;
    std::size_t bytes = 0;

    // Kernels see a region through const views; counting is not part of its value.
    mutable std::uint64_t requested_read = 0, requested_written = 0;
    mutable std::vector<std::uint64_t> bytes_read, bytes_written;  // one bit a byte

    // A tensor map tells of it, so engines may read it: ordinary stores of one launch are remembered, by 16 bytes.
    mutable bool mapped = false;
    mutable std::uint64_t launch = 0;
    mutable std::vector<Stored> stored;

    void reset_counters() const {
        requested_read = requested_written = 0;
        bytes_read.assign((bytes + 63) / 64, 0);
        bytes_written.assign((bytes + 63) / 64, 0);
    }
};

/// `bytes` at `pointer` lie in `region`, else a report.
void check_region(const Region* region, const void* pointer, int bytes, const char* what, Site site);
/// The same, and counts them.
void count_global_read(const Region* region, const void* pointer, int bytes, const char* instruction, Site site);
void count_global_write(const Region* region, const void* pointer, int bytes, const char* instruction, Site site);
/// The same for a store or addition by the running thread itself.
void count_ordinary_write(const Region* region, const void* pointer, int bytes, const char* instruction, Site site);
/// An engine is to read `bytes` at `pointer`: a report if an ordinary store of this launch wrote there whose thread has
/// executed no fence.proxy.async since.
void check_fenced(const Region* region, const char* pointer, int bytes, const char* name, Site site);

/// What is counted beside the regions' traffic.
struct Totals {
    std::uint64_t shared_read = 0, shared_written = 0, bank_conflicts = 0, mma_flops = 0, exponentials = 0,
                  polynomials = 0, rescales = 0, skipped_rescales = 0, barriers = 0, atomics = 0,
                  tensor_memory_read = 0, tensor_memory_written = 0;
};
extern Totals totals;

}  // namespace emulator
