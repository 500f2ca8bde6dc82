#include "common/ladder/tests/fakes.h"

#include <numeric>

#include "common/reference/reference.h"
#include "common/verify/storage.h"

namespace fakes {
namespace {

using attention::DataType;
using attention::HostTensor;
using attention::Problem;
using ladder::Operand;
using ladder::Operands;

// The bytes of an operand's buffer, to be changed and written back.
class Memory {
  public:
    // paged: the problem by whose page table the rows lie, if any.
    Memory(const Operand& operand, DataType type, const std::vector<int>& cu, const Problem* paged = nullptr)
        : operand_(operand), type_(type), cu_(cu), paged_(paged), bytes_(operand.buffer->bytes()) {
        operand_.buffer->read(bytes_.data(), bytes_.size());
    }
    ~Memory() { operand_.buffer->write(bytes_.data(), bytes_.size()); }

    std::byte* at(int b, int h, int i) {
        std::int64_t row = cu_.empty() ? i : std::int64_t(cu_[b]) + i;
        if (paged_ != nullptr) {
            b = paged_->page_table[b * paged_->page_columns() + i / paged_->page_size];
            row = i % paged_->page_size;
        }
        return bytes_.data() + attention::bytes(type_) * (operand_.first + b * operand_.batch_stride +
                                                          h * operand_.head_stride + row * operand_.row_stride);
    }
    void load(HostTensor& tensor, int b, int h, int i) {
        verify::load(type_, at(b, h, i), tensor.d, tensor.row(b, h, i));
    }
    void store(const float* values, int count, int b, int h, int i) {
        verify::store(type_, values, count, at(b, h, i));
    }
    std::vector<std::byte>& bytes() { return bytes_; }

  private:
    const Operand& operand_;
    DataType type_;
    const std::vector<int>& cu_;
    const Problem* paged_;
    std::vector<std::byte> bytes_;
};

HostTensor read(HostTensor tensor, const Operand& operand, DataType type, const Problem* paged = nullptr) {
    Memory memory(operand, type, tensor.cu, paged);
    for (int b = 0; b < tensor.B; ++b) {
        for (int h = 0; h < tensor.H; ++h) {
            for (int i = 0; i < tensor.length(b); ++i) memory.load(tensor, b, h, i);
        }
    }
    return tensor;
}

attention::Inputs inputs(const Problem& problem, const Operands& operands) {
    const Problem* paged = problem.page_size > 0 ? &problem : nullptr;
    attention::Inputs result{read(attention::query_tensor(problem), operands.Q, problem.type),
                             read(attention::key_tensor(problem), operands.K, problem.type, paged),
                             read(attention::key_tensor(problem), operands.V, problem.type, paged),
                             attention::query_tensor(problem)};
    if (operands.dO.buffer != nullptr) result.dO = read(attention::query_tensor(problem), operands.dO, problem.type);
    return result;
}

std::vector<int> first_rows(int count) {
    std::vector<int> rows(count);
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
}

// Rows of one head in fp64 to an operand.
void write(Memory& memory, const reference::Rows& rows, int count, int b, int h) {
    for (int i = 0; i < count; ++i) {
        const std::vector<float> row(rows.row(i), rows.row(i) + rows.columns);
        memory.store(row.data(), rows.columns, b, h, i);
    }
}

void forward(const Problem& problem, Operands& operands, Behaviour behaviour) {
    const attention::Inputs given = inputs(problem, operands);
    Memory O(operands.O, problem.type, problem.cu_q);
    Memory L(operands.L, DataType::fp32, problem.cu_q);
    if (behaviour == Behaviour::writes_gap) std::fill(O.bytes().begin(), O.bytes().end(), std::byte{0});
    for (int b = 0; b < problem.B; ++b) {
        for (int h = 0; h < problem.Hq; ++h) {
            const int Nq = problem.queries(b);
            reference::Forward exact = reference::forward(problem, given, b, h, first_rows(Nq));
            const bool last_head = b == problem.B - 1 && h == problem.Hq - 1;
            if (behaviour == Behaviour::wrong && last_head) exact.O.row(Nq - 1)[0] += 1.0;
            write(O, exact.O, Nq - (behaviour == Behaviour::unwritten && last_head), b, h);
            for (int i = 0; i < Nq; ++i) {
                const float value = static_cast<float>(exact.L[i]);
                L.store(&value, 1, b, h, i);
            }
        }
    }
    if (behaviour == Behaviour::writes_beside) {  // on the emulator, where device memory is the host's
        static_cast<std::byte*>(operands.O.buffer->data())[operands.O.buffer->bytes()] = std::byte{0};
    }
    if (behaviour == Behaviour::changes_input)
        Memory(operands.K, problem.type, problem.cu_k).bytes()[0] ^= std::byte{1};
}

void backward(const Problem& problem, Operands& operands) {
    const attention::Inputs given = inputs(problem, operands);
    Memory dQ(operands.dQ, problem.type, problem.cu_q);
    Memory dK(operands.dK, problem.type, problem.cu_k);
    Memory dV(operands.dV, problem.type, problem.cu_k);
    for (int b = 0; b < problem.B; ++b) {
        const std::vector<int> queries = first_rows(problem.queries(b)), keys = first_rows(problem.keys(b));
        for (int h = 0; h < problem.Hq; ++h) {
            write(dQ, reference::query_gradient(problem, given, b, h, queries).values, problem.queries(b), b, h);
        }
        for (int h = 0; h < problem.Hkv; ++h) {
            const auto group = reference::forward_of_group(problem, given, b, h, keys);
            const auto gradients = reference::key_gradients(problem, given, b, h, keys, group);
            write(dK, gradients.dK.values, problem.keys(b), b, h);
            write(dV, gradients.dV.values, problem.keys(b), b, h);
        }
    }
}

void launch(const Problem& problem, Operands& operands, ladder::Pass pass, Behaviour behaviour) {
    switch (behaviour) {
        case Behaviour::cannot_use_layout: {
            ladder::Rung rung;
            rung.row_alignment = 16;
            ladder::require_layout(rung, operands, problem.type);
            break;
        }
        case Behaviour::no_code:
            throw gpu::NotBuilt("Kernel fake is built for 10.0, and this GPU is 9.0.");
        case Behaviour::breaks_rule:
            throw gpu::Error("Kernel fake read shared memory that nobody wrote.");
        default:
            break;
    }
    pass == ladder::Pass::backward ? backward(problem, operands) : forward(problem, operands, behaviour);
}

std::optional<std::string> refuses(const Problem& problem, Behaviour behaviour) {
    if (behaviour == Behaviour::refuses) return "does nothing";
    if (behaviour == Behaviour::refuses_small_d && problem.d < 64) {
        return "takes a d of 64 or more, not " + std::to_string(problem.d);
    }
    return std::nullopt;
}

}  // namespace

ladder::Rung rung(const std::string& letter, Behaviour behaviour, ladder::Pass pass) {
    ladder::Rung rung;
    rung.stage = "00";
    rung.letter = letter;
    rung.name = "fake";
    rung.pass = pass;
    rung.refuses = [behaviour](const Problem& problem) { return refuses(problem, behaviour); };
    rung.workspaces = [behaviour](const Problem&) {
        return behaviour == Behaviour::hungry ? std::vector<ladder::Workspace>{{"S", std::size_t(1) << 60}}
                                              : std::vector<ladder::Workspace>{};
    };
    rung.launch = [=](const Problem& problem, Operands& operands) { launch(problem, operands, pass, behaviour); };
    return rung;
}

}  // namespace fakes
