// Strays: copies of records that may be on the medium and that no index knows: frames of rewrites that failed, and what
// a copy on another device has outdated, until that is durable.
//
// A record that is written anew beside a copy that counts gets no tombstone when that fails: it would end the copy,
// too. As long as the failed frame's segment has no footer a scan would find the record there, as what it is, so it
// must be known to whoever removes or replaces it. About 60 bytes each, at most kMax. One owner, no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "store/pool_record.h"

namespace kvd::store {

class Strays {
 public:
  static constexpr std::size_t kMax = 65'536;

  // A record with this hash may lie in this use of a segment. False when there are kMax.
  [[nodiscard]] bool add(std::uint64_t hash, const ReplacedPlace& place);
  // Where records with this hash may lie. They are forgotten here.
  [[nodiscard]] std::vector<ReplacedPlace> take(std::uint64_t hash);
  // Whether one may lie there. It is forgotten.
  [[nodiscard]] bool take(std::uint64_t hash, const ReplacedPlace& place);
  [[nodiscard]] bool contains(std::uint64_t hash) const { return places_.contains(hash); }
  // The segment was given up, and nothing of it can be found any more.
  void forget(std::uint32_t segment);

  [[nodiscard]] std::size_t size() const noexcept { return places_.size(); }

 private:
  std::unordered_multimap<std::uint64_t, ReplacedPlace> places_;
};

}  // namespace kvd::store
