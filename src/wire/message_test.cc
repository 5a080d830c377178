#include "wire/message.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

#include "wire/testing/messages.h"

namespace kvd::wire {
namespace {

// n native keys with different bytes.
Buffer some_keys(std::size_t n, std::size_t key_bytes = 16) {
  Buffer bytes(n * key_bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  return bytes;
}

template <class M>
Code decode_error(const Header& header, Bytes meta) {
  const auto decoded = decode<M>(header, meta);
  return decoded ? Code::kOk : decoded.error().code;
}

// Every shorter and every longer structure is malformed, whatever the message.
template <class M>
void expect_exact_length(const Buffer& bytes) {
  const Parsed p = parse(bytes);
  EXPECT_EQ(decode_error<M>(p.header, p.meta), Code::kOk);
  for (std::size_t n = 0; n < p.meta.size(); ++n) {
    EXPECT_EQ(decode_error<M>(p.header, p.meta.first(n)), Code::kCorrupt) << "cut at " << n;
  }
  Buffer longer(p.meta.begin(), p.meta.end());
  longer.push_back(std::byte{0});
  EXPECT_EQ(decode_error<M>(p.header, longer), Code::kCorrupt);
}

// The worked examples of docs/formats/wire.md, made by an independent encoder.
TEST(WireFormat, HelloHasItsGoldenBytes) {
  const Buffer golden = from_hex(
      "4b 56 44 31 01 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 16 00 00 00 00 00 00 00 "
      "16 00 00 00 00 00 00 00 00 00 00 00 38 84 ea bf 00 00 00 00 00 00 00 00 00 00 00 00 96 dd 43 31 "
      "01 00 01 00 00 00 00 00 00 00 00 00 08 00 65 6e 67 69 6e 65 2d 61");
  EXPECT_EQ(frame({}, Hello{.name = "engine-a"}), golden);
}

TEST(WireFormat, GetHasItsGoldenBytes) {
  const Buffer golden = from_hex(
      "4b 56 44 31 01 04 00 00 88 77 66 55 44 33 22 11 02 00 00 00 03 00 02 00 2c 00 00 00 00 00 00 00 "
      "2c 00 00 00 fa 00 00 00 00 00 00 00 94 65 4c dd 00 00 00 00 00 00 00 00 00 00 00 00 8c e7 fe fe "
      "05 00 00 00 01 00 00 00 10 00 01 01 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f "
      "0f 0e 0d 0c 0b 0a 09 08 07 06 05 04 03 02 01 00");
  Buffer keys(32);
  for (std::size_t i = 0; i < 16; ++i) keys[i] = keys[31 - i] = static_cast<std::byte>(i);
  const Get get{.ns = 5, .shard = 1, .group = 0, .stop_at_first_failure = true, .keys = {keys, 16, true}};
  const Header header{.request_id = 0x1122334455667788, .layer_first = 3, .layer_count = 2, .deadline_ms = 250};
  EXPECT_EQ(frame(header, get), golden);
}

TEST(WireFormat, GetViewAndReleaseHaveTheirGoldenBytes) {
  const Buffer golden = from_hex(
      "4b 56 44 31 01 8f 01 00 88 77 66 55 44 33 22 11 02 00 00 00 03 00 02 00 25 00 00 00 00 00 00 00 "
      "25 00 00 00 00 00 00 00 00 00 00 00 ce 0e e7 1e 00 00 00 00 00 00 00 00 00 00 00 00 e7 14 d1 09 "
      "09 00 00 00 00 00 00 00 00 20 00 00 02 00 20 01 00 00 00 00 00 08 07 06 05 04 03 02 01 "
      "18 17 16 15 14 13 12 11");
  const std::array failed{std::byte{0x02}};
  const std::array<std::uint64_t, 1> offsets{0x12000};
  const std::array<std::uint64_t, 2> checksums{0x0102030405060708, 0x1112131415161718};
  const GetView view{
      .view = 9, .slab_stride = 8192, .failed = failed, .offsets = U64View(offsets), .checksums = U64View(checksums)};
  const Header header{
      .flags = kFlagLast, .request_id = 0x1122334455667788, .items = 2, .layer_first = 3, .layer_count = 2};
  EXPECT_EQ(frame(header, view), golden);
  const Buffer golden_release = from_hex(
      "4b 56 44 31 01 0e 00 00 00 00 00 00 00 00 00 f0 02 00 00 00 00 00 00 00 10 00 00 00 00 00 00 00 "
      "10 00 00 00 00 00 00 00 00 00 00 00 a7 46 da e9 00 00 00 00 00 00 00 00 00 00 00 00 e2 16 db fe "
      "09 00 00 00 00 00 00 00 0a 00 00 00 00 00 00 00");
  const std::array<std::uint64_t, 2> views{9, 10};
  EXPECT_EQ(frame({.request_id = 0xF000000000000000}, Release{U64View(views)}), golden_release);
}

TEST(WireFormat, APartOfAPutHasItsGoldenBytes) {
  const Buffer golden = from_hex(
      "4b 56 44 31 01 06 00 00 88 77 66 55 44 33 22 11 03 00 00 00 04 00 00 00 14 20 00 00 00 00 00 00 "
      "14 00 00 00 00 00 00 00 00 00 00 00 77 da 0a 6a 00 00 00 00 00 00 00 00 00 00 00 00 df 84 5c 2e "
      "01 00 00 00 08 07 06 05 04 03 02 01 18 17 16 15 14 13 12 11");
  const std::array<std::uint64_t, 2> checksums{0x0102030405060708, 0x1112131415161718};
  const Header header{.request_id = 0x1122334455667788, .items = 3, .layer_first = 4};
  EXPECT_EQ(frame(header, PutData{.key_first = 1, .checksums = U64View(checksums)}, 8192), golden);
}

TEST(WireFormat, APutThroughTheArenaHasItsGoldenBytes) {
  const Buffer golden = from_hex(
      "4b 56 44 31 01 0f 00 00 88 77 66 55 44 33 22 11 03 00 00 00 04 00 00 00 1c 00 00 00 00 00 00 00 "
      "1c 00 00 00 00 00 00 00 00 00 00 00 75 04 6e 50 00 00 00 00 00 00 00 00 00 00 00 00 88 0b 41 8c "
      "01 00 00 00 00 00 03 00 00 00 00 00 08 07 06 05 04 03 02 01 18 17 16 15 14 13 12 11");
  const std::array<std::uint64_t, 2> checksums{0x0102030405060708, 0x1112131415161718};
  const Header header{.request_id = 0x1122334455667788, .items = 3, .layer_first = 4};
  EXPECT_EQ(frame(header, PutArena{.key_first = 1, .offset = 0x30000, .checksums = U64View(checksums)}), golden);
  const Buffer taken = from_hex(
      "4b 56 44 31 01 94 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 08 00 00 00 00 00 00 00 "
      "08 00 00 00 00 00 00 00 00 00 00 00 8e b7 71 76 00 00 00 00 00 00 00 00 00 00 00 00 0f 07 ee ce "
      "07 00 00 00 00 00 00 00");
  EXPECT_EQ(frame({}, Taken{.messages = 7}), taken);
}

TEST(WireMessage, AuthHasItsGoldenMetaAndRoundTrips) {
  const Buffer bytes = frame({}, Auth{"kvd_abc"});
  EXPECT_EQ(Buffer(bytes.begin() + kHeaderBytes, bytes.end()), from_hex("07 00 6b 76 64 5f 61 62 63"));
  const Parsed p = parse(bytes);
  const auto m = decode<Auth>(p.header, p.meta);
  ASSERT_TRUE(m.has_value());
  EXPECT_EQ(m->token, "kvd_abc");
  EXPECT_EQ(p.header.opcode, Opcode::kAuth);
}

TEST(WireMessage, TheAnswerToATokenMaySayWhatIsAgreedOn) {
  const Buffer bare = frame({}, AuthReply{});
  EXPECT_EQ(bare.size(), kHeaderBytes);
  const Buffer says = frame({}, AuthReply{.features = kFeatureRings | kFeatureArena});
  EXPECT_EQ(Buffer(says.begin() + kHeaderBytes, says.end()), from_hex("24 00 00 00 00 00 00 00"));
  EXPECT_FALSE(decode<AuthReply>(parse(bare).header, {})->features.has_value());
  const Parsed p = parse(says);
  EXPECT_EQ(decode<AuthReply>(p.header, p.meta)->features, kFeatureRings | kFeatureArena);
  for (const std::size_t bytes : std::initializer_list<std::size_t>{1, 7, 9}) {
    EXPECT_FALSE(decode<AuthReply>({.opcode = Opcode::kAuthReply}, Buffer(bytes)).has_value()) << bytes;
  }
}

TEST(WireMessage, ATokenLongerThanAnyIsMalformed) {
  const auto decoded = [](std::size_t token_bytes, std::size_t left_over) {
    Buffer meta(2 + token_bytes + left_over);
    save(meta.data(), static_cast<std::uint16_t>(token_bytes));
    return decode<Auth>({.opcode = Opcode::kAuth}, meta).has_value();
  };
  EXPECT_TRUE(decoded(0, 0));
  EXPECT_TRUE(decoded(kTokenBytesMax, 0));
  EXPECT_FALSE(decoded(kTokenBytesMax + 1, 0));
  EXPECT_FALSE(decoded(7, 1));
}

TEST(WireMessage, HelloRoundTrips) {
  const Buffer bytes = frame({}, Hello{.version_min = 1, .version_max = 3, .features = 9, .name = "engine"});
  const Parsed p = parse(bytes);
  const auto m = decode<Hello>(p.header, p.meta);
  ASSERT_TRUE(m.has_value());
  EXPECT_EQ(m->version_max, 3);
  EXPECT_EQ(m->features, 9U);
  EXPECT_EQ(m->name, "engine");
  expect_exact_length<Hello>(bytes);
  const Buffer empty_range = frame({}, Hello{.version_min = 2, .version_max = 1});
  EXPECT_EQ(decode_error<Hello>(p.header, Bytes(empty_range).subspan(kHeaderBytes)), Code::kCorrupt);
}

TEST(WireMessage, HelloReplyRoundTrips) {
  HelloReply reply{.features = 4, .boot_epoch = 77, .keys_max = 4096, .ops_max = 256, .server = "kvdepot 1"};
  reply.store_uuid[15] = std::byte{0xEE};
  const Buffer bytes = frame({.flags = kFlagLast}, reply);
  const Parsed p = parse(bytes);
  const auto m = decode<HelloReply>(p.header, p.meta);
  ASSERT_TRUE(m.has_value());
  EXPECT_EQ(m->store_uuid, reply.store_uuid);
  EXPECT_EQ(m->boot_epoch, 77U);
  EXPECT_EQ(m->keys_max, 4096U);
  EXPECT_EQ(m->ops_max, 256U);
  EXPECT_EQ(m->server, "kvdepot 1");
  expect_exact_length<HelloReply>(bytes);
}

TEST(WireMessage, OpenRoundTripsAWholeNamespace) {
  Namespace ns{.tenant = "default", .fingerprint = std::string("\0\1bytes", 7), .groups = {}};
  ns.groups.push_back({.group = 0, .layers = 30, .slab_bytes = 98304, .block_tokens = 128, .order = "LBHNC"});
  ns.groups.push_back({.group = 4,
                       .layers = 2,
                       .slab_bytes = 512,
                       .parts = 1,
                       .block_tokens = 16,
                       .rule = HitRule::kTrailing,
                       .hit_blocks = 8,
                       .order = ""});
  const Buffer bytes = frame({.request_id = 1}, Open{ns});
  const Parsed p = parse(bytes);
  const auto m = decode<Open>(p.header, p.meta);
  ASSERT_TRUE(m.has_value());
  EXPECT_EQ(m->ns.tenant, ns.tenant);
  EXPECT_EQ(m->ns.fingerprint, ns.fingerprint);
  EXPECT_EQ(m->ns.groups, ns.groups);
  expect_exact_length<Open>(bytes);
}

TEST(WireMessage, OpenRefusesTooManyGroupsWithoutReadingThem) {
  const Parsed p = parse(frame({.request_id = 1}, Open{.ns = {.fingerprint = "f", .groups = {}}}));
  EXPECT_EQ(decode_error<Open>(p.header, p.meta), Code::kInvalid);
  Namespace many{.fingerprint = "f", .groups = {}};
  many.groups.resize(kGroupsMax + 1);
  const Buffer bytes = frame({.request_id = 1}, Open{many});
  EXPECT_EQ(decode_error<Open>(p.header, Bytes(bytes).subspan(kHeaderBytes)), Code::kInvalid);
}

TEST(WireMessage, MatchRoundTrips) {
  const Buffer keys = some_keys(6, 32);
  const Match match{.ns = 3,
                    .promote = true,
                    .lease_ms = 2000,
                    .blocks = 3,
                    .shards = {0, 5},
                    .groups = {1, 2},
                    .keys = {keys, 32, false}};
  const Buffer bytes = frame({.request_id = 2, .deadline_ms = 100}, match);
  const Parsed p = parse(bytes);
  EXPECT_EQ(p.header.items, 6U);
  const auto m = decode<Match>(p.header, p.meta);
  ASSERT_TRUE(m.has_value());
  EXPECT_EQ(m->blocks, 3U);
  EXPECT_EQ(m->shards, match.shards);
  EXPECT_EQ(m->groups, match.groups);
  EXPECT_TRUE(m->promote);
  EXPECT_EQ(m->lease_ms, 2000U);
  EXPECT_FALSE(m->keys.native);
  EXPECT_EQ(m->keys.count(), 6U);
  EXPECT_TRUE(std::ranges::equal(m->keys.bytes, keys));
  expect_exact_length<Match>(bytes);
}

TEST(WireMessage, MatchBeyondItsLimitsIsInvalid) {
  const auto error_of = [](std::size_t shards, std::size_t groups, std::uint32_t blocks, std::uint16_t key_bytes) {
    const Buffer keys = some_keys(groups * blocks, key_bytes);
    Match match{.blocks = blocks, .keys = {keys, key_bytes, false}};
    match.shards.resize(shards);
    match.groups.resize(groups);
    const Buffer bytes = frame({.request_id = 2}, match);
    const Parsed p = parse(bytes);
    return decode_error<Match>(p.header, p.meta);
  };
  EXPECT_EQ(error_of(64, 16, 4096, 16), Code::kOk);
  EXPECT_EQ(error_of(65, 1, 1, 16), Code::kInvalid);
  EXPECT_EQ(error_of(0, 1, 1, 16), Code::kInvalid);
  EXPECT_EQ(error_of(1, 17, 1, 16), Code::kInvalid);
  EXPECT_EQ(error_of(1, 0, 0, 16), Code::kInvalid);
  EXPECT_EQ(error_of(1, 1, 4097, 16), Code::kInvalid);
  EXPECT_EQ(error_of(1, 1, 0, 16), Code::kInvalid);
  EXPECT_EQ(error_of(1, 1, 1, 256), Code::kOk);
  EXPECT_EQ(error_of(1, 1, 1, 257), Code::kInvalid);
}

TEST(WireMessage, MatchReplyRoundTrips) {
  const std::array tiers{std::byte{1}, std::byte{2}, std::byte{0}};
  const Buffer bytes = frame({.request_id = 2}, MatchReply{.prefix_blocks = 2, .lease = 99, .tiers = tiers});
  const Parsed p = parse(bytes);
  EXPECT_EQ(p.header.items, 3U);
  const auto m = decode<MatchReply>(p.header, p.meta);
  ASSERT_TRUE(m.has_value());
  EXPECT_EQ(m->prefix_blocks, 2U);
  EXPECT_EQ(m->lease, 99U);
  EXPECT_TRUE(std::ranges::equal(m->tiers, tiers));
  expect_exact_length<MatchReply>(bytes);
}

TEST(WireMessage, MatchReplyBeyondItsBlocksIsMalformed) {
  const std::array tiers{std::byte{1}, std::byte{2}};
  const Parsed longer = parse(frame({}, MatchReply{.prefix_blocks = 3, .tiers = tiers}));
  EXPECT_EQ(decode_error<MatchReply>(longer.header, longer.meta), Code::kCorrupt);
  const std::array unknown{std::byte{3}};
  const Parsed odd = parse(frame({}, MatchReply{.prefix_blocks = 1, .tiers = unknown}));
  EXPECT_EQ(decode_error<MatchReply>(odd.header, odd.meta), Code::kCorrupt);
}

TEST(WireMessage, GetRoundTrips) {
  const Buffer keys = some_keys(54);
  const Get get{.ns = 1, .shard = 2, .group = 3, .stop_at_first_failure = true, .keys = {keys, 16, true}};
  const Buffer bytes = frame({.request_id = 4, .layer_first = 2, .layer_count = 5}, get);
  const Parsed p = parse(bytes);
  const auto m = decode<Get>(p.header, p.meta);
  ASSERT_TRUE(m.has_value());
  EXPECT_EQ(p.header.layer_first, 2);
  EXPECT_EQ(p.header.items, 54U);
  EXPECT_EQ(m->shard, 2);
  EXPECT_EQ(m->group, 3);
  EXPECT_TRUE(m->stop_at_first_failure);
  EXPECT_FALSE(m->keep);
  EXPECT_TRUE(m->keys.native);
  EXPECT_EQ(m->keys.count(), 54U);
  expect_exact_length<Get>(bytes);
  const Parsed kept = parse(frame({.request_id = 4}, Get{.keep = true, .keys = {keys, 16, true}}));
  EXPECT_TRUE(decode<Get>(kept.header, kept.meta)->keep);
  EXPECT_FALSE(decode<Get>(kept.header, kept.meta)->stop_at_first_failure);
}

TEST(WireMessage, CheckRoundTrips) {
  const std::vector<std::byte> bytes(3 * 20, std::byte{7});
  const Check check{.ns = 9, .shard = 2, .group = 1, .keys = {.bytes = bytes, .key_bytes = 20, .native = false}};
  const Buffer message = frame({.request_id = 1}, check);
  const Parsed p = parse(message);
  const auto got = decode<Check>(p.header, p.meta);
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(p.header.items, 3U);
  EXPECT_EQ(got->ns, 9U);
  EXPECT_EQ(got->shard, 2);
  EXPECT_EQ(got->group, 1);
  EXPECT_EQ(got->keys.count(), 3U);
  EXPECT_FALSE(got->keys.native);
  EXPECT_TRUE(std::ranges::equal(got->keys.bytes, bytes));
  expect_exact_length<Check>(message);
}

TEST(WireMessage, NativeKeysHaveSixteenBytes) {
  const Buffer keys = some_keys(2, 8);
  const Parsed p = parse(frame({.request_id = 4}, Get{.keys = {keys, 8, true}}));
  EXPECT_EQ(decode_error<Get>(p.header, p.meta), Code::kCorrupt);
}

TEST(WireMessage, GetDataCarriesChecksumsOfTheKeysThatHaveNotFailed) {
  std::array<std::byte, 2> failed{};
  set_bit(failed, 1);
  set_bit(failed, 9);
  EXPECT_TRUE(bit(failed, 9));
  EXPECT_FALSE(bit(failed, 8));
  EXPECT_EQ(count_bits(failed), 2U);
  std::vector<std::uint64_t> checksums(3 * 8);
  std::iota(checksums.begin(), checksums.end(), 100);
  const GetData data{.failed = failed, .checksums = U64View(checksums)};
  const Header header{.request_id = 5, .items = 10, .layer_first = 4, .layer_count = 3};
  const Buffer bytes = frame(header, data, std::uint64_t{4096} * 24);
  const Parsed p = parse(bytes);
  const auto m = decode<GetData>(p.header, p.meta);
  ASSERT_TRUE(m.has_value());
  EXPECT_EQ(m->checksums.size(), 24U);
  EXPECT_EQ(m->checksums[23], 123U);
  EXPECT_TRUE(check_get_payload(p.header, *m, 4096).has_value());
  EXPECT_FALSE(check_get_payload(p.header, *m, 4095).has_value());
  expect_exact_length<GetData>(bytes);
}

TEST(WireMessage, GetViewRoundTripsWithTheChecksumsOfLivingKeysOnly) {
  std::array<std::byte, 2> failed{};
  set_bit(failed, 9);
  std::vector<std::uint64_t> offsets(9);
  std::iota(offsets.begin(), offsets.end(), 4096);
  std::vector<std::uint64_t> checksums(2 * 9);
  std::iota(checksums.begin(), checksums.end(), 100);
  const GetView view{
      .view = 7, .slab_stride = 8192, .failed = failed, .offsets = U64View(offsets), .checksums = U64View(checksums)};
  const Header header{.flags = kFlagLast, .request_id = 5, .items = 10, .layer_first = 4, .layer_count = 2};
  const Buffer bytes = frame(header, view);
  const Parsed p = parse(bytes);
  const auto m = decode<GetView>(p.header, p.meta);
  ASSERT_TRUE(m.has_value());
  EXPECT_EQ(m->view, 7U);
  EXPECT_EQ(m->slab_stride, 8192U);
  EXPECT_EQ(m->offsets[8], 4104U);
  EXPECT_EQ(m->checksums[17], 117U);
  expect_exact_length<GetView>(bytes);
}

TEST(WireMessage, AViewOfNothingIsMalformed) {
  const std::array failed{std::byte{0x03}};
  const std::array alive{std::byte{0}};
  const std::array<std::uint64_t, 2> numbers{};
  const Header header{.request_id = 5, .items = 2, .layer_count = 1};
  const auto error_of = [&](const Header& with, std::uint64_t view, Bytes bitmap, std::size_t keys) {
    const U64View some{std::span<const std::uint64_t>(numbers).first(keys)};
    const Parsed p = parse(frame(with, GetView{view, 4096, bitmap, some, some}));
    return decode_error<GetView>(p.header, p.meta);
  };
  EXPECT_EQ(error_of(header, 1, alive, 2), Code::kOk);
  EXPECT_EQ(error_of(header, 0, alive, 2), Code::kCorrupt) << "a view without a number";
  EXPECT_EQ(error_of(header, 1, failed, 0), Code::kCorrupt) << "every key has failed";
  EXPECT_EQ(error_of({.request_id = 5, .items = 2}, 1, alive, 2), Code::kCorrupt) << "no layer";
  const Parsed none = parse(frame({}, Memory{.bytes = 0}));
  EXPECT_EQ(decode_error<Memory>(none.header, none.meta), Code::kCorrupt);
  const Parsed no_rings = parse(frame({}, Rings{.bytes = 0}));
  EXPECT_EQ(decode_error<Rings>(no_rings.header, no_rings.meta), Code::kCorrupt);
  const Parsed empty = parse(frame({.request_id = 1}, Release{}));
  EXPECT_EQ(decode_error<Release>(empty.header, empty.meta), Code::kCorrupt);
}

TEST(WireMessage, PlacesOfAViewLieInTheMemory) {
  const auto fits = [](std::uint64_t offset, std::uint32_t stride, std::uint16_t layers, std::uint64_t memory) {
    const std::array offsets{std::uint64_t{0}, offset};
    const GetView view{.view = 1, .slab_stride = stride, .failed = {}, .offsets = U64View(offsets), .checksums = {}};
    return check_view_places({.layer_count = layers}, view, 4000, memory).has_value();
  };
  constexpr std::uint64_t kMemory = 1 << 20;
  EXPECT_TRUE(fits(kMemory - 4000, 4096, 1, kMemory));
  EXPECT_FALSE(fits(kMemory - 3999, 4096, 1, kMemory));
  EXPECT_TRUE(fits(kMemory - 4000 - 2 * 4096, 4096, 3, kMemory));
  EXPECT_FALSE(fits(kMemory - 4000 - 2 * 4096 + 1, 4096, 3, kMemory));
  EXPECT_FALSE(fits(~std::uint64_t{0} - 100, 4096, 1, kMemory)) << "a sum that wraps";
  EXPECT_FALSE(fits(0, ~std::uint32_t{0}, 400, kMemory));
  EXPECT_FALSE(fits(0, 3999, 2, kMemory)) << "slabs that overlap";
  EXPECT_FALSE(fits(0, 4096, 1, 3999));
}

TEST(WireMessage, BitsBeyondTheLastKeyAreMalformed) {
  const std::array failed{std::byte{0x08}};
  const Parsed p = parse(frame({.request_id = 5, .items = 3}, PutReply{failed}));
  EXPECT_EQ(decode_error<PutReply>(p.header, p.meta), Code::kCorrupt);
  const Parsed data = parse(frame({.request_id = 5, .items = 3}, GetData{.failed = failed, .checksums = {}}));
  EXPECT_EQ(decode_error<GetData>(data.header, data.meta), Code::kCorrupt);
  const std::array<std::uint64_t, 2> some{};
  const GetView odd{
      .view = 1, .slab_stride = 1, .failed = failed, .offsets = U64View(some), .checksums = U64View(some)};
  const Parsed view = parse(frame({.request_id = 5, .items = 3, .layer_count = 1}, odd));
  EXPECT_EQ(decode_error<GetView>(view.header, view.meta), Code::kCorrupt);
}

TEST(WireMessage, PutAndItsDataRoundTrip) {
  const Buffer keys = some_keys(2, 20);
  const Buffer bytes = frame({.request_id = 6},
                             Put{.ns = 9, .shard = 1, .group = 2, .ack = AckLevel::kSynced, .keys = {keys, 20, false}});
  const Parsed p = parse(bytes);
  const auto m = decode<Put>(p.header, p.meta);
  ASSERT_TRUE(m.has_value());
  EXPECT_EQ(m->ns, 9U);
  EXPECT_EQ(m->ack, AckLevel::kSynced);
  EXPECT_EQ(m->keys.count(), 2U);
  expect_exact_length<Put>(bytes);

  const std::array<std::uint64_t, 4> checksums{1, 2, 3, 4};
  const Header header{.request_id = 6, .items = 2, .layer_first = 0, .layer_count = 2};
  const Buffer data = frame(header, PutData{.checksums = U64View(checksums)}, 400);
  const Parsed d = parse(data);
  const auto decoded = decode<PutData>(d.header, d.meta);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->checksums[3], 4U);
  EXPECT_FALSE(decoded->key_first.has_value());
  EXPECT_TRUE(check_put_payload(d.header, *decoded, 100).has_value());
  EXPECT_FALSE(check_put_payload(d.header, *decoded, 101).has_value());
  expect_exact_length<PutData>(data);
}

TEST(WireMessage, APartOfAPutSaysWhichKeyItBeginsWith) {
  const std::array<std::uint64_t, 3> checksums{1, 2, 3};
  const Header header{.request_id = 6, .items = 2, .layer_first = 4};
  const auto part = [&](std::uint32_t key, std::size_t slabs) {
    return parse(
        frame(header, PutData{.key_first = key, .checksums = U64View(std::span(checksums).first(slabs))}, 100 * slabs));
  };
  const Parsed p = part(1, 3);
  const auto decoded = decode<PutData>(p.header, p.meta);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->key_first, 1U);
  EXPECT_EQ(decoded->checksums.size(), 3U);
  EXPECT_EQ(decoded->checksums[2], 3U);
  EXPECT_TRUE(check_put_payload(p.header, *decoded, 100).has_value());
  EXPECT_FALSE(check_put_payload(p.header, *decoded, 99).has_value());
  const auto code = [&](std::uint32_t key, std::size_t slabs, std::size_t cut) {
    const Parsed q = part(key, slabs);
    return decode_error<PutData>(q.header, q.meta.first(q.meta.size() - cut));
  };
  EXPECT_EQ(code(0, 1, 0), Code::kOk);
  EXPECT_EQ(code(2, 1, 0), Code::kCorrupt) << "there are two keys";
  EXPECT_EQ(code(0, 0, 0), Code::kCorrupt) << "of nothing";
  EXPECT_EQ(code(0, 0, 1), Code::kCorrupt);
  EXPECT_EQ(code(0, 2, 3), Code::kCorrupt) << "in the middle of a checksum";
}

TEST(WireMessage, APutThroughTheArenaSaysWhereItsSlabsLie) {
  const std::array<std::uint64_t, 3> checksums{1, 2, 3};
  const auto put = [&](Header header, std::uint32_t key, std::size_t slabs) {
    return parse(frame(
        header, PutArena{.key_first = key, .offset = 4096, .checksums = U64View(std::span(checksums).first(slabs))}));
  };
  const Header header{.request_id = 6, .items = 2, .layer_first = 4};
  const Parsed p = put(header, 1, 3);
  const auto decoded = decode<PutArena>(p.header, p.meta);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->key_first, 1U);
  EXPECT_EQ(decoded->offset, 4096U);
  EXPECT_EQ(decoded->checksums.size(), 3U);
  const auto code = [](const Parsed& q, std::size_t cut) {
    return decode_error<PutArena>(q.header, q.meta.first(q.meta.size() - cut));
  };
  EXPECT_EQ(code(put(header, 0, 1), 0), Code::kOk);
  EXPECT_EQ(code(put(header, 2, 1), 0), Code::kCorrupt) << "there are two keys";
  EXPECT_EQ(code(put(header, 0, 0), 0), Code::kCorrupt) << "of nothing";
  EXPECT_EQ(code(put(header, 0, 2), 3), Code::kCorrupt) << "in the middle of a checksum";
  EXPECT_EQ(code(put({.request_id = 6, .items = 2, .layer_count = 1}, 0, 2), 0), Code::kCorrupt) << "whole layers";
  EXPECT_EQ(code(put({.request_id = 6}, 0, 1), 0), Code::kCorrupt) << "of no keys";
}

