// The shared memory of one CTA, and what is known about each of its bytes.
//
// Each byte remembers who wrote it last and who read it since, as stamps of a vector clock (clock.h). An access by
// another thread is ordered after it only if that thread has synchronised with it since. This finds a missing barrier,
// wait or arrival whatever the order in which threads and engines happen to run. Engines of copies and products write
// and read in their own name: until a wait has shown a thread the end of their epoch, their bytes are not to be
// touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "common/gpu/emulator/clock.h"
#include "common/gpu/emulator/emulator.h"

namespace emulator {

struct AsyncOperation;

/// What is known about one byte, or about the 16 bytes of a granule alike.
struct alignas(16) Knowledge {
    enum Kind : std::uint8_t {
        never_written,
        written,
        in_flight,  // the destination of a copy: of the thread's cp.async, or of one that an mbarrier counts
        mbarrier,   // of a live one
        mixed       // of a granule: see its bytes
    };
    Stamp writer;
    // Two different agents that have read since, the second the latest: a writer differs from at least one of them.
    Stamp readers[2];
    Kind kind;

    bool operator==(const Knowledge& other) const { return std::memcmp(this, &other, sizeof(Knowledge)) == 0; }
};
static_assert(sizeof(Knowledge) == 16);

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
    void check_inside(const void* pointer, int bytes, const char* instruction, Site site) const;

    /// Report what the rules of shared memory forbid, then note the access. The thread may be of another CTA of the
    /// cluster.
    void read(const Thread& reader, const void* pointer, int bytes, const char* instruction, Site site);
    void write(const Thread& writer, const void* pointer, int bytes, const char* instruction, Site site,
               Knowledge::Kind kind = Knowledge::written);
    /// The issuer's wait has covered its cp.async onto these bytes.
    void complete(const Thread& issuer, const void* pointer, int bytes);

    /// An engine that the operation's issuer sets off is to read these bytes until `end`, of whose epoch the issuer's
    /// wait will tell. They must be written, and if by ordinary stores, then those must have passed a proxy fence.
    void engine_read(const AsyncOperation& operation, Stamp end, const void* pointer, int bytes);
    /// Whom reports are to name for what this agent reads in a part of the memory, and what they say is missing.
    void remember_reader(const AsyncOperation& operation, unsigned agent, const void* pointer, int bytes,
                         const char* missing = "no wait_group that covers it lies between");
    /// An engine is to write these bytes; nobody touches them until the mbarrier has counted them.
    void engine_write(const AsyncOperation& operation, unsigned mbarrier, const void* pointer, int bytes);
    /// They are there, counted by an mbarrier in this epoch.
    void delivered(Stamp end, const void* pointer, int bytes);

    /// The bytes of an mbarrier begin or end their life as such.
    void set_mbarrier(const Thread& thread, const void* pointer, bool live);

  private:
    /// An access of an engine, kept for reports.
    struct Order {
        int bytes;
        const char* name;
        const Thread* issuer;
        Site site;
        unsigned agent;
        const char* missing;  // of a read
    };
    using Orders = std::map<std::pair<const char*, unsigned>, Order>;  // by first byte and agent

    void check_readable(const Thread& reader, const Knowledge& known, const char* byte, int bytes,
                        const char* instruction, Site site) const;
    void check_writable(const Thread& writer, const Knowledge& known, const char* byte, int bytes,
                        const char* instruction, Site site) const;
    void check_touchable(const Thread& thread, const Knowledge& known, const char* byte, int bytes,
                         const char* instruction, Site site) const;
    std::string where(const char* instruction, const char* byte, int bytes) const;
    const Order* order_in(const Orders& orders, unsigned agent, const char* byte) const;
    static std::string text_of(const Order* order);

    template <class Update>
    void for_each_run(const void* first, int bytes, Update update);

    char* memory_ = nullptr;
    std::size_t bytes_ = 0;
    std::uint32_t first_address_ = 0;
    // Most accesses are of 16 bytes or a multiple: what is the same for a whole granule is kept once.
    std::vector<Knowledge> granules_, details_;
    Orders engine_reads_, engine_writes_;
};

}  // namespace emulator
