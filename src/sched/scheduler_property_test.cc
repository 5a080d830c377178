// Random requests through a scheduler that is short of blocks, with every invariant checked after every step. The seed
// is printed by a failure; tests/mutation runs this program against schedulers with one bug each.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "sched/scheduler.h"

namespace kvd::sched {
namespace {

// Steps over all schedulers.
constexpr std::uint64_t kSteps = 1'000'000;
constexpr std::uint64_t kEachPreemptionMin = 10'000;

Config random_config(Random& random) {
  Config config = vllm_0_4_2(static_cast<std::uint32_t>(24 + random.below(40)), 0);
  config.block_tokens = 1U << random.below(4);
  config.pass_tokens_max = static_cast<std::uint32_t>(64 + random.below(256));
  config.pass_seqs_max = static_cast<std::uint32_t>(4 + random.below(28));
  config.watermark_blocks = static_cast<std::uint32_t>(random.below(3));
  config.host_blocks = static_cast<std::uint32_t>(random.below(4) == 0 ? 8 : 200);
  config.batching = static_cast<Batching>(random.below(4));
  config.chunk_tokens = static_cast<std::uint32_t>(4 + random.below(64));
  config.eviction = static_cast<Eviction>(random.below(3));
  config.partial = random.chance(1, 2);
  config.async_swap = random.chance(1, 2);
  config.prefers_swap = [](const Victim& victim) { return (victim.blocks * 7 + victim.tokens) % 2 == 0; };
  return config;
}

struct Tally {
  std::uint64_t steps = 0;
  std::uint64_t short_steps = 0;  // steps in which a block shortage made somebody wait or go
  std::uint64_t recomputes = 0;
  std::uint64_t swaps = 0;        // copies before the pass
  std::uint64_t async_swaps = 0;  // copies beside passes
  std::uint64_t partial = 0;
  std::uint64_t chosen_recomputes = 0;  // of those above, what the adaptive choice made them
  std::uint64_t chosen_swaps = 0;
};

// Walks one scheduler and compares it with what must hold.
class Walk {
 public:
  explicit Walk(Random& random) : random_(random), s_(random_config(random)) {}

  void run(Tally& tally) {
    for (int step = 0; step < 2000 && !::testing::Test::HasFailure(); ++step) {
      if (added_ < 300 && random_.chance(1, 3)) add();
      if (s_.idle()) {
        if (added_ >= 300) break;
        continue;
      }
      const Counts before = s_.counts();
      const Pass pass = s_.schedule();
      note_copies();
      check_pass(pass);
      check_blocks();
      check_order();
      s_.complete();
      check_blocks();
      check_progress(pass);
      end_copies(pass.items.empty());
      check_blocks();
      ++tally.steps;
      const Counts& after = s_.counts();
      const bool preempted = after.recomputes + after.swaps_out > before.recomputes + before.swaps_out;
      if (preempted || s_.pool().free() < s_.config().watermark_blocks + 2) ++tally.short_steps;
    }
    tally.recomputes += s_.counts().recomputes;
    (s_.config().async_swap ? tally.async_swaps : tally.swaps) += s_.counts().swaps_out;
    tally.partial += s_.counts().partial_evictions;
    if (s_.config().eviction != Eviction::kAdaptive) return;
    tally.chosen_recomputes += s_.counts().recomputes - s_.counts().host_full;
    tally.chosen_swaps += s_.counts().swaps_out;
  }

 private:
  void add() {
    const std::uint32_t capacity = s_.config().blocks * s_.config().block_tokens;
    const auto prompt = static_cast<std::uint32_t>(1 + random_.below(std::max(1U, capacity / 4)));
    const auto output = static_cast<std::uint32_t>(1 + random_.below(std::max(1U, capacity / 6)));
    s_.add(prompt, output);
    tokens_.push_back(0);
    ++added_;
  }

  void check_pass(const Pass& pass) {
    const Config& c = s_.config();
    std::uint32_t tokens = 0;
    std::uint32_t prompts = 0;
    bool cut = false;
    std::vector<bool> seen(s_.requests().size());
    for (const Item& item : pass.items) {
      const Request& r = s_.request(item.request);
      tokens += item.tokens;
      EXPECT_FALSE(seen[item.request]) << "twice in a pass";
      seen[item.request] = true;
      EXPECT_EQ(static_cast<int>(r.state), static_cast<int>(State::kRunning));
      EXPECT_EQ(item.context, r.computed);
      EXPECT_GT(item.tokens, 0U);
      EXPECT_LE(item.context + item.tokens, r.length());
      EXPECT_GE(r.blocks.size() * c.block_tokens, item.context + item.tokens) << "tokens without a block";
      if (item.prefill) prompts += item.tokens;
      cut |= item.context + item.tokens < r.length();
    }
    check_cut(cut, prompts, tokens);
    check_turn(pass);
    EXPECT_EQ(tokens, pass.tokens);
    EXPECT_LE(tokens, c.pass_tokens_max);
    EXPECT_LE(pass.items.size(), c.pass_seqs_max);
    if (pass.items.empty()) {
      EXPECT_TRUE(s_.running().empty() || !copies_.empty()) << "somebody runs, but not now";
      empty_ = s_.idle() || !copies_.empty() ? 0 : empty_ + 1;
      EXPECT_LE(empty_, 2) << "stuck";
    } else {
      empty_ = 0;
    }
  }

