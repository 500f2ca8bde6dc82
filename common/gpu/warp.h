// Instructions of one warp that move values between lanes or let them meet. PTX ISA 9.7.9 (shfl.sync), 9.7.13
// (vote.sync, bar.warp.sync).
#pragma once

#include "common/gpu/types.h"

namespace gpu {

constexpr int warp_size = 32;
constexpr std::uint32_t all_lanes = 0xFFFFFFFFu;

/// Number of this thread in its warp, and of its warp in a one-dimensional CTA.
GPU_DEVICE int lane_id() { return threadIdx.x % warp_size; }
GPU_DEVICE int warp_id() { return threadIdx.x / warp_size; }

/// bar.warp.sync mask: the named lanes meet, and what each wrote to memory before is visible to the others after.
GPU_DEVICE void bar_warp_sync(std::uint32_t mask GPU_SITE) {
#if GPU_EMULATOR
    emulator::bar_warp_sync(mask, site);
#else
    __syncwarp(mask);
#endif
}

/// shfl.sync.bfly.b32: the value that lane (own ^ lane_mask) passed. All 32 lanes take part.
GPU_DEVICE float shfl_sync_bfly(float value, int lane_mask GPU_SITE) {
#if GPU_EMULATOR
    return emulator::shuffle(emulator::Shuffle::bfly, value, lane_mask, site);
#else
    return __shfl_xor_sync(all_lanes, value, lane_mask);
#endif
}

/// shfl.sync.idx.b32: the value that lane `source` passed. All 32 lanes take part.
GPU_DEVICE float shfl_sync_idx(float value, int source GPU_SITE) {
#if GPU_EMULATOR
    return emulator::shuffle(emulator::Shuffle::idx, value, source, site);
#else
    return __shfl_sync(all_lanes, value, source);
#endif
}

/// vote.sync.ballot.b32: bit i is the predicate of lane i. All 32 lanes take part.
GPU_DEVICE std::uint32_t vote_sync_ballot(bool predicate GPU_SITE) {
#if GPU_EMULATOR
    return emulator::vote(emulator::Vote::ballot, predicate, site);
#else
    return __ballot_sync(all_lanes, predicate);
#endif
}

/// vote.sync.any.pred: true in every lane if the predicate holds in one. All 32 lanes take part.
GPU_DEVICE bool vote_sync_any(bool predicate GPU_SITE) {
#if GPU_EMULATOR
    return emulator::vote(emulator::Vote::any, predicate, site) != 0;
#else
    return __any_sync(all_lanes, predicate);
#endif
}

/// vote.sync.all.pred: true in every lane if the predicate holds in all. All 32 lanes take part.
GPU_DEVICE bool vote_sync_all(bool predicate GPU_SITE) {
#if GPU_EMULATOR
    return emulator::vote(emulator::Vote::all, predicate, site) == all_lanes;
#else
    return __all_sync(all_lanes, predicate);
#endif
}

}  // namespace gpu
