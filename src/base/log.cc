#include "base/log.h"

#include <algorithm>

namespace kvd {

void RecordingLog::write(Level, std::string_view line) {
  const std::lock_guard lock(mutex_);
  lines_.emplace_back(line);
}

std::size_t RecordingLog::count(std::string_view text) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::ranges::count_if(lines_, [&](const std::string& line) { return line.find(text) != std::string::npos; }));
}

void RateLimited::warn(Log& log, Time now, std::string_view line) {
  if (now < next_) {
    ++suppressed_;
    return;
  }
  next_ = after(now, period_);
  if (suppressed_ == 0) return log.warn(line);
  log.warn(std::string(line) + " (" + std::to_string(suppressed_) + " more since the last report)");
  suppressed_ = 0;
}

}  // namespace kvd
