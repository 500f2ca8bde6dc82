// What is under way in tensor memory: loads and stores of warps; products, copies and commits of threads.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "common/gpu/emulator/async_operation.h"
#include "common/gpu/emulator/tensor_memory.h"

namespace emulator {

/// One tcgen05.ld or tcgen05.st of a warp. Issued: the registers of a load are poisoned, those of a store are captured.
/// Performed, at a time that the schedule draws: the cells are read or written. Complete, when the warp's wait covers
/// it: the registers of a load have what was read.
struct TensorMove : AsyncOperation {
    std::array<char*, 32> registers;  // of each lane
    int n, lane, column;
    bool packed;                        // two columns a register
    std::vector<std::uint32_t> values;  // of one lane after the other

    TensorMove(const char* name, Thread* issuer, Site site, int n, std::uint32_t address, bool packed);
    bool step() override;
    std::uint32_t* values_of(int lane_of_warp) { return values.data() + lane_of_warp * n; }
};

/// The loads, or the stores, of a warp.
struct TensorAgent {
    unsigned number = 0;                    // in Cluster::agents; 0: there were none
    std::uint32_t epoch = 1, over = 0;      // of what is issued now; the last that a wait has covered
    std::deque<TensorMove> under_way = {};  // issued in this epoch
};

struct TensorWarp {
    TensorAgent loads, stores;
};

/// Something that one thread orders, and its commits.
struct TensorOperation : AsyncOperation {
    enum class Kind { product, copy, commit };
    Kind kind;
    std::uint32_t chain;  // products that have it in common follow each other

    TensorOperation(const char* name, Thread* issuer, Site site, Kind kind, std::uint32_t chain = 0)
        : AsyncOperation(name, issuer, site), kind(kind), chain(chain) {}
    /// Performs those of the thread's earlier operations that PTX lets come first.
    void finish_earlier();
};

/// What a thread has ordered in tensor memory, and what it knows of it.
struct TensorThread {
    std::deque<std::unique_ptr<TensorOperation>> operations;  // the oldest go when they are performed
    unsigned products = 0, copies = 0;                        // agents; their epochs are the commits, from 1
    std::uint32_t committed = 0;                              // groups so far
    int uncommitted = 0;                                      // operations after the last one
    std::array<Stamp, 2> fenced{};  // loads and stores of its warp that its last fence::before_thread_sync covers
    Past past{};                    // at its last fence::after_thread_sync

    /// Something more is ordered in tensor memory; its epoch.
    std::uint32_t order(Thread& self);
};

/// The lanes of a warp; of those that know the same, one.
Accessors lanes_of(const Thread& thread);
/// What tcgen05.fence::before_thread_sync does; a commit does it too.
void fence_before(Thread& thread);
/// A thread exits: what it, or its warp, has ordered and not waited for or committed.
void check_tensor_operations_at_exit(const Thread& thread, Site site);

}  // namespace emulator
