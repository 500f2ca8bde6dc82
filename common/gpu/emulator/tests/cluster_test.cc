// Clusters: ranks and addresses, their barrier, each other's shared memory, copies to several CTAs; each misuse by
// name.
#include <array>
#include <vector>

#include "common/gpu/emulator/tests/reports.h"
#include "common/gpu/panel_tile.h"

namespace {

using emulator::Schedule;
using testing::HasSubstr;

/// The report of a launch of clusters; empty if it broke no rule.
template <class... Parameters, class... Arguments>
std::string cluster_report(int ctas, int cluster, int threads, std::size_t shared_bytes, void (*kernel)(Parameters...),
                           Arguments... arguments) {
    try {
        gpu::launch({"kernel_under_test", ctas, threads, shared_bytes, cluster}, kernel, arguments...);
    } catch (const gpu::Error& error) {
        return error.what();
    }
    return "";
}

/// Under how many of the standard schedules it is reported, in these words.
template <class... Parameters, class... Arguments>
int reports(const std::string& words, int threads, std::size_t shared_bytes, void (*kernel)(Parameters...),
            Arguments... arguments) {
    int n = 0;
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        const std::string report = cluster_report(4, 2, threads, shared_bytes, kernel, arguments...);
        if (report.empty()) continue;
        ++n;
        EXPECT_THAT(report, HasSubstr(words));
    }
    return n;
}
int all() { return static_cast<int>(emulator::standard_schedules().size()); }

struct Numbers {
    gpu::SharedTile<float, 1, 64> values;
    gpu::SharedArray<gpu::Mbarrier, 2> barrier;
};

void whole_cluster() {
    gpu::barrier_cluster_arrive();
    gpu::barrier_cluster_wait();
}

// ---- ranks, addresses, launches ----

struct Facts {
    int rank;
    std::uint32_t address, of_next;
};

void facts(Facts* out) {
    auto& shared = gpu::shared_memory<Numbers>();
    const std::uint32_t address = shared.values.address(0, 1);
    out[blockIdx.x] = {gpu::cluster_ctarank(), address, gpu::mapa(address, (gpu::cluster_ctarank() + 1) % 4)};
}

TEST(Cluster, RanksAndAddressesTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        Facts out[8];
        ASSERT_EQ(cluster_report(8, 4, 1, sizeof(Numbers), facts, out), "");
        for (int cta = 0; cta < 8; ++cta) {
            EXPECT_EQ(out[cta].rank, cta % 4);
            EXPECT_EQ(out[cta].address >> 24, static_cast<unsigned>(cta % 4));
            EXPECT_EQ(out[cta].of_next, out[cta / 4 * 4 + (cta + 1) % 4].address);
        }
    }
}

TEST(Cluster, LaunchesTiny) {
    Facts out[16];
    for (const int cluster : {0, 9})
        EXPECT_THAT(cluster_report(18, cluster, 1, sizeof(Numbers), facts, out),
                    HasSubstr("a cluster has 1 to 8, and they divide the launch"));
    EXPECT_THAT(cluster_report(6, 4, 1, sizeof(Numbers), facts, out),
                HasSubstr("clusters of 4 CTAs in a launch of 6; a cluster has 1 to 8, and they divide the launch"));
    EXPECT_EQ(cluster_report(16, 8, 1, sizeof(Numbers), facts, out), "");
    EXPECT_THAT(cluster_report(2, 2, 1, sizeof(Numbers), facts, out), HasSubstr("mapa to rank"));
}

// ---- each other's shared memory ----

/// What the exchange leaves out.
struct Without {
    bool first_barrier = false, middle_barrier = false, last_barrier = false, last_wait = false;
};