  // Prompts are cut where the batching says so, and no shorter than the pass has room for.
  void check_cut(bool cut, std::uint32_t prompts, std::uint32_t tokens) {
    const Config& c = s_.config();
    if (!cut) return;
    EXPECT_TRUE(c.batching == Batching::kChunked || c.batching == Batching::kSelective) << "a cut prompt";
    const bool chunk_full = c.batching == Batching::kSelective && prompts == c.chunk_tokens;
    EXPECT_TRUE(tokens == c.pass_tokens_max || chunk_full) << "cut without need";
  }

  // With the adaptive choice nobody who was preempted comes back before an earlier one that is still swapped out.
  void check_turn(const Pass& pass) {
    const Config& c = s_.config();
    if (c.eviction != Eviction::kAdaptive || c.batching != Batching::kPrefillFirst || s_.swapped().empty()) return;
    for (const Item& item : pass.items) {
      EXPECT_TRUE(!item.resumed || item.request < s_.swapped().front()) << "came back out of turn";
    }
  }

  // A copy that has begun, and the blocks that nobody may touch until it is done.
  struct Moving {
    Copy copy;
    std::vector<BlockId> blocks;
  };

  void note_copies() {
    EXPECT_TRUE(s_.config().async_swap || s_.copies().empty());
    for (std::size_t i = copies_.size(); i < s_.copies().size(); ++i) {
      const Copy copy = s_.copies()[i];
      const Request& r = s_.request(copy.request);
      EXPECT_EQ(static_cast<int>(r.state), static_cast<int>(copy.out ? State::kSwappingOut : State::kSwappingIn));
      // Those that leave are the last of its blocks; of several copies the first has the very last ones.
      const std::size_t end = copy.out ? r.blocks.size() - r.leaving + copy.blocks : r.blocks.size();
      ASSERT_LE(copy.blocks, end);
      const auto first = r.blocks.begin() + static_cast<std::ptrdiff_t>(end - copy.blocks);
      copies_.push_back({copy, {first, first + copy.blocks}});
    }
  }

  // Lets some copies end; with `wait` at least one.
  void end_copies(bool wait) {
    while (!copies_.empty() && (wait || random_.chance(1, 2))) {
      wait = false;
      s_.copied();
      const Moving done = copies_.front();
      copies_.pop_front();
      const bool more = std::ranges::any_of(
          copies_, [&](const Moving& moving) { return moving.copy.request == done.copy.request && moving.copy.out; });
      const State expected = !done.copy.out ? State::kRunning : more ? State::kSwappingOut : State::kSwapped;
      EXPECT_EQ(static_cast<int>(s_.request(done.copy.request).state), static_cast<int>(expected));
      for (const BlockId block : done.blocks) {
        EXPECT_EQ(s_.pool().owner(block), done.copy.out ? kNobody : done.copy.request);
      }
    }
  }

  // Every block has one owner or is free; nothing is lost; the host's are counted.
  void check_blocks() {
    owners_.assign(s_.pool().size(), kNobody);
    std::uint32_t owned = 0;
    std::uint32_t host = 0;
    for (RequestId id = 0; id < s_.requests().size(); ++id) {
      const Request& r = s_.request(id);
      for (const BlockId block : r.blocks) {
        EXPECT_EQ(owners_[block], kNobody) << "owned twice";
        EXPECT_EQ(s_.pool().owner(block), id);
        owners_[block] = id;
        ++owned;
      }
      host += r.host_blocks + r.leaving;
      const std::uint32_t held = static_cast<std::uint32_t>(r.blocks.size()) + r.host_blocks;
      if (r.state == State::kFinished || r.state == State::kRejected) {
        EXPECT_EQ(held, 0U) << "leaked";
      } else {
        EXPECT_LE(r.computed, held * s_.config().block_tokens) << "computed tokens without a block";
      }
    }
    for (const Moving& moving : copies_) {
      for (const BlockId block : moving.blocks) EXPECT_EQ(owners_[block], moving.copy.request) << "being copied";
    }
    EXPECT_EQ(copies_.size(), s_.copies().size());
    EXPECT_EQ(owned, s_.pool().used());
    EXPECT_EQ(host, s_.host_used());
    EXPECT_LE(host, s_.config().host_blocks);
  }

