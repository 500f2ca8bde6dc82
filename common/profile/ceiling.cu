#include "common/profile/ceiling.h"

#include <algorithm>
#include <vector>

#include "common/gpu/gpu.h"
#include "common/gpu/launch.h"

namespace profile {
namespace {

using namespace gpu;

constexpr int threads = 256;
constexpr int chains = 8;  // independent sums a warp keeps going, more than the latency of one needs

/// Every warp multiplies the same random operands again and again; the sums are stored so that none is left out.
__global__ void multiply(Tensor<float> sums, int rounds) {
    // Random signs and mantissas, exponents near 1: units draw the power that real data make them draw.
    std::uint32_t bits = blockIdx.x * threads + threadIdx.x + 1;
    const auto next = [&] {
        bits = bits * 1664525u + 1013904223u;
        return (bits & 0x80FF80FFu) | 0x3F003F00u;
    };
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

}  // namespace

std::optional<double> mma_sync_ceiling() {
    const Device machine = device();
    if (machine.emulated || machine.major < 8) return std::nullopt;
    constexpr int rounds = 8192, repetitions = 7;
    const int ctas = 2 * machine.multiprocessors;
    Buffer sums("sums", std::size_t(ctas) * threads * sizeof(float));
    Timer timer;
    std::vector<double> milliseconds;
    for (int n = 0; n <= repetitions; ++n) {
        timer.start();
        launch({"profile::multiply", ctas, threads, 0}, multiply, sums.tensor<float>(0, 0, threads, threads), rounds);
        const double time = *timer.stop();
        if (n > 0) milliseconds.push_back(time);  // the first one warms up
    }
    std::nth_element(milliseconds.begin(), milliseconds.begin() + repetitions / 2, milliseconds.end());
    const double flops = 4096.0 * chains * rounds * (threads / warp_size) * ctas;
    return flops / milliseconds[repetitions / 2] * 1e3;
}

}  // namespace profile
