#include "cmd/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

namespace kvd::cmd {
namespace {

constexpr unsigned kWidth = 40;

}  // namespace

ProgressBar::ProgressBar(std::string label) : label_(std::move(label)), terminal_(::isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (shown_ <= 100) fmt::print(stderr, "\r\x1b[2K");
}

void ProgressBar::show(std::uint64_t done, std::uint64_t all) {
  if (!terminal_) return;
  const auto percent = static_cast<unsigned>(all == 0 ? 100 : std::min<std::uint64_t>(100, done * 100 / all));
  if (std::exchange(shown_, percent) == percent) return;
  fmt::print(stderr, "\r\x1b[2K{}", line(label_, percent));
  std::fflush(stderr);
}

std::string ProgressBar::line(const std::string& label, unsigned percent) {
  const unsigned full = percent * kWidth / 100;
  return fmt::format("{} [{}{}] {:3} %", label, std::string(full, '#'), std::string(kWidth - full, '.'), percent);
}

}  // namespace kvd::cmd
