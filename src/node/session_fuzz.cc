// Fuzzes a live node: an input is a sequence of operations of two hostile connections of one tenant, with fields that
// are plausible, wild or broken, against a node that holds another tenant's records under the same keys. Whatever
// comes: every reply parses, none carries the other tenant's bytes (also not through shared memory), the other tenant
// still gets what it put, and when the connections are gone nothing is pinned, leased, lent or unfinished any more.
//
// Each input has a node of its own, so that it fails alone as well. Real time only bounds waiting.
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "block/checksum.h"
#include "net/descriptor.h"
#include "net/window.h"
#include "node/testing/hostile_socket.h"
#include "wire/crc32c.h"

namespace kvd::node {
namespace {

constexpr std::size_t kKeys = 6;            // of each tenant, with the same numbers
constexpr std::size_t kOpsMax = 48;         // of an input
constexpr std::size_t kBytesMax = 1 << 16;  // of one message that are really sent
constexpr std::size_t kArenaBytes = 1 << 18;
constexpr std::string_view kSecret = "only the other tenant may see this: 7e3a9c51d0b8";

Namespace tenant(std::string_view name) {
  Namespace ns = small_namespace(3, 512);
  ns.tenant = name;
  return ns;
}

template <class T>
void put_field(wire::Buffer& frame, std::size_t at, std::uint64_t value) {
  const T field = static_cast<T>(value);
  std::memcpy(frame.data() + at, &field, sizeof field);
}

// Sizes and CRCs that fit the bytes, or a broken header would be all that is ever looked at.
void seal(wire::Buffer& frame, std::uint64_t payload_bytes) {
  const std::uint64_t meta_bytes = frame.size() - wire::kHeaderBytes;
  put_field<std::uint64_t>(frame, 24, meta_bytes + payload_bytes);
  put_field<std::uint32_t>(frame, 32, meta_bytes);
  put_field<std::uint32_t>(frame, 44, wire::crc32c(Bytes(frame).subspan(wire::kHeaderBytes)));
  put_field<std::uint32_t>(frame, 60, wire::crc32c(Bytes(frame).first(60)));
}

// One hostile connection: what it sends, and what it checks of the replies.
class Attacker final : public HostileSocket {
 public:
  explicit Attacker(Rig& rig) : HostileSocket(rig, &Node::adopt) {}
  ~Attacker() override {
    if (memory_.data() != nullptr) ::munmap(const_cast<std::byte*>(memory_.data()), memory_.size());
    if (!arena_.empty()) ::munmap(arena_.data(), arena_.size());
  }

  void receive() override {
    std::array<std::byte, 65536> bytes;
    while (!ended_) {
      iovec piece{bytes.data(), bytes.size()};
      msghdr message{};
      message.msg_iov = &piece;
      message.msg_iovlen = 1;
      net::DescriptorSpace space;
      net::expect_descriptor(message, space);
      const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      if (got < 0) ended_ = errno != EAGAIN;
      if (got == 0) ended_ = true;
      if (got <= 0) return;
      if (io::UniqueFd descriptor = net::take_descriptor(message); descriptor.ok()) take(std::move(descriptor));
      in_.insert(in_.end(), bytes.begin(), bytes.begin() + got);
      while (take_message()) {
      }
    }
  }

  // Puts bytes where the next PUT through the arena looks for them.
  void write(std::uint64_t offset, Bytes bytes) {
    if (!arena_.empty()) std::ranges::copy(bytes, arena_.subspan(offset).begin());
  }

  std::uint32_t ns = 0;  // as OPEN has answered last
  std::uint64_t lease = 0;
  std::uint64_t view = 0;

 private:
  // The pool's memory is the first, where it is given; then come a keeper and rings.
  void take(io::UniqueFd descriptor) {
    if (memory_.data() == nullptr) return map(descriptor.get());
    require(others_.size() < 3, "a keeper, an arena and rings are given once");
    if (others_.size() == 1) map_arena(descriptor.get());
    others_.push_back(std::move(descriptor));
  }

  void map(int fd) {
    const std::size_t bytes = rig_.options.store.pool_bytes;
    void* const at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
    require(at != MAP_FAILED, "the memory can be mapped");
    memory_ = Bytes(static_cast<const std::byte*>(at), bytes);
  }

  // Mostly it is one. What is written to other memory is the attacker's own, too.
  void map_arena(int fd) {
    void* const at = ::mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) arena_ = MutableBytes(static_cast<std::byte*>(at), kArenaBytes);
  }

  static void require_no_secret(Bytes bytes) {
    require(as_text(bytes).find(kSecret.substr(0, 16)) == std::string_view::npos, "foreign bytes");
  }

