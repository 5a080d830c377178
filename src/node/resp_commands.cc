#include "node/resp_commands.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace kvd::node {
namespace {

constexpr std::string_view kNotANumber = "ERR value is not an integer or out of range";
constexpr std::string_view kSyntax = "ERR syntax error";
constexpr std::string_view kWrongPass = "WRONGPASS invalid username-password pair or user is disabled.";

// What clients may look at to tell which commands there are.
constexpr std::string_view kRedisVersion = "7.0.0";
constexpr std::size_t kErrorBytesMax = 128;  // of what an error repeats

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
  return result;
}

bool same(std::string_view a, std::string_view lower_case) {
  return a.size() == lower_case.size() && lower(a) == lower_case;  // `a` may be long, and is asked about often
}

std::optional<std::int64_t> parse_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string wrong_arguments(std::string_view command) {
  return fmt::format("ERR wrong number of arguments for '{}' command", command);
}

std::string unknown_subcommand(std::string_view word, std::string_view command) {
  return fmt::format("ERR unknown subcommand '{}'. Try {} HELP.", word.substr(0, kErrorBytesMax), command);
}

std::string unknown_command(const std::vector<std::string_view>& words) {
  std::string args;
  for (std::size_t i = 1; i < words.size() && args.size() < kErrorBytesMax; ++i)
    args += fmt::format("'{}' ", words[i].substr(0, kErrorBytesMax - args.size()));
  return fmt::format("ERR unknown command '{}', with args beginning with: {}", words[0].substr(0, kErrorBytesMax),
                     args);
}

std::vector<std::string> keys_of(const std::vector<std::string_view>& words) {
  return {words.begin() + 1, words.end()};
}

}  // namespace

// ---- The table ----

const std::vector<RespCommands::Entry>& RespCommands::entries() {
  using S = RespSession;
  using enum Right;
  static const std::vector<Entry> all{
      {"auth", -2, kNone, true, true, &S::auth},         {"client", -2, kNone, false, false, &S::client},
      {"command", -1, kNone, false, false, &S::command}, {"del", -2, kWrite, true, false, &S::del},
      {"echo", 2, kNone, false, false, &S::echo},        {"exists", -2, kRead, false, false, &S::exists},
      {"get", 2, kRead, false, false, &S::get},          {"getrange", 4, kRead, false, false, &S::getrange},
      {"hello", -1, kNone, true, true, &S::hello},       {"info", -1, kNone, false, false, &S::info},
      {"mget", -2, kRead, false, false, &S::mget},       {"mset", -3, kWrite, true, false, &S::mset},
      {"ping", -1, kNone, false, false, &S::ping},       {"quit", -1, kNone, true, true, &S::quit},
      {"select", 2, kNone, false, false, &S::select},    {"set", -3, kWrite, true, false, &S::set},
      {"strlen", 2, kRead, false, false, &S::strlen},    {"substr", 4, kRead, false, false, &S::getrange},
      {"unlink", -2, kWrite, true, false, &S::del},
  };
  return all;
}

const RespCommands::Entry* RespCommands::find(std::string_view name) {
  const std::string wanted = lower(name.substr(0, kErrorBytesMax));
  const auto at = std::ranges::find(entries(), std::string_view(wanted), &Entry::name);
  return at == entries().end() ? nullptr : &*at;
}

bool RespCommands::is_value(std::string_view name, std::size_t i) {
  return (i == 2 && same(name, "set")) || (i >= 2 && i % 2 == 0 && same(name, "mset"));
}

bool RespCommands::runs_alone(std::string_view name) {
  const Entry* const entry = find(name);
  return entry != nullptr && entry->alone;
}

void RespCommands::run(RespSession& session, const std::vector<std::string_view>& words) {
  const Entry* const entry = find(words[0]);
  if (entry == nullptr) return session.answer_error(unknown_command(words));
  const auto count = static_cast<int>(words.size());
  if (entry->arity >= 0 ? count != entry->arity : count < -entry->arity)
    return session.answer_error(wrong_arguments(entry->name));
  if (!entry->before_auth && session.keyspace_ == nullptr)
    return session.answer_error("NOAUTH Authentication required.");
  const auto& identity = session.access_.identity;
  Gate& gate = session.context_.node.gate;
  const bool expired =
      (identity && gate.expired(*identity)) || gate.expired(session.connection_->stream().peer_certificate());
  if (!entry->before_auth && expired) {
    identity ? gate.refuse(session.peer_host_, *identity, "expired")
             : gate.refuse(session.peer_host_, "expired certificate");
    session.quits_ = true;
    return session.answer_error("NOAUTH the credential has expired.");
  }
  const bool may =
      entry->right == Right::kNone || (entry->right == Right::kRead ? session.access_.reads : session.access_.writes);
  if (!may) {
    gate.forbid(session.peer_host_, identity.get(), "a command without the right to it");
    if (session.access_.use != nullptr) session.access_.use->refused.add();
    return session.answer_error(
        fmt::format("NOPERM this user has no permissions to run the '{}' command", entry->name));
  }
  if (entry->right != Right::kNone && session.context_.node.draining && session.puts_.empty())
    return session.answer_error(kRespDraining);
  if (entry->right == Right::kWrite && session.context_.node.store.recovering()) {
    session.context_.node.counters.answered_busy.add();
    return session.answer_error(kRespRecovering);
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    const wire::RespParser::Argument& argument = session.parser_.arguments()[i];
    if (argument.taken != wire::RespParser::Taken::kDropped || is_value(words[0], i)) continue;
    if (session.keyspace_ == nullptr) return session.answer_error("ERR too long");
    return session.answer_error(argument.bytes > kRespArgumentBytesMax ? "ERR an argument is longer than 65536 bytes"
                                                                       : "ERR the arguments have more than 1 MiB");
  }
  if (entry->right != Right::kNone) {
    // Of a value that was not taken it is known why.
    if (session.refusal_.empty() && !session.take_slot()) return session.answer_error(kRespTenantBusy);
    if (session.slot_.share) session.access_.use->accepted.add();
  }
  (session.*entry->handler)(words);
}

