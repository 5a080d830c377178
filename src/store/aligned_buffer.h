// AlignedBuffer: page-aligned memory for direct I/O that is not pool memory (superblocks, headers, descriptors,
// footers). Moves, does not copy; freed when destroyed. Its owner keeps it until every operation on it has completed.
#pragma once

#include <cstdlib>
#include <memory>

#include "base/bytes.h"
#include "base/check.h"

namespace kvd::store {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // `bytes` zeros, a multiple of 4 KiB.
  explicit AlignedBuffer(std::size_t bytes) : size_(bytes) {
    KVD_CHECK(is_aligned(bytes, kPageBytes));
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes)));
    KVD_CHECK(memory_ != nullptr || bytes == 0);
    if (bytes > 0) std::memset(memory_.get(), 0, bytes);
  }

  [[nodiscard]] std::byte* data() const noexcept { return memory_.get(); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] MutableBytes span() const noexcept { return {memory_.get(), size_}; }
  [[nodiscard]] MutableBytes first(std::size_t n) const noexcept { return span().first(n); }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace kvd::store
