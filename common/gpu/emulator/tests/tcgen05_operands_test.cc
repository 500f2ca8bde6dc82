// tcgen05: what instructions refuse, operand by operand.
#include "common/gpu/emulator/tests/reports.h"

namespace {

using emulator::Site;
using emulator::TensorProduct;
using gpu::bf16;
using gpu::Major;
using testing::HasSubstr;

struct Shared {
    gpu::PanelTile<bf16, 128, 64> a;
    gpu::PanelTile<bf16, 64, 64> b;
    gpu::SharedArray<std::uint32_t, 1> base;
    gpu::SharedArray<gpu::Mbarrier, 1> done;
};

constexpr std::uint64_t bit(int i) { return std::uint64_t{1} << i; }
constexpr std::uint32_t instruction(int m, int n) { return gpu::tcgen05_instruction<bf16>(m, n, Major::k, Major::k); }

/// A warp with 128 columns, of which the first 64 hold zeros, orders a product of 128 x 64 x 16, `changed`, and commits.
void one_product(void (*change)(TensorProduct&)) {
    auto& smem = gpu::shared_memory<Shared>();
    for (int i = gpu::lane_id(); i < 128 * 64; i += 32) smem.a(i / 64, i % 64) = bf16{};
    for (int i = gpu::lane_id(); i < 64 * 64; i += 32) smem.b(i / 64, i % 64) = bf16{};
    gpu::fence_proxy_async();
    if (gpu::lane_id() == 0) {
        gpu::mbarrier_init(smem.done.address(0), 1);
        gpu::fence_mbarrier_init();
    }
    gpu::tcgen05_alloc<128>(smem.base.address(0));
    gpu::bar_warp_sync(0xFFFFFFFF);
    const std::uint32_t base = smem.base(0);
    if (gpu::lane_id() == 0) {
        TensorProduct product{1,
                              base,
                              false,
                              base + 64,
                              gpu::tcgen05_descriptor(smem.a.k_major(0, 0)),
                              gpu::tcgen05_descriptor(smem.b.k_major(0, 0)),
                              instruction(128, 64),
                              false};
        change(product);
        emulator::tcgen05_mma(product, Site::current());
        gpu::tcgen05_commit(smem.done.address(0));
    }
    gpu::mbarrier_wait_parity(smem.done.address(0), 0);
    gpu::tcgen05_dealloc<128>(base);
}

void expect_report(const char* words, void (*change)(TensorProduct&)) {
    EXPECT_THAT(report_of(1, 32, sizeof(Shared), one_product, change), HasSubstr(words));
}

TEST(Tcgen05Operands, InstructionDescriptorTiny) {
    EXPECT_EQ(report_of(1, 32, sizeof(Shared), one_product, [](TensorProduct&) {}), "");
    constexpr void (*set[])(TensorProduct&) = {
        [](TensorProduct& x) { x.instruction |= 1u << 0; },  [](TensorProduct& x) { x.instruction |= 1u << 2; },
        [](TensorProduct& x) { x.instruction |= 1u << 3; },  [](TensorProduct& x) { x.instruction |= 1u << 6; },
        [](TensorProduct& x) { x.instruction |= 1u << 13; }, [](TensorProduct& x) { x.instruction |= 1u << 14; },
        [](TensorProduct& x) { x.instruction |= 1u << 23; }, [](TensorProduct& x) { x.instruction |= 1u << 29; },
        [](TensorProduct& x) { x.instruction |= 1u << 31; }};
    for (const auto change : set) expect_report("bits 0 to 3, 6, 13, 14, 23 and 29 to 31 must be 0", change);
    expect_report("the type of D, bits 4 and 5, must be 1", [](TensorProduct& x) { x.instruction ^= 1u << 4; });
    expect_report("the type of D, bits 4 and 5, must be 1", [](TensorProduct& x) { x.instruction ^= 3u << 4; });
    expect_report("the types of A and B", [](TensorProduct& x) { x.instruction ^= 1u << 7; });
    expect_report("the types of A and B", [](TensorProduct& x) { x.instruction += (1u << 7) + (1u << 10); });
    expect_report("is of M = 96; with cta_group::1 it is 64 or 128",
                  [](TensorProduct& x) { x.instruction = instruction(96, 64); });
    expect_report("is of M = 256", [](TensorProduct& x) { x.instruction = instruction(256, 64); });
    expect_report("is of N = 0; with cta_group::1 it is 8, 16, ... 256",
                  [](TensorProduct& x) { x.instruction = instruction(128, 0); });
    expect_report("is of N = 264", [](TensorProduct& x) { x.instruction = instruction(128, 264); });
}

TEST(Tcgen05Operands, MatrixDescriptorTiny) {
    const char* const words = "tcgen05: the descriptor of B, 0x";
    expect_report("bits 46 to 48 are its version and must be 1", [](TensorProduct& x) { x.b_descriptor ^= bit(46); });
    expect_report(words, [](TensorProduct& x) { x.b_descriptor ^= bit(47); });
    expect_report(words, [](TensorProduct& x) { x.b_descriptor ^= bit(49); });  // base offset
    expect_report(words, [](TensorProduct& x) { x.b_descriptor ^= bit(52); });  // absolute leading offset
    expect_report(words, [](TensorProduct& x) { x.b_descriptor ^= bit(60); });
    expect_report(words, [](TensorProduct& x) { x.b_descriptor ^= bit(61); });  // swizzle 3
    expect_report(words, [](TensorProduct& x) { x.b_descriptor ^= bit(14); });
    expect_report("the descriptor of A", [](TensorProduct& x) { x.a_descriptor ^= bit(46); });
    // 128 rows of A are read, whatever is there.
    expect_report("outside the CTA's shared memory", [](TensorProduct& x) { x.a_descriptor += 16384 / 16; });
    expect_report("do not fit from there on", [](TensorProduct& x) { x.a_descriptor += 112 / 16; });
}

TEST(Tcgen05Operands, CellsTiny) {
    expect_report("tcgen05.mma of M = 128 with D from lane 16 on; it is 0", [](TensorProduct& x) { x.d += 16 << 16; });
    expect_report("tcgen05.mma of M = 64 with D from lane 8 on; it is 0 or 16", [](TensorProduct& x) {
        x.instruction = instruction(64, 64);
        x.d += 8 << 16;
    });
    expect_report(": allocated are columns", [](TensorProduct& x) { x.d += 65; });
    expect_report("tcgen05.mma of lanes 0-127 of columns", [](TensorProduct& x) {
        x.a_in_tensor_memory = true;
        x.a += 57;
    });
    expect_report("nobody has written column", [](TensorProduct& x) { x.a_in_tensor_memory = true; });
    expect_report("nobody has written column", [](TensorProduct& x) { x.accumulate = true; });
    expect_report("A from lane 0 on and D from lane 16; they lie in the same lanes", [](TensorProduct& x) {
        x.a_in_tensor_memory = true;
        x.instruction = instruction(64, 64);
        x.d += 16 << 16;
    });
    expect_report("A is k-major there", [](TensorProduct& x) {
        x.a_in_tensor_memory = true;
        x.instruction = gpu::tcgen05_instruction<bf16>(128, 64, Major::mn, Major::k);
    });
    expect_report("cta_group::2 in a kernel that has used cta_group::1", [](TensorProduct& x) {
        x.ctas = 2;
        x.instruction = instruction(256, 64);
    });
}

/// A warp's copy, and what is wrong with it.
void one_copy(std::uint32_t lane, bool commit, bool rows_are_there) {
    auto& smem = gpu::shared_memory<Shared>();
    for (int i = gpu::lane_id(); i < (rows_are_there ? 128 : 127) * 64; i += 32) smem.a(i / 64, i % 64) = bf16{};
    gpu::fence_proxy_async();
    if (gpu::lane_id() == 0) {
        gpu::mbarrier_init(smem.done.address(0), 1);
        gpu::fence_mbarrier_init();
    }
    gpu::tcgen05_alloc<32>(smem.base.address(0));
    gpu::bar_warp_sync(0xFFFFFFFF);
    const std::uint32_t base = smem.base(0);
    if (gpu::lane_id() == 0) {
        gpu::tcgen05_cp_128x256b(base + (lane << 16), smem.a.k_major(0, 0));
        gpu::tcgen05_commit(smem.done.address(0));
    }
    if (commit) gpu::mbarrier_wait_parity(smem.done.address(0), 0);
    gpu::tcgen05_fence_after_thread_sync();
    std::uint32_t x[8];
    gpu::tcgen05_ld(x, base);
    gpu::tcgen05_wait_ld(x);
    gpu::tcgen05_dealloc<32>(base);
}

TEST(Tcgen05Operands, CopiesTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        EXPECT_EQ(report_of(1, 32, sizeof(Shared), one_copy, 0, true, true), "");
        EXPECT_THAT(report_of(1, 32, sizeof(Shared), one_copy, 32, true, true),
                    HasSubstr("tcgen05.cp of 128 lanes from lane 32 on; it is 0"));
        EXPECT_THAT(report_of(1, 32, sizeof(Shared), one_copy, 0, false, true),
                    HasSubstr("has not waited for the mbarrier of its commit"));
        EXPECT_THAT(report_of(1, 32, sizeof(Shared), one_copy, 0, true, false),
                    HasSubstr("nobody has written there since the CTA began"));
    }
}

