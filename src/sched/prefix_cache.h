// The KV blocks of one engine with prefix caching, as vLLM V1 keeps them: blocks in use are counted by reference,
// blocks that nobody uses stay cached until others need them, least recently freed first, the tail of a prompt before
// its head.
//
// Prompts are given as units: runs of `unit_blocks` blocks with one id, equal id = equal whole prefix (a trace's block
// of 512 tokens is a unit of 32 blocks of 16). The blocks of a unit are cached as a leading part and leave from its
// end, so that a unit costs one entry however small its blocks are. Two requests that compute the same blocks at the
// same time share them at once; vLLM keeps both copies until one is freed.
//
// One owner, no locking. A run of units takes 48 bytes, and 16 to 32 in the table where it is not the first behind its
// parent; arrays double. Memory grows to what the blocks can hold and stays.
//
// Runs form a tree: what follows a prompt's run is below it. A request holds whole runs; one that shares a part of a
// run splits it. Who uses a run uses all above it, and tails are freed before heads, so that what is evicted is always
// a leaf's end. A thousand engines share the processor's cache, and with a node a unit most of a simulation's time
// would go by in waiting for nodes.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <vector>

namespace kvd::sched {

using UnitId = std::uint32_t;

// A prompt's units: ids of a trace, each plus `salt`. Copies of a trace have salts of their own, so far apart that
// units with different ones are never equal. Caches that have held or remembered units point at their ids, which must
// stay where they are.
struct Units {
  const UnitId* ids = nullptr;
  std::uint32_t count = 0;
  std::uint32_t salt = 0;
  [[nodiscard]] UnitId operator[](std::uint32_t i) const noexcept { return ids[i] + salt; }
};

class PrefixCache {
 public:
  // What a request holds of its prompt.
  struct Held {
    std::uint32_t units = 0;          // leading ones
    std::uint32_t last = UINT32_MAX;  // the cache's: the run that ends with the last of them
  };

  // `memory` outlives the cache.
  PrefixCache(std::uint32_t blocks, std::uint32_t unit_blocks,
              std::pmr::memory_resource* memory = std::pmr::get_default_resource());

  [[nodiscard]] std::uint32_t blocks() const noexcept { return blocks_; }
  [[nodiscard]] std::uint32_t used() const noexcept { return used_; }
  // Blocks that can be taken: free ones and cached ones that nobody uses.
  [[nodiscard]] std::uint32_t available() const noexcept { return blocks_ - used_; }
  [[nodiscard]] std::uint32_t cached() const noexcept { return evictable_; }
  [[nodiscard]] std::uint32_t unit_blocks() const noexcept { return unit_blocks_; }

  // Leading blocks of the prompt that are cached, at most `blocks_max`. Changes nothing.
  [[nodiscard]] std::uint32_t match(const Units& units, std::uint32_t blocks_max) const noexcept;

  // Of the prompt's first `to` blocks, how many are not cached: what remember() would have to write.
  [[nodiscard]] std::uint32_t missing(const Units& units, std::uint32_t to) const noexcept;

  // Makes the prompt's first `to` blocks the request's, of which it has `held` already; those that are not cached are
  // taken. `private_more` further blocks, which are never hit, are taken (or given back, < 0). False, and nothing is
  // changed, when there are not enough. On success `held` covers `to`.
  bool hold(const Units& units, std::uint32_t to, Held& held, std::int64_t private_more);

  // Takes `count` private blocks; false, and nothing is changed, when there are not enough.
  bool take(std::uint32_t count);

  // The request is done with its units and private blocks: they become evictable, private ones first. It holds nothing
  // then.
  void release(Held& held, std::uint32_t private_blocks);

  // Evicts all that nobody uses.
  void forget() { evict(evictable_); }

  // Caches the prompt's first `to` blocks without using them, for a store; evicts what does not fit.
  void remember(const Units& units, std::uint32_t to);

  // Recounts everything; false when a count is wrong. For tests.
  [[nodiscard]] bool consistent() const;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::uint32_t kPrivate = kNone - 1;
  struct Node {  // a run of units
    const UnitId* ids = nullptr;
    std::uint32_t salt = 0;
    UnitId unit = 0;         // the first
    std::uint32_t have = 0;  // leading blocks cached
    std::uint32_t refs = 0;
    std::uint32_t prev = kNone;    // in the order of eviction, while refs is 0
    std::uint32_t next = kNone;    // the same; among free nodes
    std::uint32_t parent = kNone;  // the run before it, kNone: a first one; kPrivate: blocks of a finished request
    std::uint32_t child = kNone;   // a run behind it
    std::uint32_t hashed = 0;      // how many others are behind it, in the table
  };
  struct Found {
    std::uint32_t node = 0;
    std::uint32_t have = 0;  // it will have then
  };
  struct Slot {
    std::uint32_t key = 0;
    std::uint32_t node = kNone;  // kNone: free
  };

  [[nodiscard]] std::uint32_t child_of(std::uint32_t parent, UnitId unit) const noexcept;
  [[nodiscard]] std::uint32_t find(std::uint32_t parent, UnitId unit) const noexcept;
  // One unit may come behind many runs. Tells units behind the same run apart.
  [[nodiscard]] static std::uint32_t key_of(std::uint32_t parent, UnitId unit) noexcept {
    return unit ^ (parent * 0x85EBCA6BU);
  }
  [[nodiscard]] std::size_t slot_of(std::uint32_t key) const noexcept {
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ULL) >> shift_);
  }
  [[nodiscard]] std::uint32_t units_in(std::uint32_t blocks) const noexcept {
    return (blocks + unit_blocks_ - 1) / unit_blocks_;
  }
  // How many of the run's units are the prompt's from unit `at` to `end`.
  [[nodiscard]] std::uint32_t alike(const Node& run, const Units& units, std::uint32_t at,
                                    std::uint32_t end) const noexcept;
  std::uint32_t make_node(std::uint32_t parent, const Units& units, std::uint32_t at);
  std::uint32_t split(std::uint32_t node, std::uint32_t units);
  [[nodiscard]] bool goes_on(std::uint32_t node, const Units& units, std::uint32_t at) const noexcept;
  std::uint32_t take_free_node();
  void drop_node(std::uint32_t node);
  void insert_slot(Slot entry);
  [[nodiscard]] std::size_t slot_with(std::uint32_t node) const noexcept;
  void erase_slot(std::uint32_t node);
  void grow_table();
  void reference(std::uint32_t node);
  void push_last(std::uint32_t node);
  void unlink(std::uint32_t node);
  void evict(std::uint32_t count);

  // What taking a block reads and writes lies together.
  std::uint32_t blocks_;
  std::uint32_t unit_blocks_;
  std::uint32_t used_ = 0;
  std::uint32_t evictable_ = 0;  // cached and unused
  std::uint32_t first_ = kNone;  // next to be evicted
  std::uint32_t last_ = kNone;
  std::pmr::vector<Node> nodes_;
  std::pmr::vector<Slot> table_;   // open addressing
  std::pmr::vector<Found> found_;  // by hold()
  std::uint32_t hashed_ = 0;       // nodes in the table
  std::uint32_t free_ = kNone;     // free nodes, linked by next
  int shift_;
};

}  // namespace kvd::sched
