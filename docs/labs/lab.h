// What the labs share: run one, say how it ended.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "common/gpu/gpu.h"
#include "common/gpu/launch.h"

/// Runs a lab, which returns whether its numbers are right. `program [SCHEDULE [SEED]]` chooses the order of events on
/// the software GPU. Exit status: 0 right, 1 wrong or reported, 77 not for this GPU.
inline int run_lab(int argc, char** argv, bool (*lab)()) {
    try {
        if (argc > 1) gpu::choose_schedule(argv[1], argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
        const bool right = lab();
        std::puts(right ? "right" : "WRONG");
        return right ? 0 : 1;
    } catch (const gpu::NotBuilt& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 77;
    } catch (const gpu::Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
