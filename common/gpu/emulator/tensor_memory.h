// The tensor memory of one CTA: its cells, its allocations, and what is known about each of its cells.
//
// As a byte of shared memory does (shared_arena.h), a granule, 16 lanes of a column, remembers who wrote it last and who
// read it since, as stamps of a vector clock. The agents are not threads but what is asynchronous: the loads and the
// stores of each warp, the products and the copies of each thread. The end of their epochs is known
//
//   of loads and stores   to the warp from its wait on; to others when a thread of the warp has executed
//                         fence::before_thread_sync after it, by whatever that thread then arrives at
//   of products, copies   to those who have seen the mbarrier's phase that their commit completed
//
// and what a thread knows counts for what it does in tensor memory from its next fence::after_thread_sync on.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/gpu/emulator/clock.h"
#include "common/gpu/emulator/emulator.h"

namespace emulator {

struct Cta;

constexpr int tensor_lanes = 128, tensor_columns = 512;
// One array each for the whole program, so that pointers to them compare.
inline constexpr char tensor_ld[] = "tcgen05.ld", tensor_st[] = "tcgen05.st", tensor_mma[] = "tcgen05.mma",
                      tensor_cp[] = "tcgen05.cp";

/// Lane and column of an address.
constexpr int lane_of(std::uint32_t address) { return static_cast<int>(address >> 16); }
constexpr int column_of(std::uint32_t address) { return static_cast<int>(address & 0xFFFF); }

/// A part of tensor memory: bit i of `lanes` stands for the lanes 16 i ... 16 i + 15.
struct Cells {
    unsigned lanes;
    int column, columns;
    auto operator<=>(const Cells&) const = default;
};

/// An instruction that touches tensor memory, in the name of an agent.
struct TensorAccess {
    const char* name;  // one of those above
    const Thread* issuer;
    Site site;
    unsigned agent;
    Cells cells;
    // Of a product: what it has in common with products that it may follow, and the agent whose copies it may; or 0.
    std::uint32_t chain = 0;
    unsigned copies = 0;

    auto order() const { return std::tie(agent, cells, chain, site.line, site.file, name, issuer, copies); }
    bool operator<(const TensorAccess& other) const { return order() < other.order(); }
};

/// When it was. No access: nobody's.
struct TensorStamp {
    const TensorAccess* access = nullptr;
    std::uint64_t epoch = 0;
    bool operator==(const TensorStamp&) const = default;
};

/// Whom an access must come after: the thread that issues it, or the lanes of its warp.
using Accessors = std::vector<const Thread*>;

class TensorMemory {
  public:
    /// Nothing is allocated.
    void start(Cta& cta);

    /// `columns` free columns for the thread's warp, poisoned; where, the seed decides. For a pair of CTAs: where the
    /// other one has them.
    int allocate(const Thread& thread, int columns, int ctas, Site site);
    /// Gives back one allocation, which nobody uses any more.
    void free(const Accessors& warp, std::uint32_t address, int columns, int ctas, Site site);
    void relinquish(int ctas, Site site);
    /// The cells lie in one allocation, of which the thread knows; else a report.
    void check_allocated(const Thread& thread, const char* instruction, const Cells& cells, Site site) const;
    /// All instructions of a kernel say the same cta_group.
    void check_group(const char* instruction, int ctas, Site site);
    /// The CTA has ended: columns that nobody has freed.
    void check_after_exit(Site site) const;

    float* cell(int lane, int column) {
        return &cells_[((static_cast<std::size_t>(lane) / 64 * blocks + column / 8) * 64 + lane % 64) * 8 + column % 8];
    }
    /// From a multiple of 64 lanes and of 8 columns on: 64 lanes of eight columns, of the next eight, and so on.
    float (*sum_blocks(int lane, int column))[64][8] { return reinterpret_cast<float(*)[64][8]>(cell(lane, column)); }

    /// Report what the rules forbid, then note the access: until `epoch` is over the cells may be read or written.
    void read(const TensorAccess& access, std::uint64_t epoch, const Accessors& accessors);
    void write(const TensorAccess& access, std::uint64_t epoch, const Accessors& accessors, bool reads_too = false);

  private:
    static constexpr int blocks = tensor_columns / 8;

    struct Allocation {
        int column, columns;
        Site site;
        Stamp stamp;
    };
    /// What is known about a granule. Readers are different agents; there is room for the four warps of a CTA of 512
    /// threads that share a quarter, and a thread's products. Where there are more, the last is the latest.
    struct Knowledge {
        TensorStamp writer, readers[5];
        bool operator==(const Knowledge&) const = default;
    };

    void check_written(const TensorAccess& access, const Knowledge& known, int lane, int column) const;
    void check_over(const TensorAccess& access, const TensorStamp& earlier, const char* does,
                    const Accessors& accessors, int lane, int column) const;
    TensorStamp stamp(const TensorAccess& access, std::uint64_t epoch);
    template <class Update>
    void for_each_run(const Cells& cells, Update update);

    Cta* cta_ = nullptr;
    std::unique_ptr<float[]> cells_;
    std::vector<Knowledge> granules_;
    std::set<TensorAccess> accesses_;
    std::vector<Allocation> allocations_;
    std::vector<std::pair<int, int>> history_;  // column and columns of all allocations so far
    int ctas_ = 0;                              // of the first instruction that said it
    bool relinquished_ = false;
};

/// "lanes 0-31 of columns 64-95".
std::string text(const Cells& cells);

}  // namespace emulator
