#include "common/gpu/tests/probes/probes.h"

#include <bit>
#include <cmath>
#include <utility>

#include "common/gpu/launch.h"
#include "common/gpu/tests/probes/probes.cuh"

namespace probes {
namespace {

/// SplitMix64: the same numbers on every machine.
class Generator {
  public:
    explicit Generator(std::uint64_t seed) : state_(seed) {}
    std::uint32_t next() {
        std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        return static_cast<std::uint32_t>((z ^ z >> 31) >> 32);
    }
    std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(std::uint64_t{next()} * n >> 32); }
    int between(int first, int last) { return first + static_cast<int>(below(last - first + 1)); }

  private:
    std::uint64_t state_;
};

std::vector<std::uint32_t> random_words(std::uint64_t seed, std::size_t n) {
    Generator generator(seed);
    std::vector<std::uint32_t> words(n);
    for (std::uint32_t& word : words) word = generator.next();
    return words;
}

/// Global memory that holds rows of `columns` elements.
class Operand {
  public:
    Operand(const char* name, std::size_t bytes) : buffer_(name, bytes) {}
    Operand(const char* name, const std::vector<std::uint32_t>& words) : buffer_(name, words.size() * 4) {
        buffer_.write(words.data(), words.size() * 4);
    }
    template <class T = std::uint32_t>
    Tensor<T> tensor(int columns = warp_size) const {
        return buffer_.tensor<T>(0, 0, columns, columns);
    }
    /// A tensor with every stride its own.
    template <class T = std::uint32_t>
    Tensor<T> strided(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t first) const {
        return buffer_.tensor<T>(batch, head, row, warp_size, first);
    }
    std::vector<std::uint32_t> words() const {
        std::vector<std::uint32_t> result(buffer_.bytes() / 4);
        buffer_.read(result.data(), buffer_.bytes());
        return result;
    }

  private:
    gpu::Buffer buffer_;
};

Input input(const Operand& operand) { return read_only(operand.tensor()); }

// ---- Operands ----

void add_with_signs(std::vector<std::uint32_t>& numbers, std::uint32_t magnitude) {
    numbers.push_back(magnitude);
    numbers.push_back(magnitude | 0x80000000u);
}

void fill_last_row(std::vector<std::uint32_t>& numbers) {
    while (numbers.size() % warp_size != 0) numbers.push_back(0x3F800000u);
}

/// Floats whose rounding to 16 bits is a question: ties and their neighbours at every exponent, then any bits.
std::vector<std::uint32_t> numbers_to_round() {
    std::vector<std::uint32_t> numbers;
    for (const std::uint32_t special : {0x00000000u, 0x00000001u, 0x007FFFFFu, 0x00800000u, 0x7F7FFFFFu, 0x7F800000u,
                                        0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu, 0x477FEFFFu, 0x477FF000u, 0x477FF001u})
        add_with_signs(numbers, special);
    Generator generator(1);
    for (std::uint32_t exponent = 0; exponent < 255; ++exponent)
        for (const int kept : {7, 10}) {  // fraction bits of bf16 and fp16
            const std::uint32_t half = 1u << (22 - kept);
            for (const std::uint32_t last : {0u, 1u}) {
                const std::uint32_t fraction = (generator.below(1u << kept) & ~1u) | last;
                for (const std::uint32_t below : {half - 1, half, half + 1})
                    add_with_signs(numbers, exponent << 23 | fraction << (23 - kept) | below);
            }
        }
    for (std::uint32_t exponent = 0x33000000u >> 23; exponent < 0x38800000u >> 23; ++exponent)  // fp16's subnormals
        for (int i = 0; i < 16; ++i) {
            const int dropped = 13 + (0x71 - static_cast<int>(exponent));
            const std::uint32_t tie = dropped > 23 ? 0 : generator.next() << dropped | 1u << (dropped - 1);
            for (const int off : {-1, 0, 1})
                add_with_signs(numbers, exponent << 23 | ((tie + static_cast<std::uint32_t>(off)) & 0x7FFFFFu));
        }
    for (int i = 0; i < 16384; ++i) numbers.push_back(generator.next());
    fill_last_row(numbers);
    return numbers;
}

std::vector<std::uint32_t> exponents() {
    std::vector<std::uint32_t> numbers;
    for (int i = -151; i <= 130; ++i) numbers.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(i)));
    for (const std::uint32_t special : {0x00000000u, 0x00000001u, 0x007FFFFFu, 0x00800000u, 0x3EFFFFFFu, 0x3F000000u,
                                        0x42FBFFFFu, 0x42FC0001u, 0x42FCFFFFu, 0x42FD0000u, 0x42FFFFFFu, 0x43000001u,
                                        0x43150000u, 0x7F7FFFFFu, 0x7F800000u, 0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu})
        add_with_signs(numbers, special);
    for (std::uint64_t bits = 0; bits < 1ull << 32; bits += 262139) numbers.push_back(static_cast<std::uint32_t>(bits));
    Generator generator(2);
    for (int i = 0; i < 24576; ++i)  // what a softmax asks for: [-24, 0]
        numbers.push_back(
            std::bit_cast<std::uint32_t>(-24.0f * static_cast<float>(generator.below(1u << 24)) * 0x1p-24f));
    fill_last_row(numbers);
    return numbers;
}

