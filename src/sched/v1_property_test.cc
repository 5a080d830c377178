// Random requests through V1 engines that are short of blocks, compared after every step with a model that counts each
// block by its owners, and random use of a prefix cache against one that keeps blocks in a plain list. The seed is
// printed by a failure; tests/mutation runs this program against engines and caches with one bug each.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "sched/v1_engine.h"

namespace kvd::sched {
namespace {

constexpr std::uint64_t kEngineSteps = 1'000'000;  // of engines
constexpr std::uint64_t kCacheSteps = 300'000;     // of caches
constexpr std::uint64_t kPreemptionsMin = 10'000;
constexpr std::uint32_t kFamilies = 4;  // of prompts that begin alike
constexpr UnitId kSaltStep = 1U << 30;  // more than all ids

std::uint32_t up_to(Random& random, std::uint32_t most) {
  return static_cast<std::uint32_t>(1 + random.below(std::max(1U, most)));
}

std::uint32_t ceil_div(std::uint32_t a, std::uint32_t b) { return (a + b - 1) / b; }

// Ids of a prompt: the first `shared` units are its family's, the others its own. Equal ids have equal prefixes.
std::vector<UnitId> ids_of(std::uint32_t units, std::uint32_t family, std::uint32_t shared, std::uint32_t own) {
  std::vector<UnitId> ids;
  const UnitId first_own = 1'000'000 + ((own * kFamilies + family) * 512 + shared) * 512;
  for (UnitId i = 0; i < units; ++i) ids.push_back(i < shared ? family * 1000 + i : first_own + i);
  return ids;
}

// --- the cache

// A prefix cache that knows every block: units in the order in which they will go, blocks taken off one by one.
class PlainCache {
 public:
  PlainCache(std::uint32_t blocks, std::uint32_t unit_blocks) : blocks_(blocks), unit_blocks_(unit_blocks) {}

  [[nodiscard]] std::uint32_t used() const { return used_; }
  [[nodiscard]] std::uint32_t cached() const {
    std::uint32_t sum = 0;
    for (const Idle& idle : order_) sum += idle.named ? units_.at(idle.unit).have : idle.have;
    return sum;
  }

  [[nodiscard]] std::uint32_t match(const Units& units, std::uint32_t most) const {
    std::uint32_t blocks = 0;
    for (std::uint32_t i = 0; i < units.count; ++i) {
      const auto at = units_.find(units[i]);
      if (at == units_.end()) break;
      blocks += at->second.have;
      if (at->second.have < unit_blocks_) break;
    }
    return std::min(blocks, most);
  }

  bool hold(const Units& units, std::uint32_t to, std::uint32_t& held, std::int64_t private_more) {
    const std::uint32_t end = ceil_div(to, unit_blocks_);
    std::int64_t more = private_more;
    std::int64_t waking = 0;
    for (std::uint32_t i = 0; i < end; ++i) {
      const auto at = units_.find(units[i]);
      const std::uint32_t have = at == units_.end() ? 0 : at->second.have;
      more += std::max<std::int64_t>(0, std::int64_t{wanted(to, i)} - have);
      if (at != units_.end() && at->second.owners == 0) waking += have;
    }
    if (used_ + more + waking > blocks_) return false;
    for (std::uint32_t i = held; i < end; ++i) own(units[i]);
    used_ = static_cast<std::uint32_t>(used_ + more);
    while (used_ + cached() > blocks_) evict_one();
    for (std::uint32_t i = 0; i < end; ++i) {
      std::uint32_t& have = units_.at(units[i]).have;
      have = std::max(have, wanted(to, i));
    }
    held = std::max(held, end);
    return true;
  }

  bool take(std::uint32_t count) {
    if (used_ + count > blocks_) return false;
    used_ += count;
    while (used_ + cached() > blocks_) evict_one();
    return true;
  }

  void release(const Units& units, std::uint32_t held, std::uint32_t private_blocks) {
    used_ -= private_blocks;
    if (private_blocks > 0) order_.push_back({false, 0, private_blocks});
    for (std::uint32_t i = held; i-- > 0;) {
      Unit& unit = units_.at(units[i]);
      if (--unit.owners > 0) continue;
      used_ -= unit.have;
      order_.push_back({true, units[i], 0});
    }
  }

 private:
  struct Unit {
    std::uint32_t have = 0;
    std::uint32_t owners = 0;
  };
  struct Idle {
    bool named = false;
    UnitId unit = 0;
    std::uint32_t have = 0;  // of private blocks
  };

