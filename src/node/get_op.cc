#include "node/get_op.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/check.h"

namespace kvd::node {
namespace {

constexpr std::uint64_t kMessageBytes = std::uint64_t{2} << 20;  // loopback saturates from 1 MiB a call on
constexpr std::uint64_t kAnyBytes = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kReadBytes = std::uint64_t{256} << 10;  // I/O of a record that a device likes (storage.md 4)
constexpr std::uint64_t kFirstReadBytes = std::uint64_t{64} << 10;  // the first group is small: it is waited for
constexpr std::uint64_t kTableBytes = 4096;                         // what a stretch of layers takes beside them
constexpr std::uint64_t kWindowBytes = std::uint64_t{64} << 20;     // read ahead: 20 ms of a 3 GB/s device
constexpr std::size_t kPiecesMax = 4096;                            // slabs of a message that holds several layers
constexpr std::size_t kKeysTogether = 64;  // keys; beyond the first that is absent some are looked up for nothing

std::uint16_t layers_for(std::uint64_t bytes, std::uint64_t layer_bytes) noexcept {
  return static_cast<std::uint16_t>(std::clamp<std::uint64_t>((bytes + layer_bytes - 1) / layer_bytes, 1, kLayersMax));
}

wire::U64View view_of(const auto& numbers) {
  return wire::U64View(std::span<const std::uint64_t>(numbers.data(), numbers.size()));
}

}  // namespace

GetOp::GetOp(NodeContext& context, Pins& connection_pins, const Request& request, std::unique_ptr<OpKeys> keys,
             io::Callback on_progress)
    : context_(context),
      connection_pins_(connection_pins),
      request_(request),
      keys_(std::move(keys)),
      on_progress_(std::move(on_progress)),
      failed_(keys_->count()),
      window_max_(kWindowBytes),
      next_read_(request.layer_first),
      next_layer_(request.layer_first) {
  KVD_CHECK(request.layer_end > request.layer_first);
}

GetOp::~GetOp() { abort(); }

void GetOp::abort() {
  if (std::exchange(aborted_, true)) return;
  on_progress_ = nullptr;
  for (Fetch& fetch : records_) stop(fetch);
  for (const auto& group : groups_) {
    for (Fetch& fetch : group->fetches) stop(fetch);
  }
}

void GetOp::stop(Fetch& fetch) {
  if (fetch.active) context_.store.cancel(fetch.get);
}

void GetOp::advance() {
  if (aborted_) return;
  if (!started_ && !ask_pool()) return;
  cancel_useless();
  while (ask_group()) {
  }
}

// Pins the records that are in the pool; those on flash are read in groups. False when the budget has no room: nothing
// has been touched then. Who waits is asked whenever something becomes free, so that must not cost a lookup of each
// key.
bool GetOp::ask_pool() {
  if (refused_bytes_ > 0 && !connection_pins_.may_take(refused_bytes_)) return false;
  const std::size_t count = keys_->count();
  Few<Tier, kKeysTogether> tiers(count, Tier::kNone);
  std::array<block::RecordId, kKeysTogether> ids;
  for (std::size_t first = 0; first < count; first += ids.size()) {
    const std::size_t some = std::min(ids.size(), count - first);
    for (std::size_t i = 0; i < some; ++i) ids[i] = keys_->id(first + i);
    const auto found = std::span(tiers.data() + first, some);
    context_.store.lookup_all(request_.ns, std::span(ids).first(some), found);
    const auto absent = std::ranges::find(found, Tier::kNone);
    if (absent == found.end() || !request_.stop_at_first_failure) continue;
    std::fill(absent, found.end(), Tier::kNone);
    break;
  }
  if (!take_share({tiers.data(), tiers.size()})) return false;
  started_ = true;
  records_.resize(count);
  contents_.resize(count);
  std::uint64_t pins_left = streams_ ? window_max_ : std::numeric_limits<std::uint64_t>::max();
  for (std::size_t key = 0; key < count; ++key) {
    if (failed_.has(key)) continue;
    const bool passes = tiers[key] == Tier::kPool && pins_left < request_.record_bytes;
    if (tiers[key] == Tier::kFlash || passes) {
      flash_keys_.push_back(key);
      continue;
    }
    if (tiers[key] == Tier::kPool) pins_left -= request_.record_bytes;
    // Absent ones too: the store counts the miss.
    start(records_[key], key, request_.layer_first, request_.layer_end, records_pending_);
  }
  return true;
}

// Takes what the records need of the budgets, all of it or nothing. It is not taken and given back: that would wake
// those who wait for the first of the two budgets, and they this one.
bool GetOp::take_share(std::span<const Tier> tiers) {
  const auto absent = static_cast<std::size_t>(std::ranges::count(tiers, Tier::kNone));
  if (absent == tiers.size()) return true;
  std::uint64_t bytes = (tiers.size() - absent) * request_.record_bytes;
  const std::uint64_t bytes_max = std::min(connection_pins_.bytes_max(), context_.pinned.bytes_max());
  const auto flash_bytes = static_cast<std::uint64_t>(std::ranges::count(tiers, Tier::kFlash)) * request_.record_bytes;
  const std::uint64_t room = context_.store.room_bytes(request_.ns);
  // Images of the size of records leave holes between what others hold: they are not asked to fill all of the room.
  streams_ = flash_bytes > 0 && (bytes > bytes_max || flash_bytes > room / 4 * 3);
  if (streams_) bytes = std::min(bytes, bytes_max);
  window_max_ = streams_ ? std::min({kWindowBytes, bytes_max / 2, room / 8 * 3}) : kWindowBytes;
  if (!connection_pins_.may_take(bytes)) {
    refused_bytes_ = std::min(bytes, bytes_max);  // a GET of more may stream when it is asked again
    return false;
  }
  share_ = connection_pins_.take_of_all(bytes);
  share_bytes_ = bytes;
  return true;
}

// How many layers the next group has. One that streams leaves room for a second group while it is being sent.
std::uint16_t GetOp::group_layers() const {
  const std::uint64_t io_bytes = next_read_ == request_.layer_first ? kFirstReadBytes : kReadBytes;
  std::uint64_t layers = layers_for(io_bytes, request_.slab_stride);
  if (streams_) {
    const std::uint64_t record_bytes = window_max_ / 2 / flash_keys_.size();
    const std::uint64_t fit = record_bytes > kTableBytes ? (record_bytes - kTableBytes) / request_.slab_stride : 0;
    layers = std::clamp<std::uint64_t>(fit, 1, layers);
  }
  return static_cast<std::uint16_t>(std::min<std::uint64_t>(layers, request_.layer_end - next_read_));
}

// Starts to read the next group of layers. False when there is none, or the window is full.
bool GetOp::ask_group() {
  if (next_read_ >= request_.layer_end || failed_.left() == 0) return false;
  std::erase_if(flash_keys_, [this](std::size_t key) { return failed_.has(key); });
  if (flash_keys_.empty()) return false;
  const std::uint16_t layers = group_layers();
  const std::uint64_t bytes = (std::uint64_t{layers} * request_.slab_stride + kTableBytes) * flash_keys_.size();
  if (window_bytes_ != 0 && window_bytes_ + bytes > window_max_) return false;
  auto group = std::make_shared<Group>();
  group->first = next_read_;
  group->end = next_read_ = static_cast<std::uint16_t>(next_read_ + layers);
  group->bytes = bytes;
  group->fetches.resize(flash_keys_.size());
  window_bytes_ += bytes;
  groups_.push_back(group);
  for (std::size_t i = 0; i < group->fetches.size(); ++i) {
    const std::size_t key = flash_keys_[i];
    group->fetches[i].key = key;
    if (failed_.has(key)) continue;  // failed inside an earlier start of this loop
    start(group->fetches[i], key, group->first, group->end, group->pending);
  }
  return true;
}

void GetOp::start(Fetch& fetch, std::size_t key, std::uint16_t first, std::uint16_t end, std::size_t& pending) {
  fetch.key = key;
  fetch.active = true;
  ++pending;
  fetch.get.ns = request_.ns;
  fetch.get.id = keys_->id(key);
  fetch.get.foreign = keys_->foreign(key);
  fetch.get.layer_first = first;
  fetch.get.layer_count = static_cast<std::uint16_t>(end - first);
  fetch.get.deadline = request_.deadline;
  fetch.get.passing = streams_ && &pending != &records_pending_;
  fetch.get.on_done = [this, &fetch, &pending](Result<store::RecordView> result) {
    --pending;
    arrived(fetch, std::move(result));
  };
  context_.store.start_get(fetch.get);
}

void GetOp::arrived(Fetch& fetch, Result<store::RecordView> result) {
  fetch.active = false;
  if (aborted_) return;
  if (result && is_same(fetch.key, result->content))
    fetch.view = std::move(*result);
  else
    fail_key(fetch.key);
  if (on_progress_) on_progress_();
}

// Whether a stretch of a record is of the same put as what came before it.
bool GetOp::is_same(std::size_t key, std::uint64_t content) {
  if (contents_[key] == 0) contents_[key] = content;
  return contents_[key] == content;
}

// From here on the key is in every bitmap; what comes after it is useless when the client said so.
void GetOp::fail_key(std::size_t key) {
  if (!failed_.add(key)) return;
  if (!request_.stop_at_first_failure) return;
  for (std::size_t later = key + 1; later < keys_->count(); ++later) failed_.add(later);
}

// Gives back what is being read for keys that have failed meanwhile. Not from inside a completion of the store.
void GetOp::cancel_useless() {
  if (failed_.failed() == 0) return;
  for (Fetch& fetch : records_) {
    if (fetch.active && failed_.has(fetch.key)) stop(fetch);
  }
  for (const auto& group : groups_) {
    for (Fetch& fetch : group->fetches) {
      if (fetch.active && failed_.has(fetch.key)) stop(fetch);
    }
  }
}

// Some key that is still alive is read in groups.
bool GetOp::streaming() const {
  return std::ranges::any_of(flash_keys_, [this](std::size_t key) { return !failed_.has(key); });
}

bool GetOp::ready() const {
  if (aborted_ || !started_ || finished()) return false;
  if (failed_.left() == 0) return true;
  if (records_pending_ > 0) return false;
  if (!streaming()) return true;
  return !groups_.empty() && groups_.front()->pending == 0;
}

// Where the next message ends: enough whole layers for a good size, and no more than have `bytes_max`. When nothing has
// to be read, the first message is one layer, so that a consumer that works layer by layer starts at once.
std::uint16_t GetOp::message_end(std::uint64_t bytes_max) const {
  const std::uint16_t limit = streaming() ? groups_.front()->end : request_.layer_end;
  if (flash_keys_.empty() && next_layer_ == request_.layer_first) return static_cast<std::uint16_t>(next_layer_ + 1);
  const std::uint64_t layer_bytes = std::uint64_t{failed_.left()} * request_.slab_bytes;
  const std::uint64_t most =
      std::clamp<std::uint64_t>(bytes_max / layer_bytes, 1, layers_for(kMessageBytes, layer_bytes));
  const std::uint64_t layers = std::clamp<std::uint64_t>(kPiecesMax / failed_.left(), 1, most);
  return static_cast<std::uint16_t>(std::min<std::uint64_t>(next_layer_ + layers, limit));
}

// The same of a view that is kept: it is used with the others of its GET, and brings no bytes that others would wait
// behind, so it has all that there is.
std::uint16_t GetOp::kept_end() const {
  const std::uint16_t limit = streaming() ? groups_.front()->end : request_.layer_end;
  const std::uint64_t layers = std::clamp<std::uint64_t>(kPiecesMax / failed_.left(), 1, kLayersMax);
  return static_cast<std::uint16_t>(std::min<std::uint64_t>(next_layer_ + layers, limit));
}

// The header of the next message, which ends there and behind which the op is.
wire::Header GetOp::take_layers(std::shared_ptr<Group>& carried, std::uint16_t end) {
  wire::Header header{
      .request_id = request_.id, .items = static_cast<std::uint32_t>(keys_->count()), .layer_first = next_layer_};
  if (failed_.left() == 0) {
    next_layer_ = request_.layer_end;  // nothing is left to send: this covers all layers
  } else {
    next_layer_ = end;
    // Otherwise nothing of a group is sent, and the store may still owe its fetches: it stays here to be cancelled.
    if (streaming()) carried = groups_.front();
  }
  header.layer_count = static_cast<std::uint16_t>(next_layer_ - header.layer_first);
  if (finished()) header.flags = wire::kFlagLast;
  if (carried != nullptr) {
    ++carried->messages;
    carried->taken = next_layer_ == carried->end;
    if (carried->taken) groups_.erase(groups_.begin());
  }
  return header;
}

// The op itself is kept too: records that are pinned whole stay until the last message is done with.
io::Callback GetOp::done_with(std::shared_ptr<Group> carried) {
  return [self = shared_from_this(), carried = std::move(carried)] {
    if (carried != nullptr) self->message_done(*carried);
  };
}

// The slabs of a message, layer by layer, and their checksums.
void GetOp::gather(const wire::Header& header, const Stretches& records, std::vector<Bytes>& slabs,
                   Numbers& checksums) const {
  slabs.reserve(header.layer_count * records.size());
  checksums.reserve(header.layer_count * records.size());
  for (std::uint16_t layer = header.layer_first; layer < next_layer_; ++layer) {
    for (const Stretch& record : records) {
      const std::size_t i = static_cast<std::size_t>(layer - record.first);
      slabs.emplace_back(record.view->first_slab + i * record.view->slab_stride, request_.slab_bytes);
      checksums.push_back(record.view->checksums[i]);
    }
  }
}

net::Outgoing GetOp::next() {
  KVD_CHECK(ready());
  Stretches records;
  if (failed_.left() > 0) records = living();
  std::shared_ptr<Group> carried;
  const wire::Header header = take_layers(carried, failed_.left() > 0 ? message_end(kAnyBytes) : 0);
  Numbers checksums;
  net::Outgoing message;
  gather(header, records, message.body, checksums);
  message.head = wire::frame(header, wire::GetData{failed_.bitmap(), view_of(checksums)},
                             message.body.size() * request_.slab_bytes);
  message.on_done = done_with(std::move(carried));
  return message;
}

net::Outgoing GetOp::next_copied(std::uint64_t view, std::uint64_t offset, std::uint64_t bytes_max) {
  KVD_CHECK(ready() && failed_.left() > 0);
  const Stretches records = living();
  std::shared_ptr<Group> carried;
  const wire::Header header = take_layers(carried, message_end(bytes_max));
  net::Outgoing message;
  Numbers offsets;
  Numbers checksums;
  gather(header, records, message.body, checksums);
  for (std::size_t i = 0; i < records.size(); ++i) offsets.push_back(offset + i * request_.slab_bytes);
  const wire::GetView copied{.view = view,
                             .slab_stride = static_cast<std::uint32_t>(records.size() * request_.slab_bytes),
                             .failed = failed_.bitmap(),
                             .offsets = view_of(offsets),
                             .checksums = view_of(checksums)};
  message.head = wire::frame(header, copied);
  message.on_done = done_with(std::move(carried));
  return message;
}

net::Outgoing GetOp::next_view(std::uint64_t view) {
  KVD_CHECK(ready() && failed_.left() > 0);
  const Stretches records = living();
  std::shared_ptr<Group> carried;
  const wire::Header header = take_layers(carried, request_.keep ? kept_end() : message_end(kAnyBytes));
  // The window is of what is on its way; what is kept may stay for as long as the client likes, and is bounded as that.
  if (request_.keep && carried != nullptr) window_bytes_ -= std::exchange(carried->bytes, 0);
  Numbers offsets;
  Numbers checksums;
  offsets.reserve(records.size());
  checksums.reserve(header.layer_count * records.size());
  for (const Stretch& record : records) {
    KVD_CHECK(record.view->slab_stride == request_.slab_stride);
    offsets.push_back(record.view->pool_offset + std::uint64_t{request_.slab_stride} *
                                                     static_cast<std::uint64_t>(header.layer_first - record.first));
  }
  for (std::uint16_t layer = header.layer_first; layer < next_layer_; ++layer) {
    for (const Stretch& record : records) {
      checksums.push_back(record.view->checksums[static_cast<std::size_t>(layer - record.first)]);
    }
  }
  const wire::GetView lent{.view = view,
                           .slab_stride = request_.slab_stride,
                           .failed = failed_.bitmap(),
                           .offsets = view_of(offsets),
                           .checksums = view_of(checksums)};
  return {.head = wire::frame(header, lent), .body = {}, .on_done = done_with(std::move(carried))};
}

// In key order.
GetOp::Stretches GetOp::living() const {
  Stretches records;
  records.reserve(failed_.left());
  std::size_t in_group = 0;
  for (std::size_t key = 0; key < keys_->count(); ++key) {
    if (failed_.has(key)) continue;
    if (records_[key].view.pin) {
      records.push_back({&records_[key].view, request_.layer_first});
      continue;
    }
    const Group& group = *groups_.front();
    while (in_group < group.fetches.size() && group.fetches[in_group].key != key) ++in_group;
    KVD_CHECK(in_group < group.fetches.size() && group.fetches[in_group].view.pin);
    records.push_back({&group.fetches[in_group].view, group.first});
  }
  return records;
}

// A message is in the socket, was withdrawn, or went with the connection. With a group's last one its pins go and the
// window moves on.
void GetOp::message_done(Group& group) {
  if (--group.messages > 0 || !group.taken) return;
  KVD_CHECK(group.pending == 0);  // the store answers into the fetches
  group.fetches.clear();
  window_bytes_ -= group.bytes;
  if (on_progress_ && next_read_ < request_.layer_end) on_progress_();
}

}  // namespace kvd::node
