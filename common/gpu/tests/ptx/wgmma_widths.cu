// Every form of wgmma in wgmma_forms.inc, to be assembled: golden.py looks for nothing but errors.
#include "common/gpu/gpu.h"

using namespace gpu;

template <int width, class T>
__global__ void multiply(float* out, const float* in, std::uint64_t a, std::uint64_t b, bool accumulate) {
    float d[width / 2];
    std::uint32_t registers[2][4];
    for (int i = 0; i < width / 2; ++i) d[i] = in[i * 128 + threadIdx.x];
    for (int i = 0; i < 8; ++i) registers[i / 4][i % 4] = __float_as_uint(in[(i + 128) * 128 + threadIdx.x]);
    gpu::wgmma_fence(d, registers);
    wgmma_m64k16<T, Major::k, Major::k>(d, a, b, accumulate);
    wgmma_m64k16<T, Major::mn, Major::mn>(d, a, b, accumulate);
    wgmma_m64k16<T, Major::k>(d, registers[0], b, accumulate);
    wgmma_m64k16<T, Major::mn>(d, registers[1], b, accumulate);
    gpu::wgmma_commit_group();
    gpu::wgmma_wait_group<0>(d, registers);
    for (int i = 0; i < width / 2; ++i) out[i * 128 + threadIdx.x] = d[i];
}

template <class... Kernels>
void keep(Kernels...) {}

template <int... widths>
void all_widths() {
    keep(multiply<widths, bf16>..., multiply<widths, fp16>...);
}
template void all_widths<32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 256>();
