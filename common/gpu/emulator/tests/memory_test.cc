// Plain accesses, buffers and counters.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/gpu/emulator/tests/reports.h"

namespace {

using testing::HasSubstr;

gpu::Matrix<float> matrix(const gpu::Buffer& buffer, int rows, int columns) {
    return buffer.tensor<float>(0, 0, columns, columns).matrix(0, 0, 0, rows);
}
gpu::Matrix<const float> const_matrix(const gpu::Buffer& buffer, int rows, int columns) {
    return buffer.tensor<const float>(0, 0, columns, columns).matrix(0, 0, 0, rows);
}

// ---- buffers ----

TEST(Buffer, PoisonedAndGuardedTiny) {
    gpu::Buffer buffer("x", 10);
    std::vector<unsigned char> bytes(10);
    buffer.read(bytes.data(), 10);
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](unsigned char b) { return b == 0xFF; }));
    buffer.write("0123456789", 10);
    buffer.read(bytes.data(), 10);
    EXPECT_EQ(std::memcmp(bytes.data(), "0123456789", 10), 0);
    EXPECT_TRUE(buffer.guards_intact());
    EXPECT_EQ(buffer.name(), "x");
    EXPECT_EQ(buffer.bytes(), 10u);
    buffer.poison();
    buffer.read(bytes.data(), 10);
    EXPECT_EQ(bytes[9], 0xFF);
    EXPECT_THROW(buffer.write(bytes.data(), 11), gpu::Error);
    EXPECT_THROW(buffer.read(bytes.data(), 11), gpu::Error);
}

TEST(Buffer, GuardZonesNoticeOneByteTiny) {
    for (const std::ptrdiff_t offset : {-1, -4096, 10, 4105}) {
        gpu::Buffer buffer("x", 10);
        static_cast<volatile char*>(buffer.data())[offset] = 0;
        EXPECT_FALSE(buffer.guards_intact()) << offset;
    }
}

TEST(Buffer, TooLargeTiny) {
    try {
        gpu::Buffer buffer("huge", std::size_t{1} << 60);
        FAIL() << "no error";
    } catch (const gpu::Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("\"huge\": needs 1152921504606846976 bytes"));
        EXPECT_THAT(error.what(), HasSubstr("are free"));
    }
}

TEST(Buffer, EmptyTiny) {
    gpu::Buffer buffer("empty", 0);
    EXPECT_TRUE(buffer.guards_intact());
    gpu::Buffer moved = std::move(buffer);
    EXPECT_EQ(moved.name(), "empty");
}

// ---- launches ----

void nothing() {}

TEST(Launch, ShapesTiny) {
    EXPECT_EQ(report_of(0, 32, 0, nothing), "");
    EXPECT_THAT(report_of(1, 0, 0, nothing), HasSubstr("0 threads a CTA, allowed are 1 to 1024"));
    EXPECT_THAT(report_of(1, 1025, 0, nothing), HasSubstr("1025 threads"));
    EXPECT_THAT(report_of(1, 32, 232449, nothing), HasSubstr("needs 232449 bytes of shared memory, device has 232448"));
    EXPECT_EQ(report_of(2, 1024, 232448, nothing), "");
    EXPECT_THAT(report_of(-1, 32, 0, nothing), HasSubstr("-1 CTAs"));
}

void indices(int* seen) { seen[blockIdx.x * blockDim.x + threadIdx.x] += 1 + static_cast<int>(gridDim.x) * 10; }

TEST(Launch, EveryThreadOnceTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        ScopedOptions scoped(options);
        int seen[5 * 40] = {};
        ASSERT_EQ(report_of(5, 40, 0, indices, seen), "");
        for (const int x : seen) EXPECT_EQ(x, 51);
    }
}

void throws() { throw std::runtime_error("from the kernel"); }

TEST(Launch, ExceptionInKernelTiny) {
    EXPECT_THAT(report_of(1, 32, 0, throws), HasSubstr("the kernel threw an exception: from the kernel"));
    EXPECT_EQ(report_of(1, 32, 0, nothing), "");
}

TEST(Device, IsTheEmulatorTiny) {
    const gpu::Device device = gpu::device();
    EXPECT_EQ(device.name, "emulator");
    EXPECT_TRUE(device.emulated);
    EXPECT_EQ(device.shared_bytes, 227u * 1024);
    EXPECT_GT(device.free_bytes, 0u);
}

// ---- global memory ----

