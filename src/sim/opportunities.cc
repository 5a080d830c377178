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
  bool fixed;
  EvictionSetting run;
};

constexpr std::size_t kSettingsOf9 = kLengthsOf9.size() * kCountsOf9.size();

// Figure 9, then 10a, then 10b.
Setting setting_at(const StudyInputs& inputs, std::size_t at) {
  if (at < kSettingsOf9) {
    const LengthOf9& length = kLengthsOf9.at(at / kCountsOf9.size());
    const std::uint32_t count = kCountsOf9.at(at % kCountsOf9.size());
    const bool fixed = length.tokens > 0;
    return {fmt::format("9 {} x {}", length.name, count),
            fixed ? fmt::format("{} x{}", length.name, count) : fmt::format("x{}", count), fixed,
            setting_of_9(inputs, length, count)};
  }
  at -= kSettingsOf9;
  if (at < kGibOf10a.size()) {
    const std::uint32_t gib = kGibOf10a.at(at);
    return {fmt::format("10a {} GiB", gib), fmt::format("{} GiB", gib), false, setting_of_10a(inputs, gib)};
  }
  at -= kGibOf10a.size();
  const model::StudyModelIndex m = kModelsOf10b.at(at);
  const std::string_view name = model::kStudyModelTable[m].name;
  return {fmt::format("10b {}", name), std::string(name.substr(0, name.find('-'))), false, setting_of_10b(inputs, m)};
}

// What a request may have in prompt and answer together. One that was sent back computes all of its tokens in a pass of
// its own, and one that was swapped needs its blocks and one for the next token; the watermark stays free.
std::string too_long(const Setting& setting, const Lengths& request) {
  const sched::Config config = sched::vllm_0_4_2(setting.run.blocks, setting.run.context);
  const std::uint64_t tokens = std::uint64_t{request.prompt} + request.output;
  const std::uint64_t room = config.blocks - config.watermark_blocks - 1;
  const std::uint64_t needed = (tokens + config.block_tokens - 1) / config.block_tokens;
  const std::string sum = fmt::format("{} + {} = {} tokens", request.prompt, request.output, tokens);
  if (needed > room) {
    return fmt::format(
        "{} take {} blocks of {}, but {} has {}, less {} of watermark and one for the next token: at most {} tokens "
        "are expected",
        sum, needed, config.block_tokens, setting.name, config.blocks, config.watermark_blocks,
        room * config.block_tokens);
  }
  if (tokens > config.pass_tokens_max) {
    return fmt::format(
        "{}, but a pass of {} takes {}, and all of a request that was sent back: at most {} are expected", sum,
        setting.name, config.pass_tokens_max, config.pass_tokens_max);
  }
  return {};
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
constexpr std::size_t kRecomputeArm = 0;
constexpr std::size_t kSwapPinnedArm = 1;
constexpr std::size_t kSwapPageableArm = 10;

struct Outcome {
  double makespan = 0;
  double itl_p99 = 0;
  double recomputes = 0;
  double swaps = 0;
  double little_error = 0;
};

Outcome run(const model::StudyFit& fit, const EvictionSetting& setting, const Arm& arm,
            std::span<const Lengths> requests) {
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
  KVD_CHECK(result.rejected == 0);  // opportunities_fault() has seen to that
  return {result.seconds, itl_p99(std::move(result.itl_s)), static_cast<double>(result.counts.recomputes),
          static_cast<double>(result.counts.swaps_out), result.little_error};
}

std::vector<Lengths> shuffled(std::span<const Lengths> requests, std::uint64_t seed) {
  std::vector<Lengths> order(requests.begin(), requests.end());
  Random random(seed);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

using Outcomes = std::array<std::vector<Outcome>, kArms.size()>;  // by seed

OpportunityRow row_of(const Outcomes& outcomes, std::size_t arm) {
  const std::vector<Outcome>& first = outcomes.at(kRecomputeArm);
  const std::vector<Outcome>& second = outcomes.at(kArms.at(arm).pinned ? kSwapPinnedArm : kSwapPageableArm);
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
    row.little_error = std::max(row.little_error, o.little_error);
  }
  row.makespan_s = interval(makespan);
  row.itl_p99_s = interval(itl);
  row.makespan_gain = interval(makespan_gain);
  row.itl_p99_gain = interval(itl_gain);
  return row;
}

}  // namespace

std::size_t opportunity_settings() noexcept { return kSettingsOf9 + kGibOf10a.size() + kModelsOf10b.size(); }

std::string opportunities_fault(const StudyInputs& inputs) {
  for (std::size_t at = 0; at < opportunity_settings(); ++at) {
    const Setting setting = setting_at(inputs, at);
    if (setting.fixed) continue;
    for (std::size_t i = 0; i < setting.run.requests.size(); ++i) {
      const std::string fault = too_long(setting, setting.run.requests[i]);
      if (!fault.empty()) return fmt::format("{}[{}]: {}", at < kSettingsOf9 ? kListOf9 : kListOf10, i, fault);
    }
  }
  return {};
}

std::vector<OpportunityRow> opportunities(const model::StudyFit& fit, const StudyInputs& inputs, std::size_t at,
                                          std::uint32_t seeds) {
  const Setting setting = setting_at(inputs, at);
  Outcomes outcomes;
  for (std::uint32_t seed = 1; seed <= (setting.fixed ? 1 : seeds); ++seed) {
    const std::vector<Lengths> order = shuffled(setting.run.requests, seed);
    for (std::size_t arm = 0; arm < kArms.size(); ++arm) {
      outcomes.at(arm).push_back(run(fit, setting.run, kArms.at(arm), order));
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
