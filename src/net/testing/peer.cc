#include "net/testing/peer.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/check.h"
#include "base/random.h"
#include "net/socket_stream.h"

namespace kvd::net {
namespace {

bool brings_descriptor(wire::Opcode opcode) {
  using enum wire::Opcode;
  return opcode == kMemory || opcode == kKeeper || opcode == kArena || opcode == kRings;
}

}  // namespace

Peer::Peer(io::Loop& loop, io::UniqueFd socket, const ConnectionOptions& options)
    : Peer(loop, make_socket_stream(std::move(socket)), options) {}

Peer::Peer(io::Loop& loop, std::unique_ptr<io::Stream> stream, const ConnectionOptions& options)
    : connection(std::make_unique<Connection>(loop, *this, counters, std::move(stream), options)) {
  KVD_CHECK(connection->start().has_value());
}

SendId Peer::send(wire::Buffer head, std::vector<std::byte> body) {
  Outgoing message{.head = std::move(head), .body = {}, .on_done = {}};
  if (!body.empty()) {
    auto kept = std::make_shared<std::vector<std::byte>>(std::move(body));  // owned by the message alone
    message.body.push_back(*kept);
    message.on_done = [kept] {};
  }
  const SendId id = connection->send(std::move(message));
  connection->flush();
  return id;
}

io::PrivateFd Peer::take_descriptor() {
  if (descriptors_.empty()) return {};
  io::PrivateFd descriptor = std::move(descriptors_.front());
  descriptors_.pop_front();
  return descriptor;
}

void Peer::end() {
  connection.reset();
  descriptors_.clear();
}

Status Peer::on_message(const wire::Header& header, Bytes meta) {
  if (on_request) on_request();
  partial_ = {.header = header, .meta = {meta.begin(), meta.end()}, .payload = {}};
  if (brings_descriptor(header.opcode)) descriptors_.push_back(connection->take_descriptor());
  partial_.payload.resize(header.payload_bytes());
  landed_ = 0;
  if (partial_.payload.empty()) received.push_back(std::move(partial_));
  return answer;
}

std::size_t Peer::payload_places(std::span<iovec> out) {
  if (discard) return 0;
  std::size_t count = 0;
  for (std::size_t at = landed_; at < partial_.payload.size() && count < out.size(); ++count) {
    const std::size_t n = std::min(piece_bytes, partial_.payload.size() - at);
    out[count] = {partial_.payload.data() + at, n};
    at += n;
  }
  return count;
}

void Peer::payload_landed(std::size_t bytes) {
  landed_ += bytes;
  if (on_landed) on_landed();
}

Status Peer::on_payload_end() {
  KVD_CHECK(landed_ == partial_.payload.size());
  received.push_back(std::move(partial_));
  return answer;
}

wire::Buffer Peer::farewell(const Error&, Bytes) { return farewell_text; }

std::pair<io::UniqueFd, io::UniqueFd> make_socket_pair() {
  int fds[2];
  KVD_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  return {io::UniqueFd(fds[0]), io::UniqueFd(fds[1])};
}

std::pair<io::UniqueFd, io::UniqueFd> make_tcp_pair() {
  const io::UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  io::UniqueFd near(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  socklen_t size = sizeof at;
  KVD_CHECK(::bind(listener.get(), address, size) == 0);
  KVD_CHECK(::listen(listener.get(), 1) == 0);
  KVD_CHECK(::getsockname(listener.get(), address, &size) == 0);
  KVD_CHECK(::connect(near.get(), address, size) == 0);
  return {std::move(near), io::UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC))};
}

bool run_until(io::Loop& loop, const std::function<bool()>& done) {
  const Time limit = loop.now() + std::chrono::seconds(5);
  while (!done()) {
    if (loop.now() >= limit) return false;
    loop.run_once(std::chrono::milliseconds(1));
  }
  return true;
}

std::vector<std::byte> make_bytes(std::size_t n, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.next());
  return bytes;
}

}  // namespace kvd::net
