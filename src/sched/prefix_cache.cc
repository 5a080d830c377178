#include "sched/prefix_cache.h"

#include <utility>

#include "base/check.h"

namespace kvd::sched {

namespace {
constexpr int kTableBitsFirst = 6;
}

PrefixCache::PrefixCache(std::uint32_t blocks, std::uint32_t unit_blocks)
    : blocks_(blocks), unit_blocks_(unit_blocks), table_(1U << kTableBitsFirst), shift_(64 - kTableBitsFirst) {
  KVD_CHECK(blocks > 0 && unit_blocks > 0);
}

std::uint32_t PrefixCache::child_of(std::uint32_t parent, UnitId unit) const noexcept {
  if (parent == kNone) return find(parent, unit);
  const Node& p = nodes_[parent];
  if (p.child != kNone && nodes_[p.child].unit == unit) return p.child;
  return p.hashed > 0 ? find(parent, unit) : kNone;
}

std::uint32_t PrefixCache::find(std::uint32_t parent, UnitId unit) const noexcept {
  const std::size_t mask = table_.size() - 1;
  for (std::size_t slot = slot_of(unit);; slot = (slot + 1) & mask) {
    const Slot& entry = table_[slot];
    if (entry.node == kNone || (entry.unit == unit && nodes_[entry.node].parent == parent)) return entry.node;
  }
}

void PrefixCache::insert_slot(Slot entry) {
  const std::size_t mask = table_.size() - 1;
  std::size_t slot = slot_of(entry.unit);
  while (table_[slot].node != kNone) slot = (slot + 1) & mask;
  table_[slot] = entry;
}

// Closes the gap, so that every entry can still be reached from its own slot.
void PrefixCache::erase_slot(std::uint32_t node) {
  const std::size_t mask = table_.size() - 1;
  std::size_t hole = slot_of(nodes_[node].unit);
  while (table_[hole].node != node) hole = (hole + 1) & mask;
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
  const std::vector<Slot> old = std::exchange(table_, std::vector<Slot>(table_.size() * 2));
  for (const Slot& entry : old) {
    if (entry.node != kNone) insert_slot(entry);
  }
}

std::uint32_t PrefixCache::make_node(std::uint32_t parent, UnitId unit) {
  std::uint32_t node = free_;
  if (node == kNone) {
    node = static_cast<std::uint32_t>(nodes_.size());
    nodes_.emplace_back();
  } else {
    free_ = nodes_[node].next;
    nodes_[node] = Node{};
  }
  nodes_[node].unit = unit;
  nodes_[node].parent = parent;
  if (parent == kPrivate) return node;
  if (parent != kNone && nodes_[parent].child == kNone) {
    nodes_[parent].child = node;
    return node;
  }
  if (parent != kNone) ++nodes_[parent].hashed;
  if (++hashed_ * 2 > table_.size()) grow_table();
  insert_slot({unit, node});
  return node;
}

void PrefixCache::drop_node(std::uint32_t node) {
  Node& n = nodes_[node];
  KVD_CHECK(n.child == kNone && n.hashed == 0);
  if (n.parent == kNone || (n.parent != kPrivate && nodes_[n.parent].child != node)) {
    erase_slot(node);
    --hashed_;
    if (n.parent != kNone) --nodes_[n.parent].hashed;
  } else if (n.parent != kPrivate) {
    nodes_[n.parent].child = kNone;
  }
  n.next = free_;
  free_ = node;
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
  std::uint32_t node = kNone;
  for (std::uint32_t i = 0; i < units.count && blocks < blocks_max; ++i) {
    node = child_of(node, units[i]);
    if (node == kNone) break;
    blocks += nodes_[node].have;
    if (nodes_[node].have < unit_blocks_) break;
  }
  return std::min(blocks, blocks_max);
}

std::uint32_t PrefixCache::missing(const Units& units, std::uint32_t to) const noexcept {
  std::uint32_t blocks = to;
  std::uint32_t node = kNone;
  for (std::uint32_t i = 0; i * unit_blocks_ < to; ++i) {
    node = child_of(node, units[i]);
    if (node == kNone) break;
    blocks -= std::min(nodes_[node].have, blocks_in(i, to));
  }
  return blocks;
}

bool PrefixCache::hold(const Units& units, std::uint32_t to, Held& held, std::int64_t private_more) {
  const std::uint32_t end = (to + unit_blocks_ - 1) / unit_blocks_;
  // The last unit that is held may have to grow; units behind it are new to the request.
  const std::uint32_t begin = held.units > 0 ? held.units - 1 : 0;
  std::int64_t more = private_more;  // blocks that become used
  std::int64_t from_cache = 0;       // of which are cached now
  std::uint32_t last = held.last;
  std::uint32_t known = begin;
  found_.clear();
  for (; known < end; ++known) {
    const std::uint32_t node = known < held.units ? last : child_of(last, units[known]);
    if (node == kNone) break;
    const Node& n = nodes_[node];
    const std::uint32_t want = blocks_in(known, to);
    if (want > n.have) more += want - n.have;
    if (n.refs == 0) from_cache += n.have;
    found_.push_back(node);
    last = node;
  }
  if (known < end) more += to - known * unit_blocks_;
  if (more + from_cache > static_cast<std::int64_t>(available())) return false;
  for (std::uint32_t i = begin; i < known; ++i) {
    const std::uint32_t node = found_[i - begin];
    if (i >= held.units) reference(node);
    nodes_[node].have = std::max(nodes_[node].have, blocks_in(i, to));
  }
  const std::int64_t in_stock = static_cast<std::int64_t>(available()) - evictable_;
  if (more > in_stock) evict(static_cast<std::uint32_t>(more - in_stock));
  for (std::uint32_t i = known; i < end; ++i) {
    last = make_node(last, units[i]);
    nodes_[last].refs = 1;
    nodes_[last].have = blocks_in(i, to);
  }
  used_ = static_cast<std::uint32_t>(used_ + more);
  held = {std::max(held.units, end), last};
  return true;
}

bool PrefixCache::take(std::uint32_t count) {
  if (count > available()) return false;
  const std::uint32_t in_stock = available() - evictable_;
  if (count > in_stock) evict(count - in_stock);
  used_ += count;
  return true;
}

void PrefixCache::release(Held& held, std::uint32_t private_blocks) {
  if (private_blocks > 0) {
    const std::uint32_t node = make_node(kPrivate, 0);
    nodes_[node].have = private_blocks;
    used_ -= private_blocks;
    push_last(node);
  }
  for (std::uint32_t node = held.last; node != kNone; node = nodes_[node].parent) {
    if (--nodes_[node].refs > 0) continue;
    used_ -= nodes_[node].have;
    push_last(node);
  }
  held = {};
}

void PrefixCache::remember(const Units& units, std::uint32_t to) {
  Held held;
  // From the head, as much as fits: a prefix without its head is useless.
  if (hold(units, std::min(to, available()), held, 0)) release(held, 0);
}

bool PrefixCache::consistent() const {
  std::vector<bool> is_free(nodes_.size());
  for (std::uint32_t node = free_; node != kNone; node = nodes_[node].next) is_free[node] = true;
  std::uint64_t evictable = 0;
  std::uint64_t used = 0;
  std::uint32_t hashed = 0;
  for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
    if (is_free[node]) continue;
    const Node& n = nodes_[node];
    (n.refs > 0 ? used : evictable) += n.have;
    hashed += n.hashed;
    if (n.parent == kPrivate) continue;
    hashed += n.parent == kNone;
    const bool full = n.child == kNone && n.hashed == 0 ? n.have > 0 : n.have == unit_blocks_;
    const bool below = n.parent == kNone || (!is_free[n.parent] && nodes_[n.parent].refs >= n.refs);
    if (!full || !below || n.have > unit_blocks_ || child_of(n.parent, n.unit) != node) return false;
  }
  std::uint64_t listed = 0;
  for (std::uint32_t node = first_; node != kNone; node = nodes_[node].next) listed += nodes_[node].have;
  return evictable == evictable_ && listed == evictable_ && hashed == hashed_ && used <= used_ && used_ <= blocks_ &&
         used_ + evictable_ <= blocks_;
}

}  // namespace kvd::sched
