#include "cmd/serve_options.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "base/error_text.h"
#include "base/sizes.h"
#include "cmd/spdlog_log.h"
#include "net/arena.h"
#include "net/movers.h"
#include "store/device_table.h"

namespace kvd::cmd {
namespace {

constexpr std::array kNames{
    "connections-max", "credentials", "insecure",      "dir",          "pool",       "flash",
    "listen",          "http",        "segment",       "demote-after", "shape-read", "log-level",
    "shared-memory",   "eviction",    "scrub",         "dwpd",         "resp",       "resp-ack",
    "tls-cert",        "tls-key",     "tls-client-ca", "tls-crl",      "spin",       "device",
    "put-arena",       "put-arenas",  "get-window",    "get-windows",  "cores"};

constexpr const char* kFlashDefault = "10GiB";

// A scalar as it would be typed on the command line.
std::string as_typed(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  return {};
}

OrComplaint<std::vector<std::string>> values_of(const toml::node& node) {
  std::vector<std::string> values;
  if (const auto* array = node.as_array()) {
    for (const toml::node& element : *array) values.push_back(as_typed(element));
  } else {
    values.push_back(as_typed(node));
  }
  if (values.empty() || std::ranges::count(values, "") > 0) return std::unexpected("must be a text or a number");
  return values;
}

// Fetches single settings and remembers the first complaint.
class Reader {
 public:
  explicit Reader(const Settings& settings) : settings_(settings) {}

  std::string text(const char* name, std::string fallback) {
    const auto at = settings_.find(name);
    if (at == settings_.end()) return fallback;
    if (at->second.size() != 1)
      complain(name, std::string_view(name) == "dir" ? "takes one value: name more drives with --device DIR"
                                                     : "takes one value");
    return at->second.empty() ? fallback : at->second.back();
  }
  template <class T>
  T converted(const char* name, const std::string& fallback, Result<T> (*convert)(std::string_view)) {
    const std::string written = text(name, fallback);
    const Result<T> value = convert(written);
    if (value) return *value;
    complain(name, fmt::format("'{}' is {}", written, value.error().what));
    return T{};
  }
  void complain(const char* name, std::string_view what) {
    if (complaint.empty()) complaint = fmt::format("--{}: {}", name, what);
  }

  std::string complaint;

 private:
  const Settings& settings_;
};

// 0 = the store chooses.
Result<std::uint64_t> parse_segment(std::string_view text) {
  return text == "auto" ? Result<std::uint64_t>(0) : parse_size(text);
}

Result<policy::Eviction> parse_eviction(std::string_view text) {
  if (text == "lru") return policy::Eviction::kLru;
  if (text == "fifo") return policy::Eviction::kFifo;
  return fail(Code::kInvalid, "not lru or fifo");
}

Result<std::uint32_t> parse_count(std::string_view text, std::uint32_t max, const char* complaint) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 1 || value > max)
    return fail(Code::kInvalid, complaint);
  return value;
}

// As many as descriptors can be had for.
Result<std::uint32_t> parse_connections(std::string_view text) {
  return parse_count(text, 1'000'000, "not a number from 1 to 1000000");
}

// The loop's thread and those that move bodies.
Result<std::uint32_t> parse_cores(std::string_view text) {
  return parse_count(text, net::Movers::kThreadsMax + 1, "not a number from 1 to 64");
}

Result<AckLevel> parse_ack(std::string_view text) {
  if (text == "pooled") return AckLevel::kPooled;
  if (text == "written") return AckLevel::kWritten;
  if (text == "synced") return AckLevel::kSynced;
  return fail(Code::kInvalid, "not pooled, written or synced");
}

// Drive writes a day.
Result<Duration> parse_spin(std::string_view text) {
  const Result<Duration> spin = parse_duration(text);
  if (spin && *spin > Millis(10)) return fail(Code::kInvalid, "more than 10ms, which is as good as never to sleep");
  return spin;
}

// Of an arena or a window; 0 = none.
Result<std::uint64_t> parse_arena(std::string_view text) {
  const Result<std::uint64_t> bytes = parse_size(text);
  if (bytes && *bytes != 0 && (*bytes < net::Arena::kBytesMin || *bytes > net::Arena::kBytesMax))
    return fail(Code::kInvalid, "neither 0 nor from 64KiB to 64MiB");
  return bytes;
}

Result<double> parse_dwpd(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= 0 && value <= 1000))
    return fail(Code::kInvalid, "not a number from 0 to 1000");
  return value;
}

Result<bool> parse_switch(std::string_view text) {
  if (text == "on" || text == "off") return text == "on";
  return fail(Code::kInvalid, "not on or off");
}

