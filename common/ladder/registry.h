// What a rung tells the rest of the project: its name, what it does, how it is launched. The ladder, the verifier, the
// benchmarks and the tests walk this list; none of them knows a stage by name.
#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/attention/kernel_problem.h"
#include "common/gpu/launch.h"

namespace ladder {

enum class Pass { forward, backward, decode };
constexpr const char* name(Pass pass) {
    return pass == Pass::forward ? "forward" : pass == Pass::backward ? "backward" : "decode";
}

/// What a rung stores in 16 bits on its way, which sets the accuracy that can be asked of it: S and P (a rung that
/// keeps them in memory), or only P as an operand of the second product.
enum class Stores { scores, weights };

/// An operand on the device: its memory and strides in elements. Last dimension contiguous.
struct Operand {
    gpu::Buffer* buffer = nullptr;
    std::int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
    std::int64_t first = 0;  // element of (0, 0, 0, 0), not 0 when a stride is negative
    int columns = 0;

    template <class T>
    gpu::Tensor<T> as() const {
        return buffer->tensor<T>(batch_stride, head_stride, row_stride, columns, first);
    }
};

/// Everything a launch may touch. Q, K, V, O, dO, dQ, dK, dV hold problem.type; L is fp32. Forward reads Q, K, V and
/// writes O, L, as does decode; backward reads Q, K, V, O, L, dO and writes dQ, dK, dV. Operands of the other pass have no buffer.
/// The batch index of a paged K or V is the page.
struct Operands {
    Operand Q, K, V, O, L, dO, dQ, dK, dV;
    Operand page_table;                   // int32, a row for each sequence; no buffer where there are no pages
    std::vector<gpu::Buffer> workspaces;  // as Rung::workspaces asked, in that order, poisoned
    const int* cu_q = nullptr;            // device copies of problem.cu_q, cu_k; null if not packed
    const int* cu_k = nullptr;
};

/// What a launch throws for operands that it cannot use as they lie in memory. what() names the operand and what is needed.
struct Refused : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Device memory that a rung needs beside its operands; named, so that its traffic appears in the table.
struct Workspace {
    std::string name;
    std::size_t bytes;
};

struct Rung {
    std::string stage;   // "02"
    std::string letter;  // "b"
    std::string name;    // "split_kv"
    Pass pass = Pass::forward;
    Stores stores = Stores::weights;
    bool fast = false;          // claims speed: its kernels stand in common/scripts/fast_kernels.txt
    bool deterministic = true;  // the same bits from the same operands, in whatever order a GPU schedules its threads
    bool whole_tiles = false;   // multiplies whole tiles of P and V: a NaN in V reaches every query of the tile
    double exponential_error = 0;  // relative, of an exponential beyond ex2.approx: L may be wrong by as much
    bool modifiers = false;        // takes softcap and ALiBi (common/attention/score.h); add() makes others refuse them
    int row_alignment = 1;         // bytes; operands whose rows start elsewhere are refused before the launch
    bool tensor_maps = false;      // finds operands by tensor maps: negative strides are refused before the launch
    std::string kernel_pattern;    // regular expression of its kernels' names, by which a kernel file finds it

    /// Why this rung does not do this problem, in words that follow "it": "has no dropout"; nullopt if it does. Called after
    /// attention::validate.
    std::function<std::optional<std::string>(const attention::Problem&)> refuses;
    std::function<std::vector<Workspace>(const attention::Problem&)> workspaces;
    /// Enqueues the kernels. The problem is valid, not refused, and Operands are complete.
    /// Throws Refused, before the first kernel, for operands that lie in memory as it cannot use them.
    std::function<void(const attention::Problem&, Operands&)> launch;
    /// Exponentials this rung computes on this problem, in closed form (what the counters must show): by
    /// special-function units, and by polynomials (common/attention/exp2.h); no function if there are none of these.
    std::function<double(const attention::Problem&)> exponentials;
    std::function<double(const attention::Problem&)> polynomials = nullptr;
    /// Bytes requested of each tensor in closed form, by the names of the buffers; empty if there is none for this
    /// problem.
    std::function<std::vector<gpu::Traffic>(const attention::Problem&)> traffic;

    /// "02b split_kv".
    std::string title() const { return stage + letter + " " + name; }
};

/// Throws Refused unless the start and all strides of each operand (not L) are multiples of the rung's row_alignment, and with tensor_maps
/// not negative.
void require_layout(const Rung& rung, const Operands& operands, attention::DataType type);

class Registry {
  public:
    /// Makes the rung refuse by name what it does not claim. Throws std::logic_error if stage, letter and pass are taken.
    void add(Rung rung);
    const std::vector<Rung>& rungs() const { return rungs_; }

  private:
    std::vector<Rung> rungs_;
};

/// Every stage of this build, in order; defined by the build, as are the next two.
void register_stages(Registry& registry);
/// Machine, build type and compilers, e.g. "emulator, Release, GNU 12.2.0".
const char* build_description();
/// The commit that was configured, or "unknown" outside a clone.
const char* build_commit();

/// The part of a problem that kernels take by value.
attention::KernelProblem kernel_problem(const attention::Problem& problem, const Operands& operands);

/// Calls f<T>() with the problem's storage type T, so that a runtime type becomes a template argument.
template <class F>
void with_type(attention::DataType type, F&& f) {
    switch (type) {
        case attention::DataType::fp32:
            return f.template operator()<float>();
        case attention::DataType::fp16:
            return f.template operator()<gpu::fp16>();
        case attention::DataType::bf16:
            return f.template operator()<gpu::bf16>();
    }
}

/// Calls f<T, d>() for a rung on tensor cores: T is fp16 or bf16, d is 64 or 128; the rung has refused all else.
template <class F>
void with_16_bit_type_and_d(attention::DataType type, int d, F&& f) {
    const auto with_d = [&]<class T>() {
        if (d == 64) return f.template operator()<T, 64>();
        if (d == 128) return f.template operator()<T, 128>();
        throw std::logic_error("A rung for d = 64 and 128 was launched with d = " + std::to_string(d) + ".");
    };
    if (type == attention::DataType::fp32) throw std::logic_error("A rung for 16-bit types was launched with fp32.");
    if (type == attention::DataType::fp16) return with_d.template operator()<gpu::fp16>();
    return with_d.template operator()<gpu::bf16>();
}

}  // namespace ladder
