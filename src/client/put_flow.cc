#include "client/put_flow.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/check.h"

namespace kvd::client {

PutFlow::PutFlow(Op& op) : op_(op), keys_(op.request.keys.count()) { std::iota(keys_.begin(), keys_.end(), 0U); }

void PutFlow::start_group() {
  const std::uint64_t layer_bytes = std::uint64_t{op_.request.layout.slab_bytes()} * keys_.size();
  const std::uint64_t meta_layers = wire::kMetaBytesMax / (8 * keys_.size());
  const std::uint64_t layers_max = std::clamp<std::uint64_t>(kGroupBytes / layer_bytes, 1, meta_layers);
  group_ = 1;
  while (group_ < layers_max && next_ + group_ < op_.request.layer_count && op_.layer_released(next_ + group_)) {
    ++group_;
  }
  checksums_.clear();
  checksums_.reserve(group_ * keys_.size());
}

bool PutFlow::prepare(std::size_t bytes_max) {
  KVD_CHECK(ready());
  if (!preparing()) start_group();
  const OpRequest& request = op_.request;
  const std::size_t slabs = group_ * keys_.size();
  std::size_t hashed = 0;
  while (checksums_.size() < slabs && (hashed == 0 || hashed < bytes_max)) {
    const std::size_t layer = next_ + checksums_.size() / keys_.size();
    const std::size_t key = checksums_.size() % keys_.size();
    const auto schema_layer = static_cast<std::uint32_t>(layer);
    checksums_.push_back(request.layout.checksum(layer, key, request.seeds[key], schema_layer));
    hashed += request.layout.slab_bytes();
  }
  return checksums_.size() == slabs;
}

PutFlow::Message PutFlow::take() {
  KVD_CHECK(preparing() && checksums_.size() == group_ * keys_.size());
  Message message;
  SlabWalk walk(op_.request.layout, next_, group_, keys_);
  message.bytes = walk.left();
  std::array<iovec, 256> pieces;
  while (walk.left() > 0) {
    const auto gathered = walk.gather(pieces, SIZE_MAX);
    for (std::size_t i = 0; i < gathered.count; ++i) {
      message.body.emplace_back(static_cast<const std::byte*>(pieces[i].iov_base), pieces[i].iov_len);
    }
    walk.advance(gathered.bytes, [](std::size_t, std::uint32_t) {});
  }
  const wire::Header header{.request_id = op_.results.whole.op,
                            .items = static_cast<std::uint32_t>(keys_.size()),
                            .layer_first = next_,
                            .layer_count = group_};
  message.head =
      wire::frame(header, wire::PutData{wire::U64View(std::span<const std::uint64_t>(checksums_))}, message.bytes);
  next_ = static_cast<std::uint16_t>(next_ + group_);
  group_ = 0;
  return message;
}

}  // namespace kvd::client