TEST(WireMessage, PlacesOfAPutLieInTheArena) {
  const std::array<std::uint64_t, 2> checksums{1, 2};
  const auto lies = [&](std::uint64_t offset, std::uint32_t slab_bytes, std::uint64_t arena_bytes) {
    const PutArena put{.offset = offset, .checksums = U64View(checksums)};
    return check_arena_place(put, slab_bytes, arena_bytes).has_value();
  };
  EXPECT_TRUE(lies(0, 4096, 8192));
  EXPECT_TRUE(lies(100, 4096, 8292));
  EXPECT_FALSE(lies(1, 4096, 8192));
  EXPECT_FALSE(lies(0, 4096, 8191));
  EXPECT_FALSE(lies(8192, 4096, 8192));
  EXPECT_FALSE(lies(~std::uint64_t{0}, 4096, 8192));
  EXPECT_FALSE(lies(~std::uint64_t{0} - 8191, 4096, 8192)) << "beyond the end of numbers";
  EXPECT_FALSE(lies(0, 0xFFFFFFFF, 1ULL << 32));
}

TEST(WireMessage, PutReplyRoundTrips) {
  const std::array failed{std::byte{0x05}};
  const Buffer bytes = frame({.request_id = 6, .items = 3}, PutReply{failed});
  const Parsed p = parse(bytes);
  const auto m = decode<PutReply>(p.header, p.meta);
  ASSERT_TRUE(m.has_value());
  EXPECT_TRUE(bit(m->failed, 0));
  EXPECT_FALSE(bit(m->failed, 1));
  EXPECT_EQ(m->why, Code::kOk);
  expect_exact_length<PutReply>(bytes);
}

