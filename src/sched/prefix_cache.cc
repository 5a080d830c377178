#include "sched/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvd::sched {

namespace {
constexpr int kTableBitsFirst = 6;
}

PrefixCache::PrefixCache(std::uint32_t blocks, std::uint32_t unit_blocks, std::pmr::memory_resource* memory)
    : blocks_(blocks),
      unit_blocks_(unit_blocks),
      nodes_(memory),
      table_(1U << kTableBitsFirst, memory),
      found_(memory),
      shift_(64 - kTableBitsFirst) {
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
  const std::uint32_t key = key_of(parent, unit);
  for (std::size_t slot = slot_of(key);; slot = (slot + 1) & mask) {
    const Slot& entry = table_[slot];
    if (entry.node == kNone || (entry.key == key && nodes_[entry.node].parent == parent)) return entry.node;
  }
}

void PrefixCache::insert_slot(Slot entry) {
  const std::size_t mask = table_.size() - 1;
  std::size_t slot = slot_of(entry.key);
  while (table_[slot].node != kNone) slot = (slot + 1) & mask;
  table_[slot] = entry;
}

std::size_t PrefixCache::slot_with(std::uint32_t node) const noexcept {
  const std::size_t mask = table_.size() - 1;
  std::size_t slot = slot_of(key_of(nodes_[node].parent, nodes_[node].unit));
  while (table_[slot].node != node) slot = (slot + 1) & mask;
  return slot;
}

// Closes the gap, so that every entry can still be reached from its own slot.
void PrefixCache::erase_slot(std::uint32_t node) {
  const std::size_t mask = table_.size() - 1;
  std::size_t hole = slot_with(node);
  for (std::size_t slot = (hole + 1) & mask; table_[slot].node != kNone; slot = (slot + 1) & mask) {
    const std::size_t home = slot_of(table_[slot].key);
    if (((slot - home) & mask) >= ((slot - hole) & mask)) {
      table_[hole] = table_[slot];
      hole = slot;
    }
  }
  table_[hole].node = kNone;
}

void PrefixCache::grow_table() {
  --shift_;
  const auto old = std::exchange(table_, std::pmr::vector<Slot>(table_.size() * 2, table_.get_allocator()));
  for (const Slot& entry : old) {
    if (entry.node != kNone) insert_slot(entry);
  }
}

std::uint32_t PrefixCache::take_free_node() {
  const std::uint32_t node = free_;
  if (node == kNone) {
    nodes_.emplace_back();
    return static_cast<std::uint32_t>(nodes_.size() - 1);
  }
  free_ = nodes_[node].next;
  nodes_[node] = Node{};
  return node;
}

std::uint32_t PrefixCache::make_node(std::uint32_t parent, const Units& units, std::uint32_t at) {
  const std::uint32_t node = take_free_node();
  nodes_[node].ids = units.ids + at;
  nodes_[node].salt = units.salt;
  nodes_[node].unit = units[at];
  nodes_[node].parent = parent;
  if (parent != kNone && nodes_[parent].child == kNone) {
    nodes_[parent].child = node;
    return node;
  }
  if (parent != kNone) ++nodes_[parent].hashed;
  if (++hashed_ * 2 > table_.size()) grow_table();
  insert_slot({key_of(parent, units[at]), node});
  return node;
}

