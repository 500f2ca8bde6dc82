// Warpgroup products, from issue to the wait that covers them.
#pragma once

#include "common/gpu/emulator/async_operation.h"
#include "common/gpu/emulator/matrix_descriptor.h"
#include "common/gpu/emulator/warpgroup_registers.h"

namespace emulator {

struct Warpgroup;

constexpr const char* product_name = "wgmma";

/// One wgmma. Issued: the sums are with the engine, D is poisoned, operands in shared memory may be read. Performed, at
/// a time that the schedule draws, after earlier ones on the same D: they are read, the sums grow. Complete, when a
/// wait of the warpgroup covers it: the registers and the operands are free.
struct Product : AsyncOperation {
    Warpgroup& warpgroup;
    Wgmma shape;
    std::vector<char*> a, b;  // chunks in shared memory; a: unless it is in registers
    RegisterUse *d = nullptr, *a_registers = nullptr;
    std::uint32_t number, group;  // counted from 0, from 1

    Product(Thread* issuer, Site site, Warpgroup& warpgroup, const Wgmma& shape, std::vector<char*> a,
            std::vector<char*> b);
    bool step() override;
};

struct Products : Groups<Product> {
    WarpgroupRegisters registers;
    unsigned agent = 0;                          // the engine that reads for this warpgroup; its epochs are the groups
    std::uint32_t committed = 0, completed = 0;  // groups so far
    std::uint32_t issued = 0;                    // products so far
    std::array<tsan::Token, 64> issue_tokens{};  // by number of the product
    std::array<tsan::Token, 16> done_tokens{};   // by group
};

}  // namespace emulator
