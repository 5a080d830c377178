// The structure (meta) of every message of the native protocol, typed, both ways (docs/formats/wire.md). Pure, any
// thread.
//
//   Encoding: frame(header, message) gives header and meta as one buffer; payload, if any, follows it on the wire. It
//   sets opcode, sizes and CRCs, and `items` where the message knows it; the rest of the header is the caller's.
//   Decoding: decode<Match>(header, meta) after check_meta(). Views (KeyList, Bytes, U64View) point into `meta`.
//   Errors of decode: kCorrupt = malformed (a field is missing, bytes are left over, a value that no version 1 peer
//   sends): the connection must end. kInvalid = well-formed but beyond a limit: the request is answered `invalid`.
// A response whose header.status is not kOk carries no structure but optionally one string; see error_frame().
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "kvdepot/types.h"
#include "wire/header.h"

namespace kvd::wire {

inline constexpr std::size_t kNameBytesMax = 128;   // names of peers and reasons of errors: they end up in logs
inline constexpr std::size_t kTenantBytesMax = 64;  // include/kvdepot/types.h
inline constexpr std::size_t kFingerprintBytesMax = 128;
inline constexpr std::size_t kOrderBytesMax = 64;
inline constexpr std::size_t kTokenBytesMax = 256;  // above any token

// Features of HELLO: the client says what it can take, the depot says what of it it does.
inline constexpr std::uint64_t kFeatureSharedMemory = 1;   // MEMORY, GET view and RELEASE; unix sockets only
inline constexpr std::uint64_t kFeatureToken = 2;          // the client has a token; the depot wants it: AUTH
inline constexpr std::uint64_t kFeatureRings = 4;          // RINGS: messages go through memory; unix sockets only
inline constexpr std::uint64_t kFeatureKeep = 8;           // KEEPER and Get::keep; with shared memory only
inline constexpr std::uint64_t kFeaturePutParts = 16;      // PutData::key_first: puts need not come in whole layers
inline constexpr std::uint64_t kFeatureArena = 32;         // ARENA, PUT arena and TAKEN; unix sockets only
inline constexpr std::uint64_t kFeatureAuthFeatures = 64;  // AuthReply::features; with kFeatureToken only

// Little-endian u64s at any alignment.
class U64View {
 public:
  U64View() = default;
  explicit U64View(Bytes bytes) noexcept : bytes_(bytes) {}
  explicit U64View(std::span<const std::uint64_t> values) noexcept : bytes_(std::as_bytes(values)) {}
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size() / 8; }
  [[nodiscard]] std::uint64_t operator[](std::size_t i) const noexcept {
    return load<std::uint64_t>(bytes_.subspan(i * 8, 8).data());
  }
  [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }

 private:
  Bytes bytes_;
};

// Bitmaps of failed keys: bit i of byte i/8 = key i failed; unused bits are 0.
constexpr std::size_t bitmap_bytes(std::size_t items) noexcept { return (items + 7) / 8; }
inline bool bit(Bytes bitmap, std::size_t i) noexcept {
  return (std::to_integer<unsigned>(bitmap[i / 8]) >> (i % 8) & 1U) != 0;
}
inline void set_bit(MutableBytes bitmap, std::size_t i) noexcept { bitmap[i / 8] |= std::byte{1} << (i % 8); }
std::size_t count_bits(Bytes bitmap) noexcept;

// The first message on a connection: which versions the client speaks, who it is. request_id 0.
struct Hello {
  static constexpr Opcode kOpcode = Opcode::kHello;
  std::uint16_t version_min = kVersion;
  std::uint16_t version_max = kVersion;
  std::uint64_t features = 0;
  std::string name{};  // longer ones are cut to kNameBytesMax when encoded
};

// What the depot chose and what it is: `store_uuid` and `boot_epoch` tell a client whether it is the depot it knew.
struct HelloReply {
  static constexpr Opcode kOpcode = Opcode::kHelloReply;
  std::uint16_t version = kVersion;
  std::uint64_t features = 0;
  std::array<std::byte, 16> store_uuid{};
  std::uint64_t boot_epoch = 0;
  std::uint32_t keys_max = 0;
  std::uint32_t ops_max = 0;
  std::string server{};
};

