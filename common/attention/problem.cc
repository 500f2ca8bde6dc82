#include "common/attention/problem.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>
#include <utility>
#include <vector>

#include "common/attention/parallel.h"

namespace attention {
namespace {

// What rounding needs to know of a 16-bit format.
struct Format {
    int precision;     // bits of the significand, the leading one included
    int min_exponent;  // of the smallest normal number
    float largest;     // finite value
};

// Of what kernels multiply q k with in fp32: beside log2(e), there is room for a q k of 2^27.
constexpr float largest_factor = 0x1p100f;

constexpr Format fp16_format{11, -14, 65504.0f};
constexpr Format bf16_format{8, -126, 0x1.fep127f};

std::uint64_t splitmix64(std::uint64_t state) {
    state += 0x9E3779B97F4A7C15u;
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
    return state ^ (state >> 31);
}

// A stream of random numbers addressed by index: (seed, stream, index) alone decides a value.
class Random {
  public:
    Random(std::uint64_t seed, std::uint64_t stream) : key_(splitmix64(splitmix64(seed) + stream)) {}

    std::uint64_t bits(std::uint64_t index) const { return splitmix64(key_ + index); }

    // The sum of twelve uniform numbers has variance 1 and is close to normal. Unlike log and cos, integer sums are the
    // same on every machine to the last bit.
    float normal(std::uint64_t index) const {
        std::int32_t sum = 0;
        for (std::uint64_t word = 0; word < 3; ++word) {
            for (std::uint64_t rest = bits(4 * index + word), part = 0; part < 4; ++part, rest >>= 16)
                sum += static_cast<std::int32_t>(rest & 0xFFFF);
        }
        return static_cast<float>(2 * sum - 12 * 0xFFFF) / 0x1p17f;
    }

    bool one_in(std::uint64_t n, std::uint64_t index) const { return bits(4 * index + 3) % n == 0; }

