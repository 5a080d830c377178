// FlashHealth: the breaker of the flash tier. Too many errors in a while, a device that completes nothing, or a write
// or flush that does not come back turn the tier off for the rest of this opening: lookups miss, puts stay in the pool,
// nobody waits for the device. Reads are watched together only: who asks for one has a deadline of its own.
//
// Belongs to the store's loop. A miss is always a legal answer; a stalled request is not.
#pragma once

#include <cstdint>
#include <functional>
#include <memory_resource>
#include <set>

#include "base/log.h"
#include "base/result.h"
#include "base/time.h"
#include "io/disk.h"
#include "io/loop.h"

namespace kvd::store {

// What is answered to who waits for a tier that is off.
inline std::unexpected<Error> tier_is_off() { return fail(Code::kIo, "the flash tier is off"); }

class FlashHealth {
 public:
  // A single bad sector costs two errors (a read and its repetition); a dying device gives dozens a second.
  static constexpr std::uint32_t kErrorsMax = 16;
  static constexpr Duration kErrorWindow = std::chrono::seconds(10);
  // The kernel's own timeout of an NVMe command is 30 s; nothing finished for a third of that is not load.
  static constexpr Duration kStallMax = std::chrono::seconds(10);
  // A flush may wait for what others have written to the same file system, while other operations complete: 30 s, when
  // the kernel gives up a command itself. A discard may wait as long.
  static constexpr Duration kSyncStallMax = std::chrono::seconds(30);
  // A watchdog that comes later than this has slept with the process or the machine, and so has the device's time: it
  // proves nothing.
  static constexpr Duration kLateMax = std::chrono::seconds(1);

  // All are borrowed.
  FlashHealth(io::Loop& loop, Log& log, io::Disk& disk);

  [[nodiscard]] bool on() const noexcept { return on_; }
  // Called once, from the loop, when the tier goes off.
  void on_off(std::function<void()> callback) { off_ = std::move(callback); }

  // An operation was submitted: watches over its completion. Returns by when that is expected, for completed().
  Time submitted(io::DiskOp::Kind kind);
  // An operation completed, well or not.
  void completed(Time expected, bool ok);
  // Turns the tier off, saying why.
  void turn_off(const char* why);

 private:
  void check_stall();
  void check_overdue();
  void watch_until(Time when);
  [[nodiscard]] bool late(Time due) const { return loop_.now() - due > kLateMax; }

  io::Loop& loop_;
  Log& log_;
  io::Disk& disk_;
  std::function<void()> off_;
  io::Timer watchdog_;
  std::pmr::unsynchronized_pool_resource nodes_;  // keeps what expected_ gives up
  std::pmr::multiset<Time> expected_{&nodes_};    // of writes, flushes, discards that are under way; a few
  io::Timer overdue_;                             // armed while there are any, for the first or earlier
  Time watchdog_due_{}, overdue_due_{};
  io::Timer announce_;  // calls off_ outside of whoever reported the error
  bool on_ = true;
  std::uint64_t completions_ = 0;
  std::uint64_t completions_seen_ = 0;
  std::uint32_t errors_ = 0;
  Time window_end_ = Time::min();
};

}  // namespace kvd::store
