#pragma once

#include <ostream>

#include "common/ladder/registry.h"

namespace ladder {

enum class ListFormat { text, markdown };

/// One line a rung: its pass and which storage types, head dimensions and extras it does. Asks Rung::refuses on a grid
/// of problems, so the list says what the rungs do, not what somebody wrote about them; where a rung refuses them all,
/// its reason.
void print_list(const Registry& registry, ListFormat format, std::ostream& out);

}  // namespace ladder