void read_at(gpu::Matrix<const float> m, int row, int column, float* sink) { sink[threadIdx.x] = m(row, column); }
void write_at(gpu::Matrix<float> m, int row, int column) { m(row, column) = 1; }
void load4_at(gpu::Matrix<const float> m, int row, int column, float* sink) { *sink = m.load4(row, column)[0]; }

TEST(GlobalMemory, OutOfBoundsTiny) {
    gpu::Buffer buffer("Q", 8 * 4 * sizeof(float));
    float sink;
    const auto m = const_matrix(buffer, 8, 4);
    EXPECT_EQ(report_of(1, 1, 0, read_at, m, 7, 3, &sink), "");
    for (const auto& [row, column] : std::vector<std::pair<int, int>>{{8, 0}, {0, 4}, {-1, 0}, {0, -1}})
        EXPECT_THAT(report_of(1, 1, 0, read_at, m, row, column, &sink),
                    HasSubstr("of a matrix of 8 x 4: out of bounds"));
    EXPECT_THAT(report_of(1, 1, 0, write_at, matrix(buffer, 8, 4), 8, 0), HasSubstr("element (8, 0)"));
    EXPECT_THAT(report_of(1, 1, 0, load4_at, m, 0, 1, &sink), HasSubstr("element (0, 1) and the 3 after it"));
}

TEST(GlobalMemory, BeyondTheBufferTiny) {  // a view whose shape is wrong
    gpu::Buffer buffer("Q", 8 * 4 * sizeof(float));
    float sink;
    EXPECT_THAT(report_of(1, 1, 0, read_at, const_matrix(buffer, 9, 4), 8, 0, &sink),
                HasSubstr("read of 4 bytes at byte 128 of \"Q\", which has 128 bytes"));
    auto before = matrix(buffer, 8, 4);
    before.data -= 4;
    EXPECT_THAT(report_of(1, 1, 0, write_at, before, 0, 0), HasSubstr("write of 4 bytes at byte -16 of \"Q\""));
    auto foreign = matrix(buffer, 8, 4);
    foreign.region = nullptr;
    EXPECT_THAT(report_of(1, 1, 0, write_at, foreign, 0, 0), HasSubstr("belongs to no gpu::Buffer"));
}

TEST(GlobalMemory, MisalignedTiny) {
    gpu::Buffer buffer("Q", 8 * 8 * sizeof(float));
    float sink;
    EXPECT_EQ(report_of(1, 1, 0, load4_at, const_matrix(buffer, 8, 8), 1, 4, &sink), "");
    EXPECT_THAT(report_of(1, 1, 0, load4_at, const_matrix(buffer, 8, 8), 1, 2, &sink),
                HasSubstr("an access of 16 bytes at an address that is not a multiple of 16"));
}

void copy_rows(gpu::Matrix<const float> from, gpu::Matrix<float> to, int times) {
    for (int i = 0; i < times; ++i)
        for (int row = 0; row < from.rows; ++row) to(row, threadIdx.x) = from(row, threadIdx.x);
    gpu::bar_sync();
    if (threadIdx.x == 0) to.store<2>(0, 0, from.load2(0, 0));
}

TEST(GlobalMemory, TrafficTiny) {
    gpu::Buffer from("from", 3 * 32 * 4), to("to", 3 * 32 * 4), idle("idle", 16);
    from.write(std::vector<float>(96, 1).data(), 3 * 32 * 4);
    gpu::reset_counters();
    ASSERT_EQ(report_of(1, 32, 0, copy_rows, const_matrix(from, 3, 32), matrix(to, 3, 32), 5), "");
    const auto tensors = gpu::counters()->tensors;
    const auto find = [&](const std::string& name) {
        return *std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.tensor == name; });
    };
    EXPECT_EQ(find("from").requested_read, 5u * 384 + 8);
    EXPECT_EQ(find("from").distinct_read, 384u);
    EXPECT_EQ(find("from").requested_written, 0u);
    EXPECT_EQ(find("to").requested_written, 5u * 384 + 8);
    EXPECT_EQ(find("to").distinct_written, 384u);
    EXPECT_EQ(find("to").distinct_read, 0u);
    EXPECT_EQ(find("idle").requested_read, 0u);
    gpu::reset_counters();
    const auto after = gpu::counters()->tensors;
    for (const auto& t : after) EXPECT_EQ(t.requested_read + t.distinct_read + t.distinct_written, 0u);
}

void add_all(gpu::Matrix<float> m, float value) { gpu::red_global_add_f32(m, 0, 0, value); }

