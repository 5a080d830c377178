// AlignedBuffer: page-aligned memory for direct I/O that is not pool memory (superblocks, headers, descriptors,
// footers). Moves, does not copy; freed when destroyed. Its owner keeps it until every operation on it has completed.
// The memory comes from operator new, so that a program that counts allocations counts these.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "base/bytes.h"
#include "base/check.h"

namespace kvd::store {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // `bytes` zeros, a multiple of 4 KiB.
  explicit AlignedBuffer(std::size_t bytes) : size_(bytes) {
    KVD_CHECK(is_aligned(bytes, kPageBytes));
    if (bytes == 0) return;
    memory_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kPageBytes})));
    std::memset(memory_.get(), 0, bytes);
  }
  // Makes it at least that long; what it holds is lost then.
  void grow(std::size_t bytes) {
    if (size_ < bytes) *this = AlignedBuffer(bytes);
  }

  [[nodiscard]] std::byte* data() const noexcept { return memory_.get(); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] MutableBytes span() const noexcept { return {memory_.get(), size_}; }
  [[nodiscard]] MutableBytes first(std::size_t n) const noexcept { return span().first(n); }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept { ::operator delete(memory, std::align_val_t{kPageBytes}); }
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace kvd::store
