// Where the lanes of a warp meet.
#pragma once

#include "common/gpu/emulator/machine.h"

namespace emulator {

/// The running lane arrives at `instruction` and waits for the other lanes of `mask`; the last one to come runs
/// `complete` for all of them, with the operands that each lane passed. Reports a lane of the mask that cannot come: it
/// has exited, does not exist, or waits for this lane at another instruction of the warp - for `aligned` instructions
/// also at another call site.
void meet(const WarpInstruction& instruction, std::uint32_t mask, void* operand, Site site,
          void (*complete)(Cta&, Meeting&));

/// Called when a thread has exited: reports those who would wait for it for ever.
void check_warp_after_exit(const Thread& thread, Site site);
void check_barriers_after_exit(const Thread& thread, Site site);

}  // namespace emulator
