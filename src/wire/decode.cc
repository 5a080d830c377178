// Bytes to structures: decode<M>() for every message type. Every read goes through ByteReader, every count is checked
// against what the message's length allows before anything is allocated for it.
#include <algorithm>

#include "wire/message.h"

namespace kvd::wire {
namespace {

std::unexpected<Error> malformed() noexcept { return fail(Code::kCorrupt, "message structure is malformed"); }

// Reads a u16-counted string; `fits` turns false when it is longer than allowed.
std::string read_string(ByteReader& r, std::size_t bytes_max, bool& fits) {
  const std::size_t n = r.read<std::uint16_t>();
  if (n > bytes_max) fits = false;
  return std::string(as_text(r.read_bytes(n)));
}

// A boolean on the wire is 0 or 1.
bool read_flag(ByteReader& r, bool& valid) noexcept {
  const auto value = r.read<std::uint8_t>();
  if (value > 1) valid = false;
  return value == 1;
}

// Reads `n` u16s; requires n to be bounded by the caller.
std::vector<std::uint16_t> read_u16s(ByteReader& r, std::size_t n) {
  const Bytes bytes = r.read_bytes(n * 2);
  std::vector<std::uint16_t> values(bytes.size() / 2);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = load<std::uint16_t>(bytes.data() + 2 * i);
  return values;
}

// Everything that is left is `count` keys.
Status read_keys(ByteReader& r, KeyList& keys, std::size_t count) noexcept {
  if (keys.key_bytes == 0 || r.left() != count * keys.key_bytes) return malformed();
  if (keys.native && keys.key_bytes != sizeof(Key)) return malformed();
  keys.bytes = r.read_bytes(r.left());
  if (!r.done()) return malformed();
  if (keys.key_bytes > kForeignKeyBytesMax) return fail(Code::kInvalid, "keys are longer than 256 bytes");
  return {};
}

Status check_count(std::size_t n, std::size_t max, const char* what) noexcept {
  if (n == 0 || n > max) return fail(Code::kInvalid, what);
  return {};
}

constexpr const char* kKeysText = "a request takes 1..4096 keys of a group";
constexpr const char* kShardsText = "a request takes 1..64 shards";
constexpr const char* kGroupsText = "a request takes 1..16 groups";

// The part that MATCH and REMOVE share: shards, groups and keys of several groups.
Status read_selection(ByteReader& r, std::size_t shards, std::size_t groups, std::uint64_t keys,
                      std::vector<std::uint16_t>& shard_out, std::vector<std::uint16_t>& group_out, KeyList& keys_out) {
  shard_out = read_u16s(r, shards);  // counts are u16: at most 128 KiB, and no more than the message holds
  group_out = read_u16s(r, groups);
  if (!r.ok() || keys > kMetaBytesMax) return malformed();
  if (auto read = read_keys(r, keys_out, keys); !read) return read;
  if (auto checked = check_count(shards, kShardsMax, kShardsText); !checked) return checked;
  if (auto checked = check_count(groups, kGroupsMax, kGroupsText); !checked) return checked;
  if (keys % groups != 0) return malformed();
  return check_count(keys / groups, kKeysPerRequestMax, kKeysText);
}

template <class M>
Result<M> decode_bare(Bytes meta) {
  if (!meta.empty()) return malformed();
  return M{};
}

// Bitmap of header.items keys with its unused bits 0.
Bytes read_bitmap(ByteReader& r, std::uint32_t items, bool& valid) noexcept {
  const Bytes bitmap = r.read_bytes(bitmap_bytes(items));
  if (r.ok() && items % 8 != 0 && (std::to_integer<unsigned>(bitmap.back()) >> (items % 8)) != 0) valid = false;
  return bitmap;
}

}  // namespace

template <>
Result<Hello> decode<Hello>(const Header&, Bytes meta) {
  ByteReader r(meta);
  bool fits = true;
  Hello m;
  m.version_min = r.read<std::uint16_t>();
  m.version_max = r.read<std::uint16_t>();
  m.features = r.read<std::uint64_t>();
  m.name = read_string(r, kNameBytesMax, fits);
  if (!r.done() || !fits || m.version_min > m.version_max) return malformed();
  return m;
}

template <>
Result<HelloReply> decode<HelloReply>(const Header&, Bytes meta) {
  ByteReader r(meta);
  bool fits = true;
  HelloReply m;
  m.version = r.read<std::uint16_t>();
  m.features = r.read<std::uint64_t>();
  const Bytes uuid = r.read_bytes(m.store_uuid.size());
  std::copy(uuid.begin(), uuid.end(), m.store_uuid.begin());
  m.boot_epoch = r.read<std::uint64_t>();
  m.keys_max = r.read<std::uint32_t>();
  m.ops_max = r.read<std::uint32_t>();
  m.server = read_string(r, kNameBytesMax, fits);
  if (!r.done() || !fits) return malformed();
  return m;
}

template <>
Result<Auth> decode<Auth>(const Header&, Bytes meta) {
  ByteReader r(meta);
  const std::size_t n = r.read<std::uint16_t>();
  const Auth m{as_text(r.read_bytes(n))};
  if (!r.done() || n > kTokenBytesMax) return malformed();
  return m;
}

template <>
Result<AuthReply> decode<AuthReply>(const Header&, Bytes meta) {
  AuthReply m;
  ByteReader r(meta);
  if (!meta.empty()) m.features = r.read<std::uint64_t>();
  if (!r.done()) return malformed();
  return m;
}

template <>
Result<Open> decode<Open>(const Header&, Bytes meta) {
  ByteReader r(meta);
  bool fits = true;
  Open m;
  m.ns.tenant = read_string(r, kTenantBytesMax, fits);
  m.ns.fingerprint = read_string(r, kFingerprintBytesMax, fits);
  const std::size_t groups = r.read<std::uint16_t>();
  for (std::size_t i = 0; i < groups && r.ok() && i < kGroupsMax; ++i) {
    GroupSchema g;
    g.group = r.read<std::uint16_t>();
    g.layers = r.read<std::uint16_t>();
    g.slab_bytes = r.read<std::uint32_t>();
    g.parts = r.read<std::uint16_t>();
    g.block_tokens = r.read<std::uint32_t>();
    const auto rule = r.read<std::uint8_t>();
    if (rule > static_cast<std::uint8_t>(HitRule::kLast)) return malformed();
    g.rule = static_cast<HitRule>(rule);
    g.hit_blocks = r.read<std::uint16_t>();
    g.order = read_string(r, kOrderBytesMax, fits);
    m.ns.groups.push_back(std::move(g));
  }
  if (!r.ok()) return malformed();
  if (auto checked = check_count(groups, kGroupsMax, "a namespace has 1..16 groups"); !checked) {
    return fail(checked.error());
  }
  if (r.left() != 0) return malformed();
  if (!fits) return fail(Code::kInvalid, "a namespace's tenant, fingerprint or order is too long");
  return m;
}

template <>
Result<OpenReply> decode<OpenReply>(const Header&, Bytes meta) {
  ByteReader r(meta);
  const OpenReply m{.ns = r.read<std::uint32_t>()};
  if (!r.done()) return malformed();
  return m;
}

template <>
Result<Match> decode<Match>(const Header& header, Bytes meta) {
  ByteReader r(meta);
  bool valid = true;
  Match m;
  m.ns = r.read<std::uint32_t>();
  const auto shards = r.read<std::uint16_t>();
  const auto groups = r.read<std::uint16_t>();
  m.keys.key_bytes = r.read<std::uint16_t>();
  m.keys.native = read_flag(r, valid);
  m.promote = read_flag(r, valid);
  m.lease_ms = r.read<std::uint32_t>();
  m.blocks = r.read<std::uint32_t>();
  const std::uint64_t keys = std::uint64_t{groups} * m.blocks;
  if (!r.ok() || !valid || keys != header.items) return malformed();
  if (auto read = read_selection(r, shards, groups, keys, m.shards, m.groups, m.keys); !read) {
    return fail(read.error());
  }
  return m;
}

template <>
Result<MatchReply> decode<MatchReply>(const Header& header, Bytes meta) {
  ByteReader r(meta);
  MatchReply m;
  m.prefix_blocks = r.read<std::uint32_t>();
  m.lease = r.read<std::uint64_t>();
  m.tiers = r.read_bytes(header.items);
  const auto bad = [](std::byte t) { return std::to_integer<unsigned>(t) > static_cast<unsigned>(Tier::kFlash); };
  if (!r.done() || m.prefix_blocks > header.items || std::any_of(m.tiers.begin(), m.tiers.end(), bad)) {
    return malformed();
  }
  return m;
}

template <>
Result<Get> decode<Get>(const Header& header, Bytes meta) {
  ByteReader r(meta);
  bool valid = true;
  Get m;
  m.ns = r.read<std::uint32_t>();
  m.shard = r.read<std::uint16_t>();
  m.group = r.read<std::uint16_t>();
  m.keys.key_bytes = r.read<std::uint16_t>();
  m.keys.native = read_flag(r, valid);
  const auto flags = r.read<std::uint8_t>();
  m.stop_at_first_failure = (flags & kGetStops) != 0;
  m.keep = (flags & kGetKeeps) != 0;
  if (!r.ok() || !valid || (flags & ~(kGetStops | kGetKeeps)) != 0) return malformed();
  if (auto read = read_keys(r, m.keys, header.items); !read) return fail(read.error());
  if (auto checked = check_count(header.items, kKeysPerRequestMax, kKeysText); !checked) return fail(checked.error());
  return m;
}

template <>
Result<Check> decode<Check>(const Header& header, Bytes meta) {
  ByteReader r(meta);
  bool valid = true;
  Check m;
  m.ns = r.read<std::uint32_t>();
  m.shard = r.read<std::uint16_t>();
  m.group = r.read<std::uint16_t>();
  m.keys.key_bytes = r.read<std::uint16_t>();
  m.keys.native = read_flag(r, valid);
  if (r.read<std::uint8_t>() != 0 || !r.ok() || !valid) return malformed();
  if (auto read = read_keys(r, m.keys, header.items); !read) return fail(read.error());
  if (auto checked = check_count(header.items, kKeysPerRequestMax, kKeysText); !checked) return fail(checked.error());
  return m;
}

template <>
Result<GetData> decode<GetData>(const Header& header, Bytes meta) {
  ByteReader r(meta);
  bool valid = true;
  GetData m;
  if (header.items == 0 || header.items > kKeysPerRequestMax || header.layer_count > kLayersMax) return malformed();
  m.failed = read_bitmap(r, header.items, valid);
  if (!r.ok() || !valid) return malformed();
  const std::size_t slabs = (header.items - count_bits(m.failed)) * header.layer_count;
  m.checksums = U64View(r.read_bytes(slabs * sizeof(std::uint64_t)));
  if (!r.done()) return malformed();
  return m;
}

template <>
Result<Memory> decode<Memory>(const Header&, Bytes meta) {
  ByteReader r(meta);
  const Memory m{.bytes = r.read<std::uint64_t>()};
  if (!r.done() || m.bytes == 0) return malformed();
  return m;
}

template <>
Result<Rings> decode<Rings>(const Header&, Bytes meta) {
  ByteReader r(meta);
  const Rings m{.bytes = r.read<std::uint64_t>()};
  if (!r.done() || m.bytes == 0) return malformed();
  return m;
}

template <>
Result<Keeper> decode<Keeper>(const Header&, Bytes meta) {
  if (!meta.empty()) return malformed();
  return Keeper{};
}

template <>
Result<GetView> decode<GetView>(const Header& header, Bytes meta) {
  ByteReader r(meta);
  bool valid = true;
  GetView m;
  if (header.items == 0 || header.items > kKeysPerRequestMax) return malformed();
  if (header.layer_count == 0 || header.layer_count > kLayersMax) return malformed();
  m.view = r.read<std::uint64_t>();
  m.slab_stride = r.read<std::uint32_t>();
  m.failed = read_bitmap(r, header.items, valid);
  if (!r.ok() || !valid || m.view == 0) return malformed();
  const std::size_t keys = header.items - count_bits(m.failed);
  m.offsets = U64View(r.read_bytes(keys * sizeof(std::uint64_t)));
  m.checksums = U64View(r.read_bytes(keys * header.layer_count * sizeof(std::uint64_t)));
  if (!r.done() || keys == 0) return malformed();
  return m;
}

template <>
Result<Release> decode<Release>(const Header& header, Bytes meta) {
  if (header.items == 0 || header.items > kViewsPerReleaseMax) return malformed();
  if (meta.size() != header.items * sizeof(std::uint64_t)) return malformed();
  return Release{.views = U64View(meta)};
}

template <>
Result<Put> decode<Put>(const Header& header, Bytes meta) {
  ByteReader r(meta);
  bool valid = true;
  Put m;
  m.ns = r.read<std::uint32_t>();
  m.shard = r.read<std::uint16_t>();
  m.group = r.read<std::uint16_t>();
  m.keys.key_bytes = r.read<std::uint16_t>();
  m.keys.native = read_flag(r, valid);
  const auto ack = r.read<std::uint8_t>();
  if (!r.ok() || !valid || ack > static_cast<std::uint8_t>(AckLevel::kSynced)) return malformed();
  m.ack = static_cast<AckLevel>(ack);
  if (auto read = read_keys(r, m.keys, header.items); !read) return fail(read.error());
  if (auto checked = check_count(header.items, kKeysPerRequestMax, kKeysText); !checked) return fail(checked.error());
  return m;
}

template <>
Result<PutData> decode<PutData>(const Header& header, Bytes meta) {
  ByteReader r(meta);
  if (header.items == 0 || header.items > kKeysPerRequestMax) return malformed();
  if (header.layer_count > kLayersMax) return malformed();
  PutData m;
  std::size_t slabs = std::size_t{header.items} * header.layer_count;
  if (header.layer_count == 0) {
    m.key_first = r.read<std::uint32_t>();
    slabs = r.left() / sizeof(std::uint64_t);
    if (slabs == 0 || *m.key_first >= header.items) return malformed();
  }
  m.checksums = U64View(r.read_bytes(slabs * sizeof(std::uint64_t)));
  if (!r.done()) return malformed();
  return m;
}

template <>
Result<Arena> decode<Arena>(const Header&, Bytes meta) {
  ByteReader r(meta);
  const Arena m{.bytes = r.read<std::uint64_t>()};
  if (!r.done()) return malformed();
  return m;
}

template <>
Result<PutArena> decode<PutArena>(const Header& header, Bytes meta) {
  ByteReader r(meta);
  if (header.items == 0 || header.items > kKeysPerRequestMax || header.layer_count != 0) return malformed();
  PutArena m;
  m.key_first = r.read<std::uint32_t>();
  m.offset = r.read<std::uint64_t>();
  const std::size_t slabs = r.left() / sizeof(std::uint64_t);
  if (slabs == 0 || m.key_first >= header.items) return malformed();
  m.checksums = U64View(r.read_bytes(slabs * sizeof(std::uint64_t)));
  if (!r.done()) return malformed();
  return m;
}

template <>
Result<Taken> decode<Taken>(const Header&, Bytes meta) {
  ByteReader r(meta);
  const Taken m{.messages = r.read<std::uint64_t>()};
  if (!r.done()) return malformed();
  return m;
}

template <>
Result<PutReply> decode<PutReply>(const Header& header, Bytes meta) {
  ByteReader r(meta);
  bool valid = true;
  if (header.items == 0 || header.items > kKeysPerRequestMax) return malformed();
  PutReply m;
  m.failed = read_bitmap(r, header.items, valid);
  if (r.left() > 0) {
    const auto why = r.read<std::uint8_t>();
    const std::size_t bytes = r.read<std::uint16_t>();
    m.reason = as_text(r.read_bytes(bytes));
    valid = valid && why > 0 && why <= static_cast<std::uint8_t>(Code::kCancelled) && bytes <= kNameBytesMax &&
            count_bits(m.failed) > 0;
    m.why = static_cast<Code>(why);
  }
  if (!r.done() || !valid) return malformed();
  return m;
}

template <>
Result<Remove> decode<Remove>(const Header& header, Bytes meta) {
  ByteReader r(meta);
  bool valid = true;
  Remove m;
  m.ns = r.read<std::uint32_t>();
  const auto shards = r.read<std::uint16_t>();
  const auto groups = r.read<std::uint16_t>();
  m.keys.key_bytes = r.read<std::uint16_t>();
  m.keys.native = read_flag(r, valid);
  if (r.read<std::uint8_t>() != 0 || !r.ok() || !valid) return malformed();
  if (auto read = read_selection(r, shards, groups, header.items, m.shards, m.groups, m.keys); !read) {
    return fail(read.error());
  }
  return m;
}

template <>
Result<RemoveReply> decode<RemoveReply>(const Header&, Bytes meta) {
  ByteReader r(meta);
  const RemoveReply m{.removed = r.read<std::uint32_t>()};
  if (!r.done()) return malformed();
  return m;
}

template <>
Result<Close> decode<Close>(const Header&, Bytes meta) {
  ByteReader r(meta);
  const Close m{.ns = r.read<std::uint32_t>()};
  if (!r.done()) return malformed();
  return m;
}

template <>
Result<Unpin> decode<Unpin>(const Header&, Bytes meta) {
  ByteReader r(meta);
  const Unpin m{.lease = r.read<std::uint64_t>()};
  if (!r.done()) return malformed();
  return m;
}

template <>
Result<StatsReply> decode<StatsReply>(const Header&, Bytes meta) {
  return StatsReply{.json = as_text(meta)};
}

template <>
Result<Cancel> decode<Cancel>(const Header&, Bytes meta) {
  return decode_bare<Cancel>(meta);
}

template <>
Result<UnpinReply> decode<UnpinReply>(const Header&, Bytes meta) {
  return decode_bare<UnpinReply>(meta);
}

template <>
Result<Stats> decode<Stats>(const Header&, Bytes meta) {
  return decode_bare<Stats>(meta);
}

template <>
Result<Ping> decode<Ping>(const Header&, Bytes meta) {
  return decode_bare<Ping>(meta);
}

template <>
Result<PingReply> decode<PingReply>(const Header&, Bytes meta) {
  return decode_bare<PingReply>(meta);
}

std::string error_text(Bytes meta) {
  ByteReader r(meta);
  bool fits = true;
  std::string text = read_string(r, kNameBytesMax, fits);
  if (!r.done() || !fits) return {};
  std::replace_if(text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

Status check_get_payload(const Header& header, const GetData& data, std::uint32_t slab_bytes) noexcept {
  if (header.payload_bytes() != std::uint64_t{data.checksums.size()} * slab_bytes) return malformed();
  return {};
}

Status check_put_payload(const Header& header, const PutData& data, std::uint32_t slab_bytes) noexcept {
  if (header.payload_bytes() != std::uint64_t{data.checksums.size()} * slab_bytes) return malformed();
  return {};
}

Status check_arena_place(const PutArena& data, std::uint32_t slab_bytes, std::uint64_t arena_bytes) noexcept {
  const std::uint64_t bytes = std::uint64_t{data.checksums.size()} * slab_bytes;  // < 2^52: a meta's checksums
  if (bytes > arena_bytes || data.offset > arena_bytes - bytes) return malformed();
  return {};
}

Status check_view_places(const Header& header, const GetView& view, std::uint32_t slab_bytes,
                         std::uint64_t memory_bytes) noexcept {
  if (header.layer_count == 0 || (header.layer_count > 1 && view.slab_stride < slab_bytes)) return malformed();
  // Below 2^42: layers and stride have 16 and 32 bits.
  const std::uint64_t extent = (header.layer_count - std::uint64_t{1}) * view.slab_stride + slab_bytes;
  for (std::size_t i = 0; i < view.offsets.size(); ++i) {
    if (extent > memory_bytes || view.offsets[i] > memory_bytes - extent) return malformed();
  }
  return {};
}

}  // namespace kvd::wire
