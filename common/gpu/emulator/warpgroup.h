// A warpgroup: 128 threads that meet at wgmma's instructions and at setmaxnreg, and the state that they share.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "common/gpu/emulator/emulator.h"
#include "common/gpu/emulator/wgmma.h"

namespace gpu {
struct LaunchShape;
}

namespace emulator {

struct Cta;
struct Thread;

constexpr int warpgroup_size = 128, warpgroup_warps = 4;

/// Threads of a warpgroup that have come to one instruction and wait for the rest.
struct WarpgroupMeeting {
    const char* instruction = nullptr;  // null: nobody has come
    Site site{};                        // where the first thread stands
    int arrived = 0;
    std::array<std::uint32_t, warpgroup_warps> lanes{};  // who has come
    std::array<const void*, warpgroup_size> operands{};  // on the threads' stacks
    bool (*complete)(Cta&, int warpgroup) = nullptr;
};

struct Warpgroup {
    WarpgroupMeeting meeting;
    Products products;
    int registers = 0;                                         // of a thread, as setmaxnreg left them
    std::array<std::uint32_t, warpgroup_size> synchronised{};  // epochs of the threads at the last setmaxnreg
};

/// The running thread arrives at `instruction` (one object for each) and waits for its 127 companions; the last to come
/// runs `complete`, which is false if all are to wait on, until try_again is called. Reports a thread that cannot come,
/// or that has come to another instruction or place.
void meet_warpgroup(const char* instruction, const void* operand, Site site, bool (*complete)(Cta&, int warpgroup));

/// Warpgroups that wait at `instruction` although all have come.
void try_again(Cta& cta, const char* instruction);

/// Called when a thread exits or has exited: reports products under way, and those who would wait for it for ever.
void check_products_at_exit(const Thread& thread, Site site);
void check_warpgroup_after_exit(const Thread& thread, Site site);

/// Registers of a thread when the kernel begins.
int registers_at_launch(const gpu::LaunchShape& shape);

}  // namespace emulator
