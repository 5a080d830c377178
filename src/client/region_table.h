// RegionTable: the memory that a client may read and write, registered once and named by id. An operation holds a
// RegionUse from submission to its end; a region in use cannot be unregistered. Any thread; never blocks for long.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/bytes.h"
#include "base/result.h"
#include "kvdepot/types.h"

namespace kvd::client {

inline constexpr std::size_t kRegionsMax = 4096;  // more than any engine has KV tensors

// Keeps a region registered. Move-only; counts down when destroyed, on any thread.
class RegionUse {
 public:
  RegionUse() = default;
  RegionUse(RegionUse&& other) noexcept : uses_(std::exchange(other.uses_, nullptr)), bytes_(other.bytes_) {}
  RegionUse& operator=(RegionUse&& other) noexcept {
    if (this != &other) {
      drop();
      uses_ = std::exchange(other.uses_, nullptr);
      bytes_ = other.bytes_;
    }
    return *this;
  }
  ~RegionUse() { drop(); }

  [[nodiscard]] MutableBytes bytes() const noexcept { return bytes_; }
  void drop() noexcept {
    if (uses_ != nullptr) std::exchange(uses_, nullptr)->fetch_sub(1, std::memory_order_release);
  }

 private:
  friend class RegionTable;
  RegionUse(std::atomic<std::uint32_t>& uses, MutableBytes bytes) noexcept : uses_(&uses), bytes_(bytes) {}
  std::atomic<std::uint32_t>* uses_ = nullptr;
  MutableBytes bytes_;
};

class RegionTable {
 public:
  // kInvalid: empty, or memory that this build cannot reach. kNoSpace: kRegionsMax are registered.
  Result<RegionId> add(void* base, std::size_t bytes, RegionKind kind);
  // kNotFound; kBusy while operations use it.
  Status remove(RegionId region);
  // kInvalid: not registered.
  Result<RegionUse> use(RegionId region);

 private:
  struct Region {
    MutableBytes bytes;
    std::atomic<std::uint32_t> uses{0};
  };
  std::mutex mutex_;
  std::map<std::uint32_t, std::unique_ptr<Region>> regions_;
  std::uint32_t next_ = 1;
};

}  // namespace kvd::client
