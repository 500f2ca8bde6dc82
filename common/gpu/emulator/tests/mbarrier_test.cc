// mbarriers: phases, parities, bytes, their life from init to inval, and each misuse by name.
#include <vector>

#include "common/gpu/emulator/tests/reports.h"

namespace {

using emulator::Schedule;
using testing::AllOf;
using testing::HasSubstr;

struct Shared {
    gpu::SharedTile<float, 4, 64> row;
    gpu::SharedArray<gpu::Mbarrier, 2> barrier;
    gpu::SharedTile<float, 1, 64> values;
};

struct Source {
    gpu::Buffer buffer{"source", 4 * 256};
    Source() { buffer.write(std::vector<float>(4 * 64, 3.0f).data(), 4 * 256); }
    gpu::Matrix<const float> rows() const { return buffer.tensor<const float>(0, 0, 64, 64).matrix(0, 0, 0, 4); }
};

/// One thread begins: barrier 0 with `count` arrivals, seen by all.
Shared& start(int count) {
    auto& shared = gpu::shared_memory<Shared>();
    if (threadIdx.x == 0) {
        gpu::mbarrier_init(shared.barrier.address(0), count);
        gpu::fence_mbarrier_init();
    }
    gpu::bar_sync();
    return shared;
}

int all_schedules() { return static_cast<int>(emulator::standard_schedules().size()); }

template <class... Parameters, class... Arguments>
void expect_reports(const std::string& words, int threads, void (*kernel)(Parameters...), Arguments... arguments) {
    EXPECT_EQ(schedules_that_report(words, threads, sizeof(Shared), kernel, arguments...), all_schedules()) << words;
}
template <class... Parameters, class... Arguments>
void expect_clean(int threads, void (*kernel)(Parameters...), Arguments... arguments) {
    EXPECT_EQ(schedules_that_report("", threads, sizeof(Shared), kernel, arguments...), 0);
}

// ---- phases and parities ----

void phases(std::vector<bool>* tries) {
    const std::uint32_t barrier = start(2).barrier.address(0);
    const auto look = [&](int parity) { tries->push_back(gpu::mbarrier_try_wait_parity(barrier, parity)); };
    look(0);
    gpu::mbarrier_wait_parity(barrier, 1);
    gpu::mbarrier_arrive(barrier);
    look(0);
    gpu::mbarrier_arrive(barrier);
    gpu::mbarrier_wait_parity(barrier, 0);
    look(1);
    gpu::mbarrier_arrive(barrier);
    gpu::mbarrier_arrive(barrier);
    gpu::mbarrier_wait_parity(barrier, 1);
    look(0);
}

TEST(Mbarrier, PhasesAndParitiesTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        std::vector<bool> tries;
        ASSERT_EQ(report_of(1, 1, sizeof(Shared), phases, &tries), "");
        EXPECT_THAT(tries, testing::ElementsAre(false, false, false, false));
    }
}

/// Bytes before and after their announcement; a phase waits for arrivals and for bytes.
void bytes_count(gpu::Matrix<const float> source, int order, float* out) {
    auto& shared = start(2);
    const std::uint32_t barrier = shared.barrier.address(0);
    const auto copy = [&](int row) { gpu::cp_async_bulk(shared.row.address(row, 0), source, row, 0, 256, barrier); };
    if (order == 0) copy(0);
    gpu::mbarrier_arrive_expect_tx(barrier, 256 + 128);
    if (order == 1) copy(0);
    gpu::cp_async_bulk(shared.row.address(1, 0), source, 1, 0, 128, barrier);
    gpu::mbarrier_arrive(barrier);
    if (order == 2) copy(0);
    gpu::mbarrier_wait_parity(barrier, 0);
    out[0] = shared.row(0, 63);
    out[1] = shared.row(1, 31);
}

TEST(Mbarrier, CountsBytesTiny) {
    const Source source;
    for (int order = 0; order < 3; ++order) {
        float out[2];
        expect_clean(1, bytes_count, source.rows(), order, out);
        EXPECT_EQ(out[0] + out[1], 6);
    }
}

