#include "cmd/top_devices.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvd::cmd {
namespace {

constexpr std::size_t kDirShown = 30;  // characters

class Device {
 public:
  Device(const Interval& interval, std::string label) : interval_(&interval), label_(std::move(label)) {}

  [[nodiscard]] const std::string& label() const noexcept { return label_; }
  [[nodiscard]] double now(std::string_view figure) const { return interval_->now().value(series(figure)); }
  [[nodiscard]] double rate(std::string_view counter) const { return interval_->rate(series(counter)); }

 private:
  [[nodiscard]] std::string series(std::string_view figure) const {
    return fmt::format("kvdepot_device_{}{{device=\"{}\"}}", figure, label_);
  }
  const Interval* interval_;  // outlives this
  std::string label_;
};

std::vector<Device> devices_of(const Interval& interval) {
  std::vector<Device> devices;
  for (std::string& label : interval.now().labels("kvdepot_device_bytes", "device"))
    devices.emplace_back(interval, std::move(label));
  return devices;
}

// Directories differ at their ends. What is not ours goes to a terminal in a form that does nothing there.
std::string show_dir(std::string_view label) {
  const bool cut = label.size() > kDirShown;
  std::string dir(cut ? label.substr(label.size() - kDirShown) : label);
  std::ranges::replace_if(dir, [](char c) { return c < ' ' || c > '~'; }, '?');
  if (cut) dir.front() = '<';
  return dir;
}

std::string line_of(const Device& device) {
  return fmt::format("{:<30}{:>5}{:>11.1f}{:>11.1f}{:>11.0f}{:>7.0f}{:>7.0f}{:>7.0f}\n", show_dir(device.label()),
                     device.now("off") > 0 ? "OFF" : "on", device.rate("read_bytes_total") * 1e-6,
                     device.rate("written_bytes_total") * 1e-6, device.now("records"), device.now("segments_free"),
                     device.now("in_flight"), device.now("io_errors_total"));
}

}  // namespace

std::string device_lines(const Interval& interval) {
  const std::vector<Device> devices = devices_of(interval);
  if (devices.size() < 2) return {};
  std::string out = fmt::format("\n{:<30}{:>5}{:>11}{:>11}{:>11}{:>7}{:>7}{:>7}\n", "device", "", "read MB/s",
                                "writ. MB/s", "records", "free", "queue", "errors");
  for (const Device& device : devices) out += line_of(device);
  return out;
}

nlohmann::json devices_json(const Interval& interval) {
  nlohmann::json out = nlohmann::json::object();
  for (const Device& device : devices_of(interval)) {
    out[device.label()] = {{"off", device.now("off") > 0},
                           {"bytes", device.now("bytes")},
                           {"segments", device.now("segments")},
                           {"segments_free", device.now("segments_free")},
                           {"records", device.now("records")},
                           {"in_flight", device.now("in_flight")},
                           {"removals_waiting", device.now("removals_waiting")},
                           {"outages", device.now("outages_total")},
                           {"io_errors", device.now("io_errors_total")},
                           {"read_bytes_per_s", device.rate("read_bytes_total")},
                           {"written_bytes_per_s", device.rate("written_bytes_total")}};
  }
  return out;
}

}  // namespace kvd::cmd
