#include "bounds/allocation_count.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include <execinfo.h>

namespace {

std::atomic<std::uint64_t> g_count{0};  // a count of the program's, like operator new itself
std::atomic<int> g_to_show{0};

void show_where() noexcept {
  std::array<void*, 24> frames;
  const int count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  ::backtrace_symbols_fd(frames.data(), count, STDERR_FILENO);
}

void* counted(std::size_t bytes, std::size_t alignment) {
  g_count.fetch_add(1, std::memory_order_relaxed);
  if (g_to_show.load(std::memory_order_relaxed) > 0 && g_to_show.fetch_sub(1) > 0) show_where();
  const std::size_t size = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = alignment <= alignof(std::max_align_t) ? std::malloc(bytes == 0 ? 1 : bytes)
                                                              : std::aligned_alloc(alignment, size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

namespace kvd {

std::uint64_t allocations() noexcept { return g_count.load(std::memory_order_relaxed); }

void show_allocations() noexcept {
  std::array<void*, 1> frame;
  ::backtrace(frame.data(), 1);  // the first call loads what it needs
  g_to_show = 4;
}

}  // namespace kvd

// The other forms (arrays, nothrow, sized) call these.
void* operator new(std::size_t bytes) { return counted(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
