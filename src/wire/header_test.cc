#include "wire/header.h"

#include <array>

#include <gtest/gtest.h>

#include "wire/crc32c.h"

namespace kvd::wire {
namespace {

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

Header some_header() {
  return {.opcode = Opcode::kGetData,
          .flags = kFlagLast,
          .request_id = 0x0102030405060708,
          .items = 54,
          .layer_first = 3,
          .layer_count = 9,
          .body_bytes = 4000000,
          .meta_bytes = 4000,
          .deadline_ms = 250,
          .status = Code::kOk,
          .meta_crc = 0xABCDEF01};
}

HeaderBytes encoded(const Header& header) {
  HeaderBytes bytes{};
  encode_header(header, bytes);
  return bytes;
}

// The header with one field overwritten and its CRC put right again.
template <class T>
HeaderBytes with(std::size_t offset, T value) {
  HeaderBytes bytes = encoded(some_header());
  save(bytes.data() + offset, value);
  save(bytes.data() + 60, crc32c(Bytes(bytes).first(60)));
  return bytes;
}

Code error_of(Bytes bytes) {
  const auto decoded = decode_header(bytes);
  return decoded ? Code::kOk : decoded.error().code;
}

TEST(Crc32c, MatchesTheCheckValueOfTheStandard) {
  EXPECT_EQ(crc32c(as_bytes("123456789")), 0xE3069283U);
  EXPECT_EQ(crc32c({}), 0U);
  std::array<std::byte, 100> some{};
  for (std::size_t i = 0; i < some.size(); ++i) some[i] = static_cast<std::byte>(i * 37 + 5);
  for (std::size_t from = 0; from < 9; ++from) {
    for (std::size_t bytes = 0; from + bytes <= some.size(); ++bytes) {
      const Bytes part = Bytes(some).subspan(from, bytes);
      EXPECT_EQ(crc32c(part), crc32c_by_tables(part));
      const Bytes first = part.first(bytes / 3);
      EXPECT_EQ(crc32c(part.subspan(first.size()), crc32c(first)), crc32c(part)) << "piece by piece";
      EXPECT_EQ(crc32c_by_tables(part.subspan(first.size()), crc32c_by_tables(first)), crc32c(part));
    }
  }
  // RFC 3720 B.4: 32 bytes of zeros.
  EXPECT_EQ(crc32c(HeaderBytes{}), crc32c(Bytes(HeaderBytes{})));
  EXPECT_EQ(crc32c(std::array<std::byte, 32>{}), 0x8A9136AAU);
}

TEST(Header, ComesBackAsItWasEncoded) {
  const auto decoded = decode_header(encoded(some_header()));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(*decoded, some_header());
  EXPECT_EQ(decoded->payload_bytes(), 3996000U);
  EXPECT_TRUE(decoded->last());
}

TEST(Header, EveryFlippedBitIsNoticed) {
  const HeaderBytes good = encoded(some_header());
  for (std::size_t i = 0; i < kHeaderBytes * 8; ++i) {
    HeaderBytes bad = good;
    bad[i / 8] ^= std::byte{1} << (i % 8);
    EXPECT_NE(error_of(bad), Code::kOk) << "bit " << i;
  }
}

TEST(Header, ForeignProtocolsAndVersionsAreToldApart) {
  HeaderBytes http{};
  const auto text = as_bytes("GET / HTTP/1.1\r\nHost: depot:7070\r\nUser-Agent: curl/7.88.1\r\nAccept");
  ASSERT_GE(text.size(), kHeaderBytes);
  std::copy_n(text.begin(), kHeaderBytes, http.begin());
  EXPECT_EQ(error_of(http), Code::kInvalid);
  EXPECT_EQ(error_of(with(4, std::uint8_t{2})), Code::kStale);
  // A header of a later version may carry its CRC elsewhere: still told apart.
  HeaderBytes later = encoded(some_header());
  save(later.data() + 4, std::uint8_t{2});
  EXPECT_EQ(error_of(later), Code::kStale);
}

TEST(Header, ValuesBeyondTheProtocolAreRefused) {
  EXPECT_EQ(error_of(with(5, std::uint8_t{0x00})), Code::kCorrupt);
  EXPECT_EQ(error_of(with(5, std::uint8_t{0x0F})), Code::kCorrupt);  // with payload
  EXPECT_EQ(error_of(with(5, std::uint8_t{0x11})), Code::kCorrupt);
  EXPECT_EQ(error_of(with(5, std::uint8_t{0x95})), Code::kCorrupt);
  EXPECT_EQ(error_of(with(5, std::uint8_t{0x10})), Code::kCorrupt);
  EXPECT_EQ(error_of(with(5, std::uint8_t{0x90})), Code::kCorrupt);
  EXPECT_EQ(error_of(with(5, std::uint8_t{0x8C})), Code::kCorrupt);
  EXPECT_EQ(error_of(with(5, std::uint8_t{0x8D})), Code::kCorrupt);
  EXPECT_EQ(error_of(with(5, std::uint8_t{0x86})), Code::kCorrupt);
  EXPECT_EQ(error_of(with(5, std::uint8_t{0x87})), Code::kCorrupt);
  EXPECT_EQ(error_of(with(6, std::uint16_t{2})), Code::kCorrupt);
  EXPECT_EQ(error_of(with(40, std::uint16_t{11})), Code::kCorrupt);
  EXPECT_EQ(error_of(with(42, std::uint16_t{1})), Code::kCorrupt);
  EXPECT_EQ(error_of(with(48, std::uint8_t{1})), Code::kCorrupt);
  EXPECT_EQ(error_of(with(59, std::uint8_t{1})), Code::kCorrupt);
  EXPECT_EQ(error_of(with(24, kBodyBytesMax + 1)), Code::kCorrupt);
  EXPECT_EQ(error_of(with(24, std::uint64_t{3999})), Code::kCorrupt);                       // meta exceeds the body
  EXPECT_EQ(error_of(with(5, static_cast<std::uint8_t>(Opcode::kMatch))), Code::kCorrupt);  // with payload
  Header big = some_header();
  big.meta_bytes = kMetaBytesMax + 1;
  big.body_bytes = big.meta_bytes;
  EXPECT_EQ(error_of(encoded(big)), Code::kCorrupt);
}

TEST(Header, ForeignBytesAreRecognisedByTheFirst) {
  const HeaderBytes good = encoded(some_header());
  for (std::size_t n = 0; n <= 8; ++n) EXPECT_TRUE(can_be_header(Bytes(good).first(n)));
  EXPECT_FALSE(can_be_header(as_bytes("G")));
  EXPECT_FALSE(can_be_header(as_bytes("KVD2")));
  EXPECT_TRUE(can_be_header(as_bytes("KVD1")));
}

TEST(Header, MetaIsCheckedForLengthAndContent) {
  const auto meta = as_bytes("structure");
  Header header = some_header();
  header.meta_bytes = 9;
  header.meta_crc = crc32c(meta);
  EXPECT_TRUE(check_meta(header, meta).has_value());
  EXPECT_FALSE(check_meta(header, meta.first(8)).has_value());
  EXPECT_FALSE(check_meta(header, as_bytes("structurE")).has_value());
}

TEST(Header, RepliesBelongToRequests) {
  EXPECT_EQ(reply_of(Opcode::kHello), Opcode::kHelloReply);
  EXPECT_EQ(reply_of(Opcode::kGet), Opcode::kGetData);
  EXPECT_EQ(reply_of(Opcode::kPut), Opcode::kPutReply);
  EXPECT_EQ(reply_of(Opcode::kPutData), Opcode::kPutReply);
  EXPECT_EQ(reply_of(Opcode::kPutArena), Opcode::kPutReply);
  EXPECT_EQ(reply_of(Opcode::kCancel), Opcode::kCancel);
  EXPECT_EQ(reply_of(Opcode::kCheck), Opcode::kCheck);
  EXPECT_EQ(reply_of(Opcode::kClose), Opcode::kClose);
  EXPECT_EQ(reply_of(Opcode::kRelease), Opcode::kRelease);
  EXPECT_EQ(reply_of(Opcode::kAuth), Opcode::kAuthReply);
  EXPECT_TRUE(is_response(Opcode::kGetData));
  EXPECT_TRUE(is_response(Opcode::kTaken));
  EXPECT_FALSE(is_response(Opcode::kPutArena));
  EXPECT_FALSE(is_response(Opcode::kGet));
  EXPECT_TRUE(has_payload(Opcode::kPutData));
  EXPECT_FALSE(has_payload(Opcode::kGet));
}

}  // namespace
}  // namespace kvd::wire
