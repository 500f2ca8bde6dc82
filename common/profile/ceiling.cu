#include "common/profile/ceiling.h"

#include <algorithm>

#include "common/gpu/gpu.h"
#include "common/gpu/launch.h"
#include "common/profile/machines.h"
#include "common/profile/measure.h"
#include "common/profile/polynomial.h"

namespace profile {
namespace {

using namespace gpu;

constexpr int threads = 256;
constexpr int chains = 8;  // independent results a thread keeps going, more than the latency of one needs

/// A stream of random bits, another one in each thread (Marsaglia, Xorshift RNGs, 2003).
struct RandomBits {
    std::uint32_t state;
    GPU_DEVICE std::uint32_t next() {
        state ^= state << 13;
        state ^= state >> 17;
        return state ^= state << 5;
    }
};

GPU_DEVICE RandomBits random_bits() { return {(blockIdx.x * threads + threadIdx.x + 1) * 2654435761u}; }

// ---- copy ----

constexpr int columns = threads * 4;                         // fp32 values of a row: 16 bytes a thread
constexpr std::int64_t copied_rows = std::int64_t{1} << 18;  // 1 GiB

__global__ void fill(Tensor<float> to) {
    const Matrix<float> row = to.matrix(0, 0, 0, gridDim.x);
    RandomBits random = random_bits();
    for (int column = threadIdx.x; column < columns; column += threads) {
        row(blockIdx.x, column) = static_cast<float>(random.next() >> 8);
    }
}

/// A CTA copies `rows` rows, a thread of it has `rows` loads of 16 bytes under way before it stores the first.
template <int rows>
__global__ void copy(Tensor<const float> from, Tensor<float> to) {
    const int first = blockIdx.x * rows, column = 4 * threadIdx.x;
    const Matrix<const float> source = from.matrix(0, 0, 0, gridDim.x * rows);
    Matrix<float> target = to.matrix(0, 0, 0, gridDim.x * rows);
    Vector<float, 4> values[rows];
    for (int row = 0; row < rows; ++row) values[row] = source.load4(first + row, column);
    for (int row = 0; row < rows; ++row) target.store<4>(first + row, column, values[row]);
}

// ---- mma.sync ----

/// Every warp multiplies the same random operands again and again; the sums are stored so that none is left out.
__global__ void multiply(Tensor<float> sums, int rounds) {
    // Random signs and mantissas, exponents near 1: units draw the power that real data make them draw.
    RandomBits random = random_bits();
    const auto next = [&] { return (random.next() & 0x80FF80FFu) | 0x3F003F00u; };
    std::uint32_t a[4], b[chains][2];
    for (int i = 0; i < 4; ++i) a[i] = next();
    for (int n = 0; n < chains; ++n) {
        b[n][0] = next();
        b[n][1] = next();
    }
    float d[chains][4] = {};
    for (int round = 0; round < rounds; ++round) {
        for (int n = 0; n < chains; ++n) mma_sync_m16n8k16<bf16>(d[n], a, b[n][0], b[n][1]);
    }
    float sum = 0;
    for (int n = 0; n < chains; ++n) sum += d[n][0] + d[n][1] + d[n][2] + d[n][3];
    sums.matrix(0, 0, 0, gridDim.x)(blockIdx.x, threadIdx.x) = sum;
}

// ---- exponentials ----

/// x <- 2^-x stays between 0 and 1. Of every 4 exponentials, `polynomial` are computed by FMAs.
template <int polynomial>
__global__ void exponentials(Tensor<float> sums, int rounds) {
    RandomBits random = random_bits();
    float x[chains];
    for (int n = 0; n < chains; ++n) x[n] = (random.next() >> 8) * 0x1p-24f;
    for (int round = 0; round < rounds; ++round) {
        for (int n = 0; n < chains; ++n) x[n] = n % 4 < polynomial ? exp2_polynomial(-x[n]) : ex2_approx_ftz(-x[n]);
    }
    float sum = 0;
    for (int n = 0; n < chains; ++n) sum += x[n];
    sums.matrix(0, 0, 0, gridDim.x)(blockIdx.x, threadIdx.x) = sum;
}

/// Rounds a second of `kernel`, summed over all threads, with `ctas` CTAs on each multiprocessor.
double rounds_per_second(const char* name, void (*kernel)(Tensor<float>, int), int ctas) {
    constexpr int rounds = 4096;
    ctas *= device().multiprocessors;
    const Buffer sums("sums", std::size_t(ctas) * threads * sizeof(float));
    const auto launch = [&] {
        gpu::launch({name, ctas, threads, 0}, kernel, sums.tensor<float>(0, 0, threads, threads), rounds);
    };
    return double(rounds) * ctas * threads / median_seconds(launch);
}

}  // namespace

std::optional<double> copy_ceiling() {
    if (device().emulated) return std::nullopt;
    const std::size_t bytes = std::size_t(copied_rows) * columns * sizeof(float);
    const Buffer from("copied", bytes), to("copy", bytes);
    const Tensor<float> source = from.tensor<float>(0, 0, columns, columns),
                        target = to.tensor<float>(0, 0, columns, columns);
    launch({"profile::fill", copied_rows, threads, 0}, fill, source);
    double fastest = 0;  // how many loads serve best differs from GPU to GPU
    const auto measure = [&](void (*kernel)(Tensor<const float>, Tensor<float>), int rows) {
        const double seconds = median_seconds([&] {
            launch({"profile::copy", copied_rows / rows, threads, 0}, kernel, read_only(source), target);
        });
        fastest = std::max(fastest, 2.0 * bytes / seconds);
    };
    measure(copy<1>, 1);
    measure(copy<4>, 4);
    measure(copy<16>, 16);
    return fastest;
}

std::optional<double> mma_sync_ceiling() {
    if (device().emulated || device().major < 8) return std::nullopt;
    return 4096.0 * chains / warp_size * rounds_per_second("profile::multiply", multiply, 2);
}

std::optional<double> exponential_ceiling(int polynomial) {
    if (device().emulated) return std::nullopt;
    const auto kernel = polynomial == 0 ? exponentials<0> : polynomial == 1 ? exponentials<1> : exponentials<4>;
    return chains * rounds_per_second("profile::exponentials", kernel, 8);
}

std::vector<Ceiling> ceilings() {
    std::vector<Ceiling> result;
    const auto add = [&](const char* name, const char* unit, std::optional<double> per_second) {
        if (per_second) result.push_back({name, unit, *per_second, "measured"});
    };
    add("copy", "B/s", copy_ceiling());
    add("mma.sync bf16", "FLOP/s", mma_sync_ceiling());
    add("wgmma bf16", "FLOP/s", wgmma_ceiling(false));
    add("wgmma e4m3", "FLOP/s", wgmma_ceiling(true));
    add("ex2 MUFU", "exp/s", exponential_ceiling(0));
    add("ex2 polynomial", "exp/s", exponential_ceiling(4));
    add("ex2 mixed", "exp/s", exponential_ceiling(1));
    const Device machine = device();
    const Machine* stated = machine.major == 10 ? find_machine(machine.name) : nullptr;
    if (stated) {  // tensor memory: no kernel of this build reaches these units
        const std::string source = "table: " + std::string(stated->source);
        result.push_back({"tcgen05 bf16", "FLOP/s", stated->bf16, source});
        result.push_back({"tcgen05 e4m3", "FLOP/s", stated->e4m3, source});
    }
    return result;
}

const Ceiling* find(const std::vector<Ceiling>& ceilings, const std::string& name) {
    for (const Ceiling& ceiling : ceilings) {
        if (ceiling.name == name) return &ceiling;
    }
    return nullptr;
}

}  // namespace profile
