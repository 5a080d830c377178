// GET and PUT through a node and its store: what was put is what comes back, and nothing is left behind.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "node/testing/rig.h"

namespace kvd::node {
namespace {

using net::Received;

// All messages of one GET, put together: the slabs by (layer, key), and which keys failed.
struct Got {
  Code status = Code::kOk;
  std::vector<bool> failed;
  std::map<std::pair<std::uint32_t, std::size_t>, std::vector<std::byte>> slabs;
  std::size_t messages = 0;
};

Got collect(RawClient& client, std::uint64_t id, const Records& records, std::size_t first, std::size_t count) {
  Got got;
  got.failed.resize(count);
  std::uint32_t next_layer = 0;
  for (bool last = false; !last; ++got.messages) {
    const Received m = client.next();
    if (m.header.opcode != wire::Opcode::kGetData) return got;
    EXPECT_EQ(m.header.request_id, id);
    last = m.header.last();
    got.status = m.header.status;
    if (got.status != Code::kOk) break;
    const auto data = wire::decode<wire::GetData>(m.header, m.meta);
    EXPECT_TRUE(data && wire::check_get_payload(m.header, *data, records.slab_bytes()).has_value());
    if (!data) return got;
    if (got.messages > 0) {
      EXPECT_EQ(m.header.layer_first, next_layer);
    }
    next_layer = m.header.layer_first + m.header.layer_count;
    std::size_t slab = 0;
    for (std::uint32_t layer = m.header.layer_first; layer < next_layer; ++layer) {
      for (std::size_t key = 0; key < count; ++key) {
        const bool failed = wire::bit(data->failed, key);
        EXPECT_TRUE(failed || !got.failed[key]) << "a failed key came back";
        got.failed[key] = failed;
        if (failed) continue;
        EXPECT_EQ(data->checksums[slab], records.checksum(first + key, layer));
        const auto* at = m.payload.data() + slab++ * records.slab_bytes();
        got.slabs[{layer, key}] = {at, at + records.slab_bytes()};
      }
    }
  }
  return got;
}

void expect_records(const Got& got, const Records& records, std::size_t first, std::size_t count,
                    std::uint32_t layer_first, std::uint32_t layer_end) {
  EXPECT_EQ(got.status, Code::kOk);
  EXPECT_EQ(got.slabs.size(), count * (layer_end - layer_first));
  for (const auto& [place, bytes] : got.slabs) EXPECT_TRUE(bytes == records.slab(first + place.second, place.first));
}

class GetPut : public testing::Test {
 protected:
  void start(NodeOptions options = test_options(), bool flash = false) {
    rig = std::make_unique<Rig>(std::move(options), flash);
    reconnect();
  }
  void reconnect() {
    client = rig->connect();
    ns = client->open(records.ns());
  }
  Got get(std::size_t first, std::size_t count, bool stop = false, std::uint16_t layer_first = 0,
          std::uint16_t layers = 0) {
    const std::uint64_t id = client->new_id();
    client->send(Records::get(id, ns, first, count, stop, layer_first, layers));
    return collect(*client, id, records, first, count);
  }
  // A client that says HELLO, opens the namespace (its handle is 0), asks this, and reads nothing.
  io::UniqueFd ask_unread(std::vector<wire::Buffer> requests) {
    auto [near, far] = net::make_socket_pair();
    const int small = 4096;
    EXPECT_EQ(::setsockopt(far.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    EXPECT_TRUE(rig->node->adopt(net::make_socket_stream(std::move(far))).has_value());
    requests.insert(requests.begin(), {wire::frame({}, wire::Hello{.name = "x"}),
                                       wire::frame({.request_id = 1}, wire::Open{records.ns()})});
    for (const wire::Buffer& request : requests) {
      EXPECT_EQ(::write(near.get(), request.data(), request.size()), static_cast<ssize_t>(request.size()));
      for (int turn = 0; turn < 5; ++turn) rig->loop->run_once(Duration::zero());
    }
    return std::move(near);
  }
  // Nothing of the client's is held by the node any more.
  bool clean() {
    return rig->until([&] {
      return rig->stat("node", "ops") == 0 && rig->stat("node", "op_keys") == 0 &&
             rig->stat("node", "pinned_bytes") == 0 && rig->stat("node", "unfinished_bytes") == 0 &&
             rig->stat("store", "unfinished_puts") == 0 && rig->stat("store", "pool_bytes_pinned") == 0;
    });
  }

  Records records{small_namespace()};
  std::unique_ptr<Rig> rig;
  std::unique_ptr<RawClient> client;
  std::uint32_t ns = 0;
};

TEST_F(GetPut, WhatWasPutLayerByLayerComesBack) {
  start();
  const std::uint64_t id = client->new_id();
  client->send(records.put(id, ns, 0, 5));
  for (std::uint32_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(rig->stat("store", "puts"), 0U);  // complete or absent
    client->send(records.put_head(id, 0, 5, layer, layer + 1), records.put_body(0, 5, layer, layer + 1));
    if (layer == 1) {
      EXPECT_EQ(get(0, 5).failed, std::vector<bool>(5, true));
    }
  }
  const Received reply = client->next();
  EXPECT_EQ(reply.header.opcode, wire::Opcode::kPutReply);
  EXPECT_EQ(wire::count_bits(wire::decode<wire::PutReply>(reply.header, reply.meta)->failed), 0U);
  expect_records(get(0, 5), records, 0, 5, 0, 3);
  EXPECT_TRUE(clean());
}

TEST_F(GetPut, SomeLayersCanBeAskedFor) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 4));
  expect_records(get(0, 4, false, 1, 2), records, 0, 4, 1, 3);
  expect_records(get(0, 4, false, 2, 0), records, 0, 4, 2, 3);
  const auto status = [&](std::uint16_t first, std::uint16_t count) {
    return client->call(Records::get(client->new_id(), ns, 0, 4, false, first, count)).header.status;
  };
  EXPECT_EQ(status(3, 0), Code::kInvalid);
  EXPECT_EQ(status(2, 2), Code::kInvalid);
}

TEST_F(GetPut, MissingKeysFailAndTheOthersCome) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 2));
  ASSERT_TRUE(rig->put_all(records, 3, 2));
  const Got got = get(0, 6);
  EXPECT_EQ(got.failed, (std::vector<bool>{false, false, true, false, false, true}));
  EXPECT_EQ(got.slabs.size(), 4U * 3);
  const Got stopped = get(0, 6, true);
  EXPECT_EQ(stopped.failed, (std::vector<bool>{false, false, true, true, true, true}));
  EXPECT_EQ(stopped.slabs.size(), 2U * 3);
  const Got none = get(100, 3);
  EXPECT_EQ(none.failed, std::vector<bool>(3, true));
  EXPECT_EQ(none.messages, 1U);
  EXPECT_TRUE(clean());
}

