// Breaker: decides whether requests may go to the depot. After `failures_max` failures in a row it opens; while it is
// open requests end at once and cost nothing, and a probe goes out once per period; a probe's answer closes it.
//
// A failure is a deadline that passed while the depot owed us something, or a connection that broke or could not be
// made. Pure: time comes in as an argument. Belongs to the client's I/O thread.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace kvd::client {

class Breaker {
 public:
  // Requires failures_max > 0 and probe_period > 0.
  Breaker(std::uint32_t failures_max, Duration probe_period) noexcept
      : failures_max_(failures_max), probe_period_(probe_period) {}

  [[nodiscard]] bool open() const noexcept { return open_; }
  // Records a failure. True when this one opened the breaker; the first probe is then due one period later, so that a
  // depot that answers probes but not requests costs one deadline per period and not one per request.
  bool on_failure(Time now) noexcept;
  // An answer to a request: failures count from zero again. An open breaker stays open, only a probe closes it.
  void on_success() noexcept { failures_ = 0; }

  // When the next probe is due; kNever while closed or while a probe is under way.
  [[nodiscard]] Time probe_at() const noexcept { return probe_at_; }
  // A probe was sent; it has one period to be answered.
  void on_probe_sent() noexcept { probe_at_ = kNever; }
  // Closes the breaker. Late answers count as well: they show that the depot is back.
  void on_probe_success() noexcept;
  // The probe's deadline passed. Returns how many in a row that makes.
  std::uint32_t on_probe_failure(Time now) noexcept;
  [[nodiscard]] Duration probe_period() const noexcept { return probe_period_; }

 private:
  std::uint32_t failures_max_;
  Duration probe_period_;
  std::uint32_t failures_ = 0;
  std::uint32_t probe_failures_ = 0;
  Time probe_at_ = kNever;
  bool open_ = false;
};

}  // namespace kvd::client
