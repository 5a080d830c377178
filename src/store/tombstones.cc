#include "store/tombstones.h"

#include <algorithm>

#include "base/check.h"

namespace kvd::store {

// Whether the segment that `tombstone` names has been given another header since.
bool Tombstones::obsolete(const Tombstone& tombstone) const {
  return segments_.at(tombstone.segment).generation != tombstone.generation;
}

void Tombstones::add(const Tombstone& tombstone) {
  if (obsolete(tombstone)) return;
  ++segments_.at(tombstone.segment).removed;
  pending_.push_back(tombstone);
  unwritten_.insert(tombstone.put_seq);
}

void Tombstones::restore(const Tombstone& tombstone) {
  if (obsolete(tombstone)) return;
  ++segments_.at(tombstone.segment).removed;
  live_.push_back(tombstone);
}

Tombstone Tombstones::take_pending() {
  const Tombstone tombstone = pending_.front();
  pending_.pop_front();
  return tombstone;
}

void Tombstones::done_carrying(Tombstone& tombstone) {
  if (tombstone.from == UINT32_MAX) return;
  KVD_CHECK(carried_[tombstone.from] > 0);
  --carried_[tombstone.from];
  --carried_total_;
  tombstone.from = UINT32_MAX;
}

void Tombstones::written(Tombstone tombstone, std::uint32_t holder, std::uint64_t holder_generation) {
  done_carrying(tombstone);
  unwritten_.erase(tombstone.put_seq);
  if (obsolete(tombstone)) return;
  tombstone.holder = holder;
  tombstone.holder_generation = holder_generation;
  live_.push_back(tombstone);
}

void Tombstones::failed(const Tombstone& tombstone) {
  Tombstone again = tombstone;
  if (!obsolete(again)) return pending_.push_front(again);
  unwritten_.erase(again.put_seq);
  done_carrying(again);
}

void Tombstones::carry_from(std::uint32_t segment) {
  const std::uint64_t generation = segments_.at(segment).generation;
  std::erase_if(live_, [&](Tombstone& tombstone) {
    if (tombstone.holder != segment || tombstone.holder_generation != generation) return false;
    if (tombstone.segment == segment) return false;  // ends with the segment itself
    tombstone.holder_generation = 0;
    tombstone.from = segment;
    ++carried_[segment];
    ++carried_total_;
    pending_.push_back(tombstone);
    return true;
  });
}

void Tombstones::forget(std::uint32_t segment) {
  std::erase_if(live_, [&](const Tombstone& tombstone) { return tombstone.segment == segment; });
  std::erase_if(pending_, [&](Tombstone& tombstone) {
    if (tombstone.segment != segment) return false;
    unwritten_.erase(tombstone.put_seq);
    done_carrying(tombstone);
    return true;
  });
}

std::optional<std::uint32_t> Tombstones::overfull() const {
  if (size() <= kLiveMax) return std::nullopt;
  std::uint32_t most = 0;
  for (std::uint32_t i = 1; i < segments_.count(); ++i)
    if (segments_.at(i).removed > segments_.at(most).removed) most = i;
  return most;
}

}  // namespace kvd::store