TEST(GlobalMemory, RedTiny) {
    gpu::Buffer buffer("sum", 4);
    const auto run = [&](float start, float value, int threads) {
        buffer.write(&start, 4);
        EXPECT_EQ(report_of(2, threads, 0, add_all, matrix(buffer, 1, 1), value), "");
        buffer.read(&start, 4);
        return start;
    };
    gpu::reset_counters();
    EXPECT_EQ(run(1, 2, 100), 401);
    EXPECT_EQ(gpu::counters()->atomics, 200u);
    EXPECT_EQ(gpu::counters()->tensors[0].requested_written, 800u);
    EXPECT_EQ(gpu::counters()->tensors[0].distinct_written, 4u);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(run(-0x1p-126f, 0x1p-127f, 1)), 0x80800000u);  // subnormal operand: zero
    EXPECT_EQ(std::bit_cast<std::uint32_t>(run(0, INFINITY, 1)), 0x7F800000u);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(run(-INFINITY, INFINITY, 1)), 0x7FFFFFFFu);
}

// ---- shared memory ----

struct Tile {
    gpu::SharedTile<float, 4, 32> tile;
};

void shared_element(int row, int column) { gpu::shared_memory<Tile>().tile(row, column) = 1; }
void shared_unwritten(float* sink) { *sink = gpu::shared_memory<Tile>().tile(2, 3); }
void shared_raw(std::ptrdiff_t offset) {
    auto* p = reinterpret_cast<float*>(reinterpret_cast<char*>(&gpu::shared_memory<Tile>()) + offset);
    gpu::SharedReference<float>{p, emulator::Site::current()} = 1.0f;
}

TEST(SharedMemory, OutOfBoundsTiny) {
    EXPECT_EQ(report_of(1, 1, sizeof(Tile), shared_element, 3, 31), "");
    EXPECT_THAT(report_of(1, 1, sizeof(Tile), shared_element, 4, 0), HasSubstr("element (4, 0) of a matrix of 4 x 32"));
    EXPECT_THAT(report_of(1, 1, sizeof(Tile), shared_raw, 512),
                HasSubstr("outside the CTA's shared memory of 512 bytes"));
    EXPECT_THAT(report_of(1, 1, sizeof(Tile), shared_raw, -4), HasSubstr("outside the CTA's shared memory"));
}

TEST(SharedMemory, TooSmallTiny) {
    EXPECT_THAT(report_of(1, 1, sizeof(Tile) - 1, shared_element, 0, 0),
                HasSubstr("the kernel's shared memory needs 512 bytes, the launch asked for 511"));
}

TEST(SharedMemory, NeverWrittenTiny) {
    float sink;
    const std::string report = report_of(1, 1, sizeof(Tile), shared_unwritten, &sink);
    EXPECT_THAT(report, HasSubstr("read of 4 bytes at shared memory offset 268: nobody has written there"));
    EXPECT_THAT(report, HasSubstr("thread 0 (warp 0, lane 0) at"));
    EXPECT_THAT(report, HasSubstr("memory_test.cc"));
}

void write_then_next_cta_reads(float* sink) {
    auto& shared = gpu::shared_memory<Tile>();
    if (blockIdx.x == 0) shared.tile(0, 0) = 1;
    *sink = shared.tile(0, 0);
}

TEST(SharedMemory, FreshForEveryCtaTiny) {
    emulator::Options options;
    options.resident_ctas = 1;
    ScopedOptions scoped(options);
    float sink;
    EXPECT_THAT(report_of(2, 1, sizeof(Tile), write_then_next_cta_reads, &sink), HasSubstr("CTA 1 of 2"));
}

void vector_access(float* sink) {
    auto& shared = gpu::shared_memory<Tile>();
    shared.tile.store<4>(1, 4 * threadIdx.x, {{1, 2, 3, 4}});
    const auto v = shared.tile.load4(1, 4 * threadIdx.x);
    sink[threadIdx.x] = v[0] + v[3];
}
void vector_misaligned() { gpu::shared_memory<Tile>().tile.store<4>(1, 2, {{1, 2, 3, 4}}); }

TEST(SharedMemory, VectorsTiny) {
    float sink[8];
    gpu::reset_counters();
    EXPECT_EQ(report_of(1, 8, sizeof(Tile), vector_access, sink), "");
    EXPECT_EQ(sink[7], 5);
    EXPECT_EQ(gpu::counters()->shared_read, 128u);
    EXPECT_EQ(gpu::counters()->shared_written, 128u);
    EXPECT_THAT(report_of(1, 1, sizeof(Tile), vector_misaligned), HasSubstr("not a multiple of 16"));
}