TEST_F(GetPut, UnknownNamesAreRefusedOneByOne) {
  start();
  EXPECT_EQ(client->call(Records::get(client->new_id(), ns + 5, 0, 1)).header.status, Code::kNotFound);
  EXPECT_EQ(client->call(records.put(client->new_id(), ns + 5, 0, 1)).header.status, Code::kNotFound);
  const auto keys = Records::keys(0, 1);
  const wire::Get other_group{.ns = ns, .shard = 0, .group = 7, .keys = {keys, 16, true}};
  EXPECT_EQ(client->call(wire::frame({.request_id = 50}, other_group)).header.status, Code::kInvalid);
  const std::vector<std::byte> many(5000 * 16);
  const wire::Get too_many{.ns = ns, .keys = {many, 16, true}};
  EXPECT_EQ(client->call(wire::frame({.request_id = 51}, too_many)).header.status, Code::kInvalid);
}

TEST_F(GetPut, ASlabThatIsNotWhatItsSenderSaysFailsItsKeyAlone) {
  start();
  const std::uint64_t id = client->new_id();
  client->send(records.put(id, ns, 0, 3));
  auto body = records.put_body(0, 3, 0, 3);
  body[4096 * 4 + 17] ^= std::byte{1};  // layer 1, key 1
  client->send(records.put_head(id, 0, 3, 0, 3), body);
  const Received reply = client->next();
  const auto put = wire::decode<wire::PutReply>(reply.header, reply.meta);
  ASSERT_TRUE(put.has_value());
  EXPECT_EQ(std::to_integer<int>(put->failed[0]), 0b010);
  EXPECT_EQ(put->why, Code::kCorrupt);
  EXPECT_TRUE(rig->until([&] { return rig->stat("node", "put_corrupt") == 1; }));
  EXPECT_EQ(get(0, 3).failed, (std::vector<bool>{false, true, false}));
  EXPECT_TRUE(clean());
}