void hand_over(float* sums, bool arrive_after_read) {
    auto& shared = start(32);
    const std::uint32_t barrier = shared.barrier.address(0);
    if (threadIdx.x < 32) {
        shared.values(0, threadIdx.x) = 1;
        gpu::mbarrier_arrive(barrier);
    } else {
        if (arrive_after_read) gpu::mbarrier_wait_parity(barrier, 0);
        float sum = 0;
        for (int i = 0; i < 32; ++i) sum += shared.values(0, i);
        sums[threadIdx.x - 32] = sum;
    }
}

TEST(Mbarrier, ArrivalsReleaseAndWaitsAcquireTiny) {
    float sums[32];
    expect_clean(64, hand_over, sums, true);
    for (const float sum : sums) EXPECT_EQ(sum, 32);
    expect_reports("", 64, hand_over, sums, false);
}

/// Thread 32 does not wait, but knows from another thread that did.
void third_party(bool barrier_between) {
    auto& shared = start(1);
    const std::uint32_t barrier = shared.barrier.address(0);
    if (threadIdx.x == 0) {
        shared.values(0, 0) = 1;
        gpu::mbarrier_arrive(barrier);
    }
    if (threadIdx.x == 64) gpu::mbarrier_wait_parity(barrier, 0);
    if (threadIdx.x >= 32 && barrier_between) gpu::barrier_sync(1, 64);
    if (threadIdx.x == 32) static_cast<void>(float{shared.values(0, 0)});
}

TEST(Mbarrier, OrderIsHandedOnAndNotGuessedTiny) {
    expect_clean(96, third_party, true);
    expect_reports("shared memory offset", 96, third_party, false);
}

// ---- waits ----

/// Thread 1 waits after two phases, of which the others have told it or not.
void late_wait(bool told, int parity) {
    const std::uint32_t barrier = start(1).barrier.address(0);
    if (threadIdx.x == 0) {
        for (int phase = 0; phase < 2; ++phase) {
            gpu::mbarrier_arrive(barrier);
            gpu::mbarrier_wait_parity(barrier, phase);
        }
    }
    gpu::vote_sync_ballot(true);  // orders time and no memory
    if (told) gpu::bar_warp_sync(gpu::all_lanes);
    if (threadIdx.x == 1) gpu::mbarrier_wait_parity(barrier, parity);
}

TEST(Mbarrier, TwoPhasesOffTiny) {
    expect_clean(32, late_wait, true, 1);
    expect_reports(
        "mbarrier.try_wait.parity with parity 0: the thread has seen no phase of the mbarrier at shared memory offset "
        "1024 complete, so that it waits for phase 0, and phase 1 is complete already: two phases off",
        32, late_wait, false, 0);
    expect_reports("so that it waits for phase -1, and phase 1 is complete already", 32, late_wait, false, 1);
}

void wrong_parity() {
    const std::uint32_t barrier = start(2).barrier.address(0);
    gpu::mbarrier_arrive(barrier);
    gpu::mbarrier_wait_parity(barrier, 0);
    if (threadIdx.x == 0) gpu::mbarrier_wait_parity(barrier, 1);  // nobody arrives any more
}

TEST(Mbarrier, WaitForEverShowsTheBarrierTiny) {
    expect_reports("wait for mbarrier.try_wait.parity at", 2, wrong_parity);
    ScopedOptions scoped(Schedule::in_order);
    EXPECT_THAT(report_of(1, 2, sizeof(Shared), wrong_parity),
                AllOf(HasSubstr("deadlock"), HasSubstr("the mbarrier at shared memory offset 1024: phase 1 waits for "
                                                       "2 of 2 arrivals and 0 bytes")));
}

/// A thread that only looks in, and then does what others wait for.
void peek(int* failures) {
    const std::uint32_t barrier = start(1).barrier.address(0);
    if (threadIdx.x == 0) {
        while (!gpu::mbarrier_try_wait_parity(barrier, 0)) {
            ++*failures;
            gpu::mbarrier_arrive(barrier);
        }
    }
}

