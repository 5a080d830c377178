#include "client/testing/fake_depot.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "base/check.h"
#include "block/checksum.h"
#include "block/key.h"
#include "block/schema.h"
#include "net/arena.h"
#include "net/socket_stream.h"

namespace kvd::client {
namespace {

constexpr std::uint64_t kMemoryBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kViewGap = 64;  // between the slabs of a view

std::string record_name(const Namespace& ns, std::uint16_t shard, std::uint16_t group, Bytes key) {
  return ns.tenant + '/' + ns.fingerprint + '/' + std::to_string(shard) + '/' + std::to_string(group) + '/' +
         std::string(as_text(key));
}

const GroupSchema* schema_of(const Namespace& ns, std::uint16_t group) {
  const auto found = std::ranges::find(ns.groups, group, &GroupSchema::group);
  return found == ns.groups.end() ? nullptr : &*found;
}

Bytes key_bytes(const KeyList& keys, std::size_t i) { return keys.bytes.subspan(i * keys.key_bytes, keys.key_bytes); }

std::uint64_t seed_of(const Namespace& ns, std::uint16_t shard, std::uint16_t group, const KeyList& keys,
                      std::size_t i) {
  const auto hash = block::hash_namespace(ns.tenant, as_bytes(ns.fingerprint));
  const block::RecordId id{.key = block::key_at(hash, keys, i), .shard = shard, .group = group};
  return block::record_seed(id, block::shape_of(*schema_of(ns, group), !keys.native));
}

}  // namespace

// One connection. A get is produced a message at a time, so that a CANCEL finds something to stop.
class FakeDepot::Session final : public net::MessageHandler {
 public:
  Session(FakeDepot& depot, io::UniqueFd socket)
      : depot_(depot),
        connection_(depot.loop_, *this, counters_, net::make_socket_stream(std::move(socket)),
                    {.queue_bytes_high = std::size_t{4} << 20}) {
    KVD_CHECK(connection_.start().has_value());
  }

  [[nodiscard]] bool closed() const { return closed_; }
  void tell_taken() {
    if (arena_ == nullptr) return;
    send(wire::frame({}, wire::Taken{arena_taken_}));
    connection_.flush();
  }

 private:
  struct Getting {
    std::uint64_t id;
    std::vector<const Record*> records;  // null: failed
    std::size_t layer_first = 0, layer_end = 0, next = 0;
    std::uint32_t slab_bytes = 0;
  };
  struct Putting {
    const Namespace* ns = nullptr;
    wire::Put put;
    std::vector<std::byte> keys;
    std::vector<Record> records;
    std::set<std::size_t> failed;
    std::size_t next_slab = 0;  // in wire order
  };

  Status on_message(const wire::Header& header, Bytes meta) override;
  std::size_t payload_places(std::span<iovec> out) override;
  void payload_landed(std::size_t bytes) override { landed_ += bytes; }
  Status on_payload_end() override;
  void on_drained() override { produce(); }
  void on_closed(const Error&) override { closed_ = true; }

  void send(wire::Buffer head, std::vector<Bytes> body = {}, std::shared_ptr<void> keep = nullptr) {
    connection_.send({.head = std::move(head), .body = std::move(body), .on_done = [keep] {}});
  }
  void give_memory();
  void give_pool();
  void on_hello(const wire::Header& header, Bytes meta);
  void on_open(const wire::Header& header, Bytes meta);
  void on_match(const wire::Header& header, Bytes meta);
  void on_get(const wire::Header& header, Bytes meta);
  void on_put(const wire::Header& header, Bytes meta);
  Status on_put_data(const wire::Header& header, Bytes meta);
  Status on_put_arena(const wire::Header& header, Bytes meta);
  void on_remove(const wire::Header& header, Bytes meta);
  void on_cancel(std::uint64_t id);
  void produce();
  void produce_one(Getting& get);
  void send_view(const wire::Header& header, Bytes failed, const std::vector<std::uint64_t>& checksums,
                 const std::vector<Bytes>& slabs);
  const Namespace& ns(std::uint32_t handle) { return depot_.namespaces_.at(handle - 1); }