TEST_F(GetPut, RecordsThatAreHereAreReadAndDropped) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 2));
  ASSERT_TRUE(rig->put_all(records, 0, 4));  // two of them are new
  EXPECT_EQ(rig->stat("node", "keys_put_present"), 2U);
  // When all are here the answer comes at once, and what the client sends all the same is dropped.
  const std::uint64_t id = client->new_id();
  const Received reply = client->call(records.put(id, ns, 0, 4));
  EXPECT_EQ(reply.header.opcode, wire::Opcode::kPutReply);
  EXPECT_EQ(reply.header.status, Code::kOk);
  client->send(records.put_head(id, 0, 4, 0, 3), records.put_body(0, 4, 0, 3));
  expect_records(get(0, 4), records, 0, 4, 0, 3);
  EXPECT_EQ(rig->stat("store", "puts"), 4U);
}

TEST_F(GetPut, PutDataOutOfOrderEndsTheConnection) {
  start();
  const std::uint64_t id = client->new_id();
  client->send(records.put(id, ns, 0, 2));
  client->send(records.put_head(id, 0, 2, 1, 2), records.put_body(0, 2, 1, 2));
  EXPECT_TRUE(client->ended());
  EXPECT_TRUE(clean());
}

// What a client may send once both have agreed on parts: any number of slabs, also beyond the end of a layer.
TEST_F(GetPut, WhatWasPutInPartsComesBack) {
  start();
  client = rig->connect(true, wire::kFeaturePutParts);
  ASSERT_EQ(client->features(), wire::kFeaturePutParts);
  ns = client->open(records.ns());
  const std::uint64_t id = client->new_id();
  client->send(records.put(id, ns, 0, 5));
  std::size_t slab = 0;
  for (const std::size_t slabs : {1U, 3U, 4U, 2U, 4U}) {  // of 15
    client->send(records.part_head(id, 0, 5, slab, slab + slabs), records.part_body(0, 5, slab, slab + slabs));
    slab += slabs;
  }
  EXPECT_EQ(get(0, 5).failed, std::vector<bool>(5, true)) << "complete or absent";
  auto last = records.part_body(0, 5, 14, 15);
  client->send(records.part_head(id, 0, 5, 14, 15), last);
  const Received reply = client->next();
  EXPECT_EQ(wire::count_bits(wire::decode<wire::PutReply>(reply.header, reply.meta)->failed), 0U);
  expect_records(get(0, 5), records, 0, 5, 0, 3);
  EXPECT_TRUE(clean());
}

TEST_F(GetPut, APartThatIsNotWhatItsSenderSaysFailsItsKeyAlone) {
  start();
  client = rig->connect(true, wire::kFeaturePutParts);
  ns = client->open(records.ns());
  const std::uint64_t id = client->new_id();
  client->send(records.put(id, ns, 0, 3));
  client->send(records.part_head(id, 0, 3, 0, 4), records.part_body(0, 3, 0, 4));
  auto body = records.part_body(0, 3, 4, 9);
  body[5] ^= std::byte{1};  // layer 1, key 1
  client->send(records.part_head(id, 0, 3, 4, 9), body);
  const Received reply = client->next();
  EXPECT_EQ(std::to_integer<int>(wire::decode<wire::PutReply>(reply.header, reply.meta)->failed[0]), 0b010);
  EXPECT_EQ(get(0, 3).failed, (std::vector<bool>{false, true, false}));
  EXPECT_TRUE(clean());
}

