// tcgen05.mma: what its operands mean, and one product.
#pragma once

#include "common/gpu/emulator/tcgen05.h"

namespace emulator {

/// The instruction descriptor of kind::f16.
struct TensorInstruction {
    bool bf16, a_mn_major, b_mn_major;
    int m, n;  // of both CTAs of a pair together

    /// Reports what PTX does not allow for so many CTAs, and what this repository has no use for.
    TensorInstruction(std::uint32_t bits, int ctas, Site site);

    /// The cells of D, and of A in tensor memory, in each CTA.
    Cells cells_of_d(const TensorProduct& operands, Site site) const;
    Cells cells_of_a(const TensorProduct& operands, Site site) const;
};

/// One product. Issued: its operands may be read and its sums written. Performed, at a time that the schedule draws,
/// after earlier ones on the same D and after copies: they are read, the sums grow.
struct TensorMma : TensorOperation {
    /// What it touches in one CTA; chunks in shared memory, of A unless it is in tensor memory.
    struct Side {
        Cta* cta;
        std::vector<char*> a, b;
    };
    TensorProduct operands;
    TensorInstruction instruction;
    std::vector<Side> sides;

    TensorMma(Thread* issuer, Site site, const TensorProduct& operands, const TensorInstruction& instruction,
              std::vector<Side> sides);
    bool step() override;
};

}  // namespace emulator