/// (sum, addend): whether the addition rounds to even, flushes subnormals, keeps signs of zeros, makes NaN.
std::pair<std::vector<std::uint32_t>, std::vector<std::uint32_t>> numbers_to_add() {
    std::vector<std::uint32_t> specials;
    for (const std::uint32_t special : {0x00000000u, 0x00000001u, 0x00400000u, 0x007FFFFFu, 0x00800000u, 0x00800001u,
                                        0x00C00000u, 0x33800000u, 0x3F800000u, 0x3F800001u, 0x4B800000u, 0x7F7FFFFFu,
                                        0x7F000000u, 0x73000000u, 0x7F800000u, 0x7F800001u, 0x7FC12345u})
        add_with_signs(specials, special);
    std::vector<std::uint32_t> sums, addends;
    for (const std::uint32_t sum : specials)
        for (const std::uint32_t addend : specials) {
            sums.push_back(sum);
            addends.push_back(addend);
        }
    Generator generator(3);
    for (int i = 0; i < 4096; ++i) {
        sums.push_back(generator.next());
        const std::uint32_t exponent = (sums.back() >> 23) + static_cast<std::uint32_t>(generator.between(-26, 26));
        addends.push_back(exponent << 23 | generator.next() >> 9);
    }
    fill_last_row(sums);
    fill_last_row(addends);
    return {sums, addends};
}

// ---- mma ----

/// 16-bit numbers: exponent in [first, last] (unbiased; below the normal range: subnormal), any sign and fraction.
std::uint16_t element(Generator& generator, bool bf16, int first, int last) {
    const int fraction_bits = bf16 ? 7 : 10, bias = bf16 ? 127 : 15;
    const int field = std::max(generator.between(first, last) + bias, 0);
    const std::uint32_t random = generator.next();
    return static_cast<std::uint16_t>((random >> 31) << 15 | std::uint32_t(field) << fraction_bits |
                                      (random & ((1u << fraction_bits) - 1)));
}

std::uint32_t single(Generator& generator, int first, int last) {
    const int field = std::max(generator.between(first, last) + 127, 0);
    const std::uint32_t random = generator.next();
    return (random & 0x80000000u) | std::uint32_t(field) << 23 | (random & 0x7FFFFFu);
}

double value_of(std::uint16_t bits, bool bf16) {
    const int fraction_bits = bf16 ? 7 : 10, bias = bf16 ? 127 : 15;
    const int field = (bits & 0x7FFF) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
    const double magnitude = field == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                                        : std::ldexp(fraction + (1 << fraction_bits), field - bias - fraction_bits);
    return bits & 0x8000 ? -magnitude : magnitude;
}

