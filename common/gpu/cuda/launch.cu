// The host's side of a real GPU: what common/gpu/launch.h declares, on the CUDA runtime.
#include "common/gpu/launch.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

namespace gpu {
namespace {

// Kernels launched since the last synchronize(): a failure belongs to one of them.
std::vector<std::string> launched;

// What does not change while the program runs; asking for it again in every launch would be timed with the kernels.
struct Properties {
    std::string name;
    int major, minor, multiprocessors;
    std::size_t shared_bytes;
};

std::string mebibytes(std::size_t bytes) {
    char text[64];
    std::snprintf(text, sizeof(text), bytes < 1u << 20 ? "%.3f MiB" : "%.1f MiB", bytes / 1048576.0);
    return text;
}

void check(cudaError_t status, const std::string& what) {
    if (status != cudaSuccess) throw Error(what + ": " + cudaGetErrorString(status) + ".");
}

const Properties& properties() {
    static const Properties result = [] {
        int count = 0;
        const cudaError_t status = cudaGetDeviceCount(&count);
        const std::string advice =
            " Look at nvidia-smi and CUDA_VISIBLE_DEVICES, or build for the software GPU (cmake --preset emulator).";
        if (status == cudaErrorInsufficientDriver) {
            throw Error("There is no NVIDIA driver here, or it is older than the CUDA " +
                        std::to_string(CUDART_VERSION / 1000) + " that this program was built with." + advice);
        }
        if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
            throw Error("There is no NVIDIA GPU here that CUDA can see." + advice);
        }
        check(status, "The NVIDIA GPUs cannot be listed");
        int current = 0;
        check(cudaGetDevice(&current), "No NVIDIA GPU can be used");
        cudaDeviceProp p;
        check(cudaGetDeviceProperties(&p, current), "The GPU's properties cannot be read");
        return Properties{p.name, p.major, p.minor, p.multiProcessorCount, p.sharedMemPerBlockOptin};
    }();
    return result;
}

// "800,900" -> "8.0, 9.0".
std::string architectures(const std::string& list) {
    std::string text;
    for (std::size_t begin = 0; begin < list.size();) {
        const std::size_t end = std::min(list.find(',', begin), list.size());
        const int number = std::stoi(list.substr(begin, end - begin));
        text += (text.empty() ? "" : ", ") + std::to_string(number / 100) + "." + std::to_string(number / 10 % 10);
        begin = end + 1;
    }
    return text;
}

void check_launched(cudaError_t status, const LaunchShape& shape) {
    if (status == cudaSuccess) return;
    cudaGetLastError();  // the next launch starts without this one's error
    const std::string kernel = std::string("Kernel ") + shape.kernel;
    if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
        const Properties& p = properties();
        const std::string present = std::to_string(p.major) + "." + std::to_string(p.minor);
        throw NotBuilt(kernel + " is built for architectures " + architectures(shape.built_for) + ", and this GPU (" +
                       p.name + ") is " + present + ", which has no code in this build.");
    }
    throw Error(kernel + " was not launched (" + std::to_string(shape.ctas) + " CTAs of " +
                std::to_string(shape.threads) + " threads, " + std::to_string(shape.shared_bytes) +
                " bytes of shared memory): " + cudaGetErrorString(status) + ".");
}

}  // namespace

Device device() {
    const Properties& p = properties();
    std::size_t free_bytes = 0, total_bytes = 0;
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "The free memory of " + p.name + " cannot be read");
    int current = 0, clock_khz = 0;
    check(cudaGetDevice(&current), "The current GPU cannot be read");
    check(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, current),
          "The clock of " + p.name + " cannot be read");
    return {p.name, false, p.major, p.minor, p.multiprocessors, p.shared_bytes, free_bytes, clock_khz / 1000};
}

// Buffer ------------------------------------------------------------------------------------------------------------

struct Buffer::State {
    std::string name;
    std::size_t bytes;
    unsigned char* memory;  // guard zone, data, guard zone
};

namespace {

// Guard zones are NaN in every type, as poison is, but tell a poisoned value that was copied there from an untouched
// one.
constexpr std::size_t guard_bytes = 4096;
const std::vector<std::uint16_t> guard(guard_bytes / 2, 0xFFFE);

}  // namespace

Buffer::Buffer(std::string name, std::size_t bytes) {
    const std::size_t free_bytes = device().free_bytes;
    const std::string needs =
        "Buffer " + name + " needs " + mebibytes(bytes) + " of GPU memory and " + mebibytes(free_bytes) + " are free";
    unsigned char* memory = nullptr;
    if (bytes > free_bytes) throw Error(needs + ".");
    if (cudaMalloc(&memory, bytes + 2 * guard_bytes) != cudaSuccess) {
        cudaGetLastError();
        throw Error(needs + ", but not in one piece.");
    }
    state_ = std::make_unique<State>(State{std::move(name), bytes, memory});
    check(cudaMemcpy(memory, guard.data(), guard_bytes, cudaMemcpyHostToDevice), "Buffer " + state_->name);
    check(cudaMemcpy(memory + guard_bytes + bytes, guard.data(), guard_bytes, cudaMemcpyHostToDevice),
          "Buffer " + state_->name);
    poison();
}

Buffer::~Buffer() {
    if (state_) cudaFree(state_->memory);
}

Buffer::Buffer(Buffer&& other) noexcept = default;

Buffer& Buffer::operator=(Buffer&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
}

const std::string& Buffer::name() const { return state_->name; }
std::size_t Buffer::bytes() const { return state_->bytes; }
void* Buffer::data() const { return state_->memory + guard_bytes; }

void Buffer::poison() { check(cudaMemset(data(), 0xFF, bytes()), "Buffer " + name() + " cannot be poisoned"); }