TEST_F(GetPut, APartThatDoesNotContinueItsPutEndsTheConnection) {
  start();
  struct Case {
    std::uint64_t features;
    std::size_t first, end;  // of the second part, of 15 slabs
  };
  for (const Case& wrong : {Case{wire::kFeaturePutParts, 4, 6}, Case{wire::kFeaturePutParts, 2, 4},
                            Case{wire::kFeaturePutParts, 3, 16}, Case{0, 0, 1}}) {
    SCOPED_TRACE(wrong.first);
    client = rig->connect(true, wrong.features);
    ns = client->open(records.ns());
    const std::uint64_t id = client->new_id();
    client->send(records.put(id, ns, 0, 5));
    if (wrong.features != 0) client->send(records.part_head(id, 0, 5, 0, 3), records.part_body(0, 5, 0, 3));
    client->send(records.part_head(id, 0, 5, wrong.first, wrong.end), records.part_body(0, 5, wrong.first, wrong.end));
    EXPECT_TRUE(client->ended());
    EXPECT_TRUE(clean());
  }
}

TEST_F(GetPut, AnIdIsUsedOnceAtATime) {
  start();
  client->send(records.put(9, ns, 0, 2));
  client->send(records.put(9, ns, 2, 2));
  EXPECT_TRUE(client->ended());
}

TEST_F(GetPut, ACancelledPutLeavesNoTrace) {
  start();
  const std::uint64_t id = client->new_id();
  client->send(records.put(id, ns, 0, 4));
  client->send(records.put_head(id, 0, 4, 0, 2), records.put_body(0, 4, 0, 2));
  ASSERT_TRUE(rig->until([&] { return rig->stat("net", "messages_in") >= 4; }));
  EXPECT_GT(rig->stat("node", "unfinished_bytes"), 0U);
  const Received reply = client->call(wire::frame({.request_id = id}, wire::Cancel{}));
  EXPECT_EQ(reply.header.opcode, wire::Opcode::kPutReply);
  EXPECT_EQ(reply.header.status, Code::kCancelled);
  client->send(records.put_head(id, 0, 4, 2, 3), records.put_body(0, 4, 2, 3));  // was under way: dropped
  EXPECT_EQ(get(0, 4).failed, std::vector<bool>(4, true));
  EXPECT_TRUE(clean());
}

// A client that cancels in the middle of a message fills it up with zeros (net::Connection::abandon); its CANCEL comes
// behind them, which may be after the answer.
TEST_F(GetPut, ACancelledPutIsNotCorrupt) {
  start();
  for (const std::uint32_t layers : {2U, 3U}) {
    const std::uint64_t id = client->new_id();
    client->send(records.put(id, ns, 0, 4));
    auto body = records.put_body(0, 4, 0, layers);
    std::fill(body.end() - 4096, body.end(), std::byte{0});
    client->send(records.put_head(id, 0, 4, 0, layers), body);
    client->send(wire::frame({.request_id = id}, wire::Cancel{}));
    EXPECT_EQ(client->next().header.status, layers == 2 ? Code::kCancelled : Code::kOk);
  }
  EXPECT_EQ(get(0, 4).failed, (std::vector<bool>{false, false, false, true}));
  // One that is really damaged shows that the time to count has passed.
  const std::uint64_t id = client->new_id();
  client->send(records.put(id, ns, 8, 1));
  client->send(records.put_head(id, 8, 1, 0, 3), std::vector<std::byte>(3 * 4096));
  client->next();
  EXPECT_TRUE(rig->until([&] { return rig->stat("node", "put_corrupt") > 0; }));
  EXPECT_EQ(rig->stat("node", "put_corrupt"), 1U);
  EXPECT_TRUE(clean());
}

// Both ends of what a client is told must be one: a second one would be an answer that nobody asked for.
TEST_F(GetPut, ACancelledGetEndsOnceAlsoWhenItsLastMessageIsOnItsWay) {
  records = Records(small_namespace(4, 65536));
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 1));
  const auto ends = [&](std::uint16_t layers) {
    io::UniqueFd near =
        ask_unread({Records::get(2, 0, 0, 1, false, 0, layers), wire::frame({.request_id = 2}, wire::Cancel{})});
    RawClient late(*rig->loop, std::move(near), false);
    late.next();  // HELLO reply
    late.next();  // OPEN reply
    late.send(wire::frame({.request_id = 3}, wire::Ping{}));
    std::vector<Code> statuses;
    for (Received m = late.next(); m.header.opcode == wire::Opcode::kGetData; m = late.next()) {
      if (m.header.last()) statuses.push_back(m.header.status);
    }
    return statuses;
  };
  EXPECT_EQ(ends(1), std::vector{Code::kOk}) << "its only message had begun";
  EXPECT_EQ(ends(4), std::vector{Code::kCancelled}) << "its last one had not";
  EXPECT_TRUE(clean());
}

