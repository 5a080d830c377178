// What tests of disks need: aligned memory filled from a seed, and an operation that remembers what became of it.
// Test code only; belongs to the test's thread.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "io/disk.h"

namespace kvd::io {

inline constexpr std::uint64_t kMiB = 1 << 20;
inline constexpr auto kRead = DiskOp::Kind::kRead;
inline constexpr auto kWrite = DiskOp::Kind::kWrite;
inline constexpr auto kSync = DiskOp::Kind::kSync;

// `bytes` (a multiple of 4 KiB) aligned to 4 KiB: pseudo-random for a seed, zero for seed 0.
class TestBuffer {
 public:
  explicit TestBuffer(std::size_t bytes, std::uint64_t seed = 0)
      : bytes_(bytes), data_(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes))) {
    Random random(seed);
    for (std::size_t i = 0; i < bytes; i += 8) save(data_.get() + i, seed == 0 ? 0 : random.next());
  }

  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] MutableBytes span() const { return {data(), bytes_}; }
  [[nodiscard]] iovec part(std::size_t offset, std::size_t length) const { return {data() + offset, length}; }
  [[nodiscard]] iovec all() const { return part(0, bytes_); }
  friend bool operator==(const TestBuffer& a, const TestBuffer& b) {
    return a.bytes_ == b.bytes_ && std::memcmp(a.data(), b.data(), a.bytes_) == 0;
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

// Submit `op`; `result` is set when it is done.
struct TestOp {
  TestOp(DiskOp::Kind kind, std::uint64_t offset, std::vector<iovec> buffers) : iovecs(std::move(buffers)) {
    op.kind = kind;
    op.offset = offset;
    op.buffers = iovecs;
    op.on_done = [this](Status status) { result = status; };
  }
  TestOp(const TestOp&) = delete;
  TestOp& operator=(const TestOp&) = delete;

  std::vector<iovec> iovecs;
  DiskOp op;
  std::optional<Status> result;
};

}  // namespace kvd::io