// The client's token, behind a HELLO reply that asks for it, before anything else. request_id 0.
struct Auth {
  static constexpr Opcode kOpcode = Opcode::kAuth;
  std::string_view token{};
};

// The token was accepted. With kFeatureAuthFeatures it says which of the features that the client asked for and that
// give it memory the depot does: before, nobody knew who it is.
struct AuthReply {
  static constexpr Opcode kOpcode = Opcode::kAuthReply;
  std::optional<std::uint64_t> features{};
};

// Declares a namespace on this connection.
struct Open {
  static constexpr Opcode kOpcode = Opcode::kOpen;
  Namespace ns{};  // lengths and counts are checked here, geometry by block::check_namespace()
};

// The number under which this connection's requests name the namespace.
struct OpenReply {
  static constexpr Opcode kOpcode = Opcode::kOpenReply;
  std::uint32_t ns = 0;
};

// Gives the handle of a namespace back. Has no answer; requests under way go on.
struct Close {
  static constexpr Opcode kOpcode = Opcode::kClose;
  std::uint32_t ns = 0;
};

// Asks for the longest usable prefix of `blocks` blocks over all shards and groups.
struct Match {
  static constexpr Opcode kOpcode = Opcode::kMatch;
  std::uint32_t ns = 0;
  bool promote = false;
  std::uint32_t lease_ms = 0;
  std::uint32_t blocks = 0;             // keys.count() == groups.size() * blocks
  std::vector<std::uint16_t> shards{};  // 1..kShardsMax
  std::vector<std::uint16_t> groups{};  // 1..kGroupsMax
  KeyList keys{};                       // block i of group g at g * blocks + i
};

struct MatchReply {  // header.items = blocks
  static constexpr Opcode kOpcode = Opcode::kMatchReply;
  std::uint32_t prefix_blocks = 0;
  std::uint64_t lease = 0;
  Bytes tiers{};  // one Tier per block, worst over shards and groups
};

// Asks for slabs of all keys, layer by layer.
inline constexpr std::uint8_t kGetStops = 1;  // flags
inline constexpr std::uint8_t kGetKeeps = 2;
struct Get {  // header.layer_first, layer_count: which layers; count 0 = all
  static constexpr Opcode kOpcode = Opcode::kGet;
  std::uint32_t ns = 0;
  std::uint16_t shard = 0;
  std::uint16_t group = 0;
  bool stop_at_first_failure = false;
  bool keep = false;  // views of it last until they are given back or the keeper is closed; with kFeatureKeep only
  KeyList keys{};
};

// Some whole layers of a GET, in order; the slabs follow as payload in the order of the checksums.
struct GetData {  // header.items, layer_first, layer_count are the caller's
  static constexpr Opcode kOpcode = Opcode::kGetData;
  Bytes failed{};       // bitmap_bytes(header.items)
  U64View checksums{};  // for each layer, for each key that has not failed
};

// The memory in which a depot's slabs lie: the first message behind the HELLO reply when shared memory was agreed upon,
// with a file descriptor (SCM_RIGHTS).
struct Memory {
  static constexpr Opcode kOpcode = Opcode::kMemory;
  std::uint64_t bytes = 0;  // of the file, from its first
};

// The memory of the rings through which both sides send all that follows. Behind the HELLO reply and MEMORY.
struct Rings {
  static constexpr Opcode kOpcode = Opcode::kRings;
  std::uint64_t bytes = 0;  // of the file, whose descriptor comes along
};

// A descriptor that comes along: for as long as a copy of it is open the depot keeps what it has lent to GETs with
// `keep` on this connection, also beyond the connection's end. Behind the HELLO reply and MEMORY.
struct Keeper {
  static constexpr Opcode kOpcode = Opcode::kKeeper;
};

// What GetData says, for slabs that the client reads from that memory. They stay there until it gives the view back.
struct GetView {  // header.items, layer_first, layer_count are the caller's
  static constexpr Opcode kOpcode = Opcode::kGetView;
  std::uint64_t view = 0;         // what RELEASE names; not 0
  std::uint32_t slab_stride = 0;  // from a slab of a record to that of the next layer
  Bytes failed{};                 // bitmap_bytes(header.items); not all keys
  U64View offsets{};              // for each key that has not failed: where its slab of the first layer lies
  U64View checksums{};            // as in GetData
};

