// Tests of PUT data that comes in parts, with everything that a client may do wrong with them: random PUTs of two
// connections side by side, of which one goes wrong in one place. What was put is there or is not, never mixed; the
// other connection notices nothing; nothing is held for either afterwards.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "node/testing/rig.h"

namespace kvd::node {
namespace {

enum class Wrong : std::uint8_t {
  kNothing,
  kLater,         // a part is left out
  kAgain,         // one comes twice
  kOverlap,       // it begins with what has come already
  kBeyond,        // it has more slabs than the PUT
  kOtherCount,    // it is of a PUT of another size
  kWholeLayer,    // a message of whole layers in the middle of one
  kMoreBytes,     // its payload is longer than its slabs
  kFewerBytes,    // shorter
  kTruncated,     // the connection ends within it
  kNotSound,      // a slab is not what it should be
  kAnothersPut,   // it names the PUT of the other connection, or none
  kBehindTheEnd,  // one more when all have come
  kCancelled,     // its PUT is cancelled before it
  kAll
};

// One connection's PUT on its way.
struct PartsClient {
  std::unique_ptr<RawClient> client;
  std::uint32_t ns = 0;
  std::uint64_t id = 0;
  std::size_t first = 0, count = 0, slab = 0;
  bool ended = false;  // the connection is at its end
};

class PutPartsTest : public ::testing::Test {
 protected:
  void begin(PartsClient& at, std::size_t first) {
    at = {};
    at.client = rig_.connect(true, wire::kFeaturePutParts);
    at.ns = at.client->open(records_.ns());
    at.id = 100 + random_.below(1000);
    at.first = first;
    at.count = 1 + random_.below(6);
    at.client->send(records_.put(at.id, at.ns, at.first, at.count));
  }
  [[nodiscard]] std::size_t slabs(const PartsClient& at) const { return at.count * records_.layers(); }
  std::size_t next_end(const PartsClient& at) {
    return at.slab + 1 + random_.below(std::min<std::size_t>(slabs(at) - at.slab, 5));
  }
  void send_part(PartsClient& at) {
    const std::size_t end = next_end(at);
    at.client->send(records_.part_head(at.id, at.first, at.count, at.slab, end),
                    records_.part_body(at.first, at.count, at.slab, end));
    at.slab = end;
  }
  void send(PartsClient& at, std::size_t from, std::size_t end) {
    at.client->send(records_.part_head(at.id, at.first, at.count, from, end),
                    records_.part_body(at.first, at.count, from, end));
  }
  // With other lengths than its slabs have.
  void send_bytes(PartsClient& at, std::size_t announced, std::size_t sent) {
    const std::size_t end = next_end(at);
    const Result<wire::Header> header =
        wire::decode_header(records_.part_head(at.id, at.first, at.count, at.slab, end));
    std::vector<std::uint64_t> checksums(end - at.slab);
    const wire::PutData data{.key_first = static_cast<std::uint32_t>(at.slab % at.count),
                             .checksums = wire::U64View(std::span<const std::uint64_t>(checksums))};
    const std::size_t bytes = (end - at.slab) * records_.slab_bytes();
    at.client->send(wire::frame({.request_id = at.id, .items = header->items, .layer_first = header->layer_first}, data,
                                bytes + announced - 100),
                    std::vector<std::byte>(bytes + sent - 100));
  }
  // Sends the part in which it goes wrong.
  void go_wrong(PartsClient& at, const PartsClient& other, Wrong wrong);
  // Whether the node has to end the connection for it.
  static bool ends(Wrong wrong, const PartsClient& at) {
    switch (wrong) {
      case Wrong::kLater:
      case Wrong::kAgain:
      case Wrong::kOverlap:
      case Wrong::kBeyond:
      case Wrong::kOtherCount:
      case Wrong::kMoreBytes:
      case Wrong::kFewerBytes: return true;
      case Wrong::kWholeLayer: return at.slab % at.count != 0;
      default: return false;
    }
  }
  std::vector<bool> there(std::size_t first, std::size_t count);
  void round(Wrong wrong);

