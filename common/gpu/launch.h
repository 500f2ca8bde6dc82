// The host's side of the GPU, the same on both machines: buffers, launches, the device, what was counted.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "common/gpu/memory.h"

namespace gpu {

/// A launch or a device call that failed, or an emulator's report. what() is for people.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// A kernel of which this build holds no code for the GPU that is present: nothing is wrong, it cannot run here.
struct NotBuilt : Error {
    using Error::Error;
};

struct Device {
    std::string name;  // "emulator", or the GPU's own name
    bool emulated;
    int major, minor;  // compute capability; 0.0 on the emulator
    int multiprocessors;
    std::size_t shared_bytes;  // most dynamic shared memory a CTA may ask for
    std::size_t free_bytes;    // global memory that is free now
    int clock_mhz;             // highest clock of the multiprocessors; 0 on the emulator
};

/// The current device. Throws Error if there is no GPU or no driver.
Device device();

/// Global memory with a name, between two guard zones. Starts poisoned: every byte 0xFF, a NaN in fp32, fp16 and bf16.
class Buffer {
  public:
    /// Throws Error, naming the bytes needed and free, if there is too little memory.
    Buffer(std::string name, std::size_t bytes);
    ~Buffer();
    Buffer(Buffer&&) noexcept;
    Buffer& operator=(Buffer&&) noexcept;

    const std::string& name() const;
    std::size_t bytes() const;
    void poison();
    void write(const void* source, std::size_t bytes);
    void read(void* destination, std::size_t bytes) const;
    /// False if anything wrote into the guard zones.
    bool guards_intact() const;

    /// The buffer's memory as a kernel operand; strides and `first` in elements of T.
    template <class T>
    Tensor<T> tensor(std::int64_t batch_stride, std::int64_t head_stride, std::int64_t row_stride, int columns,
                     std::int64_t first = 0) const {
        Tensor<T> t;
        t.data = static_cast<T*>(data()) + first;
        t.batch_stride = batch_stride;
        t.head_stride = head_stride;
        t.row_stride = row_stride;
        t.columns = columns;
        EMULATED(t.region = region());
        return t;
    }
    /// The start of the memory, for kernel arguments that are plain arrays (cumulative lengths).
    void* data() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
#if GPU_EMULATOR
    const emulator::Region* region() const;
#endif
};

// Architectures that nvcc compiles the calling file for, as in "800,900" for 8.0 and 9.0.
#ifdef __CUDA_ARCH_LIST__
#define GPU_TEXT_OF(...) #__VA_ARGS__
#define GPU_EXPANDED_TEXT_OF(...) GPU_TEXT_OF(__VA_ARGS__)
#define GPU_BUILT_FOR GPU_EXPANDED_TEXT_OF(__CUDA_ARCH_LIST__)
#else
#define GPU_BUILT_FOR ""
#endif

struct LaunchShape {
    const char* kernel;  // named in errors and reports
    std::int64_t ctas;   // one-dimensional grid; nothing is launched for 0
    int threads;
    std::size_t shared_bytes;
    int cluster = 1;                        // CTAs that run together and reach each other's shared memory
    int registers = 0;                      // of a thread, on which the kernel's setmaxnreg count; 0: it has none
    const char* built_for = GPU_BUILT_FOR;  // left as it is
};

/// Throws Error before the launch if the shape is beyond the device: "needs X bytes of shared memory, device has Y".
void check_launch(const LaunchShape& shape);

#if GPU_EMULATOR
/// Runs the kernel to its end; throws Error with the report if it broke a rule.
void run_emulated(const LaunchShape& shape, void (*thread)(void*), void* arguments);
#else
/// Throws NotBuilt if there is no code for this GPU, Error if the launch fails otherwise.
void launch_cuda(const LaunchShape& shape, const void* kernel, void** arguments);
#endif

/// Launches a kernel over shape.ctas CTAs. On a GPU it returns at once; failures of the launch itself are thrown here,
/// those of the kernel by synchronize().
template <class... Parameters>
void launch(const LaunchShape& shape, void (*kernel)(Parameters...), std::type_identity_t<Parameters>... arguments) {
    check_launch(shape);
    if (shape.ctas == 0) return;
#if GPU_EMULATOR
    auto thread = [&] { kernel(arguments...); };
    run_emulated(
        shape, [](void* body) { (*static_cast<decltype(thread)*>(body))(); }, &thread);
#else
    void* pointers[] = {&arguments...};
    launch_cuda(shape, reinterpret_cast<const void*>(kernel), pointers);
#endif
}

/// Waits for all launches; throws Error if one failed.
void synchronize();

/// Milliseconds of device time between two points of the launch queue (CUDA events); nullopt on the emulator.
class Timer {
  public:
    Timer();
    ~Timer();
    void start();
    std::optional<double> stop();

  private:
    [[maybe_unused]] void* start_ = nullptr;
    [[maybe_unused]] void* stop_ = nullptr;
};

/// Bytes of one buffer. Requested: asked for by lanes and engines. Distinct: different bytes touched.
struct Traffic {
    std::string tensor;
    std::uint64_t requested_read = 0, requested_written = 0, distinct_read = 0, distinct_written = 0;
};

/// What the launches since reset_counters() did, counted by the emulator.
struct Counters {
    std::vector<Traffic> tensors;
    std::uint64_t shared_read = 0, shared_written = 0;  // bytes
    std::uint64_t bank_conflicts = 0;                   // extra cycles of ldmatrix and stmatrix, eight rows at a time
    std::uint64_t mma_flops = 0;
    std::uint64_t exponentials = 0;  // by special-function units
    std::uint64_t polynomials = 0;   // exponentials by multiplications and additions instead
    std::uint64_t rescales = 0;
    std::uint64_t skipped_rescales = 0;  // decided against: the state kept its base
    std::uint64_t barriers = 0;          // CTA-wide and named, counted once a barrier
    std::uint64_t atomics = 0;
    std::uint64_t tensor_memory_read = 0, tensor_memory_written = 0;  // bytes of registers, of copies, and of A
};

/// Chooses by name the order of events of the launches that follow, and its seed. Throws Error, naming the orders there
/// are; on a GPU there is no choice.
void choose_schedule(const std::string& name, std::uint64_t seed);

void reset_counters();
/// nullopt on a real GPU, where nothing is counted.
std::optional<Counters> counters();

}  // namespace gpu
