#include "common/gpu/emulator/shared_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "common/gpu/emulator/machine.h"

namespace emulator {

namespace {

/// Whether what `mark.thread` did is not yet ordered before what `thread` does now: lanes of one warp are ordered by whatever
/// synchronised them, others only by a barrier.
template <class Mark>
bool unordered(const Mark& mark, const Thread& thread) {
    const Thread& owner = *thread.cta->threads[mark.thread];
    if (owner.index == thread.index) return false;
    const std::uint32_t since_barrier = owner.epoch - owner.barrier_epoch;
    return ((owner.epoch - mark.epoch) & epoch_mask) <= (owner.warp() == thread.warp() ? 0 : since_barrier);
}

std::string where(const SharedArena& arena, const char* instruction, const char* byte, int bytes) {
    return std::string(instruction) + " of " + std::to_string(bytes) + " bytes at shared memory offset " +
           std::to_string(byte - arena.memory());
}

/// The copy in flight that owns a byte.
const Copy* copy_onto(const Thread& issuer, const char* byte) {
    for (const Copy& copy : issuer.copies.copies)
        if (copy.destination <= byte && byte < copy.destination + copy.bytes) return &copy;
    return nullptr;
}

void check_in_flight(const SharedArena& arena, const Thread& thread, Mark mark, const char* byte, int bytes,
                     const char* instruction, Site site) {
    if (mark.kind != Mark::in_flight) return;
    const Thread& issuer = *thread.cta->threads[mark.thread];
    const Copy* copy = copy_onto(issuer, byte);
    machine.report(where(arena, instruction, byte, bytes) +
                       ": the bytes are the destination of a cp.async in flight, issued by " + text(issuer) +
                       (copy != nullptr ? " at " + text(copy->site) : "") +
                       "; its wait_group has not covered the copy yet",
                   site);
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
    known_.assign(bytes, {});
}

void SharedArena::check_inside(const void* pointer, int bytes, const char* instruction, Site site) const {
    if (contains(pointer, static_cast<std::size_t>(bytes))) return;
    machine.report(where(*this, instruction, static_cast<const char*>(pointer), bytes) +
                       ": outside the CTA's shared memory of " + std::to_string(bytes_) + " bytes",
                   site);
}

void SharedArena::read(const Thread& reader, const void* pointer, int bytes, const char* instruction, Site site) {
    check_inside(pointer, bytes, instruction, site);
    const char* first = static_cast<const char*>(pointer);
    for_each_run(first, bytes, [&](Knowledge& known, const char* byte) {
        check_readable(reader, known.written, byte, bytes, instruction, site);
        known.readers.add({1, static_cast<std::uint32_t>(reader.index), reader.epoch & epoch_mask, 0},
                          [&](const Access& old) { return !old.valid || !unordered(old, reader); });
    });
}

void SharedArena::check_readable(const Thread& reader, Mark mark, const char* byte, int bytes, const char* instruction,
                                 Site site) const {
    if (mark.kind == Mark::never_written)
        machine.report(where(*this, instruction, byte, bytes) + ": nobody has written there since the CTA began", site);
    check_in_flight(*this, reader, mark, byte, bytes, instruction, site);
    if (unordered(mark, reader))
        machine.report(where(*this, instruction, byte, bytes) + ": " + text(*reader.cta->threads[mark.thread]) +
                           " wrote there and no barrier lies between",
                       site);
}

void SharedArena::write(const Thread& writer, const void* pointer, int bytes, const char* instruction, Site site,
                        Mark::Kind kind) {
    check_inside(pointer, bytes, instruction, site);
    const char* first = static_cast<const char*>(pointer);
    for_each_run(first, bytes, [&](Knowledge& known, const char* byte) {
        check_writable(writer, known, byte, bytes, instruction, site);
        known = {{kind, static_cast<std::uint32_t>(writer.index), writer.epoch & epoch_mask}, {}, 0};
    });
}

void SharedArena::check_writable(const Thread& writer, const Knowledge& known, const char* byte, int bytes,
                                 const char* instruction, Site site) const {
    const auto other = [&](std::uint32_t thread) { return text(*writer.cta->threads[thread]); };
    check_in_flight(*this, writer, known.written, byte, bytes, instruction, site);
    if (known.written.kind == Mark::written && unordered(known.written, writer))
        machine.report(where(*this, instruction, byte, bytes) + ": " + other(known.written.thread) +
                           " wrote there too and no barrier lies between",
                       site);
    for (const Access& reader : known.readers.last)
        if (reader.valid && unordered(reader, writer))
            machine.report(where(*this, instruction, byte, bytes) + ": " + other(reader.thread) +
                               " has read there and no barrier lies between",
                           site);
}

void SharedArena::complete(const Thread& issuer, const void* pointer, int bytes) {
    const Mark mine{Mark::written, static_cast<std::uint32_t>(issuer.index), issuer.epoch & epoch_mask};
    std::fill_n(known_.begin() + (static_cast<const char*>(pointer) - memory_), bytes, Knowledge{mine, {}, 0});
}

}  // namespace emulator
