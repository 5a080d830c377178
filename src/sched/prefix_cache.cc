#include "sched/prefix_cache.h"

#include <algorithm>

#include "base/check.h"

namespace kvd::sched {

namespace {
constexpr int kTableBitsFirst = 8;
}

PrefixCache::PrefixCache(std::uint32_t blocks, std::uint32_t unit_blocks)
    : blocks_(blocks), unit_blocks_(unit_blocks), table_(1U << kTableBitsFirst), shift_(64 - kTableBitsFirst) {
  KVD_CHECK(blocks > 0 && unit_blocks > 0);
}

std::uint32_t PrefixCache::find(UnitId unit) const noexcept {
  const std::size_t mask = table_.size() - 1;
  for (std::size_t slot = slot_of(unit);; slot = (slot + 1) & mask) {
    const Slot& entry = table_[slot];
    if (entry.node == kNone || entry.unit == unit) return entry.node;
  }
}

void PrefixCache::fetch_slots(const Units& units, std::uint32_t begin, std::uint32_t end) const noexcept {
  for (std::uint32_t i = begin; i < end; ++i) __builtin_prefetch(&table_[slot_of(units[i])]);
}

void PrefixCache::find_all(const Units& units, std::uint32_t begin, std::uint32_t end) {
  fetch_slots(units, begin, end);
  found_.clear();
  for (std::uint32_t i = begin; i < end; ++i) {
    const std::uint32_t node = find(units[i]);
    if (node != kNone) __builtin_prefetch(&nodes_[node], 1);
    found_.push_back(node);
  }
}

void PrefixCache::insert_slot(std::uint32_t node) {
  const UnitId unit = nodes_[node].unit;
  const std::size_t mask = table_.size() - 1;
  std::size_t slot = slot_of(unit);
  while (table_[slot].node != kNone) slot = (slot + 1) & mask;
  table_[slot] = {unit, node};
}

// Closes the gap, so that every entry can still be reached from its own slot.
void PrefixCache::erase_slot(UnitId unit) {
  const std::size_t mask = table_.size() - 1;
  std::size_t hole = slot_of(unit);
  while (table_[hole].unit != unit) hole = (hole + 1) & mask;
  for (std::size_t slot = (hole + 1) & mask; table_[slot].node != kNone; slot = (slot + 1) & mask) {
    const std::size_t home = slot_of(table_[slot].unit);
    if (((slot - home) & mask) >= ((slot - hole) & mask)) {
      table_[hole] = table_[slot];
      hole = slot;
    }
  }
  table_[hole].node = kNone;
}

void PrefixCache::grow_table() {
  --shift_;
  table_.assign(table_.size() * 2, Slot{});
  std::vector<bool> is_free(nodes_.size());
  for (const std::uint32_t node : free_nodes_) is_free[node] = true;
  for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
    if (!is_free[node] && nodes_[node].named) insert_slot(node);
  }
}

std::uint32_t PrefixCache::make_node(UnitId unit, bool named) {
  if (named && (named_ + 1) * 2 > table_.size()) grow_table();
  std::uint32_t node = 0;
  if (free_nodes_.empty()) {
    node = static_cast<std::uint32_t>(nodes_.size());
    nodes_.emplace_back();
  } else {
    node = free_nodes_.back();
    free_nodes_.pop_back();
    nodes_[node] = Node{};
  }
  nodes_[node].unit = unit;
  nodes_[node].named = named;
  if (named) {
    insert_slot(node);
    ++named_;
  }
  return node;
}

void PrefixCache::drop_node(std::uint32_t node) {
  if (nodes_[node].named) {
    erase_slot(nodes_[node].unit);
    --named_;
  }
  free_nodes_.push_back(node);
}

void PrefixCache::push_last(std::uint32_t node) {
  nodes_[node].prev = last_;
  nodes_[node].next = kNone;
  (last_ == kNone ? first_ : nodes_[last_].next) = node;
  last_ = node;
  evictable_ += nodes_[node].have;
}

void PrefixCache::unlink(std::uint32_t node) {
  const Node& n = nodes_[node];
  (n.prev == kNone ? first_ : nodes_[n.prev].next) = n.next;
  (n.next == kNone ? last_ : nodes_[n.next].prev) = n.prev;
  evictable_ -= n.have;
}

void PrefixCache::reference(std::uint32_t node) {
  if (nodes_[node].refs++ > 0) return;
  unlink(node);
  used_ += nodes_[node].have;
}

void PrefixCache::evict(std::uint32_t count) {
  while (count > 0) {
    const std::uint32_t node = first_;
    KVD_CHECK(node != kNone);
    Node& n = nodes_[node];
    if (n.have > count) {
      n.have -= count;
      evictable_ -= count;
      return;
    }
    count -= n.have;
    unlink(node);
    drop_node(node);
  }
}