TEST(Mbarrier, TryWaitGivesUpTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        int failures = 0;
        EXPECT_EQ(report_of(1, 1, sizeof(Shared), peek, &failures), "");
        EXPECT_GE(failures, 1);
    }
}

/// A result that is not looked at: the wait has failed now and then.
void try_once(bool* complete) {
    const std::uint32_t barrier = start(1).barrier.address(0);
    gpu::mbarrier_arrive(barrier);
    *complete = gpu::mbarrier_try_wait_parity(barrier, 0);
}

TEST(Mbarrier, TryWaitMayFailWithoutReason) {
    int failures = 0;
    for (int seed = 1; seed <= 100; ++seed) {
        ScopedOptions scoped(Schedule::random, seed);
        bool complete = true;
        EXPECT_EQ(report_of(1, 1, sizeof(Shared), try_once, &complete), "");
        failures += !complete;
    }
    EXPECT_GT(failures, 0);
    EXPECT_LT(failures, 50);
}

/// Rows on their way from a producer, thread 0, to a consumer, thread 32, through one place: what the two wait for.
struct Parities {
    int full = 0, empty = 1;  // of the first turn; they flip
    bool full_flips = true, empty_flips = true;
};
void two_turns(gpu::Matrix<const float> source, Parities parities, float* sum) {
    auto& shared = gpu::shared_memory<Shared>();
    const std::uint32_t full = shared.barrier.address(0), empty = shared.barrier.address(1);
    if (threadIdx.x == 0) {
        gpu::mbarrier_init(full, 1);
        gpu::mbarrier_init(empty, 1);
        gpu::fence_mbarrier_init();
    }
    gpu::bar_sync();
    for (int turn = 0; turn < 2; ++turn) {
        if (threadIdx.x == 0) {
            gpu::mbarrier_wait_parity(empty, parities.empty ^ (parities.empty_flips ? turn : 0));
            gpu::mbarrier_arrive_expect_tx(full, 256);
            gpu::cp_async_bulk(shared.row.address(0, 0), source, turn, 0, 256, full);
        }
        if (threadIdx.x == 32) {
            gpu::mbarrier_wait_parity(full, parities.full ^ (parities.full_flips ? turn : 0));
            *sum += shared.row(0, 63);
            gpu::mbarrier_arrive(empty);
        }
    }
}

TEST(Mbarrier, WrongParityTiny) {
    const Source source;
    float sum = 0;
    expect_clean(64, two_turns, source.rows(), Parities{}, &sum);
    EXPECT_EQ(sum, 2 * 3 * all_schedules());
    const auto reports = [&](const char* words, Parities parities) {
        expect_reports(words, 64, two_turns, source.rows(), parities, &sum);
    };
    // The words are those of the rule that the schedule comes to first.
    reports("deadlock", {.empty = 0});                                // the place is never empty
    reports("", {.full = 1});                                         // full before anything has come
    reports("nobody has waited for phase 0", {.full_flips = false});  // still full of what came first
    reports("", {.empty_flips = false});                              // empty while it is read
}

/// Two rows are counted by one phase, for which `announced` bytes are announced in place of 512.
void announced_bytes(gpu::Matrix<const float> source, int announced) {
    auto& shared = start(1);
    const std::uint32_t barrier = shared.barrier.address(0);
    if (threadIdx.x == 0) {
        gpu::mbarrier_arrive_expect_tx(barrier, announced);
        for (int row = 0; row < 2; ++row) gpu::cp_async_bulk(shared.row.address(row, 0), source, row, 0, 256, barrier);
    }
    gpu::mbarrier_wait_parity(barrier, 0);
    for (int row = 0; row < 2; ++row) static_cast<void>(float{shared.row(row, 0)});
}

