#include "test/support/memory_counter.h"

#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DCP_HAS_SANITIZER_ALLOCATOR 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define DCP_HAS_SANITIZER_ALLOCATOR 1
#endif
#endif

namespace {

// Of fundamental types with constant initialisation: malloc is called before any constructor.
std::atomic<std::int64_t> g_live{0};
std::atomic<std::int64_t> g_peak{0};
std::atomic<std::int64_t> g_total{0};

void count_in(std::size_t bytes) {
  const auto count = static_cast<std::int64_t>(bytes);
  g_total.fetch_add(count, std::memory_order_relaxed);
  const std::int64_t live = g_live.fetch_add(count, std::memory_order_relaxed) + count;
  std::int64_t peak = g_peak.load(std::memory_order_relaxed);
  while (live > peak && !g_peak.compare_exchange_weak(peak, live, std::memory_order_relaxed)) continue;
}

void count_out(std::size_t bytes) { g_live.fetch_sub(static_cast<std::int64_t>(bytes), std::memory_order_relaxed); }

}  // namespace

#ifdef DCP_HAS_SANITIZER_ALLOCATOR

// As in sanitizer/allocator_interface.h, which not every compiler's package has.
extern "C" {
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, std::size_t),
                                              void (*on_free)(const volatile void*));
std::size_t __sanitizer_get_allocated_size(const volatile void* pointer);
}

namespace {

void on_malloc(const volatile void*, std::size_t bytes) { count_in(bytes); }
void on_free(const volatile void* pointer) {
  if (pointer != nullptr) count_out(__sanitizer_get_allocated_size(pointer));
}

// What was allocated before them is counted out only.
const int g_hooks = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);

}  // namespace

#else

// The C library's own, under the names by which malloc's replacement reaches them.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);
}

namespace {

void* counted(void* pointer) {
  if (pointer != nullptr) count_in(malloc_usable_size(pointer));
  return pointer;
}

}  // namespace

extern "C" {

void* malloc(std::size_t bytes) { return counted(__libc_malloc(bytes)); }
void* calloc(std::size_t count, std::size_t bytes) { return counted(__libc_calloc(count, bytes)); }

void* realloc(void* pointer, std::size_t bytes) {
  const std::size_t before = pointer == nullptr ? 0 : malloc_usable_size(pointer);
  void* moved = __libc_realloc(pointer, bytes);
  if (moved != nullptr || bytes == 0) count_out(before);
  return counted(moved);
}

void* memalign(std::size_t alignment, std::size_t bytes) { return counted(__libc_memalign(alignment, bytes)); }
void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return counted(__libc_memalign(alignment, bytes)); }

int posix_memalign(void** pointer, std::size_t alignment, std::size_t bytes) {
  *pointer = counted(__libc_memalign(alignment, bytes));
  return *pointer == nullptr ? ENOMEM : 0;
}

void free(void* pointer) {
  if (pointer != nullptr) count_out(malloc_usable_size(pointer));
  __libc_free(pointer);
}

}  // extern "C"

#endif

namespace dcp::testing {

PeakMemory::PeakMemory() : begin_(g_live.load()), total_begin_(g_total.load()) { g_peak.store(begin_); }

std::int64_t PeakMemory::bytes() const { return g_peak.load() - begin_; }

std::int64_t PeakMemory::held_bytes() const { return g_live.load() - begin_; }

std::int64_t PeakMemory::allocated_bytes() const { return g_total.load() - total_begin_; }

}  // namespace dcp::testing