  [[nodiscard]] std::uint32_t wanted(std::uint32_t to, std::uint32_t unit) const {
    return std::min(unit_blocks_, to - unit * unit_blocks_);
  }

  void own(UnitId id) {
    Unit& unit = units_[id];
    if (unit.owners++ > 0) return;
    used_ += unit.have;
    std::erase_if(order_, [id](const Idle& idle) { return idle.named && idle.unit == id; });
  }

  void evict_one() {
    Idle& idle = order_.front();
    std::uint32_t& have = idle.named ? units_.at(idle.unit).have : idle.have;
    if (--have > 0) return;
    if (idle.named) units_.erase(idle.unit);
    order_.pop_front();
  }

  std::uint32_t blocks_;
  std::uint32_t unit_blocks_;
  std::uint32_t used_ = 0;
  std::map<UnitId, Unit> units_;
  std::list<Idle> order_;  // the first goes first
};

// Somebody who uses both caches alike.
struct Holder {
  std::span<const UnitId> ids;
  std::uint32_t salt = 0;
  std::uint32_t to = 0;
  PrefixCache::Held held;
  std::uint32_t own = 0;
  [[nodiscard]] Units units() const { return {ids.data(), static_cast<std::uint32_t>(ids.size()), salt}; }
};

class CacheWalk {
 public:
  explicit CacheWalk(Random& random)
      : random_(random),
        blocks_(random.chance(1, 16) ? 500 : static_cast<std::uint32_t>(16 + random.below(48))),
        unit_blocks_(static_cast<std::uint32_t>(1 + random.below(5))),
        salts_(random.chance(1, 4) ? 3 : 1),
        cache_(blocks_, unit_blocks_),
        plain_(blocks_, unit_blocks_) {}

  // Counts requests for blocks that were refused.
  void run(int steps, std::uint64_t& refused) {
    for (int step = 0; step < steps && !::testing::Test::HasFailure(); ++step) {
      if (!change()) ++refused;
      EXPECT_EQ(cache_.used(), plain_.used());
      EXPECT_EQ(cache_.cached(), plain_.cached());
      EXPECT_TRUE(cache_.consistent());
      const Holder probe = prompt();
      EXPECT_EQ(cache_.match(probe.units(), blocks_), plain_.match(probe.units(), blocks_));
    }
  }

 private:
  Holder prompt() {
    Holder holder;
    const std::uint32_t units = up_to(random_, 1 + blocks_ / unit_blocks_ / 2);
    const auto family = static_cast<std::uint32_t>(random_.below(kFamilies));
    holder.salt = kSaltStep * static_cast<std::uint32_t>(random_.below(salts_));
    holder.ids =
        ids_.emplace_back(ids_of(units, family, static_cast<std::uint32_t>(random_.below(units + 1)), next_++ % 4));
    return holder;
  }

  bool change() {
    const std::uint64_t what = random_.below(5);
    if (what == 0 || holders_.empty()) {
      Holder holder = prompt();
      if (!hold(holder)) return false;
      holders_.push_back(std::move(holder));
      return true;
    }
    const std::size_t at = random_.below(holders_.size());
    Holder& holder = holders_[at];
    if (what == 1) return hold(holder);
    if (what == 2) {
      const auto count = static_cast<std::uint32_t>(random_.below(4));
      const bool taken = cache_.take(count);
      EXPECT_EQ(taken, plain_.take(count));
      if (taken) holder.own += count;
      return taken;
    }
    if (what == 3) {
      const Holder other = prompt();
      const std::uint32_t to = up_to(random_, static_cast<std::uint32_t>(other.ids.size()) * unit_blocks_);
      cache_.remember(other.units(), to);
      std::uint32_t held = 0;
      if (plain_.hold(other.units(), std::min(to, blocks_ - plain_.used()), held, 0)) {
        plain_.release(other.units(), held, 0);
      }
      return true;
    }
    plain_.release(holder.units(), holder.held.units, holder.own);
    cache_.release(holder.held, holder.own);
    holders_.erase(holders_.begin() + static_cast<std::ptrdiff_t>(at));
    return true;
  }

