// One product of a warpgroup: how the engine reads its operands and adds to the sums.
#include "common/gpu/emulator/machine.h"
#include "common/gpu/emulator/operand.h"
#include "common/gpu/emulator/warpgroup.h"

namespace emulator {

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
