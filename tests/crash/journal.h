// Journal: everything that a store did to its drives, with what the oracle says after each step, so that the machine
// can be stopped at any of them afterwards. Knows the flash log's format, to tell which versions a frame holds.
//
// Belongs to one run of a store (machine.h), on its thread; a value afterwards.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "crash/image.h"
#include "crash/oracle.h"
#include "io/sim/sim_disk.h"

namespace kvd::crash {

// Sizes of the stores that are enumerated: the smallest that fill, evict and reuse within some dozen operations.
inline constexpr std::uint64_t kSegmentBytes = 64 << 10;
inline constexpr std::uint32_t kSegments = 5;  // of each device

// A machine as it stands after a crash: what a power loss would leave of it, and what is visible besides (after a
// kill).
struct Start {
  Image durable;
  std::vector<io::SimWrite> unflushed;
  Oracle oracle;
};

// What lies in the segments of a drive, a line per descriptor, for people.
std::string describe(const Start& start);

class Journal {
 public:
  enum class Step : std::uint8_t { kSubmit, kComplete, kFlush, kPromise };
  struct Event {
    Step step;
    std::uint8_t drive;   // kFlush: whose
    std::uint32_t index;  // kSubmit, kComplete: the write; kFlush: how many completed writes of it are durable now
    std::shared_ptr<const Oracle> oracle;
  };

  explicit Journal(const Start& start);

  // What an observer of this drive is told (DriveTap). Offsets as the drive has them.
  void submitted(std::size_t drive, std::uint64_t id, io::DiskOp::Kind kind, std::uint64_t offset, Bytes bytes);
  void completed(std::size_t drive, std::uint64_t id, io::DiskOp::Kind kind, bool ok);
  // The workload was promised something, or asks for it.
  void acknowledged(std::size_t record, std::uint8_t version, AckLevel level);
  void removals_acknowledged(std::size_t before);
  std::size_t removed(std::size_t record);
  std::uint8_t put(std::size_t record);

  // From here on nothing is recorded, but the oracle still follows.
  void freeze() noexcept { frozen_ = true; }
  [[nodiscard]] const Oracle& oracle() const noexcept { return oracle_; }

  [[nodiscard]] const std::vector<Event>& events() const noexcept { return events_; }
  [[nodiscard]] const std::vector<io::SimWrite>& writes() const noexcept { return writes_; }
  // One line per event, for people.
  [[nodiscard]] std::string text() const;
  // Writes to a drive in the order in which they completed.
  [[nodiscard]] const std::vector<std::uint32_t>& done(std::size_t drive) const noexcept { return done_[drive]; }

 private:
  struct Open {  // an operation in flight
    std::size_t drive;
    std::uint64_t id;
    std::uint32_t index;  // of the write; of a flush, how many writes had completed when it was submitted
    std::uint64_t at;
  };

  void note(Step step, std::size_t drive, std::uint32_t index, bool oracle_changed);
  void written_to_log(std::size_t drive, std::uint64_t offset, Bytes bytes);
  void read_frame(std::uint8_t segment, Bytes bytes);

  Oracle oracle_;
  std::shared_ptr<const Oracle> shared_;  // equal to oracle_
  std::vector<Event> events_;
  std::vector<io::SimWrite> writes_;
  std::array<std::vector<std::uint32_t>, kDrives> done_;
  std::vector<Open> open_;
  std::uint32_t new_headers_ = 0;  // segments with a new header and nothing behind it yet, a bit each
  std::uint64_t now_ = 0;          // counts what happens
  bool stale_ = false;             // oracle_ has moved on since shared_ was made
  bool frozen_ = false;
};

// Observes one drive for a journal. Both are borrowed: `then`, where it is not empty, is called with each completion.
class DriveTap final : public io::SimObserver {
 public:
  DriveTap(Journal& journal, std::size_t drive, const std::function<void()>& then)
      : journal_(journal), drive_(drive), then_(then) {}
  void submitted(std::uint64_t id, io::DiskOp::Kind kind, std::uint64_t offset, Bytes bytes) override {
    journal_.submitted(drive_, id, kind, offset, bytes);
  }
  void completed(std::uint64_t id, io::DiskOp::Kind kind, bool ok) override {
    journal_.completed(drive_, id, kind, ok);
    if (then_) then_();
  }

 private:
  Journal& journal_;
  const std::size_t drive_;
  const std::function<void()>& then_;
};

}  // namespace kvd::crash
