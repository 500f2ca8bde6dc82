// Allocation of tensor memory: sizes, places, who may use it when, and that it is given back.
#include <set>

#include "common/gpu/emulator/tests/reports.h"

namespace {

using emulator::Site;
using testing::HasSubstr;

struct Shared {
    gpu::SharedArray<std::uint32_t, 4> base;
};

void alloc(Shared& smem, int columns, int i = 0) {
    gpu::bar_warp_sync(0xFFFFFFFF);  // all lanes have read what was there
    emulator::tcgen05_alloc(smem.base.address(i), columns, 1, Site::current());
    gpu::bar_warp_sync(0xFFFFFFFF);
}
void dealloc(std::uint32_t address, int columns) { emulator::tcgen05_dealloc(address, columns, 1, Site::current()); }

/// Warp 0 does it.
void by_a_warp(void (*body)(Shared&)) {
    auto& smem = gpu::shared_memory<Shared>();
    if (gpu::warp_id() == 0) body(smem);
}

void expect_report(const char* words, void (*body)(Shared&)) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        EXPECT_THAT(report_of(1, 32, sizeof(Shared), by_a_warp, body), HasSubstr(words));
    }
}

TEST(TensorAlloc, SizesTiny) {
    expect_report("tcgen05.alloc of 16 columns: it is 32, 64, 128, 256 or 512", [](Shared& s) { alloc(s, 16); });
    expect_report("of 48 columns: it is 32", [](Shared& s) { alloc(s, 48); });
    expect_report("of 1024 columns: it is 32", [](Shared& s) { alloc(s, 1024); });
    expect_report("of 64 columns: the one before was of 32; they never become larger", [](Shared& s) {
        alloc(s, 32);
        alloc(s, 64, 1);
    });
    expect_report("of 64 columns: the one before was of 32", [](Shared& s) {
        alloc(s, 32);
        dealloc(s.base(0), 32);
        alloc(s, 64);
    });
    expect_report("of 32 columns: the CTA has 512 of 512 already, so it would wait for ever", [](Shared& s) {
        alloc(s, 256);
        alloc(s, 256, 1);
        alloc(s, 32, 2);
    });
}

TEST(TensorAlloc, PermitTiny) {
    expect_report("the CTA has executed tcgen05.relinquish_alloc_permit", [](Shared& s) {
        alloc(s, 32);
        gpu::tcgen05_relinquish_alloc_permit();
        alloc(s, 32, 1);
    });
}

TEST(TensorAlloc, AllIsGivenBackTiny) {
    expect_report("the CTA ends, and no tcgen05.dealloc has given back the 64 columns", [](Shared& s) {
        alloc(s, 128);
        alloc(s, 64, 1);
        dealloc(s.base(0), 128);
    });
    expect_report("which are no allocation; there are 128 at", [](Shared& s) {
        alloc(s, 128);
        dealloc(s.base(0), 64);
    });
    expect_report("which are no allocation; there are 128 at", [](Shared& s) {
        alloc(s, 128);
        dealloc(s.base(0) + 64, 64);
    });
    expect_report("which are no allocation; there are none", [](Shared& s) {
        alloc(s, 128);
        dealloc(s.base(0), 128);
        dealloc(s.base(0), 128);
    });
}

TEST(TensorAlloc, CellsAreThereFromAllocToDeallocTiny) {
    expect_report("tcgen05.st of lanes 0-31 of columns 500-500: allocated are none", [](Shared&) {
        const float x[1] = {};
        gpu::tcgen05_st(500, x);
    });
    expect_report("allocated are none", [](Shared& s) {
        const float x[1] = {};
        alloc(s, 32);
        dealloc(s.base(0), 32);
        gpu::tcgen05_st(s.base(0), x);
    });
    expect_report("nobody has written column", [](Shared& s) {
        float x[32] = {};
        alloc(s, 512);
        gpu::tcgen05_st(s.base(0), x);
        gpu::tcgen05_wait_st();
        dealloc(s.base(0), 512);
        alloc(s, 512);
        gpu::tcgen05_ld(x, s.base(0));
    });
    expect_report("tcgen05.dealloc of lanes 0-127", [](Shared& s) {
        float x[32] = {};
        alloc(s, 32);
        gpu::tcgen05_st(s.base(0), x);
        dealloc(s.base(0), 32);
    });
}

