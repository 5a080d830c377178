// PutSeqs: which of two copies of a record is the newer one, while a store recovers.
//
// Of each segment it knows from where to where its records' put_seq go, which tells nearly always: the segments of two
// copies were mostly filled at different times. Where the range does not tell, or the number itself is wanted (of a
// record that replaced another), the segment's footer is read again; what such footers say is kept for as many records
// as `cached_max`, 16 bytes each, those used last. So it takes 16 bytes a segment instead of 16 bytes a record, and is
// exact. Blocks where it reads. One owner, no locking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "store/format.h"

namespace kvd::store {

class PutSeqs {
 public:
  // Reads the footer of a segment once more.
  using Read = std::function<Result<Footer>(std::uint32_t segment)>;

  PutSeqs(std::uint32_t segments, Read read, std::size_t cached_max = 512 * 1024)
      : ranges_(segments), read_(std::move(read)), cached_max_(cached_max) {}

  // What a segment holds. `has_footer`: it can be read again; otherwise it is kept whole.
  void note(std::uint32_t segment, std::span<const Descriptor> descriptors, bool has_footer);
  // Whether `put_seq` is higher than that of the record at this place; nothing where that cannot be read any more.
  [[nodiscard]] std::optional<bool> newer(std::uint64_t put_seq, std::uint32_t segment, std::uint32_t offset);
  // put_seq of the record at this place; nothing where that cannot be read any more.
  [[nodiscard]] std::optional<std::uint64_t> at(std::uint32_t segment, std::uint32_t offset);

 private:
  using Table = std::vector<std::pair<std::uint32_t, std::uint64_t>>;  // offset and put_seq, sorted
  struct Range {
    std::uint64_t lowest = UINT64_MAX;
    std::uint64_t highest = 0;
  };
  struct Cached {
    std::uint64_t used = 0;  // when
    Table table;
  };

  static Table table_of(std::span<const Descriptor> descriptors);
  [[nodiscard]] const Table* find(std::uint32_t segment);

  std::vector<Range> ranges_;
  Read read_;
  std::map<std::uint32_t, Table> kept_;
  const std::size_t cached_max_;
  std::map<std::uint32_t, Cached> cache_;
  std::size_t cached_ = 0;  // records in them
  std::uint64_t uses_ = 0;
};

}  // namespace kvd::store
