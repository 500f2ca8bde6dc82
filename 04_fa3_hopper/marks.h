// Marks in 04b, 04c and 04d: the last argument of the kernels.
#pragma once

#include "04_fa3_hopper/timeline.h"
#include "common/gpu/gpu.h"

namespace stage04 {

/// A rung as it is verified and timed: no instruction stands for a mark.
struct NoMarks {
    GPU_DEVICE void operator()(Mark) const {}
};

/// Row w of `events` becomes what warpgroup w of one CTA has turned to, as its first thread sees it: 16 clock + mark.
struct Recorder {
    gpu::Tensor<std::int64_t> events;
    int cta;
    int count = 0;

    GPU_DEVICE void operator()(Mark mark) {
        if (blockIdx.x != unsigned(cta) || threadIdx.x % gpu::warpgroup_size != 0) return;
        events.matrix(0, 0, threadIdx.x / gpu::warpgroup_size, 1)(0, count++) = 16 * gpu::clock() + int(mark);
    }
};

}  // namespace stage04