std::uint16_t special_element(Generator& generator, bool bf16) {
    const std::uint16_t infinity = bf16 ? 0x7F80 : 0x7C00;
    const std::uint16_t sign = generator.next() >> 31 ? 0x8000 : 0;
    switch (generator.below(6)) {
        case 0:
            return sign | infinity;
        case 1:
            return sign | 0x7FFF;
        case 2:
            return sign | (infinity + 1);  // a signalling NaN
        case 3:
            return sign | (infinity - 1);  // the largest number
        default:
            return sign;  // a zero
    }
}

std::uint32_t special_single(Generator& generator) {
    constexpr std::uint32_t specials[] = {0x7F800000u, 0x7FFFFFFFu, 0x7F800001u, 0x7F7FFFFFu, 0u, 0u, 0x00000001u};
    return specials[generator.below(std::size(specials))] | (generator.next() & 0x80000000u);
}

std::vector<std::uint32_t> mma_registers(bool bf16) {
    std::vector<std::uint32_t> registers(std::size_t{mma_cases} * 10 * warp_size);
    for (int i = 0; i < mma_cases; ++i) {
        const MmaOperands x = mma_operands(bf16, i);
        for (int l = 0; l < warp_size; ++l) {
            const int g = l / 4, t = l % 4;
            const auto at = [&](int row) -> std::uint32_t& {
                return registers[(std::size_t(i) * 10 + row) * warp_size + l];
            };
            const auto pair = [](std::uint32_t low, std::uint32_t high) { return low | high << 16; };
            at(0) = pair(x.a[g][2 * t], x.a[g][2 * t + 1]);
            at(1) = pair(x.a[g + 8][2 * t], x.a[g + 8][2 * t + 1]);
            at(2) = pair(x.a[g][2 * t + 8], x.a[g][2 * t + 9]);
            at(3) = pair(x.a[g + 8][2 * t + 8], x.a[g + 8][2 * t + 9]);
            at(4) = pair(x.b[2 * t][g], x.b[2 * t + 1][g]);
            at(5) = pair(x.b[2 * t + 8][g], x.b[2 * t + 9][g]);
            at(6) = x.c[g][2 * t];
            at(7) = x.c[g][2 * t + 1];
            at(8) = x.c[g + 8][2 * t];
            at(9) = x.c[g + 8][2 * t + 1];
        }
    }
    return registers;
}

// ---- Probes ----

struct Shape {
    std::int64_t ctas = 1;
    int threads = warp_size;
    std::size_t shared_bytes = 0;
};

/// kernel(arguments ...) whose answer is in `out`.
template <class... Parameters, class... Arguments>
Probe probe(const std::string& name, const Shape& shape, const Operand& out, std::vector<std::uint32_t> operands,
            void (*kernel)(Parameters...), const Arguments&... arguments) {
    gpu::launch({name.c_str(), shape.ctas, shape.threads, shape.shared_bytes}, kernel, arguments...);
    gpu::synchronize();
    return {.name = name, .words = out.words(), .operands = std::move(operands)};
}

/// kernel(input, output, arguments ...) with `words` words of output.
template <class... Parameters, class... Arguments>
Probe probe(const std::string& name, const Shape& shape, std::size_t words, const std::vector<std::uint32_t>& operands,
            void (*kernel)(Input, Output, Parameters...), const Arguments&... arguments) {
    const Operand in("input", operands), out("output", words * 4);
    return probe(name, shape, out, operands, kernel, input(in), out.tensor(), arguments...);
}

/// kernel(output)
Probe probe(const std::string& name, const Shape& shape, std::size_t words, void (*kernel)(Output)) {
    const Operand out("output", words * 4);
    return probe(name, shape, out, {}, kernel, out.tensor());
}

Probe with_cases(Probe probe, int case_words, std::size_t whole_cases) {
    probe.case_words = case_words;
    probe.whole_cases = whole_cases;
    return probe;
}