  private:
    std::uint64_t key_;
};

HostTensor tensor(int B, int H, int N, int d, const std::vector<int>& cu, float value) {
    HostTensor result{B, H, N, d, cu, {}};
    const std::size_t rows = cu.empty() ? static_cast<std::size_t>(B) * N : static_cast<std::size_t>(cu.back());
    result.values.assign(rows * H * d, value);
    return result;
}

void fill_normal(HostTensor& tensor, const Random& random, DataType type, bool outliers) {
    const auto fill = [&](std::size_t first, std::size_t end) {
        for (std::size_t index = first; index < end; ++index) {
            float value = random.normal(2 * index);
            if (outliers && random.one_in(1000, 2 * index)) value += 10.0f * random.normal(2 * index + 1);
            tensor.values[index] = round_to(type, value);
        }
    };
    // A value depends on its index alone, so the cores share a large tensor.
    constexpr std::size_t parts = 256;  // more than cores, so that all finish together
    const std::size_t count = tensor.values.size();
    in_parallel(parts, 4.0 * count, [&](std::size_t n) { fill(count * n / parts, count * (n + 1) / parts); });
}

// Every key of a head is the head's first key.
void repeat_first_key(HostTensor& K) {
    for (int b = 0; b < K.B; ++b) {
        for (int h = 0; h < K.H; ++h) {
            for (int j = 1; j < K.length(b); ++j) std::copy_n(K.row(b, h, 0), K.d, K.row(b, h, j));
        }
    }
}

// q = (1, 1, ...) and k_j = (j mod 256, j - j mod 256, 0, ...) / 64, so that q k_j = j / 64; each part needs only the 8
// bits that bf16 has.
void make_rising(Inputs& inputs, DataType type) {
    HostTensor& Q = inputs.Q;
    for (std::size_t row = 0; row < Q.values.size(); row += Q.d)
        std::fill_n(Q.values.begin() + row, std::min(Q.d, 2), 1.0f);
    HostTensor& K = inputs.K;
    std::fill(K.values.begin(), K.values.end(), 0.0f);
    for (int b = 0; b < K.B; ++b) {
        for (int h = 0; h < K.H; ++h) {
            for (int j = 0; j < K.length(b); ++j) {
                const int low = K.d > 1 ? j % 256 : j;
                K.row(b, h, j)[0] = round_to(type, low / 64.0f);
                if (K.d > 1) K.row(b, h, j)[1] = round_to(type, (j - low) / 64.0f);
            }
        }
    }
}

void require(bool condition, const std::string& sentence) {
    if (!condition) throw InvalidProblem(sentence);
}

std::string given(const char* argument, double value) {
    std::ostringstream text;
    text << argument << " = " << value;
    return text.str();
}

void validate_lengths(const char* argument, const std::vector<int>& cu, int B, const char* longest_name, int longest) {
    const std::string name = argument;
    require(cu.size() == static_cast<std::size_t>(B) + 1, name + " holds " + std::to_string(cu.size()) +
                                                              " cumulative lengths, but B = " + std::to_string(B) +
                                                              " sequences need B + 1.");
    require(cu[0] == 0, name + " starts at " + std::to_string(cu[0]) + "; cumulative lengths start at 0.");
    int maximum = 0;
    for (int b = 0; b < B; ++b) {
        require(cu[b + 1] >= cu[b], name + " falls from " + std::to_string(cu[b]) + " to " + std::to_string(cu[b + 1]) +
                                        " at sequence " + std::to_string(b) + "; cumulative lengths may not fall.");
        maximum = std::max(maximum, cu[b + 1] - cu[b]);
    }
    require(maximum == longest, "The longest sequence of " + name + " has " + std::to_string(maximum) + " rows, but " +
                                    longest_name + " = " + std::to_string(longest) + "; they must agree.");
}

void validate_pages(const Problem& problem) {
    const int size = problem.page_size;
    require(size == 0 || (size >= 16 && size <= 256 && std::has_single_bit(static_cast<unsigned>(size))),
            given("page size", size) + "; a page holds 16, 32, 64, 128 or 256 keys (0: no pages).");
    if (problem.page_table.empty()) return;
    const std::size_t columns = problem.page_columns();
    require(problem.page_table.size() == problem.B * columns,
            "page_table has " + std::to_string(problem.page_table.size()) + " entries; " + given("B", problem.B) +
                " sequences of up to " + std::to_string(problem.Nk) + " keys need rows of " + std::to_string(columns) +
                ".");
    for (int b = 0; b < problem.B; ++b) {
        for (int first = 0; first < problem.keys(b); first += size) {
            const int column = first / size, page = problem.page_table[b * columns + column];
            if (page >= 0 && page < problem.pages) continue;
            const std::string b_text = std::to_string(b);
            throw InvalidProblem("page_table[" + b_text + "][" + std::to_string(column) +
                                 "] = " + std::to_string(page) + ", where sequence " + b_text + " has keys " +
                                 std::to_string(first) + " to " +
                                 std::to_string(std::min(first + size, problem.keys(b)) - 1) + "; the pool has " +
                                 std::to_string(problem.pages) + " pages, numbered from 0.");
        }
    }
}

std::string lengths(const Problem& problem) {
    std::string text;
    for (int b = 0; b < problem.B; ++b) {
        text += (b ? "," : "") + std::to_string(problem.queries(b));
        if (problem.cu_k != problem.cu_q) text += ':' + std::to_string(problem.keys(b));
    }
    return text;
}

}  // namespace

const char* name(DataType type) {
    switch (type) {
        case DataType::fp32:
            return "fp32";
        case DataType::fp16:
            return "fp16";
        case DataType::bf16:
            return "bf16";
    }
    throw InvalidProblem("The data type is none of fp32, fp16 and bf16.");
}

int bytes(DataType type) { return type == DataType::fp32 ? 4 : 2; }

float round_to(DataType type, float value) {
    if (std::isnan(value)) return std::numeric_limits<float>::quiet_NaN();
    if (type == DataType::fp32 || std::isinf(value) || value == 0.0f) return value;
    const Format format = type == DataType::fp16 ? fp16_format : bf16_format;

    // |value| = significand * 2^(exponent - 23), and the lowest `drop` bits of the significand have to go.
    const std::uint32_t word = std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu;
    const bool normal = word >= 0x00800000u;
    const int exponent = normal ? static_cast<int>(word >> 23) - 127 : -126;
    const std::uint32_t significand = (word & 0x007FFFFFu) | (normal ? 0x00800000u : 0u);
    const int drop = 24 - format.precision + std::max(0, format.min_exponent - exponent);
    if (drop > 24) return std::copysign(0.0f, value);

    const std::uint32_t unit = 1u << drop;
    if (significand % unit == 0 && std::fabs(value) <= format.largest) return value;  // often: it was rounded before
    const std::uint32_t odd = (significand >> drop) & 1u;
    const std::uint32_t rounded = (significand + unit / 2 - 1 + odd) & ~(unit - 1);
    const double power = std::bit_cast<double>(std::uint64_t(1023 + exponent - 23) << 52);  // ldexp takes much longer
    const double magnitude = rounded * power;
    return std::copysign(magnitude > format.largest ? std::numeric_limits<float>::infinity() : float(magnitude), value);
}

float default_scale(int d) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(d))); }