  const Records records_{small_namespace(3, 512)};
  Rig rig_;
  Random random_{1};
  std::uint64_t keys_ = 0;
};

void PutPartsTest::go_wrong(PartsClient& at, const PartsClient& other, Wrong wrong) {
  const std::size_t all = slabs(at);
  switch (wrong) {
    case Wrong::kLater: return send(at, at.slab + 1, at.slab + 2);
    case Wrong::kAgain: return send(at, 0, at.slab);
    case Wrong::kOverlap: return send(at, at.slab - 1, at.slab + 1);
    case Wrong::kBeyond: return send(at, at.slab, all + 1 + random_.below(3));
    case Wrong::kOtherCount: {
      at.client->send(records_.part_head(at.id, at.first, at.count + 1, at.slab, at.slab + 1),
                      records_.part_body(at.first, at.count + 1, at.slab, at.slab + 1));
      return;
    }
    case Wrong::kWholeLayer: {
      const auto layer = static_cast<std::uint32_t>(at.slab / at.count);
      at.client->send(records_.put_head(at.id, at.first, at.count, layer, layer + 1),
                      records_.put_body(at.first, at.count, layer, layer + 1));
      at.slab += at.count;
      return;
    }
    case Wrong::kMoreBytes: return send_bytes(at, 101, 101);
    case Wrong::kFewerBytes: return send_bytes(at, 99, 99);
    case Wrong::kTruncated: {
      const auto in = rig_.stat("net", "bytes_in");
      send_bytes(at, 100, 50);
      ASSERT_TRUE(rig_.until([&] { return rig_.stat("net", "bytes_in") > in; }));
      at.client->vanish();
      at.ended = true;
      return;
    }
    case Wrong::kNotSound: {
      const std::size_t end = next_end(at);
      auto body = records_.part_body(at.first, at.count, at.slab, end);
      body[random_.below(records_.slab_bytes())] ^= std::byte{4};  // of its first slab
      at.client->send(records_.part_head(at.id, at.first, at.count, at.slab, end), body);
      at.slab = end;
      return;
    }
    case Wrong::kAnothersPut: {
      const std::uint64_t id = other.id == at.id ? 1 : other.id;
      at.client->send(records_.part_head(id, at.first, at.count, at.slab, at.slab + 1),
                      records_.part_body(at.first, at.count, at.slab, at.slab + 1));
      return;
    }
    case Wrong::kCancelled: return at.client->send(wire::frame({.request_id = at.id}, wire::Cancel{}));
    default: return;
  }
}

// Which keys are, each with the bytes that it must have.
std::vector<bool> PutPartsTest::there(std::size_t first, std::size_t count) {
  const auto client = rig_.connect();
  const std::uint32_t ns = client->open(records_.ns());
  std::vector<bool> found;
  for (std::size_t key = first; key < first + count; ++key) {
    client->send(Records::get(client->new_id(), ns, key, 1));
    std::vector<std::byte> payload;
    for (bool last = false; !last;) {
      const net::Received reply = client->next();
      last = reply.header.last();
      payload.insert(payload.end(), reply.payload.begin(), reply.payload.end());
    }
    found.push_back(!payload.empty());
    if (found.back()) {
      EXPECT_EQ(payload, records_.put_body(key, 1, 0, records_.layers())) << "key " << key;
    }
  }
  return found;
}

// Two PUTs side by side; the first one goes wrong somewhere behind its first part.
void PutPartsTest::round(Wrong wrong) {
  std::array<PartsClient, 2> both;
  begin(both[0], keys_);
  begin(both[1], keys_ + 10);
  keys_ += 20;
  PartsClient& bad = both[0];
  PartsClient& good = both[1];
  send_part(bad);
  while (wrong != Wrong::kBehindTheEnd && bad.slab < slabs(bad) - 1 && random_.below(2) == 0) {
    const std::size_t end = std::min(next_end(bad), slabs(bad) - 1);
    send(bad, bad.slab, end);
    bad.slab = end;
    if (good.slab < slabs(good)) send_part(good);
  }
  if (wrong != Wrong::kBehindTheEnd && bad.slab >= slabs(bad)) return;  // came at once: nothing is left to do wrong
  const std::size_t at = bad.slab;
  const bool ends_connection = ends(wrong, bad);
  go_wrong(bad, good, wrong);
  if (ends_connection) {
    EXPECT_TRUE(bad.client->ended()) << "slab " << at;
    bad.ended = true;
  }
  while (!bad.ended && bad.slab < slabs(bad)) send_part(bad);
  while (good.slab < slabs(good)) send_part(good);
  if (wrong == Wrong::kBehindTheEnd) send(bad, slabs(bad) - 1, slabs(bad));
  if (!bad.ended) {
    const net::Received reply = bad.client->next();
    EXPECT_EQ(reply.header.opcode, wire::Opcode::kPutReply);
    EXPECT_EQ(reply.header.status, wrong == Wrong::kCancelled ? Code::kCancelled : Code::kOk);
    const auto ping = bad.client->call(wire::frame({.request_id = 7}, wire::Ping{}));
    EXPECT_EQ(ping.header.opcode, wire::Opcode::kPingReply) << "the connection goes on";
  }
  const net::Received reply = good.client->next();
  EXPECT_EQ(wire::count_bits(wire::decode<wire::PutReply>(reply.header, reply.meta)->failed), 0U);
  EXPECT_EQ(there(good.first, good.count), std::vector<bool>(good.count, true));

  std::vector<bool> expected(bad.count, !bad.ended && wrong != Wrong::kCancelled);
  if (wrong == Wrong::kNotSound) expected[at % bad.count] = false;
  EXPECT_EQ(there(bad.first, bad.count), expected) << "complete or absent";
  both = {};
  EXPECT_TRUE(rig_.until([&] {
    return rig_.stat("node", "ops") + rig_.stat("node", "unfinished_bytes") + rig_.stat("store", "unfinished_puts") +
               rig_.stat("node", "op_keys") ==
           0;
  }));
}

TEST_F(PutPartsTest, WhateverGoesWrongWithAPartItsPutIsThereOrNotAndNobodyElseNotices) {
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    for (std::uint8_t wrong = 0; wrong < static_cast<std::uint8_t>(Wrong::kAll); ++wrong) {
      SCOPED_TRACE(testing::Message() << "wrong " << int{wrong} << ", seed " << seed);
      random_ = Random(seed * 100 + wrong);
      round(static_cast<Wrong>(wrong));
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace kvd::node