// What belongs together is there, and is used.
void check_tls(const ServeOptions& options, Reader& read) {
  const tls::ServerFiles& files = options.tls;
  if (files.certificate.empty() != files.key.empty())
    read.complain(files.key.empty() ? "tls-key" : "tls-cert", "is missing: a certificate and its key go together");
  if (files.certificate.empty() && !files.client_ca.empty())
    read.complain("tls-client-ca", "is for tls:// addresses, which need --tls-cert and --tls-key");
  if (files.client_ca.empty() && !files.crl.empty())
    read.complain("tls-crl", "takes back certificates of clients, and without --tls-client-ca they show none");
  const auto is_tls = [](const std::string& address) { return address.starts_with("tls://"); };
  const bool used = std::ranges::any_of(options.node.listen, is_tls) || std::ranges::any_of(options.node.resp, is_tls);
  if (!files.certificate.empty() && !used)
    read.complain("tls-cert", "is for addresses that begin with tls://: give one with --listen or --resp");
}

// The same for two spellings of a path, as far as its text tells; of links the store finds out.
std::string plain(const std::string& dir) {
  std::error_code ignored;
  const auto path = std::filesystem::absolute(dir, ignored);
  return ((ignored ? std::filesystem::path(dir) : path) / "").lexically_normal().string();
}

// DIR or DIR=SIZE. What is behind the last '=' has to be a size: one with a slip in it must not become a directory.
store::DeviceOptions read_device(const std::string& written, const store::StoreOptions& store, Reader& read) {
  store::DeviceOptions device{.dir = written, .flash_bytes = store.flash_bytes, .flash_bytes_given = false};
  if (device.flash_bytes == 0) device.flash_bytes = parse_size(kFlashDefault).value_or(0);
  if (const auto at = written.rfind('='); at != std::string::npos) {
    const std::string size = written.substr(at + 1);
    const auto bytes = parse_size(size);
    if (!bytes)
      read.complain("device", fmt::format("'{}' is {}: write DIR=SIZE, also where a name has a = in it", size,
                                          bytes.error().what));
    device = {.dir = written.substr(0, at), .flash_bytes = bytes.value_or(0)};
  }
  if (device.dir.empty())
    read.complain("device", fmt::format("'{}' names no directory: write DIR or DIR=SIZE", written));
  if (device.flash_bytes == 0) read.complain("device", device.dir + " of no size can hold nothing: leave it out");
  return device;
}

void read_devices(const Settings& settings, store::StoreOptions& store, Reader& read) {
  const auto at = settings.find("device");
  if (at == settings.end()) return;
  for (const std::string& written : at->second) {
    const store::DeviceOptions device = read_device(written, store, read);
    const std::string dir = plain(device.dir);
    if (!store.dir.empty() && dir == plain(store.dir))
      read.complain("device", device.dir + " is --dir itself: how much it holds is said by --flash");
    if (std::ranges::any_of(store.devices, [&](const auto& other) { return plain(other.dir) == dir; }))
      read.complain("device", device.dir + " is given twice: leave one of them out");
    store.devices.push_back(device);
  }
  if (const auto devices = store.devices.size() + (store.flash_bytes > 0 ? 1 : 0); devices > store::kDevicesMax)
    read.complain("device", fmt::format("a store has at most {} devices, these are {}{}", store::kDevicesMax, devices,
                                        store.flash_bytes > 0 ? " with --dir" : ""));
}

// Where the store lies, on which drives.
void read_store_place(const Settings& settings, store::StoreOptions& store, Reader& read) {
  store.dir = read.text("dir", "");
  store.flash_bytes = read.converted("flash", kFlashDefault, parse_size);
  store.flash_bytes_given = settings.contains("flash");
  read_devices(settings, store, read);
  store.forget_missing = read.converted("forget-missing", "off", parse_switch);
  const bool on_flash = store.flash_bytes > 0 || !store.devices.empty();
  if (store.dir.empty() && on_flash)
    read.complain("dir",
                  store.devices.empty()
                      ? "is missing: name a directory on a local disk, or use --flash 0 to keep records in "
                        "memory only"
                      : "is missing: name the directory that keeps the list of the devices, also with --flash 0");
  if (store.forget_missing && !on_flash)
    read.complain("forget-missing", "is for devices, and with --flash 0 there are none: leave one of them out");
}

// HOST:PORT is short for tcp://HOST:PORT.
std::string full_address(const std::string& written) {
  return written.find("://") == std::string::npos ? "tcp://" + written : written;
}

}  // namespace

