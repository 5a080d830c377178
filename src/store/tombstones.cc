#include "store/tombstones.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvd::store {

// Whether the segment that `tombstone` names has been given another header since.
bool Tombstones::obsolete(const Tombstone& tombstone) const {
  return segments_.at(tombstone.segment).generation != tombstone.generation;
}

void Tombstones::add(const Tombstone& tombstone) {
  if (obsolete(tombstone)) return;
  ++segments_.at(tombstone.segment).removed;
  Tombstone added = tombstone;
  added.awaited = true;
  unwritten_.insert(added.put_seq);
  waiting_hashes_.add(added.key.hash);
  if (added.told_by != UINT32_MAX) ++told_[added.told_by];
  queue_for(added).push_back(added);
}

// Where it waits: with those that are carried also where what tells it is being given up.
std::deque<Tombstone>& Tombstones::queue_for(Tombstone& tombstone) {
  const bool hurries = tombstone.from == UINT32_MAX && tombstone.told_by != UINT32_MAX &&
                       segments_.at(tombstone.told_by).state == SegmentState::kEvicting;
  if (hurries) {
    tombstone.from = tombstone.told_by;
    ++carried_of(tombstone.from);
    ++carry_pending_;
  }
  return tombstone.from == UINT32_MAX ? pending_ : carried_pending_;
}

std::uint32_t Tombstones::told_by(std::uint32_t segment) const {
  const auto at = told_.find(segment);
  return at == told_.end() ? 0 : at->second;
}

// What is in a frame or waits for a flush is on its way.
void Tombstones::hurry(std::uint32_t segment) {
  if (!told_.contains(segment)) return;
  std::erase_if(pending_, [&](const Tombstone& t) {
    if (t.told_by != segment) return false;
    Tombstone hurried = t;
    queue_for(hurried).push_back(hurried);
    return true;
  });
}

void Tombstones::imply(const Tombstone& tombstone, std::uint32_t holder, std::uint64_t holder_generation) {
  if (obsolete(tombstone)) return;
  ++segments_.at(tombstone.segment).removed;
  written(tombstone, holder, holder_generation);
}

void Tombstones::await_end(std::uint32_t segment, std::uint64_t put_seq) {
  if (ends_.emplace(segment, put_seq).second) unwritten_.insert(put_seq);
}

void Tombstones::lie_in(std::uint32_t holder, std::size_t count) {
  segments_.at(holder).tombstones += static_cast<std::uint32_t>(count);
  on_flash_ += count;
}

void Tombstones::restore(const Tombstone& tombstone) {
  if (obsolete(tombstone)) return;
  ++segments_.at(tombstone.segment).removed;
  live_.push_back(tombstone);
}

void Tombstones::take_pending() { (next_is_carried() ? carried_pending_ : pending_).pop_front(); }

// It is on flash, or has nothing to name any more.
void Tombstones::written_or_gone(Tombstone& tombstone) {
  if (std::exchange(tombstone.awaited, false)) {
    unwritten_.erase(unwritten_.find(tombstone.put_seq));
    waiting_hashes_.remove(tombstone.key.hash);
  }
  if (tombstone.from == UINT32_MAX) return;
  KVD_CHECK(carry_pending_ > 0);
  --carry_pending_;
}

void Tombstones::done_telling(Tombstone& tombstone) {
  if (tombstone.told_by == UINT32_MAX) return;
  const auto at = told_.find(std::exchange(tombstone.told_by, UINT32_MAX));
  KVD_CHECK(at != told_.end());
  if (--at->second == 0) told_.erase(at);
}

// It is durable, or has nothing to name any more.
void Tombstones::done_carrying(Tombstone& tombstone) {
  done_telling(tombstone);
  if (tombstone.from == UINT32_MAX) return;
  KVD_CHECK(carried_of(tombstone.from) > 0);
  --carried_of(tombstone.from);
  tombstone.from = UINT32_MAX;
}

void Tombstones::written(Tombstone tombstone, std::uint32_t holder, std::uint64_t holder_generation) {
  written_or_gone(tombstone);
  if (obsolete(tombstone)) return done_carrying(tombstone);
  tombstone.holder = holder;
  tombstone.holder_generation = holder_generation;
  unflushed_.push_back({tombstone, order_next_++});
}

void Tombstones::failed(const Tombstone& tombstone) {
  Tombstone again = tombstone;
  if (!obsolete(again)) return queue_for(again).push_front(again);
  written_or_gone(again);
  done_carrying(again);
}

void Tombstones::flushed() {
  const auto end = std::ranges::find_if(unflushed_, [&](const Unflushed& u) { return u.order >= flushing_; });
  for (auto at = unflushed_.begin(); at != end; ++at) {
    done_carrying(at->tombstone);
    live_.push_back(at->tombstone);
  }
  unflushed_.erase(unflushed_.begin(), end);
}

