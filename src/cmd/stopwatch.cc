#include "cmd/stopwatch.h"

#include <sys/resource.h>

#include <charconv>
#include <fstream>
#include <string>
#include <string_view>

namespace kvd::cmd {
namespace {

double cpu_now() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// What this process has sent to block devices; 0 where the kernel does not tell.
std::uint64_t written_now() {
  std::ifstream in("/proc/self/io");
  for (std::string line; std::getline(in, line);) {
    constexpr std::string_view kName = "write_bytes: ";
    std::uint64_t bytes = 0;
    if (line.starts_with(kName) &&
        std::from_chars(line.data() + kName.size(), line.data() + line.size(), bytes).ec == std::errc{})
      return bytes;
  }
  return 0;
}

}  // namespace

Stopwatch::Stopwatch(const Clock& clock)
    : clock_(clock), cpu_(cpu_now()), written_(written_now()), begun_(clock.now()) {}

double Stopwatch::seconds() const { return std::chrono::duration<double>(clock_.now() - begun_).count(); }

RunFigures Stopwatch::finish(std::uint64_t bytes) const {
  RunFigures figures;
  figures.seconds = seconds();
  figures.bytes = bytes;
  figures.cpu_seconds = cpu_now() - cpu_;
  figures.device_bytes = written_now() - written_;
  return figures;
}

}  // namespace kvd::cmd
