// The attention problem as the host states it: sizes, mask, scale, types, and what each convention means.
//
//   S = scale * Q K^T    P = softmax(S, by row)    O = P V    L_i = log(sum_j exp(S_ij))
//
// Kernels see the same problem through common/attention/kernel_problem.h; the reference reads only this file, so that a
// mistake in a kernel's mask cannot sit on both sides of a comparison.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace attention {

/// Storage types of Q, K, V, O and their gradients. Products accumulate in fp32; L is always fp32.
enum class DataType { fp32, fp16, bf16 };

/// "fp32", "fp16" or "bf16".
const char* name(DataType type);
/// Bytes of one element.
int bytes(DataType type);
/// `value` rounded to the nearest value of `type`: ties to even, subnormals kept, too large becomes infinite, NaN the
/// quiet NaN without payload.
float round_to(DataType type, float value);

/// A problem that cannot be: what() names the argument, what was given and what is allowed.
struct InvalidProblem : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Longest sequence: kernels find tiles and masks in 32 bits (offsets in memory have 64).
constexpr int longest_sequence = 1 << 29;

struct Problem {
    int B = 1;    // sequences
    int Hq = 1;   // query heads
    int Hkv = 1;  // key/value heads; query head h reads key/value head h / (Hq / Hkv)
    int Nq = 1;   // queries of a sequence (the longest one, if the lengths differ)
    int Nk = 1;   // keys of a sequence (likewise)
    int d = 64;   // head dimension
    DataType type = DataType::bf16;

    // Query i sees key j iff  i + Nk - Nq - window_left <= j <= i + Nk - Nq + window_right  (-1: no bound on that
    // side). The ends are aligned at the bottom right, so causal is (-1, 0) and means j <= i + Nk - Nq.
    int window_left = -1;
    int window_right = -1;

    float scale = 0.125f;  // S = scale * Q K^T; default_scale(d) unless the user says otherwise

    // What may happen to a score before the softmax: S becomes softcap tanh(S / softcap), which keeps it within +-softcap (0:
    // it stays as it is), and then, with alibi, S - slope_h |i + Nk - Nq - j|, where slope_h = 2^(-8 (h + 1) / Hq) for query
    // head h = 0, 1, ...: the further a key, the less it counts. (Press et al. 2022 give these slopes for Hq a power of two;
    // here the formula holds for any Hq.)
    float softcap = 0.0f;
    bool alibi = false;

    // Dropout of P: weight (b, h, i, j) is kept iff word j % 4 of Philox4x32-10 with key `dropout_seed` and counter
    // (j / 4, i, b * Hq + h, dropout_offset) is below floor((1 - dropout) * 2^32); kept weights are divided by 1 -
    // dropout.
    float dropout = 0.0f;
    std::uint64_t dropout_seed = 0;
    std::uint32_t dropout_offset = 0;

    // Decoding with a paged cache: K and V lie in pages of page_size keys (a power of two, 16 ... 256) of one pool, page p of K
    // beside page p of V. Key j of sequence b is slot j % page_size of page page_table[b * page_columns() + j / page_size];
    // sequences may share pages, and entries that no key needs may hold anything. 0: K and V lie as tensors, like Q.
    int page_size = 0;
    int pages = 0;                // of the pool
    std::vector<int> page_table;  // empty: whoever places K and V in memory draws one (draw_page_table)

    // How a decoding rung cuts the keys: into this many splits of the longest sequence; 0: as it finds best.
    int splits = 0;
    // The same bits in every run, and for a sequence whatever else is in its batch: not with splits, which ask the longest one.
    bool deterministic = false;

    // Sequences of different lengths, packed one after the other: B + 1 cumulative lengths each, starting at 0.
    // Empty: every sequence has Nq queries and Nk keys.
    std::vector<int> cu_q, cu_k;

