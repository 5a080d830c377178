#include "client/layout.h"

#include <algorithm>
#include <cstring>

#include "block/verified_copy.h"

namespace kvd::client {
namespace {

std::uint64_t max_of(const std::vector<std::uint64_t>& values) noexcept {
  return values.empty() ? 0 : *std::ranges::max_element(values);
}

// True when base + length <= limit without overflow.
bool fits(std::uint64_t limit, std::uint64_t base, std::uint64_t length) noexcept {
  return base <= limit && length <= limit - base;
}

}  // namespace

Result<Layout> Layout::make(MutableBytes region, const Placement& placement, std::size_t layers, std::size_t keys,
                            std::uint32_t slab_bytes) {
  if (placement.layer_offset.size() != layers) return fail(Code::kInvalid, "one layer offset per layer is needed");
  if (placement.block_offset.size() != keys) return fail(Code::kInvalid, "one block offset per key is needed");
  Layout layout;
  layout.base_ = region.data();
  layout.slab_bytes_ = slab_bytes;
  layout.slab_extent_ = slab_bytes;
  layout.layer_offset_.assign(placement.layer_offset.begin(), placement.layer_offset.end());
  layout.block_offset_.assign(placement.block_offset.begin(), placement.block_offset.end());
  if (!placement.runs.empty()) {
    if (Status set = layout.set_runs(placement.runs); !set) return fail(set.error());
  }
  const std::uint64_t layer_max = max_of(layout.layer_offset_);
  const std::uint64_t block_max = max_of(layout.block_offset_);
  if (!fits(region.size(), layer_max, block_max) || !fits(region.size(), layer_max + block_max, layout.slab_extent_)) {
    return fail(Code::kInvalid, "a slab lies outside its region");
  }
  return layout;
}

Layout Layout::packed(std::byte* base, std::size_t layers, std::size_t keys, std::uint32_t slab_bytes) {
  Layout layout;
  layout.base_ = base;
  layout.slab_bytes_ = slab_bytes;
  layout.slab_extent_ = slab_bytes;
  for (std::size_t l = 0; l < layers; ++l) layout.layer_offset_.push_back(std::uint64_t{l} * keys * slab_bytes);
  for (std::size_t k = 0; k < keys; ++k) layout.block_offset_.push_back(std::uint64_t{k} * slab_bytes);
  return layout;
}

Status Layout::set_runs(std::span<const Run> runs) {
  std::uint64_t total = 0;
  std::uint64_t extent = 0;
  for (Run run : runs) {
    if (run.count == 0 || run.length == 0) return fail(Code::kInvalid, "a run is empty");
    if (run.count > 1 && run.stride < run.length) return fail(Code::kInvalid, "the pieces of a run overlap");
    const std::uint64_t bytes = std::uint64_t{run.count} * run.length;  // < 2^64: both are 32 bits wide
    if (bytes > slab_bytes_ - total) return fail(Code::kInvalid, "the runs are longer than a slab");
    total += bytes;
    constexpr std::uint64_t kFar = std::uint64_t{1} << 62;  // beyond any region: keeps the sums below from wrapping
    if (run.offset > kFar || (run.count > 1 && run.stride > kFar / run.count)) {
      return fail(Code::kInvalid, "a slab lies outside its region");
    }
    extent = std::max(extent, run.offset + std::uint64_t{run.count - 1} * run.stride + run.length);
    if (run.count == 1 || run.stride == run.length) {
      run = Run{.offset = run.offset, .stride = 0, .count = 1, .length = static_cast<std::uint32_t>(bytes)};
    }
    const bool joins = run.count == 1 && !runs_.empty() && runs_.back().count == 1 &&
                       runs_.back().offset + runs_.back().length == run.offset;
    if (joins) {
      runs_.back().length += run.length;
    } else {
      runs_.push_back(run);
    }
  }
  if (total != slab_bytes_) return fail(Code::kInvalid, "the runs are shorter than a slab");
  slab_extent_ = extent;
  if (runs_.size() == 1 && runs_[0].count == 1 && runs_[0].offset == 0) runs_.clear();
  return {};
}

std::uint64_t Layout::pieces() const noexcept {
  std::uint64_t pieces = runs_.empty() ? 1 : 0;
  for (const Run& run : runs_) pieces += run.count;
  return pieces;
}

template <class F>
bool Layout::each_piece(std::byte* slab, std::uint32_t from, F&& take) const {
  if (runs_.empty()) return take(slab + from, slab_bytes_ - from);
  std::uint32_t skip = from;
  for (const Run& run : runs_) {
    std::uint32_t piece = skip / run.length;
    if (piece >= run.count) {
      skip -= run.count * run.length;
      continue;
    }
    std::uint32_t inside = skip - piece * run.length;
    skip = 0;
    for (; piece < run.count; ++piece, inside = 0) {
      if (!take(slab + run.offset + piece * run.stride + inside, run.length - inside)) return false;
    }
  }
  return true;
}

std::uint64_t Layout::checksum(std::size_t layer, std::size_t key, std::uint64_t record_seed,
                               std::uint32_t schema_layer) const noexcept {
  std::byte* const at = slab(layer, key);
  if (runs_.empty()) return block::slab_checksum(record_seed, schema_layer, Bytes(at, slab_bytes_));
  block::SlabHasher hasher(record_seed, schema_layer, slab_bytes_);
  each_piece(at, 0, [&](std::byte* piece, std::uint32_t bytes) {
    hasher.add(Bytes(piece, bytes));
    return true;
  });
  return hasher.finish();
}

std::uint64_t Layout::copy_out(std::size_t layer, std::size_t key, std::uint64_t record_seed,
                               std::uint32_t schema_layer, MutableBytes to) const {
  block::SlabHasher hasher(record_seed, schema_layer, slab_bytes_);
  each_piece(slab(layer, key), 0, [&](std::byte* piece, std::uint32_t bytes) {
    block::copy_and_hash(hasher, Bytes(piece, bytes), to.first(bytes), false);  // it is read at once
    to = to.subspan(bytes);
    return true;
  });
  return hasher.finish();
}

void Layout::write(std::size_t layer, std::size_t key, std::uint32_t from, Bytes bytes, block::SlabHasher* hasher,
                   bool past_cache) const {
  each_piece(slab(layer, key), from, [&](std::byte* piece, std::uint32_t length) {
    const Bytes step = bytes.first(std::min<std::size_t>(length, bytes.size()));
    if (hasher != nullptr) {
      block::copy_and_hash(*hasher, step, MutableBytes(piece, step.size()), past_cache);
    } else {
      std::memcpy(piece, step.data(), step.size());
    }
    bytes = bytes.subspan(step.size());
    return !bytes.empty();
  });
}

SlabWalk::Gathered SlabWalk::gather(std::span<iovec> out, std::size_t bytes_max) const {
  Gathered gathered;
  const std::uint64_t wanted = std::min<std::uint64_t>(left_, bytes_max);
  const auto take = [&](std::byte* piece, std::uint32_t length) {
    const std::size_t bytes = std::min<std::uint64_t>(length, wanted - gathered.bytes);
    iovec* const last = gathered.count > 0 ? &out[gathered.count - 1] : nullptr;
    if (last != nullptr && static_cast<std::byte*>(last->iov_base) + last->iov_len == piece) {
      last->iov_len += bytes;
    } else if (gathered.count < out.size()) {
      out[gathered.count++] = iovec{.iov_base = piece, .iov_len = bytes};
    } else {
      return false;
    }
    gathered.bytes += bytes;
    return gathered.bytes < wanted;
  };
  std::size_t layer = layer_;
  std::size_t key_at = key_at_;
  std::uint32_t from = in_slab_;
  while (gathered.bytes < wanted && layout_->each_piece(layout_->slab(layer, keys_[key_at]), from, take)) {
    from = 0;
    if (++key_at == keys_.size()) {
      key_at = 0;
      ++layer;
    }
  }
  return gathered;
}

}  // namespace kvd::client