/// Each thread writes into the next CTA and reads what the other one wrote there.
void exchange(float* results, Without without) {
    auto& shared = gpu::shared_memory<Numbers>();
    const int rank = gpu::cluster_ctarank();
    const std::uint32_t address = shared.values.address(0, threadIdx.x);
    if (!without.first_barrier) whole_cluster();
    gpu::st_shared_cluster(gpu::mapa(address, 1 - rank), static_cast<float>(100 * rank + threadIdx.x));
    if (!without.middle_barrier) whole_cluster();
    const float own = shared.values(0, 63 - threadIdx.x);
    const float other = gpu::ld_shared_cluster(gpu::mapa(address, 1 - rank));
    results[blockIdx.x * 64 + threadIdx.x] = own * 1000 + other;
    if (!without.last_barrier) gpu::barrier_cluster_arrive();
    if (!without.last_barrier && !without.last_wait) gpu::barrier_cluster_wait();
}

TEST(Cluster, ExchangeTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        std::array<float, 4 * 64> results{};
        gpu::reset_counters();
        ASSERT_EQ(cluster_report(4, 2, 64, sizeof(Numbers), exchange, results.data(), Without{}), "");
        for (int cta = 0; cta < 4; ++cta)
            for (int t = 0; t < 64; ++t) {
                const int from_other = 100 * (1 - cta % 2) + 63 - t, mine = 100 * (cta % 2) + t;
                EXPECT_EQ(results[cta * 64 + t], static_cast<float>(from_other * 1000 + mine));
            }
        EXPECT_EQ(gpu::counters()->barriers, 2u * 3);
        EXPECT_EQ(gpu::counters()->shared_written, 4u * 64 * 4);
        EXPECT_EQ(gpu::counters()->shared_read, 2u * 4 * 64 * 4);
    }
}

TEST(Cluster, EachDeletionIsReportedTiny) {
    std::array<float, 4 * 64> results{};
    const auto run = [&](const std::string& words, Without without) {
        EXPECT_EQ(reports(words, 64, sizeof(Numbers), exchange, results.data(), without), all()) << words;
    };
    run("which need not have started: no barrier of the cluster lies between", {.first_barrier = true});
    run("at shared memory offset", {.middle_barrier = true});
    run("", {.last_barrier = true});
    run("", {.last_wait = true});
}

/// CTA 1 reads CTA 0, tells it or not by an mbarrier of CTA 0, and CTA 0 waits for that or not.
void last_visit(bool tells, bool waits) {
    auto& shared = gpu::shared_memory<Numbers>();
    const int rank = gpu::cluster_ctarank();
    if (threadIdx.x == 0) {
        gpu::mbarrier_init(shared.barrier.address(0), 1);
        gpu::fence_mbarrier_init();
        shared.values(0, 0) = 1;
    }
    whole_cluster();
    if (threadIdx.x != 0) return;
    if (rank == 1) {
        static_cast<void>(gpu::ld_shared_cluster(gpu::mapa(shared.values.address(0, 0), 0)));
        if (tells) gpu::mbarrier_arrive_cluster(gpu::mapa(shared.barrier.address(0), 0));
    } else if (waits) {
        gpu::mbarrier_wait_parity(shared.barrier.address(0), 0);
    }
}

TEST(Cluster, ACtaStaysWhileOthersVisitItTiny) {
    EXPECT_EQ(reports("", 32, sizeof(Numbers), last_visit, true, true), 0);
    EXPECT_EQ(reports("", 32, sizeof(Numbers), last_visit, true, false), all());
    EXPECT_EQ(reports("", 32, sizeof(Numbers), last_visit, false, false), all());
    ScopedOptions in_order(Schedule::in_order);  // CTA 0 is the first to end
    EXPECT_THAT(cluster_report(2, 2, 32, sizeof(Numbers), last_visit, false, false),
                HasSubstr("ld.shared::cluster in the shared memory of CTA 0, which has exited"));
    ScopedOptions reverse(Schedule::reverse);  // CTA 0 is the last
    EXPECT_THAT(cluster_report(2, 2, 32, sizeof(Numbers), last_visit, false, false),
                HasSubstr("the CTA ends although thread 0 (warp 0, lane 0) of CTA 1 touches its shared memory"));
}

