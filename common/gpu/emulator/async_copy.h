// cp.async: the copies of one thread, from issue to the wait that covers them.
#pragma once

#include <cstdint>
#include <deque>

#include "common/gpu/emulator/emulator.h"
#include "common/gpu/emulator/sanitizers.h"

namespace emulator {

struct Thread;

/// One copy. Issued: the destination is poisoned and belongs to the copy. Performed, at a time that the schedule draws:
/// the source is read, the destination written. Complete, when a wait of the issuing thread covers it: the destination
/// is free.
struct Copy {
    Thread* thread;
    char* destination;
    const char* source;
    int bytes, bytes_read;
    Site site;
    int pending_index;  // in Cta::pending_copies; -1: performed
    tsan::Token issued = 0, done = 0;
};

/// The copies of one thread in the order of issue, and how they fall into groups.
struct CopyQueue {
    std::deque<Copy> copies;
    std::deque<int> groups;        // sizes of the committed groups, oldest first
    int uncommitted = 0;           // copies after the last group
    void* engine_fiber = nullptr;  // the race detector's fiber that performs them

    void clear() {
        copies.clear();
        groups.clear();
        uncommitted = 0;
    }
};

void perform(Copy& copy);

}  // namespace emulator
