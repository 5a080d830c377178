#include "sim/opportunities.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/random.h"
#include "sim/engine_run.h"

namespace kvd::sim {

namespace {

struct Setting {
  std::string name;
  std::string label;
  model::StudyModelIndex model = model::kYarn;
  std::uint32_t blocks = 0;
  std::uint32_t context = 0;
  bool fixed = false;
  std::vector<Lengths> requests;
};

constexpr std::array<std::uint32_t, 3> kCounts = {32, 64, 128};
constexpr std::array<std::uint32_t, 4> kFixedK = {1, 2, 4, 8};
constexpr std::array<std::uint32_t, 6> kGib = {6, 10, 14, 18, 22, 24};
constexpr std::array<model::StudyModelIndex, 3> kModelsOf10b = {model::kYarn, model::kLlama, model::kOpt};
constexpr std::size_t kFixedSettings = kFixedK.size() * kCounts.size();

// Figure 9 with fixed lengths, then with those of its list, then 10a, then 10b.
Setting setting_at(const StudyInputs& inputs, std::size_t at) {
  const auto& longer = inputs.requests.at("zipf_128_8192_ratio_0.5");
  const auto& shorter = inputs.requests.at("zipf_512_2048_ratio_0.5");
  if (at < kFixedSettings) {
    const std::uint32_t k = kFixedK.at(at / kCounts.size());
    const std::uint32_t count = kCounts.at(at % kCounts.size());
    return {fmt::format("9 {}K x {}", k, count),
            fmt::format("{}K x{}", k, count),
            model::kYarn,
            2928,
            16384,
            true,
            std::vector<Lengths>(count, Lengths{k * 512, k * 512})};
  }
  at -= kFixedSettings;
  if (at < kCounts.size()) {
    const std::uint32_t count = kCounts.at(at);
    return {fmt::format("9 128-8K x {}", count),     fmt::format("x{}", count), model::kYarn, 2928, 16384, false,
            {longer.begin(), longer.begin() + count}};
  }
  at -= kCounts.size();
  if (at < kGib.size()) {
    const std::uint32_t gib = kGib.at(at);
    return {fmt::format("10a {} GiB", gib),
            fmt::format("{} GiB", gib),
            model::kYarn,
            study_blocks(model::kYarn, gib),
            8192,
            false,
            shorter};
  }
  at -= kGib.size();
  const model::StudyModelIndex m = kModelsOf10b.at(at);
  const model::StudyModel& shape = model::kStudyModelTable[m];
  return {fmt::format("10b {}", shape.name),
          std::string(shape.name.substr(0, shape.name.find('-'))),
          m,
          study_blocks(m, 10),
          2048,
          false,
          shorter};
}

struct Arm {
  const char* name;
  sched::Eviction eviction;
  bool pinned = true;
  bool partial = false;
  bool async = false;
  bool gathered = false;
  sched::Batching batching = sched::Batching::kPrefillFirst;
};

constexpr std::uint32_t kChunkTokens = 512;  // the smallest of figures 4b, 4c and 5

constexpr std::array<Arm, 12> kArms = {{
    {.name = "recompute", .eviction = sched::Eviction::kRecompute},
    {.name = "swap", .eviction = sched::Eviction::kSwap},
    {.name = "adaptive", .eviction = sched::Eviction::kAdaptive},
    {.name = "partial recompute", .eviction = sched::Eviction::kRecompute, .partial = true},
    {.name = "partial swap", .eviction = sched::Eviction::kSwap, .partial = true},
    {.name = "gathered swap", .eviction = sched::Eviction::kSwap, .gathered = true},
    {.name = "asynchronous swap", .eviction = sched::Eviction::kSwap, .async = true},
    {.name = "swap, chunks", .eviction = sched::Eviction::kSwap, .batching = sched::Batching::kChunked},
    {.name = "swap, selective chunks", .eviction = sched::Eviction::kSwap, .batching = sched::Batching::kSelective},
    {.name = "all together", .eviction = sched::Eviction::kAdaptive, .partial = true, .async = true, .gathered = true},
    {.name = "swap, pageable", .eviction = sched::Eviction::kSwap, .pinned = false},
    {.name = "adaptive, pageable", .eviction = sched::Eviction::kAdaptive, .pinned = false},
}};
constexpr std::size_t kRecompute = 0;
constexpr std::size_t kSwapPinned = 1;
constexpr std::size_t kSwapPageable = 10;

struct Outcome {
  double makespan = 0;
  double itl_p99 = 0;
  double recomputes = 0;
  double swaps = 0;
};

Outcome run(const model::StudyFit& fit, const Setting& setting, const Arm& arm, std::span<const Lengths> requests) {
  sched::Config config = sched::vllm_0_4_2(setting.blocks, setting.context);
  config.batching = arm.batching;
  config.chunk_tokens = kChunkTokens;
  if (arm.batching == sched::Batching::kChunked) config.pass_tokens_max = kChunkTokens;
  config.eviction = arm.eviction;
  config.partial = arm.partial;
  config.async_swap = arm.async;
  config.host_blocks = study_host_blocks(setting.model);
  EngineCosts costs = study_costs(fit, setting.model, arm.pinned, config.block_tokens);
  costs.gathered = arm.gathered;
  // Reading and writing the blocks once, at the rate at which decodes read KV.
  const double kv_bytes = model::kStudyModelTable[setting.model].kv_bytes_per_token();
  costs.gather_byte_s = 2 * costs.step.context_token_s / kv_bytes;
  costs.track_itl = true;
  EngineRun result = run_engine(config, requests, costs);
  KVD_CHECK(result.rejected == 0);  // every setting holds its longest request
  return {result.seconds, itl_p99(std::move(result.itl_s)), static_cast<double>(result.counts.recomputes),
          static_cast<double>(result.counts.swaps_out)};
}

std::vector<Lengths> shuffled(std::span<const Lengths> requests, std::uint64_t seed) {
  std::vector<Lengths> order(requests.begin(), requests.end());
  Random random(seed);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

using Outcomes = std::array<std::vector<Outcome>, kArms.size()>;  // by seed

OpportunityRow row_of(const Outcomes& outcomes, std::size_t arm) {
  const std::vector<Outcome>& first = outcomes.at(kRecompute);
  const std::vector<Outcome>& second = outcomes.at(kArms.at(arm).pinned ? kSwapPinned : kSwapPageable);
  std::vector<double> makespan, itl, makespan_gain, itl_gain;
  OpportunityRow row;
  row.arm = kArms.at(arm).name;
  row.seeds = static_cast<std::uint32_t>(first.size());
  for (std::size_t s = 0; s < first.size(); ++s) {
    const Outcome& o = outcomes.at(arm)[s];
    const double makespan_ratio = o.makespan / std::min(first[s].makespan, second[s].makespan);
    const double itl_ratio = o.itl_p99 / std::min(first[s].itl_p99, second[s].itl_p99);
    makespan.push_back(o.makespan);
    itl.push_back(o.itl_p99);
    makespan_gain.push_back(1 - makespan_ratio);
    itl_gain.push_back(1 - itl_ratio);
    row.worst_makespan = std::max(row.worst_makespan, makespan_ratio);
    row.worst_itl_p99 = std::max(row.worst_itl_p99, itl_ratio);
    row.recomputes += o.recomputes / static_cast<double>(first.size());
    row.swaps += o.swaps / static_cast<double>(first.size());
  }
  row.makespan_s = interval(makespan);
  row.itl_p99_s = interval(itl);
  row.makespan_gain = interval(makespan_gain);
  row.itl_p99_gain = interval(itl_gain);
  return row;
}

}  // namespace

std::size_t opportunity_settings() noexcept {
  return kFixedSettings + kCounts.size() + kGib.size() + kModelsOf10b.size();
}

std::vector<OpportunityRow> opportunities(const model::StudyFit& fit, const StudyInputs& inputs, std::size_t at,
                                          std::uint32_t seeds) {
  const Setting setting = setting_at(inputs, at);
  Outcomes outcomes;
  for (std::uint32_t seed = 1; seed <= (setting.fixed ? 1 : seeds); ++seed) {
    const std::vector<Lengths> order = shuffled(setting.requests, seed);
    for (std::size_t arm = 0; arm < kArms.size(); ++arm) {
      outcomes.at(arm).push_back(run(fit, setting, kArms.at(arm), order));
    }
  }
  std::vector<OpportunityRow> rows;
  for (std::size_t arm = 0; arm < kArms.size(); ++arm) {
    OpportunityRow row = row_of(outcomes, arm);
    row.setting = setting.name;
    row.label = setting.label;
    row.fixed = setting.fixed;
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace kvd::sim
