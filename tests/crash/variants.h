// Variants: the states that a drive may be in when its machine stops at one moment: which of the writes that were not
// durable yet are kept, dropped or torn.
//
// Every sector of every such write may be there or not; where writes overlap, the last kept one shows. So reordering,
// and a write that is done twice, give no states besides these. Number `variant` of a moment stands for the same state
// in every run. Not all of them are tried: the first are systematic, the rest are drawn.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "crash/journal.h"

namespace kvd::crash {

enum class Fate : std::uint8_t { kKept, kDropped, kTornPages, kTornSectors };

// What is open at one moment of a journal.
struct Moment {
  Image durable;                       // what a power loss leaves for sure
  std::vector<std::uint32_t> pending;  // writes that have completed and are not durable
  std::vector<std::uint32_t> started;  // writes in flight
};

// Goes through a journal, event by event.
class Walk {
 public:
  Walk(const Start& start, const Journal& journal);
  // Moves behind the next event; false at the end.
  bool next();
  [[nodiscard]] std::uint32_t position() const noexcept { return position_; }  // events that have happened
  [[nodiscard]] const Journal::Event& event() const noexcept { return journal_.events()[position_ - 1]; }
  [[nodiscard]] const Moment& moment() const noexcept { return moment_; }
  // Whether stopping here in this way can give a state, or break a promise, that stopping one event earlier could not.
  [[nodiscard]] bool matters(Crash how) const;

 private:
  const Journal& journal_;
  Moment moment_;
  std::uint32_t position_ = 0;
  std::array<std::uint32_t, kDrives> durable_writes_{};  // of those to a drive in order of completion
  std::shared_ptr<const Oracle> before_;
};

// How many variants of a moment there are to try.
std::uint32_t variants_of(const Moment& moment, Crash how, std::uint32_t drawn);

// One of them: the machine after it, with the hash of what is visible. Empty of promises that the crash has ended.
struct Stopped {
  Start start;
  std::uint64_t visible_hash = 0;
  std::uint32_t kept = 0, dropped = 0, torn_pages = 0, torn_sectors = 0;
};
Stopped stop(const Journal& journal, const Moment& moment, const Oracle& oracle, Crash how, std::uint32_t variant);

}  // namespace kvd::crash