// Every block of a tile, from every place in the first one.
template <gpu::Swizzle swizzle>
void walk_blocks() {
    auto& tile = gpu::shared_memory<gpu::SharedTile<gpu::bf16, 32, 192, swizzle>>();
    for (int row = 0; row < 8; ++row) {
        for (int column = 0; column < 64; column += 8) {
            for (int more_rows = 0; more_rows < 32; more_rows += 8) {
                for (int more_columns = 0; more_columns < 192; more_columns += column < 16 ? 16 : 64) {
                    EXPECT_EQ(tile.address_beyond(tile.offset(row, column), more_rows, more_columns),
                              tile.address(row + more_rows, column + more_columns))
                        << row << " + " << more_rows << ", " << column << " + " << more_columns;
                }
            }
        }
    }
}

TEST(SharedMemory, AddressesOfBlocksTiny) {
    gpu::launch({"walk_blocks", 1, 1, 32 * 192 * 2}, walk_blocks<gpu::Swizzle::none>);
    gpu::launch({"walk_blocks", 1, 1, 32 * 192 * 2}, walk_blocks<gpu::Swizzle::xor_8>);
}

struct Neighbours {
    gpu::SharedTile<gpu::bf16, 16, 64, gpu::Swizzle::xor_8> first, second;
};

void block_of_the_neighbour(int more_rows) {
    auto& shared = gpu::shared_memory<Neighbours>();
    static_cast<void>(shared.first.address_beyond(shared.first.offset(0, 0), more_rows, 0));
}

TEST(SharedMemory, BlockBeyondItsTileTiny) {
    EXPECT_EQ(report_of(1, 1, sizeof(Neighbours), block_of_the_neighbour, 8), "");
    EXPECT_THAT(report_of(1, 1, sizeof(Neighbours), block_of_the_neighbour, 16),
                HasSubstr("element (16, 0) of a matrix of 16 x 64: out of bounds"));
}

void address(std::uint32_t* result) { *result = gpu::shared_memory<Tile>().tile.address(0, 0); }

TEST(SharedMemory, AddressesVaryWithTheSeedTiny) {
    std::vector<std::uint32_t> addresses;
    for (int seed = 1; seed <= 20; ++seed) {
        ScopedOptions scoped(emulator::Schedule::in_order, seed);
        std::uint32_t result = 0;
        ASSERT_EQ(report_of(1, 1, sizeof(Tile), address, &result), "");
        EXPECT_NE(result, 0u);
        EXPECT_EQ(result % 1024, 0u);
        addresses.push_back(result);
    }
    EXPECT_GT(*std::max_element(addresses.begin(), addresses.end()),
              *std::min_element(addresses.begin(), addresses.end()));
}

// ---- arithmetic ----

TEST(Arithmetic, Ex2Tiny) {
    for (int i = -126; i <= 127; ++i) EXPECT_EQ(gpu::ex2_approx_ftz(static_cast<float>(i)), std::ldexp(1.0f, i));
    for (float x = -125.9f; x < 127; x += 0.0137f)
        EXPECT_NEAR(gpu::ex2_approx_ftz(x) / std::exp2(static_cast<double>(x)), 1, 0x1p-22) << x;
    EXPECT_EQ(gpu::ex2_approx_ftz(-INFINITY), 0);
    EXPECT_EQ(gpu::ex2_approx_ftz(-126.5f), 0);
    EXPECT_EQ(gpu::ex2_approx_ftz(-150), 0);
    EXPECT_EQ(gpu::ex2_approx_ftz(0x1p-130f), 1);
    EXPECT_EQ(gpu::ex2_approx_ftz(-0.0f), 1);
    EXPECT_EQ(gpu::ex2_approx_ftz(128), INFINITY);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(gpu::ex2_approx_ftz(-NAN)), 0x7FFFFFFFu);
}

TEST(Arithmetic, CountedTiny) {
    gpu::reset_counters();
    gpu::ex2_approx_ftz(1);
    gpu::ex2_approx_ftz(2);
    gpu::count_polynomials(2);
    gpu::count_polynomials(3);
    gpu::count_rescale();
    for (int i = 0; i < 4; ++i) gpu::count_skipped_rescale();
    EXPECT_EQ(gpu::counters()->exponentials, 2u);
    EXPECT_EQ(gpu::counters()->polynomials, 5u);
    EXPECT_EQ(gpu::counters()->rescales, 1u);
    EXPECT_EQ(gpu::counters()->skipped_rescales, 4u);
    gpu::reset_counters();
    EXPECT_EQ(gpu::counters()->polynomials + gpu::counters()->skipped_rescales, 0u);
}

}  // namespace
