// Rungs that compute on the host, right or wrong in a chosen way: what the verifier and the ladder must tell apart.
#pragma once

#include "common/ladder/registry.h"

namespace fakes {

enum class Behaviour {
    right,
    wrong,              // one element of the last row is off
    unwritten,          // the last row of O is not written
    writes_beside,      // a byte after the end of O; on the emulator only
    changes_input,      // the first element of K
    writes_gap,         // all of O's memory, gaps between rows included
    refuses,            // every problem
    refuses_small_d,    // d below 64
    cannot_use_layout,  // needs 16-byte rows
    no_code,            // was not built for this GPU
    breaks_rule,        // the machine reports it
    hungry              // asks for a workspace of 2^60 bytes
};

/// A rung of stage 00 with that letter. "right" answers come from the fp64 reference.
ladder::Rung rung(const std::string& letter, Behaviour behaviour, ladder::Pass pass = ladder::Pass::forward);

}  // namespace fakes
