// Tensor and bulk copies: which bytes arrive where, and each misuse by name.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "common/gpu/emulator/tests/reports.h"

namespace {

using emulator::Schedule;
using testing::HasSubstr;

// ---- where the bytes of a box lie ----

constexpr int image_bytes = 8192;

struct Image {
    gpu::SharedTile<gpu::bf16, image_bytes / 128, 64> bytes;
    gpu::SharedArray<gpu::Mbarrier, 1> barrier;
    gpu::SharedTile<gpu::bf16, 8, 64> beyond;
};

/// The start of every CTA below: one barrier for one copy.
template <class Shared>
Shared& start() {
    auto& shared = gpu::shared_memory<Shared>();
    if (threadIdx.x == 0) {
        gpu::mbarrier_init(shared.barrier.address(0), 1);
        gpu::fence_mbarrier_init();
    }
    gpu::bar_sync();
    return shared;
}

/// Where a copy begins: coordinates in the tensor, bytes in the image.
struct Place {
    std::array<int, 5> c;
    int offset;
};

/// Loads a box and takes the whole image out, also what no rule would let a kernel read.
void load(gpu::TensorMap map, Place place, int bytes, char* image) {
    auto& shared = gpu::shared_memory<Image>();
    const std::uint32_t barrier = shared.barrier.address(0);
    gpu::mbarrier_init(barrier, 1);
    gpu::fence_mbarrier_init();
    const auto& c = place.c;
    gpu::cp_async_bulk_tensor_5d(shared.bytes.address(0, 0) + place.offset, map, c[0], c[1], c[2], c[3], c[4], barrier);
    gpu::mbarrier_arrive_expect_tx(barrier, bytes);
    gpu::mbarrier_wait_parity(barrier, 0);
    std::memcpy(image, &shared.bytes, image_bytes);
}

/// Fills the image with 1, 2, 3, ... and stores a box of it.
void store(gpu::TensorMap map, Place place) {
    auto& shared = gpu::shared_memory<Image>();
    for (int i = 0; i < image_bytes / 2; ++i)
        shared.bytes(i / 64, i % 64) = gpu::bf16{static_cast<std::uint16_t>(i + 1)};
    gpu::fence_proxy_async();
    const auto& c = place.c;
    gpu::cp_async_bulk_tensor_5d_store(map, c[0], c[1], c[2], c[3], c[4], shared.bytes.address(0, 0) + place.offset);
    gpu::cp_async_bulk_commit_group();
    gpu::cp_async_bulk_wait_group<0>();
}

/// PTX ISA, swizzling modes: in which place of its 128-byte line a 16-byte chunk lies, for the lines of one repetition.
const std::vector<std::array<int, 8>>& chunk_places(int swizzle_bytes) {
    static const std::vector<std::array<int, 8>> none{{0, 1, 2, 3, 4, 5, 6, 7}};
    static const std::vector<std::array<int, 8>> span_32{{0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}};
    static const std::vector<std::array<int, 8>> span_64{
        {0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}, {2, 3, 0, 1, 6, 7, 4, 5}, {3, 2, 1, 0, 7, 6, 5, 4}};
    static const std::vector<std::array<int, 8>> span_128{
        {0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}, {2, 3, 0, 1, 6, 7, 4, 5}, {3, 2, 1, 0, 7, 6, 5, 4},
        {4, 5, 6, 7, 0, 1, 2, 3}, {5, 4, 7, 6, 1, 0, 3, 2}, {6, 7, 4, 5, 2, 3, 0, 1}, {7, 6, 5, 4, 3, 2, 1, 0}};
    return swizzle_bytes == 0 ? none : swizzle_bytes == 32 ? span_32 : swizzle_bytes == 64 ? span_64 : span_128;
}

/// A tensor of 16-bit elements whose rows have a gap, and a box of it.
struct Tensor {
    std::array<std::int64_t, 5> size;
    std::array<int, 5> box;
    int swizzle_bytes;

