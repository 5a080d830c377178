#include "client/get_flow.h"

#include <numeric>

#include "base/check.h"

namespace kvd::client {

GetFlow::GetFlow(Op& op, OpTable& table, GetCounters& counters, bool verify)
    : op_(op),
      table_(table),
      counters_(counters),
      verify_(verify),
      failed_(op.request.keys.count()),
      live_(op.request.keys.count()) {
  std::iota(live_.begin(), live_.end(), 0U);
}

Status GetFlow::begin(const wire::Header& header, const wire::GetData& data) {
  const OpRequest& request = op_.request;
  if (walk_.left() > 0 || header.items != request.keys.count()) {
    return fail(Code::kCorrupt, "GET data that belongs to no get");
  }
  if (Status taken = take_failures(data.failed); !taken) return taken;
  const bool gives_up = header.last() && live_.empty();  // the rest of the layers has no keys left
  const std::uint32_t first = std::uint32_t{request.layer_first} + announced_;
  const std::uint32_t end = std::uint32_t{announced_} + header.layer_count;
  if (header.layer_first != first || end > request.layer_count || (header.layer_count == 0 && !gives_up)) {
    return fail(Code::kCorrupt, "GET data out of layer order");
  }
  if (data.checksums.size() != header.layer_count * live_.size()) {
    return fail(Code::kCorrupt, "GET data with another number of checksums than slabs");
  }
  if (Status sized = wire::check_get_payload(header, data, request.layout.slab_bytes()); !sized) return sized;
  message_end_ = gives_up ? request.layer_count : static_cast<std::uint16_t>(end);
  if (header.last() && message_end_ < request.layer_count) {
    return fail(Code::kCorrupt, "GET data ends before its last layer");
  }
  checksums_.resize(data.checksums.size());
  for (std::size_t i = 0; i < checksums_.size(); ++i) checksums_[i] = data.checksums[i];
  checksum_at_ = 0;
  walk_ = SlabWalk(request.layout, announced_, header.layer_count, live_);
  if (live_.empty()) {
    while (announced_ < message_end_) announce_layer();
  }
  return {};
}

// Takes over the depot's bitmap: what has failed there stays failed, and has no slabs from now on.
Status GetFlow::take_failures(Bytes failed) {
  const std::size_t keys = op_.request.keys.count();
  if (failed.size() != wire::bitmap_bytes(keys)) return fail(Code::kCorrupt, "GET data with a bitmap of another size");
  const std::size_t failing = wire::count_bits(failed);
  if (failing == 0 && live_.size() == keys) return {};
  std::erase_if(live_, [&](std::uint32_t key) {
    if (!wire::bit(failed, key)) return false;
    fail_key(key);
    return true;
  });
  // A key that had failed and is alive again makes these differ.
  if (keys - live_.size() != failing) return fail(Code::kCorrupt, "GET data with a failed key that is back");
  return {};
}

void GetFlow::fail_key(std::size_t key) {
  if (op_.request.stop_at_first_failure) {
    failed_.set_from(key);
  } else {
    failed_.set(key);
  }
}

std::size_t GetFlow::places(std::span<iovec> out) const { return walk_.gather(out, kReceiveBytesMax).count; }

void GetFlow::landed(std::size_t bytes) {
  counters_.bytes_loaded.add(bytes);
  walk_.advance(bytes, [this](std::size_t layer, std::uint32_t key) { on_slab(layer, key); });
}

void GetFlow::on_slab(std::size_t layer, std::uint32_t key) {
  const OpRequest& request = op_.request;
  const std::uint64_t expected = checksums_[checksum_at_++];
  if (verify_ && !failed_.test(key)) {
    const auto schema_layer = static_cast<std::uint32_t>(request.layer_first + layer);
    if (request.layout.checksum(layer, key, request.seeds[key], schema_layer) != expected) {
      counters_.corrupt_slabs.add();
      damaged_.push_back(key);
      fail_key(key);
    }
  }
  if (key == live_.back()) announce_layer();
}

void GetFlow::announce_layer() {
  KVD_CHECK(announced_ < message_end_);
  op_.results.layers[announced_] = {.failed_keys = failed_.count(), .failed = failed_.snapshot(op_.results)};
  ++announced_;
  table_.announce_layer(op_);
}

void GetFlow::fill_whole(Completion& whole) {
  whole.failed_keys = failed_.count();
  whole.failed = failed_.snapshot(op_.results);
}

}  // namespace kvd::client