/// A commit that is pending at an mbarrier which ends; a commit of what has been seen complete.
void two_commits(bool ends) {
    auto& smem = gpu::shared_memory<Shared>();
    for (int i = gpu::lane_id(); i < 128 * 64; i += 32) smem.a(i / 64, i % 64) = bf16{};
    gpu::fence_proxy_async();
    if (gpu::lane_id() == 0) {
        gpu::mbarrier_init(smem.done.address(0), 1);
        gpu::fence_mbarrier_init();
    }
    gpu::tcgen05_alloc<32>(smem.base.address(0));
    gpu::bar_warp_sync(0xFFFFFFFF);
    if (gpu::lane_id() != 0) return;
    gpu::tcgen05_cp_128x256b(smem.base(0), smem.a.k_major(0, 0));
    gpu::tcgen05_commit(smem.done.address(0));
    if (ends) gpu::mbarrier_inval(smem.done.address(0));
    gpu::mbarrier_wait_parity(smem.done.address(0), 0);
    gpu::tcgen05_commit(smem.done.address(0));
}

TEST(Tcgen05Operands, CommitsTiny) {
    ScopedOptions scoped(emulator::Schedule::async_latest);
    EXPECT_THAT(report_of(1, 32, sizeof(Shared), two_commits, true),
                HasSubstr("is to count tcgen05.commit issued by thread 0 (warp 0, lane 0)"));
    EXPECT_THAT(report_of(1, 32, sizeof(Shared), two_commits, false),
                HasSubstr("this thread has ordered no product and no copy that it has not seen complete before it"));
}

}  // namespace
