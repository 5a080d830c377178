#include "cmd/serve.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/error_text.h"
#include "cmd/complaint.h"
#include "cmd/credentials_file.h"
#include "cmd/preflight.h"
#include "cmd/spdlog_log.h"
#include "http/server.h"
#include "io/fd.h"
#include "io/loop.h"
#include "net/address.h"
#include "node/node.h"

namespace kvd::cmd {
namespace {

constexpr Duration kDrainLimit = std::chrono::seconds(20);
// A supervisor and a terminal may both signal; what comes this soon after the first is no second wish.
constexpr Duration kSignalRepeat = std::chrono::seconds(1);
constexpr unsigned kExitSeconds = 10;  // behind the drain, for a device that does not answer

// Written by the signal handlers, read by the loop. The handlers can't be given an object.
int signal_fd = -1;
int reload_fd = -1;

void tell(int fd) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof one);
}

void on_signal(int) { tell(signal_fd); }
void on_hangup(int) { tell(reload_fd); }

// Until the node listens, signals have their default effect: nothing that is done before can be damaged by it.
void catch_signals(int fd) {
  signal_fd = fd;
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  KVD_CHECK(::sigaction(SIGTERM, &action, nullptr) == 0);
  KVD_CHECK(::sigaction(SIGINT, &action, nullptr) == 0);
}

bool wants_colour() {
  const char* const no_color = std::getenv("NO_COLOR");
  return no_color == nullptr || *no_color == '\0';
}

// One line that says what is wrong; `why` when somebody below has already said what to do about it.
int report(const Error& error, const std::string& why) { return report_failure(why.empty() ? error_text(error) : why); }

using Devices = std::vector<store::DeviceOptions>;

// One that cannot be read is missing behind --forget-missing.
const char* state_of(const store::Store& store, const std::string& dir) {
  for (const store::DeviceFigures& device : store.device_figures()) {
    std::error_code ignored;
    if (device.dir == dir || std::filesystem::equivalent(device.dir, dir, ignored))
      return device.stats->off.value() > 0 ? "off" : "on";
  }
  return "missing";
}