TEST(Mbarrier, WrongNumberOfBytesTiny) {
    const Source source;
    expect_clean(2, announced_bytes, source.rows(), 512);
    expect_reports("phase 0 waits for 0 of 1 arrivals and 16 bytes", 2, announced_bytes, source.rows(), 528);
    expect_reports("phase 0 waits for 0 of 1 arrivals and -16 bytes (more have come than were announced)", 2,
                   announced_bytes, source.rows(), 496);
    expect_reports("read of 4 bytes at shared memory offset ", 2, announced_bytes, source.rows(), 256);
    expect_reports("", 2, announced_bytes, source.rows(), 0);
}

// ---- arrivals ----

void too_many_arrivals(gpu::Matrix<const float> source) {
    auto& shared = start(1);
    gpu::mbarrier_arrive_expect_tx(shared.barrier.address(0), 512);
    gpu::cp_async_bulk(shared.row.address(0, 0), source, 0, 0, 256, shared.barrier.address(0));
    gpu::mbarrier_arrive(shared.barrier.address(0));
}
void unseen_phase() {
    const std::uint32_t barrier = start(1).barrier.address(0);
    gpu::mbarrier_arrive(barrier);
    gpu::mbarrier_arrive(barrier);
}
void announce(int bytes, int times) {
    const std::uint32_t barrier = start(4).barrier.address(0);
    for (int i = 0; i < times; ++i) gpu::mbarrier_arrive_expect_tx(barrier, bytes);
}

TEST(Mbarrier, ArrivalsTiny) {
    const Source source;
    expect_reports("one arrival too many, the mbarrier at shared memory offset 1024 has had its 1 of phase 0", 1,
                   too_many_arrivals, source.rows());
    expect_reports(
        "an arrival for phase 1 of the mbarrier at shared memory offset 1024, but nobody has waited for phase 0", 1,
        unseen_phase);
    expect_reports("would wait for 1200000 bytes", 1, announce, 600000, 2);
    expect_reports("mbarrier.arrive.expect_tx of -16 bytes", 1, announce, -16, 1);
    expect_reports("mbarrier.arrive.expect_tx of 1048576 bytes", 1, announce, 1 << 20, 1);
}

// ---- life ----

void raw_init(int shift, int count) {
    auto& shared = gpu::shared_memory<Shared>();
    gpu::mbarrier_init(shared.barrier.address(0) + shift, count);
}
void init_twice(bool inval) {
    const std::uint32_t barrier = start(1).barrier.address(0);
    if (inval) gpu::mbarrier_inval(barrier);
    gpu::mbarrier_init(barrier, 1);
    gpu::mbarrier_arrive(barrier);
    gpu::mbarrier_wait_parity(barrier, 0);
}
void inval_in_use() {
    const std::uint32_t barrier = start(2).barrier.address(0);
    gpu::mbarrier_arrive(barrier);
    gpu::mbarrier_inval(barrier);
}
void inval_under_way(gpu::Matrix<const float> source) {
    auto& shared = start(1);
    gpu::cp_async_bulk(shared.row.address(0, 0), source, 0, 0, 256, shared.barrier.address(0));
    gpu::mbarrier_inval(shared.barrier.address(0));
}
void not_initialised() { gpu::mbarrier_arrive(gpu::shared_memory<Shared>().barrier.address(1)); }
void touch(bool write, bool inval) {
    auto& shared = start(1);
    if (inval) gpu::mbarrier_inval(shared.barrier.address(0));
    float* const word = reinterpret_cast<float*>(&shared.barrier.data[0]) + 1;
    const gpu::SharedReference<float> reference{word, emulator::Site::current()};
    if (write) reference = 1;
    if (!write) static_cast<void>(float{reference});
}
void use_without_barrier() {
    auto& shared = gpu::shared_memory<Shared>();
    if (threadIdx.x == 0) gpu::mbarrier_init(shared.barrier.address(0), 32);
    gpu::vote_sync_ballot(true);
    gpu::mbarrier_arrive(shared.barrier.address(0));
}
void copy_without_fence(gpu::Matrix<const float> source, bool fence, bool barrier) {
    auto& shared = gpu::shared_memory<Shared>();
    if (threadIdx.x == 0) gpu::mbarrier_init(shared.barrier.address(0), 1);
    if (threadIdx.x == 0 && fence) gpu::fence_mbarrier_init();
    if (barrier) gpu::bar_sync();
    gpu::vote_sync_ballot(true);
    if (threadIdx.x == 1) {
        gpu::cp_async_bulk(shared.row.address(0, 0), source, 0, 0, 256, shared.barrier.address(0));
        gpu::mbarrier_arrive_expect_tx(shared.barrier.address(0), 256);
        gpu::mbarrier_wait_parity(shared.barrier.address(0), 0);
    }
}

