// FlashHealth: the breaker of the flash tier. Too many errors in a while, or a device that completes nothing, turn the
// tier off for the rest of this opening: lookups miss, puts stay in the pool, nobody waits for the device.
//
// Belongs to the store's loop. A miss is always a legal answer; a stalled request is not.
#pragma once

#include <cstdint>
#include <functional>

#include "base/log.h"
#include "base/time.h"
#include "io/disk.h"
#include "io/loop.h"

namespace kvd::store {

class FlashHealth {
 public:
  // A single bad sector costs two errors (a read and its repetition); a dying device gives dozens a second.
  static constexpr std::uint32_t kErrorsMax = 16;
  static constexpr Duration kErrorWindow = std::chrono::seconds(10);
  // The kernel's own timeout of an NVMe command is 30 s; nothing finished for a third of that is not load.
  static constexpr Duration kStallMax = std::chrono::seconds(10);
  // A watchdog that comes later than this has slept with the process or the machine, and so has the device's time: it
  // proves nothing.
  static constexpr Duration kLateMax = std::chrono::seconds(1);

  // All are borrowed.
  FlashHealth(io::Loop& loop, Log& log, io::Disk& disk);

  [[nodiscard]] bool on() const noexcept { return on_; }
  // Called once, from the loop, when the tier goes off.
  void on_off(std::function<void()> callback) { off_ = std::move(callback); }

  // An operation was submitted: watches over its completion.
  void submitted();
  // An operation completed, well or not.
  void completed(bool ok);
  // In the callback of a watchdog that was due then: it comes too late to judge, see kLateMax.
  [[nodiscard]] bool late(Time due) const;
  // Turns the tier off, saying why.
  void turn_off(const char* why);

 private:
  void check_stall();

  io::Loop& loop_;
  Log& log_;
  io::Disk& disk_;
  std::function<void()> off_;
  io::Timer watchdog_;
  io::Timer announce_;  // calls off_ outside of whoever reported the error
  Time due_{};          // of the watchdog
  bool on_ = true;
  std::uint64_t completions_ = 0;
  std::uint64_t completions_seen_ = 0;
  std::uint32_t errors_ = 0;
  Time window_end_ = Time::min();
};

}  // namespace kvd::store