// The conversation of a PUT, cut after every few bytes: the client dies there.
TEST_F(GetPut, AClientThatDiesAnywhereLeavesNothingBehind) {
  start();
  const wire::Buffer hello = wire::frame({}, wire::Hello{.name = "x"});
  const wire::Buffer open = wire::frame({.request_id = 1}, wire::Open{records.ns()});
  wire::Buffer stream;
  const auto add = [&](const std::vector<std::byte>& bytes) {
    stream.insert(stream.end(), bytes.begin(), bytes.end());
  };
  for (const auto& part :
       {hello, open, records.put(2, 0, 10, 2), records.put_head(2, 10, 2, 0, 1), records.put_body(10, 2, 0, 1),
        records.put_head(2, 10, 2, 1, 3), records.put_body(10, 2, 1, 3)}) {
    add(part);
  }
  for (std::size_t cut = 0; cut < stream.size(); cut += cut < 700 ? 13 : 1117) {
    SCOPED_TRACE(cut);
    auto [near, far] = net::make_socket_pair();
    ASSERT_TRUE(rig->node->adopt(net::make_socket_stream(std::move(far))).has_value());
    ASSERT_EQ(::write(near.get(), stream.data(), cut), static_cast<ssize_t>(cut));
    rig->loop->run_once(Duration::zero());
    near.reset();
    ASSERT_TRUE(rig->until([&] { return rig->stat("node", "connections") == 1; }));
    ASSERT_TRUE(clean());
  }
  EXPECT_EQ(rig->stat("store", "puts"), 0U);
  EXPECT_EQ(get(10, 2).failed, std::vector<bool>(2, true));
}

TEST_F(GetPut, APutThatStopsComingEnds) {
  NodeOptions options = test_options();
  options.limits.put_idle_limit = std::chrono::milliseconds(5);
  start(options);
  EXPECT_EQ(client->call(records.put(client->new_id(), ns, 0, 2)).header.status, Code::kTimeout);
  EXPECT_TRUE(clean());
  EXPECT_EQ(client->call(records.put(client->new_id(), ns, 0, 2, AckLevel::kPooled, 1)).header.status, Code::kTimeout);
  EXPECT_EQ(rig->stat("node", "timeouts"), 2U);
}

TEST_F(GetPut, UnfinishedPutsAreBounded) {
  NodeOptions options = test_options();
  options.limits.unfinished_percent_max = 1;  // 640 KiB: 40 records of 16 KiB
  options.limits.connection_percent_max = 100;
  start(options);
  client->send(records.put(client->new_id(), ns, 0, 30));
  const std::uint64_t id = client->new_id();
  client->send(records.put(id, ns, 100, 30));
  client->send(records.put_head(id, 100, 30, 0, 3), records.put_body(100, 30, 0, 3));
  const Received reply = client->next();
  const auto put = wire::decode<wire::PutReply>(reply.header, reply.meta);
  ASSERT_TRUE(put.has_value());
  EXPECT_GE(wire::count_bits(put->failed), 18U);
  EXPECT_LE(wire::count_bits(put->failed), 29U) << "a fifth is left to other connections";
  EXPECT_EQ(put->why, Code::kBusy);
  EXPECT_NE(put->reason.find("share of the pool"), std::string_view::npos);
  client->vanish();
  EXPECT_TRUE(clean());
}

TEST_F(GetPut, OneConnectionCannotTakeAllOfTheRoomForUnfinishedPuts) {
  NodeOptions options = test_options();
  options.limits.unfinished_percent_max = 1;  // 40 records, of which one connection may have 20
  start(options);
  client->send(records.put(client->new_id(), ns, 0, 30));
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "unfinished_bytes") > 0; }));
  EXPECT_LE(rig->stat("node", "unfinished_bytes"), 20U * 4 * 4096);
  EXPECT_TRUE(rig->put_all(records, 100, 15));
}

