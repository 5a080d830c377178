#include "sim/cache_replay.h"

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "policy/eviction.h"

namespace kvd::sim {
namespace {

class Cache {
 public:
  virtual ~Cache() = default;
  [[nodiscard]] virtual bool has(std::uint32_t block) const = 0;
  // `block` is there and was used.
  virtual void use(std::uint32_t block) = 0;
  // The request stores a block that is not there. `group`: of blocks that share an open segment.
  virtual void store(std::uint32_t block, std::uint32_t group) = 0;
  virtual void end_request() {}
};

// A log of segments as the store's, under one of its policies.
class SegmentCache final : public Cache {
 public:
  SegmentCache(const ReplayCache& cache, std::uint32_t distinct_blocks)
      : capacity_(cache.capacity_blocks),
        segment_blocks_(cache.segment_blocks),
        interleaved_(cache.interleaved_requests),
        where_(distinct_blocks, kAbsent),
        held_(replay_segments(cache)) {
    const auto segments = static_cast<std::uint32_t>(held_.size());
    policy_ = policy::make_eviction(cache.eviction, segments);
    for (std::uint32_t i = segments; i > 0; --i) free_.push_back(i - 1);
  }

  [[nodiscard]] bool has(std::uint32_t block) const override { return where_[block] != kAbsent; }
  void use(std::uint32_t block) override {
    if (where_[block] != kWaiting) policy_->touch(where_[block]);
  }
  void store(std::uint32_t block, std::uint32_t group) override {
    if (interleaved_ == 1) return write({block, group});
    where_[block] = kWaiting;
    ++waiting_;
    asking_.push_back({block, group});
  }
  void end_request() override {
    if (asking_.empty()) return;
    writing_.push_back(std::exchange(asking_, {}));
    if (writing_.size() == interleaved_) write_until_one_ends();
    while (occupied() > capacity_ && give_up_one()) {
    }
  }

 private:
  static constexpr std::uint32_t kAbsent = UINT32_MAX;
  static constexpr std::uint32_t kWaiting = UINT32_MAX - 1;

  struct Stored {
    std::uint32_t block;
    std::uint32_t group;
  };
  using Open = std::optional<std::uint32_t>;

  // What waits takes the place of segments.
  [[nodiscard]] std::uint64_t occupied() const { return (held_.size() - free_.size()) * segment_blocks_ + waiting_; }

  void write_until_one_ends() {
    for (bool ended = false; !ended;) {
      for (std::deque<Stored>& request : writing_) {
        --waiting_;
        write(request.front());
        request.pop_front();
        ended = ended || request.empty();
      }
    }
    std::erase_if(writing_, [](const auto& request) { return request.empty(); });
  }
  void write(const Stored& stored) {
    Open& open = open_[stored.group];
    if (!open) begin_segment(open);
    held_[*open].push_back(stored.block);
    where_[stored.block] = *open;
    if (held_[*open].size() == segment_blocks_) open.reset();
  }
  void begin_segment(Open& open) {
    if (free_.empty()) KVD_CHECK(give_up_one());
    open = free_.back();
    free_.pop_back();
    policy_->add(*open);
  }
  // False where only open segments are left.
  bool give_up_one() {
    std::optional<std::uint32_t> victim = policy_->victim();
    while (victim && std::ranges::find(open_, victim) != open_.end()) victim = policy_->next_victim(*victim);
    if (!victim) return false;
    for (const std::uint32_t block : held_[*victim]) where_[block] = kAbsent;
    held_[*victim].clear();
    policy_->remove(*victim);
    free_.push_back(*victim);
    return true;
  }

  std::uint64_t capacity_;
  std::uint32_t segment_blocks_;
  std::uint32_t interleaved_;
  std::vector<std::uint32_t> where_;              // by block: its segment
  std::vector<std::vector<std::uint32_t>> held_;  // by segment
  std::vector<std::uint32_t> free_;
  std::array<Open, 2> open_;                 // by group
  std::deque<Stored> asking_;                // what the request stores, to be written in turn
  std::vector<std::deque<Stored>> writing_;  // requests before it, oldest first
  std::uint64_t waiting_ = 0;
  std::unique_ptr<policy::EvictionPolicy> policy_;
};

// S3-FIFO: a tenth of the space for what is new; what is used twice there goes over to the
// rest; of what leaves it unused, as many names as the rest has places are remembered.
class S3Fifo final : public Cache {
 public:
  S3Fifo(std::uint64_t capacity, std::uint32_t distinct_blocks)
      : capacity_(capacity),
        small_max_(std::max<std::uint64_t>(1, capacity / 10)),
        state_(distinct_blocks),
        left_at_(distinct_blocks) {}

