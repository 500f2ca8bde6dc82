// How fast Hopper's warpgroup products are. The only file outside common/gpu with inline PTX: it measures an instruction,
// it is no kernel of the ladder, and is compiled for 9.0a alone. PTX ISA: wgmma.mma_async, m64n256, both operands from
// shared memory.
#include "common/profile/ceiling.h"

#include "common/gpu/gpu.h"
#include "common/gpu/launch.h"
#include "common/profile/measure.h"

namespace profile {

#if GPU_EMULATOR

std::optional<double> wgmma_ceiling(bool) { return std::nullopt; }

#else

namespace {

using namespace gpu;

constexpr int warpgroups = 2, threads = 128 * warpgroups;  // one multiplies while the other waits for its sums
constexpr int span = 128;                                  // bytes of a row: 64 bf16 or 128 e4m3 values along k
constexpr int a_bytes = 64 * span, b_bytes = 256 * span;   // rows m of A, rows n of B

/// d (64 x 256, in the registers of a warpgroup) += A B, over 32 bytes along k. TYPES: shape, then the types of D, A, B;
/// TRANSPOSE: the immediates that 16-bit types have on top.
#define PROFILE_REGISTERS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define PROFILE_REGISTERS_16(i) \
    PROFILE_REGISTERS_4(i), PROFILE_REGISTERS_4(i + 4), PROFILE_REGISTERS_4(i + 8), PROFILE_REGISTERS_4(i + 12)
#define PROFILE_WGMMA(TYPES, TRANSPOSE)                                                                              \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256" TYPES                                                        \
                 " {"                                                                                                \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                            \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                  \
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                  \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                  \
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                  \
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                  \
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "      \
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, " \
                 "%128, %129, 1, 1, 1" TRANSPOSE ";"                                                                 \
                 : PROFILE_REGISTERS_16(0), PROFILE_REGISTERS_16(16), PROFILE_REGISTERS_16(32),                      \
                   PROFILE_REGISTERS_16(48), PROFILE_REGISTERS_16(64), PROFILE_REGISTERS_16(80),                     \
                   PROFILE_REGISTERS_16(96), PROFILE_REGISTERS_16(112)                                               \
                 : "l"(a), "l"(b))

template <bool e4m3>
__device__ __forceinline__ void wgmma(float (&d)[128], std::uint64_t a, std::uint64_t b) {
    if constexpr (e4m3) {
        PROFILE_WGMMA("k32.f32.e4m3.e4m3", "");
    } else {
        PROFILE_WGMMA("k16.f32.bf16.bf16", ", 0, 0");
    }
}

/// Descriptor of rows of 128 bytes, 128-byte swizzle: groups of 8 rows follow each other.
__device__ std::uint64_t descriptor(const void* rows) {
    const std::uint64_t address = __cvta_generic_to_shared(rows);
    return (address & 0x3FFFF) >> 4 | std::uint64_t{8 * span >> 4} << 32 | std::uint64_t{1} << 62;
}

/// Every warpgroup multiplies the same random operands again and again.
template <bool e4m3>
__global__ void __launch_bounds__(threads, 1) multiply(Tensor<float> sums, int rounds) {
    extern __shared__ __align__(1024) std::uint32_t operands[];  // A of each warpgroup, then B
    std::uint32_t bits = (blockIdx.x * threads + threadIdx.x + 1) * 2654435761u;
    for (int word = threadIdx.x; word < (warpgroups * a_bytes + b_bytes) / 4; word += threads) {
        bits ^= bits << 13, bits ^= bits >> 17, bits ^= bits << 5;
        // Random signs and mantissas, exponents near 1.
        operands[word] = e4m3 ? (bits & 0x8F8F8F8Fu) | 0x30303030u : (bits & 0x80FF80FFu) | 0x3F003F00u;
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const std::uint64_t a = descriptor(operands + threadIdx.x / 128 * a_bytes / 4),
                        b = descriptor(operands + warpgroups * a_bytes / 4);
    float d[128] = {};
    for (int round = 0; round < rounds; ++round) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int k = 0; k < 4; ++k) wgmma<e4m3>(d, a + 2 * k, b + 2 * k);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    float sum = 0;
    for (int i = 0; i < 128; ++i) sum += d[i];
    sums.matrix(0, 0, 0, gridDim.x)(blockIdx.x, threadIdx.x) = sum;
}

}  // namespace

std::optional<double> wgmma_ceiling(bool e4m3) {
    const Device machine = device();
    if (machine.major != 9 || machine.minor != 0) return std::nullopt;
    constexpr int rounds = 2048;
    const Buffer sums("sums", std::size_t(machine.multiprocessors) * threads * sizeof(float));
    const auto launch = [&] {
        gpu::launch({"profile::wgmma", machine.multiprocessors, threads, warpgroups * a_bytes + b_bytes},
                    e4m3 ? multiply<true> : multiply<false>, sums.tensor<float>(0, 0, threads, threads), rounds);
    };
    const double flops = 2.0 * 64 * 256 * (e4m3 ? 32 : 16) * 4 * rounds * warpgroups * machine.multiprocessors;
    return flops / median_seconds(launch);
}

#endif

}  // namespace profile
