// Stopwatch: time, processor time and written bytes of one run of a benchmark, and what they come to.
//
// Processor time and bytes are those of the whole process. One thread.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace kvd::cmd {

// What one run took. Rates are payload bytes over seconds.
struct RunFigures {
  std::uint64_t bytes = 0;  // payload that was put or got
  double seconds = 0;
  double cpu_seconds = 0;          // of the whole process
  double first_layer_seconds = 0;  // layered gets: until layer 0 of all records was there
  std::uint64_t device_bytes = 0;  // written to the device meanwhile, as the kernel counts for this process
  std::uint64_t segments_evicted = 0;
  [[nodiscard]] double rate() const noexcept { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};

class Stopwatch {
 public:
  // Starts. The clock is borrowed.
  explicit Stopwatch(const Clock& clock);
  [[nodiscard]] double seconds() const;
  [[nodiscard]] RunFigures finish(std::uint64_t bytes) const;

 private:
  const Clock& clock_;
  double cpu_;
  std::uint64_t written_;
  Time begun_;
};

}  // namespace kvd::cmd
