// Marks in 04b, 04c and 04d: what a warpgroup turns to next. timeline_stage.cu records them.
#pragma once

#include "common/gpu/gpu.h"

namespace stage04 {

/// wait_...: until a slot of the ring is free, K or V has come, or it is its turn. copy_...: the copy is ordered. S, O: the product is
/// issued, then waited for. softmax: S is complete, its softmax begins. O_done: O is complete. rescale: likewise, and what is left of a softmax follows.
enum class Mark { wait_slot, copy_Q, copy_K, copy_V, wait_K, wait_V, wait_turn, S, softmax, O, O_done, rescale };
constexpr int marks_there_are = 12;

/// A rung as it is verified and timed: no instruction stands for a mark.
struct NoMarks {
    GPU_DEVICE void operator()(Mark) const {}
};

/// Row w of `events` becomes what warpgroup w of one CTA has turned to, in the eyes of its first thread: marks_there_are * clock + mark.
struct Recorder {
    gpu::Tensor<std::int64_t> events;
    int cta;
    int count = 0;

    GPU_DEVICE void operator()(Mark mark) {
        if (blockIdx.x != unsigned(cta) || threadIdx.x % gpu::warpgroup_size != 0) return;
        events.matrix(0, 0, threadIdx.x / gpu::warpgroup_size, 1)(0, count++) =
            gpu::clock() * marks_there_are + int(mark);
    }
};

}  // namespace stage04
