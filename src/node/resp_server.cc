#include "node/resp_server.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "node/stuck.h"

namespace kvd::node {

RespServer::RespServer(NodeContext& context, AckLevel ack, Doors doors, OnClosed on_closed)
    : context_(context),
      on_closed_(std::move(on_closed)),
      shared_{context,
              {context.loop, RespSession::kTurn},
              {context.loop, RespSession::kTurn},
              ack,
              std::move(doors),
              [this](const std::string& tenant) { return keyspace_of(tenant); },
              [this](bool all) { return info(all); }} {}

Status RespServer::adopt(std::unique_ptr<io::Stream> stream) {
  const std::uint64_t number = next_session_++;
  auto session = std::make_unique<RespSession>(
      shared_, number, std::move(stream), [this](RespSession& session_ended, const Error& why) {
        RespServer& server = *this;
        {
          const auto gone = server.sessions_.extract(session_ended.number());  // it owns `why`, and this function
          server.on_closed_(session_ended.peer_host(), why);
        }
        server.drop_unused();
      });
  if (Status started = session->start(); !started) return started;
  sessions_.emplace(number, std::move(session));
  return {};
}

// Looks at all of them, which are a thousand, when there is no place for another.
bool RespServer::close_silent() {
  const auto oldest = std::ranges::find_if(sessions_, [](const auto& entry) { return entry.second->is_newcomer(); });
  if (oldest == sessions_.end()) return false;
  sessions_.erase(oldest);
  drop_unused();
  return true;
}

RespSession* RespServer::most_stuck(Time since) const { return node::most_stuck(sessions_, since); }

void RespServer::close_idle(const Error& why) {
  for (const auto& [number, session] : sessions_)
    if (session->idle()) session->close(why);
}

void RespServer::close_all(const Error& why) {
  for (const auto& [number, session] : sessions_) session->close(why);
}

void RespServer::close_secure(const Error& why) {
  for (const auto& [number, session] : sessions_)
    if (session->is_secure()) session->close(why);
}

Result<std::shared_ptr<RespKeyspace>> RespServer::keyspace_of(const std::string& tenant) {
  if (const auto at = keyspaces_.find(tenant); at != keyspaces_.end()) return at->second;
  auto opened = RespKeyspace::open(context_.store, tenant, next_part_);
  if (!opened) return fail(opened.error());
  keyspaces_.emplace(tenant, *opened);
  return *opened;
}

// Looks at all of them, which are as many as tenants have clients here. Where a value is being replaced its old parts
// are still to be removed.
void RespServer::drop_unused() {
  std::erase_if(keyspaces_,
                [](const auto& entry) { return entry.second.use_count() == 1 && !entry.second->replaces(); });
}

// What clients and monitoring look for; everything else is on the metrics port.
std::string RespServer::info(bool all) const {
  constexpr std::string_view kServer =
      "# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\nserver_name:kvdepot\r\n\r\n"
      "# Replication\r\nrole:master\r\nconnected_slaves:0\r\n";
  if (!all) return std::string(kServer);
  const store::StoreStats& store = context_.store.stats();
  return fmt::format(
      "{}\r\n"
      "# Clients\r\nconnected_clients:{}\r\n\r\n"
      "# Memory\r\nused_memory:{}\r\nmaxmemory:{}\r\nmaxmemory_policy:allkeys-lru\r\n\r\n"
      "# Stats\r\ntotal_commands_processed:{}\r\nkeyspace_hits:{}\r\nkeyspace_misses:{}\r\n",
      kServer, sessions_.size(), store.pool_bytes_used.value(), context_.store.pool_bytes(),
      context_.counters.resp_commands.value(), context_.counters.resp_hits.value(),
      context_.counters.resp_misses.value());
}

}  // namespace kvd::node