void announce(node::Node& node, const ServeOptions& options, const Devices& devices, bool json) {
  if (json) {
    nlohmann::json each = nlohmann::json::array();
    std::uint64_t flash_bytes = 0;
    for (const store::DeviceOptions& device : devices) {
      each.push_back(
          {{"dir", device.dir}, {"flash_bytes", device.flash_bytes}, {"state", state_of(node.store(), device.dir)}});
      flash_bytes += device.flash_bytes;
    }
    nlohmann::json out{{"event", "ready"},
                       {"listening", node.addresses()},
                       {"resp", node.resp_addresses()},
                       {"http", node.http_address()},
                       {"dir", options.node.store.dir},
                       {"pool_bytes", options.node.store.pool_bytes},
                       {"flash_bytes", flash_bytes},
                       {"devices", std::move(each)},
                       {"pid", ::getpid()}};
    fmt::print("{}\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    for (const std::string& address : node.addresses()) fmt::print("listening on {}\n", address);
    for (const std::string& address : node.resp_addresses()) fmt::print("Redis clients on {}\n", address);
    if (!node.http_address().empty()) fmt::print("metrics on http://{}/metrics\n", node.http_address());
  }
  std::fflush(stdout);
}

// What is wrong with the first address that cannot be read, or "".
std::string unreadable_address(const node::NodeOptions& options) {
  for (const auto* addresses : {&options.listen, &options.resp})
    for (const std::string& text : *addresses)
      if (const auto address = net::parse_address(text); !address)
        return fmt::format("{}: {}", text, address.error().what);
  if (options.http.empty()) return {};
  const Status http = http::HttpServer::check(options.http);
  return http ? std::string() : fmt::format("http://{}: {}", options.http, http.error().what);
}

// What is checked before anything is opened: a line each in the log. The line of what makes a start impossible, or "".
std::string preflight(Log& log, const ServeOptions& options, const Devices& devices) {
  Needs needs{
      .disks = {}, .pool_bytes = options.node.store.pool_bytes, .connections_max = options.node.limits.connections_max};
  for (const store::DeviceOptions& device : devices) needs.disks.push_back({device.dir, device.flash_bytes});
  for (const Finding& finding : judge(needs, read_offers(needs))) {
    if (finding.level == Level::kError) return finding.line;
    log.write(finding.level, finding.line);
  }
  return {};
}

// Waits for signals on the loop: the first drains, a later one ends at once.
class Shutdown {
 public:
  Shutdown(io::Loop& loop, Log& log, node::Node& node)
      : loop_(loop), log_(log), node_(node), watch_(loop, [this](std::uint32_t) { on_signal_seen(); }) {}

  Status start() {
    fd_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd_.ok()) return fail(Code::kIo, "make an eventfd", errno);
    if (Status started = watch_.start(fd_.get(), io::Watch::kRead); !started) return started;
    catch_signals(fd_.get());
    return {};
  }
  [[nodiscard]] bool draining() const noexcept { return draining_; }
  [[nodiscard]] bool drained() const noexcept { return drained_; }

 private:
  void on_signal_seen() {
    std::uint64_t count = 0;
    if (::read(fd_.get(), &count, sizeof count) != sizeof count) return;
    if (draining_ && loop_.now() - began_ < kSignalRepeat) return;
    if (draining_) {
      log_.warn("a second signal: ending at once, what is not on flash yet is lost");
      // Recovery takes turns of the loop itself, which stop() does not end, and has nothing to lose.
      if (node_.store().stats().recovering.value() > 0) ::_exit(EXIT_FAILURE);
      return loop_.stop();
    }
    draining_ = true;
    began_ = loop_.now();
    log_.info("shutting down: finishing requests and writing to flash, at most 20 s");
    node_.drain(kDrainLimit, [this] {
      drained_ = true;
      ::alarm(kExitSeconds);  // recovery, and whatever else still turns the loop, may wait for a device that hangs
      loop_.stop();
    });
  }

  io::Loop& loop_;
  Log& log_;
  node::Node& node_;
  io::UniqueFd fd_;
  io::Watch watch_;
  Time began_{};
  bool draining_ = false;
  bool drained_ = false;
};

// Lets the store read what flash holds, while clients are served what is known already.
Status recover(node::Node& node, Log& log, const Shutdown& shutdown, std::string& why) {
  if (!node.store().recovering()) return node.recover(&why);  // nothing is on flash: it is ready
  std::string where;
  for (const auto& addresses : {node.addresses(), node.resp_addresses()})
    for (const std::string& address : addresses) where += (where.empty() ? "" : ", ") + address;
  log.info(fmt::format("serving while recovering, on {}: what is known is found, puts and removals are busy{}", where,
                       node.http_address().empty() ? "" : "; metrics on http://" + node.http_address() + "/metrics"));
  const Status recovered = node.recover(&why);
  if (recovered && !node.store().recovering() && !shutdown.draining())
    log.info("recovered: puts and removals are taken");
  return recovered;
}

// Kernel TLS would spare a copy. It is not used: no kernel that it could be tested on was at hand.
bool kernel_has_tls() {
  const io::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  constexpr std::string_view kName = "tls";
  // On a socket that is not connected: ENOTCONN where the kernel has it, ENOENT where it has not.
  const int set = ::setsockopt(socket.get(), IPPROTO_TCP, TCP_ULP, kName.data(), kName.size());
  return set == 0 || errno == ENOTCONN;
}

// Reads the credentials and the certificates again at SIGHUP. A file that is wrong changes nothing.
class Reload {
 public:
  Reload(io::Loop& loop, Log& log, const ServeOptions& options)
      : log_(log), options_(options), watch_(loop, [this](std::uint32_t) { on_hangup_seen(); }) {}
  [[nodiscard]] bool wanted() const { return !options_.credentials.empty() || options_.node.tls != nullptr; }

