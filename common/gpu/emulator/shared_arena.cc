#include "common/gpu/emulator/shared_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "common/gpu/emulator/cluster.h"
#include "common/gpu/emulator/machine.h"

namespace emulator {

namespace {

constexpr int granule = 16;

Stamp stamp(const Thread& thread) { return {static_cast<std::uint16_t>(thread.agent), thread.epoch}; }

void add_reader(Knowledge& known, Stamp stamp, const Thread& reader) {
    Stamp& first = known.readers[0];
    (first.agent == stamp.agent || ordered(first, reader) ? first : known.readers[1]) = stamp;
}

}  // namespace

SharedArena::SharedArena() {
    void* memory = mmap(nullptr, max_shared_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<char*>(memory);
}

SharedArena::~SharedArena() { munmap(memory_, max_shared_bytes); }

void SharedArena::start(std::size_t bytes, std::uint32_t first_address) {
#if GPU_TSAN
    // Fresh memory to the race detector: what the CTA before did here is no race with this one.
    mmap(memory_, max_shared_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
#endif
    bytes_ = bytes;
    first_address_ = first_address;
    std::memset(memory_, 0xFF, bytes);
    const std::size_t granules = (bytes + granule - 1) / granule;
    granules_.assign(granules, {});
    details_.resize(granules * granule);
    engine_reads_.clear();
    engine_writes_.clear();
}

/// Calls update(knowledge, byte) once for each run of bytes about which the same is known: mostly one for an access.
template <class Update>
void SharedArena::for_each_run(const void* first, int bytes, Update update) {
    // Elements begin ... end - 1 stand for `width` bytes each.
    const auto runs = [&](std::vector<Knowledge>& all, std::size_t begin, std::size_t end, int width) {
        while (begin < end && all[begin].kind != Knowledge::mixed) {
            const Knowledge before = all[begin];
            Knowledge after = before;
            update(after, memory_ + begin * width);
            std::size_t stop = begin + 1;
            while (stop < end && all[stop] == before) ++stop;
            if (after != before) std::fill(all.begin() + begin, all.begin() + stop, after);
            begin = stop;
        }
        return begin;
    };
    std::size_t at = static_cast<std::size_t>(static_cast<const char*>(first) - memory_);
    const std::size_t end = at + static_cast<std::size_t>(bytes);
    while (at < end) {
        if (at % granule == 0 && end - at >= granule)
            at = runs(granules_, at / granule, end / granule, granule) * granule;
        if (at == end) return;
        Knowledge& whole = granules_[at / granule];
        const std::size_t begin = at / granule * granule, stop = std::min(begin + granule, end);
        const auto parts = details_.begin() + static_cast<std::ptrdiff_t>(begin);
        if (whole.kind != Knowledge::mixed) {
            Knowledge after = whole;
            update(after, memory_ + at);
            if (after != whole) {
                std::fill_n(parts, granule, whole);
                std::fill(parts + (at - begin), parts + (stop - begin), after);
                whole.kind = Knowledge::mixed;
            }
        } else {
            runs(details_, at, stop, 1);
            if (std::all_of(parts, parts + granule, [&](const Knowledge& known) { return known == *parts; }))
                whole = *parts;
        }
        at = stop;
    }
}

// Ordinary accesses --------------------------------------------------------------------------------------------------

void SharedArena::read(const Thread& reader, const void* pointer, int bytes, const char* instruction, Site site) {
    if (!contains(pointer, bytes)) check_inside(pointer, bytes, instruction, site);
    for_each_run(pointer, bytes, [&](Knowledge& known, const char* byte) {
        // Most reads are allowed and need no call.
        const bool allowed = known.kind == Knowledge::written && ordered(known.writer, reader);
        if (!allowed) check_readable(reader, known, byte, bytes, instruction, site);
        add_reader(known, stamp(reader), reader);
    });
}

void SharedArena::write(const Thread& writer, const void* pointer, int bytes, const char* instruction, Site site,
                        Knowledge::Kind kind) {
    check_inside(pointer, bytes, instruction, site);
    for_each_run(pointer, bytes, [&](Knowledge& known, const char* byte) {
        check_writable(writer, known, byte, bytes, instruction, site);
        known = {stamp(writer), {}, kind};
    });
}

void SharedArena::complete(const Thread& issuer, const void* pointer, int bytes) {
    for_each_run(pointer, bytes, [&](Knowledge& known, const char*) {
        known = {stamp(issuer), {}, Knowledge::written};
    });
}

void SharedArena::set_mbarrier(const Thread& thread, const void* pointer, bool live) {
    for_each_run(pointer, 8, [&](Knowledge& known, const char*) {
        known = {stamp(thread), {}, live ? Knowledge::mbarrier : Knowledge::never_written};
    });
    std::memset(const_cast<void*>(pointer), 0xFF, 8);
}

// Engines ------------------------------------------------------------------------------------------------------------

void SharedArena::engine_read(const AsyncOperation& operation, Stamp end, const void* pointer, int bytes) {
    const Thread& issuer = *operation.issuer;
    check_inside(pointer, bytes, operation.name, operation.site);
    for_each_run(pointer, bytes, [&](Knowledge& known, const char* byte) {
        check_readable(issuer, known, byte, bytes, operation.name, operation.site);
        const Stamp writer = known.writer;
        const Agent& agent = issuer.cta->cluster->agents[writer.agent];
        const std::uint32_t fenced =
            writer.agent == issuer.agent ? issuer.fenced_epoch : issuer.past->fenced(writer.agent);
        if (agent.thread != nullptr && writer.epoch > fenced)
            machine.report(where(operation.name, byte, bytes) + ": " + text(*agent.thread) +
                               " wrote there with an ordinary store, and no fence.proxy.async of that thread lies "
                               "between the store and the barrier",
                           operation.site);
        add_reader(known, end, issuer);
    });
}

void SharedArena::remember_reader(const AsyncOperation& operation, unsigned agent, const void* pointer, int bytes,
                                  const char* missing) {
    engine_reads_[{static_cast<const char*>(pointer), agent}] = {bytes,          operation.name, operation.issuer,
                                                                 operation.site, agent,          missing};
}

void SharedArena::engine_write(const AsyncOperation& operation, unsigned mbarrier, const void* pointer, int bytes) {
    check_inside(pointer, bytes, operation.name, operation.site);
    for_each_run(pointer, bytes, [&](Knowledge& known, const char* byte) {
        check_writable(*operation.issuer, known, byte, bytes, operation.name, operation.site);
        known = {{static_cast<std::uint16_t>(mbarrier), 0}, {}, Knowledge::in_flight};
    });
    engine_writes_[{static_cast<const char*>(pointer), mbarrier}] = {bytes,          operation.name, operation.issuer,
                                                                     operation.site, mbarrier,       nullptr};
    std::memset(const_cast<void*>(pointer), 0xFF, static_cast<std::size_t>(bytes));
}

void SharedArena::delivered(Stamp end, const void* pointer, int bytes) {
    for_each_run(pointer, bytes, [&](Knowledge& known, const char*) { known = {end, {}, Knowledge::written}; });
}

}  // namespace emulator
