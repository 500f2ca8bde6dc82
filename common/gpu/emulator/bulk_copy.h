// Bulk and tensor copies: loads that mbarriers count, stores and additions that belong to the bulk groups of a thread.
#pragma once

#include <vector>

#include "common/gpu/emulator/async_operation.h"
#include "common/gpu/emulator/box.h"

namespace emulator {

struct Mbarrier;

/// A box on its way to the shared memory of one CTA.
struct Load : AsyncOperation {
    Box box;
    Cta* cta;
    std::uint32_t destination;
    Mbarrier* barrier;

    Load(const char* name, Thread* issuer, Site site, const Box& box, Cta* cta, std::uint32_t destination,
         Mbarrier* barrier)
        : AsyncOperation(name, issuer, site), box(box), cta(cta), destination(destination), barrier(barrier) {}
    bool step() override;
    const Mbarrier* counted_by() const override { return barrier; }
    bool touches(const Cta& other) const override { return cta == &other; }
};

/// A box on its way to global memory, in two steps: it is read, it is written.
struct Store : AsyncOperation {
    Box box;
    std::uint32_t source;
    bool adds;                // fp32 additions instead of stores
    std::vector<char> bytes;  // what was read, row by row

    Store(const char* name, Thread* issuer, Site site, const Box& box, std::uint32_t source, bool adds)
        : AsyncOperation(name, issuer, site), box(box), source(source), adds(adds) {}
    bool step() override;
    bool was_read() const { return !bytes.empty(); }

  private:
    void read();
    void write();
};

struct BulkGroups : Groups<Store> {
    unsigned agent = 0;           // the engine that reads for this thread; its epochs are the groups, counted from 1
    std::uint32_t committed = 0;  // groups so far
    std::uint32_t seen_read = 0;  // groups that a wait has covered

    void clear() { *this = {}; }
};

/// Reports stores that no wait has seen read, and lets the others end.
void finish_bulk_at_exit(Thread& thread, Site site);

}  // namespace emulator