OrComplaint<Settings> read_config(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::unexpected(fmt::format("--config: cannot read {}: {}", path, error_text(errno)));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  toml::table table;
  try {
    table = toml::parse(text, path);
  } catch (const toml::parse_error& error) {  // how the library reports bad input
    return std::unexpected(
        fmt::format("--config: {} line {}: {}", path, error.source().begin.line, error.description()));
  }
  Settings settings;
  for (const auto& [key, value] : table) {
    const std::string name(key.str());
    if (name == "forget-missing")
      return std::unexpected(fmt::format("--config: {} line {}: forget-missing is for one start: give it as a flag",
                                         path, key.source().begin.line));
    if (std::ranges::find(kNames, name) == kNames.end()) {
      return std::unexpected(fmt::format("--config: {} line {}: there is no setting '{}': see kvdepot serve --help",
                                         path, key.source().begin.line, name));
    }
    auto values = values_of(value);
    if (!values) {
      return std::unexpected(
          fmt::format("--config: {} line {}: '{}' {}", path, key.source().begin.line, name, values.error()));
    }
    settings[name] = std::move(*values);
  }
  return settings;
}

OrComplaint<ServeOptions> make_options(const Settings& settings) {
  Reader read(settings);
  ServeOptions options;
  store::StoreOptions& store = options.node.store;
  read_store_place(settings, store, read);
  const bool on_flash = store.flash_bytes > 0 || !store.devices.empty();
  store.pool_bytes = read.converted("pool", "1GiB", parse_size);
  store.segment_bytes = read.converted("segment", "auto", parse_segment);
  store.eviction = read.converted("eviction", "lru", parse_eviction);
  store.scrub_bytes_per_s = read.converted("scrub", "16MiB", parse_size);
  store.drive_writes_per_day = read.converted("dwpd", "0", parse_dwpd);
  store.verify = read.converted("verify", "on", parse_switch);
  store.demote_after = read.converted("demote-after", "30s", parse_duration);
  options.node.shape_read_bytes_per_s = read.converted("shape-read", "0", parse_size);
  options.node.shared_memory = read.converted("shared-memory", "on", parse_switch);
  options.node.limits.arena_bytes = read.converted("put-arena", "16MiB", parse_arena);
  options.node.limits.arena_bytes_all_max = read.converted("put-arenas", "1GiB", parse_size);
  options.node.limits.window_bytes = read.converted("get-window", "32MiB", parse_arena);
  options.node.limits.window_bytes_all_max = read.converted("get-windows", "1GiB", parse_size);
  options.node.spin = read.converted("spin", "50us", parse_spin);
  options.node.cores = read.converted("cores", "1", parse_cores);
  options.node.limits.connections_max = read.converted("connections-max", "1024", parse_connections);
  options.log_level = read.converted("log-level", "info", parse_level);
  options.credentials = read.text("credentials", "");
  options.tls = {.certificate = read.text("tls-cert", ""),
                 .key = read.text("tls-key", ""),
                 .client_ca = read.text("tls-client-ca", ""),
                 .crl = read.text("tls-crl", "")};
  options.node.insecure = read.converted("insecure", "off", parse_switch);
  options.node.http = read.text("http", "127.0.0.1:7071");
  if (options.node.http == "off") options.node.http.clear();
  const auto listen = settings.find("listen");
  for (const std::string& address :
       listen == settings.end() ? std::vector<std::string>{"127.0.0.1:7070"} : listen->second) {
    options.node.listen.push_back(full_address(address));
  }
  if (const auto resp = settings.find("resp"); resp != settings.end()) {
    for (const std::string& address : resp->second) options.node.resp.push_back(full_address(address));
  }
  options.node.resp_ack = read.converted("resp-ack", "pooled", parse_ack);
  if (options.node.resp_ack != AckLevel::kPooled && !on_flash)
    read.complain("resp-ack", "asks for flash, and with --flash 0 there is none: leave one of them out");
  if (store.drive_writes_per_day > 0 && !on_flash)
    read.complain("dwpd", "bounds what is written to flash, and with --flash 0 there is none: leave one of them out");
  for (const char* const name : {"segment", "eviction", "scrub", "demote-after"})
    if (!on_flash && settings.contains(name))
      read.complain(name, "is for flash, and with --flash 0 there is none: leave one of them out");
  if (options.node.insecure && !options.credentials.empty())
    read.complain("insecure", "lets everybody in, and --credentials does not: leave one of them out");
  check_tls(options, read);
  if (!read.complaint.empty()) return std::unexpected(read.complaint);
  return options;
}

}  // namespace kvd::cmd
