// How a request gets KV that a depot holds: layer by layer inside its pass, before the pass, or not at all. Pure; one
// thread owns an object. Why there are two ways (docs/vllm.md says when which is taken): a layer-wise load overlaps
// with the pass but holds up every request of that pass; an asynchronous one holds up nobody but runs before the pass.
//
// The rule: layer-wise while the predicted load is at most that pass's compute, or the request is alone in the engine
// and layer-wise ends sooner; asynchronous otherwise; not at all where computing everything is predicted to end sooner.
// Predictions come from PassCost and LoadCost, which learn from the running engine.
#pragma once

#include <cstdint>

#include "model/load_cost.h"
#include "model/pass_cost.h"

namespace kvd::model {

enum class LoadMode : std::uint8_t { kNone = 0, kLayerwise = 1, kAsync = 2 };

// One request at the moment it is scheduled.
struct LoadQuestion {
  std::uint64_t prompt_tokens = 0;    // tokens whose KV the next token needs
  std::uint64_t local_tokens = 0;     // of these, already in the engine's memory (a prefix)
  std::uint64_t hit_tokens = 0;       // the depot holds this many of the tokens behind them
  std::uint64_t flash_tokens = 0;     // of the hit, on flash
  std::uint64_t token_bytes = 0;      // KV bytes of a token, all layers, this shard
  std::uint64_t pass_tokens_max = 0;  // tokens in a pass at most (the engine's chunk); 0 = no limit
  std::uint32_t others = 0;           // other requests in the engine, running or waiting
  PassWork others_work;               // what the running ones of them add to the pass
};

struct LoadAnswer {
  LoadMode mode = LoadMode::kNone;
  double load_s = 0;       // predicted time of the load
  double pass_s = 0;       // compute of the pass that would contain it
  double layerwise_s = 0;  // until the first token, layer-wise
  double async_s = 0;      // until the first token, asynchronous
  double cold_s = 0;       // until the first token when nothing is loaded
  double saved_s = 0;      // compute that the hit saves: what a deadline is a share of
};

class LoadChoice {
 public:
  // `prior`: believed cost of passes until some have run. `spare_core`: a core is free for loading while a pass
  // computes; without one, load and compute overlap only in part until measured otherwise.
  LoadChoice(const PassCoefficients& prior, bool spare_core) noexcept;

  [[nodiscard]] LoadAnswer choose(const LoadQuestion& question) const noexcept;

  void observe_pass(PassWork work, double seconds) noexcept { pass_.observe(work, seconds); }
  // `contended`: a pass was computing meanwhile.
  void observe_load(std::uint64_t pool_bytes, std::uint64_t flash_bytes, double seconds, bool contended) noexcept;
  // Learns how well a layer-wise load and its pass overlapped: the whole pass took `seconds`.
  void observe_overlap(PassWork work, std::uint64_t pool_bytes, std::uint64_t flash_bytes, double seconds) noexcept;

  [[nodiscard]] const PassCost& pass() const noexcept { return pass_; }
  [[nodiscard]] const LoadCost& load() const noexcept { return load_; }
  // Share of the shorter of load and compute that is not hidden behind the longer: 0 = all hidden, 1 = in sequence.
  [[nodiscard]] double overlap_loss() const noexcept { return overlap_loss_; }

 private:
  PassCost pass_;
  LoadCost load_;
  double overlap_loss_;
  double overlap_loss_assumed_;
};

}  // namespace kvd::model