TEST_F(GetPut, UnfinishedRequestsOfAConnectionAreBounded) {
  NodeOptions options = test_options();
  options.limits.ops_max = 2;
  start(options);
  client->send(records.put(101, ns, 0, 1));
  client->send(records.put(102, ns, 1, 1));
  const Received third = client->call(records.put(103, ns, 2, 1));
  EXPECT_EQ(third.header.request_id, 103U);
  EXPECT_EQ(third.header.status, Code::kBusy);
  client->call(wire::frame({.request_id = 101}, wire::Cancel{}));
  EXPECT_EQ(get(0, 1).status, Code::kOk);
  EXPECT_EQ(rig->stat("node", "answered_busy"), 1U);
}

TEST_F(GetPut, KeysUnderWayAreBounded) {
  NodeOptions options = test_options();
  options.limits.op_keys_max = 10;
  start(options);
  client->send(records.put(101, ns, 0, 8));
  EXPECT_EQ(client->call(Records::get(102, ns, 0, 8)).header.status, Code::kBusy);
  client->call(wire::frame({.request_id = 101}, wire::Cancel{}));
  EXPECT_EQ(get(0, 8).status, Code::kOk);
}

// More than the budget of pins: GETs of a connection go one after the other, in their order (collect() looks at the
// ids), and all end well.
TEST_F(GetPut, GetsBeyondThePinBudgetWaitInLine) {
  NodeOptions options = test_options();
  options.limits.pinned_percent_max = 1;  // 640 KiB
  records = Records(small_namespace(4, 65536));
  start(options);
  ASSERT_TRUE(rig->put_all(records, 0, 8));  // 2 MiB
  std::vector<std::uint64_t> ids;
  for (int i = 0; i < 4; ++i) {
    ids.push_back(client->new_id());
    client->send(Records::get(ids.back(), ns, 0, 8));
  }
  for (const std::uint64_t id : ids) expect_records(collect(*client, id, records, 0, 8), records, 0, 8, 0, 4);
  EXPECT_TRUE(clean());
}

// A large GET is not overtaken by small ones that would take what it waits for, and when it is given up they go on.
TEST_F(GetPut, ASmallGetDoesNotOvertakeALargeOneThatWaitsForPins) {
  NodeOptions options = test_options();
  options.limits.pinned_percent_max = 1;         // 655 KiB, half of it for a connection
  records = Records(small_namespace(4, 16384));  // 68 KiB of the pool each
  start(options);
  ASSERT_TRUE(rig->put_all(records, 0, 8));
  std::uint64_t one = 0;  // what a GET of one record takes
  {
    const io::UniqueFd unread = ask_unread({Records::get(2, 0, 0, 1)});
    one = rig->stat("node", "pinned_bytes");
    ASSERT_GE(one, 64U << 10);
  }
  ASSERT_TRUE(clean());
  // The second asks for more than the share: it goes when nothing else is under way.
  const std::vector<wire::Buffer> gets{Records::get(2, 0, 0, 1), Records::get(3, 0, 0, 8), Records::get(4, 0, 0, 1)};
  io::UniqueFd unread = ask_unread(gets);
  EXPECT_EQ(rig->stat("node", "ops"), 3U);
  EXPECT_EQ(rig->stat("node", "pinned_bytes"), one);
  RawClient late(*rig->loop, std::move(unread), false);
  std::vector<std::uint64_t> ended;
  while (ended.size() < 3) {
    const Received m = late.next();
    if (m.header.opcode == wire::Opcode::kGetData && m.header.last()) ended.push_back(m.header.request_id);
  }
  EXPECT_EQ(ended, (std::vector<std::uint64_t>{2, 3, 4}));
  ASSERT_TRUE(clean());
  std::vector<wire::Buffer> given_up = gets;
  given_up.push_back(wire::frame({.request_id = 3}, wire::Cancel{}));
  unread = ask_unread(given_up);
  EXPECT_EQ(rig->stat("node", "ops"), 2U);
  EXPECT_EQ(rig->stat("node", "pinned_bytes"), 2 * one);
  unread.reset();
  EXPECT_TRUE(clean());
}

