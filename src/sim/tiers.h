// Where a fleet keeps KV behind its engines' own caches: DRAM and flash that belong to one instance, and a depot that
// all share. Capacity, bandwidth both ways, latency, a write budget. Pure; a fleet owns its tiers; no locking.
//
// Reads and writes have a direction of a link each, and a direction serves one transfer after the other. What all
// instances move together in a direction may be bounded, too: a transfer then ends when both its own link and the
// shared one are done with it, each in order of the transfers' start.
//
// What a pass has computed of prompts is written to every tier that has not got it, in whole blocks from the head, and
// can be read once it is written. A fetch of a prefix takes each block from the fastest tier that has it, all tiers at
// the same time; what flash and depot send is also written to DRAM, where there is any.
//
// A write budget is a mean over time, as a drive's endurance is: unused it grows for kBudgetBurstSeconds, and what is
// beyond it is not written.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/linear_pass.h"
#include "policy/write_budget.h"
#include "sched/v1_engine.h"

namespace kvd::sim {

enum class Tier : std::uint8_t { kDram, kFlash, kDepot };  // a fetch takes the first that has a block
inline constexpr std::size_t kTiers = 3;
inline constexpr std::array<std::string_view, kTiers> kTierNames{"dram", "flash", "depot"};
inline constexpr double kBudgetBurstSeconds = 60;

// Rates are bytes a second; 0 = unbounded.
struct TierConfig {
  bool on = false;
  std::uint64_t tokens_max = 0;   // capacity, of an instance or of the depot; 0 = unbounded
  double read_bytes_per_s = 0;    // of an instance's link
  double write_bytes_per_s = 0;   // of its other direction
  double latency_s = 0;           // of a fetch
  double total_read_per_s = 0;    // of all instances together
  double total_write_per_s = 0;   // of all instances together
  double write_budget_per_s = 0;  // of an instance's own devices, or of the whole depot's
};

struct TiersConfig {
  std::array<TierConfig, kTiers> tier;
  double kv_bytes_per_token = 0;
  // Loads and stores run layer by layer inside the pass; otherwise loads come before a request's first pass and stores
  // behind a pass.
  bool layerwise = false;
  std::uint32_t layers = 1;
  bool contention = true;  // off: every transfer has its links to itself
  TierConfig& operator[](Tier t) noexcept { return tier[static_cast<std::size_t>(t)]; }
  const TierConfig& operator[](Tier t) const noexcept { return tier[static_cast<std::size_t>(t)]; }
  [[nodiscard]] bool any() const noexcept { return tier[0].on || tier[1].on || tier[2].on; }
};

// What went to and from one tier, over all instances and the whole run.
struct TierTraffic {
  double read_bytes = 0;
  double written_bytes = 0;
  double refused_bytes = 0;  // that the write budget did not allow
};

// No transfer ends later, however slow: behind the clock's end (fleet.h), so that who waits for it is out of time.
inline constexpr model::Picoseconds kTransferEndMax = 9'000'001'000'000'000'000;

// A pass whose `load`, `compute` and `store` overlap layer by layer, each of them the same for all layers: as long as
// the longest of the three, and the pipeline's fill, which is one layer of the others.
[[nodiscard]] model::Picoseconds layerwise_time(model::Picoseconds load, model::Picoseconds compute,
                                                model::Picoseconds store, std::uint32_t layers) noexcept;

// One direction of a link or device.
class Pipe {
 public:
  Pipe(double bytes_per_s, bool contention) noexcept : bytes_per_s_(bytes_per_s), contention_(contention) {}
  // When a transfer that is asked for at `now` would end.
  [[nodiscard]] model::Picoseconds end(model::Picoseconds now, double bytes) const noexcept;
  // The same, and the transfer is under way.
  model::Picoseconds take(model::Picoseconds now, double bytes) noexcept;

 private:
  double bytes_per_s_;
  bool contention_;
  model::Picoseconds free_at_ = 0;
};

// What a tier holds, and what of it is shared by all who use it.
class TierStore {
 public:
  TierStore(const TierConfig& config, const TiersConfig& all, std::uint32_t block_tokens, std::uint32_t unit_blocks);

  [[nodiscard]] std::uint32_t match(const sched::Units& units, std::uint32_t most, model::Picoseconds now);
  // Of the prompt's blocks from..to, those to be written now: missing ones, as far as the budget goes.
  struct Grant {
    std::uint32_t to = 0;      // the prefix that will be there
    std::uint32_t blocks = 0;  // of which have to be written
  };
  Grant grant(const sched::Units& units, std::uint32_t from, std::uint32_t to, model::Picoseconds now);
  // Counts blocks from..to, as far as they are missing, as refused.
  void refuse(const sched::Units& units, std::uint32_t from, std::uint32_t to);
  // What is there of the prompt's first `to` blocks was used: it is evicted last.
  void touch(const sched::Units& units, std::uint32_t to, model::Picoseconds now);
  // The prompt's first `to` blocks are there from `ready` on, and are evicted last.
  void write(const sched::Units& units, std::uint32_t to, model::Picoseconds ready);
  [[nodiscard]] std::uint32_t blocks_held(model::Picoseconds now);