TEST(WireMessage, APutReplySaysWhyAKeyFailed) {
  std::array failed{std::byte{0x04}};
  const PutReply reply{.failed = failed, .why = Code::kBusy, .reason = "no room"};
  const Parsed p = parse(frame({.request_id = 6, .items = 3}, reply));
  const auto m = decode<PutReply>(p.header, p.meta);
  ASSERT_TRUE(m.has_value());
  EXPECT_EQ(m->why, Code::kBusy);
  EXPECT_EQ(m->reason, "no room");
  for (std::size_t bytes = 2; bytes < p.meta.size(); ++bytes) {
    EXPECT_EQ(decode_error<PutReply>(p.header, p.meta.first(bytes)), Code::kCorrupt);
  }
  failed[0] = {};  // a reason for nothing
  const Parsed odd = parse(frame({.request_id = 6, .items = 3}, reply));
  EXPECT_EQ(decode_error<PutReply>(odd.header, odd.meta), Code::kCorrupt);
}

TEST(WireMessage, RemoveRoundTrips) {
  const Buffer keys = some_keys(4);
  const Buffer bytes =
      frame({.request_id = 7}, Remove{.ns = 1, .shards = {0}, .groups = {0, 1}, .keys = {keys, 16, true}});
  const Parsed p = parse(bytes);
  const auto m = decode<Remove>(p.header, p.meta);
  ASSERT_TRUE(m.has_value());
  EXPECT_EQ(m->groups.size(), 2U);
  EXPECT_EQ(m->keys.count(), 4U);
  expect_exact_length<Remove>(bytes);
}

