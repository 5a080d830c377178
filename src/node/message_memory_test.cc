// What clients may send of requests without ending them (net/message_memory.h).
#include <array>
#include <string>

#include <gtest/gtest.h>

#include "node/testing/resp_client.h"
#include "node/testing/rig.h"

namespace kvd::node {
namespace {

constexpr std::size_t kBegun = std::size_t{150} << 10;

NodeOptions with_little(std::size_t bytes) {
  NodeOptions options = test_options();
  options.limits.message_bytes_all_max = bytes;
  return options;
}

TEST(NodeMessageMemory, UnfinishedRequestsOfAllClientsAreBounded) {
  Rig rig(with_little(std::size_t{256} << 10));
  const std::array clients{rig.connect(), rig.connect(), rig.connect()};
  const auto keys = Records::keys(1, 15'000);
  const wire::Buffer match = wire::frame({.request_id = 7}, wire::Match{.ns = clients[2]->open(small_namespace()),
                                                                        .blocks = 15'000,
                                                                        .shards = {0},
                                                                        .groups = {0},
                                                                        .keys = {keys, 16, true}});
  for (const auto& client : clients) {
    client->send(wire::Buffer(match.begin(), match.begin() + kBegun));
    rig.until([&, before = rig.stat("net", "bytes_in")] { return rig.stat("net", "bytes_in") >= before + kBegun; });
  }
  EXPECT_TRUE(clients[0]->ended());
  EXPECT_TRUE(clients[1]->ended());
  EXPECT_EQ(rig.stat("net", "unfinished_ended"), 2U);
  clients[2]->send(wire::Buffer(match.begin() + kBegun, match.end()));
  EXPECT_EQ(clients[2]->next().header.opcode, wire::Opcode::kMatchReply) << "it is answered: that is too many keys";
}

TEST(NodeMessageMemory, UnfinishedCommandsOfRedisClientsCountWithThem) {
  Rig rig(with_little(std::size_t{400} << 10));
  std::string begun = "*9\r\n$4\r\nMGET\r\n";
  for (int i = 0; i < 3; ++i) begun += resp_bulk(std::string(kBegun / 3, 'k'));
  RespClient first(rig), second(rig);
  for (RespClient* const client : {&first, &second}) {
    const std::uint64_t before = rig.stat("net", "bytes_in");
    client->send(begun);
    EXPECT_TRUE(rig.until([&] { return rig.stat("net", "bytes_in") >= before + begun.size(); }));
  }
  EXPECT_TRUE(first.ended());
  std::string rest;
  for (int i = 0; i < 5; ++i) rest += resp_bulk("k");
  second.send(rest);
  EXPECT_EQ(second.line(), "*8\r\n") << "the other's is answered";
  const auto large = wire::frame({.request_id = 1}, wire::StatsReply{std::string(2 * kBegun, 'x')});
  const auto native = rig.connect();
  native->send(wire::Buffer(large.begin(), large.begin() + kBegun));
  for (int i = 0; i < 8; ++i) second.line();
  second.send("PING\r\n");
  EXPECT_EQ(second.line(), "+PONG\r\n") << "it holds nothing any more";
}

}  // namespace
}  // namespace kvd::node
