// The host's side of the machine, the same on the emulator and on a GPU.
#include "common/gpu/launch.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <vector>

#include "common/gpu/tensor_map.h"

namespace {

// Row of CTA i: i + 0.5 in every column that a thread has.
__global__ void number_rows(gpu::Tensor<float> tensor, int rows) {
    const auto matrix = tensor.matrix(0, 0, 0, rows);
    matrix(blockIdx.x, threadIdx.x) = blockIdx.x + 0.5f;
}

// One byte at `offset` from the start of an array.
__global__ void write_byte(unsigned char* array, std::int64_t offset) { array[offset] = 0; }

struct Large {
    gpu::SharedTile<float, 192, 100> tile;  // 76800 bytes: beyond the 48 KiB that every launch may have
};

// Each thread's column goes through shared memory.
__global__ void through_shared_memory(gpu::Tensor<const float> source, gpu::Tensor<float> target) {
    Large& shared = gpu::shared_memory<Large>();
    shared.tile(191, threadIdx.x) = source.matrix(0, 0, 0, 1)(0, threadIdx.x);
    target.matrix(0, 0, 0, 1)(0, threadIdx.x) = shared.tile(191, threadIdx.x);
}

std::string message_of(const gpu::LaunchShape& shape) {
    try {
        gpu::check_launch(shape);
    } catch (const gpu::Error& error) {
        return error.what();
    }
    return "";
}

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// B75: the program starts without a driver, and what needs one says so.
TEST(TensorMap, B75_NeedsADriverOnlyWhenOneIsEncoded) {
    alignas(128) static float data[64];
    const gpu::Tensor<float> tensor{data, 0, 0, 64, 64};
    std::string message;
    try {
        gpu::encode_tensor_map("x", tensor, gpu::TensorMapShape{1, {64}, {1}, {64}, 0});
    } catch (const gpu::Error& error) {
        message = error.what();
    }
    bool driver = true;
#if !GPU_EMULATOR
    int version = 0;
    driver = cudaDriverGetVersion(&version) == cudaSuccess && version >= 12000;
#endif
    EXPECT_EQ(message,
              driver ? "" : "This NVIDIA driver has no cuTensorMapEncodeTiled: tensor maps need driver 525 or newer.");
}

TEST(Buffer, StartsPoisonedAndKeepsWhatIsWritten) {
    gpu::Buffer buffer("x", 1000);
    EXPECT_EQ(buffer.name(), "x");
    EXPECT_EQ(buffer.bytes(), 1000u);
    std::vector<unsigned char> bytes(1000);
    buffer.read(bytes.data(), bytes.size());
    EXPECT_EQ(bytes, std::vector<unsigned char>(1000, 0xFF));

    std::vector<unsigned char> written(1000);
    for (int n = 0; n < 1000; ++n) written[n] = static_cast<unsigned char>(n % 251);
    buffer.write(written.data(), written.size());
    buffer.read(bytes.data(), bytes.size());
    EXPECT_EQ(bytes, written);
    EXPECT_TRUE(buffer.guards_intact());

    buffer.poison();
    buffer.read(bytes.data(), bytes.size());
    EXPECT_EQ(bytes, std::vector<unsigned char>(1000, 0xFF));
}

TEST(Buffer, MovesAndMayBeEmpty) {
    gpu::Buffer empty("nothing", 0);
    EXPECT_EQ(empty.bytes(), 0u);
    EXPECT_TRUE(empty.guards_intact());
    gpu::Buffer first("first", 4);
    void* const data = first.data();
    gpu::Buffer second = std::move(first);
    EXPECT_EQ(second.data(), data);
    empty = std::move(second);
    EXPECT_EQ(empty.name(), "first");
}

TEST(Buffer, TooMuchIsRefusedByName) {
    gpu::Buffer buffer("small", 8);
    char bytes[16] = {};
    EXPECT_THROW(buffer.write(bytes, 16), gpu::Error);
    EXPECT_THROW(buffer.read(bytes, 16), gpu::Error);
    try {
        gpu::Buffer huge("huge", std::size_t(1) << 60);
        FAIL() << "2^60 bytes were allocated";
    } catch (const gpu::Error& error) {
        EXPECT_CONTAINS(std::string(error.what()), "huge");
        EXPECT_CONTAINS(std::string(error.what()), "free");
    }
}

TEST(Buffer, GuardZonesNoticeAWriteOnEitherSide) {
    for (std::int64_t offset : {-1, 24, 24 + 1000}) {
        gpu::Buffer buffer("guarded", 24);
        gpu::launch({"write_byte", 1, 1, 0}, write_byte, static_cast<unsigned char*>(buffer.data()), offset);
        gpu::synchronize();
        EXPECT_FALSE(buffer.guards_intact()) << offset;
    }
    gpu::Buffer buffer("guarded", 24);
    gpu::launch({"write_byte", 1, 1, 0}, write_byte, static_cast<unsigned char*>(buffer.data()), std::int64_t(23));
    gpu::synchronize();
    EXPECT_TRUE(buffer.guards_intact());
}

TEST(Launch, RunsEveryCtaAndThread) {
    gpu::Buffer buffer("rows", 3 * 64 * sizeof(float));
    gpu::launch({"number_rows", 3, 64, 0}, number_rows, buffer.tensor<float>(0, 0, 64, 64), 3);
    gpu::synchronize();
    std::vector<float> values(3 * 64);
    buffer.read(values.data(), buffer.bytes());
    for (int n = 0; n < 3 * 64; ++n) EXPECT_EQ(values[n], n / 64 + 0.5f) << n;
}

TEST(Launch, WithoutCtasNothingRuns) {
    gpu::Buffer buffer("rows", 64 * sizeof(float));
    gpu::launch({"number_rows", 0, 64, 0}, number_rows, buffer.tensor<float>(0, 0, 64, 64), 0);
    gpu::synchronize();
    std::vector<unsigned char> bytes(buffer.bytes());
    buffer.read(bytes.data(), bytes.size());
    EXPECT_EQ(bytes, std::vector<unsigned char>(buffer.bytes(), 0xFF));
}

// B56: a kernel that needs permission for its shared memory, after kernels that do not; and one byte too many.
TEST(Launch, MoreThan48KibOfSharedMemory) {
    gpu::Buffer source("source", 100 * sizeof(float)), target("target", 100 * sizeof(float));
    std::vector<float> values(100);
    for (int n = 0; n < 100; ++n) values[n] = n * 0.25f;
    source.write(values.data(), source.bytes());
    gpu::launch({"through_shared_memory", 1, 100, sizeof(Large)}, through_shared_memory,
                source.tensor<const float>(0, 0, 100, 100), target.tensor<float>(0, 0, 100, 100));
    gpu::synchronize();
    std::vector<float> result(100);
    target.read(result.data(), target.bytes());
    EXPECT_EQ(result, values);
}

TEST(Launch, ShapesBeyondTheDeviceAreRefusedByKernelAndLimit) {
    const std::size_t most = gpu::device().shared_bytes;
    EXPECT_EQ(message_of({"fits", 1, 1024, most}), "");
    EXPECT_CONTAINS(message_of({"greedy", 1, 32, most + 1}), "greedy");
    EXPECT_CONTAINS(message_of({"greedy", 1, 32, most + 1}), std::to_string(most + 1) + " bytes of shared memory");
    EXPECT_CONTAINS(message_of({"greedy", 1, 32, most + 1}), std::to_string(most));
    EXPECT_CONTAINS(message_of({"crowd", 1, 1025, 0}), "1025 threads");
    EXPECT_CONTAINS(message_of({"nobody", 1, 0, 0}), "0 threads");
    EXPECT_CONTAINS(message_of({"many", std::int64_t(1) << 31, 32, 0}), "2147483648 CTAs");
    EXPECT_CONTAINS(message_of({"negative", -1, 32, 0}), "-1 CTAs");
}

TEST(LaunchDeathTest, FailureOfAKernelNamesIt) {
    if (gpu::device().emulated) GTEST_SKIP() << "an address that is nowhere ends the program on the emulator";
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own: the GPU serves it no longer afterwards
    const auto fail = [] {
        gpu::launch({"write_byte", 1, 1, 0}, write_byte, static_cast<unsigned char*>(nullptr), std::int64_t(64));
        try {
            gpu::synchronize();
        } catch (const gpu::Error& error) {
            std::cerr << error.what() << '\n';
            std::exit(7);
        }
    };
    EXPECT_EXIT(fail(), testing::ExitedWithCode(7), "Kernel write_byte failed: .*illegal");
}

TEST(Timer, MeasuresOnlyOnAGpu) {
    gpu::Buffer buffer("rows", 64 * sizeof(float));
    gpu::Timer timer;
    timer.start();
    gpu::launch({"number_rows", 1, 64, 0}, number_rows, buffer.tensor<float>(0, 0, 64, 64), 1);
    const std::optional<double> milliseconds = timer.stop();
    ASSERT_EQ(milliseconds.has_value(), !gpu::device().emulated);
    EXPECT_GT(milliseconds.value_or(1.0), 0.0);
}

TEST(Counters, OnlyTheEmulatorCounts) {
    gpu::Buffer buffer("rows", 2 * 64 * sizeof(float));
    gpu::reset_counters();
    gpu::launch({"number_rows", 2, 64, 0}, number_rows, buffer.tensor<float>(0, 0, 64, 64), 2);
    gpu::synchronize();
    const std::optional<gpu::Counters> counters = gpu::counters();
    ASSERT_EQ(counters.has_value(), gpu::device().emulated);
    if (!counters) return;
    ASSERT_EQ(counters->tensors.size(), 1u);
    EXPECT_EQ(counters->tensors[0].tensor, "rows");
    EXPECT_EQ(counters->tensors[0].requested_written, 512u);
    EXPECT_EQ(counters->tensors[0].distinct_written, 512u);
    EXPECT_EQ(counters->tensors[0].requested_read, 0u);
}

TEST(Schedule, UnknownNamesAreRefused) { EXPECT_THROW(gpu::choose_schedule("whenever", 1), gpu::Error); }

}  // namespace