// ---- Connection ----

void RespSession::ping(const Words& words) {
  if (words.size() > 2) return answer_error(wrong_arguments("ping"));
  if (words.size() == 1) return answer_simple("PONG");
  answer_bulk(words[1]);
}

void RespSession::echo(const Words& words) { answer_bulk(words[1]); }

void RespSession::quit(const Words&) {
  answer_simple("OK");
  quits_ = true;
}

// Whether the client is who it says. A wrong token is answered after a moment and ends the connection, so that guesses
// take their time and one of the few places for strangers.
bool RespSession::log_in(std::string_view user, std::string_view token) {
  if (!context_.doors.by_token && user == "default") return true;
  if (!context_.doors.by_token) {
    answer_error(kWrongPass);
    return false;
  }
  const auto access = context_.doors.by_token(token, peer_host_);
  if (!access) {
    refused_ = true;
    stranger_.stay();
    auth_timer_.disarm();
    refusal_timer_.arm_in(context_.node.limits.refusal_delay);
    return false;
  }
  if (const Status in = enter(*access); !in) {
    turn_away(in.error());
    return false;
  }
  return true;
}

// Is known from now on. kBusy: its tenant has no connection left; kNoSpace: no namespace.
Status RespSession::enter(const RespAccess& access) {
  auto keyspace = context_.keyspace_of(access.tenant);
  if (!keyspace) return fail(keyspace.error());
  if (access.use != seat_.tenant) {
    Result<TenantSlot> seat = TenantSlot{};
    if (access.use != nullptr) seat = context_.node.gate.take_connection(access.use);
    if (!seat) return fail(seat.error());
    seat_ = std::move(*seat);
  }
  keyspace_ = std::move(*keyspace);
  access_ = access;
  if (access_.use != nullptr) context_.node.gate.count_for(access_.use, {.pinned = pins_, .unfinished = unfinished_});
  const void* const share = access_.use.get();
  connection_->set_share(share);
  line_.set_share(share);
  checks_.set_share(share);
  auth_timer_.disarm();
  stranger_.release();
  return {};
}

// As Redis does with one client too many.
void RespSession::turn_away(const Error& why) {
  answer_error(why.code == Code::kBusy ? fmt::format("ERR max number of clients reached: {}", why.what)
                                       : fmt::format("ERR {}", why.what));
  quits_ = true;
}

void RespSession::on_refusal_timer() {
  answer_error(kWrongPass);
  quits_ = true;
  pump();
}

void RespSession::auth(const Words& words) {
  if (words.size() > 3) return answer_error(kSyntax);
  if (words.size() == 2 && !context_.doors.by_token)
    return answer_error(
        "ERR AUTH <password> called without any password configured for the default user. Are you sure your "
        "configuration is correct?");
  if (log_in(words.size() == 3 ? words[1] : "default", words.back())) answer_simple("OK");
}

void RespSession::hello(const Words& words) {
  int version = version_;
  std::string name = name_;
  if (words.size() > 1) {
    const auto asked = parse_number(words[1]);
    if (!asked) return answer_error("ERR Protocol version is not an integer or out of range");
    if (*asked != 2 && *asked != 3) return answer_error("NOPROTO unsupported protocol version");
    version = static_cast<int>(*asked);
  }
  for (std::size_t i = 2; i < words.size();) {
    if (same(words[i], "auth") && i + 2 < words.size()) {
      if (!log_in(words[i + 1], words[i + 2])) return;
      i += 3;
    } else if (same(words[i], "setname") && i + 1 < words.size()) {
      name = words[i + 1];
      i += 2;
    } else {
      return answer_error(fmt::format("ERR Syntax error in HELLO option '{}'", words[i].substr(0, kErrorBytesMax)));
    }
  }
  if (keyspace_ == nullptr)
    return answer_error(
        "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> "
        "<pass> option can be used to authenticate the client and select the RESP protocol version at the same time");
  version_ = version;
  name_ = name;
  wire::Buffer& out = answer();
  const auto pair = [&out](std::string_view field, std::string_view value) {
    wire::resp::bulk(out, field);
    wire::resp::bulk(out, value);
  };
  wire::resp::map(out, 7, version_);
  pair("server", "redis");
  pair("version", kRedisVersion);
  wire::resp::bulk(out, "proto");
  wire::resp::integer(out, version_);
  wire::resp::bulk(out, "id");
  wire::resp::integer(out, static_cast<std::int64_t>(number_));
  pair("mode", "standalone");
  pair("role", "master");
  wire::resp::bulk(out, "modules");
  wire::resp::array(out, 0);
}

