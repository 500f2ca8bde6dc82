// Every form of tcgen05.ld and tcgen05.st in tensor_memory_forms.inc, to be assembled: golden.py looks for nothing but
// errors.
#include "common/gpu/gpu.h"

using namespace gpu;

template <int n, class R>
__global__ void there_and_back(std::uint32_t address) {
    R x[n];
    tcgen05_ld(x, address);
    gpu::tcgen05_wait_ld(x);
    tcgen05_st(address + n, x);
    gpu::tcgen05_wait_st();
}
template <int n>
__global__ void packed(std::uint32_t address) {
    std::uint32_t x[n];
    tcgen05_ld_pack_16b(x, address);
    gpu::tcgen05_wait_ld(x);
    tcgen05_st_unpack_16b(address + 2 * n, x);
    gpu::tcgen05_wait_st();
}

template <class... Kernels>
void keep(Kernels...) {}

template <int... sizes>
void all_sizes() {
    keep(there_and_back<sizes, float>..., there_and_back<sizes, std::uint32_t>..., packed<sizes>...);
}
template void all_sizes<1, 2, 4, 8, 16, 32, 64, 128>();