TEST(TensorAlloc, OperandsTiny) {
    expect_report("is not a multiple of 4",
                  [](Shared& s) { emulator::tcgen05_alloc(s.base.address(0) + 2, 32, 1, Site::current()); });
    expect_report("outside the CTA's shared memory", [](Shared& s) {
        emulator::tcgen05_alloc(s.base.address(0) + sizeof(Shared), 32, 1, Site::current());
    });
    expect_report("all lanes of a warp pass the same address",
                  [](Shared& s) { alloc(s, 32, gpu::lane_id() == 3 ? 1 : 0); });
    expect_report("the thread exits while lanes", [](Shared& s) {
        if (gpu::lane_id() != 3) gpu::tcgen05_alloc<32>(s.base.address(0));
    });
    expect_report("tcgen05.relinquish_alloc_permit with cta_group::2 in a kernel that has used cta_group::1",
                  [](Shared& s) {
                      alloc(s, 32);
                      gpu::tcgen05_relinquish_alloc_permit<2>();
                  });
    expect_report("with cta_group::2 in a cluster of 1",
                  [](Shared& s) { gpu::tcgen05_alloc<32, 2>(s.base.address(0)); });
    expect_report("tcgen05.st of 3 registers; it is 1, 2, 4, ... 128", [](Shared& s) {
        const float x[3] = {};
        alloc(s, 32);
        gpu::tcgen05_st(s.base(0), x);
    });
}

/// Warp 1 uses what warp 0 has allocated.
void used_by_another_warp(bool barrier) {
    auto& smem = gpu::shared_memory<Shared>();
    if (gpu::warp_id() == 0) gpu::tcgen05_alloc<32>(smem.base.address(0));
    if (barrier) gpu::bar_sync();
    if (gpu::warp_id() == 1) gpu::tcgen05_dealloc<32>(smem.base(0));
}

TEST(TensorAlloc, TheAddressIsAnOrdinaryStoreTiny) {
    const int all = static_cast<int>(emulator::standard_schedules().size());
    EXPECT_EQ(schedules_that_report("", 64, sizeof(Shared), used_by_another_warp, true), 0);
    EXPECT_EQ(schedules_that_report("read of 4 bytes at shared memory offset 0", 64, sizeof(Shared),
                                    used_by_another_warp, false),
              all);
}

/// Allocations of many sizes, freed in another order.
void allocate_much(std::uint32_t* bases) {
    auto& smem = gpu::shared_memory<Shared>();
    alloc(smem, 128, 0);
    alloc(smem, 128, 1);
    alloc(smem, 128, 2);
    dealloc(smem.base(1), 128);
    alloc(smem, 128, 1);
    alloc(smem, 64, 3);
    for (int i = 0; i < 4 && gpu::lane_id() == 0; ++i) bases[i] = smem.base(i);
    dealloc(smem.base(0), 128);
    dealloc(smem.base(3), 64);
    dealloc(smem.base(2), 128);
    dealloc(smem.base(1), 128);
}

TEST(TensorAlloc, ThereIsAlwaysRoomAndNobodyKnowsWhereTiny) {
    std::set<std::uint32_t> first;
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
        ScopedOptions scoped(emulator::Schedule::random, seed);
        std::uint32_t bases[4];
        ASSERT_EQ(report_of(1, 32, sizeof(Shared), allocate_much, bases), "");
        first.insert(bases[0]);
        for (int i = 0; i < 4; ++i)
            for (int j = 0; j < i; ++j)
                EXPECT_TRUE(bases[i] + (i == 3 ? 64 : 128) <= bases[j] || bases[j] + 128 <= bases[i]);
    }
    EXPECT_THAT(first, testing::ElementsAre(0, 128, 256, 384));
}

}  // namespace
