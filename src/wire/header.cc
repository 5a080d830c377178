#include "wire/header.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "wire/crc32c.h"

namespace kvd::wire {
namespace {

constexpr std::size_t kCrcOffset = 60;

bool known(std::uint8_t opcode) noexcept {
  // Answers without a request of their number.
  constexpr std::array kUnasked = {Opcode::kMemory, Opcode::kGetView, Opcode::kRings,
                                   Opcode::kKeeper, Opcode::kArena,   Opcode::kTaken};
  if (std::ranges::find(kUnasked, static_cast<Opcode>(opcode)) != kUnasked.end()) return true;
  const std::uint8_t request = opcode & 0x7F;
  if (request == static_cast<std::uint8_t>(Opcode::kAuth)) return true;
  if (request < 0x01 || request > 0x0F) return false;
  return opcode < 0x80 || (request != 0x06 && request != 0x07 && request < 0x0C);
}

}  // namespace

Opcode reply_of(Opcode request) noexcept {
  const bool unanswered = request == Opcode::kCancel || request == Opcode::kCheck || request == Opcode::kClose ||
                          request == Opcode::kRelease;
  if (unanswered) return request;
  if (request == Opcode::kPutData || request == Opcode::kPutArena) return Opcode::kPutReply;
  return static_cast<Opcode>(static_cast<std::uint8_t>(request) | 0x80);
}

const char* opcode_name(Opcode opcode) noexcept {
  switch (opcode) {
    case Opcode::kHello: return "HELLO";
    case Opcode::kOpen: return "OPEN";
    case Opcode::kMatch: return "MATCH";
    case Opcode::kGet: return "GET";
    case Opcode::kPut: return "PUT";
    case Opcode::kPutData: return "PUT data";
    case Opcode::kCancel: return "CANCEL";
    case Opcode::kRemove: return "REMOVE";
    case Opcode::kUnpin: return "UNPIN";
    case Opcode::kStats: return "STATS";
    case Opcode::kPing: return "PING";
    case Opcode::kCheck: return "CHECK";
    case Opcode::kClose: return "CLOSE";
    case Opcode::kRelease: return "RELEASE";
    case Opcode::kAuth: return "AUTH";
    case Opcode::kHelloReply: return "HELLO reply";
    case Opcode::kOpenReply: return "OPEN reply";
    case Opcode::kMatchReply: return "MATCH reply";
    case Opcode::kGetData: return "GET data";
    case Opcode::kPutReply: return "PUT reply";
    case Opcode::kRemoveReply: return "REMOVE reply";
    case Opcode::kUnpinReply: return "UNPIN reply";
    case Opcode::kStatsReply: return "STATS reply";
    case Opcode::kPingReply: return "PING reply";
    case Opcode::kMemory: return "MEMORY";
    case Opcode::kGetView: return "GET view";
    case Opcode::kAuthReply: return "AUTH reply";
    case Opcode::kRings: return "RINGS";
    case Opcode::kKeeper: return "KEEPER";
    case Opcode::kPutArena: return "PUT arena";
    case Opcode::kArena: return "ARENA";
    case Opcode::kTaken: return "TAKEN";
  }
  return "unknown";
}

void encode_header(const Header& header, MutableBytes out) noexcept {
  KVD_CHECK(out.size() >= kHeaderBytes);
  std::byte* at = out.data();
  std::fill_n(at, kHeaderBytes, std::byte{0});
  save(at + 0, kMagic);
  save(at + 4, kVersion);
  save(at + 5, static_cast<std::uint8_t>(header.opcode));
  save(at + 6, header.flags);
  save(at + 8, header.request_id);
  save(at + 16, header.items);
  save(at + 20, header.layer_first);
  save(at + 22, header.layer_count);
  save(at + 24, header.body_bytes);
  save(at + 32, header.meta_bytes);
  save(at + 36, header.deadline_ms);
  save(at + 40, static_cast<std::uint16_t>(header.status));
  save(at + 44, header.meta_crc);
  save(at + kCrcOffset, crc32c(out.first(kCrcOffset)));
}

Result<Header> decode_header(Bytes bytes) noexcept {
  KVD_CHECK(bytes.size() >= kHeaderBytes);
  const std::byte* at = bytes.data();
  if (load<std::uint32_t>(at) != kMagic) return fail(Code::kInvalid, "the peer does not speak the kvdepot protocol");
  if (load<std::uint8_t>(at + 4) != kVersion) {
    return fail(Code::kStale, "the peer speaks another version of the kvdepot protocol");
  }
  if (load<std::uint32_t>(at + kCrcOffset) != crc32c(bytes.first(kCrcOffset))) {
    return fail(Code::kCorrupt, "message header fails its checksum");
  }
  const auto opcode = load<std::uint8_t>(at + 5);
  const auto status = load<std::uint16_t>(at + 40);
  if (!known(opcode)) return fail(Code::kCorrupt, "message has an unknown opcode");
  if (status > static_cast<std::uint16_t>(Code::kCancelled)) {
    return fail(Code::kCorrupt, "message has an unknown status");
  }
  const auto zero = [](std::byte b) { return b == std::byte{0}; };
  const Bytes reserved = bytes.subspan(48, 12);
  if (load<std::uint16_t>(at + 42) != 0 || !std::all_of(reserved.begin(), reserved.end(), zero)) {
    return fail(Code::kCorrupt, "reserved header fields are not zero");
  }
  const Header header{.opcode = static_cast<Opcode>(opcode),
                      .flags = load<std::uint16_t>(at + 6),
                      .request_id = load<std::uint64_t>(at + 8),
                      .items = load<std::uint32_t>(at + 16),
                      .layer_first = load<std::uint16_t>(at + 20),
                      .layer_count = load<std::uint16_t>(at + 22),
                      .body_bytes = load<std::uint64_t>(at + 24),
                      .meta_bytes = load<std::uint32_t>(at + 32),
                      .deadline_ms = load<std::uint32_t>(at + 36),
                      .status = static_cast<Code>(status),
                      .meta_crc = load<std::uint32_t>(at + 44)};
  if ((header.flags & ~kFlagLast) != 0) return fail(Code::kCorrupt, "unknown header flags");
  if (header.meta_bytes > kMetaBytesMax || header.body_bytes > kBodyBytesMax || header.meta_bytes > header.body_bytes) {
    return fail(Code::kCorrupt, "message sizes exceed the protocol's limits");
  }
  if (header.payload_bytes() != 0 && !has_payload(header.opcode)) {
    return fail(Code::kCorrupt, "payload on a message that has none");
  }
  return header;
}

bool can_be_header(Bytes bytes) noexcept {
  std::array<std::byte, sizeof kMagic> magic{};
  save(magic.data(), kMagic);
  const std::size_t n = std::min(bytes.size(), magic.size());
  return std::equal(magic.begin(), magic.begin() + static_cast<std::ptrdiff_t>(n), bytes.begin());
}

Status check_meta(const Header& header, Bytes meta) noexcept {
  return check_meta_crc(header, meta.size() == header.meta_bytes ? crc32c(meta) : ~header.meta_crc);
}

Status check_meta_crc(const Header& header, std::uint32_t crc) noexcept {
  if (crc != header.meta_crc) return fail(Code::kCorrupt, "message structure fails its checksum");
  return {};
}

}  // namespace kvd::wire
