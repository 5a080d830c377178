// The 64-byte header of every message of the native protocol (docs/formats/wire.md). Pure, any thread.
//
// decode_header() is the only gate for bytes of a peer: what passes it has the right magic, version and CRC, a known
// opcode, reserved fields of zero, and sizes within the protocol's limits. It says nothing about the meta.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/result.h"

namespace kvd::wire {

inline constexpr std::uint32_t kMagic = 0x3144564B;  // "KVD1" as the bytes lie on the wire
inline constexpr std::uint8_t kVersion = 1;
inline constexpr std::size_t kHeaderBytes = 64;
inline constexpr std::size_t kMetaBytesMax = std::size_t{4} << 20;      // wire.md: bounds what is read before checks
inline constexpr std::uint64_t kBodyBytesMax = std::uint64_t{1} << 40;  // above any body: 4096 keys x 64 MiB = 2^38
inline constexpr std::uint16_t kFlagLast = 1;                           // last message of its request

// Requests; a response has bit 7 set.
enum class Opcode : std::uint8_t {
  kHello = 0x01,
  kOpen = 0x02,
  kMatch = 0x03,
  kGet = 0x04,
  kPut = 0x05,
  kPutData = 0x06,
  kCancel = 0x07,
  kRemove = 0x08,
  kUnpin = 0x09,
  kStats = 0x0A,
  kPing = 0x0B,
  kCheck = 0x0C,
  kClose = 0x0D,
  kRelease = 0x0E,
  kPutArena = 0x0F,
  kAuth = 0x10,
  kHelloReply = 0x81,
  kOpenReply = 0x82,
  kMatchReply = 0x83,
  kGetData = 0x84,
  kPutReply = 0x85,
  kRemoveReply = 0x88,
  kUnpinReply = 0x89,
  kStatsReply = 0x8A,
  kPingReply = 0x8B,
  kMemory = 0x8E,
  kGetView = 0x8F,
  kAuthReply = 0x90,
  kRings = 0x91,
  kKeeper = 0x92,
  kArena = 0x93,
  kTaken = 0x94,
};

constexpr bool is_response(Opcode opcode) noexcept { return (static_cast<std::uint8_t>(opcode) & 0x80) != 0; }
// True for the two messages that may carry slabs after their meta.
constexpr bool has_payload(Opcode opcode) noexcept { return opcode == Opcode::kGetData || opcode == Opcode::kPutData; }
// The opcode that answers `request`. Those without an answer give themselves: CANCEL (the request it names ends),
// CHECK, CLOSE and RELEASE.
Opcode reply_of(Opcode request) noexcept;
// The message's name as wire.md writes it, for logs. Static storage.
const char* opcode_name(Opcode opcode) noexcept;

struct Header {
  Opcode opcode = Opcode::kPing;
  std::uint16_t flags = 0;
  std::uint64_t request_id = 0;
  std::uint32_t items = 0;  // keys the message concerns
  std::uint16_t layer_first = 0;
  std::uint16_t layer_count = 0;
  std::uint64_t body_bytes = 0;  // meta and payload
  std::uint32_t meta_bytes = 0;
  std::uint32_t deadline_ms = 0;  // 0 = none
  Code status = Code::kOk;
  std::uint32_t meta_crc = 0;

  [[nodiscard]] bool last() const noexcept { return (flags & kFlagLast) != 0; }
  [[nodiscard]] std::uint64_t payload_bytes() const noexcept { return body_bytes - meta_bytes; }
  friend bool operator==(const Header&, const Header&) = default;
};

// Writes the header with its own CRC. Requires out.size() >= kHeaderBytes.
void encode_header(const Header& header, MutableBytes out) noexcept;

// Requires bytes.size() >= kHeaderBytes. Errors: kInvalid (another protocol: wrong magic), kStale (another version),
// kCorrupt (CRC, reserved fields, unknown opcode, sizes beyond the limits, payload where there can be none). After any
// of them the stream cannot be trusted and the connection must end.
Result<Header> decode_header(Bytes bytes) noexcept;

// True as long as `bytes` (any number of them) can be the start of a header: a peer that speaks another protocol is
// recognised by its first byte and not only after 64.
bool can_be_header(Bytes bytes) noexcept;

// Checks the meta's CRC, given with its bytes or by itself. kCorrupt.
Status check_meta(const Header& header, Bytes meta) noexcept;
Status check_meta_crc(const Header& header, std::uint32_t crc) noexcept;

}  // namespace kvd::wire