  // A larger part of the prompt, and some blocks of its own more or less.
  bool hold(Holder& holder) {
    const std::uint32_t end = static_cast<std::uint32_t>(holder.ids.size()) * unit_blocks_;
    const std::uint32_t to = holder.to + static_cast<std::uint32_t>(random_.below(end - holder.to + 1));
    const auto own = static_cast<std::uint32_t>(random_.below(4));
    const std::int64_t more = std::int64_t{own} - holder.own;
    std::uint32_t held = holder.held.units;
    const bool done = cache_.hold(holder.units(), to, holder.held, more);
    EXPECT_EQ(done, plain_.hold(holder.units(), to, held, more));
    EXPECT_EQ(holder.held.units, held);
    if (done) {
      holder.to = to;
      holder.own = own;
    }
    return done;
  }

  Random& random_;
  std::uint32_t blocks_;
  std::uint32_t unit_blocks_;
  std::uint32_t salts_;  // how many prompts choose from
  PrefixCache cache_;
  PlainCache plain_;
  std::deque<std::vector<UnitId>> ids_;  // of all prompts, since the cache points at them
  std::vector<Holder> holders_;
  std::uint32_t next_ = 0;
};

// --- the engine

// A tier that has what it likes, and is done when it is told.
class RandomTier final : public OtherTier {
 public:
  RandomTier(Random& random, bool layerwise) : random_(random), layerwise_(layerwise) {}
  std::uint32_t match(const V1Request&, std::uint32_t have, std::uint32_t most) override {
    return have + static_cast<std::uint32_t>(random_.below(most - have + 1));
  }
  void fetch(V1Id id, std::uint32_t, std::uint32_t) override {
    if (!layerwise_) loading.push_back(id);
  }
  [[nodiscard]] bool layerwise() const override { return layerwise_; }

  std::deque<V1Id> loading;

 private:
  Random& random_;
  bool layerwise_;
};

struct EngineTally {
  std::uint64_t steps = 0;
  std::uint64_t short_steps = 0;  // somebody went or waits for want of blocks
  std::uint64_t preemptions = 0;
  std::uint64_t runs = 0;  // of more than one pass
  std::uint64_t loads = 0;
};

V1Config random_engine(Random& random) {
  V1Config config;
  config.blocks = static_cast<std::uint32_t>(24 + random.below(40));
  config.block_tokens = 1U << random.below(4);
  config.unit_blocks = static_cast<std::uint32_t>(1 + random.below(4));
  config.chunk_tokens = static_cast<std::uint32_t>(8 + random.below(56));
  config.seqs_max = static_cast<std::uint32_t>(2 + random.below(10));
  config.prefix_caching = random.chance(3, 4);
  config.preemption = random.chance(7, 8);
  return config;
}

class EngineWalk {
 public:
  explicit EngineWalk(Random& random)
      : random_(random), config_(random_engine(random)), requests_(kRequests), ids_(kRequests), known_(kRequests) {
    const std::uint64_t kind = random_.below(4);
    if (kind < 2) tier_ = std::make_unique<RandomTier>(random_, kind == 0);
    engine_ = std::make_unique<V1Engine>(config_, requests_, tier_.get());
  }

  void run(EngineTally& tally) {
    for (int step = 0; step < 3000 && !::testing::Test::HasFailure(); ++step) {
      if (next_ < kRequests && random_.chance(1, 3)) arrive();
      while (tier_ && !tier_->loading.empty() && random_.chance(1, 3)) load(tally);
      if (queue_.empty() && live_.empty()) passes_without_token_ = 0;
      if (next_ == kRequests && queue_.empty() && live_.empty()) break;
      EXPECT_LE(++passes_without_token_, kPassesWithoutTokenMax) << "nobody comes to an end";
      const V1Pass pass = engine_->schedule();
      const bool preempted = check_moves();
      check_chunks(pass, preempted);
      check_decodes(pass);
      check_blocks(1);
      const bool full = pass.prefill_tokens + pass.decodes >= config_.chunk_tokens;
      const bool waits = !queue_.empty() && !full && engine_->running() < config_.seqs_max;
      if (preempted || waits) ++tally.short_steps;
      ++tally.steps;
      if (pass.run == 0) {
        // What was fetched is sent back where others that are still being fetched hold its blocks.
        const bool loading = tier_ && !tier_->loading.empty();
        if (loading) load(tally);
        stuck_ = loading || queue_.empty() ? 0 : stuck_ + 1;
        EXPECT_LE(stuck_, 2);
        continue;
      }
      stuck_ = 0;
      complete(pass, tally);
    }
    tally.preemptions += engine_->preemptions();
  }