// Gives views back. Has no answer.
struct Release {  // header.items = their number
  static constexpr Opcode kOpcode = Opcode::kRelease;
  U64View views{};  // 1..kViewsPerReleaseMax
};
inline constexpr std::size_t kViewsPerReleaseMax = 4096;

// Says that slabs of these records were damaged when they arrived. Has no answer.
struct Check {
  static constexpr Opcode kOpcode = Opcode::kCheck;
  std::uint32_t ns = 0;
  std::uint16_t shard = 0;
  std::uint16_t group = 0;
  KeyList keys{};
};

// Opens a PUT: its layers follow as PUT data with the same request_id.
struct Put {
  static constexpr Opcode kOpcode = Opcode::kPut;
  std::uint32_t ns = 0;
  std::uint16_t shard = 0;
  std::uint16_t group = 0;
  AckLevel ack = AckLevel::kPooled;
  KeyList keys{};
};

// The next slabs of a PUT, in order; they follow as payload in the order of the checksums. Whole layers, or a part.
struct PutData {  // header.items, layer_first, layer_count are the caller's
  static constexpr Opcode kOpcode = Opcode::kPutData;
  // Set: a part, with kFeaturePutParts and layer_count 0 only. It begins with this key's slab of layer_first.
  std::optional<std::uint32_t> key_first{};
  U64View checksums{};  // for each layer, for each key; a part's run on into the next layers
};

// The memory through which the client may hand over slabs of PUTs, with a file descriptor. Behind the HELLO reply,
// MEMORY and KEEPER.
struct Arena {
  static constexpr Opcode kOpcode = Opcode::kArena;
  std::uint64_t bytes = 0;  // of the file, from its first
};

// The next slabs of a PUT, in order, where they lie in the arena: back to back from `offset` on. What a part says.
struct PutArena {  // header.items, layer_first are the caller's; layer_count 0
  static constexpr Opcode kOpcode = Opcode::kPutArena;
  std::uint32_t key_first = 0;
  std::uint64_t offset = 0;
  U64View checksums{};  // 1 or more
};

// The depot has taken what so many PUT arena messages of this connection spoke of, the first ones: their places in the
// arena are the client's again.
struct Taken {
  static constexpr Opcode kOpcode = Opcode::kTaken;
  std::uint64_t messages = 0;  // since the connection's beginning
};

// The end of a PUT: which keys are not kept.
struct PutReply {  // header.items is the caller's
  static constexpr Opcode kOpcode = Opcode::kPutReply;
  Bytes failed{};
  // When a key has failed: why the first one did that did, in time. kOk = the depot does not say.
  Code why = Code::kOk;
  std::string_view reason{};  // one line, at most kNameBytesMax
};

// Removes records from every tier.
struct Remove {
  static constexpr Opcode kOpcode = Opcode::kRemove;
  std::uint32_t ns = 0;
  std::vector<std::uint16_t> shards{};  // 1..kShardsMax
  std::vector<std::uint16_t> groups{};  // 1..kGroupsMax
  KeyList keys{};                       // block i of group g at g * (count / groups) + i
};

struct RemoveReply {
  static constexpr Opcode kOpcode = Opcode::kRemoveReply;
  std::uint32_t removed = 0;
};

// Gives a lease back.
struct Unpin {
  static constexpr Opcode kOpcode = Opcode::kUnpin;
  std::uint64_t lease = 0;
};

struct StatsReply {
  static constexpr Opcode kOpcode = Opcode::kStatsReply;
  std::string_view json{};
};

// Messages without structure.
template <Opcode Op>
struct Bare {
  static constexpr Opcode kOpcode = Op;
};
using Cancel = Bare<Opcode::kCancel>;  // header.request_id names the request that shall end
using UnpinReply = Bare<Opcode::kUnpinReply>;
using Stats = Bare<Opcode::kStats>;
using Ping = Bare<Opcode::kPing>;
using PingReply = Bare<Opcode::kPingReply>;

using Buffer = std::vector<std::byte>;

