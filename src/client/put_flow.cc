#include "client/put_flow.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace kvd::client {

PutFlow::PutFlow(Op& op, bool parts, std::shared_ptr<ArenaRoom> arena)
    : op_(op),
      parts_(parts),
      arena_(arena != nullptr && op.request.layout.slab_bytes() <= arena->stretch_max() ? std::move(arena) : nullptr),
      keys_(op.request.keys.count()) {
  std::iota(keys_.begin(), keys_.end(), 0U);
}

PutFlow::~PutFlow() {
  if (arena_ != nullptr && preparing()) arena_->drop();
}

void PutFlow::start_message() {
  const std::uint64_t slab_bytes = op_.request.layout.slab_bytes();
  const std::size_t keys = keys_.size();
  std::size_t slabs_max = 0;
  if (parts_ || arena_ != nullptr) {
    const std::uint64_t bytes_max = arena_ == nullptr ? kPartBytes : std::min(kArenaPartBytes, arena_->stretch_max());
    slabs_max = std::clamp<std::uint64_t>(bytes_max / slab_bytes, 1, kPartSlabsMax);
  } else {
    const std::uint64_t meta_layers = wire::kMetaBytesMax / (8 * keys);
    slabs_max = keys * std::clamp<std::uint64_t>(kGroupBytes / (slab_bytes * keys), 1, meta_layers);
  }
  std::size_t layer_end = layer_of(next_) + 1;
  while (layer_end * keys < next_ + slabs_max && layer_end < op_.request.layer_count && op_.layer_released(layer_end))
    ++layer_end;
  message_slabs_ = std::min(layer_end * keys - next_, slabs_max);
  checksums_.clear();
  checksums_.reserve(message_slabs_);
}

bool PutFlow::has_room() {
  KVD_CHECK(ready());
  if (preparing()) return true;
  start_message();
  if (arena_ == nullptr) return true;
  const auto offset = arena_->begin(message_slabs_ * op_.request.layout.slab_bytes());
  if (!offset) message_slabs_ = 0;
  offset_ = offset.value_or(0);
  return offset.has_value();
}

bool PutFlow::prepare(std::size_t bytes_max) {
  KVD_CHECK(has_room());
  const OpRequest& request = op_.request;
  const std::size_t slab_bytes = request.layout.slab_bytes();
  std::size_t hashed = 0;
  while (checksums_.size() < message_slabs_ && (hashed == 0 || hashed < bytes_max)) {
    const std::size_t layer = layer_of(next_ + checksums_.size());
    const std::size_t key = (next_ + checksums_.size()) % keys_.size();
    const auto schema_layer = static_cast<std::uint32_t>(layer);
    if (arena_ == nullptr) {
      checksums_.push_back(request.layout.checksum(layer, key, request.seeds[key], schema_layer));
    } else {
      const MutableBytes place = arena_->stretch().subspan(checksums_.size() * slab_bytes, slab_bytes);
      checksums_.push_back(request.layout.copy_out(layer, key, request.seeds[key], schema_layer, place));
    }
    hashed += slab_bytes;
  }
  return checksums_.size() == message_slabs_;
}

PutFlow::Message PutFlow::take() {
  KVD_CHECK(preparing() && checksums_.size() == message_slabs_);
  if (arena_ != nullptr) return take_from_arena();
  Message message;
  const std::size_t layer = layer_of(next_);
  const auto key = static_cast<std::uint32_t>(next_ % keys_.size());
  SlabWalk walk = SlabWalk::part(op_.request.layout, layer, key, message_slabs_, keys_);
  message.bytes = walk.left();
  std::array<iovec, 256> pieces;
  while (walk.left() > 0) {
    const auto gathered = walk.gather(pieces, SIZE_MAX);
    for (std::size_t i = 0; i < gathered.count; ++i) {
      message.body.emplace_back(static_cast<const std::byte*>(pieces[i].iov_base), pieces[i].iov_len);
    }
    walk.advance(gathered.bytes, [](std::size_t, std::uint32_t) {});
  }
  wire::Header header{.request_id = op_.results.whole.op,
                      .items = static_cast<std::uint32_t>(keys_.size()),
                      .layer_first = static_cast<std::uint16_t>(layer)};
  wire::PutData data{.checksums = wire::U64View(std::span<const std::uint64_t>(checksums_))};
  if (parts_) {
    data.key_first = key;
  } else {
    header.layer_count = static_cast<std::uint16_t>(message_slabs_ / keys_.size());
  }
  message.head = wire::frame(header, data, message.bytes);
  next_ += message_slabs_;
  message_slabs_ = 0;
  return message;
}

PutFlow::Message PutFlow::take_from_arena() {
  const wire::Header header{.request_id = op_.results.whole.op,
                            .items = static_cast<std::uint32_t>(keys_.size()),
                            .layer_first = static_cast<std::uint16_t>(layer_of(next_))};
  const wire::PutArena data{.key_first = static_cast<std::uint32_t>(next_ % keys_.size()),
                            .offset = offset_,
                            .checksums = wire::U64View(std::span<const std::uint64_t>(checksums_))};
  Message message{.head = wire::frame(header, data),
                  .body = {},
                  .bytes = message_slabs_ * std::uint64_t{op_.request.layout.slab_bytes()}};
  arena_->send();
  next_ += message_slabs_;
  message_slabs_ = 0;
  return message;
}

}  // namespace kvd::client
