#include <array>

#include "common/gpu/launch.h"
#include "common/gpu/tests/probes/engine_probes.cuh"
#include "common/gpu/tests/probes/probes.h"

namespace probes {

namespace {

std::vector<std::uint32_t> words_of(const gpu::Buffer& buffer) {
    std::vector<std::uint32_t> words(buffer.bytes() / 4);
    buffer.read(words.data(), buffer.bytes());
    return words;
}

template <class T>
gpu::Buffer filled(const char* name, const std::vector<T>& values) {
    gpu::Buffer buffer(name, values.size() * sizeof(T));
    buffer.write(values.data(), buffer.bytes());
    return buffer;
}

constexpr int box_cases = 5;

/// Boxes inside the tensor, at its edges and beside it. The tensor has 56 columns in rows of 72, 21 rows, 3 planes, 2
/// of the next; the box is box_columns x 5 x 2 x 1 x 1. Stores go to a tensor with a fifth dimension for each case.
void probe_boxes(std::vector<Probe>& probes, int swizzle_bytes, int box_columns, int line) {
    constexpr std::int64_t columns = 56, rows = 21, row = 72, plane = rows * row;
    const std::vector<std::int32_t> cases{
        8,       3,       0,  1, 0, /* store */ 16, 5,  1, 0, 0,  // inside, and inside
        40,      18,      2,  0, 1, /* store */ 40, 18, 2, 1, 1,  // beyond the high ends
        -8,      -2,      -1, 0, 0, /* store */ 0,  20, 0, 0, 2,  // before the beginning
        0,       0,       3,  1, 0, /* store */ 56, 0,  0, 0, 3,  // nothing inside
        -100000, 2000000, 0,  0, 7, /* store */ 0,  0,  2, 1, 4,
    };
    std::vector<std::uint16_t> numbers(plane * 3 * 2 * 2);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::uint16_t>(i + 1);
    const gpu::Buffer from = filled("from", numbers), operands = filled("cases", cases);
    const gpu::Buffer to = filled("to", std::vector<std::uint16_t>(plane * 3 * 2 * box_cases, 0xEEEE));
    const gpu::Buffer images("images", std::size_t{box_cases} * image_words * 4);
    gpu::TensorMapShape shape{
        5, {columns, rows, 3, 2, 2}, {1, row, plane, plane * 3, plane * 6}, {box_columns, 5, 2, 1, 1}, swizzle_bytes};
    const gpu::TensorMap from_map = gpu::encode_tensor_map("from", from.tensor<bf16>(0, 0, 0, 0), shape);
    shape.size[4] = box_cases;
    const gpu::TensorMap to_map = gpu::encode_tensor_map("to", to.tensor<bf16>(0, 0, 0, 0), shape);
    gpu::launch({"move_boxes", box_cases, 128, sizeof(BoxImage)}, move_boxes, from_map, to_map,
                operands.tensor<const std::int32_t>(0, 0, 10, 10), images.tensor<std::uint32_t>(0, 0, 32, 32),
                2 * box_columns * 5 * 2, line);
    gpu::synchronize();
    const std::string name = "_swizzle_" + std::to_string(swizzle_bytes) + "_columns_" + std::to_string(box_columns) +
                             "_line_" + std::to_string(line);
    probes.push_back({.name = "tensor_load" + name, .words = words_of(images), .case_words = image_words});
    probes.push_back({.name = "tensor_store" + name, .words = words_of(to)});
}

void probe_bulk_adds(std::vector<Probe>& probes) {
    constexpr int ctas = 24, columns = 128;
    std::vector<float> integers(ctas * columns);
    for (int i = 0; i < ctas * columns; ++i) integers[i] = static_cast<float>(i * 7 % 1001 - 500);
    const gpu::Buffer contended = filled("sums", std::vector<float>(columns, 1)), addends = filled("addends", integers);
    gpu::launch({"add_rows", ctas, columns, sizeof(AddRow)}, add_rows, contended.tensor<float>(0, 0, columns, columns),
                addends.tensor<const float>(0, 0, columns, columns), false);
    gpu::synchronize();
    probes.push_back({.name = "bulk_add_contended", .words = words_of(contended), .operands = words_of(addends)});

    // Rounding, subnormals, infinities, NaN.
    constexpr std::uint32_t specials[] = {0x00000000u, 0x80000000u, 0x00000001u, 0x807FFFFFu, 0x00800000u, 0x7F7FFFFFu,
                                          0xFF7FFFFFu, 0x7F800000u, 0xFF800000u, 0x7F800001u, 0xFFFFFFFFu, 0x3F800000u,
                                          0x33800000u, 0x33800001u, 0xBF800001u, 0x4B000001u};
    std::vector<std::uint32_t> sums, numbers;
    for (const std::uint32_t a : specials)
        for (const std::uint32_t b : specials) {
            sums.push_back(a);
            numbers.push_back(b);
        }
    const gpu::Buffer own = filled("sums", sums), special_addends = filled("addends", numbers);
    gpu::launch({"add_rows", 2, columns, sizeof(AddRow)}, add_rows, own.tensor<float>(0, 0, columns, columns),
                special_addends.tensor<const float>(0, 0, columns, columns), true);
    gpu::synchronize();
    probes.push_back({.name = "bulk_add_numbers", .words = words_of(own)});
}

void probe_ring(std::vector<Probe>& probes) {
    std::vector<std::uint32_t> words(ring_rounds * ring_consumers);
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::uint32_t>(i * 2654435761u);
    const gpu::Buffer in = filled("in", words), out("out", words.size() * 4);
    gpu::launch({"engine_ring", 1, ring_consumers + 32, sizeof(EngineRing)}, engine_ring,
                in.tensor<const std::uint32_t>(0, 0, ring_consumers, ring_consumers),
                out.tensor<std::uint32_t>(0, 0, ring_consumers, ring_consumers));
    gpu::synchronize();
    probes.push_back({.name = "mbarrier_ring", .words = words_of(out), .operands = words});
}

void probe_cluster(std::vector<Probe>& probes) {
    constexpr int ctas = 2 * cluster_ctas;
    std::vector<std::uint16_t> numbers(24 * 64);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::uint16_t>(i + 1);
    const gpu::Buffer in = filled("in", numbers), out = filled("out", std::vector<std::uint32_t>(ctas * 20 * 32));
    const gpu::TensorMap map = gpu::tile_map("in", in.tensor<bf16>(0, 0, 64, 64), 1, 1, 24, 16);
    gpu::launch({"cluster_probe", ctas, 32, sizeof(ClusterShared), cluster_ctas}, cluster_probe, map,
                out.tensor<std::uint32_t>(0, 0, 32, 32));
    gpu::synchronize();
    probes.push_back({.name = "cluster", .words = words_of(out)});
}

}  // namespace

std::vector<Probe> run_engine_probes() {
    std::vector<Probe> probes;
    for (const auto& [swizzle_bytes, box_columns, line] : {std::array{0, 64, 0},
                                                           {0, 8, 1},
                                                           {32, 16, 1},
                                                           {32, 8, 2},
                                                           {64, 32, 1},
                                                           {64, 16, 3},
                                                           {128, 64, 0},
                                                           {128, 64, 5},
                                                           {128, 40, 2}})
        probe_boxes(probes, swizzle_bytes, box_columns, line);
    probe_bulk_adds(probes);
    probe_ring(probes);
    probe_cluster(probes);
    return probes;
}

}  // namespace probes
