// FlashHealth: the breaker of a device of the flash tier. Too many errors in a while, a device that completes nothing,
// a write or flush that does not come back, or reads that do not or take too long (ReadWatch) turn it off: lookups
// miss, puts stay in the pool, nobody waits for the device.
//
// The tier comes back when all that the device had has been answered, so that nothing of before can land later, and a
// probe ends well (DeviceProbe): first after a second, then twice as long, at most a minute; off again within a minute,
// it begins with the next longer pause. Only where it may be probed: before recovery has ended nobody knows what the
// device holds, and behind an orderly end nothing may be written.
//
// Belongs to the store's loop. A miss is always a legal answer; a stalled request is not.
#pragma once

#include <cstdint>
#include <functional>
#include <memory_resource>
#include <set>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "base/time.h"
#include "io/disk.h"
#include "io/loop.h"
#include "store/device_probe.h"
#include "store/read_watch.h"

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

  static constexpr Duration kProbeFirst = std::chrono::seconds(1), kProbeMax = std::chrono::seconds(60);
  // Off again within it: the next longer pause.
  static constexpr Duration kProbation = std::chrono::seconds(60);

  // All are borrowed. `name`: what the log calls it.
  FlashHealth(io::Loop& loop, Log& log, io::Disk& disk, std::string name = "flash tier");

  [[nodiscard]] bool on() const noexcept { return on_; }
  // Why it went off last: static text.
  [[nodiscard]] const char* why() const noexcept { return why_; }
  // Called from the loop: the tier went off, soon after on() is false; it is back, before anything is submitted.
  void on_change(std::function<void()> off, std::function<void()> back) {
    off_ = std::move(off);
    back_ = std::move(back);
  }
  // Whether a device that goes off may be probed. Not one that is off when it begins to be allowed.
  void may_probe(bool may) noexcept;

  // An operation that is under way: who submits it keeps this until it completes.
  struct Operation {
    Time expected = kNever;  // of what is no read
    std::uint64_t bytes = 0;
    ReadWatch::Read read;
  };

  // An operation of `bytes` was submitted, or is told to have failed, maybe later: watches over its completion.
  void submitted(Operation& operation, io::DiskOp::Kind kind, std::uint64_t bytes);
  // It completed, well or not.
  void completed(Operation& operation, bool ok);
  // Turns the tier off, saying why: static text.
  void turn_off(const char* why);

 private:
  void check_stall();
  void check_overdue();
  void judge_reads();
  void watch_until(Time when);
  void probe();
  void probed(const Status& how);
  void come_back();
  [[nodiscard]] bool late(Time due) const { return loop_.now() - due > kLateMax; }

  io::Loop& loop_;
  Log& log_;
  io::Disk& disk_;
  const std::string name_;
  std::function<void()> off_, back_;
  DeviceProbe probe_;
  io::Timer probe_at_;
  bool may_probe_ = false;
  bool told_waiting_ = false;  // the log has it that operations of before are waited for
  Duration pause_{};           // before the probe that is next, or was last
  Time off_at_{}, back_at_ = Time::min();
  const char* why_ = "";
  std::uint64_t under_way_ = 0;        // operations
  std::uint64_t bytes_under_way_ = 0;  // of reads and writes
  io::Timer watchdog_;
  std::pmr::unsynchronized_pool_resource nodes_;  // keeps what expected_ gives up
  std::pmr::multiset<Time> expected_{&nodes_};    // of writes, flushes, discards that are under way; a few
  io::Timer overdue_;                             // armed while there are any, for the first or earlier
  ReadWatch reads_;
  io::Timer judge_;  // armed while there are any, and once behind that
  Time watchdog_due_{}, overdue_due_{}, judge_due_{};
  io::Timer announce_;  // calls off_ outside of whoever reported the error
  bool on_ = true;
  std::uint64_t completions_ = 0;
  std::uint64_t completions_seen_ = 0;
  std::uint32_t errors_ = 0;
  Time window_end_ = Time::min();
};

}  // namespace kvd::store