  FakeDepot& depot_;
  net::NetCounters counters_;
  net::Connection connection_;
  std::vector<Getting> gets_;
  std::map<std::uint64_t, Putting> puts_;
  bool closed_ = false;
  bool shares_ = false;
  bool keeps_ = false;
  bool takes_parts_ = false;
  std::optional<std::uint64_t> late_;  // what memory it gives, said behind the token
  std::unique_ptr<net::Arena> arena_;
  std::uint64_t arena_taken_ = 0;
  // The PUT data message that is coming in.
  wire::Header data_header_;
  std::size_t data_slab_ = 0;  // its first, in wire order
  std::vector<std::uint64_t> data_checksums_;
  std::vector<std::byte> data_;
  std::size_t landed_ = 0;
};

Status FakeDepot::Session::on_message(const wire::Header& header, Bytes meta) {
  using enum wire::Opcode;
  ++depot_.seen[header.opcode];
  if (header.opcode == kPutData) return on_put_data(header, meta);
  if (header.opcode == kPutArena) return on_put_arena(header, meta);
  if (depot_.script.hung) return {};
  switch (header.opcode) {
    case kHello: on_hello(header, meta); break;
    case kAuth: {
      depot_.tokens_shown.emplace_back(wire::decode<wire::Auth>(header, meta)->token);
      if (depot_.tokens_shown.back() == depot_.script.token) {
        wire::AuthReply reply;
        if (late_ && !depot_.script.late_missing) reply.features = *late_ | depot_.script.late_features;
        send(wire::frame({.flags = wire::kFlagLast}, reply));
        give_memory();
      } else {
        send(wire::error_frame(kAuthReply, 0, Code::kInvalid, "unauthorized"));
      }
      break;
    }
    case kRelease: {
      const auto release = wire::decode<wire::Release>(header, meta);
      for (std::size_t i = 0; i < release->views.size(); ++i) {
        if (depot_.lent.erase(release->views[i]) == 0) ++depot_.releases_bad;
      }
      break;
    }
    case kOpen: on_open(header, meta); break;
    case kMatch: on_match(header, meta); break;
    case kGet: on_get(header, meta); break;
    case kPut: on_put(header, meta); break;
    case kRemove: on_remove(header, meta); break;
    case kCancel: on_cancel(header.request_id); break;
    case kClose: depot_.closed.push_back(wire::decode<wire::Close>(header, meta)->ns); break;
    case kCheck: {
      const Bytes keys = wire::decode<wire::Check>(header, meta)->keys.bytes;
      depot_.checked.insert(depot_.checked.end(), keys.begin(), keys.end());
      break;
    }
    case kUnpin:
      depot_.unpinned.push_back(wire::decode<wire::Unpin>(header, meta)->lease);
      send(wire::frame({.request_id = header.request_id}, wire::UnpinReply{}));
      break;
    case kStats: send(wire::frame({.request_id = header.request_id}, wire::StatsReply{R"({"fake": 1})"})); break;
    case kPing: send(wire::frame({.request_id = header.request_id}, wire::PingReply{})); break;
    default: return fail(Code::kCorrupt, "no request");
  }
  return {};
}

void FakeDepot::Session::on_hello(const wire::Header& header, Bytes meta) {
  const FakeScript& wrong = depot_.script;
  const std::uint64_t asked = wire::decode<wire::Hello>(header, meta)->features;
  depot_.features_asked.push_back(asked);
  shares_ = wrong.shares && (asked & wire::kFeatureSharedMemory) != 0 && connection_.is_local();
  if (depot_.script.hello_status != Code::kOk) {
    return send(wire::error_frame(wire::Opcode::kHelloReply, header.request_id, depot_.script.hello_status,
                                  depot_.script.reason));
  }
  wire::HelloReply reply;
  reply.version = depot_.script.version;
  reply.keys_max = kKeysPerRequestMax;
  reply.ops_max = depot_.script.credits;
  reply.server = "fake";
  if (shares_) reply.features = wire::kFeatureSharedMemory;
  takes_parts_ = wrong.takes_parts && (asked & wire::kFeaturePutParts) != 0;
  if (takes_parts_) reply.features |= wire::kFeaturePutParts;
  keeps_ = shares_ && wrong.keeps && (asked & wire::kFeatureKeep) != 0;
  if (keeps_) reply.features |= wire::kFeatureKeep;
  if (wrong.arena_bytes > 0 && (asked & wire::kFeatureArena) != 0 && connection_.is_local()) {
    arena_ = *net::Arena::create(wrong.arena_bytes);
    reply.features |= wire::kFeatureArena;
  }
  if (!wrong.token.empty()) {
    if ((asked & wire::kFeatureToken) == 0) {
      return send(wire::error_frame(wire::Opcode::kHelloReply, 0, Code::kInvalid, "unauthorized"));
    }
    if (!wrong.early && (asked & wire::kFeatureAuthFeatures) != 0) {
      late_ = reply.features & ~wire::kFeaturePutParts;
      reply.features = (reply.features & wire::kFeaturePutParts) | wire::kFeatureAuthFeatures;
    }
    reply.features |= wire::kFeatureToken;
  }
  send(wire::frame({.request_id = header.request_id}, reply));
  if (wrong.token.empty()) give_memory();
}

void FakeDepot::Session::give_memory() {
  if (shares_) give_pool();
  if (arena_ == nullptr) return;
  connection_.send({.head = wire::frame({}, wire::Arena{arena_->size()}),
                    .body = {},
                    .on_done = {},
                    .descriptor = depot_.script.no_arena ? -1 : arena_->fd()});
}

void FakeDepot::Session::give_pool() {
  if (!depot_.memory_.ok()) {
    depot_.memory_.reset(::memfd_create("fake-depot", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    KVD_CHECK(::ftruncate(depot_.memory_.get(), static_cast<off_t>(kMemoryBytes)) == 0);
    if (!depot_.script.unsealed)
      KVD_CHECK(::fcntl(depot_.memory_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  }
  connection_.send({.head = wire::frame({}, wire::Memory{kMemoryBytes}),
                    .body = {},
                    .on_done = {},
                    .descriptor = depot_.script.no_file ? -1 : depot_.memory_.get()});
  if (!keeps_) return;
  std::array<int, 2> ends{};
  KVD_CHECK(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0);
  depot_.keeper.reset(ends[0]);
  const auto sent = std::make_shared<io::UniqueFd>(ends[1]);
  connection_.send({.head = wire::frame({}, wire::Keeper{}),
                    .body = {},
                    .on_done = [sent] {},
                    .descriptor = depot_.script.no_keeper ? -1 : ends[1]});
}

void FakeDepot::Session::on_open(const wire::Header& header, Bytes meta) {
  const auto open = wire::decode<wire::Open>(header, meta);
  if (depot_.script.open_status != Code::kOk) {
    return send(wire::error_frame(wire::Opcode::kOpenReply, header.request_id, depot_.script.open_status,
                                  depot_.script.reason));
  }
  depot_.namespaces_.push_back(open->ns);
  const auto handle = static_cast<std::uint32_t>(depot_.namespaces_.size());
  send(wire::frame({.request_id = header.request_id}, wire::OpenReply{handle}));
}

void FakeDepot::Session::on_match(const wire::Header& header, Bytes meta) {
  const auto match = wire::decode<wire::Match>(header, meta);
  std::vector<std::byte> tiers(match->blocks, std::byte{static_cast<std::uint8_t>(Tier::kPool)});
  wire::MatchReply reply{.prefix_blocks = 0, .lease = depot_.script.lease, .tiers = tiers};
  for (std::uint32_t i = 0; i < match->blocks; ++i) {
    bool all = true;
    for (const std::uint16_t shard : match->shards) {
      for (std::size_t g = 0; g < match->groups.size(); ++g) {
        const Bytes key = key_bytes(match->keys, g * match->blocks + i);
        all = all && depot_.records_.contains(record_name(ns(match->ns), shard, match->groups[g], key));
      }
    }
    if (!all) break;
    ++reply.prefix_blocks;
  }
  std::ranges::fill(tiers.begin() + reply.prefix_blocks, tiers.end(), std::byte{});
  send(wire::frame({.request_id = header.request_id, .items = match->blocks}, reply));
}

void FakeDepot::Session::on_get(const wire::Header& header, Bytes meta) {
  const auto get = wire::decode<wire::Get>(header, meta);
  if (get->keep) ++depot_.gets_keep;
  const GroupSchema& schema = *schema_of(ns(get->ns), get->group);
  if (depot_.script.get_status != Code::kOk) {
    return send(
        wire::error_frame(wire::Opcode::kGetData, header.request_id, depot_.script.get_status, depot_.script.reason));
  }
  Getting getting{.id = header.request_id,
                  .records = {},
                  .layer_first = header.layer_first,
                  .layer_end = header.layer_count == 0 ? std::size_t{schema.layers}
                                                       : std::size_t{header.layer_first} + header.layer_count,
                  .next = header.layer_first,
                  .slab_bytes = schema.slab_bytes};
  bool stopped = false;
  for (std::size_t i = 0; i < get->keys.count(); ++i) {
    const auto found = depot_.records_.find(record_name(ns(get->ns), get->shard, get->group, key_bytes(get->keys, i)));
    if (found == depot_.records_.end() && get->stop_at_first_failure) stopped = true;
    getting.records.push_back(found == depot_.records_.end() || stopped ? nullptr : &found->second);
  }
  gets_.push_back(std::move(getting));
  produce();
}

void FakeDepot::Session::produce() {
  while (!gets_.empty() && !connection_.congested() && !connection_.closed()) {
    Getting& get = gets_.front();
    produce_one(get);
    if (get.next >= get.layer_end) gets_.erase(gets_.begin());
  }
  connection_.flush();
}

void FakeDepot::Session::produce_one(Getting& get) {
  const FakeScript& wrong = depot_.script;
  const std::size_t layers = std::min<std::size_t>(wrong.layers_per_message, get.layer_end - get.next);
  const std::size_t keys = get.records.size();
  std::vector<std::byte> failed(wire::bitmap_bytes(keys));
  std::vector<std::uint64_t> checksums;
  std::vector<Bytes> body;
  auto flipped = std::make_shared<std::vector<std::vector<std::byte>>>();
  flipped->reserve(keys * layers);
  for (std::size_t layer = get.next; layer < get.next + layers; ++layer) {
    for (std::size_t key = 0; key < keys; ++key) {
      const Record* const record = get.records[key];
      if (record == nullptr) {
        wire::set_bit(failed, key);
        continue;
      }
      checksums.push_back(record->checksums[layer]);
      body.emplace_back(record->slabs[layer]);
      if (!wrong.corrupt.contains({key, layer})) continue;
      flipped->push_back(record->slabs[layer]);
      flipped->back()[get.slab_bytes / 2] ^= std::byte{1};
      body.back() = flipped->back();
    }
  }
  const bool all_failed = checksums.empty();
  const bool last = get.next + layers >= get.layer_end || all_failed;
  wire::Header header{.flags = last && !wrong.last_message_apart ? wire::kFlagLast : std::uint16_t{0},
                      .request_id = get.id,
                      .items = static_cast<std::uint32_t>(keys),
                      .layer_first = static_cast<std::uint16_t>(get.next + (wrong.wrong_layer_order ? 1 : 0)),
                      .layer_count = static_cast<std::uint16_t>(layers)};
  const std::uint64_t bytes = checksums.size() * get.slab_bytes;
  if (shares_ && !all_failed) {
    send_view(header, failed, checksums, body);
  } else {
    const wire::GetData data{.failed = failed, .checksums = wire::U64View(std::span<const std::uint64_t>(checksums))};
    send(wire::frame(header, data, bytes), std::move(body), flipped);
  }
  get.next = all_failed ? get.layer_end : get.next + layers;
  if (last && wrong.last_message_apart) {
    header.flags = wire::kFlagLast;
    header.layer_first = static_cast<std::uint16_t>(get.layer_end);
    header.layer_count = 0;
    send(wire::frame(header, wire::GetData{.failed = failed, .checksums = {}}));
  }
}

// `slabs` in the order of the checksums.
void FakeDepot::Session::send_view(const wire::Header& header, Bytes failed,
                                   const std::vector<std::uint64_t>& checksums, const std::vector<Bytes>& slabs) {
  const std::size_t keys = slabs.size() / header.layer_count;
  std::vector<std::uint64_t> offsets(keys);
  for (std::size_t key = 0; key < keys; ++key) {
    for (std::size_t layer = 0; layer < header.layer_count; ++layer) {
      const std::uint64_t at = depot_.place_in_memory(slabs[layer * keys + key]);
      if (layer == 0) offsets[key] = at;
    }
    if (depot_.script.views_beyond) offsets[key] = kMemoryBytes - slabs[key].size() + 1;
  }
  const wire::GetView view{.view = ++depot_.views,
                           .slab_stride = static_cast<std::uint32_t>(slabs[0].size() + kViewGap),
                           .failed = failed,
                           .offsets = wire::U64View(std::span<const std::uint64_t>(offsets)),
                           .checksums = wire::U64View(std::span<const std::uint64_t>(checksums))};
  depot_.lent.insert(view.view);
  send(wire::frame(header, view));
}

void FakeDepot::Session::on_put(const wire::Header& header, Bytes meta) {
  const auto put = wire::decode<wire::Put>(header, meta);
  if (depot_.script.put_status != Code::kOk) {
    return send(
        wire::error_frame(wire::Opcode::kPutReply, header.request_id, depot_.script.put_status, depot_.script.reason));
  }
  Putting& putting = puts_[header.request_id];
  putting.ns = &ns(put->ns);
  putting.put = *put;
  putting.keys.assign(put->keys.bytes.begin(), put->keys.bytes.end());
  putting.put.keys.bytes = putting.keys;
  putting.records.resize(put->keys.count());
}

Status FakeDepot::Session::on_put_data(const wire::Header& header, Bytes meta) {
  const auto data = wire::decode<wire::PutData>(header, meta);
  if (!data) return fail(data.error());
  if (data->key_first && !takes_parts_) return fail(Code::kCorrupt, "a part where none was agreed on");
  depot_.put_data_of.push_back(header.request_id);
  data_header_ = header;
  data_slab_ = std::size_t{header.layer_first} * header.items + data->key_first.value_or(0);
  data_checksums_.resize(data->checksums.size());
  for (std::size_t i = 0; i < data_checksums_.size(); ++i) data_checksums_[i] = data->checksums[i];
  data_.resize(header.payload_bytes());
  landed_ = 0;
  return {};
}

// As PUT data whose payload is there already.
Status FakeDepot::Session::on_put_arena(const wire::Header& header, Bytes meta) {
  const auto data = wire::decode<wire::PutArena>(header, meta);
  if (!data || arena_ == nullptr) return fail(Code::kCorrupt, "no arena was given");
  if (depot_.script.hung) return {};
  depot_.put_data_of.push_back(header.request_id);
  data_header_ = header;
  data_slab_ = std::size_t{header.layer_first} * header.items + data->key_first;
  data_checksums_.resize(data->checksums.size());
  for (std::size_t i = 0; i < data_checksums_.size(); ++i) data_checksums_[i] = data->checksums[i];
  if (const auto found = puts_.find(header.request_id); found != puts_.end()) {
    const wire::Put& put = found->second.put;
    const std::uint32_t slab_bytes = schema_of(*found->second.ns, put.group)->slab_bytes;
    if (Status lies = wire::check_arena_place(*data, slab_bytes, arena_->size()); !lies) return lies;
    const Bytes slabs = arena_->bytes().subspan(data->offset, data->checksums.size() * slab_bytes);
    data_.assign(slabs.begin(), slabs.end());
    if (depot_.script.arena_scribbled) data_.back() ^= std::byte{1};
    depot_.arena_put_bytes += slabs.size();
  }
  ++arena_taken_;
  if (!depot_.script.arena_keeps) send(wire::frame({}, wire::Taken{arena_taken_ + depot_.script.arena_lies}));
  return on_payload_end();
}

std::size_t FakeDepot::Session::payload_places(std::span<iovec> out) {
  out[0] = {data_.data() + landed_, data_.size() - landed_};
  return 1;
}

Status FakeDepot::Session::on_payload_end() {
  depot_.last_put_data = data_;
  const auto found = puts_.find(data_header_.request_id);
  if (found == puts_.end()) return {};  // cancelled or refused: read and dropped
  Putting& putting = found->second;
  const wire::Put& put = putting.put;
  const std::size_t keys = put.keys.count();
  const std::size_t slab_bytes = schema_of(*putting.ns, put.group)->slab_bytes;
  if (data_slab_ != putting.next_slab || data_header_.items != keys ||
      data_.size() != data_checksums_.size() * slab_bytes) {
    return fail(Code::kCorrupt, "PUT data out of order");
  }
  for (std::size_t i = 0; i < data_checksums_.size(); ++i) {
    const std::size_t key = (data_slab_ + i) % keys;
    const auto layer = static_cast<std::uint32_t>((data_slab_ + i) / keys);
    const Bytes slab = Bytes(data_).subspan(i * slab_bytes, slab_bytes);
    const std::uint64_t seed = seed_of(*putting.ns, put.shard, put.group, put.keys, key);
    if (block::slab_checksum(seed, layer, slab) != data_checksums_[i]) {
      ++depot_.bad_slabs;
      putting.failed.insert(key);
    }
    putting.records[key].slabs.emplace_back(slab.begin(), slab.end());
    putting.records[key].checksums.push_back(data_checksums_[i]);
  }
  putting.next_slab += data_checksums_.size();
  if (putting.next_slab < schema_of(*putting.ns, put.group)->layers * keys || depot_.script.hung) return {};
  std::vector<std::byte> failed(wire::bitmap_bytes(keys));
  for (std::size_t key = 0; key < keys; ++key) {
    if (putting.failed.contains(key)) {
      wire::set_bit(failed, key);
      continue;
    }
    const std::string name = record_name(*putting.ns, put.shard, put.group, key_bytes(put.keys, key));
    depot_.records_[name] = std::move(putting.records[key]);
    ++depot_.records_put;
  }
  wire::PutReply reply{.failed = failed};
  if (!putting.failed.empty()) reply = {.failed = failed, .why = Code::kCorrupt, .reason = "damaged\non its way"};
  send(wire::frame({.flags = wire::kFlagLast, .request_id = found->first, .items = static_cast<std::uint32_t>(keys)},
                   reply));
  puts_.erase(found);
  return {};
}

void FakeDepot::Session::on_remove(const wire::Header& header, Bytes meta) {
  const auto remove = wire::decode<wire::Remove>(header, meta);
  const std::size_t blocks = remove->keys.count() / remove->groups.size();
  wire::RemoveReply reply;
  for (const std::uint16_t shard : remove->shards) {
    for (std::size_t i = 0; i < remove->keys.count(); ++i) {
      const std::string name =
          record_name(ns(remove->ns), shard, remove->groups[i / blocks], key_bytes(remove->keys, i));
      reply.removed += static_cast<std::uint32_t>(depot_.records_.erase(name));
    }
  }
  send(wire::frame({.request_id = header.request_id}, reply));
}

void FakeDepot::Session::on_cancel(std::uint64_t id) {
  if (puts_.erase(id) > 0) {
    send(wire::error_frame(wire::Opcode::kPutReply, id, Code::kCancelled, ""));
  } else if (std::erase_if(gets_, [id](const Getting& get) { return get.id == id; }) > 0) {
    send(wire::error_frame(wire::Opcode::kGetData, id, Code::kCancelled, ""));
  }
  produce();
}

FakeDepot::FakeDepot(io::Loop& loop, const std::string& address) : loop_(loop) {
  listen(address);
  address_ = listener_->address().text();
}

void FakeDepot::listen(const std::string& address) {
  auto listener = net::Listener::bind(loop_, *net::parse_address(address));
  KVD_CHECK(listener.has_value());
  listener_ = std::move(*listener);
  KVD_CHECK(listener_->start([this](io::UniqueFd socket) { on_accept(std::move(socket)); }).has_value());
}

FakeDepot::~FakeDepot() = default;

void FakeDepot::listen_locally() {
  local_listener_ = std::move(*listener_->bind_local_socket(loop_));
  KVD_CHECK(local_listener_->start([this](io::UniqueFd socket) { on_accept(std::move(socket)); }).has_value());
}

void FakeDepot::kill() {
  listener_.reset();
  local_listener_.reset();
  sessions_.clear();
}

void FakeDepot::restart() { listen(address_); }

void FakeDepot::scribble() {
  const std::vector<std::byte> noise(memory_at_, std::byte{0x5C});
  KVD_CHECK(::pwrite(memory_.get(), noise.data(), noise.size(), 0) == static_cast<ssize_t>(noise.size()));
}

void FakeDepot::tell_taken() {
  for (const auto& session : sessions_) session->tell_taken();
}

void FakeDepot::drop_connections() { sessions_.clear(); }

// Behind what was placed last; a test places no more than fits.
std::uint64_t FakeDepot::place_in_memory(Bytes bytes) {
  const std::uint64_t at = memory_at_;
  memory_at_ += bytes.size() + kViewGap;
  KVD_CHECK(memory_at_ <= kMemoryBytes);
  KVD_CHECK(::pwrite(memory_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at)) ==
            static_cast<ssize_t>(bytes.size()));
  return at;
}

void FakeDepot::on_accept(io::UniqueFd socket) {
  std::erase_if(sessions_, [](const auto& session) { return session->closed(); });
  ++connections;
  sessions_.push_back(std::make_unique<Session>(*this, std::move(socket)));
}

void FakeDepot::store(const Namespace& ns, std::uint16_t shard, std::uint16_t group, Bytes key, bool native,
                      const std::vector<std::vector<std::byte>>& slabs) {
  const KeyList keys{.bytes = key, .key_bytes = static_cast<std::uint16_t>(key.size()), .native = native};
  const std::uint64_t seed = seed_of(ns, shard, group, keys, 0);
  Record record{.slabs = slabs, .checksums = {}};
  for (std::size_t layer = 0; layer < slabs.size(); ++layer) {
    record.checksums.push_back(block::slab_checksum(seed, static_cast<std::uint32_t>(layer), slabs[layer]));
  }
  records_[record_name(ns, shard, group, key)] = std::move(record);
}

FakeDepotThread::FakeDepotThread(const std::string& address) : loop_(std::move(*io::make_real_loop())) {
  depot_ = std::make_unique<FakeDepot>(*loop_, address);
  address_ = depot_->address();
  thread_ = std::thread([this] { loop_->run(); });
}

FakeDepotThread::~FakeDepotThread() {
  loop_->post([this] {
    depot_.reset();
    loop_->stop();
  });
  thread_.join();
}

void FakeDepotThread::run(const std::function<void(FakeDepot&)>& work) {
  std::promise<void> done;
  loop_->post([&] {
    work(*depot_);
    done.set_value();
  });
  done.get_future().wait();
}

}  // namespace kvd::client