// ---- barrier.cluster ----

void barrier_misuse(int kind) {
    if (kind == 0) gpu::barrier_cluster_wait();
    gpu::barrier_cluster_arrive();
    if (kind == 1) gpu::barrier_cluster_arrive();
    if (kind == 2 && gpu::cluster_ctarank() == 1) gpu::bar_sync();
    if (kind == 3 && threadIdx.x < 32) gpu::barrier_sync(1, 64);
    gpu::barrier_cluster_wait();
}
void half_a_warp() {
    if (gpu::lane_id() < 16) gpu::barrier_cluster_arrive();
    gpu::bar_warp_sync(gpu::all_lanes);
}
/// Threads that have exited are not waited for.
void some_exit(int* passed) {
    if (gpu::cluster_ctarank() == 1 && threadIdx.x >= 32) return;
    whole_cluster();
    if (threadIdx.x == 0) ++passed[blockIdx.x];
}
void absent() {
    if (gpu::cluster_ctarank() == 0) whole_cluster();
    if (gpu::cluster_ctarank() == 1) gpu::barrier_sync(1, 64);
}

TEST(Cluster, BarrierTiny) {
    EXPECT_EQ(reports("barrier.cluster.wait without a barrier.cluster.arrive", 64, 0, barrier_misuse, 0), all());
    EXPECT_EQ(reports("barrier.cluster.arrive a second time", 64, 0, barrier_misuse, 1), all());
    EXPECT_EQ(reports("", 64, 0, barrier_misuse, 2), 0);
    EXPECT_EQ(reports("deadlock", 64, 0, barrier_misuse, 3), all());
    EXPECT_EQ(reports("diverged", 32, 0, half_a_warp), all());
    int passed[4] = {};
    EXPECT_EQ(reports("", 64, 0, some_exit, passed), 0);
    for (const int times : passed) EXPECT_EQ(times, all());
    EXPECT_EQ(reports("", 32, 0, absent), all());
}

// ---- mbarriers and copies across CTAs ----

constexpr int rows = 16, columns = 64, tile_bytes = rows * columns * 2, tiles = 5;

struct Pipe {
    gpu::PanelTile<gpu::bf16, rows, columns> slot[2];
    gpu::SharedArray<gpu::Mbarrier, 2> full, empty;
};

/// What the shared ring leaves out or gets wrong.
struct Multicast {
    bool first_barrier = true, last_barrier = true, remote_arrive = true, expects = true;
    int mask = 3, arrivals = 4;
};

/// Two CTAs share every tile: CTA 0 has it copied to both, when both have told it that the slot is free.
void shared_ring(gpu::TensorMap map, float* sums, Multicast m) {
    auto& shared = gpu::shared_memory<Pipe>();
    const int rank = gpu::cluster_ctarank();
    if (threadIdx.x == 0) {
        for (int s = 0; s < 2; ++s) {
            gpu::mbarrier_init(shared.full.address(s), 1);
            gpu::mbarrier_init(shared.empty.address(s), m.arrivals);
        }
        gpu::fence_mbarrier_init();
    }
    if (m.first_barrier) whole_cluster();
    else gpu::bar_sync();
    if (threadIdx.x >= 64) {
        for (int tile = 0; tile < tiles && gpu::lane_id() == 0; ++tile) {
            const int s = tile % 2, parity = tile / 2 % 2;
            if (rank == 1 && !m.expects) break;
            if (rank == 1 && tile >= 2)  // this CTA's full barrier has been seen complete by its own consumers
                gpu::mbarrier_wait_parity(shared.full.address(s), parity ^ 1);
            if (rank == 0) gpu::mbarrier_wait_parity(shared.empty.address(s), parity ^ 1);
            gpu::mbarrier_arrive_expect_tx(shared.full.address(s), tile_bytes);
            if (rank == 0)
                gpu::cp_async_bulk_tensor_5d_multicast(shared.slot[s].address(), map, 0, tile * rows, 0, 0, 0,
                                                       shared.full.address(s), static_cast<std::uint16_t>(m.mask));
        }
    } else {
        float sum = 0;
        for (int tile = 0; tile < tiles; ++tile) {
            const int s = tile % 2, parity = tile / 2 % 2;
            gpu::mbarrier_wait_parity(shared.full.address(s), parity);
            for (int row = 0; row < rows; ++row) sum += gpu::to_float(gpu::bf16(shared.slot[s](row, threadIdx.x)));
            gpu::bar_warp_sync(gpu::all_lanes);
            if (gpu::lane_id() == 0 && (rank == 0 || m.remote_arrive))
                gpu::mbarrier_arrive_cluster(gpu::mapa(shared.empty.address(s), 0));
        }
        sums[blockIdx.x * 64 + threadIdx.x] = sum;
    }
    if (m.last_barrier) whole_cluster();
}