// Header and meta of `message` in one buffer. `payload_bytes` of slabs follow it on the wire (GET data, PUT data).
// Requires values within the limits above: the caller has checked them (a client its user's, a depot its own).
template <class M>
Buffer frame(Header header, const M& message, std::uint64_t payload_bytes = 0);

// A response that says that its request failed: no payload, the reason as its only field, cut to kNameBytesMax.
Buffer error_frame(Opcode opcode, std::uint64_t request_id, Code status, std::string_view reason);
// The reason of such a response; empty when it has none or is malformed. Printable ASCII only, so it is safe to log.
std::string error_text(Bytes meta);

// Defined for every message type above.
template <class M>
Result<M> decode(const Header& header, Bytes meta);
template <>
Result<Hello> decode<Hello>(const Header& header, Bytes meta);
template <>
Result<HelloReply> decode<HelloReply>(const Header& header, Bytes meta);
template <>
Result<Auth> decode<Auth>(const Header& header, Bytes meta);
template <>
Result<AuthReply> decode<AuthReply>(const Header& header, Bytes meta);
template <>
Result<Open> decode<Open>(const Header& header, Bytes meta);
template <>
Result<OpenReply> decode<OpenReply>(const Header& header, Bytes meta);
template <>
Result<Close> decode<Close>(const Header& header, Bytes meta);
template <>
Result<Match> decode<Match>(const Header& header, Bytes meta);
template <>
Result<MatchReply> decode<MatchReply>(const Header& header, Bytes meta);
template <>
Result<Get> decode<Get>(const Header& header, Bytes meta);
template <>
Result<GetData> decode<GetData>(const Header& header, Bytes meta);
template <>
Result<Memory> decode<Memory>(const Header& header, Bytes meta);
template <>
Result<Rings> decode<Rings>(const Header& header, Bytes meta);
template <>
Result<Keeper> decode<Keeper>(const Header& header, Bytes meta);
template <>
Result<GetView> decode<GetView>(const Header& header, Bytes meta);
template <>
Result<Release> decode<Release>(const Header& header, Bytes meta);
template <>
Result<Check> decode<Check>(const Header& header, Bytes meta);
template <>
Result<Put> decode<Put>(const Header& header, Bytes meta);
template <>
Result<PutData> decode<PutData>(const Header& header, Bytes meta);
template <>
Result<Arena> decode<Arena>(const Header& header, Bytes meta);
template <>
Result<PutArena> decode<PutArena>(const Header& header, Bytes meta);
template <>
Result<Taken> decode<Taken>(const Header& header, Bytes meta);
template <>
Result<PutReply> decode<PutReply>(const Header& header, Bytes meta);
template <>
Result<Remove> decode<Remove>(const Header& header, Bytes meta);
template <>
Result<RemoveReply> decode<RemoveReply>(const Header& header, Bytes meta);
template <>
Result<Unpin> decode<Unpin>(const Header& header, Bytes meta);
template <>
Result<StatsReply> decode<StatsReply>(const Header& header, Bytes meta);
template <>
Result<Cancel> decode<Cancel>(const Header& header, Bytes meta);
template <>
Result<UnpinReply> decode<UnpinReply>(const Header& header, Bytes meta);
template <>
Result<Stats> decode<Stats>(const Header& header, Bytes meta);
template <>
Result<Ping> decode<Ping>(const Header& header, Bytes meta);
template <>
Result<PingReply> decode<PingReply>(const Header& header, Bytes meta);

// Payload sizes that the header of a body message must announce. kCorrupt when they differ.
Status check_get_payload(const Header& header, const GetData& data, std::uint32_t slab_bytes) noexcept;
Status check_put_payload(const Header& header, const PutData& data, std::uint32_t slab_bytes) noexcept;
// Whether every slab of a GET view lies in a memory of `memory_bytes`. kCorrupt.
Status check_view_places(const Header& header, const GetView& view, std::uint32_t slab_bytes,
                         std::uint64_t memory_bytes) noexcept;
// Whether the slabs of a PUT arena lie in an arena of `arena_bytes`. kCorrupt.
Status check_arena_place(const PutArena& data, std::uint32_t slab_bytes, std::uint64_t arena_bytes) noexcept;

}  // namespace kvd::wire
