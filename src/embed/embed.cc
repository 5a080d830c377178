// The embedded depot: a node on a thread of this process, which the returned client owns.
#include "kvdepot/embed.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error_text.h"
#include "client/attachment.h"
#include "embed/depot_thread.h"
#include "embed/directory.h"
#include "node/node.h"
#include "store/directory.h"

namespace kvd::embed {
namespace {

// What a library's user hears of the depot: warnings and errors.
class CallbackLog final : public Log {
 public:
  explicit CallbackLog(std::function<void(std::string_view)> on_warning) : on_warning_(std::move(on_warning)) {}
  void write(Level level, std::string_view line) override {
    if (level >= Level::kWarn && on_warning_) on_warning_(line);
  }

 private:
  std::function<void(std::string_view)> on_warning_;
};

// The directory's owner: what a client keeps alive and ends after itself.
class EmbeddedDepot final : public client::Attachment {
 public:
  static Result<std::unique_ptr<EmbeddedDepot>> start(const Directory& directory, const OpenOptions& options,
                                                      std::string& why);

 private:
  explicit EmbeddedDepot(std::unique_ptr<DepotThread> thread) : thread_(std::move(thread)) {}

  std::unique_ptr<DepotThread> thread_;
};

// Errors of a node in words that fit a library: what to do when the directory is taken.
Error explain(const Directory& directory, const Error& error, std::string& why) {
  if (error.code != Code::kBusy) return error;
  static constexpr char kTaken[] =
      "another process owns the directory: to share it, run `kvdepot serve --dir DIR` and use its address";
  why = directory.path + ": " + kTaken;
  return {Code::kBusy, error.sys_errno, kTaken};
}

// The socket is bound before the store is opened, so the directory is made here; the node looks into it before that.
Status make_directory(const Directory& directory, std::string& why) {
  if (::mkdir(directory.path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  const int error = errno;
  why = directory.path + ": cannot be created: " + error_text(error) + ": ";
  why += error == ENOENT ? "create its parent directory first" : "give one that this user may create";
  return fail(Code::kIo, "make the embedded depot's directory", error);
}

// An address names one directory.
Status check_alone(const Directory& directory, std::string& why) {
  if (directory.flash_bytes == 0 || ::access(store::list_path_in(directory.path).c_str(), F_OK) != 0) return {};
  static constexpr char kSeveral[] =
      "is a store of several devices: run `kvdepot serve --dir DIR --device DIR ...` and use its address";
  why = directory.path + ": " + kSeveral;
  return fail(Code::kInvalid, kSeveral);
}

Result<std::unique_ptr<EmbeddedDepot>> EmbeddedDepot::start(const Directory& directory, const OpenOptions& options,
                                                            std::string& why) {
  if (const Status made = make_directory(directory, why); !made) return fail(made.error());
  if (const Status alone = check_alone(directory, why); !alone) return fail(alone.error());
  auto loop = io::make_real_loop();
  if (!loop) return fail(loop.error());
  auto depot = std::make_unique<Depot>();
  depot->log = std::make_unique<CallbackLog>(options.on_warning);
  depot->loop = std::move(*loop);
  node::NodeOptions node_options;
  node_options.store.dir = directory.path;
  node_options.store.pool_bytes = directory.pool_bytes;
  node_options.store.flash_bytes = directory.flash_bytes;
  node_options.store.flash_bytes_given = directory.flash_given;
  node_options.listen = {"unix://" + directory.socket_path()};
  auto node = node::Node::start(*depot->loop, *depot->log, node_options, &why);
  if (!node) return fail(explain(directory, node.error(), why));
  depot->node = std::move(*node);
  auto thread = DepotThread::start(std::move(depot), {});
  if (!thread) return fail(thread.error());
  return std::unique_ptr<EmbeddedDepot>(new EmbeddedDepot(std::move(*thread)));
}

}  // namespace
}  // namespace kvd::embed

namespace kvd {

namespace {

Result<std::unique_ptr<Client>> open_here(const std::string& depot, const OpenOptions& options, std::string& why) {
  const auto directory = embed::parse_directory(depot);
  if (!directory) return fail(directory.error());
  const std::string socket = "unix://" + directory->socket_path();
  if (options.attach_only) return Client::open(socket, options.client);
  auto owned = embed::EmbeddedDepot::start(*directory, options, why);
  if (!owned) return fail(owned.error());
  ClientOptions client_options = options.client;
  client_options.require_connection = true;  // it listens already
  return client::open_attached(socket, client_options, std::move(*owned));
}

}  // namespace

Result<std::unique_ptr<Client>> open_any(const std::string& depot, const OpenOptions& options, std::string* why) {
  std::string reason;
  auto opened = depot.starts_with("file://") ? open_here(depot, options, reason) : Client::open(depot, options.client);
  if (opened || why == nullptr) return opened;
  const Error& error = opened.error();
  *why = reason.empty() ? error_text(error) : reason;
  return opened;
}

}  // namespace kvd