TEST(WireMessage, SmallMessagesRoundTrip) {
  const Buffer open = frame({.request_id = 1}, OpenReply{5});
  EXPECT_EQ(decode<OpenReply>(parse(open).header, parse(open).meta)->ns, 5U);
  const Buffer removed = frame({.request_id = 1}, RemoveReply{8});
  EXPECT_EQ(decode<RemoveReply>(parse(removed).header, parse(removed).meta)->removed, 8U);
  const Buffer unpin = frame({.request_id = 1}, Unpin{1ULL << 40});
  EXPECT_EQ(decode<Unpin>(parse(unpin).header, parse(unpin).meta)->lease, 1ULL << 40);
  const Buffer stats = frame({.request_id = 1}, StatsReply{"{}"});
  EXPECT_EQ(decode<StatsReply>(parse(stats).header, parse(stats).meta)->json, "{}");
  expect_exact_length<OpenReply>(open);
  expect_exact_length<RemoveReply>(removed);
  expect_exact_length<Unpin>(unpin);
  const Buffer close = frame({.request_id = 1}, Close{77});
  EXPECT_EQ(decode<Close>(parse(close).header, parse(close).meta)->ns, 77U);
  expect_exact_length<Close>(close);
  const Buffer memory = frame({}, Memory{1ULL << 33});
  EXPECT_EQ(decode<Memory>(parse(memory).header, parse(memory).meta)->bytes, 1ULL << 33);
  expect_exact_length<Memory>(memory);
  const Buffer rings = frame({}, Rings{266'240});
  EXPECT_EQ(decode<Rings>(parse(rings).header, parse(rings).meta)->bytes, 266'240U);
  expect_exact_length<Rings>(rings);
  expect_exact_length<Keeper>(frame({}, Keeper{}));
  const Buffer arena = frame({}, Arena{1ULL << 24});
  EXPECT_EQ(decode<Arena>(parse(arena).header, parse(arena).meta)->bytes, 1ULL << 24);
  expect_exact_length<Arena>(arena);
  const Buffer taken = frame({}, Taken{1ULL << 33});
  EXPECT_EQ(decode<Taken>(parse(taken).header, parse(taken).meta)->messages, 1ULL << 33);
  expect_exact_length<Taken>(taken);
  const std::array<std::uint64_t, 2> views{3, 4};
  const Buffer release = frame({.request_id = 1}, Release{U64View(views)});
  EXPECT_EQ(parse(release).header.items, 2U);
  EXPECT_EQ(decode<Release>(parse(release).header, parse(release).meta)->views[1], 4U);
  expect_exact_length<Release>(release);
  expect_exact_length<Cancel>(frame({.request_id = 1}, Cancel{}));
  expect_exact_length<Ping>(frame({.request_id = 1}, Ping{}));
  expect_exact_length<PingReply>(frame({.request_id = 1}, PingReply{}));
  expect_exact_length<Stats>(frame({.request_id = 1}, Stats{}));
  expect_exact_length<UnpinReply>(frame({.request_id = 1}, UnpinReply{}));
}

TEST(WireMessage, ErrorsCarryAPrintableReason) {
  const Buffer bytes = error_frame(Opcode::kOpenReply, 12, Code::kInvalid, "another schema");
  const Parsed p = parse(bytes);
  EXPECT_EQ(p.header.status, Code::kInvalid);
  EXPECT_EQ(p.header.request_id, 12U);
  EXPECT_TRUE(p.header.last());
  EXPECT_EQ(error_text(p.meta), "another schema");
  EXPECT_EQ(error_text({}), "");
  const Buffer odd = error_frame(Opcode::kOpenReply, 12, Code::kInvalid, "a\x1b[31m\nb");
  EXPECT_EQ(error_text(Bytes(odd).subspan(kHeaderBytes)), "a?[31m?b");
  const Buffer long_text = error_frame(Opcode::kOpenReply, 12, Code::kInvalid, std::string(500, 'x'));
  EXPECT_EQ(error_text(Bytes(long_text).subspan(kHeaderBytes)).size(), kNameBytesMax);
}

}  // namespace
}  // namespace kvd::wire
