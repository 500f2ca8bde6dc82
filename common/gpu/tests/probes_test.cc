// What each primitive answers, against values derived here from what PTX says (never from the implementation), and
// against a recording made on an NVIDIA H200.
#include "common/gpu/tests/probes/probes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <stdexcept>

#include "common/gpu/launch.h"
#include "common/gpu/tests/probes/recording.h"
#if GPU_EMULATOR
#include "common/gpu/emulator/options.h"
#endif

namespace {

using probes::Probe;
using Words = std::vector<std::uint32_t>;

const std::vector<Probe>& answers() {
    static const std::vector<Probe> result = probes::run_probes();
    return result;
}

const Probe& answer(const std::string& name) {
    const auto probe = std::find_if(answers().begin(), answers().end(), [&](const Probe& p) { return p.name == name; });
    if (probe == answers().end()) throw std::runtime_error("There is no probe " + name + ".");
    return *probe;
}

float as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// The probe's words are `expected(row, lane)` in rows of 32.
void expect_rows(const std::string& name, const std::function<std::uint32_t(int, int)>& expected) {
    const Words& words = answer(name).words;
    for (std::size_t i = 0; i < words.size(); ++i)
        ASSERT_EQ(words[i], expected(i / 32, i % 32)) << name << ", row " << i / 32 << ", lane " << i % 32;
}

/// A 16-bit format as IEEE 754 describes it.
struct Format {
    int exponent_bits, fraction_bits;
    int bias() const { return (1 << (exponent_bits - 1)) - 1; }
    std::uint32_t infinity() const { return ((1u << exponent_bits) - 1) << fraction_bits; }
    double value(std::uint32_t bits) const {
        const std::uint32_t magnitude = bits & 0x7FFF;
        const int field = static_cast<int>(magnitude >> fraction_bits);
        const auto fraction = static_cast<double>(magnitude & ((1u << fraction_bits) - 1));
        double result = field == 0 ? std::ldexp(fraction, 1 - bias() - fraction_bits)
                                   : std::ldexp(fraction + (1 << fraction_bits), field - bias() - fraction_bits);
        if (magnitude == infinity()) result = std::numeric_limits<double>::infinity();
        if (magnitude > infinity()) result = std::numeric_limits<double>::quiet_NaN();
        return bits & 0x8000 ? -result : result;
    }
    /// The nearest number, of two equally near ones the one whose last bit is 0; found by bisection.
    std::uint32_t nearest(float x) const {
        if (std::isnan(x)) return 0x7FFF;
        const std::uint32_t sign = std::signbit(x) ? 0x8000 : 0;
        const double magnitude = std::fabs(double{x});
        if (std::isinf(magnitude)) return sign | infinity();
        std::uint32_t low = 0, high = infinity();  // value(low) <= magnitude < value(high)
        while (high - low > 1) {
            const std::uint32_t middle = (low + high) / 2;
            (value(middle) <= magnitude ? low : high) = middle;
        }
        // Rounding goes on as if the largest exponent held numbers too.
        const double above = high == infinity() ? std::ldexp(1.0, bias() + 1) : value(high);
        const double to_low = magnitude - value(low), to_high = above - magnitude;
        return sign | (to_low < to_high || (to_low == to_high && low % 2 == 0) ? low : high);
    }
};
constexpr Format fp16{5, 10}, bf16{8, 7};

void expect_conversions(const std::string& type, const Format& format) {
    const Probe &one = answer("cvt_rn_" + type), &two = answer("cvt_rn_x2_" + type);
    const Words& numbers = one.operands;
    for (std::size_t i = 0; i < numbers.size(); ++i)
        ASSERT_EQ(one.words[i], format.nearest(as_float(numbers[i]))) << type << " of " << as_float(numbers[i]);
    for (std::size_t i = 0; i < two.words.size(); ++i)
        ASSERT_EQ(two.words[i], one.words[i] | one.words[i + 32] << 16) << type << ", pair " << i;
    const Words& widened = answer("to_float_" + type).words;
    ASSERT_EQ(widened.size(), 65536u);
    for (std::uint32_t i = 0; i < 65536; ++i) {
        const std::uint32_t bits = i ^ 0x7C00;  // the order of the probe
        const double value = format.value(bits);
        const float found = as_float(widened[i]);
        if (std::isnan(value)) {
            ASSERT_TRUE(std::isnan(found)) << type << " " << bits;
        } else {
            ASSERT_EQ(found, value) << type << " " << bits;
            ASSERT_EQ(std::signbit(found), bits >= 0x8000) << type << " " << bits;
        }
    }
}

TEST(Primitives, ConversionsRoundToNearestEven) {
    expect_conversions("fp16", fp16);
    expect_conversions("bf16", bf16);
}

TEST(Primitives, ExponentialIsCloseAndExactAtIntegers) {
    const Probe& probe = answer("ex2_approx_ftz");
    // A recording of the exact answers as the other side: the comparison holds the bound of 2^-22.
    Words exact;
    for (const std::uint32_t x : probe.operands) {
        const double power = std::exp2(std::fabs(as_float(x)) < 0x1p-126f ? 0.0 : double{as_float(x)});
        const auto rounded = static_cast<float>(power);
        exact.push_back(std::isnan(rounded) ? 0x7FFFFFFFu
                                            : std::bit_cast<std::uint32_t>(rounded < 0x1p-126f ? 0.0f : rounded));
    }
    Probe other = probe;
    other.words = exact;
    const auto agreement = probes::compare({probe}, probes::record("arithmetic in double", {other})).front();
    EXPECT_EQ(agreement.difference, "");
    EXPECT_GT(agreement.agreeing, agreement.compared / 2);
}

TEST(Primitives, ShufflesAndVotes) {
    const Words& values = answer("shfl_sync_bfly").operands;
    expect_rows("shfl_sync_bfly", [&](int mask, int lane) { return values[lane ^ mask]; });
    const Words& asked = answer("shfl_sync_idx").operands;
    expect_rows("shfl_sync_idx", [&](int i, int lane) { return asked[asked[32 * (i + 1) + lane]]; });
    const Words& predicates = answer("vote_sync").operands;
    expect_rows("vote_sync", [&](int row, int) -> std::uint32_t {
        std::uint32_t ballot = 0;
        for (int lane = 0; lane < 32; ++lane) ballot |= (predicates[lane] >> row / 3 & 1) << lane;
        return row % 3 == 0 ? ballot : row % 3 == 1 ? ballot != 0 : ballot == 0xFFFFFFFFu;
    });
    expect_rows("thread_positions", [](int row, int lane) -> std::uint32_t {
        const int warp = row % 5, cta = row / 5;
        return (32 * warp + lane) | lane << 10 | warp << 16 | cta << 24;
    });
}

TEST(Primitives, BarriersPassWords) {
    const Words& words = answer("bar_warp_sync").operands;
    expect_rows("bar_warp_sync", [&](int row, int lane) {
        const int half = lane / 16 * 16;
        const int from[] = {(lane + 5) % 32, half + (lane + (half == 0 ? 3 : 7)) % 16, (lane + 2) % 32};
        return words[from[row]] + row;
    });

    // All threads pass their words on at once, a round at a time.
    Words now = answer("bar_sync").operands, expected;
    for (int round = 0; round < 8; ++round) {
        const Words before = now;
        for (int thread = 0; thread < 128; ++thread)
            now[thread] = before[(thread / 32 + 1) % 4 * 32 + (thread + round) % 32] * 5 + round;
        expected.insert(expected.end(), now.begin(), now.end());
    }
    EXPECT_EQ(answer("bar_sync").words, expected);

    now = answer("bar_sync_named").operands;
    for (int round = 0; round < 24; ++round) {
        const Words before = now;
        // Warps 0 and 1 make 8 rounds, warps 2 and 3 make 24.
        for (int thread = round < 8 ? 0 : 64; thread < 128; ++thread)
            now[thread] = before[(thread / 32 ^ 1) * 32 + (thread + round) % 32] * 3 + round;
    }
    EXPECT_EQ(answer("bar_sync_named").words, now);

    const Words& sent = answer("bar_arrive").operands;
    expect_rows("bar_arrive", [&](int row, int lane) {
        const int round = row / 2, reader = 32 * (row % 2) + lane;
        return sent[(reader + 11 * round + 1) % 64] + round;
    });
}

TEST(Primitives, AsynchronousCopies) {
    const Words& source = answer("cp_async_bytes").operands;  // 64 bytes for each lane
    expect_rows("cp_async_bytes", [&](int row, int lane) {
        const int bytes = row / 4, first = row % 4 * 4;
        unsigned char chunk[16] = {};
        std::memcpy(chunk, reinterpret_cast<const char*>(source.data()) + 64 * lane + bytes % 4 * 16, bytes);
        std::uint32_t word;
        std::memcpy(&word, chunk + first, 4);
        return word;
    });
    // Lane l of a step brought words 8 l ... 8 l + 7; lane l reads what lane l + 13 brought.
    const Words& steps = answer("cp_async_groups").operands;
    expect_rows("cp_async_groups",
                [&](int row, int lane) { return steps[row / 8 * 256 + (lane + 13) % 32 * 8 + row % 8]; });
}

TEST(Primitives, MatricesOfEightByEight) {
    for (const bool transposed : {false, true}) {
        const std::string name = transposed ? "ldmatrix_x4_trans" : "ldmatrix_x4";
        const Words& where = answer(name).operands;
        expect_rows(name, [&](int row, int lane) {
            const int round = row / 4, matrix = row % 4;
            const auto element = [&](int i, int j) -> std::uint32_t {
                const std::uint32_t from = where[32 * round + 8 * matrix + i];
                return ((from & 0xFF) * 64 + (from >> 8) * 8 + j) * 7919 & 0xFFFF;
            };
            const int outer = lane >> 2, inner = 2 * (lane & 3);
            return transposed ? element(inner, outer) | element(inner + 1, outer) << 16
                              : element(outer, inner) | element(outer, inner + 1) << 16;
        });
    }
}

// ---- mma.sync ----

struct Term {
    __int128 significand;  // the value is significand * 2^lowest
    int lowest, exponent;  // exponent: as the encodings say it
};

Term term(std::uint32_t bits, int exponent_bits, int fraction_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const auto field = static_cast<int>(bits >> fraction_bits & ((1u << exponent_bits) - 1));
    __int128 significand = bits & ((1u << fraction_bits) - 1);
    if (field != 0) significand += 1 << fraction_bits;
    if (bits >> (exponent_bits + fraction_bits) & 1) significand = -significand;
    const int exponent = std::max(field, 1) - bias;
    return {significand, exponent - fraction_bits, exponent};
}

/// What a Hopper GPU gives for finite operands, in words: products exact; every term cut toward zero to 25 bits below
/// the largest exponent; added exactly; cut toward zero to fp32. Division of integers cuts toward zero.
double hopper_sum(const Format& format, const std::uint16_t (&a)[16], const std::uint16_t (&b)[16], std::uint32_t c) {
    std::vector<Term> terms{term(c, 8, 23)};
    for (int k = 0; k < 16; ++k) {
        const Term x = term(a[k], format.exponent_bits, format.fraction_bits);
        const Term y = term(b[k], format.exponent_bits, format.fraction_bits);
        terms.push_back({x.significand * y.significand, x.lowest + y.lowest, x.exponent + y.exponent});
    }
    std::erase_if(terms, [](const Term& t) { return t.significand == 0; });
    if (terms.empty()) return 0;
    int largest = terms.front().exponent;
    for (const Term& t : terms) largest = std::max(largest, t.exponent);
    const int unit = largest - 25;
    __int128 sum = 0;
    for (const Term& t : terms) {
        const int up = t.lowest - unit;
        if (up >= 0) sum += t.significand * (__int128{1} << up);
        if (up < 0 && up > -100) sum += t.significand / (__int128{1} << -up);
    }
    int lowest = unit;
    while (sum >= 1 << 24 || sum <= -(1 << 24) || (lowest < -149 && sum != 0)) {
        sum /= 2;
        ++lowest;
    }
    return std::ldexp(static_cast<double>(sum), lowest);
}

void expect_products(const std::string& type, const Format& format) {
    const Probe& probe = answer("mma_sync_" + type);
    int finite = 0, special = 0;
    for (int i = 0; i < probes::mma_cases; ++i) {
        const probes::MmaOperands x = probes::mma_operands(&format == &bf16, i);
        for (int row = 0; row < 16; ++row)
            for (int column = 0; column < 8; ++column) {
                // Registers of C and D: row g + 8 (j / 2), column 2 t + j % 2.
                const int j = row / 8 * 2 + column % 2, lane = row % 8 * 4 + column / 2;
                const std::uint32_t word = probe.words[(std::size_t(i) * 4 + j) * 32 + lane];
                std::uint16_t b[16];
                double naive = as_float(x.c[row][column]), size = std::fabs(naive);
                for (int k = 0; k < 16; ++k) {
                    b[k] = x.b[k][column];
                    const double product = format.value(x.a[row][k]) * format.value(b[k]);
                    naive += product;
                    size += std::fabs(product);
                }
                const auto where = [&] {
                    return type + ", case " + std::to_string(i) + ", row " + std::to_string(row) + ", column " +
                           std::to_string(column);
                };
                if (std::isnan(naive)) {
                    ++special;
                    ASSERT_EQ(word, 0x7FFFFFFFu) << where();
                } else if (std::isinf(naive)) {
                    ++special;
                    ASSERT_EQ(as_float(word), static_cast<float>(naive)) << where();
                } else {
                    ++finite;
                    const double expected = hopper_sum(format, x.a[row], b, x.c[row][column]);
                    // Beyond the largest fp32 there is only infinity.
                    ASSERT_EQ(double{as_float(word)}, std::fabs(expected) < 0x1p128 ? expected : expected * INFINITY)
                        << where();
                    ASSERT_FALSE(expected == 0 && std::signbit(as_float(word))) << where();
                    // And what was expected is the sum, to the accuracy of 17 terms cut at 2^-25.
                    ASSERT_LE(std::fabs(expected - naive), size * 0x1p-19 + 0x1p-149) << where();
                    if (i % probes::mma_families == probes::small_integers) {
                        ASSERT_EQ(expected, naive) << where();
                    }
                }
            }
    }
    EXPECT_GT(finite, 300000);
    EXPECT_GT(special, 10000);
}

TEST(Primitives, ProductsAsHopperAddsThem) {
    expect_products("fp16", fp16);
    expect_products("bf16", bf16);
}

// ---- warpgroups ----

const std::vector<Probe>& warpgroup_answers() {
    static const std::vector<Probe> result = probes::run_warpgroup_probes();
    return result;
}

/// Whether this machine has warpgroup products.
bool has_warpgroups() {
    const gpu::Device device = gpu::device();
    return device.emulated || (device.major == 9 && device.minor == 0);
}

TEST(Warpgroups, ProductsAsHopperAddsThem) {
    if (!has_warpgroups()) GTEST_SKIP() << "only compute capability 9.0 has warpgroup products";
    for (const bool is_bf16 : {true, false}) {
        const Format& format = is_bf16 ? bf16 : fp16;
        for (int i = 0; i < probes::wgmma_cases; ++i) {
            const probes::WgmmaOperands x = probes::wgmma_operands(is_bf16, i);
            // Some elements of every case; all forms of the instruction give the same.
            for (int element = i % 5; element < 64 * 64; element += 5) {
                const int row = element / 64, column = element % 64;
                double naive = as_float(x.c[row][column]);
                for (int k = 0; k < 16; ++k) naive += format.value(x.a[row][k]) * format.value(x.b[column][k]);
                std::uint32_t expected = 0x7FFFFFFF;
                if (std::isinf(naive)) {
                    expected = std::bit_cast<std::uint32_t>(static_cast<float>(naive));
                } else if (!std::isnan(naive)) {
                    const double sum = hopper_sum(format, x.a[row], x.b[column], x.c[row][column]);
                    expected = std::bit_cast<std::uint32_t>(
                        static_cast<float>(std::fabs(sum) < 0x1p128 ? sum : sum * INFINITY));
                }
                for (const Probe& probe : warpgroup_answers()) {
                    if (!probe.name.starts_with(is_bf16 ? "wgmma_bf16" : "wgmma_fp16")) continue;
                    ASSERT_EQ(probe.words[i * 64 * 64 + element], expected)
                        << probe.name << ", case " << i << ", row " << row << ", column " << column;
                }
            }
        }
    }
}

TEST(Warpgroups, MatricesAreStored) {
    if (!has_warpgroups()) GTEST_SKIP() << "only compute capability 9.0 and newer have stmatrix";
    const auto find = [](const std::string& name) -> const Probe& {
        return *std::find_if(warpgroup_answers().begin(), warpgroup_answers().end(),
                             [&](const Probe& p) { return p.name == name; });
    };
    const Probe& probe = find("stmatrix_x4");
    Words expected(probe.words.size());
    for (int round = 0; round < probes::stmatrix_rounds; ++round)
        for (int address = 0; address < 32; ++address)  // row address % 8 of matrix address / 8
            for (int pair = 0; pair < 4; ++pair)
                expected[(64 * round + (5 * address + 7 * round) % 64) * 32 + (address + round) % 8 * 4 + pair] =
                    probe.operands[(4 * round + address / 8) * 32 + address % 8 * 4 + pair];
    EXPECT_EQ(probe.words, expected);
    const Words& elected = find("elect_sync").words;
    for (int warp = 0; warp < 2; ++warp)
        EXPECT_EQ(std::count(elected.begin() + 32 * warp, elected.begin() + 32 * (warp + 1), 1u), 1);
}

TEST(Warpgroups, AnswersAreThoseOfAnH200) {
    const std::filesystem::path file = H200_WARPGROUP_PROBES;
    if (!std::filesystem::exists(file)) GTEST_SKIP() << "There is no recording of an H200 beside the tests yet.";
    if (!has_warpgroups()) GTEST_SKIP() << "only compute capability 9.0 has warpgroup products";
    const probes::Recording recording = probes::read(file);
    for (const probes::Agreement& agreement : probes::compare(warpgroup_answers(), recording))
        EXPECT_EQ(agreement.difference, "") << agreement.name << " compared with " << recording.machine;
}

// ---- engines ----

const std::vector<Probe>& engine_answers() {
    static const std::vector<Probe> result = probes::run_engine_probes();
    return result;
}
const Probe& engine_answer(const std::string& name) {
    return *std::find_if(engine_answers().begin(), engine_answers().end(),
                         [&](const Probe& p) { return p.name == name; });
}
bool has_engines() {
    const gpu::Device device = gpu::device();
    return device.emulated || (device.major == 9 && device.minor == 0);
}

TEST(Engines, RingsAndAdditions) {
    if (!has_engines()) GTEST_SKIP() << "only compute capability 9.0 has code for engines in this build";
    const Probe& ring = engine_answer("mbarrier_ring");
    for (std::size_t i = 0; i < ring.words.size(); ++i)
        ASSERT_EQ(ring.words[i], ring.operands[i / 64 * 64 + (i + 37) % 64]) << i;
    const Probe& sums = engine_answer("bulk_add_contended");
    for (std::size_t column = 0; column < sums.words.size(); ++column) {
        float expected = 1;  // small integers: exact in any order
        for (std::size_t i = column; i < sums.operands.size(); i += sums.words.size())
            expected += as_float(sums.operands[i]);
        EXPECT_EQ(as_float(sums.words[column]), expected);
    }
}

TEST(Engines, NeighboursInACluster) {
    if (!has_engines()) GTEST_SKIP() << "only compute capability 9.0 has code for engines in this build";
    const Words& words = engine_answer("cluster").words;
    for (unsigned cta = 0; cta < 8; ++cta)
        for (unsigned lane = 0; lane < 32; ++lane) {
            const auto word = [&](unsigned row) { return words[(20 * cta + row) * 32 + lane]; };
            const unsigned rank = cta % 4, before = (rank + 3) % 4, first = cta / 4 * 4;
            ASSERT_EQ(word(0), rank << 24 | rank << 16 | before << 8 | (2 - rank) % 256);
            ASSERT_EQ(as_float(word(1)), 100.0f * (first + before) + 31 - lane);       // the CTA before wrote here
            ASSERT_EQ(as_float(word(2)), 100.0f * (first + (before + 3) % 4) + lane);  // and the one before it there
            for (unsigned row = 0; row < 16; ++row) {
                // CTA 1 has a box from its row on copied to the others; chunks of four words lie as the swizzle has them.
                const unsigned element = (first + 1 + row) * 64 + 2 * (lane ^ (row % 8 * 4)) + 1;
                const std::uint32_t copied = first + 1 + row < 24 ? element | (element + 1) << 16 : 0;
                ASSERT_EQ(word(4 + row), rank == 1 ? 0 : copied) << cta << " " << row << " " << lane;
            }
        }
}

TEST(Engines, AnswersAreThoseOfAnH200) {
    const std::filesystem::path file = H200_ENGINE_PROBES;
    if (!std::filesystem::exists(file)) GTEST_SKIP() << "There is no recording of an H200 beside the tests yet.";
    if (!has_engines()) GTEST_SKIP() << "only compute capability 9.0 has code for engines in this build";
    const probes::Recording recording = probes::read(file);
    for (const probes::Agreement& agreement : probes::compare(engine_answers(), recording))
        EXPECT_EQ(agreement.difference, "") << agreement.name << " compared with " << recording.machine;
}

#if GPU_EMULATOR
TEST(Engines, AnswersAreTheSameInEverySchedule) {
    const probes::Recording recording = probes::record("in order", engine_answers());
    const emulator::Options before = emulator::options();
    for (const emulator::Options& options : emulator::standard_schedules()) {
        emulator::set_options(options);
        for (const probes::Agreement& agreement : probes::compare(probes::run_engine_probes(), recording))
            EXPECT_EQ(agreement.agreeing, agreement.compared)
                << agreement.name << ", " << emulator::name(options.schedule) << ": " << agreement.difference;
    }
    emulator::set_options(before);
}
#endif

// ---- memory ----

TEST(Primitives, AdditionsInMemory) {
    const Probe& probe = answer("red_global_add");
    const std::size_t n = probe.words.size();
    const auto flushed = [](float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; };
    for (std::size_t i = 0; i < n; ++i) {
        const float a = as_float(probe.operands[i]), b = as_float(probe.operands[n + i]);
        const float expected = flushed(flushed(a) + flushed(b));
        if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(as_float(probe.words[i]))) << a << " + " << b;
        } else {
            ASSERT_EQ(probe.words[i], std::bit_cast<std::uint32_t>(expected)) << a << " + " << b;
        }
    }
    // 24 CTAs of 128 threads add 1 to column 0, and 1 + cta % 3 to column 1 + thread % 31.
    expect_rows("red_global_add_contended", [](int, int column) {
        const int threads = column == 0 ? 0 : 4 + (column - 1 < 128 % 31);
        return std::bit_cast<std::uint32_t>(column == 0 ? 24.0f * 128 : static_cast<float>(threads * (1 + 2 + 3) * 8));
    });
}

