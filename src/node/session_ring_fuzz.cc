// Fuzzes a live node through rings: an input is a sequence of what a hostile client does to the memory that it shares
// with the depot, at any time: writes messages, whole or broken, anything anywhere in control words and bytes, moves
// indices, knocks, goes away. Whatever it does, the depot neither crashes nor serves others wrongly, and holds nothing
// for it when it is gone. Inputs whose last byte is odd do so where there are credentials, to the memory that the
// client was given for its token: then it never sees a byte of its neighbour's records, who is another tenant.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "auth/authority.h"
#include "auth/testing/tokens.h"
#include "net/ring_stream.h"
#include "node/testing/choices.h"
#include "node/testing/rig.h"

namespace kvd::node {
namespace {

constexpr std::size_t kOpsMax = 64;

// The attacker's token is 1, its neighbour's 2.
std::shared_ptr<const auth::Authority> two_tenants() {
  return auth::shared_authority(auth::token_line(1, "attacker", "attacker", "read,write") +
                                auth::token_line(2, "neighbour", "neighbour", "read,write"));
}

// A client that has said HELLO and, where `token` is not 0, has shown that.
std::unique_ptr<RawClient> enter(Rig& rig, io::UniqueFd socket, int token, std::uint64_t features) {
  if (token == 0) return std::make_unique<RawClient>(*rig.loop, std::move(socket), true, features);
  auto client = std::make_unique<RawClient>(*rig.loop, std::move(socket), false, features);
  const std::uint64_t asks = features | wire::kFeatureToken | wire::kFeatureAuthFeatures;
  client->call(wire::frame({}, wire::Hello{.features = asks, .name = "test"}));
  const net::Received answer = client->call(wire::frame({}, wire::Auth{auth::token_number(token)}));
  const auto reply = wire::decode<wire::AuthReply>(answer.header, answer.meta);
  require(reply && reply->features == features, "the token is good for what was asked for");
  return client;
}

Namespace of_tenant(int token) {
  Namespace ns = small_namespace();
  if (token != 0) ns.tenant = token == 1 ? "attacker" : "neighbour";
  return ns;
}

class Attacker {
 public:
  Attacker(Rig& rig, int token) : token_(token) {
    auto [near, far] = net::make_socket_pair();
    socket_ = ::dup(near.get());
    require(rig.node->adopt(net::make_socket_stream(std::move(far))).has_value(), "the node takes a connection");
    client_ = enter(rig, std::move(near), token, wire::kFeatureRings);
  }
  ~Attacker() { ::close(socket_); }
  Attacker(const Attacker&) = delete;
  Attacker& operator=(const Attacker&) = delete;

  // Its own messages, as a sane client would write them, from the place where it believes to be.
  void write(Bytes bytes) {
    for (const std::byte one : bytes) memory_->data(0)[tail_++ % memory_->ring_bytes()] = one;
    memory_->control(0).tail.store(tail_);
    knock();
  }
  void knock() { static_cast<void>(::send(socket_, "k", 1, MSG_DONTWAIT | MSG_NOSIGNAL)); }
  void end() { ::shutdown(socket_, SHUT_RDWR); }
  net::RingMemory& memory() { return *memory_; }

  // Maps the rings, with a connection that does not use them.
  void take_rings(io::PrivateFd file, std::uint64_t bytes) {
    auto mapped = net::RingMemory::map(std::move(file), bytes);
    require(mapped.has_value(), "the rings can be mapped");
    memory_ = std::move(*mapped);
  }
  RawClient& client() { return *client_; }
  [[nodiscard]] int token() const noexcept { return token_; }
  // Whether these bytes lie in what the depot has written to it.
  [[nodiscard]] bool sees(Bytes bytes) const {
    const Bytes ring(memory_->data(1), memory_->ring_bytes());
    return !std::ranges::search(ring, bytes).empty();
  }

