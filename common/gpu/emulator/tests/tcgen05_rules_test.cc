// tcgen05: a small attention, S = Q K^T and O += P V with P in tensor memory, and each way of doing without one of its
// waits, fences, commits and arrivals; operands that PTX does not allow.
#include <algorithm>
#include <string>
#include <vector>

#include "common/gpu/emulator/tests/reports.h"

namespace {

using gpu::bf16;
using gpu::Major;

constexpr int threads = 160, n = 64, rounds = 3;  // warps 0 to 3 own rows, lane 0 of warp 4 issues
constexpr int P_column = 64, O_column = 128;      // S begins at 0

struct Shared {
    gpu::PanelTile<bf16, 128, 64> Q;
    gpu::PanelTile<bf16, n, 64> K, V;
    gpu::SharedArray<std::uint32_t, 1> base;
    gpu::SharedArray<gpu::Mbarrier, 4> barriers;
    std::uint32_t S_full() { return barriers.address(0); }
    std::uint32_t S_read() { return barriers.address(1); }
    std::uint32_t P_ready() { return barriers.address(2); }
    std::uint32_t O_full() { return barriers.address(3); }
};

enum class Mistake {
    none,
    // of those who own rows
    no_wait_for_S,
    no_fence_after_S,
    S_not_waited_for_in_registers,
    no_fence_before_S_is_read,
    no_wait_for_O_before_P,
    no_fence_after_O,
    no_wait_st,
    no_fence_before_P_is_ready,
    operand_overwritten_early,
    no_proxy_fence,
    // of the one that issues
    no_wait_for_S_read,
    no_fence_after_S_read,
    no_wait_for_P,
    no_fence_after_P,
    no_commit_of_S,
    arrives_instead_of_commit,
    another_lane_commits,
    whole_warp_issues,
    commits_twice,
    no_commit_of_O,
    exits_without_commit,
    another_shape_in_flight,
    A_from_a_product_in_flight,
    D_over_A_in_flight,
    copy_over_A_in_flight,
    S_accumulates_at_first,
    dealloc_without_wait_for_O,
    no_fence_of_mbarriers,
    mbarrier_invalidated
};

/// The one that issues; every lane of its warp comes here.
void issue(Shared& smem, Mistake mistake) {
    const auto is = [&](Mistake m) { return m == mistake; };
    if (gpu::lane_id() != 0 && !is(Mistake::another_lane_commits) && !is(Mistake::whole_warp_issues)) return;
    if (gpu::lane_id() > 1) return;
    const bool issues = gpu::lane_id() == 0 || is(Mistake::whole_warp_issues);
    const std::uint32_t S = smem.base(0), P = S + P_column, O = S + O_column;
    constexpr auto QK = gpu::tcgen05_instruction<bf16>(128, n, Major::k, Major::k);
    constexpr auto PV = gpu::tcgen05_instruction<bf16>(128, 64, Major::k, Major::mn);
    const auto commit = [&](std::uint32_t barrier) {
        if ((gpu::lane_id() == 1) == is(Mistake::another_lane_commits)) gpu::tcgen05_commit(barrier);
    };
    const auto multiply_QK = [&] {
        for (int k = 0; k < 64 && issues; k += 16)
            gpu::tcgen05_mma_ss(S, smem.Q.k_major(0, k), smem.K.k_major(0, k), QK,
                                k > 0 || is(Mistake::S_accumulates_at_first));
        if (is(Mistake::exits_without_commit)) return;
        if (is(Mistake::another_shape_in_flight))
            gpu::tcgen05_mma_ss(S, smem.Q.k_major(0, 0), smem.K.k_major(0, 0),
                                gpu::tcgen05_instruction<bf16>(128, n / 2, Major::k, Major::k), true);
        if (is(Mistake::A_from_a_product_in_flight)) gpu::tcgen05_mma_ts(O, S, smem.V.mn_major(0, 0), PV, false);
        if (is(Mistake::arrives_instead_of_commit)) {
            gpu::mbarrier_arrive(smem.S_full());
        } else if (!is(Mistake::no_commit_of_S)) {
            commit(smem.S_full());
        }
        if (is(Mistake::commits_twice)) commit(smem.S_full());
        if (is(Mistake::mbarrier_invalidated)) gpu::mbarrier_inval(smem.S_full());
    };
    multiply_QK();
    if (is(Mistake::exits_without_commit)) return;
    for (int round = 0; round < rounds; ++round) {
        if (round + 1 < rounds) {
            if (!is(Mistake::no_wait_for_S_read)) gpu::mbarrier_wait_parity(smem.S_read(), round % 2);
            if (!is(Mistake::no_fence_after_S_read)) gpu::tcgen05_fence_after_thread_sync();
            multiply_QK();
        }
        if (!is(Mistake::no_wait_for_P)) gpu::mbarrier_wait_parity(smem.P_ready(), round % 2);
        if (!is(Mistake::no_fence_after_P)) gpu::tcgen05_fence_after_thread_sync();
        for (int k = 0; k < n && issues; k += 16)
            gpu::tcgen05_mma_ts(O, P + k / 2, smem.V.mn_major(k, 0), PV, round > 0 || k > 0);
        if (is(Mistake::D_over_A_in_flight))
            gpu::tcgen05_mma_ss(P, smem.Q.k_major(0, 0), smem.K.k_major(0, 0), QK, false);
        if (is(Mistake::copy_over_A_in_flight)) gpu::tcgen05_cp_128x256b(P, smem.Q.k_major(0, 0));
        if (!is(Mistake::no_commit_of_O)) commit(smem.O_full());
    }
}

/// A thread that owns a row: P is S, O is rescaled by 1.
void own_row(Shared& smem, Mistake mistake, float* out) {
    const auto is = [&](Mistake m) { return m == mistake; };
    const std::uint32_t S = smem.base(0), P = S + P_column, O = S + O_column;
    float x[n], o[64];
    std::uint32_t p[n / 2];
    for (int round = 0; round < rounds; ++round) {
        if (is(Mistake::operand_overwritten_early) && threadIdx.x == 7) smem.K(7, 3) = bf16{};
        if (!is(Mistake::no_wait_for_S)) gpu::mbarrier_wait_parity(smem.S_full(), round % 2);
        if (!is(Mistake::no_fence_after_S)) gpu::tcgen05_fence_after_thread_sync();
        gpu::tcgen05_ld(x, S);
        if (!is(Mistake::S_not_waited_for_in_registers)) gpu::tcgen05_wait_ld(x);
        if (threadIdx.x == 9) smem.K(9, 3) = smem.K(9, 4) = gpu::cvt_rn<bf16>(1);
        if (!is(Mistake::no_proxy_fence)) gpu::fence_proxy_async();
        if (!is(Mistake::no_fence_before_S_is_read)) gpu::tcgen05_fence_before_thread_sync();
        gpu::mbarrier_arrive(smem.S_read());
        for (int i = 0; i < n / 2; ++i) p[i] = gpu::cvt_rn_x2<bf16>(x[2 * i], x[2 * i + 1]);
        if (round > 0) {
            if (!is(Mistake::no_wait_for_O_before_P)) gpu::mbarrier_wait_parity(smem.O_full(), (round - 1) % 2);
            if (!is(Mistake::no_fence_after_O)) gpu::tcgen05_fence_after_thread_sync();
        }
        gpu::tcgen05_st(P, p);
        if (round > 0) {
            gpu::tcgen05_ld(o, O);
            gpu::tcgen05_wait_ld(o);
            gpu::tcgen05_st(O, o);
        }
        if (!is(Mistake::no_wait_st)) gpu::tcgen05_wait_st();
        if (!is(Mistake::no_fence_before_P_is_ready)) gpu::tcgen05_fence_before_thread_sync();
        gpu::mbarrier_arrive(smem.P_ready());
    }
    if (is(Mistake::dealloc_without_wait_for_O)) gpu::mbarrier_wait_parity(smem.S_full(), 0);  // of the last round
    if (is(Mistake::dealloc_without_wait_for_O)) return;
    gpu::mbarrier_wait_parity(smem.O_full(), (rounds - 1) % 2);
    gpu::tcgen05_fence_after_thread_sync();
    gpu::tcgen05_ld(o, O);
    gpu::tcgen05_wait_ld(o);
    gpu::tcgen05_fence_before_thread_sync();
    for (int i = 0; i < 64; ++i) out[threadIdx.x * 64 + i] = o[i];
}

void attention(Mistake mistake, float* out) {
    const auto is = [&](Mistake m) { return m == mistake; };
    auto& smem = gpu::shared_memory<Shared>();
    for (int i = threadIdx.x; i < 128 * 64; i += threads) smem.Q(i / 64, i % 64) = gpu::cvt_rn<bf16>(float(i % 3 - 1));
    for (int i = threadIdx.x; i < n * 64; i += threads) {
        smem.K(i / 64, i % 64) = gpu::cvt_rn<bf16>(i % 64 / 8 == i / 512);
        smem.V(i / 64, i % 64) = gpu::cvt_rn<bf16>(float(i % 5 - 2));
    }
    gpu::fence_proxy_async();
    if (threadIdx.x == 0) {
        gpu::mbarrier_init(smem.S_full(), 1);
        gpu::mbarrier_init(smem.S_read(), 128);
        gpu::mbarrier_init(smem.P_ready(), 128);
        gpu::mbarrier_init(smem.O_full(), 1);
        if (!is(Mistake::no_fence_of_mbarriers)) gpu::fence_mbarrier_init();
    }
    if (gpu::warp_id() == 4) gpu::tcgen05_alloc<256>(smem.base.address(0));
    gpu::bar_sync();
    if (gpu::warp_id() == 4) {
        issue(smem, mistake);
        if (is(Mistake::exits_without_commit)) return;
    } else {
        own_row(smem, mistake, out);
    }
    gpu::bar_sync();
    if (gpu::warp_id() == 0) gpu::tcgen05_dealloc<256>(smem.base(0));
}

/// The same by loops.
std::vector<float> expected() {
    std::vector<float> result(128 * 64), K(n * 64);
    for (int i = 0; i < n * 64; ++i) K[i] = i % 64 / 8 == i / 512;
    for (int round = 0; round < rounds; ++round) {
        for (int i = 0; i < 128; ++i)
            for (int j = 0; j < n; ++j) {
                float s = 0;
                for (int k = 0; k < 64; ++k) s += float((i * 64 + k) % 3 - 1) * K[j * 64 + k];
                for (int c = 0; c < 64; ++c) result[i * 64 + c] += s * float((j * 64 + c) % 5 - 2);
            }
        K[9 * 64 + 3] = K[9 * 64 + 4] = 1;  // by thread 9, when S has been read
    }
    return result;
}

TEST(Tcgen05Rules, TheRightWayIsRightInEveryOrder) {
    const std::vector<float> right = expected();
    for (std::uint64_t seed = 1; seed <= 100; ++seed)
        for (const auto schedule : {emulator::Schedule::random, emulator::Schedule::priority}) {
            ScopedOptions scoped(schedule, seed);
            std::vector<float> out(128 * 64);
            ASSERT_EQ(report_of(1, threads, sizeof(Shared), attention, Mistake::none, out.data()), "");
            ASSERT_EQ(out, right);
        }
}

TEST(Tcgen05Rules, EachMistakeIsReported) {
    std::vector<float> out(128 * 64);
    // The words of any of the reports that a mistake may get, whichever comes first.
    const auto expect = [&](Mistake mistake, const std::vector<const char*>& words) {
        for (const auto& options : emulator::standard_schedules()) {
            ScopedOptions scoped(options);
            const std::string report = report_of(1, threads, sizeof(Shared), attention, mistake, out.data());
            EXPECT_TRUE(std::any_of(words.begin(), words.end(),
                                    [&](const char* each) { return report.find(each) != report.npos; }))
                << words[0] << "\n"
                << report;
        }
    };
    const char* const no_after = "has been told that it is done, but no tcgen05.fence::after_thread_sync follows";
    const char* const not_waited_for = "has not waited for the mbarrier of its commit";
    const char* const no_barrier = "no barrier lies between its tcgen05.fence::before_thread_sync and this";
    const char* const not_written = "nobody has written column";
    expect(Mistake::no_wait_for_S, {not_waited_for, not_written});
    expect(Mistake::no_fence_after_S, {no_after});
    expect(Mistake::S_not_waited_for_in_registers, {"no tcgen05.wait::ld has covered it"});
    expect(Mistake::no_fence_before_S_is_read,
           {"no tcgen05.fence::before_thread_sync follows its tcgen05.wait::ld", no_barrier});
    expect(Mistake::no_wait_for_O_before_P, {not_waited_for, "no tcgen05.commit has followed it", not_written});
    expect(Mistake::no_fence_after_O, {no_after});
    expect(Mistake::no_wait_st, {"no tcgen05.wait::st has covered it"});
    expect(Mistake::no_fence_before_P_is_ready,
           {"no tcgen05.fence::before_thread_sync follows its tcgen05.wait::st", no_barrier});
    expect(Mistake::operand_overwritten_early,
           {"may still be reading there: no wait for the mbarrier of a tcgen05.commit that covers it lies between",
            "thread 7 (warp 0, lane 7) wrote there"});
    expect(Mistake::no_proxy_fence, {"no fence.proxy.async of that thread lies between"});
    // S is complete twice, and nobody has waited for the first.
    const char *const twice = "but nobody has waited for phase", *const two_off = "two phases off, parities repeat";
    expect(Mistake::no_wait_for_S_read, {twice, two_off, "wait::ld", no_barrier, not_waited_for});
    expect(Mistake::no_fence_after_S_read, {no_after});
    expect(Mistake::no_wait_for_P, {not_written, "wait::st", no_barrier});
    expect(Mistake::no_fence_after_P, {no_after});
    expect(Mistake::no_commit_of_S, {"deadlock: no thread can go on"});
    expect(Mistake::arrives_instead_of_commit, {"no tcgen05.commit has followed it"});
    expect(Mistake::another_lane_commits, {"tcgen05.commit: this thread has ordered no product and no copy before it"});
    expect(Mistake::whole_warp_issues, {"both are of one warp, of which one thread executes the instruction for all"});
    expect(Mistake::commits_twice, {twice, two_off, not_waited_for, "is on its way to its shared memory"});
    expect(Mistake::no_commit_of_O, {"deadlock: no thread can go on", "no tcgen05.commit has followed"});
    expect(Mistake::exits_without_commit,
           {"the thread exits with 4 products or copies in tensor memory that no tcgen05.commit has followed"});
    expect(Mistake::another_shape_in_flight, {"of a thread's products only those of the same D and shape follow each"});
    expect(Mistake::A_from_a_product_in_flight, {"no tcgen05.commit has followed it"});
    expect(Mistake::D_over_A_in_flight, {"reads column"});
    expect(Mistake::copy_over_A_in_flight, {"reads column"});
    expect(Mistake::S_accumulates_at_first, {not_written});
    expect(Mistake::dealloc_without_wait_for_O, {"tcgen05.dealloc of lanes 0-127"});
    expect(Mistake::no_fence_of_mbarriers, {"its thread has not executed fence.mbarrier_init since"});
    expect(Mistake::mbarrier_invalidated,
           {"is to count tcgen05.commit issued by", "is in use", "there is no live mbarrier"});
}

}  // namespace