 private:
  static constexpr std::uint32_t kRequests = 200;
  static constexpr int kPassesWithoutTokenMax = 300;  // the longest prompt takes 63

  // What the test itself knows of a request.
  struct Known {
    V1State state = V1State::kNew;
    std::uint64_t admitted = 0;
    std::uint32_t held = 0;   // tokens that have room; while decoding, those that are cached
    std::uint32_t chunk = 0;  // tokens in the pass that was decided
    std::uint32_t generated = 0;
    bool begun = false;  // has had a chunk since its admission
  };

  [[nodiscard]] std::uint32_t shared_blocks(V1Id id) const {
    return config_.prefix_caching ? requests_[id].prompt / config_.block_tokens : 0;
  }

  void arrive() {
    const std::uint32_t capacity = config_.blocks * config_.block_tokens;
    V1Request& r = requests_[next_];
    r.prompt = up_to(random_, capacity / 3);
    r.output = up_to(random_, capacity / 4);
    if (random_.chance(1, 8)) {  // one that needs nearly all blocks, the last of its last unit perhaps not
      const auto spare = static_cast<std::uint32_t>(random_.below(config_.unit_blocks * config_.block_tokens));
      r.prompt = up_to(random_, capacity - spare - 1);
      r.output = capacity - spare - r.prompt;
    }
    const std::uint32_t units = ceil_div(r.prompt, config_.block_tokens * config_.unit_blocks);
    const auto family = static_cast<std::uint32_t>(random_.below(kFamilies));
    ids_[next_] = ids_of(units, family, static_cast<std::uint32_t>(random_.below(units + 1)), next_);
    r.units = {ids_[next_].data(), units, 0};
    EXPECT_TRUE(engine_->enqueue(next_));
    known_[next_].state = V1State::kWaiting;
    queue_.push_back(next_++);
  }

  void load(EngineTally& tally) {
    const V1Id id = tier_->loading.front();
    tier_->loading.pop_front();
    engine_->loaded(id);
    known_[id].state = V1State::kPrefilling;
    known_[id].admitted = ++admissions_;
    ++tally.loads;
  }

  // Who was preempted and who was admitted, and whether it was their turn. True when somebody was preempted.
  bool check_moves() {
    std::vector<V1Id> victims;
    std::uint64_t newest_left = 0;
    for (const V1Id id : live_) {
      Known& k = known_[id];
      k.chunk = 0;
      if (requests_[id].state == V1State::kWaiting) {
        victims.push_back(id);
        continue;
      }
      EXPECT_EQ(static_cast<int>(requests_[id].state), static_cast<int>(k.state));
      newest_left = std::max(newest_left, k.state == V1State::kLoading ? 0 : k.admitted);
    }
    // Of several the one that was admitted last goes first, so that the earliest ends up at the head.
    std::ranges::sort(victims, std::greater{}, [&](V1Id id) { return known_[id].admitted; });
    for (const V1Id id : victims) {
      Known& k = known_[id];
      EXPECT_TRUE(config_.preemption);
      EXPECT_GT(k.admitted, newest_left) << "preempted before somebody who came later";
      EXPECT_EQ(requests_[id].generated, k.generated);
      EXPECT_EQ(requests_[id].computed, 0U);
      k = {V1State::kWaiting, 0, 0, 0, k.generated, false};
      queue_.push_front(id);
    }
    std::erase_if(live_, [&](V1Id id) { return known_[id].state == V1State::kWaiting; });
    while (!queue_.empty() && requests_[queue_.front()].state != V1State::kWaiting) {
      const V1Id id = queue_.front();
      queue_.pop_front();
      EXPECT_TRUE(victims.empty()) << "admitted in a pass that preempts";
      Known& k = known_[id];
      k.state = requests_[id].state;
      k.held = requests_[id].computed;
      if (k.state == V1State::kPrefilling) k.admitted = ++admissions_;
      live_.push_back(id);
    }
    for (const V1Id id : queue_) {
      EXPECT_EQ(static_cast<int>(requests_[id].state), static_cast<int>(V1State::kWaiting)) << "admitted out of turn";
    }
    EXPECT_EQ(engine_->waiting(), queue_.size());
    EXPECT_EQ(engine_->running(), live_.size());
    EXPECT_LE(engine_->running(), config_.seqs_max);
    return !victims.empty();
  }