template <class T>
void probe_number_type(std::vector<Probe>& probes, const std::string& type) {
    const std::vector<std::uint32_t> numbers = numbers_to_round();
    const std::int64_t rows = static_cast<std::int64_t>(numbers.size()) / warp_size;
    constexpr std::size_t whole_rows = 256, special_rows = 64, patterns = 1 << 16;
    probes.push_back(
        with_cases(probe("cvt_rn_" + type, {rows}, numbers.size(), numbers, convert<T>), warp_size, whole_rows));
    probes.push_back(
        with_cases(probe("cvt_rn_x2_" + type, {rows - 1}, numbers.size() - warp_size, numbers, convert_pair<T>),
                   warp_size, whole_rows));
    probes.push_back(
        with_cases(probe("to_float_" + type, {patterns / warp_size}, patterns, widen<T>), warp_size, special_rows));
}

void probe_exponential(std::vector<Probe>& probes) {
    const std::vector<std::uint32_t> x = exponents();
    probes.push_back(
        probe("ex2_approx_ftz", {static_cast<std::int64_t>(x.size()) / warp_size}, x.size(), x, exponential));
    probes.back().exponential = true;
}

void probe_warp(std::vector<Probe>& probes) {
    constexpr int rounds = 32;
    probes.push_back(probe("shfl_sync_bfly", {}, warp_size * warp_size, random_words(4, warp_size), shuffle_bfly));
    std::vector<std::uint32_t> asked = random_words(5, (1 + rounds) * warp_size);
    for (std::size_t i = warp_size; i < asked.size(); ++i) asked[i] %= warp_size;
    probes.push_back(probe("shfl_sync_idx", {}, rounds * warp_size, asked, shuffle_idx, rounds));
    std::vector<std::uint32_t> predicates = random_words(6, warp_size);
    for (int l = 0; l < warp_size; ++l)  // round 0: nobody; 1: all; 2: lane 31 only; 3: all but lane 0
        predicates[l] = (predicates[l] & ~0xFu) | 2u | (l == 31 ? 4u : 0u) | (l != 0 ? 8u : 0u);
    probes.push_back(probe("vote_sync", {}, 3 * rounds * warp_size, predicates, votes, rounds));
    probes.push_back(probe("bar_warp_sync", {1, warp_size, sizeof(WarpExchange)}, 3 * warp_size,
                           random_words(7, warp_size), warp_exchange));
    probes.push_back(probe("thread_positions", {3, 160}, 3 * 160, thread_positions));
}

void probe_barriers(std::vector<Probe>& probes) {
    const std::vector<std::uint32_t> values = random_words(8, exchange_threads);
    constexpr Shape shape{1, exchange_threads, sizeof(CtaExchange)};
    probes.push_back(probe("bar_sync", shape, exchange_rounds * exchange_threads, values, cta_exchange));
    probes.push_back(probe("bar_sync_named", shape, exchange_threads, values, pair_exchange));
    probes.push_back(probe("bar_arrive", {1, exchange_threads, sizeof(HandOver)}, 2 * exchange_rounds * warp_size,
                           values, hand_over));
}

void probe_copies(std::vector<Probe>& probes) {
    const std::vector<std::uint32_t> bytes = random_words(9, warp_size * 16);
    const Operand in("bytes", bytes), out("output", 4 * copy_sizes * warp_size * 4);
    probes.push_back(probe("cp_async_bytes", {1, warp_size, sizeof(CopySizes)}, out, bytes, copy_bytes<bf16>,
                           read_only(in.tensor<bf16>(32)), out.tensor()));
    constexpr std::size_t words = ring_steps * 8 * warp_size;
    probes.push_back(
        probe("cp_async_groups", {1, warp_size, sizeof(CopyRing)}, words, random_words(10, words), copy_ring));
}

