// The registers that warpgroup products use, as far as a program without registers shows them: arrays on the threads'
// stacks.
//
// What should be in an array is known from the moment that a wgmma_fence names it: what ordinary code left there, later
// what products leave. From the issue of a product to the wait that covers it the sums of D are with the engine, and D
// is poisoned. Where something else is found, ordinary code has touched it.
#pragma once

#include <algorithm>
#include <array>
#include <initializer_list>
#include <list>
#include <string>
#include <vector>

#include "common/gpu/emulator/emulator.h"
#include "common/gpu/emulator/tensor_core.h"

namespace emulator {

/// Where the same array lies in each thread of a warpgroup.
using RegisterPointers = std::array<char*, 128>;
/// What each thread passed to an instruction.
using RegisterLists = std::array<const std::initializer_list<RegisterArray>*, 128>;

struct FencedArray {
    RegisterPointers data;
    int bytes;
    std::vector<char> known;  // of one thread after the other: what is there unless ordinary code has touched it

    /// Whether these are a part of it, the same in every thread.
    bool lies_at(const RegisterPointers& part) const {
        for (std::size_t thread = 1; thread < data.size(); ++thread)
            if (part[thread] - data[thread] != part[0] - data[0]) return false;
        return true;
    }
};

/// D or A of products under way: a part of an array.
struct RegisterUse {
    const char* operand;  // "D" or "A"
    FencedArray* array;
    int first, bytes;
    int products = 0;  // under way
    Site site{};       // of the latest
    // Of D: the sums, blocks of eight columns.
    std::vector<std::array<std::array<float, mma_n>, wgmma_m>> sums = {};

    char* data(int thread) const { return array->data[thread] + first; }
    auto* sum_blocks() { return reinterpret_cast<float(*)[wgmma_m][mma_n]>(sums.data()); }
    void clear_sums() { std::fill(sums.begin(), sums.end(), decltype(sums)::value_type{}); }
    /// A from the registers of the threads.
    void read_a(std::uint16_t (&a)[wgmma_m][mma_k]) const;
};

class WarpgroupRegisters {
  public:
    void clear() { *this = {}; }
    /// What ordinary code left in these arrays is what the products that follow may use.
    void fence(const RegisterLists& lists, Site site);
    /// One more product under way that uses these registers, 4 bytes of each thread or a multiple. Reports registers
    /// that no fence has named since ordinary code changed them, or that a product in flight uses otherwise. The sums
    /// of a new D are those in the registers.
    RegisterUse& use(const char* operand, const RegisterPointers& data, int bytes, Site site);
    /// Registers that no product uses any more are the threads' again. `lists` must name them.
    void release(const RegisterLists& lists, Site site);

  private:
    FencedArray* array_of(const char* data, int bytes);

    std::list<FencedArray> arrays_;
    std::list<RegisterUse> uses_;
    bool fenced_ = false;
};

}  // namespace emulator