  bool take_message() {
    if (in_.size() < wire::kHeaderBytes) return false;
    const Result<wire::Header> header = wire::decode_header(in_);
    require(header.has_value(), "a reply's header is right");
    const std::size_t bytes = wire::kHeaderBytes + header->body_bytes;
    if (in_.size() < bytes) return false;
    const Bytes body = Bytes(in_).first(bytes).subspan(wire::kHeaderBytes);
    const Bytes meta = body.first(header->meta_bytes);
    require(wire::is_response(header->opcode) && wire::check_meta(*header, meta).has_value(), "a reply is one");
    require_no_secret(body);
    if (header->status == Code::kOk) look_at(*header, meta);
    in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(bytes));
    return true;
  }

  void look_at(const wire::Header& header, Bytes meta) {
    switch (header.opcode) {
      case wire::Opcode::kOpenReply: ns = wire::decode<wire::OpenReply>(header, meta).value().ns; break;
      case wire::Opcode::kMatchReply: lease = wire::decode<wire::MatchReply>(header, meta).value().lease; break;
      case wire::Opcode::kGetData: static_cast<void>(wire::decode<wire::GetData>(header, meta).value()); break;
      case wire::Opcode::kGetView: {
        const wire::GetView got = wire::decode<wire::GetView>(header, meta).value();
        constexpr std::uint32_t kSlabBytes = 512;  // no namespace of another size has records
        require(wire::check_view_places(header, got, kSlabBytes, memory_.size()).has_value(),
                "a view is in the memory");
        for (std::size_t i = 0; i < got.offsets.size(); ++i) {
          for (std::uint64_t l = 0; l < header.layer_count; ++l)
            require_no_secret(memory_.subspan(got.offsets[i] + l * got.slab_stride, kSlabBytes));
        }
        view = got.view;
        break;
      }
      default: break;
    }
  }

  std::vector<std::byte> in_;
  Bytes memory_;
  MutableBytes arena_;
  std::vector<io::UniqueFd> others_;
};

constexpr std::uint64_t kFeatures =
    wire::kFeatureSharedMemory | wire::kFeatureKeep | wire::kFeaturePutParts | wire::kFeatureArena;

// A part of a PUT as it lies in the arena.
wire::Buffer through_arena(Attacker& from, const Records& records, std::uint64_t id, std::size_t first,
                           std::size_t count, std::size_t slab) {
  const std::size_t end = std::min<std::size_t>(slab + 2, count * records.layers());
  const std::uint64_t offset = first * 1000;
  from.write(offset, records.part_body(first, count, slab, end));
  std::vector<std::uint64_t> checksums;
  for (std::size_t i = slab; i < end; ++i)
    checksums.push_back(records.checksum(first + i % count, static_cast<std::uint32_t>(i / count)));
  const wire::Header header{.request_id = id,
                            .items = static_cast<std::uint32_t>(count),
                            .layer_first = static_cast<std::uint16_t>(slab / count)};
  return wire::frame(header, wire::PutArena{.key_first = static_cast<std::uint32_t>(slab % count),
                                            .offset = offset,
                                            .checksums = wire::U64View(std::span<const std::uint64_t>(checksums))});
}

