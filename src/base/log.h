// The logging interface that rooms take as a borrowed argument. The binary wires it to spdlog (src/cmd), tests to a
// recording sink. Rooms below cmd never write to stderr themselves.
//
// Control path only: nothing is logged per operation. Repeated faults go through RateLimited.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"

namespace kvd {

// How much a line matters: kWarn = something was lost or refused and the depot goes on; kError = it cannot go on as
// configured.
enum class Level : std::uint8_t { kDebug, kInfo, kWarn, kError };

class Log {
 public:
  virtual ~Log() = default;
  // Writes one line. Thread-safe; may block for as long as the sink does.
  virtual void write(Level level, std::string_view line) = 0;

  void debug(std::string_view line) { write(Level::kDebug, line); }
  void info(std::string_view line) { write(Level::kInfo, line); }
  void warn(std::string_view line) { write(Level::kWarn, line); }
  void error(std::string_view line) { write(Level::kError, line); }
};

// Drops everything.
class NullLog final : public Log {
 public:
  void write(Level, std::string_view) override {}
};

// Keeps every line, for tests. Thread-safe.
class RecordingLog final : public Log {
 public:
  void write(Level level, std::string_view line) override;
  // Number of lines that contain `text`.
  [[nodiscard]] std::size_t count(std::string_view text) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

// One line per period for a fault that may repeat per operation. Belongs to one thread.
class RateLimited {
 public:
  explicit RateLimited(Duration period) noexcept : period_(period) {}
  // Logs `line` as a warning when a period has passed since the last one; otherwise counts it and tells the count then.
  void warn(Log& log, Time now, std::string_view line);

 private:
  Duration period_;
  Time next_ = Time::min();
  std::uint64_t suppressed_ = 0;
};

}  // namespace kvd