  // Before the file is read for the first time: what is signalled during recovery is done after it.
  Status catch_hangups() {
    fd_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd_.ok()) return fail(Code::kIo, "make an eventfd", errno);
    reload_fd = fd_.get();
    struct sigaction action{};
    action.sa_handler = on_hangup;
    action.sa_flags = SA_RESTART;
    KVD_CHECK(::sigaction(SIGHUP, &action, nullptr) == 0);
    return {};
  }
  Status start(node::Node& node) {
    node_ = &node;
    return watch_.start(fd_.get(), io::Watch::kRead);
  }

 private:
  void on_hangup_seen() {
    std::uint64_t count = 0;
    if (::read(fd_.get(), &count, sizeof count) != sizeof count) return;
    if (options_.node.tls != nullptr) read_certificates();
    if (!options_.credentials.empty()) read_credentials();
  }
  void read_certificates() {
    if (const auto replaced = options_.node.tls->replace(options_.tls); !replaced)
      return log_.error("the certificates stay as they were: " + replaced.error().str());
    node_->judge_certificates();
    log_.info("certificates read again");
  }
  void read_credentials() {
    auto authority = load_authority(options_.credentials);
    if (!authority) return log_.error("the credentials stay as they were: " + authority.error());
    node_->set_authority(std::move(*authority));
    log_.info("credentials read again");
  }

  Log& log_;
  node::Node* node_ = nullptr;
  const ServeOptions& options_;
  io::UniqueFd fd_;
  io::Watch watch_;
};

}  // namespace

int serve(const ServeOptions& given, bool json) {
  ServeOptions options = given;
  ::umask(S_IRWXG | S_IRWXO);
  ::signal(SIGPIPE, SIG_IGN);
  const std::unique_ptr<Log> log = make_stderr_log(options.log_level, wants_colour());
  const Devices devices = store::Store::device_sizes(options.node.store);
  if (const std::string wrong = unreadable_address(options.node); !wrong.empty()) return complain(wrong);
  if (const std::string impossible = preflight(*log, options, devices); !impossible.empty())
    return report_failure(impossible);
  if (!options.node.store.verify) log->warn("--verify off: what is read from flash is not verified; for tests only");
  Result<std::unique_ptr<io::Loop>> loop = io::make_real_loop();
  if (!loop) return report(loop.error(), "");
  if (!options.tls.certificate.empty()) {
    auto context = tls::Context::make_server(options.tls);
    if (!context) return complain("TLS: " + context.error().str());
    options.node.tls = std::move(*context);
    log->info(std::string("TLS 1.3 in user space; kernel TLS is ") +
              (kernel_has_tls() ? "there and not used: untested" : "not in this kernel"));
  }
  Reload reload(**loop, *log, options);
  if (reload.wanted()) {
    if (const Status caught = reload.catch_hangups(); !caught) return report(caught.error(), "");
  }
  if (!options.credentials.empty()) {
    auto authority = load_authority(options.credentials);
    if (!authority) return complain("--credentials: " + authority.error());
    options.node.authority = std::move(*authority);
  }
  if (options.node.insecure) log->warn("--insecure: whoever reaches this depot may read, change and remove all of it");
  options.node.serve_recovering = true;
  std::string why;
  Result<std::unique_ptr<node::Node>> node = node::Node::start(**loop, *log, options.node, &why);
  if (!node) return report(node.error(), why);
  Shutdown shutdown(**loop, *log, **node);
  if (const Status started = shutdown.start(); !started) return report(started.error(), "");
  if (reload.wanted()) {
    if (const Status started = reload.start(**node); !started) return report(started.error(), "");
  }
  if (const Status recovered = recover(**node, *log, shutdown, why); !recovered) return report(recovered.error(), why);
  if (!shutdown.draining()) announce(**node, options, devices, json);
  (*loop)->run();  // a drain that has ended already has stopped it
  // What was acknowledged is on flash by now, or is meant to be lost: a device that hangs must not keep the process.
  ::signal(SIGTERM, SIG_DFL);
  ::signal(SIGINT, SIG_DFL);
  ::alarm(kExitSeconds);
  if (!shutdown.drained()) return EXIT_FAILURE;
  log->info("drained, goodbye");
  return EXIT_SUCCESS;
}

}  // namespace kvd::cmd