  // Preempted requests wait before new ones; all lists keep the order of arrival; states match the lists.
  void check_order() {
    EXPECT_TRUE(std::ranges::is_sorted(s_.running()));
    EXPECT_TRUE(std::ranges::is_sorted(s_.swapped()));
    EXPECT_TRUE(std::ranges::is_sorted(s_.arriving()));
    std::vector<RequestId> fresh;
    for (const RequestId id : s_.waiting()) {
      if (!s_.request(id).resuming) fresh.push_back(id);
      EXPECT_TRUE(fresh.empty() || !s_.request(id).resuming) << "a preempted request behind a new one";
    }
    EXPECT_TRUE(std::ranges::is_sorted(fresh));
    // Mixed and chunked passes may admit a later request while an earlier one is preempted, as vLLM does. Where the
    // host is full, and not with the adaptive choice, a swapped one may come back before an earlier one that has to
    // recompute.
    const bool one_queue = s_.config().eviction == Eviction::kAdaptive || s_.counts().host_full == 0;
    if (s_.config().batching == Batching::kPrefillFirst && one_queue) {
      EXPECT_TRUE(std::ranges::is_sorted(s_.waiting()));
    }
    for (const RequestId id : s_.waiting()) EXPECT_EQ(static_cast<int>(s_.request(id).state), int(State::kWaiting));
    for (const RequestId id : s_.arriving()) EXPECT_EQ(static_cast<int>(s_.request(id).state), int(State::kSwappingIn));
    for (const RequestId id : s_.swapped()) {
      const State expected = s_.request(id).leaving > 0 ? State::kSwappingOut : State::kSwapped;
      EXPECT_EQ(static_cast<int>(s_.request(id).state), static_cast<int>(expected));
    }
    EXPECT_LE(s_.running().size() + s_.arriving().size(), s_.config().pass_seqs_max);
  }

  // A request has one more token after each pass that completed its sequence, and never loses one.
  void check_progress(const Pass& pass) {
    for (const Item& item : pass.items) {
      const Request& r = s_.request(item.request);
      const bool whole = item.context + item.tokens == r.prompt + tokens_[item.request];
      if (whole) ++tokens_[item.request];
    }
    for (RequestId id = 0; id < s_.requests().size(); ++id) {
      const Request& r = s_.request(id);
      EXPECT_EQ(r.generated, tokens_[id]);
      if (r.state == State::kFinished) {
        EXPECT_EQ(r.generated, r.output);
      }
    }
  }

  Random& random_;
  Scheduler s_;
  std::vector<std::uint32_t> tokens_;  // generated so far, counted by the test
  std::vector<RequestId> owners_;
  std::deque<Moving> copies_;  // the same as the scheduler's
  std::uint32_t added_ = 0;
  int empty_ = 0;
};

TEST(SchedulerProperty, HoldsUnderBlockShortage) {
  Tally tally;
  for (std::uint64_t seed = 1; tally.steps < kSteps && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Walk(random).run(tally);
  }
  std::printf(
      "%llu steps, %.0f %% short of blocks, %llu recomputations, %llu swaps, %llu asynchronous swaps, %llu partial "
      "evictions; by the adaptive choice %llu recomputations, %llu swaps\n",
      static_cast<unsigned long long>(tally.steps),
      100 * static_cast<double>(tally.short_steps) / static_cast<double>(tally.steps),
      static_cast<unsigned long long>(tally.recomputes), static_cast<unsigned long long>(tally.swaps),
      static_cast<unsigned long long>(tally.async_swaps), static_cast<unsigned long long>(tally.partial),
      static_cast<unsigned long long>(tally.chosen_recomputes), static_cast<unsigned long long>(tally.chosen_swaps));
  if (HasFailure()) return;
  EXPECT_GE(tally.short_steps * 5, tally.steps);
  EXPECT_GE(tally.recomputes, kEachPreemptionMin);
  EXPECT_GE(tally.swaps, kEachPreemptionMin);
  EXPECT_GE(tally.async_swaps, kEachPreemptionMin);
  EXPECT_GE(tally.partial, kEachPreemptionMin);
  EXPECT_GE(tally.chosen_recomputes, kEachPreemptionMin);
  EXPECT_GE(tally.chosen_swaps, kEachPreemptionMin);
}

}  // namespace
}  // namespace kvd::sched
