// What the machine tells the sanitizers. Empty unless the build asks.
//
// ThreadSanitizer is the race detector for kernels: every CUDA thread and every copy engine is one of its fibers, and
// order between them comes only from acquire and release here. The machine itself is built without instrumentation
// (GPU_TSAN=1 tells it that the kernels are instrumented), and ignores whatever library code it shares with them.
#pragma once

#include <cstddef>

#ifndef GPU_TSAN
#define GPU_TSAN 0
#endif

#if defined(__SANITIZE_ADDRESS__)
#define GPU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GPU_ASAN 1
#endif
#endif
#ifndef GPU_ASAN
#define GPU_ASAN 0
#endif

#if GPU_TSAN
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void __tsan_read_range(void* address, unsigned long bytes);
void __tsan_write_range(void* address, unsigned long bytes);
int __tsan_atomic32_load(const volatile int* address, int order);
void __tsan_atomic32_store(volatile int* address, int value, int order);
void AnnotateIgnoreReadsAndWritesBegin(const char* file, int line);
void AnnotateIgnoreReadsAndWritesEnd(const char* file, int line);
}
#endif

namespace emulator::tsan {

/// An object that one side releases and the other acquires. Eight bytes, so that no two share a shadow cell.
using Token = unsigned long long;

#if GPU_TSAN

inline void acquire(Token& token) { __tsan_acquire(&token); }
inline void release(Token& token) { __tsan_release(&token); }

/// While it lives, what the running fiber reads and writes is the machine's own business.
struct Ignore {
    Ignore() { AnnotateIgnoreReadsAndWritesBegin(__FILE__, __LINE__); }
    ~Ignore() { AnnotateIgnoreReadsAndWritesEnd(__FILE__, __LINE__); }
    Ignore(const Ignore&) = delete;
};

/// What an instruction reads and writes on behalf of the running fiber. Not within Ignore.
inline void read_range(const void* address, std::size_t bytes) { __tsan_read_range(const_cast<void*>(address), bytes); }
inline void write_range(void* address, std::size_t bytes) { __tsan_write_range(address, bytes); }

#else

inline void acquire(Token&) {}
inline void release(Token&) {}
struct Ignore {
    Ignore() {}
    ~Ignore() {}
};
inline void read_range(const void*, std::size_t) {}
inline void write_range(void*, std::size_t) {}

#endif

}  // namespace emulator::tsan
