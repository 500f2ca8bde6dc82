// One product: how the engine reads its operands and adds to the sums.
#include <algorithm>
#include <bitset>
#include <cstring>

#include "common/gpu/emulator/machine.h"
#include "common/gpu/emulator/region.h"
#include "common/gpu/emulator/warpgroup.h"

namespace emulator {

namespace {

constexpr int chunk_bytes = 16;

/// The parts of shared memory that the chunks make up, as few as there are: (first byte, bytes).
std::vector<std::pair<const char*, int>> ranges(const SharedArena& arena, const std::vector<char*>& chunks) {
    static std::bitset<max_shared_bytes / chunk_bytes + 1> used;
    std::size_t first = used.size(), last = 0;
    for (const char* chunk : chunks) {
        const std::size_t i = static_cast<std::size_t>(chunk - arena.memory()) / chunk_bytes;
        used.set(i);
        first = std::min(first, i);
        last = std::max(last, i);
    }
    std::vector<std::pair<const char*, int>> result;
    for (std::size_t i = first; i <= last; ++i) {
        if (!used[i]) continue;
        const std::size_t begin = i;
        while (used[i]) used.reset(i++);
        result.emplace_back(arena.memory() + begin * chunk_bytes, static_cast<int>((i - begin) * chunk_bytes));
    }
    return result;
}

/// Element (mn, k) of an operand goes to where place(mn, k) says.
template <class Place>
void read_operand(const std::vector<char*>& chunks, bool mn_major, Place place) {
    const int n = static_cast<int>(chunks.size()), mn_chunks = n / mma_k;
    for (int chunk = 0; chunk < n; ++chunk) {
        std::uint16_t elements[8];
        std::memcpy(elements, chunks[chunk], chunk_bytes);
        for (int e = 0; e < 8; ++e)
            (mn_major ? place(chunk % mn_chunks * 8 + e, chunk / mn_chunks) : place(chunk / 2, chunk % 2 * 8 + e)) =
                elements[e];
    }
}

}  // namespace

void order_reads(Cta& cta, unsigned agent, const Product& product) {
    const Stamp end{static_cast<std::uint16_t>(agent), product.group};
    for (const auto* chunks : {&product.b, &product.a}) {
        if (chunks->empty()) continue;
        for (const auto& [pointer, bytes] : ranges(cta.arena, *chunks))
            cta.arena.engine_read(product, end, pointer, bytes);
        const auto [first, last] = std::minmax_element(chunks->begin(), chunks->end());
        cta.arena.remember_reader(product, agent, *first, static_cast<int>(*last - *first) + chunk_bytes);
        totals.shared_read += chunks->size() * chunk_bytes;
    }
}

Product::Product(Thread* issuer, Site site, Warpgroup& warpgroup, const Wgmma& shape, std::vector<char*> a,
                 std::vector<char*> b)
    : AsyncOperation(product_name, issuer, site),
      warpgroup(warpgroup),
      shape(shape),
      a(std::move(a)),
      b(std::move(b)),
      number(warpgroup.products.issued++),
      group(warpgroup.products.committed + 1) {}

bool Product::step() {
    Products& products = warpgroup.products;
    for (Product& earlier : products.operations) {
        if (&earlier == this) break;
        if (earlier.d == d) finish(earlier);
    }
    {
        EngineSpeaks engine(*this);
        tsan::acquire(products.issue_tokens[number % products.issue_tokens.size()]);
        for (const auto* chunks : {&a, &b})
            for (const char* chunk : *chunks) tsan::read_range(chunk, chunk_bytes);
        tsan::release(products.done_tokens[group % products.done_tokens.size()]);
    }
    std::uint16_t rows[wgmma_m][mma_k], columns[256 / mma_n][mma_k][mma_n];
    read_operand(
        b, shape.b_mn_major, [&](int n, int k) -> auto& { return columns[n / mma_n][k][n % mma_n]; });
    if (a_registers == nullptr) {
        read_operand(
            a, shape.a_mn_major, [&](int m, int k) -> auto& { return rows[m][k]; });
    } else {
        a_registers->read_a(rows);
    }
    if (!shape.accumulate) d->clear_sums();
    multiply_accumulate_wide(shape.bf16, rows, columns, d->sum_blocks(), shape.n);
    return true;
}

}  // namespace emulator