    std::int64_t stride(int i) const {  // elements; rows are 8 elements longer than they hold
        std::int64_t result = i == 0 ? 1 : (size[0] + 8 + 7) / 8 * 8;
        for (int k = 1; k < i; ++k) result *= size[k];
        return result;
    }
    std::int64_t elements() const { return stride(4) * size[4]; }
    int box_bytes() const { return 2 * box[0] * box[1] * box[2] * box[3] * box[4]; }
    gpu::TensorMap map(const gpu::Buffer& buffer) const {
        gpu::TensorMapShape shape{5, {}, {}, {}, swizzle_bytes};
        for (int i = 0; i < 5; ++i) {
            shape.size[i] = size[i];
            shape.stride[i] = stride(i);
            shape.box[i] = box[i];
        }
        return gpu::encode_tensor_map("tensor", buffer.tensor<gpu::bf16>(0, 0, 0, 0), shape);
    }

    /// visit(element in global memory or -1, byte in the image) for each element of the box.
    template <class Visit>
    void for_each(const Place& place, Visit visit) const {
        const int pitch = swizzle_bytes == 0 ? 2 * box[0] : swizzle_bytes;
        const auto& lines = chunk_places(swizzle_bytes);
        int row = 0;
        for (int j4 = 0; j4 < box[4]; ++j4)
            for (int j3 = 0; j3 < box[3]; ++j3)
                for (int j2 = 0; j2 < box[2]; ++j2)
                    for (int j1 = 0; j1 < box[1]; ++j1, ++row)
                        for (int j0 = 0; j0 < box[0]; ++j0) {
                            const int j[5] = {j0, j1, j2, j3, j4};
                            std::int64_t element = 0;
                            bool inside = true;
                            for (int i = 0; i < 5; ++i) {
                                const std::int64_t g = place.c[i] + j[i];
                                inside = inside && g >= 0 && g < size[i];
                                element += g * stride(i);
                            }
                            const int plain = place.offset + row * pitch + 2 * j0;
                            const int line = plain / 128, chunk = plain % 128 / 16;
                            visit(inside ? element : -1,
                                  line * 128 + lines[line % lines.size()][chunk] * 16 + plain % 16);
                        }
    }
};

const std::vector<std::pair<Tensor, Place>>& boxes() {
    static const std::vector<std::pair<Tensor, Place>> all{
        {{{64, 20, 2, 2, 2}, {64, 8, 2, 1, 1}, 128}, {{0, 3, 0, 1, 1}, 0}},      // inside
        {{{64, 20, 2, 2, 2}, {64, 8, 2, 1, 1}, 128}, {{0, 15, 1, 0, 1}, 1024}},  // beyond the last row and panel
        {{{64, 20, 2, 2, 2}, {64, 8, 2, 1, 1}, 128}, {{0, -5, 0, 0, 0}, 384}},   // before the first row; any line
        {{{60, 9, 1, 3, 1}, {32, 4, 1, 2, 1}, 64}, {{40, 7, 0, 2, 0}, 512}},    // both ends of rows that end in a chunk
        {{{60, 9, 1, 3, 1}, {32, 4, 1, 2, 1}, 64}, {{-8, -1, 0, -1, 0}, 128}},  // before everything
        {{{60, 9, 1, 3, 1}, {16, 5, 1, 2, 1}, 32}, {{8, 1, 0, 1, 0}, 256}},     //
        {{{60, 9, 1, 3, 1}, {24, 5, 1, 2, 1}, 128}, {{8, 6, 0, 1, 0}, 128}},    // rows shorter than the span
        {{{60, 9, 1, 3, 1}, {8, 5, 1, 2, 1}, 32}, {{56, 6, 0, 1, 0}, 128}},     //
        {{{60, 9, 1, 3, 1}, {120, 3, 1, 1, 1}, 0}, {{0, 0, 0, 0, 0}, 128}},     // wider than the tensor
        {{{60, 9, 1, 3, 2}, {8, 3, 1, 2, 2}, 0}, {{16, 100, 0, 0, 0}, 0}},      // nothing inside
    };
    return all;
}

std::vector<std::uint16_t> numbers(std::int64_t n) {
    std::vector<std::uint16_t> result(static_cast<std::size_t>(n));
    std::iota(result.begin(), result.end(), std::uint16_t{1});
    return result;
}

TEST(TensorCopy, LoadsBoxesTiny) {
    for (std::size_t i = 0; i < boxes().size(); ++i) {
        SCOPED_TRACE(i);
        const auto& [tensor, place] = boxes()[i];
        gpu::Buffer buffer("tensor", static_cast<std::size_t>(2 * tensor.elements()));
        const std::vector<std::uint16_t> values = numbers(tensor.elements());
        buffer.write(values.data(), buffer.bytes());
        std::vector<std::uint16_t> expected(image_bytes / 2, 0xFFFF), image(image_bytes / 2);
        std::uint64_t inside = 0;
        tensor.for_each(place, [&](std::int64_t element, int byte) {
            expected[byte / 2] = element < 0 ? 0 : values[element];
            inside += element >= 0;
        });
        for (const auto& options : emulator::standard_schedules()) {
            ScopedOptions scoped(options);
            gpu::reset_counters();
            ASSERT_EQ(report_of(1, 1, sizeof(Image), load, tensor.map(buffer), place, tensor.box_bytes(),
                                reinterpret_cast<char*>(image.data())),
                      "");
            EXPECT_EQ(image, expected);
            EXPECT_EQ(gpu::counters()->tensors[0].requested_read, 2 * inside);
            EXPECT_EQ(gpu::counters()->shared_written, static_cast<std::uint64_t>(tensor.box_bytes()));
        }
    }
}

TEST(TensorCopy, StoresBoxesTiny) {
    for (std::size_t i = 0; i < boxes().size(); ++i) {
        SCOPED_TRACE(i);
        const auto& [tensor, place] = boxes()[i];
        if (*std::min_element(place.c.begin(), place.c.end()) < 0) continue;
        gpu::Buffer buffer("tensor", static_cast<std::size_t>(2 * tensor.elements()));
        std::vector<std::uint16_t> expected(tensor.elements(), 0xFFFF), stored(expected.size());
        tensor.for_each(place, [&](std::int64_t element, int byte) {
            if (element >= 0) expected[element] = static_cast<std::uint16_t>(byte / 2 + 1);
        });
        for (const auto& options : emulator::standard_schedules()) {
            ScopedOptions scoped(options);
            buffer.poison();
            gpu::reset_counters();
            ASSERT_EQ(report_of(1, 1, sizeof(Image), store, tensor.map(buffer), place), "");
            buffer.read(stored.data(), buffer.bytes());
            EXPECT_EQ(stored, expected);
            EXPECT_EQ(gpu::counters()->tensors[0].requested_written,
                      2u * (expected.size() - std::count(expected.begin(), expected.end(), 0xFFFF)));
            EXPECT_EQ(gpu::counters()->shared_read, static_cast<std::uint64_t>(tensor.box_bytes()));
        }
    }
}

TEST(TensorCopy, OperandsTiny) {
    const Tensor tensor{{64, 20, 2, 2, 2}, {64, 8, 2, 1, 1}, 128};
    gpu::Buffer buffer("tensor", static_cast<std::size_t>(2 * tensor.elements()));
    buffer.write(numbers(tensor.elements()).data(), buffer.bytes());
    std::vector<char> image(image_bytes);
    const auto load_report = [&](const gpu::TensorMap& map, Place place) {
        return report_of(1, 1, sizeof(Image), load, map, place, tensor.box_bytes(), image.data());
    };
    const auto store_report = [&](Place place) {
        return report_of(1, 1, sizeof(Image), store, tensor.map(buffer), place);
    };
    EXPECT_THAT(load_report(tensor.map(buffer), {{4, 0, 0, 0, 0}, 0}),
                HasSubstr("cp.async.bulk.tensor: the first coordinate in bytes, 8, is not a multiple of 16"));
    EXPECT_THAT(load_report(tensor.map(buffer), {{0, 0, 0, 0, 0}, 64}), HasSubstr("is not a multiple of 128"));
    EXPECT_THAT(load_report(tensor.map(buffer), {{0, 0, 0, 0, 0}, image_bytes - 1024}),
                HasSubstr("a live mbarrier is there"));
    EXPECT_THAT(load_report(tensor.map(buffer), {{0, 0, 0, 0, 0}, image_bytes + 896}),
                HasSubstr("outside the CTA's shared memory"));
    gpu::TensorMap flat = tensor.map(buffer);
    flat.rank = 4;
    EXPECT_THAT(load_report(flat, {{0, 0, 0, 0, 0}, 0}), HasSubstr("5 coordinates of a tensor map of 4 dimensions"));
    gpu::TensorMap large = tensor.map(buffer);
    large.size[4] = 3;
    EXPECT_THAT(load_report(large, {{0, 0, 0, 0, 2}, 0}), HasSubstr("of \"tensor\", which has"));
    EXPECT_THAT(store_report({{0, -1, 0, 0, 0}, 0}),
                HasSubstr("cp.async.bulk.tensor store that begins at coordinate -1 of dimension 1"));
    EXPECT_THAT(store_report({{12, 0, 0, 0, 0}, 0}), HasSubstr("is not a multiple of 16"));
    EXPECT_THAT(store_report({{0, 0, 0, 0, 0}, 16}), HasSubstr("is not a multiple of 128"));
}

// ---- loads in flight ----

struct Rows {
    gpu::SharedTile<float, 4, 64> row;
    gpu::SharedArray<gpu::Mbarrier, 2> barrier;
};

struct Source {
    gpu::Buffer buffer{"source", 4 * 256};
    Source() {
        std::vector<float> values(4 * 64);
        std::iota(values.begin(), values.end(), 1.0f);
        buffer.write(values.data(), buffer.bytes());
    }
    gpu::Matrix<const float> rows() const { return buffer.tensor<const float>(0, 0, 64, 64).matrix(0, 0, 0, 4); }
    gpu::Matrix<float> writable() const { return buffer.tensor<float>(0, 0, 64, 64).matrix(0, 0, 0, 4); }
};

template <class... Parameters, class... Arguments>
void expect_reports(const std::string& words, int threads, void (*kernel)(Parameters...), Arguments... arguments) {
    EXPECT_EQ(schedules_that_report(words, threads, sizeof(Rows), kernel, arguments...),
              static_cast<int>(emulator::standard_schedules().size()))
        << words;
}
template <class... Parameters, class... Arguments>
void expect_clean(int threads, void (*kernel)(Parameters...), Arguments... arguments) {
    EXPECT_EQ(schedules_that_report("", threads, sizeof(Rows), kernel, arguments...), 0);
}

enum class Early { nothing, read, write, another_copy, cp_async };

/// One row is on its way when somebody uses its place.
void use_early(gpu::Matrix<const float> source, Early early, int column) {
    auto& shared = start<Rows>();
    const std::uint32_t barrier = shared.barrier.address(0);
    gpu::mbarrier_arrive_expect_tx(barrier, 256);
    gpu::cp_async_bulk(shared.row.address(0, 0), source, 1, 0, 256, barrier);
    if (early == Early::read) static_cast<void>(float{shared.row(0, column)});
    if (early == Early::write) shared.row(0, column) = 1;
    if (early == Early::another_copy) gpu::cp_async_bulk(shared.row.address(0, 32), source, 1, 0, 16, barrier);
    if (early == Early::cp_async) gpu::cp_async_cg_16(shared.row.address(0, 60), source, 0, 0, 16);
    gpu::mbarrier_wait_parity(barrier, 0);
    if (float{shared.row(0, column)} != 65.0f + column) shared.row(3, 63 / column * 64) = 0;
    shared.row(0, column) = 1;
}

TEST(BulkCopy, DestinationInFlightTiny) {
    const Source source;
    expect_clean(1, use_early, source.rows(), Early::nothing, 63);
    expect_reports("read of 4 bytes at shared memory offset 252: ", 1, use_early, source.rows(), Early::read, 63);
    expect_reports("write of 4 bytes at shared memory offset 0: ", 1, use_early, source.rows(), Early::write, 0);
    expect_reports("cp.async.bulk of 16 bytes at shared memory offset 128: ", 1, use_early, source.rows(),
                   Early::another_copy, 1);
    expect_reports("cp.async of 16 bytes at shared memory offset 240: ", 1, use_early, source.rows(), Early::cp_async,
                   1);
    ScopedOptions late(Schedule::async_latest);
    EXPECT_THAT(report_of(1, 1, sizeof(Rows), use_early, source.rows(), Early::read, 1),
                HasSubstr("the bytes are the destination of a copy in flight, cp.async.bulk issued by thread 0 "
                          "(warp 0, lane 0) at"));
    ScopedOptions early(Schedule::async_earliest);
    EXPECT_THAT(report_of(1, 1, sizeof(Rows), use_early, source.rows(), Early::read, 1),
                HasSubstr("and the thread has not seen phase 0 of the mbarrier at shared memory offset 1024 complete"));
}

/// The wait is for another barrier than the one that counts the copy.
void wait_for_the_other(gpu::Matrix<const float> source, bool right) {
    auto& shared = start<Rows>();
    gpu::mbarrier_init(shared.barrier.address(1), 1);
    gpu::fence_mbarrier_init();
    for (int i = 0; i < 2; ++i) {
        gpu::mbarrier_arrive_expect_tx(shared.barrier.address(i), 256);
        gpu::cp_async_bulk(shared.row.address(i, 0), source, i, 0, 256, shared.barrier.address(i));
    }
    gpu::mbarrier_wait_parity(shared.barrier.address(1), 0);
    if (right) gpu::mbarrier_wait_parity(shared.barrier.address(0), 0);
    static_cast<void>(float{shared.row(0, 0)});
    gpu::mbarrier_wait_parity(shared.barrier.address(0), 0);
}

TEST(BulkCopy, OneBarrierSaysNothingOfAnothersCopiesTiny) {
    const Source source;
    expect_clean(1, wait_for_the_other, source.rows(), true);
    expect_reports("read of 4 bytes at shared memory offset 0", 1, wait_for_the_other, source.rows(), false);
}

/// The source changes under way: what arrives depends on when the engine reads it.
void overwrite_source(gpu::Matrix<const float> source, gpu::Matrix<float> same, float* sink) {
    auto& shared = start<Rows>();
    gpu::mbarrier_arrive_expect_tx(shared.barrier.address(0), 256);
    gpu::cp_async_bulk(shared.row.address(0, 0), source, 0, 0, 256, shared.barrier.address(0));
    same(0, 0) = -1;
    gpu::mbarrier_wait_parity(shared.barrier.address(0), 0);
    *sink = shared.row(0, 0);
}

TEST(BulkCopy, ReadsItsSourceEarlyOrLate) {
    for (const auto& [schedule, expected] :
         std::vector<std::pair<Schedule, float>>{{Schedule::async_earliest, 1.0f}, {Schedule::async_latest, -1.0f}}) {
        const Source source;
        ScopedOptions scoped(schedule);
        float sink = 0;
        ASSERT_EQ(report_of(1, 1, sizeof(Rows), overwrite_source, source.rows(), source.writable(), &sink), "");
        EXPECT_EQ(sink, expected);
    }
}

void raw_load(std::uint32_t shift, const char* source, const emulator::Region* region, int bytes) {
    auto& shared = start<Rows>();
    emulator::bulk_load(shared.row.address(0, 0) + shift, source, region, bytes, shared.barrier.address(0),
                        emulator::Site::current());
    gpu::mbarrier_arrive_expect_tx(shared.barrier.address(0), bytes);
    gpu::mbarrier_wait_parity(shared.barrier.address(0), 0);
}

TEST(BulkCopy, OperandsTiny) {
    const Source source;
    const auto* data = static_cast<const char*>(source.buffer.data());
    const auto report = [&](std::uint32_t shift, int offset, int bytes) {
        return report_of(1, 1, sizeof(Rows), raw_load, shift, data + offset, source.rows().region, bytes);
    };
    EXPECT_EQ(report(16, 32, 48), "");
    EXPECT_THAT(report(8, 0, 16), HasSubstr("cp.async.bulk: the destination in shared memory"));
    EXPECT_THAT(report(0, 8, 16), HasSubstr("cp.async.bulk: the address in global memory"));
    EXPECT_THAT(report(0, 0, 24), HasSubstr("cp.async.bulk: the number of bytes, 24, is not a multiple of 16"));
    EXPECT_THAT(report(0, 0, 0), HasSubstr("cp.async.bulk of 0 bytes"));
    EXPECT_THAT(report(0, 1024 - 16, 32), HasSubstr("of \"source\", which has 1024 bytes"));
}

// ---- stores, additions and their groups ----

/// What a kernel that adds a row of shared memory to global memory leaves out.
struct Without {
    bool fence = false, barrier = false, commit = false, wait = false, last_barrier = false;
    bool fence_by_issuer = false, read_only_wait = true;
};

/// Each thread writes two floats, thread 0 has them added twice; then the row is written anew.
void add_rows(gpu::Matrix<float> sums, Without without) {
    auto& shared = start<Rows>();
    const auto write = [&](float value) {
        for (int i = 0; i < 2; ++i) shared.row(0, threadIdx.x + 32 * i) = value * static_cast<float>(threadIdx.x + i);
    };
    for (int round = 1; round <= 2; ++round) {
        write(static_cast<float>(round));
        if (!without.fence) gpu::fence_proxy_async();
        if (!without.barrier) gpu::bar_sync();
        if (threadIdx.x == 0) {
            if (without.fence_by_issuer) gpu::fence_proxy_async();
            gpu::cp_reduce_async_bulk_add(sums, 0, 0, shared.row.address(0, 0), 256);
            if (!without.commit) gpu::cp_async_bulk_commit_group();
            if (!without.wait) {
                if (without.read_only_wait) gpu::cp_async_bulk_wait_group_read<0>();
                else gpu::cp_async_bulk_wait_group<0>();
            }
        }
        if (!without.last_barrier) gpu::bar_sync();
    }
}

TEST(BulkAdd, AddsTiny) {
    for (const auto& options : emulator::standard_schedules()) {
        for (const bool read_only_wait : {false, true}) {
            ScopedOptions scoped(options);
            gpu::Buffer buffer("sums", 256);
            buffer.write(std::vector<float>(64, 100).data(), 256);
            const auto sums = buffer.tensor<float>(0, 0, 64, 64).matrix(0, 0, 0, 1);
            gpu::reset_counters();
            ASSERT_EQ(report_of(1, 32, sizeof(Rows), add_rows, sums, Without{.read_only_wait = read_only_wait}), "");
            std::vector<float> result(64);
            buffer.read(result.data(), 256);
            for (int i = 0; i < 64; ++i) EXPECT_EQ(result[i], 100 + 3 * (i % 32 + i / 32));
            EXPECT_EQ(gpu::counters()->atomics, 128u);
            EXPECT_EQ(gpu::counters()->tensors[0].requested_written, 512u);
        }
    }
}

TEST(BulkAdd, EachDeletionIsReportedTiny) {
    gpu::Buffer buffer("sums", 256);
    const auto sums = buffer.tensor<float>(0, 0, 64, 64).matrix(0, 0, 0, 1);
    const auto reports = [&](const std::string& words, Without without) {
        expect_reports(words, 32, add_rows, sums, without);
    };
    const std::string missing_fence =
        " wrote there with an ordinary store, and no fence.proxy.async of that thread lies";
    reports(missing_fence, {.fence = true});
    reports(missing_fence, {.fence = true, .fence_by_issuer = true});
    reports("cp.reduce.async.bulk.add of 256 bytes at shared memory offset ", {.barrier = true});
    reports("may still be reading", {.commit = true});
    reports("may still be reading", {.wait = true});
    reports("at shared memory offset", {.last_barrier = true});
}

void add_one(gpu::Matrix<float> sum, float value) {
    auto& shared = gpu::shared_memory<Rows>();
    shared.row.store(0, 0, gpu::Vector<float, 4>{value, value, value, value});
    gpu::fence_proxy_async();
    gpu::cp_reduce_async_bulk_add(sum, 0, 0, shared.row.address(0, 0), 16);
    gpu::cp_async_bulk_commit_group();
    gpu::cp_async_bulk_wait_group_read<0>();
}

TEST(BulkAdd, NumbersTiny) {
    gpu::Buffer buffer("sum", 16);
    const auto bits = [&](float start, float value) {
        buffer.write(std::vector<float>(4, start).data(), 16);
        EXPECT_EQ(report_of(1, 1, sizeof(Rows), add_one, buffer.tensor<float>(0, 0, 4, 4).matrix(0, 0, 0, 1), value),
                  "");
        float sums[4];
        buffer.read(sums, 16);
        return std::bit_cast<std::uint32_t>(sums[3]);
    };
    EXPECT_EQ(bits(1, 0x1.8p-24f), std::bit_cast<std::uint32_t>(1 + 0x1p-23f));  // nearest
    EXPECT_EQ(bits(1, 0x1p-24f), std::bit_cast<std::uint32_t>(1.0f));            // even
    EXPECT_EQ(bits(0x1p-140f, 0x1p-149f), std::bit_cast<std::uint32_t>(0x1p-140f + 0x1p-149f));
    EXPECT_EQ(bits(INFINITY, -INFINITY), 0x7FFFFFFFu);
    EXPECT_EQ(bits(-NAN, 1), 0x7FFFFFFFu);
    EXPECT_EQ(bits(FLT_MAX, FLT_MAX), 0x7F800000u);
}

/// Two groups under way; the wait covers the first, as far as it has been read or to its end.
void two_groups(gpu::Matrix<float> out, bool read, bool rewrite_second, float* sink) {
    auto& shared = gpu::shared_memory<Rows>();
    for (int i = 0; i < 2; ++i) {
        shared.row.store(i, 0, gpu::Vector<float, 4>{1, 1, 1, 1});
        gpu::fence_proxy_async();
        gpu::cp_reduce_async_bulk_add(out, i, 0, shared.row.address(i, 0), 16);
        gpu::cp_async_bulk_commit_group();
    }
    if (read) gpu::cp_async_bulk_wait_group_read<1>();
    else gpu::cp_async_bulk_wait_group<1>();
    shared.row(0, 0) = 5;
    sink[0] = out(0, 0);
    sink[1] = out(1, 0);
    if (rewrite_second) shared.row(1, 0) = 5;
    gpu::cp_async_bulk_wait_group<0>();
    sink[2] = out(1, 0);
}

TEST(BulkAdd, WaitsCoverExactlyTheirGroups) {
    gpu::Buffer buffer("out", 2 * 16);
    const auto out = buffer.tensor<float>(0, 0, 4, 4).matrix(0, 0, 0, 2);
    const auto run = [&](bool read, float* sink) {
        buffer.write(std::vector<float>(8, 0).data(), 32);
        EXPECT_EQ(report_of(1, 1, sizeof(Rows), two_groups, out, read, false, sink), "");
        EXPECT_EQ(sink[2], 1);
    };
    float sink[3];
    expect_reports("may still be reading there: no wait_group that covers it", 1, two_groups, out, true, true, sink);
    ScopedOptions late(Schedule::async_latest);
    run(true, sink);
    EXPECT_EQ(sink[0] + sink[1], 0);  // read, not written
    run(false, sink);
    EXPECT_EQ(sink[0], 1);
    EXPECT_EQ(sink[1], 0);
}

/// A wait for less than an earlier one covered takes nothing back.
void weaker_wait(gpu::Matrix<float> out) {
    auto& shared = gpu::shared_memory<Rows>();
    for (int i = 0; i < 2; ++i) {
        shared.row.store(i, 0, gpu::Vector<float, 4>{1, 1, 1, 1});
        gpu::fence_proxy_async();
        gpu::cp_reduce_async_bulk_add(out, i, 0, shared.row.address(i, 0), 16);
        gpu::cp_async_bulk_commit_group();
    }
    gpu::cp_async_bulk_wait_group_read<0>();
    gpu::cp_async_bulk_wait_group<1>();
}

TEST(BulkAdd, WaitsTakeNothingBack) {
    gpu::Buffer buffer("out", 2 * 16);
    expect_clean(1, weaker_wait, buffer.tensor<float>(0, 0, 4, 4).matrix(0, 0, 0, 2));
}

void wait_by_another(gpu::Matrix<float> out) {
    auto& shared = start<Rows>();
    if (threadIdx.x == 0) {
        shared.row.store(0, 0, gpu::Vector<float, 4>{1, 1, 1, 1});
        gpu::fence_proxy_async();
        gpu::cp_reduce_async_bulk_add(out, 0, 0, shared.row.address(0, 0), 16);
        gpu::cp_async_bulk_commit_group();
    }
    gpu::bar_warp_sync(gpu::all_lanes);
    if (threadIdx.x == 1) gpu::cp_async_bulk_wait_group_read<0>();
    gpu::bar_warp_sync(gpu::all_lanes);
    if (threadIdx.x == 0) gpu::cp_async_bulk_wait_group_read<0>();
}
void read_unwritten(gpu::Matrix<float> out) {
    auto& shared = gpu::shared_memory<Rows>();
    gpu::cp_reduce_async_bulk_add(out, 0, 0, shared.row.address(2, 0), 16);
}

TEST(BulkAdd, MoreMisusesTiny) {
    gpu::Buffer buffer("out", 16);
    const auto out = buffer.tensor<float>(0, 0, 4, 4).matrix(0, 0, 0, 1);
    expect_reports("cp.async.bulk.wait_group.read by a thread that has ordered nothing; thread 0 (warp 0, lane 0)", 32,
                   wait_by_another, out);
    expect_reports("cp.reduce.async.bulk.add of 16 bytes at shared memory offset 512: nobody has written there", 1,
                   read_unwritten, out);
}

// ---- a tile from copy to copy ----

/// What an engine wrote another engine may read without a fence, once it is seen complete.
void pass_on(gpu::Matrix<const float> source, gpu::Matrix<float> sums, bool touch) {
    auto& shared = start<Rows>();
    gpu::mbarrier_arrive_expect_tx(shared.barrier.address(0), 256);
    gpu::cp_async_bulk(shared.row.address(0, 0), source, 1, 0, 256, shared.barrier.address(0));
    gpu::mbarrier_wait_parity(shared.barrier.address(0), 0);
    if (touch) shared.row(0, 5) = 1;
    gpu::cp_reduce_async_bulk_add(sums, 0, 0, shared.row.address(0, 0), 256);
    gpu::cp_async_bulk_commit_group();
    gpu::cp_async_bulk_wait_group_read<0>();
}

/// cp.async goes through the door of ordinary stores.
void cp_async_to_engine(gpu::Matrix<const float> source, gpu::Matrix<float> sums, bool fence) {
    auto& shared = gpu::shared_memory<Rows>();
    gpu::cp_async_cg_16(shared.row.address(0, 0), source, 0, 0, 16);
    gpu::cp_async_commit_group();
    gpu::cp_async_wait_group<0>();
    if (fence) gpu::fence_proxy_async();
    gpu::cp_reduce_async_bulk_add(sums, 0, 0, shared.row.address(0, 0), 16);
    gpu::cp_async_bulk_commit_group();
    gpu::cp_async_bulk_wait_group_read<0>();
}

TEST(BulkCopy, TwoDoorsTiny) {
    const Source source;
    gpu::Buffer buffer("sums", 256);
    const auto sums = buffer.tensor<float>(0, 0, 64, 64).matrix(0, 0, 0, 1);
    buffer.write(std::vector<float>(64, 0).data(), 256);
    expect_clean(1, pass_on, source.rows(), sums, false);
    expect_reports("thread 0 (warp 0, lane 0) wrote there with an ordinary store, and no fence.proxy.async", 1, pass_on,
                   source.rows(), sums, true);
    expect_clean(1, cp_async_to_engine, source.rows(), sums, true);
    expect_reports("no fence.proxy.async", 1, cp_async_to_engine, source.rows(), sums, false);
}

}  // namespace
