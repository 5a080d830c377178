// RespServer: a node's door for Redis clients: their sessions and the keyspaces of their tenants. Owned by Node, on its
// loop; the node's context outlives it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "io/stream.h"
#include "node/resp_session.h"

namespace kvd::node {

class RespServer {
 public:
  using Doors = RespDoors;
  using OnClosed = std::function<void(const std::string& peer_host, const Error& why)>;

  // `ack` as in NodeOptions, `doors` as in RespContext. `on_closed` comes from the loop when a session has ended and
  // is gone: with its host and why, for the log.
  RespServer(NodeContext& context, AckLevel ack, Doors doors, OnClosed on_closed);

  // Serves the client at the other end. kNoSpace: the store has too many namespaces open; kBusy: too many strangers.
  Status adopt(std::unique_ptr<io::Stream> stream);
  [[nodiscard]] std::size_t sessions() const noexcept { return sessions_.size(); }
  // Ends the session that has been silent for longest, at once; false: there is none.
  bool close_silent();
  // The session whose client has kept what it pins for longest without taking anything, since before `since`; may be
  // null.
  [[nodiscard]] RespSession* most_stuck(Time since) const;
  // Ends the sessions that have nothing under way, or all.
  void close_idle(const Error& why);
  void close_all(const Error& why);
  // Ends those that are encrypted.
  void close_secure(const Error& why);

 private:
  Result<std::shared_ptr<RespKeyspace>> keyspace_of(const std::string& tenant);
  void drop_unused();
  [[nodiscard]] std::string info(bool all) const;

  NodeContext& context_;
  OnClosed on_closed_;
  RespContext shared_;
  std::uint64_t next_part_ = 0;  // of all keyspaces
  // By tenant, those that somebody uses. One whose last client became another tenant's stays until a session ends.
  std::map<std::string, std::shared_ptr<RespKeyspace>> keyspaces_;
  std::map<std::uint64_t, std::unique_ptr<RespSession>> sessions_;  // the oldest first
  std::uint64_t next_session_ = 1;
};

}  // namespace kvd::node
