// Inputs from files and results to files: `ladder --tensors DIR`.
#pragma once

#include <string>

#include "common/attention/problem.h"
#include "common/ladder/registry.h"
#include "common/verify/run.h"

namespace ladder {

/// Inputs that somebody gave. dO is zeros where no dO.npy was given.
struct Tensors {
    std::string folder;
    attention::Inputs inputs;
    bool has_dO = false;
};

/// Reads Q, K, V and, where they are, dO, cu_q and cu_k (.npy) from `folder`, rounds them to problem.type, and sets the problem's
/// sizes and lengths by them. Axes: Q, dO (B, Hq, Nq, d), K, V (B, Hkv, Nk, d); with cu_q and cu_k (total, H, d). Throws BadFile,
/// naming the file, and attention::InvalidProblem.
Tensors read_tensors(const std::string& folder, attention::Problem& problem);

/// Throws std::runtime_error, naming the path and what lies there, if write_outputs could not write this rung's.
void check_outputs(const std::string& folder, const Rung& rung);

/// Writes the outputs of a run that was verified or found wrong: O.npy and L.npy, or dQ.npy, dK.npy and dV.npy, into
/// FOLDER/01c_forward and the like, each file whole or not at all. Throws std::runtime_error.
void write_outputs(const std::string& folder, const Rung& rung, const verify::Run& run);

}  // namespace ladder