  void check_chunks(const V1Pass& pass, bool preempted) {
    engine_->chunks(chunks_);
    std::uint64_t tokens = 0;
    std::uint64_t pairs = 0;
    std::uint64_t last = 0;
    bool cut = false;
    for (const V1Chunk& chunk : chunks_) {
      const V1Request& r = requests_[chunk.id];
      Known& k = known_[chunk.id];
      EXPECT_EQ(static_cast<int>(k.state), static_cast<int>(V1State::kPrefilling));
      EXPECT_GT(k.admitted, last) << "not in order of admission";
      last = k.admitted;
      EXPECT_EQ(chunk.first, !k.begun);
      if (!k.begun) check_found(chunk.id);
      k.begun = true;
      EXPECT_EQ(r.computed, k.held);
      ASSERT_GT(chunk.to, r.computed);
      EXPECT_LE(chunk.to, r.prompt + k.generated);
      k.chunk = chunk.to - r.computed;
      k.held = chunk.to;
      tokens += k.chunk;
      pairs += std::uint64_t{k.chunk} * r.computed + std::uint64_t{k.chunk} * (k.chunk + 1) / 2;
      cut |= chunk.to < r.prompt + k.generated;
      note_computed(chunk.id);
    }
    EXPECT_EQ(tokens, pass.prefill_tokens);
    EXPECT_EQ(pairs, pass.pairs);
    const std::uint64_t decodes = std::min<std::uint64_t>(pass.decodes, config_.chunk_tokens);
    EXPECT_LE(tokens + decodes, config_.chunk_tokens) << "more than a pass holds";
    if (cut && !preempted) {
      EXPECT_EQ(tokens + decodes, config_.chunk_tokens) << "cut without need";
    }
    for (const V1Id id : live_) {
      const Known& k = known_[id];
      const bool left_out = k.state == V1State::kPrefilling && k.chunk == 0;
      if (left_out) {
        EXPECT_GT(k.admitted, last) << "passed over";
      }
    }
  }

  // What was found in the cache when the request was admitted has been computed before.
  void check_found(V1Id id) {
    if (tier_) return;
    const V1Request& r = requests_[id];
    std::uint32_t blocks = 0;
    for (std::uint32_t i = 0; i < r.units.count; ++i) {
      const auto at = computed_.find(r.units[i]);
      if (at == computed_.end()) break;
      blocks += at->second;
      if (at->second < config_.unit_blocks) break;
    }
    EXPECT_LE(r.computed, blocks * config_.block_tokens) << "found what nobody has computed";
    EXPECT_EQ(r.computed % config_.block_tokens, 0U);
  }

  void note_computed(V1Id id) {
    const std::uint32_t blocks = std::min(known_[id].held / config_.block_tokens, shared_blocks(id));
    for (std::uint32_t i = 0; i * config_.unit_blocks < blocks; ++i) {
      std::uint32_t& have = computed_[requests_[id].units[i]];
      have = std::max(have, std::min(config_.unit_blocks, blocks - i * config_.unit_blocks));
    }
  }

  void check_decodes(const V1Pass& pass) {
    std::uint64_t decodes = 0;
    std::uint64_t context = 0;
    for (const V1Id id : live_) {
      if (known_[id].state != V1State::kDecoding) continue;
      ++decodes;
      context += known_[id].held;
    }
    EXPECT_EQ(pass.decodes, decodes);
    EXPECT_EQ(pass.context, context);
  }

  // Each block by its owners: those of prompts may have several and count once, all others have one. Decoding requests
  // have room for `ahead` tokens more than are cached.
  void check_blocks(std::uint32_t ahead) {
    owned_.clear();
    std::uint64_t used = 0;
    const PrefixCache& cache = engine_->cache();
    for (const V1Id id : live_) {
      const Known& k = known_[id];
      const std::uint32_t tokens = k.held + (k.state == V1State::kDecoding ? ahead : 0);
      const std::uint32_t shared = std::min(tokens / config_.block_tokens, shared_blocks(id));
      used += ceil_div(tokens, config_.block_tokens) - shared;
      if (shared == 0) continue;
      const Units& units = requests_[id].units;
      const std::uint32_t last = ceil_div(shared, config_.unit_blocks) - 1;
      const std::uint32_t there = cache.match(units, (last + 1) * config_.unit_blocks);
      ASSERT_GE(there, shared) << "blocks in use are gone";
      for (std::uint32_t i = 0; i < last; ++i) owned_.emplace_back(units[i], config_.unit_blocks);
      owned_.emplace_back(units[last], there - last * config_.unit_blocks);
    }
    std::ranges::sort(owned_);
    const auto again = std::ranges::unique(owned_);
    owned_.erase(again.begin(), again.end());
    for (const auto& [unit, blocks] : owned_) used += blocks;
    EXPECT_EQ(cache.used(), used) << "leaked, or owned twice";
    EXPECT_LE(cache.used() + cache.cached(), config_.blocks);
    EXPECT_TRUE(cache.consistent());
  }