void RespSession::select(const Words& words) {
  const auto database = parse_number(words[1]);
  if (!database) return answer_error(kNotANumber);
  if (*database != 0) return answer_error("ERR DB index is out of range");
  answer_simple("OK");
}

void RespSession::client(const Words& words) {
  const std::string what = lower(words[1].substr(0, kErrorBytesMax));
  const auto takes = [&](std::size_t count) {
    if (words.size() == count) return true;
    answer_error(wrong_arguments("client|" + what));
    return false;
  };
  if (what == "id") {
    if (takes(2)) answer_integer(static_cast<std::int64_t>(number_));
  } else if (what == "getname") {
    if (!takes(2)) return;
    name_.empty() ? answer_nil() : answer_bulk(name_);
  } else if (what == "setname") {
    if (!takes(3)) return;
    if (std::ranges::any_of(words[2], [](char c) { return c < '!' || c > '~'; }))
      return answer_error("ERR Client names cannot contain spaces, newlines or special characters.");
    name_ = words[2].substr(0, kErrorBytesMax);
    answer_simple("OK");
  } else if (what == "setinfo") {
    if (takes(4)) answer_simple("OK");
  } else if (what == "no-evict" || what == "no-touch") {
    if (takes(3)) answer_simple("OK");
  } else if (what == "info") {
    if (takes(2)) answer_bulk(fmt::format("id={} name={} db=0 resp={}\n", number_, name_, version_));
  } else {
    answer_error(unknown_subcommand(words[1], "CLIENT"));
  }
}

void RespSession::command(const Words& words) {
  const auto& entries = RespCommands::entries();
  const std::string what = words.size() > 1 ? lower(words[1].substr(0, kErrorBytesMax)) : "";
  if (what == "count") return answer_integer(static_cast<std::int64_t>(entries.size()));
  wire::Buffer& out = answer();
  if (what == "docs") return wire::resp::map(out, 0, version_);
  if (what == "list") {
    wire::resp::array(out, entries.size());
    for (const auto& entry : entries) wire::resp::bulk(out, entry.name);
    return;
  }
  if (!what.empty()) return wire::resp::error(out, unknown_subcommand(words[1], "COMMAND"));
  wire::resp::array(out, entries.size());
  for (const auto& entry : entries) {
    wire::resp::array(out, 6);
    wire::resp::bulk(out, entry.name);
    wire::resp::integer(out, entry.arity);
    wire::resp::array(out, 1);
    wire::resp::simple(out, entry.right == RespCommands::Right::kWrite ? "write" : "readonly");
    for (int i = 0; i < 3; ++i) wire::resp::integer(out, 0);  // where keys are: not told
  }
}

void RespSession::info(const Words&) { answer_bulk(context_.info(access_.administers)); }

// ---- Reads ----

void RespSession::begin_read(Answer kind, std::vector<std::string> keys) {
  Reply& reply = replies_.emplace_back();
  reply.answer = kind;
  reply.slot = std::move(slot_);
  keep_keys(reply, std::move(keys));
}

void RespSession::get(const Words& words) { begin_read(Answer::kValue, keys_of(words)); }
void RespSession::mget(const Words& words) { begin_read(Answer::kValues, keys_of(words)); }
void RespSession::exists(const Words& words) { begin_read(Answer::kCount, keys_of(words)); }
void RespSession::strlen(const Words& words) { begin_read(Answer::kLength, keys_of(words)); }

void RespSession::getrange(const Words& words) {
  const auto first = parse_number(words[2]);
  const auto last = parse_number(words[3]);
  if (!first || !last) return answer_error(kNotANumber);
  begin_read(Answer::kRange, {std::string(words[1])});
  replies_.back().first = *first;
  replies_.back().last = *last;
}

// ---- Writes ----

void RespSession::set(const Words& words) {
  Condition condition = Condition::kAlways;
  for (std::size_t i = 3; i < words.size(); ++i) {
    const bool absent = same(words[i], "nx");
    if (same(words[i], "keepttl")) continue;  // nothing ever expires
    if ((!absent && !same(words[i], "xx")) || condition != Condition::kAlways) return answer_error(kSyntax);
    condition = absent ? Condition::kAbsent : Condition::kPresent;
  }
  single_ = true;
  store_all(condition);
}

void RespSession::mset(const Words& words) {
  if (words.size() % 2 == 0) return answer_error(wrong_arguments("mset"));
  single_ = false;
  store_all(Condition::kAlways);
}

void RespSession::del(const Words& words) {
  removing_ = keys_of(words);
  removing_at_ = 0;
  removed_ = 0;
  writing_ = true;
  remove_some();
}

}  // namespace kvd::node
