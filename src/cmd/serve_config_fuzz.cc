// Fuzzes the configuration file of `kvdepot serve`. What is refused is refused in words that fit a line; what is taken
// is within the bounds of its settings. A byte from 0x80 on stands for a setting or a value, as few inputs would hold
// one otherwise.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/testing/fuzzing.h"
#include "cmd/complaint.h"
#include "cmd/serve_options.h"
#include "net/arena.h"
#include "net/movers.h"
#include "net/window.h"
#include "store/device_table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

namespace {

using kvd::require;
using namespace std::string_view_literals;

constexpr std::array kWords{"connections-max = "sv,
                            "credentials = "sv,
                            "insecure = "sv,
                            "dir = "sv,
                            "pool = "sv,
                            "flash = "sv,
                            "listen = "sv,
                            "http = "sv,
                            "segment = "sv,
                            "demote-after = "sv,
                            "shape-read = "sv,
                            "log-level = "sv,
                            "shared-memory = "sv,
                            "eviction = "sv,
                            "scrub = "sv,
                            "dwpd = "sv,
                            "resp = "sv,
                            "resp-ack = "sv,
                            "tls-cert = "sv,
                            "tls-key = "sv,
                            "tls-client-ca = "sv,
                            "tls-crl = "sv,
                            "spin = "sv,
                            "device = "sv,
                            "put-arena = "sv,
                            "put-arenas = "sv,
                            "get-window = "sv,
                            "get-windows = "sv,
                            "cores = "sv,
                            "\"on\"\n"sv,
                            "\"off\"\n"sv,
                            "\"8GiB\"\n"sv,
                            "\"/a\"\n"sv,
                            "[\"/a=1GiB\", "sv,
                            "\"/b\"]\n"sv,
                            "\"auto\"\n"sv,
                            "\"50us\"\n"sv,
                            "\"written\"\n"sv,
                            "0\n"sv,
                            "1e308\n"sv,
                            "-1\n"sv,
                            "[[x]]\n"sv,
                            "{a = 1}\n"sv,
                            "\"\"\"\n"sv,
                            "\"tls://h:1\"\n"sv,
                            "inf\n"sv,
                            "1979-05-27\n"sv,
                            "\\u0000"sv,
                            "\n"sv};

void check_complaint(const std::string& complaint) {
  require(complaint.starts_with("--"));
  const std::string shown = kvd::cmd::in_one_line(complaint);
  require(std::ranges::none_of(shown, [](char c) { return (c >= 0 && c < ' ') || c == 0x7f; }));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  static const int file = ::memfd_create("config", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  const std::string text = kvd::spell({data, size}, kWords);
  require(::ftruncate(file, 0) == 0 &&
          ::pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  const auto settings = kvd::cmd::read_config(path);
  if (!settings) return check_complaint(settings.error()), 0;
  const auto options = kvd::cmd::make_options(*settings);
  if (!options) return check_complaint(options.error()), 0;
  const kvd::node::NodeOptions& node = options->node;
  require(!node.listen.empty() && node.spin <= kvd::Millis(10) && node.limits.connections_max >= 1);
  require(node.cores >= 1 && node.cores <= kvd::net::Movers::kThreadsMax + 1);
  const auto fits = [](std::uint64_t bytes, std::uint64_t least, std::uint64_t most) {
    return bytes == 0 || (bytes >= least && bytes <= most);
  };
  require(fits(node.limits.arena_bytes, kvd::net::Arena::kBytesMin, kvd::net::Arena::kBytesMax));
  require(fits(node.limits.window_bytes, kvd::net::Window::kBytesMin, kvd::net::Window::kBytesMax));
  require(node.store.devices.size() <= kvd::store::kDevicesMax && node.store.drive_writes_per_day >= 0);
  require(!node.store.dir.empty() || node.store.flash_bytes == 0);
  require(!(node.insecure && !options->credentials.empty()));
  return 0;
}
