// The shared memory of one CTA, and what is known about each of its bytes.
//
// Each byte remembers who wrote it last and who read it since, with the epoch of that thread: how often it had synchronised.
// An access by another thread is ordered after it only if that thread has synchronised since: at a barrier, or, for a lane of
// the same warp, at bar.warp.sync. This finds a missing barrier whatever the order in which threads happen to run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/gpu/emulator/emulator.h"

namespace emulator {

struct Thread;

constexpr std::uint32_t epoch_mask = (1u << 20) - 1;

/// What happened last to a byte.
struct Mark {
    enum Kind : std::uint32_t { never_written, written, in_flight };
    std::uint32_t kind : 2;
    std::uint32_t thread : 10;  // who wrote it, or who issued the copy
    std::uint32_t epoch : 20;   // of that thread
};

struct Access {
    std::uint32_t valid : 1;
    std::uint32_t thread : 10;
    std::uint32_t epoch : 20;
    std::uint32_t unused : 1;
};

/// Two different threads that read a byte since it was written: a writer differs from at least one of them, so two are
/// enough.
struct Readers {
    Access last[2];

    /// `forgotten`: whether an access is ordered before whatever comes, or the reader's own.
    template <class Forgotten>
    void add(Access access, Forgotten forgotten) {
        for (Access& slot : last)
            if (slot.valid && slot.thread == access.thread) {
                slot = access;
                return;
            }
        for (Access& slot : last)
            if (forgotten(slot)) {
                slot = access;
                return;
            }
    }
};

/// What is known about one byte.
struct Knowledge {
    Mark written;
    Readers readers;
    std::uint32_t unused;
    bool operator==(const Knowledge& other) const { return std::memcmp(this, &other, sizeof(Knowledge)) == 0; }
};

class SharedArena {
  public:
    static constexpr std::size_t alignment = 1024;

    SharedArena();
    ~SharedArena();
    SharedArena(const SharedArena&) = delete;

    /// Poisoned bytes, none of them written; the first has the given address in the shared window.
    void start(std::size_t bytes, std::uint32_t first_address);

    char* memory() const { return memory_; }
    std::size_t bytes() const { return bytes_; }
    std::uint32_t first_address() const { return first_address_; }
    /// The byte with a 32-bit address; it may lie outside.
    char* at(std::uint32_t address) const { return memory_ + (static_cast<std::int64_t>(address) - first_address_); }
    bool contains(const void* pointer, std::size_t bytes) const {
        const auto offset = static_cast<std::size_t>(static_cast<const char*>(pointer) - memory_);
        return offset <= bytes_ && bytes <= bytes_ - offset;
    }

    /// Report what the rules of shared memory forbid, then note the access. `kind`: written, or in_flight for the
    /// destination of a copy.
    void read(const Thread& reader, const void* pointer, int bytes, const char* instruction, Site site);
    void write(const Thread& writer, const void* pointer, int bytes, const char* instruction, Site site,
               Mark::Kind kind = Mark::written);
    /// The issuer's wait has covered the copy onto these bytes.
    void complete(const Thread& issuer, const void* pointer, int bytes);

  private:
    void check_inside(const void* pointer, int bytes, const char* instruction, Site site) const;
    void check_readable(const Thread& reader, Mark mark, const char* byte, int bytes, const char* instruction,
                        Site site) const;
    void check_writable(const Thread& writer, const Knowledge& known, const char* byte, int bytes,
                        const char* instruction, Site site) const;

    /// Calls update(knowledge, byte) once for each run of bytes about which the same is known: mostly one for an
    /// access.
    template <class Update>
    void for_each_run(const char* first, int bytes, Update update) {
        Knowledge* known = known_.data() + (first - memory_);
        for (int i = 0; i < bytes;) {
            const Knowledge before = known[i];
            Knowledge after = before;
            update(after, first + i);
            int end = i + 1;
            while (end < bytes && known[end] == before) ++end;
            if (after != before) std::fill(known + i, known + end, after);
            i = end;
        }
    }

    char* memory_ = nullptr;
    std::size_t bytes_ = 0;
    std::uint32_t first_address_ = 0;
    std::vector<Knowledge> known_;
};

}  // namespace emulator