void Tombstones::flush_failed() {
  for (Unflushed& u : unflushed_) {
    u.tombstone.holder_generation = 0;
    if (u.tombstone.from != UINT32_MAX) ++carry_pending_;
    queue_for(u.tombstone).push_back(u.tombstone);
  }
  unflushed_.clear();
}

void Tombstones::device_off(const Keep& keep) {
  std::erase_if(unflushed_, [&](const Unflushed& u) { return kept(u.tombstone, keep); });
  std::erase_if(pending_, [&](const Tombstone& t) { return kept(t, keep); });  // successors behind a failed flush
  flush_failed();
}

bool Tombstones::kept(const Tombstone& tombstone, const Keep& keep) {
  if (!tombstone.outdates || tombstone.from != UINT32_MAX || obsolete(tombstone) || !keep(tombstone)) return false;
  Tombstone gone = tombstone;
  written_or_gone(gone);
  done_telling(gone);
  --segments_.at(gone.segment).removed;
  return true;
}

// Whether `tombstone` lies in `segment` and does not end with it.
bool Tombstones::carries(const Tombstone& tombstone, std::uint32_t segment) const {
  return tombstone.holder == segment && tombstone.holder_generation == segments_.at(segment).generation &&
         tombstone.segment != segment;
}

std::vector<bool> Tombstones::holders_for_others() const {
  std::vector<bool> holders(own_.count());
  const auto note = [&](const Tombstone& t) {
    if (carries(t, t.holder)) holders[t.holder - own_.first()] = true;
  };
  for (const Tombstone& t : live_) note(t);
  for (const Unflushed& u : unflushed_) note(u.tombstone);
  return holders;
}

void Tombstones::carry_from(std::uint32_t segment) {
  const auto carry = [&](Tombstone tombstone) {
    if (tombstone.from != UINT32_MAX) tombstone.told_by = UINT32_MAX;  // the one that stays counts
    tombstone.holder_generation = 0;
    tombstone.from = segment;
    ++carried_of(segment);
    ++carry_pending_;
    carried_pending_.push_back(tombstone);
  };
  std::erase_if(live_,
                [&](const Tombstone& tombstone) { return carries(tombstone, segment) && (carry(tombstone), true); });
  // One that another segment waits for stays, too: its copy here may be durable sooner than the next.
  std::erase_if(unflushed_, [&](const Unflushed& u) {
    return carries(u.tombstone, segment) && (carry(u.tombstone), u.tombstone.from == UINT32_MAX);
  });
}

void Tombstones::forget(std::uint32_t segment) {
  if (const auto end = ends_.find(segment); end != ends_.end()) {
    unwritten_.erase(unwritten_.find(end->second));
    ends_.erase(end);
  }
  on_flash_ -= std::exchange(segments_.at(segment).tombstones, 0);
  std::erase_if(live_, [&](const Tombstone& tombstone) { return tombstone.segment == segment; });
  std::erase_if(unflushed_,
                [&](Unflushed& u) { return u.tombstone.segment == segment && (done_carrying(u.tombstone), true); });
  for (auto* queue : {&pending_, &carried_pending_})
    std::erase_if(*queue, [&](Tombstone& tombstone) {
      if (tombstone.segment != segment) return false;
      written_or_gone(tombstone);
      done_carrying(tombstone);
      return true;
    });
}

std::optional<std::uint32_t> Tombstones::overfull() const {
  if (size() <= share_of(kLiveMax)) return std::nullopt;
  std::uint32_t most = own_.first();
  for (std::uint32_t i = own_.first() + 1; i < own_.end(); ++i)
    if (segments_.at(i).removed > segments_.at(most).removed) most = i;
  return most;
}

bool Tombstones::fills(std::uint32_t segment, std::uint64_t max) const {
  return std::uint64_t{segments_.at(segment).tombstones} * kSpentToSegment >= std::max<std::uint64_t>(share_of(max), 1);
}

std::optional<std::uint32_t> Tombstones::most_spent(std::uint64_t max) const {
  const std::uint64_t share = share_of(max);
  if (on_flash_ <= share) return std::nullopt;
  std::vector<std::uint32_t> needed(own_.count());
  const auto count = [&](const Tombstone& t) {
    if (carries(t, t.holder)) ++needed[t.holder - own_.first()];
  };
  for (const Tombstone& t : live_) count(t);
  for (const Unflushed& u : unflushed_) count(u.tombstone);
  std::optional<std::uint32_t> most;
  std::uint64_t spent_of_all = 0;
  std::uint32_t spent_of_most = 0;
  for (std::uint32_t s = own_.first(); s < own_.end(); ++s) {
    const Segment& segment = segments_.at(s);
    if (segment.state != SegmentState::kSealed || segment.tombstones <= needed[s - own_.first()]) continue;
    const std::uint32_t spent = segment.tombstones - needed[s - own_.first()];
    spent_of_all += spent;
    if (spent <= spent_of_most) continue;
    most = s;
    spent_of_most = spent;
  }
  return spent_of_all > share ? most : std::nullopt;
}

}  // namespace kvd::store