TEST(Mbarrier, LifeTiny) {
    const Source source;
    expect_reports("is not a multiple of 8", 1, raw_init, 4, 1);
    expect_reports("mbarrier.init for 0 arrivals; allowed are 1 to 1048575", 1, raw_init, 0, 0);
    expect_reports("mbarrier.init for 1048576 arrivals", 1, raw_init, 0, 1 << 20);
    expect_reports("outside the CTA's shared memory", 1, raw_init, 4096, 1);
    expect_reports("is live; mbarrier.inval comes first", 1, init_twice, false);
    expect_clean(1, init_twice, true);
    expect_reports("mbarrier.inval: the mbarrier at shared memory offset 1024 is in use: phase 0 waits for 1 of 2", 1,
                   inval_in_use);
    expect_reports("mbarrier.inval: the mbarrier at shared memory offset 1024 is", 1, inval_under_way, source.rows());
    expect_reports("there is no live mbarrier at shared memory offset 1032", 1, not_initialised);
    for (const bool write : {false, true}) expect_reports("a live mbarrier is there", 1, touch, write, false);
    expect_clean(1, touch, true, true);
    expect_reports("nobody has written there", 1, touch, false, true);
    expect_reports("mbarrier.arrive: the mbarrier at shared memory offset 1024 was initialised at", 32,
                   use_without_barrier);
    expect_clean(32, copy_without_fence, source.rows(), true, true);
    expect_reports("its thread has not executed fence.mbarrier_init", 32, copy_without_fence, source.rows(), false,
                   true);
    expect_reports("no barrier lies between its fence.mbarrier_init and this use", 32, copy_without_fence,
                   source.rows(), true, false);
}

// ---- the end of a CTA ----

void half_arrived() { gpu::mbarrier_arrive(start(2).barrier.address(0)); }
void bytes_left(gpu::Matrix<const float> source) {
    auto& shared = start(2);
    gpu::mbarrier_arrive_expect_tx(shared.barrier.address(0), 512);
    gpu::cp_async_bulk(shared.row.address(0, 0), source, 0, 0, 256, shared.barrier.address(0));
    if (gpu::mbarrier_try_wait_parity(shared.barrier.address(0), 0)) return;
}
void nobody_waits(gpu::Matrix<const float> source) {
    auto& shared = start(1);
    gpu::mbarrier_arrive_expect_tx(shared.barrier.address(0), 256);
    gpu::cp_async_bulk(shared.row.address(0, 0), source, 0, 0, 256, shared.barrier.address(0));
}

TEST(Mbarrier, TheEndOfACtaTiny) {
    const Source source;
    expect_reports("is in the middle of a phase: phase 0 waits for 1 of 2 arrivals and 0 bytes", 1, half_arrived);
    expect_reports("the CTA ends while", 1, bytes_left, source.rows());
    expect_reports("the CTA ends while", 1, nobody_waits, source.rows());
    ScopedOptions early(Schedule::async_earliest);
    EXPECT_THAT(report_of(1, 1, sizeof(Shared), nobody_waits, source.rows()),
                HasSubstr("has counted copies or commits in phase 0 that nobody has waited for"));
    ScopedOptions late(Schedule::async_latest);
    EXPECT_THAT(report_of(1, 1, sizeof(Shared), nobody_waits, source.rows()),
                HasSubstr("cp.async.bulk issued by thread 0 (warp 0, lane 0) at"));
}

}  // namespace