    bool packed() const { return !cu_q.empty(); }
    int queries(int b) const { return packed() ? cu_q[b + 1] - cu_q[b] : Nq; }
    int keys(int b) const { return packed() ? cu_k[b + 1] - cu_k[b] : Nk; }
    int group() const { return Hq / Hkv; }
    int page_columns() const { return page_size == 0 ? 0 : (Nk + page_size - 1) / page_size; }
    bool causal() const { return window_left == -1 && window_right == 0; }
    bool modifies_scores() const { return softcap > 0.0f || alibi; }
};

/// 1 / sqrt(d).
float default_scale(int d);

/// Throws InvalidProblem unless sizes are >= 0 (Hq, Hkv, d >= 1), Hq % Hkv == 0, windows are >= -1, 0 <= dropout < 1,
/// |scale|, the softcap (>= 0) and |scale| / softcap are at most 2^100, splits >= 0 and 0 where deterministic, cu_q and
/// cu_k (both or neither) hold B + 1 ascending lengths from 0 whose maxima are Nq and Nk, the page size is one that exists, and a
/// page table that is given has B rows of page_columns() entries of which each that holds a key is a page of the pool.
void validate(const Problem& problem);

/// Gives the problem a pool with a few more pages than its keys need and a table of pages in random order, decided by `seed`. Entries
/// that no key needs are -1. The page size must be set.
void draw_page_table(Problem& problem, std::uint64_t seed);

/// The problem in the words of the command line, e.g. "B=2 Hq=4 Hkv=2 Nq=256 Nk=256 d=64 bf16 causal". Scale, softcap,
/// ALiBi, dropout, sequence lengths and what concerns decoding follow where they are not the default: "scale=1 softcap=50 alibi
/// dropout=0.1 seqlens=3,1 pages=16 splits=4 deterministic" (queries:keys, as in 3:5,1:0, if they differ).
std::string describe(const Problem& problem);

/// One operand on the host as floats. Dense: (B, H, N, d), C order. Packed: (total, H, d). d == 1 serves L.
struct HostTensor {
    int B = 0, H = 0, N = 0, d = 0;
    std::vector<int> cu;  // packed: B + 1 cumulative lengths; else empty
    std::vector<float> values;

    int length(int b) const { return cu.empty() ? N : cu[b + 1] - cu[b]; }
    float* row(int b, int h, int i) { return values.data() + offset(b, h, i); }
    const float* row(int b, int h, int i) const { return values.data() + offset(b, h, i); }
    std::size_t offset(int b, int h, int i) const {
        return cu.empty() ? ((static_cast<std::size_t>(b) * H + h) * N + i) * d
                          : ((static_cast<std::size_t>(cu[b]) + i) * H + h) * d;
    }
};

/// A tensor of the problem's shape filled with `value`: (B, Hq, Nq, d) or (total queries, Hq, d).
HostTensor query_tensor(const Problem& problem, float value = 0.0f);
/// Likewise (B, Hkv, Nk, d) or (total keys, Hkv, d).
HostTensor key_tensor(const Problem& problem, float value = 0.0f);
/// Likewise for L: query_tensor with d == 1.
HostTensor row_tensor(const Problem& problem, float value = 0.0f);

/// Inputs of forward and backward, every value exactly representable in problem.type.
struct Inputs {
    HostTensor Q, K, V, dO;
};

/// normal: N(0, 1). outliers: N(0, 1) + N(0, 100) with probability 0.001. equal: every score of a row is the same.
/// rising: q_i k_j = j / 64, so that (for a positive scale) the running maximum changes at every key tile.
enum class InputLaw { normal, outliers, equal, rising };

/// Inputs drawn from `law`; one seed gives the same values on every machine. N(0, 1) is a sum of twelve uniform
/// numbers.
Inputs make_inputs(const Problem& problem, InputLaw law, std::uint64_t seed);

/// FLOPs of the products over visible (query, key) pairs only: forward 4 d a pair and query head; backward 2.5 times
/// that.
double forward_flops(const Problem& problem);
double backward_flops(const Problem& problem);
/// Visible (query, key) pairs, summed over sequences and query heads.
double visible_pairs(const Problem& problem);

}  // namespace attention