TEST(Primitives, TilesPlaceChunks) {
    for (const bool is_bf16 : {false, true})
        for (const bool swizzled : {false, true}) {
            const std::string name =
                std::string("shared_tile_") + (is_bf16 ? "bf16" : "fp32") + (swizzled ? "_xor_8" : "");
            const int bytes = is_bf16 ? 2 : 4;
            // A chunk of 16 bytes moves to chunk ^ (row % 8) of its row of 64 elements.
            const auto place = [&](int i) {
                const int row = i / 64, chunk = i % 64 * bytes / 16, inside = i % 64 * bytes % 16;
                return row * 64 * bytes + (swizzled ? chunk ^ row % 8 : chunk) * 16 + inside;
            };
            const Words& words = answer(name).words;
            for (int i = 0; i < 1024; ++i) {
                ASSERT_EQ(words[i], static_cast<std::uint32_t>(place(i))) << name << " " << i;
                // What lies at a place is the number of the element that belongs there, rounded to its type.
                const std::uint32_t found = words[1024 + place(i) / bytes];
                const float number = static_cast<float>(i);
                ASSERT_EQ(as_float(found), is_bf16 ? bf16.value(bf16.nearest(number)) : number) << name << " " << i;
            }
        }
}

TEST(Primitives, ViewsFollowStrides) {
    for (const std::string type : {"fp32", "fp16", "bf16"}) {
        const std::size_t bytes = type == "fp32" ? 4 : 2, row = 64 * bytes / 4;  // words of 64 elements
        const Probe& vectors = answer("vectors_" + type);
        for (std::size_t i = 0; i < vectors.words.size(); ++i)
            ASSERT_EQ(vectors.words[i], vectors.operands[(i / row + 9) % 32 * row + i % row]) << type << " " << i;

        const Probe& strides = answer("strides_" + type);
        for (int i = 0; i < 2 * 3 * 4 * 32; ++i) {
            const int lane = i % 32, matrix_row = i / 32 % 4, batch = i / 32 / 4 / 3;
            const int element = 1024 - 512 * batch + 64 * (1 + matrix_row) + lane;
            const std::uint32_t word = strides.operands[element * bytes / 4];
            const std::uint32_t bits = bytes == 4 ? word : word >> element % 2 * 16 & 0xFFFF;
            const double expected = type == "fp32" ? as_float(bits) : (type == "fp16" ? fp16 : bf16).value(bits);
            if (std::isnan(expected)) {
                ASSERT_TRUE(std::isnan(as_float(strides.words[i]))) << type << " " << i;
            } else {
                ASSERT_EQ(as_float(strides.words[i]), expected) << type << " " << i;
            }
        }
    }
    Words expected(4096);
    for (std::uint32_t b = 0; b < 2; ++b)
        for (std::uint32_t h = 0; h < 3; ++h)
            for (std::uint32_t row = 0; row < 5; ++row)
                for (std::uint32_t column = 0; column < 32; ++column)
                    expected[1700 + 2048 * b - 640 * h + 40 * (2 + row) + column] =
                        b << 24 | h << 16 | row << 8 | column;
    EXPECT_EQ(answer("strided_writes").words, expected);
}

