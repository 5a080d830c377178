// Layout: where the slabs of one operation lie in memory, checked once when the operation is submitted, and SlabWalk,
// which walks their bytes in the order in which they travel (layer by layer, key by key).
//
// A layout holds copies of the caller's arrays: 8 bytes per layer and per key. Pieces that touch are joined, within a
// slab when the layout is made and across slabs when iovecs are made. Made on the caller's thread, then constant.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "kvdepot/types.h"

namespace kvd::block {
class SlabHasher;
}

namespace kvd::client {

class Layout {
 public:
  Layout() = default;

  // Checks that every byte of `layers` x `keys` slabs lies inside `region`. kInvalid says what does not fit: array
  // lengths, runs whose pieces overlap or do not add up to slab_bytes, offsets outside the region.
  static Result<Layout> make(MutableBytes region, const Placement& placement, std::size_t layers, std::size_t keys,
                             std::uint32_t slab_bytes);

  // Slabs without gaps in layer order, at `base`, which has room for them; null: only their number and size is asked
  // for.
  static Layout packed(std::byte* base, std::size_t layers, std::size_t keys, std::uint32_t slab_bytes);

  [[nodiscard]] std::uint32_t slab_bytes() const noexcept { return slab_bytes_; }
  [[nodiscard]] std::size_t layers() const noexcept { return layer_offset_.size(); }
  [[nodiscard]] std::size_t keys() const noexcept { return block_offset_.size(); }
  // Pieces of memory that one slab consists of.
  [[nodiscard]] std::uint64_t pieces() const noexcept;
  // Checksum of the slab of `key` in layer `layer` (index from the first layer of the operation), where it lies now.
  // `schema_layer` is its number in the schema. Reads slab_bytes().
  [[nodiscard]] std::uint64_t checksum(std::size_t layer, std::size_t key, std::uint64_t record_seed,
                                       std::uint32_t schema_layer) const noexcept;
  // Copies that slab to `to`, in one piece, and gives the checksum of the copy. Requires to.size() == slab_bytes().
  [[nodiscard]] std::uint64_t copy_out(std::size_t layer, std::size_t key, std::uint64_t record_seed,
                                       std::uint32_t schema_layer, MutableBytes to) const;
  // Copies `bytes` to the slab of `key` in layer `layer`, from its byte `from` on, and hashes what it has written
  // (block/verified_copy.h). `hasher` may be null. Requires that they fit.
  void write(std::size_t layer, std::size_t key, std::uint32_t from, Bytes bytes, block::SlabHasher* hasher,
             bool past_cache) const;

 private:
  friend class SlabWalk;
  Status set_runs(std::span<const Run> runs);
  [[nodiscard]] std::byte* slab(std::size_t layer, std::size_t key) const noexcept {
    return base_ + layer_offset_[layer] + block_offset_[key];
  }
  // Calls take(piece, bytes) for the pieces of the slab at `slab`, from byte `from` on, until it returns false.
  template <class F>
  bool each_piece(std::byte* slab, std::uint32_t from, F&& take) const;

  std::byte* base_ = nullptr;
  std::uint32_t slab_bytes_ = 0;
  std::uint64_t slab_extent_ = 0;  // first byte behind the last piece, from the slab's base
  std::vector<std::uint64_t> layer_offset_;
  std::vector<std::uint64_t> block_offset_;
  std::vector<Run> runs_;  // empty: the slab is one piece at its base
};

// The position in a stretch of slabs: layers [layer_first, layer_first + layer_count) of `keys`, in wire order.
// Borrows the layout and the keys.
class SlabWalk {
 public:
  SlabWalk() = default;
  SlabWalk(const Layout& layout, std::size_t layer_first, std::size_t layer_count,
           std::span<const std::uint32_t> keys) noexcept
      : layout_(&layout),
        keys_(keys),
        layer_(layer_first),
        left_(std::uint64_t{layer_count} * keys.size() * layout.slab_bytes()) {}
  // The same of `slabs` slabs from the one of keys[key_at] in layer `layer_first` on, which may run on into the next
  // layers.
  static SlabWalk part(const Layout& layout, std::size_t layer_first, std::size_t key_at, std::size_t slabs,
                       std::span<const std::uint32_t> keys) noexcept {
    SlabWalk walk(layout, layer_first, 0, keys);
    walk.key_at_ = key_at;
    walk.left_ = std::uint64_t{slabs} * layout.slab_bytes();
    return walk;
  }

  [[nodiscard]] std::uint64_t left() const noexcept { return left_; }
  struct Place {
    std::size_t layer = 0;      // from the operation's first
    std::size_t key_at = 0;     // index in the walk's keys
    std::uint32_t key = 0;      // of the operation
    std::uint32_t in_slab = 0;  // bytes of this slab that are behind us
  };
  // Where the next byte goes. Requires left() > 0.
  [[nodiscard]] Place place() const noexcept {
    return {.layer = layer_, .key_at = key_at_, .key = keys_[key_at_], .in_slab = in_slab_};
  }

  struct Gathered {
    std::size_t count = 0;  // iovecs filled
    std::size_t bytes = 0;
  };
  // Describes the next bytes, at most `bytes_max` of them in at most out.size() pieces. Does not move.
  [[nodiscard]] Gathered gather(std::span<iovec> out, std::size_t bytes_max) const;

  // Moves on by n <= left() bytes. Calls on_slab(layer, key) for every slab that these bytes complete, in order;
  // `layer` counts from the operation's first layer.
  template <class F>
  void advance(std::uint64_t n, F&& on_slab) {
    left_ -= n;
    while (n > 0) {
      const std::uint64_t step = std::min<std::uint64_t>(n, layout_->slab_bytes() - in_slab_);
      in_slab_ += static_cast<std::uint32_t>(step);
      n -= step;
      if (in_slab_ < layout_->slab_bytes()) return;
      const std::size_t layer = layer_;
      const std::uint32_t key = keys_[key_at_];
      in_slab_ = 0;
      if (++key_at_ == keys_.size()) {
        key_at_ = 0;
        ++layer_;
      }
      on_slab(layer, key);
    }
  }

 private:
  const Layout* layout_ = nullptr;
  std::span<const std::uint32_t> keys_;
  std::size_t layer_ = 0;
  std::size_t key_at_ = 0;     // index in keys_
  std::uint32_t in_slab_ = 0;  // bytes of the current slab that are behind us
  std::uint64_t left_ = 0;
};

}  // namespace kvd::client
