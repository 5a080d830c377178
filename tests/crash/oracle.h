// Oracle: what every record may and must be after a crash, as far as the store has promised it.
//
// Follows a workload: puts, removals, acknowledgements, and where the log holds what. A version of a record is
//   promised  after a kill: acknowledged at least as `written`; after a power loss: as `synced`; and not removed since,
//             no newer version (put in its place) acknowledged as much, and no header has been submitted for a segment
//             that held a copy when it was acknowledged, or a later copy of it or of a newer version: that one counts,
//             and goes with its segment;
//   allowed   a frame with it was submitted, its removal is not durable, no newer version was acknowledged as much, and
//             the reuse of its segment has not begun.
// A promised version must be found, or an allowed newer one. Where none is promised either an allowed version or
// nothing must be found.
// A removal is durable against kills when await_removals() was answered, against power loss when a flush of each device
// that was submitted after that has completed. A value; one thread each.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kvdepot/types.h"

namespace kvd::crash {

inline constexpr std::size_t kRecords = 16;  // in a workload
inline constexpr std::size_t kSmall = 10;  // of these, the first are of one page; the others have a table and two slabs
inline constexpr std::uint8_t kVersionsMax = 15;  // of one record, counted from 1
inline constexpr std::uint8_t kNowhere = 255;

// How a machine stops.
enum class Crash : std::uint8_t { kKill, kPowerLoss };

class Oracle {
 public:
  // Segments of the store are numbered through all devices, at most 32 of them.
  explicit Oracle(std::uint8_t devices = 1) : devices_(devices) {}
  [[nodiscard]] std::uint8_t devices() const noexcept { return devices_; }

  // A new version of a record is put; 0 when it has had kVersionsMax.
  std::uint8_t put(std::size_t record);
  void acknowledged(std::size_t record, std::uint8_t version, AckLevel level);
  // remove() was called. Returns a mark for removals_acknowledged().
  std::size_t removed(std::size_t record);
  // await_removals(), called when `before` removals had been called, was answered.
  void removals_acknowledged(std::size_t before, std::uint64_t now);
  [[nodiscard]] std::size_t removals() const noexcept { return removals_.size(); }

  // A frame with this version was submitted for `segment`.
  void copied(std::size_t record, std::uint8_t version, std::uint8_t segment);
  // A header for `segment` was submitted: what it held may be lost from here on.
  void given_up(std::uint8_t segment);
  // The first write after that header: what it held must not be readable any more.
  void reused(std::uint8_t segment);
  // A flush of a drive that was submitted at `submitted` has completed.
  void flushed(std::size_t drive, std::uint64_t submitted);
  // The machine stopped: what only the other kind of crash would have spared is not promised any more.
  void crashed(Crash how);

  // 0 = none.
  [[nodiscard]] std::uint8_t promised(std::size_t record, Crash how) const noexcept;
  [[nodiscard]] bool allowed(std::size_t record, std::uint8_t version, Crash how) const noexcept;
  // Whether some header that ends a segment with a copy of the version was submitted.
  [[nodiscard]] bool lost_its_segment(std::size_t record, std::uint8_t version) const noexcept {
    return records_[record].versions[version].lost_copy;
  }
  [[nodiscard]] std::uint8_t versions(std::size_t record) const noexcept { return records_[record].count; }
  // Of everything that promised() and allowed() say.
  [[nodiscard]] std::uint64_t hash(Crash how) const noexcept;

 private:
  struct Version {
    std::array<bool, 2> acknowledged{};  // by Crash
    std::array<bool, 2> removed{};       // durably, by Crash
    bool given_up = false;               // the segment of the last copy
    bool lost_copy = false;              // a segment with some copy was given up
    bool taken_out = false;              // remove() was called
    std::uint8_t segment = kNowhere;     // of the last copy
    std::uint32_t copies = 0;            // segments that hold one, a bit each
    std::uint32_t promised_in = 0;  // those that did when it was acknowledged, or do since: it may rely on any of them
  };
  struct Record {
    std::uint8_t count = 0;
    std::array<Version, kVersionsMax + 1> versions{};
  };
  struct Removal {
    std::size_t record = 0;
    std::uint8_t versions = 0;  // that it removes: up to this one
    bool acknowledged = false;
    std::uint64_t at = 0;       // when it was
    std::uint32_t flushed = 0;  // drives that were since, a bit each
  };

  std::uint8_t devices_;
  std::array<Record, kRecords> records_{};
  std::vector<Removal> removals_;
};

}  // namespace kvd::crash
