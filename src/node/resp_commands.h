// RespCommands: the commands of the RESP front door: their table, and which arguments are values. What each does is in
// resp_commands.cc; docs/resp.md lists them with what differs from Redis.
#pragma once

#include <string_view>
#include <vector>

#include "node/resp_session.h"

namespace kvd::node {

class RespCommands {
 public:
  // Whether argument `i` of this command (any case) is a value, which goes straight into the pool.
  static bool is_value(std::string_view name, std::size_t i);
  // Whether it runs alone: behind everything before it. So do writes, and what changes whose keys are meant, or how
  // answers are written: what came before is answered as it was then.
  static bool runs_alone(std::string_view name);
  // Runs a complete command; `words` has empty texts for values. Requires that words is not empty.
  static void run(RespSession& session, const std::vector<std::string_view>& words);

 private:
  enum class Right : std::uint8_t { kNone, kRead, kWrite };
  struct Entry {
    std::string_view name;
    int arity;  // as Redis counts: with the name; negative = at least
    Right right;
    bool alone;
    bool before_auth;
    void (RespSession::*handler)(const RespSession::Words&);
  };
  friend class RespSession;
  static const std::vector<Entry>& entries();
  static const Entry* find(std::string_view name);
};

}  // namespace kvd::node