 private:
  const int token_;
  int socket_ = -1;
  std::unique_ptr<RawClient> client_;
  std::unique_ptr<net::RingMemory> memory_;
  std::uint64_t tail_ = 0;
};

void operate(Attacker& from, std::uint8_t what, std::uint64_t value) {
  net::RingMemory& memory = from.memory();
  const int direction = static_cast<int>(value & 1);
  net::RingControl& control = memory.control(direction);
  const auto keys = Records::keys(0, 2);
  switch (what % 12) {
    case 0: return from.write(wire::frame({.request_id = 1 + value % 4}, wire::Ping{}));
    case 1: return from.write(wire::frame({.request_id = 2}, wire::Open{of_tenant(value % 3 == 2 ? 2 : from.token())}));
    case 2: return from.write(Records::get(3 + value % 3, 0, 0, 4));
    case 3: return from.write(Records(small_namespace()).put(6, 0, 50, 2));
    case 4: return from.write(std::as_bytes(std::span(&value, 1)));
    case 5: control.tail.store(value); return from.knock();
    case 6: control.head.store(value); return from.knock();
    case 7: control.tail.fetch_add(value % 300); return from.knock();
    case 8: control.head.fetch_add(value % 300); return from.knock();
    case 9: control.reader_waits.store(static_cast<std::uint32_t>(value)); return;
    case 10: std::memcpy(memory.data(direction) + value % (memory.ring_bytes() - 8), &value, 8); return;
    default: value % 8 == 0 ? from.end() : from.knock();
  }
}

void require_served(Rig& rig, RawClient& neighbour, std::uint32_t ns) {
  neighbour.send(Records::get(neighbour.new_id(), ns, 0, 4));
  std::size_t bytes = 0;
  for (bool last = false; !last;) {
    const net::Received reply = neighbour.next();
    last = reply.header.last();
    require(reply.header.status == Code::kOk, "the neighbour is served");
    bytes += reply.payload.size();
  }
  require(bytes == std::size_t{4} * 3 * 4096 && rig.node != nullptr, "the neighbour gets its bytes");
}

void check_input(Bytes input) {
  const bool known = !input.empty() && (input.back() & std::byte{1}) != std::byte{0};
  NodeOptions options = test_options();
  options.store.share_pool = true;
  if (known) options.authority = two_tenants();
  Rig rig(options);
  const Records records{small_namespace()};
  auto [near, far] = net::make_socket_pair();
  require(rig.node->adopt(net::make_socket_stream(std::move(far))).has_value(), "the node takes a connection");
  const auto neighbour = enter(rig, std::move(near), known ? 2 : 0, 0);
  const std::uint32_t ns = neighbour->open(of_tenant(known ? 2 : 0));
  const std::uint64_t put = neighbour->new_id();
  neighbour->send(records.put(put, ns, 0, 4));
  neighbour->send(records.put_head(put, 0, 4, 0, 3), records.put_body(0, 4, 0, 3));
  require(neighbour->next().header.status == Code::kOk, "records are put");
  {
    Attacker attacker(rig, known ? 1 : 0);
    const net::Received given = attacker.client().next();
    const auto size = wire::decode<wire::Rings>(given.header, given.meta);
    require(given.header.opcode == wire::Opcode::kRings && size.has_value(), "rings are given");
    attacker.take_rings(attacker.client().peer().take_descriptor(), size->bytes);
    for (std::size_t i = 0; i < kOpsMax && input.size() >= 10; ++i, input = input.subspan(10)) {
      operate(attacker, std::to_integer<std::uint8_t>(input[0]), load<std::uint64_t>(input.data() + 2));
      for (int turns = std::to_integer<int>(input[1]) % 3; turns > 0; --turns) rig.loop->run_once(Duration::zero());
    }
    require_served(rig, *neighbour, ns);
    const auto secret = records.slab(0, 0);
    require(!known || !attacker.sees(Bytes(secret).first(64)), "another tenant's bytes are nobody's");
  }
  require(rig.until([&] {
    return rig.stat("node", "rings") == 0 && rig.stat("node", "connections") == 1 && rig.stat("node", "ops") == 0 &&
           rig.stat("node", "pinned_bytes") == 0 && rig.stat("node", "unfinished_bytes") == 0;
  }),
          "nothing is held for connections that are gone");
}

}  // namespace
}  // namespace kvd::node

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  kvd::node::check_input(std::as_bytes(std::span(data, size)));
  return 0;
}