  void complete(const V1Pass& pass, EngineTally& tally) {
    const std::uint64_t passes = 1 + random_.below(pass.run);
    EXPECT_TRUE(pass.prefill_tokens == 0 || pass.run == 1);
    if (passes > 1) ++tally.runs;
    if (random_.chance(1, 2)) engine_->begun(1 + random_.below(passes));
    std::vector<V1Id> first;
    std::vector<V1Id> done;
    engine_->complete(passes, first, done);
    std::vector<V1Id> first_expected;
    std::vector<V1Id> done_expected;
    for (const V1Id id : live_) {
      Known& k = known_[id];
      const V1Request& r = requests_[id];
      const bool ends_prompt = k.state == V1State::kPrefilling && k.chunk > 0 && k.held == r.prompt + k.generated;
      if (k.state == V1State::kDecoding) {
        k.held += static_cast<std::uint32_t>(passes);
        k.generated += static_cast<std::uint32_t>(passes);
      } else if (ends_prompt) {
        if (k.generated++ == 0) first_expected.push_back(id);
        k.state = V1State::kDecoding;
      }
      if (k.state == V1State::kDecoding) passes_without_token_ = 0;
      EXPECT_LE(k.generated, r.output);
      if (k.generated == r.output) {
        k.state = V1State::kDone;
        done_expected.push_back(id);
        EXPECT_EQ(r.generated, r.output);
      }
      EXPECT_EQ(static_cast<int>(r.state), static_cast<int>(k.state));
    }
    std::erase_if(live_, [&](V1Id id) { return known_[id].state == V1State::kDone; });
    for (auto* const ids : {&first, &done, &first_expected, &done_expected}) std::ranges::sort(*ids);
    EXPECT_EQ(first, first_expected);
    EXPECT_EQ(done, done_expected);
    check_blocks(0);
  }

  Random& random_;
  V1Config config_;
  std::vector<V1Request> requests_;
  std::vector<std::vector<UnitId>> ids_;
  std::vector<Known> known_;
  std::unique_ptr<RandomTier> tier_;
  std::unique_ptr<V1Engine> engine_;
  std::deque<V1Id> queue_;                    // waiting, as they have to be admitted
  std::vector<V1Id> live_;                    // loading, prefilling, decoding
  std::map<UnitId, std::uint32_t> computed_;  // leading blocks that somebody has computed
  std::vector<std::pair<UnitId, std::uint32_t>> owned_;
  std::vector<V1Chunk> chunks_;
  std::uint64_t admissions_ = 0;
  V1Id next_ = 0;
  int stuck_ = 0;
  int passes_without_token_ = 0;
};

TEST(PrefixCacheProperty, EqualsAListOfBlocks) {
  std::uint64_t steps = 0;
  std::uint64_t refused = 0;
  for (std::uint64_t seed = 1; steps < kCacheSteps && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    CacheWalk(random).run(1000, refused);
    steps += 1000;
  }
  std::printf("%llu steps, %llu refused for want of blocks\n", static_cast<unsigned long long>(steps),
              static_cast<unsigned long long>(refused));
  EXPECT_GT(refused * 20, steps);
}

TEST(V1EngineProperty, HoldsUnderBlockShortage) {
  EngineTally tally;
  for (std::uint64_t seed = 1; tally.steps < kEngineSteps && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    EngineWalk(random).run(tally);
  }
  std::printf("%llu steps, %.0f %% short of blocks, %llu preemptions, %llu runs of passes, %llu loads\n",
              static_cast<unsigned long long>(tally.steps),
              100 * static_cast<double>(tally.short_steps) / static_cast<double>(tally.steps),
              static_cast<unsigned long long>(tally.preemptions), static_cast<unsigned long long>(tally.runs),
              static_cast<unsigned long long>(tally.loads));
  if (HasFailure()) return;
  EXPECT_GE(tally.short_steps * 5, tally.steps);
  EXPECT_GE(tally.preemptions, kPreemptionsMin);
}

}  // namespace
}  // namespace kvd::sched