void validate(const Problem& problem) {
    require(problem.B >= 0, given("B", problem.B) + " sequences; at least 0 are needed.");
    require(problem.Hq >= 1, given("Hq", problem.Hq) + " query heads; at least 1 is needed.");
    require(problem.Hkv >= 1, given("Hkv", problem.Hkv) + " key/value heads; at least 1 is needed.");
    require(problem.Nq >= 0, given("Nq", problem.Nq) + " queries; at least 0 are needed.");
    require(problem.Nk >= 0, given("Nk", problem.Nk) + " keys; at least 0 are needed.");
    require(std::max(problem.Nq, problem.Nk) <= longest_sequence,
            given("Nq", problem.Nq) + ", " + given("Nk", problem.Nk) + ": a sequence has at most " +
                std::to_string(longest_sequence) + " rows.");
    require(problem.d >= 1, given("d", problem.d) + "; the head dimension must be at least 1.");
    require(problem.Hq % problem.Hkv == 0, given("Hq", problem.Hq) + " is not a multiple of " +
                                               given("Hkv", problem.Hkv) +
                                               "; every key/value head must serve the same number of query heads.");
    require(problem.window_left >= -1 && problem.window_right >= -1,
            "window:" + std::to_string(problem.window_left) + "," + std::to_string(problem.window_right) +
                " has a side below -1; give a number of keys >= 0, or -1 for no bound.");
    const float scale = std::fabs(problem.scale), cap = problem.softcap;
    require(scale <= largest_factor, given("scale", problem.scale) + "; give a number from -2^100 to 2^100.");
    require(cap >= 0.0f && cap <= largest_factor,
            given("softcap", cap) + "; give a number above 0, at most 2^100, or 0 for none.");
    require(cap == 0.0f || scale / cap <= largest_factor,
            given("softcap", cap) + " for " + given("scale", problem.scale) + "; scale / softcap is at most 2^100.");
    require(problem.dropout >= 0.0f && problem.dropout < 1.0f,
            given("dropout", problem.dropout) + " is not in [0, 1); give the fraction of weights to drop.");
    require(problem.cu_q.empty() == problem.cu_k.empty(),
            "Only one of cu_q and cu_k is given; packed sequences need both.");
    if (problem.packed()) {
        validate_lengths("cu_q", problem.cu_q, problem.B, "Nq", problem.Nq);
        validate_lengths("cu_k", problem.cu_k, problem.B, "Nk", problem.Nk);
    }
    require(problem.splits >= 0,
            given("splits", problem.splits) + "; give the number of splits, or 0 to leave it open.");
    require(problem.splits == 0 || !problem.deterministic,
            given("splits", problem.splits) +
                " depends on the longest sequence, and deterministic on no other sequence; "
                "give one of them.");
    validate_pages(problem);
}