  [[nodiscard]] bool has(std::uint32_t block) const override { return state_[block].there; }
  void use(std::uint32_t block) override {
    state_[block].uses = static_cast<std::uint8_t>(std::min(state_[block].uses + 1, 3));
  }
  void store(std::uint32_t block, std::uint32_t /*group*/) override {
    if (small_.size() + main_.size() == capacity_) give_up_one();
    const bool known = left_at_[block] != 0 && left_ - left_at_[block] < capacity_ - small_max_;
    left_at_[block] = 0;
    state_[block] = {true, 0};
    (known ? main_ : small_).push_back(block);
  }

 private:
  struct State {
    bool there = false;
    std::uint8_t uses = 0;
  };

  void give_up_one() {
    while (small_.size() >= small_max_ || main_.empty()) {
      const std::uint32_t block = small_.front();
      small_.pop_front();
      if (state_[block].uses <= 1) {
        state_[block] = {};
        left_at_[block] = ++left_;
        return;
      }
      state_[block].uses = 0;
      main_.push_back(block);
    }
    for (;;) {
      const std::uint32_t block = main_.front();
      main_.pop_front();
      if (state_[block].uses == 0) {
        state_[block] = {};
        return;
      }
      --state_[block].uses;
      main_.push_back(block);
    }
  }

  std::uint64_t capacity_;
  std::uint64_t small_max_;
  std::deque<std::uint32_t> small_;
  std::deque<std::uint32_t> main_;
  std::vector<State> state_;
  std::vector<std::uint64_t> left_at_;  // by block: when it left small_ unused; 0 = not remembered
  std::uint64_t left_ = 0;
};

// Says to which group a block belongs that request number `r` stores at place `i` of its prompt.
class Groups {
 public:
  Groups(const trace::Trace& trace, const ReplayCache& cache)
      : cache_(cache), first_use_(trace.distinct_blocks, UINT32_MAX), last_use_(trace.distinct_blocks) {
    for (std::uint32_t r = 0; r < trace.requests.size(); ++r) {
      for (const std::uint32_t block : trace.blocks_of(trace.requests[r])) {
        first_use_[block] = std::min(first_use_[block], r);
        last_use_[block] = r;
      }
    }
  }

  [[nodiscard]] std::uint32_t of(std::uint32_t r, std::uint32_t i, std::uint32_t block) const {
    switch (cache_.grouping) {
      case Grouping::kNone: return 0;
      case Grouping::kDepth: return i < cache_.head_blocks ? 0 : 1;
      case Grouping::kAgain: return first_use_[block] < r ? 0 : 1;
      case Grouping::kKnown: return last_use_[block] > r ? 0 : 1;
    }
    return 0;
  }

 private:
  const ReplayCache cache_;
  std::vector<std::uint32_t> first_use_, last_use_;  // by block: requests of the trace
};

// Share of the prompt tokens that `cache` has when they are asked for.
double hit_rate(const trace::Trace& trace, Cache& cache, const Groups& groups) {
  KVD_CHECK(trace.block_tokens > 0);
  std::uint64_t tokens = 0;
  std::uint64_t hits = 0;
  for (std::uint32_t r = 0; r < trace.requests.size(); ++r) {
    const trace::Request& request = trace.requests[r];
    const std::span<const std::uint32_t> blocks = trace.blocks_of(request);
    bool all_before = true;
    for (std::uint32_t i = 0; i < blocks.size(); ++i) {
      const bool there = cache.has(blocks[i]);
      all_before = all_before && there;
      if (all_before) hits += trace.tokens_of_block(request, i);
      there ? cache.use(blocks[i]) : cache.store(blocks[i], groups.of(r, i, blocks[i]));
    }
    cache.end_request();
    tokens += request.prompt_tokens;
  }
  return tokens == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(tokens);
}

}  // namespace

std::uint64_t replay_segments(const ReplayCache& cache) noexcept {
  return cache.capacity_blocks / cache.segment_blocks;
}

std::uint64_t replay_segments_min(const ReplayCache& cache) noexcept {
  return cache.grouping == Grouping::kNone ? 2 : 3;
}

double replay_hit_rate(const trace::Trace& trace, const ReplayCache& cache) {
  KVD_CHECK(replay_segments(cache) >= replay_segments_min(cache) && replay_segments(cache) < UINT32_MAX - 1 &&
            cache.interleaved_requests > 0);
  SegmentCache made(cache, trace.distinct_blocks);
  return hit_rate(trace, made, {trace, cache});
}

double replay_s3_fifo_hit_rate(const trace::Trace& trace, std::uint64_t capacity_blocks) {
  KVD_CHECK(capacity_blocks >= 2);
  S3Fifo made(capacity_blocks, trace.distinct_blocks);
  return hit_rate(trace, made, {trace, {}});
}

}  // namespace kvd::sim