// Two connections wait for pins of the node, and then there is room for one of them.
TEST_F(GetPut, TheConnectionThatWaitsLongestForPinsIsServedFirst) {
  NodeOptions options = test_options();
  options.limits.pinned_percent_max = 1;         // 655 KiB, half of it for a connection
  records = Records(small_namespace(4, 16384));  // 68 KiB of the pool each
  start(options);
  ASSERT_TRUE(rig->put_all(records, 0, 4));
  io::UniqueFd first = ask_unread({Records::get(2, 0, 0, 4)});
  const io::UniqueFd second = ask_unread({Records::get(2, 0, 0, 4)});
  const std::uint64_t one = rig->stat("node", "pinned_bytes") / 8;
  ASSERT_GE(one, 64U << 10);
  io::UniqueFd third = ask_unread({Records::get(2, 0, 0, 3)});
  const io::UniqueFd fourth = ask_unread({Records::get(2, 0, 0, 3)});
  ASSERT_EQ(rig->stat("node", "pinned_bytes"), 8 * one);
  first.reset();
  EXPECT_TRUE(rig->until([&] { return rig->stat("node", "pinned_bytes") == 7 * one; }));
  RawClient served(*rig->loop, std::move(third), false);
  served.next();  // HELLO and OPEN
  served.next();
  EXPECT_EQ(served.next().header.opcode, wire::Opcode::kGetData);
}

// One GET waits for its connection's budget and one behind it for the node's. As long as nothing becomes free neither
// may wake the other.
TEST_F(GetPut, GetsThatWaitForPinsDoNotKeepTheLoopBusy) {
  NodeOptions options = test_options();
  options.limits.pinned_percent_max = 1;         // 655 KiB, half of it for a connection
  records = Records(small_namespace(4, 16384));  // 68 KiB of the pool each
  start(options);
  ASSERT_TRUE(rig->put_all(records, 0, 10));
  io::UniqueFd first = ask_unread({Records::get(2, 0, 0, 8)});
  io::UniqueFd second = ask_unread({Records::get(2, 0, 0, 1), Records::get(3, 0, 0, 4), Records::get(4, 0, 0, 1)});
  ASSERT_EQ(rig->stat("node", "ops"), 4U);
  int busy = 0;
  for (int turn = 0; turn < 100; ++turn) busy += rig->loop->run_once(Duration::zero()) ? 1 : 0;
  EXPECT_LE(busy, 10);
  first.reset();
  second.reset();
  EXPECT_TRUE(clean());
}

TEST_F(GetPut, RemovedRecordsStayRemoved) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 4));
  const auto keys = Records::keys(1, 2);
  const wire::Remove remove{.ns = ns, .shards = {0, 1}, .groups = {0}, .keys = {keys, 16, true}};
  const Received reply = client->call(wire::frame({.request_id = client->new_id()}, remove));
  EXPECT_EQ(wire::decode<wire::RemoveReply>(reply.header, reply.meta)->removed, 2U);
  EXPECT_EQ(get(0, 4).failed, (std::vector<bool>{false, true, true, false}));
}

// The answer says that it survives the depot's death: the tombstones are on flash by then.
TEST_F(GetPut, ARemovalIsAnsweredWhenItIsWritten) {
  records = Records(small_namespace(6, 131072));
  start(test_options(), true);
  ASSERT_TRUE(rig->put_all(records, 0, 4, AckLevel::kWritten));
  const auto keys = Records::keys(0, 3);
  const wire::Remove remove{.ns = ns, .shards = {0}, .groups = {0}, .keys = {keys, 16, true}};
  for (const std::uint32_t removed : {3U, 0U}) {
    const Received reply = client->call(wire::frame({.request_id = client->new_id()}, remove));
    EXPECT_EQ(wire::decode<wire::RemoveReply>(reply.header, reply.meta)->removed, removed);
    EXPECT_EQ(rig->stat("store", "tombstones"), 3U);
  }
  // A client that does not wait for the answer leaves nothing behind.
  const auto last = Records::keys(3, 1);
  const wire::Remove remove_last{.ns = ns, .shards = {0}, .groups = {0}, .keys = {last, 16, true}};
  client->send(wire::frame({.request_id = client->new_id()}, remove_last));
  client->vanish();
  EXPECT_TRUE(rig->until([&] { return rig->stat("store", "tombstones") == 4; }));
}