// A message that a sane client might send, with ids and handles that need not be its own.
wire::Buffer message_of(Choices& choices, Attacker& from, const Attacker& other) {
  const Records records(tenant("hostile"));
  const std::uint64_t id = 1 + choices.below(4);
  const std::size_t first = choices.below(kKeys), count = 1 + choices.below(kKeys);
  const auto keys = Records::keys(first, count);
  const KeyList list{keys, 16, true};
  const auto ns = static_cast<std::uint32_t>(choices.below(4) == 0 ? choices.number() : from.ns);
  const wire::Header header{.request_id = id, .deadline_ms = static_cast<std::uint32_t>(choices.below(3))};
  const std::vector<std::uint16_t> zero = {0};
  switch (choices.below(15)) {
    case 0: return wire::frame({}, wire::Hello{.features = choices.below(2) * kFeatures, .name = "hostile"});
    case 1: {
      Namespace open = tenant("hostile");
      if (choices.below(2) == 0) open.fingerprint = std::string(1 + choices.below(8), 'f');
      return wire::frame(header, wire::Open{open});
    }
    case 2:
      return wire::frame(header, wire::Match{.ns = ns,
                                             .promote = choices.below(2) == 0,
                                             .lease_ms = static_cast<std::uint32_t>(choices.number()),
                                             .blocks = static_cast<std::uint32_t>(count),
                                             .shards = zero,
                                             .groups = zero,
                                             .keys = list});
    case 3: {
      wire::Header some = header;
      const bool stop = choices.below(2) == 0;
      some.layer_first = static_cast<std::uint16_t>(choices.below(4));
      some.layer_count = static_cast<std::uint16_t>(choices.below(4));
      return wire::frame(some, wire::Get{.ns = ns, .stop_at_first_failure = stop, .keep = true, .keys = list});
    }
    case 4:
      return Records::get(id, ns, first, count, choices.below(2) == 0, static_cast<std::uint16_t>(choices.below(4)),
                          static_cast<std::uint16_t>(choices.below(4)), header.deadline_ms);
    case 5: return records.put(id, ns, 100 + first, count, static_cast<AckLevel>(choices.below(3)));
    case 6: {
      const auto layer = static_cast<std::uint32_t>(choices.below(3));
      // PUT data has no deadline: the choice of a part, or of the arena, costs none of the input.
      if (header.deadline_ms == 2) return through_arena(from, records, id, 100 + first, count, layer * count);
      if (header.deadline_ms == 1) {
        return records.part_head(id, 100 + first, count, layer * count, layer * count + header.deadline_ms);
      }
      return records.put_head(id, 100 + first, count, layer, layer + 1);
    }
    case 7: return wire::frame(header, wire::Cancel{});
    case 8: return wire::frame(header, wire::Remove{.ns = ns, .shards = zero, .groups = zero, .keys = list});
    case 9: return wire::frame(header, wire::Unpin{choices.below(2) == 0 ? from.lease : other.lease});
    case 10: return wire::frame(header, wire::Stats{});
    case 11: return wire::frame(header, wire::Ping{});
    case 12: return wire::frame(header, wire::Check{.ns = ns, .shard = 0, .group = 0, .keys = list});
    case 13: return wire::frame(header, wire::Close{ns});
    default: {
      const std::array<std::uint64_t, 1> views = {choices.below(3) > 0 ? from.view : other.view + choices.below(3)};
      return wire::frame(header, wire::Release{wire::U64View(std::span<const std::uint64_t>(views))});
    }
  }
}

std::uint64_t payload_bytes(const wire::Buffer& frame) { return wire::decode_header(frame).value().payload_bytes(); }

// Puts wild values into fields of header and meta; what is sealed again gets past the framing.
std::uint64_t distort(wire::Buffer& frame, std::uint64_t payload, Choices& choices) {
  static constexpr std::array<std::size_t, 9> kFields = {5, 6, 8, 16, 20, 22, 36, 40, 42};
  for (std::size_t times = choices.below(4); times > 0; --times) {
    const std::uint64_t value = choices.number();
    switch (choices.below(4)) {
      case 0: put_field<std::uint16_t>(frame, kFields[choices.below(kFields.size())], value); break;
      case 1: put_field<std::uint32_t>(frame, 16, value); break;
      case 2: payload = choices.below(4) == 0 ? value : payload; break;
      default: {
        if (frame.size() < wire::kHeaderBytes + 4) break;
        const std::size_t at = wire::kHeaderBytes + choices.byte() % (frame.size() - wire::kHeaderBytes - 3);
        if (choices.below(2) == 0) put_field<std::uint32_t>(frame, at, value);
        frame[at] = static_cast<std::byte>(value);
      }
    }
  }
  if (choices.below(16) == 0) frame.resize(wire::kHeaderBytes + choices.byte() % (frame.size() - 63));
  seal(frame, payload);
  if (choices.below(32) == 0) frame[choices.byte() % frame.size()] ^= std::byte{4};
  return payload;
}

// The other tenant is not for the asking before there is identity.
bool names_the_other(Bytes frame) { return as_text(frame).find("secret") != std::string_view::npos; }

void operate(Rig& rig, Choices& choices, std::array<std::unique_ptr<Attacker>, 2>& attackers) {
  const std::size_t who = choices.below(2);
  Attacker& from = *attackers[who];
  switch (choices.below(16)) {
    case 0: from.reads = !from.reads; return;
    case 1: attackers[who] = std::make_unique<Attacker>(rig); return;
    default: break;
  }
  wire::Buffer frame = message_of(choices, from, *attackers[1 - who]);
  std::uint64_t payload = payload_bytes(frame);
  if (choices.below(2) == 0) payload = distort(frame, payload, choices);
  if (names_the_other(frame)) return;
  frame.resize(frame.size() + std::min<std::uint64_t>(payload, kBytesMax), std::byte{0x5B});
  const std::size_t cut = choices.below(32) == 0 ? choices.byte() % frame.size() : frame.size();
  from.send(Bytes(frame).first(cut));
  for (std::size_t turns = choices.below(3); turns > 0; --turns) rig.loop->run_once(Duration::zero());
  if (from.reads) from.receive();
}

