// connection_driver: many idle connections and some busy ones to a running depot, from one process, as JSON on stdout.
//
//   connection_driver ADDRESS --idle 10000 --busy 200 --rate 2000 --seconds 5
//
// Opens the busy connections, puts 64 records of one slab of 64 KiB, opens the idle ones (each says HELLO and nothing
// more), prints {"connected": N} and waits for a line on stdin. Then the busy ones get records in turn, `rate` of them
// a second in all, each counted from the moment when it was due to its last byte; prints how many there were and their
// median and 99th percentile. Blocking sockets until then, poll() on the busy ones afterwards; one thread.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
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

constexpr std::size_t kRecords = 64;
constexpr std::uint32_t kSlabBytes = 64 << 10;

struct Wanted {
  std::string depot;
  std::size_t idle = 10'000;
  std::size_t busy = 200;
  double rate = 2'000;
  double seconds = 5;
};

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "connection_driver: %s: %s\n", what, errno != 0 ? std::strerror(errno) : "the depot refused");
  std::exit(1);
}

Key key_number(std::uint64_t number) { return {.hi = 0x5EED, .lo = number}; }

// A connection that is asked for one thing at a time, or, when it is polled, for several.
struct Connection {
  io::UniqueFd socket;
  std::vector<std::byte> in;
  std::deque<Clock::time_point> due;  // of requests that wait for their last byte
};