TEST_F(GetPut, RecordsOnFlashComeBackAfterARestart) {
  records = Records(small_namespace(6, 131072));
  start(test_options(), true);
  ASSERT_TRUE(rig->put_all(records, 0, 10, AckLevel::kWritten));
  ASSERT_TRUE(rig->put_all(records, 0, 10, AckLevel::kWritten));  // here already: answered when it is written
  client.reset();
  rig->restart();
  reconnect();
  ASSERT_TRUE(rig->put_all(records, 20, 2));
  expect_records(get(0, 10), records, 0, 10, 0, 6);
  expect_records(get(0, 10, true, 2, 3), records, 0, 10, 2, 5);
  const Got mixed = get(8, 14);  // on flash, missing, in the pool
  std::vector<bool> expected(14, true);
  for (const std::size_t i : {0U, 1U, 12U, 13U}) expected[i] = false;
  EXPECT_EQ(mixed.failed, expected);
  expect_records(mixed, records, 8, 4, 0, 6);
  EXPECT_TRUE(clean());
}

// The head of the prefix has gone to flash, as it was put first; its tail is in the pool, which is too small for both.
TEST_F(GetPut, APrefixLargerThanThePoolStreams) {
  records = Records(small_namespace(8, 131072));  // 1 MiB and a page each, in a pool of 64 MiB
  NodeOptions options = test_options();
  options.store.flash_bytes = std::uint64_t{256} << 20;
  start(options, true);
  for (std::size_t first = 0; first < 96; first += 8) {
    ASSERT_TRUE(rig->put_all(records, first, 8, AckLevel::kWritten));
  }
  ASSERT_GT(rig->stat("store", "pool_evictions"), 30U);
  for (int round = 0; round < 2; ++round) {
    const std::uint64_t pool_hits = rig->stat("store", "pool_hits");
    expect_records(get(0, 96, true), records, 0, 96, 0, 8);
    EXPECT_GT(rig->stat("store", "pool_hits"), pool_hits);  // what is in the pool is not read again
    EXPECT_TRUE(clean());
  }
  expect_records(get(10, 80, true, 3, 4), records, 10, 80, 3, 7);
  EXPECT_LE(rig->stat("store", "pool_bytes_used"), std::uint64_t{64} << 20);
  EXPECT_TRUE(clean());
}

// It would fit, but other clients hold so much that whole records do not: their layers pass through what is left.
TEST_F(GetPut, APrefixFromFlashFitsBesideLeases) {
  records = Records(small_namespace(8, 131072));
  NodeOptions options = test_options();
  options.store.pinned_percent_max = 90;
  options.store.flash_bytes = std::uint64_t{256} << 20;
  start(options, true);
  for (std::size_t first = 0; first < 80; first += 8) {
    ASSERT_TRUE(rig->put_all(records, first, 8, AckLevel::kWritten));
  }
  const auto other = rig->connect();
  const std::uint32_t other_ns = other->open(records.ns());
  const auto keys = Records::keys(20, 60);
  const wire::Match match{
      .ns = other_ns, .lease_ms = 60'000, .blocks = 60, .shards = {0}, .groups = {0}, .keys = {keys, 16, true}};
  ASSERT_EQ(other->call(wire::frame({.request_id = other->new_id()}, match)).header.status, Code::kOk);
  ASSERT_GT(rig->stat("store", "pool_bytes_pinned"), std::uint64_t{50} << 20);
  expect_records(get(0, 16, true), records, 0, 16, 0, 8);  // 16 of at most 7 that fit beside them
}

// The second PUT receives nothing and is not complete either: it waits for a level that the first did not ask for.
TEST_F(GetPut, DataOfAPutThatOnlyWaitsForItsLevelIsDropped) {
  start(test_options(), true);
  ASSERT_TRUE(rig->put_all(records, 0, 4, AckLevel::kPooled));
  EXPECT_TRUE(rig->put_all(records, 0, 4, AckLevel::kWritten));
  EXPECT_EQ(rig->stat("node", "keys_put_present"), 4U);
  expect_records(get(0, 4), records, 0, 4, 0, 3);
  EXPECT_TRUE(clean());
}

TEST_F(GetPut, ALevelThatCannotBeReachedFails) {
  start();  // no flash
  EXPECT_FALSE(rig->put_all(records, 0, 1, AckLevel::kWritten));
}

}  // namespace
}  // namespace kvd::node