// The PUT data of all layers, with the checksums of `body`.
wire::Buffer checksummed_head(const Records& records, std::uint64_t id, std::size_t count, Bytes body) {
  const block::RecordShape shape = block::shape_of(records.ns().groups[0], false);
  const auto keys = Records::keys(0, count);
  std::vector<std::uint64_t> checksums;
  for (std::uint32_t layer = 0; layer < records.layers(); ++layer) {
    for (std::size_t i = 0; i < count; ++i) {
      const block::RecordId record{load<Key>(keys.data() + i * sizeof(Key)), 0, 0};
      checksums.push_back(
          block::slab_checksum(block::record_seed(record, shape), layer,
                               body.subspan(checksums.size() * records.slab_bytes(), records.slab_bytes())));
    }
  }
  const wire::Header header{
      .request_id = id, .items = static_cast<std::uint32_t>(count), .layer_first = 0, .layer_count = records.layers()};
  return wire::frame(header, wire::PutData{.checksums = wire::U64View(std::span<const std::uint64_t>(checksums))},
                     body.size());
}

NodeOptions options_with_tight_bounds(bool share_pool) {
  NodeOptions options = test_options();
  options.store.share_pool = share_pool;  // else who asks for memory has a window
  options.limits.window_bytes = net::Window::kBytesMin;
  options.limits.copied_at_once = 256;  // so that records are copied in slices
  options.limits.copied_in_slice = 1024;
  options.limits.window_bytes_all_max = 2 * net::Window::kBytesMin;
  options.limits.ops_max = 4;
  options.limits.op_keys_max = 64;
  options.limits.namespaces_max = 4;
  options.limits.leases_max = 4;
  options.limits.lease_pins_max = 16;
  options.limits.arena_bytes = kArenaBytes;
  options.limits.arena_bytes_all_max = 2 * kArenaBytes;
  return options;
}

// Puts `kKeys` records whose slabs are `text` many times over.
void fill(Rig& rig, RawClient& client, const Namespace& ns, std::string_view text) {
  const Records records(ns);
  const std::uint32_t handle = client.open(ns);
  const std::uint64_t id = client.new_id();
  std::vector<std::byte> body(kKeys * records.layers() * records.slab_bytes());
  for (std::size_t i = 0; i < body.size(); ++i) body[i] = static_cast<std::byte>(text[i % text.size()]);
  client.send(records.put(id, handle, 0, kKeys));
  client.send(checksummed_head(records, id, kKeys, body), body);
  const net::Received reply = client.next();
  require(reply.header.status == Code::kOk && rig.stat("node", "put_corrupt") == 0, "the records are put");
}

void require_the_others_records(RawClient& client, std::uint32_t handle) {
  client.send(Records::get(client.new_id(), handle, 0, kKeys));
  std::size_t bytes = 0;
  for (bool last = false; !last;) {
    const net::Received reply = client.next();
    last = reply.header.last();
    require(reply.header.status == Code::kOk, "the other tenant is served");
    bytes += reply.payload.size();
  }
  require(bytes == kKeys * 3 * 512, "the other tenant's records are there");
}

bool clean(const Rig& rig) {
  for (const char* name : {"ops", "op_keys", "leases", "pinned_bytes", "unfinished_bytes", "views", "view_bytes",
                           "kept_bytes", "kept_keys", "leavers", "arena_bytes", "window_bytes"}) {
    if (rig.stat("node", name) != 0) return false;
  }
  return rig.stat("node", "connections") == 1 && rig.stat("store", "pool_bytes_pinned") == 0 &&
         rig.stat("store", "unfinished_puts") == 0;
}

void check_input(Bytes input) {
  Rig rig(options_with_tight_bounds(input.size() % 2 == 0));
  const auto victim = rig.connect();
  fill(rig, *victim, tenant("secret"), kSecret);
  fill(rig, *victim, tenant("hostile"), "what everybody may see");
  const std::uint32_t handle = victim->open(tenant("secret"));
  {
    std::array<std::unique_ptr<Attacker>, 2> attackers = {std::make_unique<Attacker>(rig),
                                                          std::make_unique<Attacker>(rig)};
    for (auto& attacker : attackers) {
      attacker->send(wire::frame({}, wire::Hello{.features = kFeatures, .name = "hostile"}));
      attacker->send(wire::frame({.request_id = 9}, wire::Open{tenant("hostile")}));
      rig.loop->run_once(Duration::zero());
      attacker->receive();
    }
    Choices choices(input);
    for (std::size_t i = 0; i < kOpsMax && !choices.end(); ++i) operate(rig, choices, attackers);
    require_the_others_records(*victim, handle);
    for (auto& attacker : attackers) attacker->receive();
  }
  require(rig.until([&] { return clean(rig); }), "nothing is held for connections that are gone");
}

}  // namespace
}  // namespace kvd::node

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  kvd::node::check_input(std::as_bytes(std::span(data, size)));
  return 0;
}