void probe_tensor_cores(std::vector<Probe>& probes) {
    constexpr int rounds = 16;
    std::vector<std::uint32_t> where = random_words(11, rounds * warp_size);
    for (int i = 0; i < rounds * warp_size; ++i) {
        // Round 0 is the 16x16 block that a kernel loads; the others are scattered.
        const int l = i % warp_size;
        where[i] = i < warp_size ? l % 16 | (l / 16) << 8 : where[i] % 64 | (where[i] >> 8) % 8 << 8;
    }
    constexpr Shape shape{1, warp_size, sizeof(MatrixTile)};
    constexpr int words = 4 * warp_size;
    probes.push_back(probe("ldmatrix_x4", shape, rounds * words, where, load_matrices<false>, rounds));
    probes.push_back(probe("ldmatrix_x4_trans", shape, rounds * words, where, load_matrices<true>, rounds));
    probes.push_back(with_cases(
        probe("mma_sync_fp16", {mma_cases}, std::size_t{mma_cases} * words, mma_registers(false), multiply<fp16>),
        words, mma_whole_cases));
    probes.push_back(with_cases(
        probe("mma_sync_bf16", {mma_cases}, std::size_t{mma_cases} * words, mma_registers(true), multiply<bf16>), words,
        mma_whole_cases));
}

void probe_additions(std::vector<Probe>& probes) {
    const auto [sums, addends] = numbers_to_add();
    const Operand memory("sums", sums), in("addends", addends);
    std::vector<std::uint32_t> both = sums;
    both.insert(both.end(), addends.begin(), addends.end());
    probes.push_back(probe("red_global_add", {static_cast<std::int64_t>(sums.size()) / warp_size}, memory, both,
                           add_once, memory.tensor<float>(), input(in)));
    const Operand zeros("sums", std::vector<std::uint32_t>(warp_size));
    probes.push_back(probe("red_global_add_contended", {24, 128}, zeros, {}, add_all, zeros.tensor<float>()));
}

template <class T, Swizzle swizzle>
void probe_tile(std::vector<Probe>& probes, const std::string& name) {
    probes.push_back(probe("shared_tile_" + name, {1, warp_size, sizeof(TileLayout<T, swizzle>)},
                           2 * tile_rows * tile_columns, tile_addresses<T, swizzle>));
}

template <class T>
void probe_views(std::vector<Probe>& probes, const std::string& type) {
    const std::vector<std::uint32_t> elements = random_words(12, warp_size * 64 * sizeof(T) / 4);
    const Operand in("input", elements), moved("moved", elements.size() * 4);
    probes.push_back(probe("vectors_" + type, {1, warp_size, sizeof(VectorTile<T>)}, moved, elements, move_vectors<T>,
                           read_only(in.tensor<T>(64)), moved.tensor<T>(64)));
    // 2 batches that go backwards, 3 heads that are one and the same, rows 1 to 4.
    const Operand out("output", 2 * 3 * 4 * warp_size * 4);
    probes.push_back(probe("strides_" + type, {}, out, elements, read_strided<T>,
                           read_only(in.strided<T>(-512, 0, 64, 1024)), out.tensor(), 2, 3, 1, 4));
}

void probe_strided_writes(std::vector<Probe>& probes) {
    const Operand memory("tensor", std::vector<std::uint32_t>(4096));
    probes.push_back(
        probe("strided_writes", {}, memory, {}, write_strided, memory.strided(2048, -640, 40, 1700), 2, 3, 2, 5));
}

}  // namespace

