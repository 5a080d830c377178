// The embedded depot: a node on a thread of this process, which the returned client owns.
#include "kvdepot/embed.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>
#include <thread>

#include "base/log.h"
#include "client/attachment.h"
#include "embed/directory.h"
#include "node/node.h"

namespace kvd::embed {
namespace {

// As long as `kvdepot serve` gives itself after SIGTERM: what is dirty then is lost, which is always legal.
constexpr Duration kDrainLimit = std::chrono::seconds(20);

class EmbeddedDepot final : public client::Attachment {
 public:
  static Result<std::unique_ptr<EmbeddedDepot>> start(const Directory& directory);
  ~EmbeddedDepot() override;

 private:
  explicit EmbeddedDepot(std::unique_ptr<io::Loop> loop) : loop_(std::move(loop)) {}
  Status run();

  NullLog log_;
  std::unique_ptr<io::Loop> loop_;
  std::unique_ptr<node::Node> node_;
  std::thread thread_;
};

// Errors of a node in words that fit a library: what to do when the directory is taken.
Error explain(const Error& error) {
  if (error.code != Code::kBusy) return error;
  return {Code::kBusy, error.sys_errno,
          "another process owns the directory: to share it, run `kvdepot serve --dir DIR` and use its address"};
}

Result<std::unique_ptr<EmbeddedDepot>> EmbeddedDepot::start(const Directory& directory) {
  // The socket is bound before the store is opened, so the directory is made here; the store checks what is in it.
  if (::mkdir(directory.path.c_str(), 0700) != 0 && errno != EEXIST) {
    return fail(Code::kIo, "make the embedded depot's directory", errno);
  }
  auto loop = io::make_real_loop();
  if (!loop) return fail(loop.error());
  std::unique_ptr<EmbeddedDepot> depot(new EmbeddedDepot(std::move(*loop)));
  node::NodeOptions options;
  options.store.dir = directory.path;
  options.store.pool_bytes = directory.pool_bytes;
  options.store.flash_bytes = directory.flash_bytes;
  options.listen = {"unix://" + directory.socket_path()};
  auto node = node::Node::start(*depot->loop_, depot->log_, options);
  if (!node) return fail(explain(node.error()));
  depot->node_ = std::move(*node);
  if (Status running = depot->run(); !running) return fail(running.error());
  return depot;
}

Status EmbeddedDepot::run() {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Status started;
  try {
    thread_ = std::thread([this] { loop_->run(); });
    ::pthread_setname_np(thread_.native_handle(), "kvd-depot");
  } catch (const std::system_error& error) {
    started = fail(Code::kNoSpace, "start the embedded depot's thread", error.code().value());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

EmbeddedDepot::~EmbeddedDepot() {
  if (!thread_.joinable()) return;
  loop_->post([this] { node_->drain(kDrainLimit, [this] { loop_->stop(); }); });
  thread_.join();
  node_.reset();
}

}  // namespace
}  // namespace kvd::embed

namespace kvd {

Result<std::unique_ptr<Client>> open_any(const std::string& depot, const OpenOptions& options) {
  if (!depot.starts_with("file://")) return Client::open(depot, options.client);
  const auto directory = embed::parse_directory(depot);
  if (!directory) return fail(directory.error());
  const std::string socket = "unix://" + directory->socket_path();
  if (options.attach_only) return Client::open(socket, options.client);
  auto owned = embed::EmbeddedDepot::start(*directory);
  if (!owned) return fail(owned.error());
  ClientOptions client_options = options.client;
  client_options.require_connection = true;  // it listens already
  return client::open_attached(socket, client_options, std::move(*owned));
}

}  // namespace kvd
