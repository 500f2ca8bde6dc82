#include "common/ladder/registry.h"

#include <utility>

namespace ladder {
namespace {

// What a rung does only if it says so, with the words for those that do not.
std::optional<std::string> refuses_what_it_does_not_claim(const Rung& rung, const attention::Problem& problem) {
    if (!rung.modifiers && problem.softcap > 0) return "has no softcap";
    if (!rung.modifiers && problem.alibi) return "has no ALiBi";
    if (rung.pass != Pass::decode && problem.page_size > 0) return "takes no pages, as only decoding rungs do";
    if (rung.pass != Pass::decode && problem.splits > 0) return "takes no number of splits, as only decoding rungs do";
    if (!rung.deterministic && problem.deterministic) return "sums in an order that changes from run to run";
    return std::nullopt;
}

}  // namespace

void Registry::add(Rung rung) {
    for (const Rung& other : rungs_) {
        if (other.stage == rung.stage && other.letter == rung.letter && other.pass == rung.pass) {
            throw std::logic_error("Rungs " + other.title() + " and " + rung.title() + " are both " + rung.stage +
                                   rung.letter + ", " + ladder::name(rung.pass) + ".");
        }
    }
    rung.refuses = [rung](const attention::Problem& problem) {
        if (auto reason = refuses_what_it_does_not_claim(rung, problem)) return reason;
        return rung.refuses ? rung.refuses(problem) : std::nullopt;
    };
    rungs_.push_back(std::move(rung));
}

attention::KernelProblem kernel_problem(const attention::Problem& problem, const Operands& operands) {
    attention::KernelProblem result = {};
    result.B = problem.B;
    result.Hq = problem.Hq;
    result.Hkv = problem.Hkv;
    result.Nq = problem.Nq;
    result.Nk = problem.Nk;
    result.d = problem.d;
    result.window_left = attention::window_side(problem, problem.window_left);
    result.window_right = attention::window_side(problem, problem.window_right);
    result.scale = problem.scale;
    result.softcap = problem.softcap;
    result.alibi = problem.alibi;
    result.cu_q = operands.cu_q;
    result.cu_k = operands.cu_k;
    result.dropout = attention::dropout(problem);
    return result;
}

void require_layout(const Rung& rung, const Operands& operands, attention::DataType type) {
    const int bytes = attention::bytes(type), alignment = rung.row_alignment;
    for (const Operand* operand :
         {&operands.Q, &operands.K, &operands.V, &operands.O, &operands.dO, &operands.dQ, &operands.dK, &operands.dV}) {
        if (operand->buffer == nullptr) continue;
        const auto require = [&](const char* what, std::int64_t elements) {
            if (rung.tensor_maps && elements < 0)
                throw Refused(
                    "The " + std::string(what) + " of " + operand->buffer->name() + " is " + std::to_string(elements) +
                    " elements; this rung finds its operands by tensor maps, whose strides are not negative.");
            if (elements * bytes % alignment == 0) return;
            throw Refused("The " + std::string(what) + " of " + operand->buffer->name() + " is " +
                          std::to_string(elements) + " elements of " + std::to_string(bytes) +
                          " bytes; this rung moves " + std::to_string(alignment) +
                          " bytes at a time and needs a multiple of that.");
        };
        require("first element", operand->first);
        require("batch stride", operand->batch_stride);
        require("head stride", operand->head_stride);
        require("row stride", operand->row_stride);
    }
}

}  // namespace ladder
