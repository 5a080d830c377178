// Fuzzes a live node as Redis clients see it: an input is a sequence of commands of two hostile connections, whole,
// distorted or cut, of another tenant or of nobody, against a node that holds a tenant's values under the same keys.
// Whatever comes: every answer is RESP, none carries that tenant's bytes, a neighbour of a third tenant reads what it
// wrote in the command before, and when the connections are gone nothing is pinned or unfinished any more.
//
// Each input has a node of its own, so that it fails alone as well. Real time only bounds waiting.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "auth/testing/tokens.h"
#include "node/testing/hostile_socket.h"
#include "node/testing/resp_client.h"

namespace kvd::node {
namespace {

constexpr std::size_t kKeys = 5;
constexpr std::size_t kOpsMax = 48;        // of an input
constexpr std::size_t kValueMax = 20'000;  // bytes: several pages
constexpr std::size_t kDepthMax = 4;       // of arrays in answers
constexpr std::string_view kSecret = "only the other tenant may see this: 4b1f66e09a27";

std::string key_of(std::size_t n) { return "key " + std::to_string(n); }

using auth::token_number;

// Bytes of the answer at the front of `text`; 0 = more must come. Ends the process when it is none.
std::size_t answer_bytes(std::string_view text, std::size_t depth = 0) {
  const std::size_t line = text.find("\r\n");
  require(line != std::string_view::npos || text.size() < 4096, "the first line of an answer ends");
  if (line == std::string_view::npos) return 0;
  const std::string_view head = text.substr(1, line - 1);
  std::int64_t n = 0;
  const bool number = std::from_chars(head.data(), head.data() + head.size(), n).ptr == head.data() + head.size();
  switch (text.front()) {
    case '+':
    case '-': return line + 2;
    case '_': require(head.empty(), "nothing is nothing"); return line + 2;
    case ':': require(number, "an integer is one"); return line + 2;
    case '$':
      require(number && n >= -1, "a string has a length");
      if (n < 0) return line + 2;
      if (text.size() < line + 4 + static_cast<std::size_t>(n)) return 0;
      require(text.substr(line + 2 + static_cast<std::size_t>(n), 2) == "\r\n", "a string ends where it says");
      return line + 4 + static_cast<std::size_t>(n);
    case '*':
    case '%': {
      require(number && n >= 0 && depth < kDepthMax, "an array has a length");
      std::size_t bytes = line + 2;
      for (std::int64_t i = 0; i < (text.front() == '%' ? 2 * n : n); ++i) {
        if (bytes >= text.size()) return 0;
        const std::size_t more = answer_bytes(text.substr(bytes), depth + 1);
        if (more == 0) return 0;
        bytes += more;
      }
      return bytes;
    }
    default: require(false, "an answer is RESP"); return 0;
  }
}

class Attacker final : public HostileSocket {
 public:
  explicit Attacker(Rig& rig) : HostileSocket(rig, &Node::adopt_resp) {}

  void receive() override {
    std::array<char, 65536> bytes;
    for (;;) {
      const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      ended_ = ended_ || got == 0 || (got < 0 && errno != EAGAIN);
      if (got <= 0) return;
      in_.append(bytes.data(), static_cast<std::size_t>(got));
      require(in_.find(kSecret.substr(0, 16)) == std::string::npos, "foreign bytes");
      for (std::size_t n = 1; n > 0 && !in_.empty();) {
        n = answer_bytes(in_);
        in_.erase(0, n);
      }
    }
  }