std::uint32_t PrefixCache::match(const Units& units, std::uint32_t blocks_max) const noexcept {
  std::uint32_t blocks = 0;
  for (std::uint32_t i = 0; i < units.count && blocks < blocks_max; ++i) {
    const std::uint32_t node = find(units[i]);
    if (node == kNone) break;
    blocks += nodes_[node].have;
    if (nodes_[node].have < unit_blocks_) break;
  }
  return std::min(blocks, blocks_max);
}

std::uint32_t PrefixCache::missing(const Units& units, std::uint32_t to) const noexcept {
  std::uint32_t blocks = 0;
  for (std::uint32_t i = 0; i * unit_blocks_ < to; ++i) {
    const std::uint32_t want = std::min(unit_blocks_, to - i * unit_blocks_);
    const std::uint32_t node = find(units[i]);
    const std::uint32_t have = node == kNone ? 0 : nodes_[node].have;
    blocks += want > have ? want - have : 0;
  }
  return blocks;
}

bool PrefixCache::hold(const Units& units, std::uint32_t to, std::uint32_t& held_units, std::int64_t private_more) {
  const std::uint32_t end = (to + unit_blocks_ - 1) / unit_blocks_;
  // The last unit that is held may have to grow; units behind it are new to the request.
  const std::uint32_t begin = held_units > 0 ? held_units - 1 : 0;
  std::int64_t more = private_more;  // blocks that become used
  std::int64_t from_cache = 0;       // of which are cached now
  find_all(units, begin, end);
  for (std::uint32_t i = begin; i < end; ++i) {
    const std::uint32_t want = std::min(unit_blocks_, to - i * unit_blocks_);
    const std::uint32_t node = found_[i - begin];
    const std::uint32_t have = node == kNone ? 0 : nodes_[node].have;
    if (want > have) more += want - have;
    if (node != kNone && nodes_[node].refs == 0) from_cache += have;
  }
  if (more + from_cache > static_cast<std::int64_t>(available())) return false;
  for (std::uint32_t i = held_units; i < end; ++i) {
    std::uint32_t& node = found_[i - begin];
    if (node == kNone) {
      node = make_node(units[i], true);
      nodes_[node].refs = 1;
    } else {
      reference(node);
    }
  }
  const std::int64_t in_stock = static_cast<std::int64_t>(available()) - evictable_;
  if (more > in_stock) evict(static_cast<std::uint32_t>(more - in_stock));
  for (std::uint32_t i = begin; i < end; ++i) {
    Node& n = nodes_[found_[i - begin]];
    n.have = std::max(n.have, std::min(unit_blocks_, to - i * unit_blocks_));
  }
  used_ = static_cast<std::uint32_t>(used_ + more);
  held_units = std::max(held_units, end);
  return true;
}

bool PrefixCache::take(std::uint32_t count) {
  if (count > available()) return false;
  const std::uint32_t in_stock = available() - evictable_;
  if (count > in_stock) evict(count - in_stock);
  used_ += count;
  return true;
}

void PrefixCache::release(const Units& units, std::uint32_t held_units, std::uint32_t private_blocks) {
  if (private_blocks > 0) {
    const std::uint32_t node = make_node(0, false);
    nodes_[node].have = private_blocks;
    used_ -= private_blocks;
    push_last(node);
  }
  find_all(units, 0, held_units);
  for (std::uint32_t i = held_units; i-- > 0;) {
    const std::uint32_t node = found_[i];
    if (--nodes_[node].refs > 0) continue;
    used_ -= nodes_[node].have;
    push_last(node);
  }
}

void PrefixCache::remember(const Units& units, std::uint32_t to) {
  std::uint32_t held = 0;
  // From the head, as much as fits: a prefix without its head is useless.
  if (hold(units, std::min(to, available()), held, 0)) release(units, held, 0);
}

bool PrefixCache::consistent() const {
  std::vector<bool> is_free(nodes_.size());
  for (const std::uint32_t node : free_nodes_) is_free[node] = true;
  std::uint64_t evictable = 0;
  std::uint64_t used = 0;
  std::uint32_t named = 0;
  for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
    if (is_free[node]) continue;
    const Node& n = nodes_[node];
    (n.refs > 0 ? used : evictable) += n.have;
    named += n.named;
    if (n.named && (n.have == 0 || n.have > unit_blocks_ || find(n.unit) != node)) return false;
  }
  std::uint64_t listed = 0;
  for (std::uint32_t node = first_; node != kNone; node = nodes_[node].next) listed += nodes_[node].have;
  return evictable == evictable_ && listed == evictable_ && named == named_ && used <= used_ && used_ <= blocks_ &&
         used_ + evictable_ <= blocks_;
}

}  // namespace kvd::sched