struct Source {
    gpu::Buffer buffer{"source", tiles* tile_bytes};
    Source() {
        std::vector<gpu::bf16> values(tiles * rows * columns);
        for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = gpu::cvt_rn<gpu::bf16>(static_cast<float>(i * 5 % 127));
        buffer.write(values.data(), buffer.bytes());
    }
    gpu::TensorMap map() const {
        return gpu::tile_map("source", buffer.tensor<gpu::bf16>(0, 0, columns, columns), 1, 1, tiles * rows, rows);
    }
};

TEST(Cluster, SharedRingTiny) {
    const Source source;
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        std::array<float, 4 * 64> sums{};
        gpu::reset_counters();
        ASSERT_EQ(cluster_report(4, 2, 96, sizeof(Pipe), shared_ring, source.map(), sums.data(), Multicast{}), "");
        for (int i = 0; i < 4 * 64; ++i) {
            float expected = 0;
            for (int row = 0; row < tiles * rows; ++row)
                expected += static_cast<float>((row * columns + i % 64) * 5 % 127);
            EXPECT_EQ(sums[i], expected);
        }
        EXPECT_EQ(gpu::counters()->tensors[0].requested_read, 2u * tiles * tile_bytes);  // once a cluster
        EXPECT_EQ(gpu::counters()->shared_written, 4u * tiles * tile_bytes);
    }
}

TEST(Cluster, MisusesOfTheSharedRing) {
    const Source source;
    std::array<float, 4 * 64> sums{};
    const auto run = [&](const std::string& words, Multicast m) {
        EXPECT_EQ(reports(words, 96, sizeof(Pipe), shared_ring, source.map(), sums.data(), m), all()) << words;
    };
    run("mbarrier", {.first_barrier = false});
    run("", {.last_barrier = false});
    run("deadlock", {.remote_arrive = false});
    run("cp.async.bulk.tensor of 2048 bytes at shared memory offset", {.remote_arrive = false, .arrivals = 2});
    run("", {.expects = false});
    run("deadlock", {.mask = 1});
    run("there is no CTA of rank 2 in a cluster of 2", {.mask = 7});
}

void remote_wait() {
    auto& shared = gpu::shared_memory<Numbers>();
    if (threadIdx.x == 0) gpu::mbarrier_init(shared.barrier.address(0), 1);
    if (threadIdx.x == 0) gpu::fence_mbarrier_init();
    whole_cluster();
    if (threadIdx.x == 0)
        gpu::mbarrier_try_wait_parity(gpu::mapa(shared.barrier.address(0), 1 - gpu::cluster_ctarank()), 0);
    whole_cluster();
}

TEST(Cluster, OnlyTheOwnCtaWaitsTiny) {
    EXPECT_EQ(reports("outside the CTA's shared memory", 32, sizeof(Numbers), remote_wait), all());
}

}  // namespace
