// discard_driver: pulls records from a running depot's pool and has the kernel throw them away, so that the depot and
// not its client is what is measured; as JSON on stdout.
//
//   discard_driver ADDRESS --connections 4 --seconds 5 --sets 32
//
// Puts `sets` times 32 records of one slab of 128 KiB through a first connection; with many of them they are in no
// cache. Then the connections ask for one set after the other, each two ahead, and discard what comes (recv() with
// MSG_TRUNC, which for TCP copies nothing); the first answer is read, and its length is every other's. Prints bytes per
// second and the processor time of this process. One thread.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "block/checksum.h"
#include "io/fd.h"
#include "net/address.h"
#include "wire/message.h"

namespace kvd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kRecords = 32;
constexpr std::uint32_t kSlabBytes = 128 << 10;
constexpr int kAhead = 2;  // gets that a connection has asked for
constexpr std::size_t kDiscardBytes = std::size_t{4} << 20;

struct Wanted {
  std::string depot;
  std::size_t connections = 4;
  double seconds = 5;
  std::size_t sets = 32;  // 128 MiB
};

[[noreturn]] void die(const char* what, int error) {
  std::fprintf(stderr, "discard_driver: %s: %s\n", what, error != 0 ? std::strerror(error) : "the depot refused");
  std::exit(1);
}

