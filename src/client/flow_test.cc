// GetFlow and PutFlow alone: messages in, places and announcements out; no sockets.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include <gtest/gtest.h>

#include "block/checksum.h"
#include "client/get_flow.h"
#include "client/put_flow.h"

namespace kvd::client {
namespace {

constexpr std::uint32_t kSlab = 100;

class FlowTest : public testing::Test {
 protected:
  FlowTest() : table_(1, -1), memory_(1'600'000) {
    for (std::size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(i * 7);
  }

  // An op of `keys` keys and `layers` layers; slab (l, k) lies at (l * keys + k) * slab_.
  Op& make(OpKind kind, std::uint16_t layers, std::size_t keys, bool stop = true, std::uint16_t layer_first = 0) {
    OpRequest request;
    request.kind = kind;
    request.layer_first = layer_first;
    request.layer_count = layers;
    request.stop_at_first_failure = stop;
    request.key_bytes.resize(keys * 4);
    request.keys = {.bytes = request.key_bytes, .key_bytes = 4};
    std::vector<std::uint64_t> layer_offset;
    std::vector<std::uint64_t> block_offset;
    for (std::size_t l = 0; l < layers; ++l) layer_offset.push_back(l * keys * slab_);
    for (std::size_t k = 0; k < keys; ++k) block_offset.push_back(k * slab_);
    const Placement placement{.region = {}, .layer_offset = layer_offset, .block_offset = block_offset, .runs = {}};
    request.layout = *Layout::make(memory_, placement, layers, keys, slab_);
    for (std::size_t k = 0; k < keys; ++k) request.seeds.push_back(1000 + k);
    return **table_.add(std::move(request));
  }

  // One GET data message over layers [first, first + count), with `failed` keys, fed in steps of `step` bytes.
  struct Message {
    std::uint16_t first = 0, count = 1;
    std::vector<std::size_t> failed{};
    bool last = false;
    std::pair<int, std::size_t> flip{-1, 0};  // layer, key whose slab arrives damaged
  };
  Status feed(GetFlow& flow, std::size_t keys, const Message& message, std::size_t step = 64) {
    std::vector<std::byte> bitmap((keys + 7) / 8);
    for (const std::size_t key : message.failed) wire::set_bit(bitmap, key);
    std::vector<std::uint64_t> checksums;
    std::vector<std::byte> payload;
    for (std::uint32_t l = message.first; l < std::uint32_t{message.first} + message.count; ++l) {
      for (std::size_t k = 0; k < keys; ++k) {
        if (wire::bit(bitmap, k)) continue;
        std::vector<std::byte> slab(kSlab, static_cast<std::byte>(l * 16 + k + 1));
        checksums.push_back(block::slab_checksum(1000 + k, l, slab));
        if (message.flip == std::pair{static_cast<int>(l), k}) slab[50] ^= std::byte{4};
        payload.insert(payload.end(), slab.begin(), slab.end());
      }
    }
    const wire::Header header{.opcode = wire::Opcode::kGetData,
                              .flags = message.last ? wire::kFlagLast : std::uint16_t{0},
                              .items = static_cast<std::uint32_t>(keys),
                              .layer_first = message.first,
                              .layer_count = message.count,
                              .body_bytes = payload.size()};
    const wire::GetData data{.failed = bitmap, .checksums = wire::U64View(std::span<const std::uint64_t>(checksums))};
    if (Status begun = flow.begin(header, data); !begun) return begun;
    for (std::size_t at = 0; at < payload.size();) {
      std::array<iovec, 3> out;
      const std::size_t count = flow.places(out);
      std::size_t n = 0;
      for (std::size_t i = 0; i < count && n < step; ++i) {
        const std::size_t piece = std::min({out[i].iov_len, step - n, payload.size() - at - n});
        std::memcpy(out[i].iov_base, payload.data() + at + n, piece);
        n += piece;
      }
      flow.landed(n);
      at += n;
    }
    return {};
  }

  OpTable table_;
  std::vector<std::byte> memory_;
  std::uint32_t slab_ = kSlab;  // of what make() makes
  GetCounters counters_;
};

TEST_F(FlowTest, LayersAreAnnouncedAsTheirLastSlabLands) {
  Op& op = make(OpKind::kGet, 3, 2);
  GetFlow flow(op, table_, counters_, true);
  ASSERT_TRUE(feed(flow, 2, {.first = 0, .count = 2}).has_value());
  EXPECT_EQ(op.events.value(), 2U);
  EXPECT_FALSE(flow.complete());
  ASSERT_TRUE(feed(flow, 2, {.first = 2, .count = 1, .last = true}).has_value());
  EXPECT_EQ(op.events.value(), 3U);
  EXPECT_TRUE(flow.complete());
  EXPECT_EQ(memory_[0], std::byte{1});
  EXPECT_EQ(memory_[5 * kSlab], std::byte{2 * 16 + 1 + 1});
}

TEST_F(FlowTest, LayerNumbersAreTheSchemas) {
  Op& op = make(OpKind::kGet, 2, 2, true, 7);
  GetFlow flow(op, table_, counters_, true);
  EXPECT_EQ(feed(flow, 2, {.first = 0}).error().code, Code::kCorrupt);
  EXPECT_TRUE(feed(flow, 2, {.first = 7, .count = 2, .last = true}).has_value());
  EXPECT_EQ(counters_.corrupt_slabs.value(), 0U);
  EXPECT_EQ(op.results.layers[1].failed_keys, 0U);
}

TEST_F(FlowTest, KeysThatFailLaterHaveNoSlabsFromThenOn) {
  Op& op = make(OpKind::kGet, 3, 4, false);
  GetFlow flow(op, table_, counters_, true);
  ASSERT_TRUE(feed(flow, 4, {.first = 0}).has_value());
  ASSERT_TRUE(feed(flow, 4, {.first = 1, .failed = {2}}).has_value());
  ASSERT_TRUE(feed(flow, 4, {.first = 2, .failed = {0, 2}, .last = true}).has_value());
  EXPECT_EQ(op.results.layers[0].failed_keys, 0U);
  EXPECT_EQ(op.results.layers[1].failed_keys, 1U);
  EXPECT_EQ(op.results.layers[2].failed_keys, 2U);
  EXPECT_EQ(op.results.layers[0].failed[0], 0);
  EXPECT_EQ(op.results.layers[1].failed[0], 0b0100);
  EXPECT_EQ(op.results.layers[2].failed[0], 0b0101);
}

TEST_F(FlowTest, ADamagedSlabIsSeenWhateverTheStepsAreInWhichItCame) {
  for (const std::size_t step : {1U, 7U, 99U, 100U, 101U, 1000U}) {
    SCOPED_TRACE(step);
    Op& op = make(OpKind::kGet, 2, 3, false);
    GetFlow flow(op, table_, counters_, true);
    ASSERT_TRUE(feed(flow, 3, {.first = 0, .count = 2, .last = true, .flip = {1, 1}}, step).has_value());
    EXPECT_EQ(op.results.layers[0].failed_keys, 0U);
    EXPECT_EQ(op.results.layers[1].failed_keys, 1U);
    EXPECT_EQ(op.results.layers[1].failed[0], 0b010);
    table_.announce_end(op);
    ASSERT_TRUE(table_.release(op.id.load()).has_value());
  }
}

TEST_F(FlowTest, WhenNoKeyIsLeftTheRestOfTheLayersIsKnown) {
  Op& op = make(OpKind::kGet, 5, 3);
  GetFlow flow(op, table_, counters_, true);
  ASSERT_TRUE(feed(flow, 3, {.first = 0}).has_value());
  ASSERT_TRUE(feed(flow, 3, {.first = 1, .failed = {0, 1, 2}, .last = true}).has_value());
  EXPECT_TRUE(flow.complete());
  EXPECT_EQ(op.events.value(), 5U);
  EXPECT_EQ(op.results.layers[4].failed_keys, 3U);
}

TEST_F(FlowTest, WhatDoesNotContinueTheGetIsRefused) {
  Op& op = make(OpKind::kGet, 3, 3);
  const auto refused = [&](std::vector<Message> messages) {
    GetFlow flow(op, table_, counters_, true);
    op.events.reset();
    Code last = Code::kOk;
    for (const Message& message : messages) {
      const Status fed = feed(flow, 3, message);
      last = fed ? Code::kOk : fed.error().code;
    }
    return last == Code::kCorrupt;
  };
  EXPECT_TRUE(refused({{.first = 1}}));                               // skips a layer
  EXPECT_TRUE(refused({{.first = 0}, {.first = 0}}));                 // repeats one
  EXPECT_TRUE(refused({{.first = 0, .count = 4}}));                   // more than asked for
  EXPECT_TRUE(refused({{.first = 0, .count = 0}}));                   // nothing
  EXPECT_TRUE(refused({{.first = 0, .last = true}}));                 // ends early
  EXPECT_TRUE(refused({{.first = 0, .failed = {1}}, {.first = 1}}));  // a failed key is back
  EXPECT_TRUE(refused({{.first = 0, .failed = {1}}, {.first = 1, .failed = {2}}}));
  EXPECT_FALSE(refused({{.first = 0, .count = 3, .last = true}}));
}

TEST_F(FlowTest, ChecksumsAndPayloadMustMatchTheLiveKeys) {
  Op& op = make(OpKind::kGet, 1, 2);
  GetFlow flow(op, table_, counters_, true);
  const std::vector<std::byte> bitmap(1);
  const std::vector<std::uint64_t> three(3);
  const std::vector<std::uint64_t> two(2);
  wire::Header header{.flags = wire::kFlagLast, .items = 2, .layer_count = 1, .body_bytes = 3 * kSlab};
  const auto data_of = [&](const std::vector<std::uint64_t>& sums) {
    return wire::GetData{.failed = bitmap, .checksums = wire::U64View(std::span<const std::uint64_t>(sums))};
  };
  EXPECT_FALSE(flow.begin(header, data_of(three)).has_value());
  EXPECT_FALSE(flow.begin(header, data_of(two)).has_value());
  header.items = 3;
  header.body_bytes = 2 * kSlab;
  EXPECT_FALSE(flow.begin(header, data_of(two)).has_value());
  header.items = 2;
  EXPECT_TRUE(flow.begin(header, data_of(two)).has_value());
}

TEST_F(FlowTest, PutSendsOnlyWhatIsReleasedAndInOrder) {
  Op& op = make(OpKind::kPut, 4, 2);
  PutFlow flow(op, false);
  EXPECT_FALSE(flow.ready());
  op.released[0] = 0b0110;
  EXPECT_FALSE(flow.ready()) << "layer 0 comes first";
  op.released[0] = 0b0111;
  ASSERT_TRUE(flow.ready());
  EXPECT_TRUE(flow.prepare(SIZE_MAX));
  const PutFlow::Message message = flow.take();
  EXPECT_EQ(message.bytes, 6 * kSlab);
  const auto header = *wire::decode_header(message.head);
  EXPECT_EQ(header.layer_first, 0);
  EXPECT_EQ(header.layer_count, 3);
  EXPECT_EQ(header.items, 2U);
  EXPECT_EQ(header.payload_bytes(), message.bytes);
  const auto data = *wire::decode<wire::PutData>(header, Bytes(message.head).subspan(wire::kHeaderBytes));
  ASSERT_EQ(data.checksums.size(), 6U);
  EXPECT_EQ(data.checksums[5], block::slab_checksum(1001, 2, Bytes(memory_).subspan(5 * kSlab, kSlab)));
  EXPECT_EQ(message.body.size(), 1U) << "the slabs lie back to back";
  EXPECT_EQ(message.body[0].data(), memory_.data());
  EXPECT_FALSE(flow.ready());
  EXPECT_FALSE(flow.all_taken());
  op.released[0] = 0b1111;
  ASSERT_TRUE(flow.ready() && flow.prepare(SIZE_MAX));
  EXPECT_EQ(wire::decode_header(flow.take().head)->layer_first, 3);
  EXPECT_TRUE(flow.all_taken());
}

TEST_F(FlowTest, PartsRunOnAcrossLayersAndEndWithWhatIsReleased) {
  constexpr std::size_t kKeys = 4000;
  constexpr std::size_t kPart = kPartBytes / kSlab;  // slabs
  static_assert(kPart > 2 * kKeys && kPart < 3 * kKeys);
  Op& op = make(OpKind::kPut, 4, kKeys);
  PutFlow flow(op, true);
  const auto expect_next = [&](std::size_t first, std::size_t slabs) {
    ASSERT_TRUE(flow.ready() && flow.prepare(SIZE_MAX));
    const PutFlow::Message message = flow.take();
    const auto header = *wire::decode_header(message.head);
    const auto data = *wire::decode<wire::PutData>(header, Bytes(message.head).subspan(wire::kHeaderBytes));
    EXPECT_EQ(header.items, kKeys);
    EXPECT_EQ(header.layer_first, first / kKeys);
    EXPECT_EQ(header.layer_count, 0);
    EXPECT_EQ(data.key_first, first % kKeys);
    ASSERT_EQ(data.checksums.size(), slabs);
    EXPECT_EQ(header.payload_bytes(), slabs * kSlab);
    for (const std::size_t i : {std::size_t{0}, slabs - 1}) {
      const auto layer = static_cast<std::uint32_t>((first + i) / kKeys);
      const Bytes slab = Bytes(memory_).subspan((first + i) * kSlab, kSlab);
      EXPECT_EQ(data.checksums[i], block::slab_checksum(1000 + (first + i) % kKeys, layer, slab));
    }
    ASSERT_EQ(message.body.size(), 1U) << "the slabs lie back to back";
    EXPECT_EQ(message.body[0].data(), memory_.data() + first * kSlab);
    EXPECT_EQ(message.body[0].size(), slabs * kSlab);
  };
  op.released[0] = 0b0001;
  expect_next(0, kKeys);
  EXPECT_FALSE(flow.ready()) << "of layer 1 nothing is released";
  op.released[0] = 0b1111;
  expect_next(kKeys, kPart);
  EXPECT_FALSE(flow.all_taken());
  expect_next(kKeys + kPart, 3 * kKeys - kPart);
  EXPECT_TRUE(flow.all_taken());
}

TEST_F(FlowTest, PartsOfSlabsOfOneByteHaveRoomForTheirChecksums) {
  slab_ = 1;
  Op& op = make(OpKind::kPut, 256, 4096);
  for (auto& word : op.released) word = ~std::uint64_t{0};
  PutFlow flow(op, true);
  std::size_t slabs = 0;
  while (!flow.all_taken()) {
    ASSERT_TRUE(flow.ready() && flow.prepare(SIZE_MAX));
    slabs += flow.take().bytes;
  }
  EXPECT_EQ(slabs, 256 * 4096u);
}

TEST_F(FlowTest, SlabsAreCopiedToTheArenaAndTheMessageSaysWhereTheyLie) {
  const auto depot = *net::Arena::create(std::uint64_t{1} << 20);
  const auto room =
      std::make_shared<ArenaRoom>(*net::Arena::map(io::PrivateFd(io::UniqueFd(::dup(depot->fd()))), depot->size()));
  Op& op = make(OpKind::kPut, 4, 2);
  op.released[0] = 0b0011;
  {
    PutFlow flow(op, false, room);
    ASSERT_TRUE(flow.ready() && flow.has_room() && flow.prepare(SIZE_MAX));
    const PutFlow::Message message = flow.take();
    EXPECT_TRUE(message.body.empty());
    EXPECT_EQ(message.bytes, 4 * kSlab);
    const auto header = *wire::decode_header(message.head);
    EXPECT_EQ(header.layer_count, 0);
    const auto data = *wire::decode<wire::PutArena>(header, Bytes(message.head).subspan(wire::kHeaderBytes));
    ASSERT_EQ(data.checksums.size(), 4U);
    EXPECT_EQ(data.key_first, 0U);
    for (std::uint32_t i = 0; i < 4; ++i) {
      const Bytes there = depot->bytes().subspan(data.offset + i * kSlab, kSlab);
      EXPECT_TRUE(std::ranges::equal(there, Bytes(memory_).subspan(i * kSlab, kSlab)));
      EXPECT_EQ(data.checksums[i], block::slab_checksum(1000 + i % 2, i / 2, there));
    }
    op.released[0] = 0b1111;
    ASSERT_TRUE(flow.has_room());  // it has begun the next message
  }
  EXPECT_TRUE(room->begin(100).has_value()) << "what its end has dropped is free";
  EXPECT_EQ(room->under_way(), 1U);
}

TEST_F(FlowTest, PartsFitIntoASmallArena) {
  const auto depot = *net::Arena::create(net::Arena::kBytesMin);
  const auto room =
      std::make_shared<ArenaRoom>(*net::Arena::map(io::PrivateFd(io::UniqueFd(::dup(depot->fd()))), depot->size()));
  Op& op = make(OpKind::kPut, 4, 1000);
  op.released[0] = 0b1111;
  PutFlow flow(op, true, room);
  std::uint64_t messages = 0;
  for (; !flow.all_taken(); ++messages) {
    ASSERT_TRUE(room->taken(messages).has_value());
    ASSERT_TRUE(flow.has_room() && flow.prepare(SIZE_MAX));
    EXPECT_LE(flow.take().bytes, room->stretch_max());
  }
  EXPECT_GE(messages, 25U);
}

TEST_F(FlowTest, WithoutRoomInTheArenaAPutWaits) {
  const auto depot = *net::Arena::create(std::uint64_t{64} << 10);
  const auto room =
      std::make_shared<ArenaRoom>(*net::Arena::map(io::PrivateFd(io::UniqueFd(::dup(depot->fd()))), depot->size()));
  Op& op = make(OpKind::kPut, 1, 2);
  op.released[0] = 1;
  PutFlow flow(op, true, room);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(room->begin(room->stretch_max()).has_value());
    room->send();
  }
  EXPECT_FALSE(flow.has_room());
  EXPECT_FALSE(flow.has_room()) << "asked again";
  ASSERT_TRUE(room->taken(1).has_value());
  ASSERT_TRUE(flow.has_room() && flow.prepare(SIZE_MAX));
  EXPECT_EQ(flow.take().bytes, 2 * kSlab);
}

TEST_F(FlowTest, PutHashesInBoundedSteps) {
  Op& op = make(OpKind::kPut, 1, 10);
  op.released[0] = 1;
  PutFlow flow(op, false);
  int steps = 1;
  while (!flow.prepare(3 * kSlab)) ++steps;
  EXPECT_EQ(steps, 4);
  EXPECT_EQ(flow.take().bytes, 10 * kSlab);
}

}  // namespace
}  // namespace kvd::client
