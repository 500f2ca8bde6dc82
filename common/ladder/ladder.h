#pragma once

#include <ostream>
#include <string>

#include "common/ladder/registry.h"

namespace ladder {

/// What the results name as their origin.
struct Build {
    std::string description, commit;
};

/// The program: runs the rungs of `registry` as the arguments say, prints the table to `out`, progress and refusals to
/// `err`. Returns the exit status: 0 all that ran is verified, 1 something is wrong, 2 bad arguments (nothing has run),
/// 3 nothing was verified.
int run(const Registry& registry, const Build& build, int argc, const char* const* argv, std::ostream& out,
        std::ostream& err);

}  // namespace ladder
