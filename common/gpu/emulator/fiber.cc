#include "common/gpu/emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <boost/context/detail/fcontext.hpp>
#include <new>

#include "common/gpu/emulator/sanitizers.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#if GPU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulator {

namespace context = boost::context::detail;

namespace {

constexpr std::size_t stack_bytes = (GPU_ASAN || GPU_TSAN) ? 256 * 1024 : 64 * 1024;

Fiber* running = nullptr;
context::fcontext_t scheduler_context = nullptr;
#if GPU_ASAN
const void* scheduler_stack = nullptr;
std::size_t scheduler_stack_bytes = 0;
#endif
#if GPU_TSAN
void* scheduler_fiber = nullptr;
#endif

}  // namespace

struct Fiber::Jump {
    /// Leaves the running fiber; `last`: for ever.
    static void to_scheduler(Fiber* from, bool last) {
#if GPU_ASAN
        __sanitizer_start_switch_fiber(last ? nullptr : &from->fake_stack_, scheduler_stack, scheduler_stack_bytes);
#endif
#if GPU_TSAN
        __tsan_switch_to_fiber(scheduler_fiber, 1);
#endif
        (void)last;
        (void)from;
        arrived(from, context::jump_fcontext(scheduler_context, nullptr));
    }

    static void to_fiber(Fiber* to) {
        running = to;
#if GPU_ASAN
        void* fake_stack = nullptr;
        __sanitizer_start_switch_fiber(&fake_stack, to->stack_, stack_bytes);
#endif
#if GPU_TSAN
        scheduler_fiber = __tsan_get_current_fiber();
        __tsan_switch_to_fiber(to->tsan_fiber_, 1);  // 1: the switch itself orders nothing
#endif
        to->context_ = context::jump_fcontext(to->context_, to).fctx;
#if GPU_ASAN
        __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
        running = nullptr;
    }

    static void arrived(Fiber* fiber, context::transfer_t from) {
        scheduler_context = from.fctx;
#if GPU_ASAN
        __sanitizer_finish_switch_fiber(fiber->fake_stack_, &scheduler_stack, &scheduler_stack_bytes);
#endif
        (void)fiber;
    }

    static void enter(context::transfer_t from) {
        auto* fiber = static_cast<Fiber*>(from.data);
        arrived(fiber, from);
        fiber->entry_(fiber->argument_);
        fiber->finished_ = true;
        to_scheduler(fiber, true);
    }
};

Fiber::Fiber() {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void* mapping =
        mmap(nullptr, page + stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    mapping_ = static_cast<char*>(mapping);
    stack_ = mapping_ + page;
    mprotect(mapping_, page, PROT_NONE);  // an overflow stops here
    // Stacks that all began at the same offset of a page would meet in a few sets of the cache.
    static unsigned created = 0;
    top_ = stack_ + stack_bytes - created++ % 31 * 128;
}

Fiber::~Fiber() {
#if GPU_TSAN
    if (tsan_fiber_ != nullptr) __tsan_destroy_fiber(tsan_fiber_);
#endif
    munmap(mapping_, static_cast<std::size_t>(stack_ - mapping_) + stack_bytes);
}

void Fiber::start(void (*entry)(void*), void* argument) {
    entry_ = entry;
    argument_ = argument;
    context_ = context::make_fcontext(top_, static_cast<std::size_t>(top_ - stack_), Jump::enter);
    fake_stack_ = nullptr;
#if GPU_ASAN
    __asan_unpoison_memory_region(stack_, stack_bytes);
#endif
#if GPU_TSAN
    if (tsan_fiber_ == nullptr) tsan_fiber_ = __tsan_create_fiber(0);
#endif
    finished_ = false;
}

void Fiber::abandon() {
#if GPU_TSAN
    if (!finished_) {
        void* const self = __tsan_get_current_fiber();
        __tsan_switch_to_fiber(tsan_fiber_, 1);
        __tsan_switch_to_fiber(self, 0);  // 0: what the fiber did is now known here
        __tsan_destroy_fiber(tsan_fiber_);
        tsan_fiber_ = nullptr;
    }
#endif
    finished_ = true;
}

void Fiber::resume() { Jump::to_fiber(this); }

void Fiber::suspend() {
#if GPU_TSAN
    __tsan_ignore_thread_end();  // of the caller: a fiber that is abandoned must not end ignoring
#endif
    Jump::to_scheduler(running, false);
#if GPU_TSAN
    __tsan_ignore_thread_begin();
#endif
}

void set_sticky_float_flags() {
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x3F);
#endif
}

}  // namespace emulator
