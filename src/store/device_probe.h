// DeviceProbe: whether a device that failed takes writes, flushes and reads again. One page of its own, between the
// first superblock and the table of uses, is written, flushed, read again and compared; ten seconds for all of it, and
// no longer for the read than a healthy device needs at worst.
//
// Past Flash, which submits nothing to a device that is off. An operation that does not come back is still the
// device's: busy() until it does. One for a device; its loop.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "base/time.h"
#include "io/disk.h"
#include "io/loop.h"
#include "store/aligned_buffer.h"

namespace kvd::store {

class DeviceProbe {
 public:
  static constexpr Duration kAnswerMax = std::chrono::seconds(10);
  using OnEnd = std::move_only_function<void(Status)>;

  // Both are borrowed. The disk is closed before this goes.
  DeviceProbe(io::Loop& loop, io::Disk& disk);

  // One is under way, or an operation of one that is over.
  [[nodiscard]] bool busy() const noexcept { return on_end_ != nullptr || with_device_; }
  // Begins one; requires !busy(). `on_end` comes from the loop, kAnswerMax later at most; not behind stop(). An error
  // says what of it failed.
  void start(OnEnd on_end);
  // Submits nothing more.
  void stop() noexcept;

 private:
  void submit(io::DiskOp::Kind kind);
  void done(const Status& status);
  void end(const Status& how);
  void tell();

  io::Loop& loop_;
  io::Disk& disk_;
  std::uint64_t count_ = 0;
  Time read_at_{};
  AlignedBuffer page_, read_;
  iovec buffer_{};
  io::DiskOp op_;
  bool with_device_ = false;
  bool ended_ = false;  // how_ is to be told
  Status how_;
  OnEnd on_end_;
  io::Timer timer_;  // the time is over, or how_ is to be told
};

}  // namespace kvd::store
