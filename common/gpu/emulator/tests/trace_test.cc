// What a trace says of a launch that is known in every detail.
#include "common/gpu/trace.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/gpu/gpu.h"
#include "common/gpu/launch.h"

namespace {

using namespace gpu;

struct Shared {
    SharedArray<float, 32> data;
    SharedArray<Mbarrier, 1> full;
};

// Warp 0 orders a copy, warp 1 waits for it.
void copy_and_wait(Tensor<float> source) {
    auto& smem = shared_memory<Shared>();
    if (threadIdx.x == 0) {
        mbarrier_init(smem.full.address(0), 1);
        fence_mbarrier_init();
    }
    bar_sync();
    if (warp_id() == 0) {
        role("copies");
        if (elect_sync()) {
            mbarrier_arrive_expect_tx(smem.full.address(0), sizeof(smem.data));
            cp_async_bulk(smem.data.address(0), read_only(source).matrix(0, 0, 0, 1), 0, 0, sizeof(smem.data),
                          smem.full.address(0));
        }
    } else {
        role("reader", 1);
        mbarrier_wait_parity(smem.full.address(0), 0);
    }
}

class TraceTest : public testing::Test {
  protected:
    void launch(std::int64_t ctas) {
        Buffer buffer("source", 32 * sizeof(float));
        const float zeros[32] = {};
        buffer.write(zeros, sizeof(zeros));
        gpu::launch({"copy_and_wait", ctas, 64, sizeof(Shared)}, copy_and_wait, buffer.tensor<float>(0, 0, 32, 32));
    }
    ~TraceTest() override { record_trace(-1); }

    static std::vector<TraceSpan> of(TraceKind kind) {
        std::vector<TraceSpan> spans;
        for (const TraceSpan& span : trace())
            if (span.kind == kind) spans.push_back(span);
        return spans;
    }
};

TEST_F(TraceTest, NothingUnlessAskedFor) {
    launch(1);
    EXPECT_TRUE(trace().empty());
}

TEST_F(TraceTest, PartsWaitsAndEnginesOfOneCta) {
    record_trace(1);
    launch(3);
    const auto parts = of(TraceKind::part), waits = of(TraceKind::wait), engines = of(TraceKind::engine);
    ASSERT_EQ(parts.size(), 2u);  // of the first lane of each warp, of one CTA
    ASSERT_EQ(engines.size(), 1u);
    EXPECT_EQ(engines[0].role, "copies");
    EXPECT_EQ(engines[0].what, "cp.async.bulk");
    EXPECT_NE(engines[0].where.find("trace_test.cc:"), std::string::npos);
    ASSERT_EQ(waits.size(), 1u);
    EXPECT_EQ(waits[0].role, "reader 1");
    EXPECT_EQ(waits[0].warp, 1);
    EXPECT_EQ(waits[0].what, "mbarrier.try_wait.parity");
    EXPECT_LE(engines[0].end, waits[0].end);  // it waited for the copy
    for (const TraceSpan& part : parts) {
        EXPECT_TRUE(part.role == "copies" || part.role == "reader 1");
        if (part.role == "reader 1") {
            EXPECT_LE(part.begin, waits[0].begin);
            EXPECT_GE(part.end, waits[0].end);
        }
    }
}

TEST_F(TraceTest, BeginsAnewWhenAskedForAgain) {
    record_trace(0);
    launch(1);
    ASSERT_FALSE(trace().empty());
    record_trace(0);
    EXPECT_TRUE(trace().empty());
}

}  // namespace
