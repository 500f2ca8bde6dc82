// Instructions that move values between the lanes of a warp, or only let them meet.
#include "common/gpu/emulator/rendezvous.h"

namespace emulator {

namespace {

constexpr std::uint32_t all_lanes = 0xFFFFFFFFu;
constexpr WarpInstruction warp_sync{"bar.warp.sync", false, true};
constexpr WarpInstruction shuffle_bfly{"shfl.sync.bfly", false, false};
constexpr WarpInstruction shuffle_idx{"shfl.sync.idx", false, false};
// By emulator::Vote: lanes at different votes do not meet.
constexpr WarpInstruction votes[] = {
    {"vote.sync.ballot", false, false}, {"vote.sync.any", false, false}, {"vote.sync.all", false, false}};

constexpr WarpInstruction elect{"elect.sync", false, false};

struct ShuffleOperands {
    Shuffle kind;
    float value;
    int argument;
    float result;
};

struct VoteOperands {
    bool predicate;
    std::uint32_t result;
};

}  // namespace

void bar_warp_sync(std::uint32_t mask, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    meet(warp_sync, mask, nullptr, site, [](Cta&, Meeting&) {});
}

float shuffle(Shuffle kind, float value, int argument, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    ShuffleOperands operands{kind, value, argument, 0};
    meet(kind == Shuffle::bfly ? shuffle_bfly : shuffle_idx, all_lanes, &operands, site, [](Cta&, Meeting& meeting) {
        const auto at = [&](int lane) { return static_cast<ShuffleOperands*>(meeting.operands[lane]); };
        for (int lane = 0; lane < warp_size; ++lane) {
            const int source = (at(lane)->kind == Shuffle::bfly ? lane ^ at(lane)->argument : at(lane)->argument) & 31;
            at(lane)->result = at(source)->value;
        }
    });
    return operands.result;
}

bool elect_sync(Site site) {
    tsan::Ignore ignore;
    machine.operation();
    meet(elect, all_lanes, nullptr, site, [](Cta&, Meeting&) {});
    return machine.current()->lane() == 0;
}

std::uint32_t vote(Vote kind, bool predicate, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    VoteOperands operands{predicate, 0};
    meet(votes[static_cast<int>(kind)], all_lanes, &operands, site, [](Cta&, Meeting& meeting) {
        std::uint32_t result = 0;
        for (int lane = 0; lane < warp_size; ++lane)
            result |= static_cast<std::uint32_t>(static_cast<VoteOperands*>(meeting.operands[lane])->predicate) << lane;
        for (void* lane : meeting.operands) static_cast<VoteOperands*>(lane)->result = result;
    });
    return operands.result;
}

}  // namespace emulator