void send_all(const io::UniqueFd& socket, Bytes bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) die("send", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

std::vector<std::byte> receive_all(const io::UniqueFd& socket, std::size_t bytes) {
  std::vector<std::byte> got(bytes);
  for (std::size_t at = 0; at < bytes;) {
    const ssize_t n = ::recv(socket.get(), got.data() + at, bytes - at, 0);
    if (n <= 0) die("receive", errno);
    at += static_cast<std::size_t>(n);
  }
  return got;
}

// The next message; its bytes in all.
std::size_t await_reply(const io::UniqueFd& socket) {
  const Result<wire::Header> header = wire::decode_header(receive_all(socket, wire::kHeaderBytes));
  if (!header || header->status != Code::kOk) die("a reply", 0);
  const std::vector<std::byte> body = receive_all(socket, header->body_bytes);
  const Bytes meta = Bytes(body).first(header->meta_bytes);
  if (header->opcode == wire::Opcode::kPutReply) {
    const auto reply = wire::decode<wire::PutReply>(*header, meta);
    if (!reply || wire::count_bits(reply->failed) != 0) die("a record was not kept", 0);
  } else if (header->opcode == wire::Opcode::kGetData) {
    const auto data = wire::decode<wire::GetData>(*header, meta);
    const bool whole = (header->flags & wire::kFlagLast) != 0 && header->payload_bytes() == kRecords * kSlabBytes;
    if (!data || wire::count_bits(data->failed) != 0 || !whole) die("records are missing", 0);
  }
  return wire::kHeaderBytes + header->body_bytes;
}

std::vector<Key> keys_of(std::size_t set) {
  std::vector<Key> keys;
  for (std::size_t i = 0; i < kRecords; ++i) keys.push_back({.hi = 0xD15C, .lo = set * kRecords + i});
  return keys;
}

Namespace name_space() {
  Namespace ns{.tenant = "default", .fingerprint = "discard_driver", .groups = {}};
  ns.groups.push_back(
      {.group = 0, .layers = 1, .slab_bytes = kSlabBytes, .parts = 2, .block_tokens = 16, .order = "NHD"});
  return ns;
}

io::UniqueFd greeted(const net::Endpoint& endpoint) {
  io::UniqueFd socket(::socket(endpoint.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.ok() || ::connect(socket.get(), endpoint.get(), endpoint.bytes) != 0) die("connect", errno);
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  send_all(socket, wire::frame({}, wire::Hello{.name = "driver"}));
  await_reply(socket);
  send_all(socket, wire::frame({.request_id = 1}, wire::Open{name_space()}));
  await_reply(socket);
  return socket;
}

void put_records(const io::UniqueFd& socket, std::size_t set) {
  const block::RecordShape shape = block::shape_of(name_space().groups[0], false);
  const std::vector<Key> keys = keys_of(set);
  std::vector<std::uint64_t> checksums;
  std::vector<std::byte> body(kRecords * kSlabBytes);
  for (std::size_t i = 0; i < kRecords; ++i) {
    const MutableBytes slab = MutableBytes(body).subspan(i * kSlabBytes, kSlabBytes);
    std::ranges::fill(slab, static_cast<std::byte>(i));
    checksums.push_back(block::slab_checksum(block::record_seed({keys[i], 0, 0}, shape), 0, slab));
  }
  send_all(socket, wire::frame({.request_id = 2}, wire::Put{.keys = {std::as_bytes(std::span(keys)), 16, true}}));
  send_all(socket, wire::frame({.request_id = 2, .items = kRecords, .layer_count = 1},
                               wire::PutData{.checksums = wire::U64View(std::span<const std::uint64_t>(checksums))},
                               body.size()));
  send_all(socket, body);
  await_reply(socket);
}

void ask(const io::UniqueFd& socket, std::size_t sets) {
  static std::uint64_t id = 2;
  const std::vector<Key> keys = keys_of(++id % sets);
  send_all(socket, wire::frame({.request_id = id}, wire::Get{.keys = {std::as_bytes(std::span(keys)), 16, true}}));
}

struct Pull {
  io::UniqueFd socket;
  std::size_t left = 0;  // of the answer that comes now
};

// Discards what is there, in one call. Returns how many bytes.
std::size_t discard(Pull& pull, std::size_t answer_bytes, std::size_t sets, std::vector<std::byte>& nowhere) {
  const ssize_t got = ::recv(pull.socket.get(), nowhere.data(), nowhere.size(), MSG_TRUNC | MSG_DONTWAIT);
  if (got < 0 && errno == EAGAIN) return 0;
  if (got <= 0) die("receive", errno);
  auto bytes = static_cast<std::size_t>(got);
  for (; bytes >= pull.left; pull.left = answer_bytes) {
    bytes -= pull.left;
    ask(pull.socket, sets);
  }
  pull.left -= bytes;
  return static_cast<std::size_t>(got);
}

double processor_s() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

void drive(const Wanted& wanted) {
  const Result<net::Address> address = net::parse_address(wanted.depot);
  const Result<net::Endpoint> endpoint = address ? net::resolve(*address) : fail(address.error());
  if (!endpoint) die("the address", 0);
  std::vector<Pull> pulls;
  std::vector<pollfd> polled;
  for (std::size_t i = 0; i < wanted.connections; ++i) {
    pulls.push_back({greeted(*endpoint)});
    polled.push_back({pulls.back().socket.get(), POLLIN, 0});
  }
  for (std::size_t set = 0; set < wanted.sets; ++set) put_records(pulls.front().socket, set);
  ask(pulls.front().socket, wanted.sets);
  const std::size_t answer_bytes = await_reply(pulls.front().socket);
  for (Pull& pull : pulls) {
    pull.left = answer_bytes;
    for (int i = 0; i < kAhead; ++i) ask(pull.socket, wanted.sets);
  }
  std::vector<std::byte> nowhere(kDiscardBytes);
  const double before = processor_s();
  const Clock::time_point begin = Clock::now();
  std::chrono::duration<double> took{};
  std::size_t bytes = 0;
  for (; took.count() < wanted.seconds; took = Clock::now() - begin) {
    if (::poll(polled.data(), polled.size(), 5000) <= 0) die("wait for bytes", errno);
    for (std::size_t i = 0; i < pulls.size(); ++i)
      if (polled[i].revents != 0) bytes += discard(pulls[i], answer_bytes, wanted.sets, nowhere);
  }
  std::printf("{\"connections\": %zu, \"gb_s\": %.3f, \"client_s\": %.2f, \"seconds\": %.2f}\n", pulls.size(),
              static_cast<double>(bytes) / took.count() / 1e9, processor_s() - before, took.count());
}

}  // namespace
}  // namespace kvd

int main(int argc, char** argv) {
  kvd::Wanted wanted;
  CLI::App app("Pulls records from a depot and discards them in the kernel");
  app.add_option("ADDRESS", wanted.depot)->required();
  app.add_option("--connections", wanted.connections)->check(CLI::PositiveNumber);
  app.add_option("--seconds", wanted.seconds)->check(CLI::PositiveNumber);
  app.add_option("--sets", wanted.sets)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  kvd::drive(wanted);
  return 0;
}
