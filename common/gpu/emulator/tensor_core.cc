// mma.sync m16n8k16 as Hopper computes it, bit for bit: products exact; E the largest exponent of the terms that are
// not zero (of a product: the sum of the exponents in the encodings); every term cut toward zero to a multiple of 2^(E
// - 25); the exact sum of the 16 products and c cut toward zero to fp32. Every exact zero is +0, every NaN 0x7FFFFFFF.
// Compiled with -O3.
#include "common/gpu/emulator/tensor_core.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/gpu/emulator/number_types.h"

// One binary for every x86: the loops below exist for AVX2 too, and the loader chooses.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define GPU_TARGET_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define GPU_TARGET_CLONES
#endif

namespace emulator {

namespace {

constexpr int M = mma_m, N = mma_n, K = mma_k;
constexpr int fraction_bits = 25;        // kept of every term below 2^E
constexpr int zero_exponent = -1 << 12;  // of a zero: never the largest

/// The eight columns of a row side by side; every operation works on all of them. They may alias the arrays they lie
/// in, and are passed by reference: by value, the calling convention would depend on the instruction set.
using Ints [[gnu::may_alias]] = std::int32_t __attribute__((vector_size(4 * N)));
using Floats [[gnu::may_alias]] = float __attribute__((vector_size(4 * N)));

inline const Ints& row(const std::int32_t (&elements)[N]) { return reinterpret_cast<const Ints&>(elements); }
inline const Floats& row(const float (&elements)[N]) { return reinterpret_cast<const Floats&>(elements); }

/// Finite numbers as significand * 2^exponent: the significand in [1, 2), below 1 for subnormals, 0 for zero.
template <int rows, int columns>
struct Operand {
    alignas(32) float significand[rows][columns];
    alignas(32) std::int32_t exponent[rows][columns];
    bool finite;
};

struct Format {
    int fraction_bits, bias, bits;
};
constexpr Format fp16_format{10, 15, 16}, bf16_format{7, 127, 16}, fp32_format{23, 127, 32};

template <Format format, class Bits, int rows, int columns>
inline __attribute__((always_inline)) void decode(const Bits (&encoded)[rows][columns],
                                                  Operand<rows, columns>& operand) {
    constexpr std::uint32_t exponent_mask = (1u << (format.bits - 1 - format.fraction_bits)) - 1;
    constexpr float unit = std::bit_cast<float>((127u - format.fraction_bits) << 23);  // one in the last fraction bit
    const Bits* const in = encoded[0];
    float* const significand = operand.significand[0];
    std::int32_t* const exponent = operand.exponent[0];
    int special = 0;
    for (int i = 0; i < rows * columns; ++i) {
        const std::uint32_t bits = in[i];
        const std::int32_t field = static_cast<std::int32_t>(bits >> format.fraction_bits & exponent_mask);
        const std::int32_t fraction = static_cast<std::int32_t>(bits & ((1u << format.fraction_bits) - 1));
        const std::int32_t integer = field != 0 ? fraction | 1 << format.fraction_bits : fraction;
        const std::int32_t sign = -static_cast<std::int32_t>(bits >> (format.bits - 1));  // 0 or -1
        significand[i] = static_cast<float>((integer ^ sign) - sign) * unit;
        exponent[i] = integer == 0 ? zero_exponent : std::max(field, 1) - format.bias;
        special |= field == static_cast<std::int32_t>(exponent_mask);
    }
    operand.finite = special == 0;
}

/// 2^exponent, for exponents of normal numbers.
inline double power_of_two(std::int32_t exponent) {
    return std::bit_cast<double>(static_cast<std::int64_t>(1023 + exponent) << 52);
}

/// Toward zero to 24 significant bits; subnormals to multiples of 2^-149.
inline float cut(double exact) {
    constexpr std::uint64_t kept = ~std::uint64_t{0} << (52 - 23);
    return static_cast<float>(std::bit_cast<double>(std::bit_cast<std::uint64_t>(exact) & kept));
}
inline float cut_subnormal(double exact) { return static_cast<float>(std::trunc(exact * 0x1p149) * 0x1p-149); }

/// D = A B + C as if all were finite, one row of D at a time, its eight columns side by side. True if all were.
template <Format format>
inline __attribute__((always_inline)) bool multiply_finite(const std::uint16_t (&A)[M][K],
                                                           const std::uint16_t (&B)[K][N],
                                                           const std::uint32_t (&C)[M][N], float (&d)[M][N]) {
    Operand<M, K> a;
    Operand<K, N> b;
    Operand<M, N> c;
    decode<format>(A, a);
    decode<format>(B, b);
    decode<fp32_format>(C, c);
    for (int i = 0; i < M; ++i) {
        Ints largest = row(c.exponent[i]);
        for (int k = 0; k < K; ++k) {
            const Ints exponent = row(b.exponent[k]) + a.exponent[i][k];
            largest = exponent > largest ? exponent : largest;
        }
        // In units of 2^(largest - 25), cut toward zero.
        const auto add_term = [&](Ints& sum, const Floats& significand, const Ints& exponent) {
            const Ints shift = exponent - largest + fraction_bits;
            const Ints scale = (127 + (shift > -100 ? shift : Ints{} - 100)) << 23;  // 2^shift as fp32 bits
            sum += __builtin_convertvector(significand * reinterpret_cast<const Floats&>(scale), Ints);
        };
        // A term is below 2^(25 + 2): sixteen of them need more than 32 bits, eight do not.
        Ints sum[2] = {}, last = {};
        for (int half = 0; half < 2; ++half)
            for (int k = half * K / 2; k < (half + 1) * K / 2; ++k)
                add_term(sum[half], row(b.significand[k]) * a.significand[i][k], row(b.exponent[k]) + a.exponent[i][k]);
        add_term(last, row(c.significand[i]), row(c.exponent[i]));

        // The sum needs 33 bits and lies between 2^-277 and 2^257 if it is not zero: exact in double.
        double exact[N];
        int subnormal = 0;
        for (int j = 0; j < N; ++j) {
            exact[j] = (static_cast<double>(sum[0][j]) + sum[1][j] + last[j]) *
                       power_of_two(std::max(largest[j], -600) - fraction_bits);
            d[i][j] = cut(exact[j]);
            subnormal |= std::fabs(exact[j]) < 0x1p-126 && exact[j] != 0;
        }
        if (subnormal)
            for (int j = 0; j < N; ++j)
                if (std::fabs(exact[j]) < 0x1p-126) d[i][j] = cut_subnormal(exact[j]);
    }
    return a.finite && b.finite && c.finite;
}

GPU_TARGET_CLONES
bool multiply_bf16(const std::uint16_t (&A)[M][K], const std::uint16_t (&B)[K][N], const std::uint32_t (&C)[M][N],
                   float (&d)[M][N]) {
    return multiply_finite<bf16_format>(A, B, C, d);
}

GPU_TARGET_CLONES
bool multiply_fp16(const std::uint16_t (&A)[M][K], const std::uint16_t (&B)[K][N], const std::uint32_t (&C)[M][N],
                   float (&d)[M][N]) {
    return multiply_finite<fp16_format>(A, B, C, d);
}

/// Infinities and NaN among the operands of one element. False if there are none.
bool special(const float (&a)[K], const float (&b)[K], float c, float& d) {
    bool plus = c == INFINITY, minus = c == -INFINITY, nan = std::isnan(c);
    for (int k = 0; k < K; ++k) {
        if (std::isfinite(a[k]) && std::isfinite(b[k])) continue;
        const double product = double{a[k]} * b[k];  // of finite numbers it cannot overflow
        nan = nan || std::isnan(product);
        plus = plus || product == INFINITY;
        minus = minus || product == -INFINITY;
    }
    if (nan || (plus && minus)) {
        d = std::bit_cast<float>(0x7FFFFFFFu);
    } else if (plus || minus) {
        d = plus ? INFINITY : -INFINITY;
    } else {
        return false;
    }
    return true;
}

float as_float(std::uint16_t bits, bool bf16) {
    return bf16 ? to_float(emulator::bf16{bits}) : to_float(emulator::fp16{bits});
}

}  // namespace

void multiply_accumulate(bool bf16, const std::uint16_t (&a)[M][K], const std::uint16_t (&b)[K][N], float (&d)[M][N]) {
    std::uint32_t c[M][N];
    std::memcpy(c, d, sizeof(c));
    if (bf16 ? multiply_bf16(a, b, c, d) : multiply_fp16(a, b, c, d)) return;
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            float row[K], column[K];
            for (int k = 0; k < K; ++k) {
                row[k] = as_float(a[i][k], bf16);
                column[k] = as_float(b[k][j], bf16);
            }
            special(row, column, std::bit_cast<float>(c[i][j]), d[i][j]);
        }
}

}  // namespace emulator