void Buffer::write(const void* source, std::size_t bytes) {
    if (bytes > state_->bytes) {
        throw Error("Buffer " + name() + " holds " + std::to_string(state_->bytes) + " bytes and cannot take " +
                    std::to_string(bytes) + ".");
    }
    check(cudaMemcpy(data(), source, bytes, cudaMemcpyHostToDevice), "Buffer " + name() + " cannot be written");
}

void Buffer::read(void* destination, std::size_t bytes) const {
    if (bytes > state_->bytes) {
        throw Error("Buffer " + name() + " holds " + std::to_string(state_->bytes) + " bytes and cannot give " +
                    std::to_string(bytes) + ".");
    }
    check(cudaMemcpy(destination, data(), bytes, cudaMemcpyDeviceToHost), "Buffer " + name() + " cannot be read");
}

bool Buffer::guards_intact() const {
    std::vector<std::uint16_t> zone(guard.size());
    for (const unsigned char* begin : {state_->memory, state_->memory + guard_bytes + bytes()}) {
        check(cudaMemcpy(zone.data(), begin, guard_bytes, cudaMemcpyDeviceToHost),
              "The guard zones of buffer " + name() + " cannot be read");
        if (zone != guard) return false;
    }
    return true;
}

// Launches ----------------------------------------------------------------------------------------------------------

void check_launch(const LaunchShape& shape) {
    const std::string kernel = std::string("Kernel ") + shape.kernel;
    if (shape.ctas < 0 || shape.ctas > std::numeric_limits<int>::max()) {
        throw Error(kernel + " asks for " + std::to_string(shape.ctas) + " CTAs; a launch has 0 to 2147483647.");
    }
    if (shape.threads < 1 || shape.threads > 1024) {
        throw Error(kernel + " asks for " + std::to_string(shape.threads) + " threads a CTA; a CTA has 1 to 1024.");
    }
    if (shape.cluster < 1 || shape.cluster > 8 || shape.ctas % shape.cluster != 0) {
        throw Error(kernel + " asks for clusters of " + std::to_string(shape.cluster) + " CTAs in a launch of " +
                    std::to_string(shape.ctas) + "; a cluster has 1 to 8, and they divide the launch.");
    }
    if (shape.shared_bytes > properties().shared_bytes) {
        throw Error(kernel + " needs " + std::to_string(shape.shared_bytes) + " bytes of shared memory, and a CTA of " +
                    properties().name + " has " + std::to_string(properties().shared_bytes) + ".");
    }
}

void launch_cuda(const LaunchShape& shape, const void* kernel, void** arguments) {
    constexpr std::size_t without_asking = 48 * 1024;
    if (shape.shared_bytes > without_asking) {
        check_launched(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(shape.shared_bytes)),
                       shape);
    }
    if (shape.registers > 0) {
        cudaFuncAttributes attributes;
        check_launched(cudaFuncGetAttributes(&attributes, kernel), shape);
        if (attributes.numRegs != shape.registers)
            throw Error(std::string("Kernel ") + shape.kernel + " is compiled to " +
                        std::to_string(attributes.numRegs) + " registers a thread, and its setmaxnreg count on " +
                        std::to_string(shape.registers) +
                        ": they might wait for ever. __launch_bounds__ decides how many it gets.");
    }
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(shape.ctas));
    config.blockDim = dim3(static_cast<unsigned>(shape.threads));
    config.dynamicSmemBytes = shape.shared_bytes;
    config.attrs = &cluster;
    config.numAttrs = shape.cluster > 1 ? 1 : 0;
    check_launched(cudaLaunchKernelExC(&config, kernel, arguments), shape);
    check_launched(cudaGetLastError(), shape);
    if (std::find(launched.begin(), launched.end(), shape.kernel) == launched.end()) launched.push_back(shape.kernel);
}

void synchronize() {
    const cudaError_t status = cudaDeviceSynchronize();
    const std::vector<std::string> kernels = std::exchange(launched, {});
    if (status == cudaSuccess) return;
    std::string names;
    for (const std::string& kernel : kernels) names += (names.empty() ? "" : ", ") + kernel;
    throw Error((kernels.size() == 1 ? "Kernel " : "One of the kernels ") + names +
                " failed: " + cudaGetErrorString(status) + ". The GPU takes no further work from this process.");
}

// Timer -------------------------------------------------------------------------------------------------------------

Timer::Timer() {
    properties();
    check(cudaEventCreate(reinterpret_cast<cudaEvent_t*>(&start_)), "A timer cannot be made");
    check(cudaEventCreate(reinterpret_cast<cudaEvent_t*>(&stop_)), "A timer cannot be made");
}

Timer::~Timer() {
    cudaEventDestroy(static_cast<cudaEvent_t>(start_));
    cudaEventDestroy(static_cast<cudaEvent_t>(stop_));
}

void Timer::start() { check(cudaEventRecord(static_cast<cudaEvent_t>(start_)), "A timer cannot be started"); }

std::optional<double> Timer::stop() {
    float milliseconds = 0.0f;
    check(cudaEventRecord(static_cast<cudaEvent_t>(stop_)), "A timer cannot be stopped");
    check(cudaEventSynchronize(static_cast<cudaEvent_t>(stop_)), "What was timed failed");
    check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(start_), static_cast<cudaEvent_t>(stop_)),
          "A timer cannot be read");
    return milliseconds;
}

// What only the emulator can do -------------------------------------------------------------------------------------

void choose_schedule(const std::string&, std::uint64_t) {
    throw Error("A GPU decides for itself in which order its threads run; schedules are chosen on the emulator.");
}

void reset_counters() {}
std::optional<Counters> counters() { return std::nullopt; }

}  // namespace gpu