 private:
  std::string in_;
};

std::string value_of(Choices& choices) {
  static constexpr std::array<std::size_t, 6> kSizes = {0, 1, 100, 4000, 4096, kValueMax};
  return std::string(kSizes[choices.below(kSizes.size())], static_cast<char>('a' + choices.below(4)));
}

std::string text_number(Choices& choices) { return std::to_string(static_cast<std::int64_t>(choices.number())); }

// A command that a client might send; its arguments need not make sense.
std::vector<std::string> command_of(Choices& choices) {
  const std::string key = key_of(choices.below(kKeys)), other = key_of(choices.below(kKeys));
  switch (choices.below(18)) {
    case 0: return {"AUTH", token_number(static_cast<int>(choices.below(4)))};
    case 1: return {"HELLO", text_number(choices), "AUTH", "default", token_number(static_cast<int>(choices.below(3)))};
    case 2: return {"HELLO", choices.below(2) == 0 ? "2" : "3"};
    case 3: return {"GETRANGE", key, text_number(choices), text_number(choices)};
    case 4: return {"MGET", key, other, key};
    case 5: return {"MSET", key, value_of(choices), other, value_of(choices)};
    case 6: return {"DEL", key, other};
    case 7: return {"UNLINK", key};
    case 8: return {"EXISTS", key, other, key};
    case 9: return {"STRLEN", key};
    case 10: return {"INFO"};
    case 11: return {"CLIENT", choices.below(2) == 0 ? "ID" : "SETNAME", other};
    case 12: return {"COMMAND", "COUNT"};
    case 13: return {"SELECT", text_number(choices)};
    case 14: return {"SET", key, value_of(choices), choices.below(2) == 0 ? "NX" : "XX"};
    case 15: return std::vector<std::string>(1 + choices.below(6), key);
    case 16: return {"SET", key, value_of(choices)};
    default: return {"GET", key};
  }
}

// Puts wild counts, bytes and ends into a command.
std::string distort(std::string text, Choices& choices) {
  switch (choices.below(6)) {
    case 0: return "*" + text_number(choices) + "\r\n" + text.substr(text.find('\n') + 1);
    case 1: {
      const std::size_t at = text.rfind('$');
      return text.substr(0, at + 1) + text_number(choices) + text.substr(std::min(text.find('\r', at), text.size()));
    }
    case 2: text[choices.byte() % text.size()] = static_cast<char>(choices.byte()); return text;
    case 3: return text.substr(0, choices.byte() % text.size());
    case 4: return std::string(choices.byte() * 16U, static_cast<char>(choices.byte())) + "\r\n" + text;
    default: return "get " + key_of(choices.below(kKeys)) + "\r\n" + text;  // as somebody types it
  }
}

void operate(Rig& rig, Choices& choices, std::array<std::unique_ptr<Attacker>, 2>& attackers) {
  std::unique_ptr<Attacker>& from = attackers[choices.below(2)];
  switch (choices.below(16)) {
    case 0: from->reads = !from->reads; return;
    case 1: from = std::make_unique<Attacker>(rig); return;
    default: break;
  }
  std::string text;
  for (std::size_t n = 1 + choices.below(3); n > 0; --n) text += resp_command(command_of(choices));
  if (choices.below(4) == 0) text = distort(std::move(text), choices);
  from->send(as_bytes(text));
  for (std::size_t turns = choices.below(3); turns > 0; --turns) rig.loop->run_once(Duration::zero());
  if (from->reads) from->receive();
}

void require_answer(RespClient& client, const std::vector<std::string>& words, const std::string& expected) {
  require(client.call(words, expected) == expected, "a neighbour is served");
}

NodeOptions options_with_tight_bounds() {
  NodeOptions options = test_options();
  options.resp_ack = AckLevel::kPooled;
  options.limits.ops_max = 4;
  options.limits.refusal_delay = Duration::zero();
  options.authority = auth::shared_authority(
      auth::token_line(1, "n1", "hostile", "read,write") + auth::token_line(2, "n2", "hostile", "read") +
      auth::token_line(8, "n8", "secret", "read,write") + auth::token_line(9, "n9", "neighbour", "read,write"));
  return options;
}

std::string secret_value(std::size_t key) {
  std::string text;
  while (text.size() < (key + 1) * 3000) text += kSecret;
  return text;
}

bool clean(const Rig& rig) {
  for (const char* name : {"ops", "op_keys", "pinned_bytes", "unfinished_bytes"}) {
    if (rig.stat("node", name) != 0) return false;
  }
  return rig.stat("node", "resp_connections") == 2 && rig.stat("store", "pool_bytes_pinned") == 0 &&
         rig.stat("store", "unfinished_puts") == 0;
}

void check_input(Bytes input) {
  Rig rig(options_with_tight_bounds());
  RespClient owner(rig), neighbour(rig);
  require_answer(owner, {"AUTH", token_number(8)}, "+OK\r\n");
  require_answer(neighbour, {"AUTH", token_number(9)}, "+OK\r\n");
  for (std::size_t i = 0; i < kKeys; ++i) require_answer(owner, {"SET", key_of(i), secret_value(i)}, "+OK\r\n");
  {
    std::array<std::unique_ptr<Attacker>, 2> attackers = {std::make_unique<Attacker>(rig),
                                                          std::make_unique<Attacker>(rig)};
    attackers[0]->send(as_bytes(resp_command({"AUTH", token_number(1)})));
    rig.loop->run_once(Duration::zero());
    Choices choices(input);
    for (std::size_t i = 0; i < kOpsMax && !choices.end(); ++i) operate(rig, choices, attackers);
    require_answer(neighbour, {"SET", key_of(0), "mine"}, "+OK\r\n");
    require_answer(neighbour, {"GET", key_of(0)}, resp_bulk("mine"));
    for (std::size_t i = 0; i < kKeys; ++i) require_answer(owner, {"GET", key_of(i)}, resp_bulk(secret_value(i)));
    for (auto& attacker : attackers) attacker->receive();
  }
  require(rig.until([&] { return clean(rig); }), "nothing is held for connections that are gone");
}

}  // namespace
}  // namespace kvd::node

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  kvd::node::check_input(std::as_bytes(std::span(data, size)));
  return 0;
}