// Gives the run's first units a node of their own above it; the rest stays where its holders look for it.
std::uint32_t PrefixCache::split(std::uint32_t node, std::uint32_t units) {
  const std::uint32_t head = take_free_node();
  Node& n = nodes_[node];
  Node& h = nodes_[head];
  h = n;
  h.child = node;
  h.hashed = 0;
  h.have = units * unit_blocks_;
  if (n.parent != kNone && nodes_[n.parent].child == node) {
    nodes_[n.parent].child = head;
  } else {
    table_[slot_with(node)].node = head;
  }
  n.ids += units;
  n.unit = n.ids[0] + n.salt;
  n.have -= h.have;
  n.parent = head;
  if (n.refs == 0) {  // it goes behind its tail
    h.prev = node;
    (n.next == kNone ? last_ : nodes_[n.next].prev) = head;
    n.next = head;
  }
  return head;
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

std::uint32_t PrefixCache::alike(const Node& run, const Units& units, std::uint32_t at,
                                 std::uint32_t end) const noexcept {
  const std::uint32_t most = std::min(units_in(run.have), end - at);
  KVD_CHECK(units.salt == run.salt);
  const UnitId* const ids = units.ids + at;
  return static_cast<std::uint32_t>(std::mismatch(ids, ids + most, run.ids).first - ids);
}

std::uint32_t PrefixCache::match(const Units& units, std::uint32_t blocks_max) const noexcept {
  return blocks_max - missing(units, blocks_max);
}

std::uint32_t PrefixCache::missing(const Units& units, std::uint32_t to) const noexcept {
  const std::uint32_t end = std::min(units.count, units_in(to));
  std::uint32_t blocks = 0;
  std::uint32_t node = kNone;
  for (std::uint32_t at = 0; at < end;) {
    node = child_of(node, units[at]);
    if (node == kNone) break;
    const Node& n = nodes_[node];
    const std::uint32_t count = alike(n, units, at, end);
    blocks += std::min(n.have, count * unit_blocks_);
    at += count;
    if (count < units_in(n.have)) break;
  }
  return to - std::min(blocks, to);
}

// Whether the run's request can go on with unit `at` in the same run: nobody else has it, and its ids lie there.
bool PrefixCache::goes_on(std::uint32_t node, const Units& units, std::uint32_t at) const noexcept {
  if (node == kNone) return false;
  const Node& n = nodes_[node];
  return n.refs == 1 && n.child == kNone && n.hashed == 0 && n.salt == units.salt &&
         n.ids + units_in(n.have) == units.ids + at;
}

bool PrefixCache::hold(const Units& units, std::uint32_t to, Held& held, std::int64_t private_more) {
  const std::uint32_t end = units_in(to);
  std::int64_t more = private_more;  // blocks that become used
  std::int64_t from_cache = 0;       // of which are cached now
  // What a run has when its last unit has the prompt's blocks.
  const auto grown = [&](const Node& n, std::uint32_t begin) {
    return std::max(n.have, std::min(to - begin * unit_blocks_, units_in(n.have) * unit_blocks_));
  };
  std::uint32_t last = held.last;
  std::uint32_t at = held.units;
  std::uint32_t part = 0;  // units of the last run, where it has more
  found_.clear();
  if (at > 0 && at <= end) {
    const Node& n = nodes_[last];
    found_.push_back({last, grown(n, at - units_in(n.have))});
    more += found_[0].have - n.have;
  }
  const std::size_t held_runs = found_.size();
  while (at < end && part == 0) {
    const std::uint32_t node = child_of(last, units[at]);
    if (node == kNone) break;
    const Node& n = nodes_[node];
    const std::uint32_t count = alike(n, units, at, end);
    if (count < units_in(n.have)) part = count;
    const std::uint32_t have = part > 0 ? part * unit_blocks_ : grown(n, at);
    if (have > n.have) more += have - n.have;
    if (n.refs == 0) from_cache += std::min(have, n.have);
    found_.push_back({node, have});
    last = node;
    at += count;
  }
  if (at < end) more += to - at * unit_blocks_;
  if (more + from_cache > static_cast<std::int64_t>(available())) return false;
  if (part > 0) last = found_.back().node = split(last, part);
  for (std::size_t i = 0; i < found_.size(); ++i) {
    if (i >= held_runs) reference(found_[i].node);
    nodes_[found_[i].node].have = found_[i].have;
  }
  const std::int64_t in_stock = static_cast<std::int64_t>(available()) - evictable_;
  if (more > in_stock) evict(static_cast<std::uint32_t>(more - in_stock));
  if (at < end) {
    if (!goes_on(last, units, at)) {
      last = make_node(last, units, at);
      nodes_[last].refs = 1;
    }
    nodes_[last].have += to - at * unit_blocks_;
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
    const std::uint32_t node = take_free_node();
    nodes_[node].parent = kPrivate;
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
  // From the head, as much as fits: a prefix without its head is useless. Where more of its last unit is cached than it
  // asks for, it lacks nothing, and has no need of further blocks.
  KVD_CHECK(hold(units, std::min(to, available()), held, 0));
  release(held, 0);
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
    const bool whole = n.have > 0 && (n.have % unit_blocks_ == 0 || (n.child == kNone && n.hashed == 0));
    const bool below = n.parent == kNone || (!is_free[n.parent] && nodes_[n.parent].refs >= n.refs);
    if (!whole || !below || n.unit != n.ids[0] + n.salt || child_of(n.parent, n.unit) != node) return false;
  }
  std::uint64_t listed = 0;
  for (std::uint32_t node = first_; node != kNone; node = nodes_[node].next) listed += nodes_[node].have;
  return evictable == evictable_ && listed == evictable_ && hashed == hashed_ && used <= used_ && used_ <= blocks_ &&
         used_ + evictable_ <= blocks_;
}

}  // namespace kvd::sched