  Pipe total_read;
  Pipe total_write;
  TierTraffic traffic;

 private:
  struct Write {
    model::Picoseconds ready;
    std::uint64_t order;
    sched::Units units;
    std::uint32_t to;
  };
  void settle(model::Picoseconds now);

  sched::PrefixCache cache_;
  std::vector<Write> writes_;  // under way; heap, the first to end on top
  std::uint64_t order_ = 0;
  double block_bytes_;
  policy::WriteBudget budget_;
  model::Picoseconds budget_at_ = 0;
};

// The tiers as one instance sees them. `depot` is shared by all, and may be null.
class InstanceTiers final : public sched::OtherTier {
 public:
  InstanceTiers(const TiersConfig& config, const model::LinearPass& pass, const std::vector<sched::V1Request>& requests,
                std::uint32_t block_tokens, std::uint32_t unit_blocks, TierStore* depot);

  std::uint32_t match(const sched::V1Request& request, std::uint32_t have, std::uint32_t most) override;
  void fetch(sched::V1Id id, std::uint32_t have, std::uint32_t to) override;
  bool layerwise() const override { return config_.layerwise; }

  // Leading blocks in the instance's own DRAM and flash, for routers.
  [[nodiscard]] std::uint32_t private_match(const sched::Units& units, std::uint32_t most, model::Picoseconds now);

  // The pass that the engine decided at `now` takes `compute` by itself: with its loads and stores, when they are
  // layer-wise.
  model::Picoseconds begin_pass(const sched::V1Engine& engine, model::Picoseconds compute);
  // That pass has ended.
  void end_pass(model::Picoseconds now);

  struct Load {
    model::Picoseconds ready;
    sched::V1Id id;
  };
  // Ahead of passes: the first fetch to end, and its end; kNever without one.
  static constexpr model::Picoseconds kNever = INT64_MAX;
  [[nodiscard]] model::Picoseconds next_load() const noexcept { return loads_.empty() ? kNever : loads_.front().ready; }
  sched::V1Id pop_load();

  model::Picoseconds now = 0;  // when the pass that is being decided begins

  // The instance's private stores and the depot; null where there is none.
  [[nodiscard]] TierStore* store(Tier t) const noexcept { return sides_[static_cast<std::size_t>(t)].store; }

 private:
  struct Side {
    TierStore* store = nullptr;
    Pipe read;
    Pipe write;
    double latency_s = 0;
  };
  struct Part {  // of a fetch, from one tier
    std::size_t tier = 0;
    std::uint32_t from = 0;
    std::uint32_t to = 0;
  };
  [[nodiscard]] double bytes(std::uint32_t blocks) const noexcept { return blocks * block_bytes_; }
  [[nodiscard]] model::Picoseconds compute_time(std::uint64_t have, std::uint64_t to) const noexcept;
  [[nodiscard]] model::Picoseconds first_token(const sched::V1Request& request, std::size_t parts) const;

  const TiersConfig& config_;
  const model::LinearPass& pass_;
  const std::vector<sched::V1Request>& requests_;
  std::uint32_t block_tokens_;
  double block_bytes_;
  std::vector<TierStore> own_;
  std::vector<Side> sides_;  // by tier
  std::vector<Part> parts_;  // of the last match
  std::vector<Load> loads_;  // heap, the first to end on top
  struct Store {
    sched::V1Id id = 0;
    sched::Units units;
    std::uint32_t to = 0;
    std::array<TierStore::Grant, kTiers> grant{};
  };
  TierStore::Grant ask(const Store& store, std::size_t tier, model::Picoseconds at);
  // By request: the prompt's blocks that are written or being written, and those that a tier was asked to take.
  struct Progress {
    std::array<std::uint32_t, kTiers> written{};
    std::array<std::uint32_t, kTiers> asked{};
    // What a fetch has brought to DRAM, the same two, until the first chunk runs.
    std::uint32_t fetched_written = 0;
    std::uint32_t fetched_asked = 0;
  };
  std::vector<Progress> progress_;
  std::vector<sched::V1Chunk> chunks_;
  std::vector<Store> stores_;  // of the pass
  model::Picoseconds load_end_ = 0;
  model::Picoseconds load_latency_ = 0;
};

}  // namespace kvd::sim
