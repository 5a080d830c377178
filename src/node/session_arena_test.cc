// PUTs through arenas, seen by clients that speak raw protocol, and what hostile ones can do with them.
#include <algorithm>
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "net/arena.h"
#include "node/testing/rig.h"

namespace kvd::node {
namespace {

constexpr std::uint64_t kAsks = wire::kFeatureArena | wire::kFeaturePutParts;

// A client with its arena, when the depot gave it one.
struct ArenaClient {
  std::unique_ptr<RawClient> raw;
  std::unique_ptr<net::Arena> arena;
  std::uint32_t ns = 0;
  std::uint64_t taken = 0;  // as it was told last

  // The next message that is not TAKEN.
  net::Received next() {
    for (;;) {
      net::Received message = raw->next();
      if (message.header.opcode != wire::Opcode::kTaken) return message;
      taken = wire::decode<wire::Taken>(message.header, message.meta)->messages;
    }
  }
};

class SessionArenaTest : public testing::Test {
 protected:
  void start(NodeOptions options = test_options()) {
    options.store.share_pool = true;
    rig = std::make_unique<Rig>(std::move(options));
  }
  ArenaClient connect(std::uint64_t features = kAsks) {
    ArenaClient client;
    client.raw = rig->connect(true, features);
    if ((client.raw->features() & wire::kFeatureArena) == 0) return client;
    const net::Received given = client.raw->next();
    const auto size = wire::decode<wire::Arena>(given.header, given.meta);
    EXPECT_TRUE(given.header.opcode == wire::Opcode::kArena && size.has_value());
    client.arena = *net::Arena::map(client.raw->peer().take_descriptor(), size->bytes);
    client.ns = client.raw->open(records.ns());
    return client;
  }
  // PUT arena of slabs [from, end) of a PUT of `count` keys, which lie at `offset`.
  [[nodiscard]] wire::Buffer head(std::uint64_t id, std::size_t first, std::size_t count, std::size_t from,
                                  std::size_t end, std::uint64_t offset) const {
    std::vector<std::uint64_t> checksums;
    for (std::size_t slab = from; slab < end; ++slab)
      checksums.push_back(records.checksum(first + slab % count, static_cast<std::uint32_t>(slab / count)));
    return wire::frame({.request_id = id,
                        .items = static_cast<std::uint32_t>(count),
                        .layer_first = static_cast<std::uint16_t>(from / count)},
                       wire::PutArena{.key_first = static_cast<std::uint32_t>(from % count),
                                      .offset = offset,
                                      .checksums = wire::U64View(std::span<const std::uint64_t>(checksums))});
  }
  // Writes these slabs to the arena.
  void place(const ArenaClient& client, std::size_t first, std::size_t count, std::size_t from, std::size_t end,
             std::uint64_t offset) const {
    const auto bytes = records.part_body(first, count, from, end);
    std::ranges::copy(bytes, client.arena->writable().begin() + static_cast<std::ptrdiff_t>(offset));
  }
  // A whole PUT of `count` keys through the arena; its reply.
  net::Received put(ArenaClient& client, std::size_t first, std::size_t count, std::uint64_t offset) {
    const std::size_t slabs = count * records.layers();
    const std::uint64_t id = client.raw->new_id();
    place(client, first, count, 0, slabs, offset);
    client.raw->send(records.put(id, client.ns, first, count));
    client.raw->send(head(id, first, count, 0, slabs, offset));
    return client.next();
  }
  // The slabs of `count` keys that another client gets; empty when not all are there.
  std::vector<std::byte> got(std::size_t first, std::size_t count) {
    const auto reader = rig->connect();
    const std::uint32_t ns = reader->open(records.ns());
    reader->send(Records::get(reader->new_id(), ns, first, count));
    std::vector<std::byte> bytes;
    for (bool last = false; !last;) {
      const net::Received message = reader->next();
      if (message.header.status != Code::kOk || message.meta.empty()) return {};
      bytes.insert(bytes.end(), message.payload.begin(), message.payload.end());
      last = message.header.last();
    }
    return bytes.size() == count * records.layers() * records.slab_bytes() ? bytes : std::vector<std::byte>();
  }
  bool nothing_held() {
    return rig->until([&] {
      return rig->stat("node", "arena_bytes") == 0 && rig->stat("node", "ops") == 0 &&
             rig->stat("node", "unfinished_bytes") == 0 && rig->stat("node", "op_keys") == 0 &&
             rig->stat("store", "unfinished_puts") == 0;
    });
  }
  // Until the depot has begun to take what is in the arena.
  bool begun() {
    return rig->until([&] { return rig->stat("node", "put_arena_bytes") > 0; });
  }

