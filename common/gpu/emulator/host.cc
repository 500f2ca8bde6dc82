// The host's side of the software GPU: the device, buffers, launches, counters.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "common/gpu/emulator/machine.h"
#include "common/gpu/emulator/region.h"

namespace gpu {

namespace {

constexpr std::size_t guard_bytes = 4096;
constexpr unsigned char canary = 0xA5;

/// Every buffer that is alive, in the order of creation.
std::vector<const emulator::Region*>& regions() {
    static std::vector<const emulator::Region*> all;
    return all;
}

std::size_t free_memory() {
    return static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

Device device() {
    return {"emulator",    true, 0, 0, std::max(1, emulator::options().resident_ctas), emulator::max_shared_bytes,
            free_memory(), 0};
}

struct Buffer::State {
    emulator::Region region;
    char* mapping;  // guard zone, memory, guard zone
    std::size_t mapping_bytes;

    State(std::string name, std::size_t bytes) {
        // The upper zone begins right after the last byte, so that one byte too far is seen.
        mapping_bytes = bytes + 2 * guard_bytes;
        void* memory = MAP_FAILED;
        if (bytes <= std::numeric_limits<std::size_t>::max() / 2 && mapping_bytes <= free_memory())
            memory = mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            throw Error("no memory for \"" + name + "\": needs " + std::to_string(bytes) + " bytes, " +
                        std::to_string(free_memory()) + " are free");
        mapping = static_cast<char*>(memory);
        region.name = std::move(name);
        region.begin = mapping + guard_bytes;
        region.bytes = bytes;
        region.reset_counters();
        std::memset(mapping, canary, guard_bytes);
        std::memset(region.begin + bytes, canary, guard_bytes);
        regions().push_back(&region);
    }
    ~State() {
        std::erase(regions(), &region);
        munmap(mapping, mapping_bytes);
    }
    State(const State&) = delete;
};

Buffer::Buffer(std::string name, std::size_t bytes) : state_(std::make_unique<State>(std::move(name), bytes)) {
    poison();
}
Buffer::~Buffer() = default;
Buffer::Buffer(Buffer&&) noexcept = default;
Buffer& Buffer::operator=(Buffer&&) noexcept = default;

const std::string& Buffer::name() const { return state_->region.name; }
std::size_t Buffer::bytes() const { return state_->region.bytes; }
void* Buffer::data() const { return state_->region.begin; }
const emulator::Region* Buffer::region() const { return &state_->region; }

void Buffer::poison() { std::memset(data(), 0xFF, bytes()); }

void Buffer::write(const void* source, std::size_t bytes) {
    if (bytes > this->bytes())
        throw Error("write of " + std::to_string(bytes) + " bytes to \"" + name() + "\", which has " +
                    std::to_string(this->bytes()));
    if (bytes > 0) std::memcpy(data(), source, bytes);
}

void Buffer::read(void* destination, std::size_t bytes) const {
    if (bytes > this->bytes())
        throw Error("read of " + std::to_string(bytes) + " bytes from \"" + name() + "\", which has " +
                    std::to_string(this->bytes()));
    if (bytes > 0) std::memcpy(destination, data(), bytes);
}

bool Buffer::guards_intact() const {
    const auto intact = [](const char* zone) {
        return std::all_of(zone, zone + guard_bytes, [](char c) { return static_cast<unsigned char>(c) == canary; });
    };
    return intact(state_->mapping) && intact(state_->region.begin + bytes());
}

void check_launch(const LaunchShape& shape) {
    const std::string kernel = std::string("kernel ") + shape.kernel + ": ";
    if (shape.ctas < 0 || shape.ctas > std::numeric_limits<std::int32_t>::max())
        throw Error(kernel + std::to_string(shape.ctas) + " CTAs, allowed are 0 to 2147483647");
    if (shape.threads < 1 || shape.threads > emulator::max_threads)
        throw Error(kernel + std::to_string(shape.threads) + " threads a CTA, allowed are 1 to 1024");
    if (shape.cluster < 1 || shape.cluster > 8 || shape.ctas % shape.cluster != 0)
        throw Error(kernel + "clusters of " + std::to_string(shape.cluster) + " CTAs in a launch of " +
                    std::to_string(shape.ctas) + "; a cluster has 1 to 8, and they divide the launch");
    if (shape.shared_bytes > emulator::max_shared_bytes)
        throw Error(kernel + "needs " + std::to_string(shape.shared_bytes) + " bytes of shared memory, device has " +
                    std::to_string(emulator::max_shared_bytes));
}

void run_emulated(const LaunchShape& shape, void (*thread)(void*), void* arguments) {
    emulator::machine.run(shape, thread, arguments);
}

void synchronize() {}  // run_emulated returns when the kernel is over

Timer::Timer() = default;
Timer::~Timer() = default;
void Timer::start() {}
std::optional<double> Timer::stop() { return std::nullopt; }

void reset_counters() {
    emulator::totals = {};
    for (const emulator::Region* region : regions()) region->reset_counters();
}

std::optional<Counters> counters() {
    const auto distinct = [](const std::vector<std::uint64_t>& bits) {
        std::uint64_t n = 0;
        for (const std::uint64_t word : bits) n += static_cast<std::uint64_t>(std::popcount(word));
        return n;
    };
    const emulator::Totals& totals = emulator::totals;
    Counters result;
    for (const emulator::Region* region : regions())
        result.tensors.push_back({region->name, region->requested_read, region->requested_written,
                                  distinct(region->bytes_read), distinct(region->bytes_written)});
    result.shared_read = totals.shared_read;
    result.shared_written = totals.shared_written;
    result.bank_conflicts = totals.bank_conflicts;
    result.mma_flops = totals.mma_flops;
    result.exponentials = totals.exponentials;
    result.polynomials = totals.polynomials;
    result.rescales = totals.rescales;
    result.skipped_rescales = totals.skipped_rescales;
    result.barriers = totals.barriers;
    result.atomics = totals.atomics;
    result.tensor_memory_read = totals.tensor_memory_read;
    result.tensor_memory_written = totals.tensor_memory_written;
    return result;
}

}  // namespace gpu
