#include "node/testing/rig.h"

#include <cstdlib>
#include <filesystem>
#include <optional>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "block/checksum.h"
#include "net/dialer.h"
#include "net/local_socket.h"

namespace kvd::node {
namespace {

Key key_number(std::size_t number) { return {.hi = 0x1000 + number, .lo = ~std::uint64_t{number}}; }

}  // namespace

RawClient::RawClient(io::Loop& loop, std::unique_ptr<io::Stream> stream, bool hello, std::uint64_t features)
    : loop_(loop), peer_(loop, std::move(stream), {.takes_descriptors = features != 0}) {
  if (!hello) return;
  const net::Received reply = call(wire::frame({}, wire::Hello{.features = features, .name = "test"}));
  EXPECT_EQ(reply.header.status, Code::kOk);
  if (const auto said = wire::decode<wire::HelloReply>(reply.header, reply.meta)) features_ = said->features;
}

net::Received RawClient::call(wire::Buffer request, std::vector<std::byte> body) {
  peer_.send(std::move(request), std::move(body));
  return next();
}

net::Received RawClient::next() {
  const bool came = net::run_until(loop_, [&] { return peer_.received.size() > taken_ || peer_.closed; });
  EXPECT_TRUE(came && peer_.received.size() > taken_) << (peer_.closed ? peer_.closed->what : "nothing came");
  if (peer_.received.size() <= taken_) return {};
  return peer_.received[taken_++];
}

bool RawClient::ended() {
  return net::run_until(loop_, [&] { return peer_.closed.has_value(); });
}

std::uint32_t RawClient::open(const Namespace& ns) {
  const net::Received reply = call(wire::frame({.request_id = new_id()}, wire::Open{ns}));
  const auto opened = wire::decode<wire::OpenReply>(reply.header, reply.meta);
  EXPECT_TRUE(reply.header.status == Code::kOk && opened.has_value()) << wire::error_text(reply.meta);
  return opened ? opened->ns : 0;
}

std::vector<std::byte> Records::keys(std::size_t first, std::size_t count) {
  std::vector<std::byte> bytes(count * sizeof(Key));
  for (std::size_t i = 0; i < count; ++i) {
    const Key key = key_number(first + i);
    std::memcpy(bytes.data() + i * sizeof key, &key, sizeof key);
  }
  return bytes;
}

std::vector<std::byte> Records::slab(std::size_t key, std::uint32_t layer) const {
  return net::make_bytes(slab_bytes(), key * 1000 + layer);
}

std::uint64_t Records::checksum(std::size_t key, std::uint32_t layer, std::uint16_t shard) const {
  const block::RecordId id{key_number(key), shard, ns_.groups[0].group};
  return block::slab_checksum(block::record_seed(id, block::shape_of(ns_.groups[0], false)), layer, slab(key, layer));
}

wire::Buffer Records::put(std::uint64_t id, std::uint32_t handle, std::size_t first, std::size_t count, AckLevel ack,
                          std::uint32_t deadline_ms) const {
  const auto bytes = keys(first, count);
  return wire::frame({.request_id = id, .deadline_ms = deadline_ms},
                     wire::Put{.ns = handle, .shard = 0, .group = 0, .ack = ack, .keys = {bytes, sizeof(Key), true}});
}

wire::Buffer Records::put_head(std::uint64_t id, std::size_t first, std::size_t count, std::uint32_t first_layer,
                               std::uint32_t end_layer) const {
  std::vector<std::uint64_t> checksums;
  for (std::uint32_t layer = first_layer; layer < end_layer; ++layer) {
    for (std::size_t key = first; key < first + count; ++key) checksums.push_back(checksum(key, layer));
  }
  const wire::Header header{.request_id = id,
                            .items = static_cast<std::uint32_t>(count),
                            .layer_first = static_cast<std::uint16_t>(first_layer),
                            .layer_count = static_cast<std::uint16_t>(end_layer - first_layer)};
  return wire::frame(header, wire::PutData{.checksums = wire::U64View(std::span<const std::uint64_t>(checksums))},
                     checksums.size() * slab_bytes());
}

wire::Buffer Records::part_head(std::uint64_t id, std::size_t first, std::size_t count, std::size_t first_slab,
                                std::size_t end_slab) const {
  std::vector<std::uint64_t> checksums;
  for (std::size_t slab = first_slab; slab < end_slab; ++slab)
    checksums.push_back(checksum(first + slab % count, static_cast<std::uint32_t>(slab / count)));
  const wire::Header header{.request_id = id,
                            .items = static_cast<std::uint32_t>(count),
                            .layer_first = static_cast<std::uint16_t>(first_slab / count)};
  const wire::PutData data{.key_first = static_cast<std::uint32_t>(first_slab % count),
                           .checksums = wire::U64View(std::span<const std::uint64_t>(checksums))};
  return wire::frame(header, data, checksums.size() * slab_bytes());
}

std::vector<std::byte> Records::part_body(std::size_t first, std::size_t count, std::size_t first_slab,
                                          std::size_t end_slab) const {
  std::vector<std::byte> body;
  for (std::size_t i = first_slab; i < end_slab; ++i) {
    const auto bytes = slab(first + i % count, static_cast<std::uint32_t>(i / count));
    body.insert(body.end(), bytes.begin(), bytes.end());
  }
  return body;
}

std::vector<std::byte> Records::put_body(std::size_t first, std::size_t count, std::uint32_t first_layer,
                                         std::uint32_t end_layer) const {
  std::vector<std::byte> body;
  for (std::uint32_t layer = first_layer; layer < end_layer; ++layer) {
    for (std::size_t key = first; key < first + count; ++key) {
      const auto bytes = slab(key, layer);
      body.insert(body.end(), bytes.begin(), bytes.end());
    }
  }
  return body;
}

wire::Buffer Records::get(std::uint64_t id, std::uint32_t handle, std::size_t first, std::size_t count, bool stop,
                          std::uint16_t layer_first, std::uint16_t layer_count, std::uint32_t deadline_ms) {
  const auto bytes = keys(first, count);
  const wire::Header header{
      .request_id = id, .layer_first = layer_first, .layer_count = layer_count, .deadline_ms = deadline_ms};
  return wire::frame(
      header,
      wire::Get{
          .ns = handle, .shard = 0, .group = 0, .stop_at_first_failure = stop, .keys = {bytes, sizeof(Key), true}});
}

Namespace small_namespace(std::uint16_t layers, std::uint32_t slab_bytes) {
  Namespace ns{.tenant = "default", .fingerprint = "model", .groups = {}};
  ns.groups.push_back(
      {.group = 0, .layers = layers, .slab_bytes = slab_bytes, .parts = 2, .block_tokens = 16, .order = "NHD"});
  return ns;
}

NodeOptions test_options() {
  NodeOptions options;
  options.store.pool_bytes = std::uint64_t{64} << 20;
  options.store.prefault = false;
  return options;
}

Rig::Rig(NodeOptions given, bool flash) : loop(*io::make_real_loop()), options(std::move(given)) {
  if (!flash) options.store.flash_bytes = 0;
  if (flash) {
    std::string pattern = testing::TempDir() + "kvd_node_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    options.store.dir = folder_ + "/store";
    if (options.store.flash_bytes == 0) options.store.flash_bytes = std::uint64_t{128} << 20;
    options.store.segment_bytes = std::uint64_t{16} << 20;
  }
  std::string why;
  auto started = Node::start(*loop, log, options, &why);
  EXPECT_TRUE(started.has_value()) << why;
  node = std::move(*started);
}

Rig::~Rig() {
  node.reset();
  if (!folder_.empty()) std::filesystem::remove_all(folder_);
}

void Rig::restart() {
  node.reset();
  std::string why;
  auto started = Node::start(*loop, log, options, &why);
  EXPECT_TRUE(started.has_value()) << why;
  node = std::move(*started);
}

std::unique_ptr<RawClient> Rig::connect(bool hello, std::uint64_t features) {
  auto [near, far] = net::make_socket_pair();
  EXPECT_TRUE(node->adopt(net::make_socket_stream(std::move(far))).has_value());
  return std::make_unique<RawClient>(*loop, std::move(near), hello, features);
}

Result<std::unique_ptr<io::Stream>> Rig::dial(const net::Endpoint& endpoint) {
  std::optional<Result<std::unique_ptr<io::Stream>>> stream;
  net::SocketDialer dialer(*loop);
  dialer.connect(endpoint, kNever, [&](auto result) { stream = std::move(result); });
  EXPECT_TRUE(until([&] { return stream.has_value(); }));
  return std::move(*stream);
}

std::unique_ptr<RawClient> Rig::connect_tcp(std::uint64_t features) {
  auto socket = dial(*net::resolve(*net::parse_address(node->addresses().at(0))));
  return std::make_unique<RawClient>(*loop, std::move(*socket), true, features);
}

std::unique_ptr<RawClient> Rig::connect_local(std::uint64_t features) {
  auto socket = dial(*net::local_socket_of(*net::resolve(*net::parse_address(node->addresses().at(0)))));
  return socket ? std::make_unique<RawClient>(*loop, std::move(*socket), true, features) : nullptr;
}

bool Rig::put_all(const Records& records, std::size_t first, std::size_t count, AckLevel ack) {
  const auto client = connect();
  const std::uint32_t ns = client->open(records.ns());
  const std::uint64_t id = client->new_id();
  client->send(records.put(id, ns, first, count, ack));
  client->send(records.put_head(id, first, count, 0, records.layers()),
               records.put_body(first, count, 0, records.layers()));
  const net::Received reply = client->next();
  const auto put = wire::decode<wire::PutReply>(reply.header, reply.meta);
  return reply.header.status == Code::kOk && put && wire::count_bits(put->failed) == 0;
}

std::uint64_t Rig::stat(const char* room, const char* name) const {
  return nlohmann::json::parse(node->stats_json()).at(room).at(name).get<std::uint64_t>();
}

}  // namespace kvd::node
