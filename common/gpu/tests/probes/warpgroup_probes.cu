// Warpgroup products and what goes with them; for compute capability 9.0 alone (90a).
#include <algorithm>
#include <bit>
#include <cstring>

#include "common/gpu/gpu.h"
#include "common/gpu/launch.h"
#include "common/gpu/tests/probes/probes.h"

namespace probes {
namespace {

using namespace gpu;

// ---- wgmma: one product a CTA ----

constexpr int M = wgmma_m, N = wgmma_n, K = 16, threads = 128;

/// Operands as a product wants them in shared memory. The operand of CTA i begins 16 (i % 4) columns or rows into its tile.
template <class T>
struct Operands {
    PanelTile<T, M, 64> a;
    PanelTile<T, 64, M> a_mn;
    PanelTile<T, N, 64> b;
    PanelTile<T, 64, N> b_mn;
};

/// in: rows of K elements of A, columns of K elements of B, rows of N floats of C, for each CTA; out: rows of N floats.
template <class T, bool a_in_registers, Major a_major, Major b_major>
__global__ void __launch_bounds__(threads)
    product(Tensor<const T> a, Tensor<const T> b, Tensor<const float> c, Tensor<float> d) {
    auto& smem = shared_memory<Operands<T>>();
    const int index = blockIdx.x, first = 16 * (index % 4);
    const auto a_gmem = a.matrix(0, 0, std::int64_t(index) * M, M), b_gmem = b.matrix(0, 0, std::int64_t(index) * N, N);
    for (int i = threadIdx.x; i < M * K; i += threads) {
        smem.a(i / K, first + i % K) = a_gmem(i / K, i % K);
        smem.a_mn(first + i % K, i / K) = a_gmem(i / K, i % K);
    }
    for (int i = threadIdx.x; i < N * K; i += threads) {
        smem.b(i / K, first + i % K) = b_gmem(i / K, i % K);
        smem.b_mn(first + i % K, i / K) = b_gmem(i / K, i % K);
    }
    const auto c_gmem = c.matrix(0, 0, std::int64_t(index) * M, M);
    const auto d_gmem = d.matrix(0, 0, std::int64_t(index) * M, M);
    const int g = lane_id() / 4, t = lane_id() % 4;
    const auto row = [&](int i) { return 16 * warp_id() + g + 8 * (i / 2 % 2); };
    const auto column = [&](int i) { return 8 * (i / 4) + 2 * t + i % 2; };
    float sums[N / 2];
    std::uint32_t registers[4];
    for (int i = 0; i < N / 2; ++i) sums[i] = c_gmem(row(i), column(i));
    for (int j = 0; j < 4; ++j) {
        const auto element = [&](int half) {
            const T x = a_gmem(16 * warp_id() + g + 8 * (j % 2), 2 * t + 8 * (j / 2) + half);
            return std::uint32_t(std::bit_cast<std::uint16_t>(x)) << 16 * half;
        };
        registers[j] = element(0) | element(1);
    }
    fence_proxy_async();
    bar_sync();
    const std::uint64_t b_descriptor = b_major == Major::k ? smem.b.k_major(0, first) : smem.b_mn.mn_major(first, 0);
    wgmma_fence(sums, registers);
    if constexpr (a_in_registers) {
        wgmma_m64k16<T, b_major>(sums, registers, b_descriptor, true);
    } else {
        const std::uint64_t a_descriptor =
            a_major == Major::k ? smem.a.k_major(0, first) : smem.a_mn.mn_major(first, 0);
        wgmma_m64k16<T, a_major, b_major>(sums, a_descriptor, b_descriptor, true);
    }
    wgmma_commit_group();
    wgmma_wait_group<0>(sums, registers);
    for (int i = 0; i < N / 2; ++i) d_gmem(row(i), column(i)) = sums[i];
}

template <class T>
Buffer filled(const char* name, const std::vector<T>& values) {
    Buffer buffer(name, values.size() * sizeof(T));
    buffer.write(values.data(), buffer.bytes());
    return buffer;
}

std::vector<std::uint32_t> words_of(const Buffer& buffer) {
    std::vector<std::uint32_t> words(buffer.bytes() / 4);
    buffer.read(words.data(), buffer.bytes());
    return words;
}

template <class T, bool a_in_registers, Major a_major, Major b_major>
void probe_product(std::vector<Probe>& probes, const std::string& name) {
    std::vector<std::uint16_t> a, b;
    std::vector<std::uint32_t> c;
    for (int i = 0; i < wgmma_cases; ++i) {
        const WgmmaOperands x = wgmma_operands(std::is_same_v<T, bf16>, i);
        a.insert(a.end(), &x.a[0][0], &x.a[0][0] + M * K);
        b.insert(b.end(), &x.b[0][0], &x.b[0][0] + N * K);
        c.insert(c.end(), &x.c[0][0], &x.c[0][0] + M * N);
    }
    const Buffer a_gmem = filled("a", a), b_gmem = filled("b", b), c_gmem = filled("c", c), d_gmem("d", c.size() * 4);
    launch({name.c_str(), wgmma_cases, threads, sizeof(Operands<T>)}, product<T, a_in_registers, a_major, b_major>,
           a_gmem.tensor<const T>(0, 0, K, K), b_gmem.tensor<const T>(0, 0, K, K),
           c_gmem.tensor<const float>(0, 0, N, N), d_gmem.tensor<float>(0, 0, N, N));
    synchronize();
    probes.push_back({.name = name, .words = words_of(d_gmem), .case_words = M * N, .whole_cases = 1});
}

template <class T>
void probe_products(std::vector<Probe>& probes, const std::string& type) {
    constexpr Major k = Major::k, mn = Major::mn;
    probe_product<T, false, k, k>(probes, "wgmma_" + type + "_k_k");
    probe_product<T, false, k, mn>(probes, "wgmma_" + type + "_k_mn");
    probe_product<T, false, mn, mn>(probes, "wgmma_" + type + "_mn_mn");
    probe_product<T, true, k, k>(probes, "wgmma_" + type + "_registers_k");
    probe_product<T, true, k, mn>(probes, "wgmma_" + type + "_registers_mn");
}

// ---- stmatrix, elect.sync ----

struct Matrices {
    PanelTile<std::uint16_t, 64, 64> elements;
};

/// Rounds of one stmatrix each. in: rows of 4 registers a round; lane l stores to row (5 l + 7 round) % 64, chunk (l + round) % 8. out: the tile,
/// word by word as (row, column) names them.
__global__ void store_matrices(Tensor<const std::uint32_t> in, Tensor<std::uint32_t> out) {
    auto& elements = shared_memory<Matrices>().elements;
    const int lane = lane_id(), round = blockIdx.x;
    for (int i = lane; i < 64 * 64; i += warp_size) elements(i / 64, i % 64) = std::uint16_t(0);
    bar_sync();
    std::uint32_t r[4];
    for (int j = 0; j < 4; ++j) r[j] = in.matrix(0, 0, 4 * round, 4)(j, lane);
    stmatrix_x4(elements.address((5 * lane + 7 * round) % 64, 8 * ((lane + round) % 8)), r);
    bar_sync();
    for (int row = 0; row < 64; ++row) {
        const std::uint16_t low = elements(row, 2 * lane), high = elements(row, 2 * lane + 1);
        out.matrix(0, 0, 64 * round, 64)(row, lane) = low | std::uint32_t(high) << 16;
    }
}

__global__ void elect(Tensor<std::uint32_t> out) { out.matrix(0, 0, 0, 1)(0, threadIdx.x) = elect_sync(); }

}  // namespace

WgmmaOperands wgmma_operands(bool bf16, int index) {
    WgmmaOperands x;
    const int family = index % mma_families, first = index / mma_families * 8;
    for (int i = 0; i < 8; ++i) {  // a row of A and a column of B for eight
        const MmaOperands part = mma_operands(bf16, (first + i) * mma_families + family);
        for (int row = 0; row < 16; ++row) {
            if (i < M / 16) std::memcpy(x.a[16 * i + row], part.a[row], sizeof(part.a[row]));
            for (int column = 0; column < 8; ++column) {
                x.b[8 * i + column][row] = part.b[row][column];
                for (int strip = 0; strip < M / 16; ++strip)
                    x.c[16 * strip + row][8 * i + column] = part.c[row][column];
            }
        }
    }
    return x;
}

std::vector<Probe> run_warpgroup_probes() {
    std::vector<Probe> probes;
    probe_products<bf16>(probes, "bf16");
    probe_products<fp16>(probes, "fp16");

    std::vector<std::uint32_t> registers(stmatrix_rounds * 4 * warp_size);
    for (std::size_t i = 0; i < registers.size(); ++i) registers[i] = static_cast<std::uint32_t>(i + 1) * 2654435761u;
    const Buffer in = filled("registers", registers), out("tiles", stmatrix_rounds * 64 * 32 * 4);
    launch({"stmatrix_x4", stmatrix_rounds, warp_size, sizeof(Matrices)}, store_matrices,
           in.tensor<const std::uint32_t>(0, 0, warp_size, warp_size),
           out.tensor<std::uint32_t>(0, 0, warp_size, warp_size));
    synchronize();
    probes.push_back({.name = "stmatrix_x4", .words = words_of(out), .operands = registers});

    const Buffer elected("elected", 64 * 4);
    launch({"elect_sync", 1, 64, 0}, elect, elected.tensor<std::uint32_t>(0, 0, 64, 64));
    synchronize();
    probes.push_back({.name = "elect_sync", .words = words_of(elected)});
    return probes;
}

}  // namespace probes