void draw_page_table(Problem& problem, std::uint64_t seed) {
    const int columns = problem.page_columns();
    std::vector<int> needed;  // entries of the table
    for (int b = 0; b < problem.B; ++b) {
        for (int n = 0; n * problem.page_size < problem.keys(b); ++n) needed.push_back(b * columns + n);
    }
    problem.pages = static_cast<int>(needed.size()) + 3;
    std::vector<int> order(problem.pages);
    std::iota(order.begin(), order.end(), 0);
    const Random random(seed, 0);
    for (std::size_t n = order.size(); n > 1; --n) std::swap(order[n - 1], order[random.bits(n) % n]);
    problem.page_table.assign(static_cast<std::size_t>(problem.B) * columns, -1);
    for (std::size_t n = 0; n < needed.size(); ++n) problem.page_table[needed[n]] = order[n];
}

std::string describe(const Problem& problem) {
    std::ostringstream text;
    text << "B=" << problem.B << " Hq=" << problem.Hq << " Hkv=" << problem.Hkv << " Nq=" << problem.Nq
         << " Nk=" << problem.Nk << " d=" << problem.d << ' ' << name(problem.type) << ' ';
    if (problem.causal()) {
        text << "causal";
    } else if (problem.window_left == -1 && problem.window_right == -1) {
        text << "none";
    } else {
        text << "window:" << problem.window_left << ',' << problem.window_right;
    }
    if (problem.scale != default_scale(problem.d)) text << " scale=" << problem.scale;
    if (problem.softcap > 0.0f) text << " softcap=" << problem.softcap;
    if (problem.alibi) text << " alibi";
    if (problem.dropout > 0.0f) text << " dropout=" << problem.dropout;
    if (problem.packed()) text << " seqlens=" << lengths(problem);
    if (problem.page_size > 0) text << " pages=" << problem.page_size;
    if (problem.splits > 0) text << " splits=" << problem.splits;
    if (problem.deterministic) text << " deterministic";
    return text.str();
}

HostTensor query_tensor(const Problem& problem, float value) {
    return tensor(problem.B, problem.Hq, problem.Nq, problem.d, problem.cu_q, value);
}

HostTensor key_tensor(const Problem& problem, float value) {
    return tensor(problem.B, problem.Hkv, problem.Nk, problem.d, problem.cu_k, value);
}

HostTensor row_tensor(const Problem& problem, float value) {
    return tensor(problem.B, problem.Hq, problem.Nq, 1, problem.cu_q, value);
}

Inputs make_inputs(const Problem& problem, InputLaw law, std::uint64_t seed) {
    Inputs inputs{query_tensor(problem), key_tensor(problem), key_tensor(problem), query_tensor(problem)};
    const bool outliers = law == InputLaw::outliers;
    std::uint64_t stream = 0;
    for (HostTensor* operand : {&inputs.Q, &inputs.K, &inputs.V, &inputs.dO})
        fill_normal(*operand, Random(seed, stream++), problem.type, outliers);
    if (law == InputLaw::equal) repeat_first_key(inputs.K);
    if (law == InputLaw::rising) make_rising(inputs, problem.type);
    return inputs;
}

double forward_flops(const Problem& problem) { return 4.0 * problem.d * visible_pairs(problem); }

double backward_flops(const Problem& problem) { return 2.5 * forward_flops(problem); }

double visible_pairs(const Problem& problem) {
    double pairs = 0.0;
    for (int b = 0; b < problem.B; ++b) {
        const std::int64_t Nk = problem.keys(b);
        for (std::int64_t i = 0; i < problem.queries(b); ++i) {
            const std::int64_t aligned = i + Nk - problem.queries(b);
            const std::int64_t first = problem.window_left < 0 ? 0 : aligned - problem.window_left;
            const std::int64_t last = problem.window_right < 0 ? Nk - 1 : aligned + problem.window_right;
            const std::int64_t count = std::min(last, Nk - 1) - std::max<std::int64_t>(first, 0) + 1;
            pairs += static_cast<double>(std::max<std::int64_t>(count, 0));
        }
    }
    return pairs * problem.Hq;
}

}  // namespace attention