// ---- machines ----

TEST(Probes, AnswersAreThoseOfAnH200) {
    const std::filesystem::path file = H200_PROBES;
    if (!std::filesystem::exists(file)) GTEST_SKIP() << "There is no recording of an H200 beside the tests yet.";
    const gpu::Device device = gpu::device();
    if (!device.emulated && device.major != 9)
        GTEST_SKIP() << "The recording is of an H200, and the sums of this GPU's tensor cores may differ.";
    const probes::Recording recording = probes::read(file);
    for (const probes::Agreement& agreement : probes::compare(answers(), recording))
        EXPECT_EQ(agreement.difference, "") << agreement.name << " compared with " << recording.machine;
}

#if GPU_EMULATOR
TEST(Probes, AnswersAreTheSameInEverySchedule) {
    const probes::Recording recording = probes::record("in order", answers());
    const emulator::Options before = emulator::options();
    for (const emulator::Options& options : emulator::standard_schedules()) {
        emulator::set_options(options);
        for (const probes::Agreement& agreement : probes::compare(probes::run_probes(), recording))
            EXPECT_EQ(agreement.agreeing, agreement.compared)
                << agreement.name << ", " << emulator::name(options.schedule) << ": " << agreement.difference;
    }
    emulator::set_options(before);
}
#endif