  Records records{small_namespace()};
  std::unique_ptr<Rig> rig;
};

TEST_F(SessionArenaTest, SlabsAreTakenFromItAndServed) {
  start();
  ArenaClient client = connect();
  ASSERT_NE(client.arena, nullptr);
  EXPECT_EQ(rig->stat("node", "arena_bytes"), client.arena->size());
  EXPECT_EQ(put(client, 0, 40, 12'345).header.status, Code::kOk);
  EXPECT_EQ(client.taken, 1U) << "told before the reply";
  EXPECT_EQ(rig->stat("node", "put_arena_bytes"), 40 * 3 * 4096U);
  std::ranges::fill(client.arena->writable(), std::byte{0x5A});
  EXPECT_EQ(got(0, 40), records.put_body(0, 40, 0, 3)) << "what was put does not change with the arena";
  client.raw->vanish();
  EXPECT_TRUE(nothing_held());
}

TEST_F(SessionArenaTest, PartsOfAPutMayComeEitherWay) {
  start();
  ArenaClient client = connect();
  client.raw->send(records.put(50, client.ns, 0, 4));
  place(client, 0, 4, 0, 5, 0);
  client.raw->send(head(50, 0, 4, 0, 5, 0));
  client.raw->send(records.part_head(50, 0, 4, 5, 7), records.part_body(0, 4, 5, 7));
  place(client, 0, 4, 7, 12, 100'000);
  client.raw->send(head(50, 0, 4, 7, 12, 100'000));
  EXPECT_EQ(client.next().header.status, Code::kOk);
  EXPECT_EQ(client.taken, 2U);
  EXPECT_EQ(got(0, 4), records.put_body(0, 4, 0, 3));
}

TEST_F(SessionArenaTest, AreForThoseWhoAskOnASocketThatCanCarryThem) {
  NodeOptions options = test_options();
  options.listen = {"tcp://127.0.0.1:0"};
  start(options);
  EXPECT_EQ(rig->connect()->features(), 0U);
  EXPECT_EQ(rig->connect_tcp(kAsks)->features(), wire::kFeaturePutParts);
  EXPECT_EQ(rig->stat("node", "arena_bytes"), 0U);
}

TEST_F(SessionArenaTest, CanBeSwitchedOffAndAreBounded) {
  NodeOptions options = test_options();
  options.limits.arena_bytes = 0;
  start(options);
  EXPECT_EQ(connect().arena, nullptr);
  options.limits.arena_bytes = 1 << 20;
  options.shared_memory = false;
  start(options);
  EXPECT_EQ(connect().arena, nullptr);
  options.shared_memory = true;
  options.limits.arena_bytes_all_max = (1 << 20) - 1;
  start(options);
  EXPECT_EQ(connect().arena, nullptr) << "not even the first";
  options.limits.arena_bytes_all_max = 2 << 20;
  start(options);
  ArenaClient first = connect();
  const ArenaClient second = connect();
  EXPECT_EQ(first.arena->size(), 1U << 20);
  EXPECT_EQ(rig->stat("node", "arena_bytes"), 2U << 20);
  EXPECT_EQ(connect().arena, nullptr) << "there are no more";
  EXPECT_EQ(put(first, 0, 4, 0).header.status, Code::kOk);
  first.raw->vanish();
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "arena_bytes") == 1 << 20; }));
  EXPECT_NE(connect().arena, nullptr);
}

TEST_F(SessionArenaTest, EachConnectionHasItsOwn) {
  start();
  ArenaClient one = connect();
  ArenaClient other = connect();
  one.arena->writable()[0] = std::byte{7};
  EXPECT_EQ(other.arena->bytes()[0], std::byte{0});
  place(one, 0, 1, 0, 3, 0);
  const std::uint64_t id = other.raw->new_id();
  other.raw->send(records.put(id, other.ns, 0, 1));
  other.raw->send(head(id, 0, 1, 0, 3, 0));
  const net::Received reply = other.next();
  EXPECT_TRUE(wire::bit(wire::decode<wire::PutReply>(reply.header, reply.meta)->failed, 0));
}

TEST_F(SessionArenaTest, TheDepotTellsOfEachMegabyteThatItHasTaken) {
  for (const std::uint64_t bytes : {16U << 20, 64U << 20}) {
    NodeOptions options = test_options();
    options.limits.arena_bytes = bytes;
    start(options);
    ArenaClient client = connect();
    constexpr std::size_t kKeys = 682;  // 8 MiB
    constexpr std::size_t kStep = 128;  // slabs of a message
    const std::size_t slabs = kKeys * records.layers();
    client.raw->send(records.put(60, client.ns, 0, kKeys));
    for (std::size_t slab = 0; slab < slabs; slab += kStep) {
      const std::size_t end = std::min(slab + kStep, slabs);
      place(client, 0, kKeys, slab, end, slab * records.slab_bytes());
      client.raw->send(head(60, 0, kKeys, slab, end, slab * records.slab_bytes()));
    }
    std::uint64_t told = 0;
    while (client.raw->next().header.opcode == wire::Opcode::kTaken) ++told;
    EXPECT_GE(told, 7U);
  }
}

TEST_F(SessionArenaTest, WhatIsOfNoUseIsCountedAndNotRead) {
  start();
  ArenaClient client = connect();
  EXPECT_EQ(put(client, 0, 2, 0).header.status, Code::kOk);
  client.raw->send(head(99, 5, 2, 0, 6, ~std::uint64_t{0}));  // of no PUT: where its slabs lie is nobody's business
  const net::Received told = client.raw->next();
  ASSERT_EQ(told.header.opcode, wire::Opcode::kTaken) << "whoever has no room may wait for that alone";
  EXPECT_EQ(wire::decode<wire::Taken>(told.header, told.meta)->messages, 2U);
  EXPECT_EQ(put(client, 0, 2, 0).header.status, Code::kOk);  // there already: answered before its slabs come
  EXPECT_EQ(put(client, 2, 2, 0).header.status, Code::kOk);
  EXPECT_EQ(client.taken, 4U);
  EXPECT_EQ(rig->stat("node", "put_arena_bytes"), 2 * 2 * 3 * 4096U) << "of those that were of use";
  client.raw->send(records.put(70, client.ns, 10, 2));
  place(client, 10, 2, 0, 2, 0);
  client.raw->send(head(70, 10, 2, 0, 2, 0));
  client.raw->send(wire::frame({.request_id = 70}, wire::Cancel{}));
  EXPECT_EQ(client.next().header.status, Code::kCancelled);
  EXPECT_EQ(client.taken, 5U);
  client.raw->send(head(70, 10, 2, 2, 6, 0));
  EXPECT_EQ(put(client, 4, 2, 0).header.status, Code::kOk);
  EXPECT_EQ(client.taken, 7U);
}

TEST_F(SessionArenaTest, WhoWaitsForRoomIsToldOfLittle) {
  start();
  ArenaClient client = connect();
  client.raw->send(records.put(60, client.ns, 0, 4));
  place(client, 0, 4, 0, 1, 0);
  client.raw->send(head(60, 0, 4, 0, 1, 0));
  const net::Received told = client.raw->next();
  ASSERT_EQ(told.header.opcode, wire::Opcode::kTaken);
  EXPECT_EQ(wire::decode<wire::Taken>(told.header, told.meta)->messages, 1U);
}

// Each ends the connection at once, and leaves nothing.
TEST_F(SessionArenaTest, WhatASaneClientNeverSaysEndsTheConnection) {
  start();
  for (int wrong = 0; wrong < 8; ++wrong) {
    SCOPED_TRACE(wrong);
    ArenaClient client = connect(wrong == 0 ? wire::kFeaturePutParts : kAsks);
    if (wrong == 0) client.ns = client.raw->open(records.ns());
    const std::uint64_t size = wrong == 0 ? 0 : client.arena->size();
    client.raw->send(records.put(80, client.ns, 100, 4));
    switch (wrong) {
      case 0: client.raw->send(head(80, 100, 4, 0, 1, 0)); break;  // without an arena
      case 1: client.raw->send(head(80, 100, 4, 0, 1, size - 4095)); break;
      case 2: client.raw->send(head(80, 100, 4, 0, 12, size - 4096)); break;
      case 3: client.raw->send(head(80, 100, 4, 0, 1, ~std::uint64_t{0} - 4095)); break;
      case 4: client.raw->send(head(80, 100, 4, 1, 2, 0)); break;   // not the next slab
      case 5: client.raw->send(head(80, 100, 4, 0, 13, 0)); break;  // more than the PUT has
      case 6: client.raw->send(head(80, 100, 3, 0, 1, 0)); break;   // of another number of keys
      default: client.raw->send(wire::frame({}, wire::Taken{1})); break;
    }
    EXPECT_TRUE(client.raw->ended());
    client.raw->vanish();
    EXPECT_TRUE(nothing_held());
  }
  EXPECT_EQ(rig->stat("node", "put_arena_bytes"), 0U) << "not a byte was looked at";
}

TEST_F(SessionArenaTest, WhereStretchesOverlapEachIsWhatItWasWhenItWasCopied) {
  start();
  ArenaClient client = connect();
  client.raw->send(records.put(90, client.ns, 0, 1));
  client.raw->send(records.put(91, client.ns, 1, 1));
  place(client, 0, 1, 0, 3, 4096);
  client.raw->send(head(90, 0, 1, 0, 3, 4096));
  client.raw->send(head(91, 1, 1, 0, 3, 8192));
  EXPECT_EQ(client.next().header.request_id, 90U);
  const net::Received other = client.next();
  const auto failed = wire::decode<wire::PutReply>(other.header, other.meta);
  EXPECT_TRUE(wire::bit(failed->failed, 0));
  EXPECT_EQ(failed->why, Code::kCorrupt);
  EXPECT_EQ(got(0, 1), records.put_body(0, 1, 0, 3));
  EXPECT_TRUE(got(1, 1).empty());
}

// A slab of several slices, one in a turn of the loop.
class LargeSlabArenaTest : public SessionArenaTest {
 protected:
  LargeSlabArenaTest() { records = Records(small_namespace(1, 8 << 20)); }
  // The depot has taken a first part of it, and not all.
  void begin(ArenaClient& client) {
    place(client, 0, 1, 0, 1, 0);
    client.raw->send(records.put(5, client.ns, 0, 1));
    client.raw->send(head(5, 0, 1, 0, 1, 0));
    client.raw->peer().connection->flush();
    ASSERT_TRUE(begun());
    ASSERT_EQ(rig->stat("store", "unfinished_puts"), 1U);
  }
};

TEST_F(LargeSlabArenaTest, WhatWasCopiedIsNotReadAgain) {
  start();
  ArenaClient client = connect();
  begin(client);
  std::ranges::fill(client.arena->writable().first(1 << 20), std::byte{0x5A});
  const net::Received reply = client.next();
  EXPECT_EQ(reply.header.request_id, 5U);
  EXPECT_FALSE(wire::bit(wire::decode<wire::PutReply>(reply.header, reply.meta)->failed, 0));
  EXPECT_TRUE(got(0, 1) == records.put_body(0, 1, 0, 1));
}

TEST_F(LargeSlabArenaTest, WhatIsWrittenToBeforeItIsCopiedFailsItsOwnPut) {
  start();
  ArenaClient client = connect();
  begin(client);
  client.arena->writable()[(8 << 20) - 1] ^= std::byte{1};
  const net::Received reply = client.next();
  const auto failed = wire::decode<wire::PutReply>(reply.header, reply.meta);
  EXPECT_TRUE(wire::bit(failed->failed, 0));
  EXPECT_EQ(failed->why, Code::kCorrupt);
  EXPECT_TRUE(got(0, 1).empty()) << "nothing is published";
  EXPECT_EQ(put(client, 0, 1, 0).header.status, Code::kOk);
  EXPECT_TRUE(got(0, 1) == records.put_body(0, 1, 0, 1)) << "put again it is there";
}

TEST_F(LargeSlabArenaTest, OthersAreServedBetweenItsSlices) {
  start();
  ArenaClient client = connect();
  const auto other = rig->connect();
  begin(client);
  const std::size_t before = client.raw->peer().received.size();
  EXPECT_EQ(other->call(wire::frame({.request_id = 1}, wire::Ping{})).header.opcode, wire::Opcode::kPingReply);
  EXPECT_EQ(client.raw->peer().received.size(), before) << "while it is not done";
  EXPECT_EQ(client.next().header.status, Code::kOk);
}

TEST_F(LargeSlabArenaTest, WhatComesBehindItWaits) {
  start();
  ArenaClient client = connect();
  begin(client);
  client.raw->send(wire::frame({.request_id = 6}, wire::Ping{}));
  client.raw->send(wire::frame({.request_id = 5}, wire::Cancel{}));
  EXPECT_EQ(client.next().header.request_id, 5U) << "the PUT ends first";
  EXPECT_EQ(client.next().header.request_id, 6U);
  EXPECT_TRUE(got(0, 1) == records.put_body(0, 1, 0, 1));
}

TEST_F(LargeSlabArenaTest, ItsDeadlineEndsItBetweenSlices) {
  NodeOptions options = test_options();
  options.limits.op_limit = std::chrono::microseconds(1);
  start(options);
  ArenaClient client = connect();
  place(client, 0, 1, 0, 1, 0);
  client.raw->send(records.put(5, client.ns, 0, 1, AckLevel::kPooled, 60'000));
  client.raw->send(head(5, 0, 1, 0, 1, 0));
  EXPECT_EQ(client.next().header.status, Code::kTimeout);
  client.raw->send(wire::frame({.request_id = 6}, wire::Ping{}));
  EXPECT_EQ(client.next().header.opcode, wire::Opcode::kPingReply);
  // Where the deadline came before the slabs the depot says a moment later that it has taken them.
  for (std::uint64_t id = 7; client.taken == 0 && id < 10'000; ++id) {
    client.raw->send(wire::frame({.request_id = id}, wire::Ping{}));
    client.next();
  }
  EXPECT_EQ(client.taken, 1U);
  EXPECT_TRUE(got(0, 1).empty());
  client.raw->vanish();
  EXPECT_TRUE(nothing_held());
}

// Whatever a client was doing when it went, its arena and all else is given up.
TEST_F(LargeSlabArenaTest, AClientThatGoesAtAnyStepLeavesNothing) {
  for (int step = 0; step < 5; ++step) {
    SCOPED_TRACE(step);
    start();
    if (step == 0) {
      rig->connect(true, kAsks)->vanish();  // never looks at it
      ASSERT_TRUE(nothing_held());
      continue;
    }
    ArenaClient client = connect();
    if (step >= 2) {
      client.raw->send(records.put(5, client.ns, 0, 1));
      client.raw->peer().connection->flush();
      ASSERT_TRUE(rig->until([&] { return rig->stat("node", "unfinished_bytes") > 0; }));
    }
    if (step >= 3) {
      place(client, 0, 1, 0, 1, 0);
      wire::Buffer message = head(5, 0, 1, 0, 1, 0);
      if (step == 3) message.resize(message.size() - 1);
      client.raw->send(std::move(message));
      client.raw->peer().connection->flush();
      ASSERT_TRUE(step == 3 || begun());
    }
    client.raw->vanish();
    ASSERT_TRUE(nothing_held());
    EXPECT_TRUE(got(0, 1).empty() || step == 4);
  }
}

// Somebody writes to slabs without a pause while they are taken: what is published is a whole record or nothing.
TEST_F(SessionArenaTest, NothingTornIsPublishedWhileTheArenaIsWrittenTo) {
  records = Records(small_namespace(2, 64 << 10));
  start();
  ArenaClient client = connect();
  constexpr std::size_t kKeys = 16;
  constexpr int kRounds = 30;
  std::size_t published = 0, refused = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::size_t first = static_cast<std::size_t>(round) * kKeys;
    place(client, first, kKeys, 0, 2 * kKeys, 0);
    std::atomic<bool> stop{false};
    std::thread scribbler([&] {  // every byte becomes another one and what it was
      const MutableBytes half = client.arena->writable().first(kKeys * records.slab_bytes());
      while (!stop.load(std::memory_order_relaxed))
        for (int twice = 0; twice < 2; ++twice)
          for (std::size_t at = 0; at < half.size(); at += 4096) {
            auto* const byte = reinterpret_cast<volatile unsigned char*>(half.data() + at);
            *byte = static_cast<unsigned char>(*byte ^ 0xFF);
          }
    });
    const std::uint64_t id = client.raw->new_id();
    client.raw->send(records.put(id, client.ns, first, kKeys));
    client.raw->send(head(id, first, kKeys, 0, 2 * kKeys, 0));
    const net::Received reply = client.next();
    stop = true;
    scribbler.join();
    const auto failed = wire::decode<wire::PutReply>(reply.header, reply.meta);
    ASSERT_TRUE(failed.has_value());
    for (std::size_t key = 0; key < kKeys; ++key) {
      const bool bad = wire::bit(failed->failed, key);
      (bad ? refused : published) += 1;
      ASSERT_TRUE(bad ? got(first + key, 1).empty() : got(first + key, 1) == records.put_body(first + key, 1, 0, 2));
    }
  }
  EXPECT_EQ(published + refused, kKeys * kRounds);
}

}  // namespace
}  // namespace kvd::node
