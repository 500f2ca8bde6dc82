// The problems that speed is judged on, by name, and problems in the words in which results name them.
#pragma once

#include <string>
#include <vector>

#include "common/ladder/registry.h"

namespace profile {

struct Grid {
    std::string name, about;
    std::vector<attention::Problem> problems;
    std::vector<ladder::Pass> passes;  // measured unless others are asked for
};

/// compare, standard, stages, decode, counts.
const std::vector<Grid>& grids();

/// The inverse of attention::describe for problems without scale, softcap, ALiBi and dropout, e.g. "B=16 Hq=16 Hkv=16 Nq=1024
/// Nk=1024 d=128 bf16 causal". Packed sequences: "seqlens=5,0,17" as `ladder --seqlens` takes it; B, Nq and Nk may be left out then.
/// Throws attention::InvalidProblem, naming the word that was not understood.
attention::Problem parse_problem(const std::string& text);

}  // namespace profile