/// A file that goes away with the test.
struct TemporaryFile {
    std::string name = testing::TempDir() + "probes_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    ~TemporaryFile() { std::filesystem::remove(name); }
};

TEST(Recording, ComesBackFromItsFile) {
    const TemporaryFile file;
    probes::write(file.name, probes::record("this machine", answers()));
    const probes::Recording recording = probes::read(file.name);
    EXPECT_EQ(recording.machine, "this machine");
    for (const probes::Agreement& agreement : probes::compare(answers(), recording)) {
        EXPECT_EQ(agreement.difference, "");
        EXPECT_EQ(agreement.agreeing, agreement.compared) << agreement.name;
    }
}

/// Names of the probes of which something differs.
std::vector<std::string> different(const std::vector<Probe>& here, const probes::Recording& recording) {
    std::vector<std::string> names;
    for (const probes::Agreement& agreement : probes::compare(here, recording))
        if (!agreement.difference.empty()) names.push_back(agreement.name);
    return names;
}

TEST(Recording, OneWrongBitIsFoundInEveryProbe) {
    const probes::Recording right = probes::record("this machine", answers());
    std::vector<Probe> here = answers();
    for (std::size_t i = 0; i < here.size(); ++i) {
        // In exponentials the last bits are free: change what is too much.
        const std::uint32_t change = here[i].exponential ? 0x10u : 1u;
        for (const std::size_t word : {std::size_t{0}, here[i].words.size() / 2, here[i].words.size() - 1}) {
            here[i].words[word] ^= change;
            EXPECT_EQ(different(here, right), std::vector{here[i].name}) << "word " << word;
            here[i].words[word] ^= change;
        }
        probes::Recording corrupted = right;
        probes::Recorded& probe = corrupted.probes[i];
        if (!probe.whole.empty()) probe.whole.back() ^= change;
        if (!probe.hashes.empty()) probe.hashes.back() ^= 1;
        EXPECT_EQ(different(here, corrupted), std::vector{probe.name});
    }
}

