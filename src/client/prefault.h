// Prefault: enters the depot's memory into this process's page table ahead of its first read: a page of 4 KiB that is
// read for the first time costs about half as much again as its copy. 1 MiB (0.1 ms with plain pages) every
// millisecond, and none while gets or lookups are under way, so that none waits for more than a step.
//
// Only what the depot has written to or taken at its start: what is missing is looked for again 1 s behind the end of a
// round, 2, 4, ... and 64 s behind where nothing came, and then not any more. Only the first kPrefaultBytesMax: the
// rest, and all that comes later, is entered as it is read. Takes 8 bytes of page table for each page, as reading does.
// Belongs to the loop thread.
#pragma once

#include <functional>
#include <vector>

#include "client/loan.h"
#include "io/loop.h"

namespace kvd::client {

inline constexpr std::uint64_t kPrefaultBytesMax = std::uint64_t{16} << 30;  // page tables of 32 MiB, 2 s in all

class Prefault {
 public:
  static constexpr std::uint64_t kStepBytes = std::uint64_t{1} << 20;
  static constexpr Duration kPause = Millis(1);
  static constexpr Duration kRoundPause = std::chrono::seconds(1);
  static constexpr Duration kRoundPauseMax = std::chrono::seconds(64);

  // `busy`: somebody waits for the loop.
  Prefault(io::Loop& loop, std::function<bool()> busy);

  // From the beginning with this mapping, which it keeps while it is at it; lets go of the one before.
  void start(SharedMapping mapping);
  void stop();

 private:
  void step();
  void end_round();

  io::Loop& loop_;
  const std::function<bool()> busy_;
  io::Timer timer_;
  SharedMapping mapping_;               // null: nothing to do
  std::vector<std::uint64_t> left_;     // where the steps of this round lie, the next one last
  std::vector<std::uint64_t> missing_;  // of these, where pages were missing
  std::uint64_t missing_bytes_ = 0;     // of these pages
  std::uint64_t missed_before_ = 0;     // the same of the round before
  Duration round_pause_ = kRoundPause;
};

}  // namespace kvd::client
