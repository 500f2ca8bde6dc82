// Plain accesses to global and shared memory: what the views of common/gpu/memory.h call before each.
#include "common/gpu/emulator/machine.h"
#include "common/gpu/emulator/region.h"

namespace emulator {

Totals totals;

void check_region(const Region* region, const void* pointer, int bytes, const char* what, Site site) {
    if (region == nullptr)
        machine.report(std::string(what) + " of global memory through a view that belongs to no gpu::Buffer", site);
    const auto offset = static_cast<const char*>(pointer) - region->begin;
    if (offset < 0 || offset + bytes > static_cast<std::int64_t>(region->bytes))
        machine.report(std::string(what) + " of " + std::to_string(bytes) + " bytes at byte " + std::to_string(offset) +
                           " of \"" + region->name + "\", which has " + std::to_string(region->bytes) + " bytes",
                       site);
}

namespace {

void mark(std::vector<std::uint64_t>& bits, std::size_t offset, int bytes) {
    for (int done = 0; done < bytes;) {
        const std::size_t word = (offset + done) / 64, first = (offset + done) % 64;
        const int n = std::min<int>(bytes - done, static_cast<int>(64 - first));
        bits[word] |= (n == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1) << first;
        done += n;
    }
}

}  // namespace

void check_element(int row, int column, int width, int rows, int columns, Site site) {
    if (row >= 0 && row < rows && column >= 0 && column + width <= columns) return;
    tsan::Ignore ignore;
    machine.report("element (" + std::to_string(row) + ", " + std::to_string(column) + ")" +
                       (width > 1 ? " and the " + std::to_string(width - 1) + " after it" : "") + " of a matrix of " +
                       std::to_string(rows) + " x " + std::to_string(columns) + ": out of bounds",
                   site);
}

void check_alignment(const void* pointer, int bytes, Site site) {
    if (reinterpret_cast<std::uintptr_t>(pointer) % static_cast<unsigned>(bytes) == 0) return;
    tsan::Ignore ignore;
    machine.report("an access of " + std::to_string(bytes) + " bytes at an address that is not a multiple of " +
                       std::to_string(bytes),
                   site);
}

void count_global_read(const Region* region, const void* pointer, int bytes, const char* instruction, Site site) {
    check_region(region, pointer, bytes, instruction, site);
    region->requested_read += bytes;
    mark(region->bytes_read, static_cast<const char*>(pointer) - region->begin, bytes);
}

void count_global_write(const Region* region, const void* pointer, int bytes, const char* instruction, Site site) {
    check_region(region, pointer, bytes, instruction, site);
    region->requested_written += bytes;
    mark(region->bytes_written, static_cast<const char*>(pointer) - region->begin, bytes);
}

void count_ordinary_write(const Region* region, const void* pointer, int bytes, const char* instruction, Site site) {
    count_global_write(region, pointer, bytes, instruction, site);
    if (!region->mapped) return;
    if (region->launch != machine.launches()) {
        region->launch = machine.launches();
        region->stored.assign((region->bytes + 15) / 16, {});
    }
    const std::uint64_t thread = machine.thread("a write of global memory").number();
    const auto offset = static_cast<const char*>(pointer) - region->begin;
    for (auto i = offset / 16; i * 16 < offset + bytes; ++i)
        region->stored[i] = {thread, machine.proxy_fences()[thread]};
}

void check_fenced(const Region* region, const char* pointer, int bytes, const char* name, Site site) {
    if (region->launch != machine.launches()) return;
    const auto offset = pointer - region->begin;
    for (auto i = offset / 16; i * 16 < offset + bytes; ++i) {
        const Stored& stored = region->stored[i];
        if (stored.thread == 0 || machine.proxy_fences()[stored.thread] > stored.fences) continue;
        machine.report(std::string(name) + " of byte " + std::to_string(i * 16) + " of \"" + region->name +
                           "\": thread " + std::to_string((stored.thread - 1) % max_threads) + " of CTA " +
                           std::to_string((stored.thread - 1) / max_threads) +
                           " wrote there with an ordinary store and has executed no fence.proxy.async since",
                       site);
    }
}

void global_read(const Region* region, const void* pointer, int bytes, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    count_global_read(region, pointer, bytes, "read", site);
}

void global_write(const Region* region, const void* pointer, int bytes, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    count_ordinary_write(region, pointer, bytes, "write", site);
}

void shared_read(const void* pointer, int bytes, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread("a read of shared memory");
    thread.cta->arena.read(thread, pointer, bytes, "read", site);
    totals.shared_read += bytes;
}

void shared_write(const void* pointer, int bytes, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread("a write of shared memory");
    thread.cta->arena.write(thread, pointer, bytes, "write", site);
    totals.shared_written += bytes;
}

void* shared_memory(std::size_t bytes, Site site) {
    tsan::Ignore ignore;
    const SharedArena& arena = machine.thread("shared memory").cta->arena;
    if (bytes > arena.bytes())
        machine.report("the kernel's shared memory needs " + std::to_string(bytes) + " bytes, the launch asked for " +
                           std::to_string(arena.bytes()),
                       site);
    return arena.memory();
}

std::uint32_t shared_address(const void* pointer) {
    const SharedArena& arena = machine.thread("an address in shared memory").cta->arena;
    return arena.first_address() + static_cast<std::uint32_t>(static_cast<const char*>(pointer) - arena.memory());
}

}  // namespace emulator