TEST(Recording, LastBitOfAnExponentialIsFree) {
    probes::Recording recording = probes::record("another unit", answers());
    const auto probe = std::find_if(recording.probes.begin(), recording.probes.end(),
                                    [](const probes::Recorded& p) { return p.name == "ex2_approx_ftz"; });
    ASSERT_NE(probe, recording.probes.end());
    const Words& x = answer("ex2_approx_ftz").operands;
    const auto half = std::find(x.begin(), x.end(), 0x3F000000u) - x.begin();  // 2^0.5
    ASSERT_LT(static_cast<std::size_t>(half), x.size());
    probe->whole[half] += 1;
    EXPECT_EQ(different(answers(), recording), std::vector<std::string>{});
    probe->whole[half] += 8;
    EXPECT_EQ(different(answers(), recording), std::vector<std::string>{"ex2_approx_ftz"});
}

TEST(Recording, MissingOrOtherCasesAreFound) {
    probes::Recording recording = probes::record("older program", answers());
    const std::string name = recording.probes.back().name;
    recording.probes.back().whole.pop_back();
    EXPECT_EQ(different(answers(), recording), std::vector{name});
    recording.probes.pop_back();
    EXPECT_EQ(different(answers(), recording), std::vector{name});
}

TEST(Recording, FilesThatAreNone) {
    const TemporaryFile file;
    const auto refused = [&](const std::string& reason) {
        try {
            probes::read(file.name);
            FAIL() << "read without complaint";
        } catch (const std::runtime_error& error) {
            EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
        }
    };
    refused("There is no recording");
    probes::write(file.name, probes::record("this machine", answers()));
    std::filesystem::resize_file(file.name, std::filesystem::file_size(file.name) - 1);
    refused("ends too early");
    std::ofstream(file.name) << "no newline";
    refused("no header line");
    std::ofstream(file.name) << "not JSON\n";
    refused("is not a recording of probes");
}

}  // namespace
