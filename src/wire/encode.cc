// Structures to bytes: frame() for every message type. The field order is the table of docs/formats/wire.md.
#include <algorithm>
#include <bit>

#include "base/check.h"
#include "wire/crc32c.h"
#include "wire/message.h"

namespace kvd::wire {
namespace {

class Writer {
 public:
  explicit Writer(Buffer& out) noexcept : out_(out) {}
  template <std::integral T>
  void put(T value) {
    put_bytes(std::as_bytes(std::span(&value, 1)));
  }
  void put_bytes(Bytes bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  void put_string(std::string_view text, std::size_t bytes_max) {
    const std::string_view cut = text.substr(0, bytes_max);
    put(static_cast<std::uint16_t>(cut.size()));
    put_bytes(as_bytes(cut));
  }
  void put_u16s(std::span<const std::uint16_t> values) { put_bytes(std::as_bytes(values)); }
  void put_key_shape(const KeyList& keys) {
    put(keys.key_bytes);
    put(static_cast<std::uint8_t>(keys.native));
  }

 private:
  Buffer& out_;
};

void put_meta(Writer& w, const Hello& m) {
  w.put(m.version_min);
  w.put(m.version_max);
  w.put(m.features);
  w.put_string(m.name, kNameBytesMax);
}

void put_meta(Writer& w, const HelloReply& m) {
  w.put(m.version);
  w.put(m.features);
  w.put_bytes(m.store_uuid);
  w.put(m.boot_epoch);
  w.put(m.keys_max);
  w.put(m.ops_max);
  w.put_string(m.server, kNameBytesMax);
}

void put_meta(Writer& w, const Auth& m) { w.put_string(m.token, kTokenBytesMax); }

void put_meta(Writer& w, const AuthReply& m) {
  if (m.features) w.put(*m.features);
}

void put_meta(Writer& w, const Open& m) {
  w.put_string(m.ns.tenant, kTenantBytesMax);
  w.put_string(m.ns.fingerprint, kFingerprintBytesMax);
  w.put(static_cast<std::uint16_t>(m.ns.groups.size()));
  for (const GroupSchema& g : m.ns.groups) {
    w.put(g.group);
    w.put(g.layers);
    w.put(g.slab_bytes);
    w.put(g.parts);
    w.put(g.block_tokens);
    w.put(static_cast<std::uint8_t>(g.rule));
    w.put(g.hit_blocks);
    w.put_string(g.order, kOrderBytesMax);
  }
}

void put_meta(Writer& w, const OpenReply& m) { w.put(m.ns); }

void put_meta(Writer& w, const Close& m) { w.put(m.ns); }

void put_meta(Writer& w, const Match& m) {
  KVD_CHECK(m.keys.count() == m.groups.size() * m.blocks);
  w.put(m.ns);
  w.put(static_cast<std::uint16_t>(m.shards.size()));
  w.put(static_cast<std::uint16_t>(m.groups.size()));
  w.put_key_shape(m.keys);
  w.put(static_cast<std::uint8_t>(m.promote));
  w.put(m.lease_ms);
  w.put(m.blocks);
  w.put_u16s(m.shards);
  w.put_u16s(m.groups);
  w.put_bytes(m.keys.bytes);
}

void put_meta(Writer& w, const MatchReply& m) {
  w.put(m.prefix_blocks);
  w.put(m.lease);
  w.put_bytes(m.tiers);
}

void put_meta(Writer& w, const Get& m) {
  w.put(m.ns);
  w.put(m.shard);
  w.put(m.group);
  w.put_key_shape(m.keys);
  w.put(static_cast<std::uint8_t>((m.stop_at_first_failure ? kGetStops : 0) | (m.keep ? kGetKeeps : 0)));
  w.put_bytes(m.keys.bytes);
}

void put_meta(Writer& w, const Check& m) {
  w.put(m.ns);
  w.put(m.shard);
  w.put(m.group);
  w.put_key_shape(m.keys);
  w.put(std::uint8_t{0});
  w.put_bytes(m.keys.bytes);
}

void put_meta(Writer& w, const GetData& m) {
  w.put_bytes(m.failed);
  w.put_bytes(m.checksums.bytes());
}

void put_meta(Writer& w, const Memory& m) { w.put(m.bytes); }

void put_meta(Writer& w, const Rings& m) { w.put(m.bytes); }

void put_meta(Writer&, const Keeper&) {}

void put_meta(Writer& w, const GetView& m) {
  w.put(m.view);
  w.put(m.slab_stride);
  w.put_bytes(m.failed);
  w.put_bytes(m.offsets.bytes());
  w.put_bytes(m.checksums.bytes());
}

void put_meta(Writer& w, const Release& m) { w.put_bytes(m.views.bytes()); }

void put_meta(Writer& w, const Put& m) {
  w.put(m.ns);
  w.put(m.shard);
  w.put(m.group);
  w.put_key_shape(m.keys);
  w.put(static_cast<std::uint8_t>(m.ack));
  w.put_bytes(m.keys.bytes);
}

void put_meta(Writer& w, const PutData& m) {
  if (m.key_first) w.put(*m.key_first);
  w.put_bytes(m.checksums.bytes());
}

void put_meta(Writer& w, const Arena& m) { w.put(m.bytes); }

void put_meta(Writer& w, const PutArena& m) {
  w.put(m.key_first);
  w.put(m.offset);
  w.put_bytes(m.checksums.bytes());
}

void put_meta(Writer& w, const Taken& m) { w.put(m.messages); }

void put_meta(Writer& w, const PutReply& m) {
  w.put_bytes(m.failed);
  if (m.why == Code::kOk) return;
  w.put(static_cast<std::uint8_t>(m.why));
  w.put_string(m.reason, kNameBytesMax);
}

void put_meta(Writer& w, const Remove& m) {
  w.put(m.ns);
  w.put(static_cast<std::uint16_t>(m.shards.size()));
  w.put(static_cast<std::uint16_t>(m.groups.size()));
  w.put_key_shape(m.keys);
  w.put(std::uint8_t{0});
  w.put_u16s(m.shards);
  w.put_u16s(m.groups);
  w.put_bytes(m.keys.bytes);
}

void put_meta(Writer& w, const RemoveReply& m) { w.put(m.removed); }

void put_meta(Writer& w, const Unpin& m) { w.put(m.lease); }

void put_meta(Writer& w, const StatsReply& m) { w.put_bytes(as_bytes(m.json)); }

template <Opcode Op>
void put_meta(Writer&, const Bare<Op>&) {}

// The number of keys, for messages that know it.
template <class M>
std::uint32_t items_of(const Header& header, const M& message) {
  if constexpr (requires { message.keys.count(); }) {
    return static_cast<std::uint32_t>(message.keys.count());
  } else if constexpr (requires { message.tiers; }) {
    return static_cast<std::uint32_t>(message.tiers.size());
  } else if constexpr (requires { message.views; }) {
    return static_cast<std::uint32_t>(message.views.size());
  } else {
    return header.items;
  }
}

// Fills in what the header says about the meta that follows it in `frame`, and writes it in front.
void seal(Header& header, Buffer& frame, std::uint64_t payload_bytes) {
  const Bytes meta = Bytes(frame).subspan(kHeaderBytes);
  KVD_CHECK(meta.size() <= kMetaBytesMax);
  header.meta_bytes = static_cast<std::uint32_t>(meta.size());
  header.body_bytes = meta.size() + payload_bytes;
  header.meta_crc = crc32c(meta);
  encode_header(header, frame);
}

}  // namespace

std::size_t count_bits(Bytes bitmap) noexcept {
  std::size_t n = 0;
  for (const std::byte b : bitmap) n += static_cast<std::size_t>(std::popcount(std::to_integer<unsigned>(b)));
  return n;
}

template <class M>
Buffer frame(Header header, const M& message, std::uint64_t payload_bytes) {
  KVD_CHECK(payload_bytes == 0 || has_payload(M::kOpcode));
  Buffer out;
  out.reserve(2 * kHeaderBytes);  // all of most messages
  out.resize(kHeaderBytes);
  Writer writer(out);
  put_meta(writer, message);
  header.opcode = M::kOpcode;
  header.items = items_of(header, message);
  seal(header, out, payload_bytes);
  return out;
}

Buffer error_frame(Opcode opcode, std::uint64_t request_id, Code status, std::string_view reason) {
  KVD_CHECK(is_response(opcode) && status != Code::kOk);
  Buffer out(kHeaderBytes);
  Writer(out).put_string(reason, kNameBytesMax);
  Header header{.opcode = opcode, .flags = kFlagLast, .request_id = request_id, .status = status};
  seal(header, out, 0);
  return out;
}

template Buffer frame(Header, const Hello&, std::uint64_t);
template Buffer frame(Header, const HelloReply&, std::uint64_t);
template Buffer frame(Header, const Auth&, std::uint64_t);
template Buffer frame(Header, const AuthReply&, std::uint64_t);
template Buffer frame(Header, const Open&, std::uint64_t);
template Buffer frame(Header, const OpenReply&, std::uint64_t);
template Buffer frame(Header, const Close&, std::uint64_t);
template Buffer frame(Header, const Match&, std::uint64_t);
template Buffer frame(Header, const MatchReply&, std::uint64_t);
template Buffer frame(Header, const Get&, std::uint64_t);
template Buffer frame(Header, const GetData&, std::uint64_t);
template Buffer frame(Header, const Memory&, std::uint64_t);
template Buffer frame(Header, const Rings&, std::uint64_t);
template Buffer frame(Header, const Keeper&, std::uint64_t);
template Buffer frame(Header, const GetView&, std::uint64_t);
template Buffer frame(Header, const Release&, std::uint64_t);
template Buffer frame(Header, const Check&, std::uint64_t);
template Buffer frame(Header, const Put&, std::uint64_t);
template Buffer frame(Header, const PutData&, std::uint64_t);
template Buffer frame(Header, const Arena&, std::uint64_t);
template Buffer frame(Header, const PutArena&, std::uint64_t);
template Buffer frame(Header, const Taken&, std::uint64_t);
template Buffer frame(Header, const PutReply&, std::uint64_t);
template Buffer frame(Header, const Remove&, std::uint64_t);
template Buffer frame(Header, const RemoveReply&, std::uint64_t);
template Buffer frame(Header, const Unpin&, std::uint64_t);
template Buffer frame(Header, const StatsReply&, std::uint64_t);
template Buffer frame(Header, const Cancel&, std::uint64_t);
template Buffer frame(Header, const UnpinReply&, std::uint64_t);
template Buffer frame(Header, const Stats&, std::uint64_t);
template Buffer frame(Header, const Ping&, std::uint64_t);
template Buffer frame(Header, const PingReply&, std::uint64_t);

}  // namespace kvd::wire
