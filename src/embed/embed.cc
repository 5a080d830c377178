// The embedded depot: a node on a thread of this process, which the returned client owns.
#include "kvdepot/embed.h"

#include <sys/stat.h>

#include <cerrno>

#include "client/attachment.h"
#include "embed/depot_thread.h"
#include "embed/directory.h"
#include "node/node.h"

namespace kvd::embed {
namespace {

// The directory's owner: what a client keeps alive and ends after itself.
class EmbeddedDepot final : public client::Attachment {
 public:
  static Result<std::unique_ptr<EmbeddedDepot>> start(const Directory& directory);

 private:
  explicit EmbeddedDepot(std::unique_ptr<DepotThread> thread) : thread_(std::move(thread)) {}

  std::unique_ptr<DepotThread> thread_;
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
  auto depot = std::make_unique<Depot>();
  depot->loop = std::move(*loop);
  node::NodeOptions options;
  options.store.dir = directory.path;
  options.store.pool_bytes = directory.pool_bytes;
  options.store.flash_bytes = directory.flash_bytes;
  options.listen = {"unix://" + directory.socket_path()};
  auto node = node::Node::start(*depot->loop, depot->log, options);
  if (!node) return fail(explain(node.error()));
  depot->node = std::move(*node);
  auto thread = DepotThread::start(std::move(depot), {});
  if (!thread) return fail(thread.error());
  return std::unique_ptr<EmbeddedDepot>(new EmbeddedDepot(std::move(*thread)));
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
