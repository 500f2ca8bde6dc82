// wgmma m64nNk16: the arithmetic of tensor_core.cc, faster, for the operands that kernels have. Compiled with -O3.
//
// A block of 16 x 8 elements is computed here if its operands have no infinity and no NaN, every product that is not
// zero has an exponent from -100 to 120, and every c that is not zero one from -100 on. Then nothing below leaves the
// normal numbers of fp32, and
//
//   a b            is exact: at most 22 significant bits
//   a b 2^(25 - E) is exact, and converting it to an integer cuts it toward zero to a multiple of 2^(E - 25), as the
//   rule wants
//   the sum of 16  is exact: a product is below (2 - 2^-10)^2 2^E, so sixteen are below 2^31 units
//   with c         below 2^31 + 2^26; from 2^31 - 2^26 on the block is left to tensor_core.cc
//   to fp32        rounds to nearest; where that is further from zero than the sum, one bit less is the sum cut toward zero
//
// A zero counts as an exponent so low that it is never the largest. Of terms that are all zero the sum is +0, whatever
// E is.
#include <algorithm>
#include <bit>
#include <cstring>

#include "common/gpu/emulator/tensor_core.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define GPU_TARGET_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define GPU_TARGET_CLONES
#endif

namespace emulator {

namespace {

constexpr int M = mma_m, N = mma_n, K = mma_k;
constexpr int bias = 127;  // of fp32: exponents are kept with it, as they stand in a float
constexpr int lowest = -100 + bias, highest = 120 + bias;

/// Eight elements side by side.
using Shorts [[gnu::may_alias]] = std::int16_t __attribute__((vector_size(2 * N)));
using Ints [[gnu::may_alias]] = std::int32_t __attribute__((vector_size(4 * N)));
using Floats [[gnu::may_alias]] = float __attribute__((vector_size(4 * N)));
using Words [[gnu::may_alias]] = std::uint32_t __attribute__((vector_size(4 * N)));
using AnyInts [[gnu::may_alias, gnu::aligned(4)]] = std::int32_t __attribute__((vector_size(4 * N)));
using AnyShorts [[gnu::may_alias, gnu::aligned(2)]] = std::int16_t __attribute__((vector_size(2 * N)));

inline __attribute__((always_inline)) const Words& words(const Ints& x) { return reinterpret_cast<const Words&>(x); }

/// n numbers of A or B in groups of eight, as fp32; exponents as the encoding says them, plus `offset`.
template <int n>
struct Operand {
    Ints value[n / N];
    Shorts exponent[n / N];
    int least, most;  // exponent of a number that is not zero
    bool finite;
};

template <bool bf16, int n>
inline __attribute__((always_inline)) void decode(const std::uint16_t* encoded, std::int16_t offset,
                                                  Operand<n>& operand) {
    constexpr int fraction_bits = bf16 ? 7 : 10;
    constexpr std::int16_t own_bias = bf16 ? 127 : 15, special = bf16 ? 0xFF : 0x1F, none = 1 << 12;
    Shorts least = Shorts{} + none, most = Shorts{} - none, any_special = {};
    for (int i = 0; i < n / N; ++i) {
        const Shorts bits = reinterpret_cast<const AnyShorts&>(encoded[i * N]), magnitude = bits & 0x7FFF,
                     field = magnitude >> fraction_bits;
        const Shorts exponent = (field > 1 ? field : Shorts{} + 1) - own_bias;
        any_special |= field == special;
        const Shorts low = magnitude == 0 ? Shorts{} + none : exponent,
                     high = magnitude == 0 ? Shorts{} - none : exponent;
        least = low < least ? low : least;
        most = high > most ? high : most;
        operand.exponent[i] = high + offset;
        const Ints wide = __builtin_convertvector(bits, Ints);
        const Ints value = (wide & 0x7FFF) << (23 - fraction_bits) | (wide & static_cast<std::int32_t>(0x80000000u));
        // The exponent of an fp16 read as one of an fp32 lacks 127 - 15.
        const Floats scaled = reinterpret_cast<const Floats&>(value) * (bf16 ? 1.0f : 0x1p112f);
        operand.value[i] = reinterpret_cast<const Ints&>(scaled);
    }
    operand.least = none;
    operand.most = -none;
    operand.finite = true;
    for (int j = 0; j < N; ++j) {
        operand.least = std::min<int>(operand.least, least[j]);
        operand.most = std::max<int>(operand.most, most[j]);
        operand.finite = operand.finite && any_special[j] == 0;
    }
}

/// 16 rows of A: every element of `exponents` eight times over.
struct Strip {
    Operand<M * K> a;
    Shorts exponents[M][K];
};

template <bool bf16>
inline __attribute__((always_inline)) void decode_strip(const std::uint16_t* encoded, Strip& strip) {
    decode<bf16>(encoded, bias, strip.a);
    for (int i = 0; i < M; ++i)
        for (int k = 0; k < K; ++k) strip.exponents[i][k] = Shorts{} + strip.a.exponent[(i * K + k) / N][k % N];
}

/// d = a b + c. False if an element of c or of the sum is none of those above; what is in d then is to be forgotten.
inline __attribute__((always_inline)) bool multiply_block(const Strip& strip, const Operand<K * N>& b,
                                                          const float* c_block, Ints (&d)[M]) {
    Ints outside = {};  // the sign bit counts
    for (int i = 0; i < M; ++i) {
        const Ints c = reinterpret_cast<const AnyInts&>(c_block[i * N]), magnitude = c & 0x7FFFFFFF;
        outside |= ((magnitude - (lowest << 23)) | (0x7F7FFFFF - magnitude)) & -magnitude;

        Shorts largest = __builtin_convertvector(magnitude >> 23, Shorts);
        for (int k = 0; k < K; ++k) {
            const Shorts exponent = strip.exponents[i][k] + b.exponent[k];
            largest = exponent > largest ? exponent : largest;
        }
        largest = largest > lowest ? largest : Shorts{} + lowest;  // all terms are zero: any will do
        const Ints scale = (2 * bias + 25 - __builtin_convertvector(largest, Ints)) << 23;  // 2^(25 - E) as fp32

        const float* const a = reinterpret_cast<const float*>(&strip.a.value[i * K / N]);
        const Floats& units = reinterpret_cast<const Floats&>(scale);
        Ints sums[2] = {};
        for (int k = 0; k < K; ++k)
            sums[k % 2] += __builtin_convertvector(reinterpret_cast<const Floats&>(b.value[k]) * a[k] * units, Ints);
        const Ints c_units = __builtin_convertvector(reinterpret_cast<const Floats&>(c) * units, Ints);

        // Unsigned from here on, since elements outside may overflow.
        const Words sum = words(sums[0]) + words(sums[1]) + words(c_units);
        const Words sign = words(reinterpret_cast<const Ints&>(sum) >> 31), size = (sum ^ sign) - sign;
        const Words too_large = size + (1u << 26);
        outside |= reinterpret_cast<const Ints&>(too_large);
        const Floats nearest = __builtin_convertvector(reinterpret_cast<const Ints&>(size), Floats);
        const Words behind = size - words(__builtin_convertvector(nearest, Ints));
        const Ints cut = reinterpret_cast<const Ints&>(nearest) + (reinterpret_cast<const Ints&>(behind) >> 31);
        const Ints back = (2 * bias << 23) - scale;
        const Floats result = reinterpret_cast<const Floats&>(cut) * reinterpret_cast<const Floats&>(back);
        d[i] = reinterpret_cast<const Ints&>(result) | reinterpret_cast<const Ints&>(sign) << 31;
    }
    std::int32_t any = 0;
    for (int j = 0; j < N; ++j) any |= outside[j];
    return any >= 0;
}

template <bool bf16>
inline __attribute__((always_inline)) void multiply(const std::uint16_t (&a)[wgmma_m][K],
                                                    const std::uint16_t (*b)[K][N], float (*d)[wgmma_m][N], int n) {
    Strip strips[wgmma_m / M];
    for (int s = 0; s < wgmma_m / M; ++s) decode_strip<bf16>(a[s * M], strips[s]);
    for (int block = 0; block < n / N; ++block) {
        Operand<K * N> columns;
        decode<bf16>(b[block][0], 0, columns);
        for (int s = 0; s < wgmma_m / M; ++s) {
            const Operand<M* K>& rows = strips[s].a;
            float* const c = d[block][s * M];
            Ints sums[M];
            if (rows.finite && columns.finite && rows.least + columns.least >= lowest - bias &&
                rows.most + columns.most <= highest - bias && multiply_block(strips[s], columns, c, sums)) {
                for (int i = 0; i < M; ++i) reinterpret_cast<AnyInts&>(c[i * N]) = sums[i];
            } else {
                multiply_accumulate(bf16, reinterpret_cast<const std::uint16_t(&)[M][K]>(a[s * M]), b[block],
                                    reinterpret_cast<float(&)[M][N]>(*c));
            }
        }
    }
}

GPU_TARGET_CLONES
void multiply_bf16(const std::uint16_t (&a)[wgmma_m][K], const std::uint16_t (*b)[K][N], float (*d)[wgmma_m][N],
                   int n) {
    multiply<true>(a, b, d, n);
}

GPU_TARGET_CLONES
void multiply_fp16(const std::uint16_t (&a)[wgmma_m][K], const std::uint16_t (*b)[K][N], float (*d)[wgmma_m][N],
                   int n) {
    multiply<false>(a, b, d, n);
}

}  // namespace

void multiply_accumulate_wide(bool bf16, const std::uint16_t (&a)[wgmma_m][K], const std::uint16_t (*b)[K][N],
                              float (*d)[wgmma_m][N], int n) {
    (bf16 ? multiply_bf16 : multiply_fp16)(a, b, d, n);
}

}  // namespace emulator