void send_all(const Connection& connection, Bytes bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(connection.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) die("send");
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

constexpr std::uint64_t kFirstGet = 10;  // request ids below it are not gets

[[noreturn]] void die_of_answer(const char* what) {
  errno = 0;
  die(what);
}

// A reply that brings less than was asked for would make a good figure.
void check(const wire::Header& header, Bytes body) {
  const Bytes meta = body.first(header.meta_bytes), payload = body.subspan(header.meta_bytes);
  if (header.opcode == wire::Opcode::kPutReply) {
    const auto reply = wire::decode<wire::PutReply>(header, meta);
    if (!reply || wire::count_bits(reply->failed) != 0) die_of_answer("a record was not kept");
  }
  if (header.opcode != wire::Opcode::kGetData) return;
  const auto data = wire::decode<wire::GetData>(header, meta);
  if (!data || wire::count_bits(data->failed) != 0) die_of_answer("a record is missing");
  const auto fill = static_cast<std::byte>((header.request_id - kFirstGet) % kRecords);
  const bool right = payload.size() == kSlabBytes && payload[0] == fill &&
                     std::memcmp(payload.data(), payload.data() + 1, payload.size() - 1) == 0;
  if (!right) die_of_answer("a record is not what was put");
}

// Takes a whole message out of what has come; none yet: no value.
std::optional<wire::Header> take(Connection& connection) {
  if (connection.in.size() < wire::kHeaderBytes) return std::nullopt;
  const Result<wire::Header> header = wire::decode_header(connection.in);
  if (!header || header->status != Code::kOk) die_of_answer("a reply");
  const std::size_t bytes = wire::kHeaderBytes + header->body_bytes;
  if (connection.in.size() < bytes) return std::nullopt;
  check(*header, Bytes(connection.in).first(bytes).subspan(wire::kHeaderBytes));
  connection.in.erase(connection.in.begin(), connection.in.begin() + static_cast<std::ptrdiff_t>(bytes));
  return *header;
}

// What has come; waits for the first byte unless `flags` say otherwise.
bool receive(Connection& connection, int flags) {
  std::array<std::byte, 65536> bytes;
  const ssize_t got = ::recv(connection.socket.get(), bytes.data(), bytes.size(), flags);
  if (got < 0 && errno == EAGAIN) return false;
  if (got <= 0) die("receive");
  connection.in.insert(connection.in.end(), bytes.begin(), bytes.begin() + got);
  return true;
}

void await_reply(Connection& connection) {
  while (!take(connection)) receive(connection, 0);
  std::vector<std::byte>().swap(connection.in);  // thousands of them are idle
}

Connection greeted(const net::Endpoint& endpoint) {
  Connection connection;
  connection.socket = io::UniqueFd(::socket(endpoint.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!connection.socket.ok()) die("make a socket");
  if (::connect(connection.socket.get(), endpoint.get(), endpoint.bytes) != 0) die("connect");
  const int on = 1;
  ::setsockopt(connection.socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  send_all(connection, wire::frame({}, wire::Hello{.name = "driver"}));
  await_reply(connection);
  return connection;
}

Namespace name_space() {
  Namespace ns{.tenant = "default", .fingerprint = "connection_driver", .groups = {}};
  ns.groups.push_back(
      {.group = 0, .layers = 1, .slab_bytes = kSlabBytes, .parts = 2, .block_tokens = 16, .order = "NHD"});
  return ns;
}

void put_records(Connection& connection) {
  const block::RecordShape shape = block::shape_of(name_space().groups[0], false);
  std::vector<Key> keys;
  std::vector<std::uint64_t> checksums;
  std::vector<std::byte> body(kRecords * kSlabBytes);
  for (std::size_t i = 0; i < kRecords; ++i) {
    keys.push_back(key_number(i));
    const MutableBytes slab = MutableBytes(body).subspan(i * kSlabBytes, kSlabBytes);
    std::ranges::fill(slab, static_cast<std::byte>(i));
    checksums.push_back(block::slab_checksum(block::record_seed({keys.back(), 0, 0}, shape), 0, slab));
  }
  send_all(connection, wire::frame({.request_id = 2}, wire::Put{.keys = {std::as_bytes(std::span(keys)), 16, true}}));
  send_all(connection, wire::frame({.request_id = 2, .items = kRecords, .layer_count = 1},
                                   wire::PutData{.checksums = wire::U64View(std::span<const std::uint64_t>(checksums))},
                                   body.size()));
  send_all(connection, body);
  await_reply(connection);
}

// The next get of one connection; its reply is one message, as the record has one layer.
void ask(Connection& connection, std::uint64_t number, Clock::time_point due) {
  const Key key = key_number(number % kRecords);
  send_all(connection, wire::frame({.request_id = number + kFirstGet},
                                   wire::Get{.keys = {std::as_bytes(std::span(&key, 1)), 16, true}}));
  connection.due.push_back(due);
}

// Gets in turn until the time is over and all have been answered. Returns microseconds.
std::vector<double> run(std::vector<Connection>& busy, const Wanted& wanted) {
  std::vector<pollfd> polled;
  for (const Connection& connection : busy) polled.push_back({connection.socket.get(), POLLIN, 0});
  const Clock::time_point begin = Clock::now();
  const auto total = static_cast<std::uint64_t>(wanted.rate * wanted.seconds);
  const auto due_at = [&](std::uint64_t number) {
    return begin + std::chrono::nanoseconds(static_cast<std::int64_t>(static_cast<double>(number) / wanted.rate * 1e9));
  };
  std::vector<double> took;
  for (std::uint64_t asked = 0; took.size() < total;) {
    for (; asked < total && due_at(asked) <= Clock::now(); ++asked)
      ask(busy[asked % busy.size()], asked, due_at(asked));
    const auto left = asked < total ? due_at(asked) - Clock::now() : std::chrono::seconds(5);
    const auto ns = std::max<std::int64_t>(0, std::chrono::nanoseconds(left).count());
    const timespec wait{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
    const int ready = ::ppoll(polled.data(), polled.size(), &wait, nullptr);
    if (ready < 0 || (ready == 0 && asked == total)) die("wait for replies");
    for (std::size_t i = 0; ready > 0 && i < busy.size(); ++i) {
      if (polled[i].revents == 0) continue;
      while (receive(busy[i], MSG_DONTWAIT)) {
      }
      while (const auto reply = take(busy[i])) {
        if (reply->opcode != wire::Opcode::kGetData) die_of_answer("another answer than a get's");
        took.push_back(std::chrono::duration<double, std::micro>(Clock::now() - busy[i].due.front()).count());
        busy[i].due.pop_front();
      }
    }
  }
  return took;
}

void drive(const Wanted& wanted) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  const Result<net::Address> address = net::parse_address(wanted.depot);
  const Result<net::Endpoint> endpoint = address ? net::resolve(*address) : fail(address.error());
  if (!endpoint) die("the address");
  std::vector<Connection> busy, idle;
  for (std::size_t i = 0; i < wanted.busy; ++i) {
    busy.push_back(greeted(*endpoint));
    send_all(busy.back(), wire::frame({.request_id = 1}, wire::Open{name_space()}));
    await_reply(busy.back());
  }
  put_records(busy.front());
  for (std::size_t i = 0; i < wanted.idle; ++i) idle.push_back(greeted(*endpoint));
  std::printf("{\"connected\": %zu}\n", busy.size() + idle.size());
  std::fflush(stdout);
  static_cast<void>(std::getchar());
  std::vector<double> took = run(busy, wanted);
  std::ranges::sort(took);
  std::printf("{\"gets\": %zu, \"p50_us\": %.1f, \"p99_us\": %.1f}\n", took.size(), took[took.size() / 2],
              took[took.size() * 99 / 100]);
}

}  // namespace
}  // namespace kvd

int main(int argc, char** argv) {
  kvd::Wanted wanted;
  CLI::App app("Gets over some connections to a depot while others are idle");
  app.add_option("ADDRESS", wanted.depot)->required();
  app.add_option("--idle", wanted.idle);
  app.add_option("--busy", wanted.busy)->check(CLI::PositiveNumber);
  app.add_option("--rate", wanted.rate)->check(CLI::PositiveNumber);
  app.add_option("--seconds", wanted.seconds)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  kvd::drive(wanted);
  return 0;
}