MmaOperands mma_operands(bool bf16, int index) {
    Generator generator(std::uint64_t(index) * 2 + bf16 + 1000);
    const auto family = static_cast<MmaFamily>(index % mma_families);
    const int smallest = bf16 ? -126 : -14, largest = bf16 ? 127 : 15;
    MmaOperands x;
    const auto fill = [&](auto operand, auto c) {
        for (auto& row : x.a)
            for (auto& value : row) value = operand();
        for (auto& row : x.b)
            for (auto& value : row) value = operand();
        for (auto& row : x.c)
            for (auto& value : row) value = c();
    };
    const auto between = [&](int first, int last) {
        return [=, &generator] { return element(generator, bf16, first, last); };
    };
    const auto single_between = [&](int first, int last) {
        return [=, &generator] { return single(generator, first, last); };
    };
    switch (family) {
        case wide_exponents:
            bf16 ? fill(between(-40, 40), single_between(-80, 80)) : fill(between(-15, 15), single_between(-40, 30));
            break;
        case narrow_exponents:
            fill(between(-1, 1), single_between(-2, 4));
            break;
        case subnormals: {
            // Zeros, subnormals and what is just normal; in A beside numbers that lift the products into range.
            fill(
                [&] {
                    return generator.below(4) == 0 ? std::uint16_t(generator.next() & 0x8000)
                                                   : element(generator, bf16, smallest - 1, smallest);
                },
                single_between(-127, -126));
            for (auto& row : x.a)
                for (auto& value : row)
                    if (generator.below(2) == 0) value = element(generator, bf16, largest - 8, largest - 1);
            break;
        }
        case near_underflow:
            bf16 ? fill(between(-72, -62), single_between(-127, -122))
                 : fill(between(smallest - 1, smallest + 1), single_between(-50, -20));
            break;
        case near_overflow:
            bf16 ? fill(between(60, 63), single_between(122, 127))
                 : fill(between(largest - 1, largest), single_between(126, 127));
            break;
        case cancellation:
            // Neighbours in k that all but cancel, then a c that takes away most of the rest.
            fill(between(-3, 3), single_between(0, 0));
            for (int k = 0; k < 16; k += 2) {
                for (int i = 0; i < 16; ++i) x.a[i][k + 1] = x.a[i][k] ^ generator.below(4);
                for (int j = 0; j < 8; ++j) x.b[k + 1][j] = x.b[k][j] ^ 0x8000;
            }
            for (int i = 0; i < 16; ++i)
                for (int j = 0; j < 8; ++j) {
                    double sum = 0;
                    for (int k = 0; k < 16; ++k) sum += value_of(x.a[i][k], bf16) * value_of(x.b[k][j], bf16);
                    x.c[i][j] = std::bit_cast<std::uint32_t>(static_cast<float>(-sum)) ^ generator.below(4);
                }
            break;
        case zero_or_large_c:
            fill(between(-4, 4),
                 [&] { return generator.below(2) == 0 ? generator.next() & 0x80000000u : single(generator, 8, 34); });
            break;
        case special_values:
            fill(
                [&] {
                    return generator.below(24) == 0 ? special_element(generator, bf16)
                                                    : element(generator, bf16, -5, 5);
                },
                [&] { return generator.below(8) == 0 ? special_single(generator) : single(generator, -5, 5); });
            break;
        case any_bits:
            fill([&] { return static_cast<std::uint16_t>(generator.next()); }, [&] { return generator.next(); });
            break;
        case small_integers: {
            const auto integer = [&](int bound) { return static_cast<float>(generator.between(-bound, bound)); };
            fill([&] { return std::uint16_t(0); }, [&] { return std::bit_cast<std::uint32_t>(integer(1000)); });
            const auto encoded = [&] {  // -8 ... 8 is exact in both types
                const float value = integer(8);
                if (value == 0) return std::uint16_t(0);
                const auto bits = std::bit_cast<std::uint32_t>(value);
                if (bf16) return static_cast<std::uint16_t>(bits >> 16);
                return static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | (((bits >> 13) - (112u << 10)) & 0x7FFFu));
            };
            for (auto& row : x.a)
                for (auto& value : row) value = encoded();
            for (auto& row : x.b)
                for (auto& value : row) value = encoded();
            break;
        }
    }
    return x;
}

std::vector<Probe> run_probes() {
    std::vector<Probe> probes;
    probe_number_type<fp16>(probes, "fp16");
    probe_number_type<bf16>(probes, "bf16");
    probe_exponential(probes);
    probe_warp(probes);
    probe_barriers(probes);
    probe_copies(probes);
    probe_tensor_cores(probes);
    probe_additions(probes);
    probe_tile<float, Swizzle::none>(probes, "fp32");
    probe_tile<float, Swizzle::xor_8>(probes, "fp32_xor_8");
    probe_tile<bf16, Swizzle::none>(probes, "bf16");
    probe_tile<bf16, Swizzle::xor_8>(probes, "bf16_xor_8");
    probe_views<float>(probes, "fp32");
    probe_views<fp16>(probes, "fp16");
    probe_views<bf16>(probes, "bf16");
    probe_strided_writes(probes);
    return probes;
}

}  // namespace probes
