#include "sim/opportunities.h"

#include <algorithm>
#include <utility>

#include "base/random.h"

namespace kvd::sim {

namespace {

struct Setting {
  const char* name;
  model::StudyModelIndex model;
  std::uint32_t blocks;
  std::uint32_t context;
  const char* workload;
  std::size_t requests;
};

constexpr Setting kSettings[] = {
    {"9 128-8K x 128", model::kYarn, 2928, 16384, "zipf_128_8192_ratio_0.5", 128},
    {"9 128-8K x 64", model::kYarn, 2928, 16384, "zipf_128_8192_ratio_0.5", 64},
    {"10a 6 GiB", model::kYarn, 768, 8192, "zipf_512_2048_ratio_0.5", 128},
    {"10a 14 GiB", model::kYarn, 1792, 8192, "zipf_512_2048_ratio_0.5", 128},
    {"10a 24 GiB", model::kYarn, 3072, 8192, "zipf_512_2048_ratio_0.5", 128},
    {"10b OPT-13B", model::kOpt, 819, 2048, "zipf_512_2048_ratio_0.5", 128},
};

struct Arm {
  const char* name;
  sched::Eviction eviction;
  bool partial;
  bool async;
  bool gathered;
};

constexpr Arm kArms[] = {
    {"recompute", sched::Eviction::kRecompute, false, false, false},
    {"swap", sched::Eviction::kSwap, false, false, false},
    {"adaptive", sched::Eviction::kAdaptive, false, false, false},
    {"partial recompute", sched::Eviction::kRecompute, true, false, false},
    {"partial swap", sched::Eviction::kSwap, true, false, false},
    {"gathered swap", sched::Eviction::kSwap, false, false, true},
    {"asynchronous swap", sched::Eviction::kSwap, false, true, false},
    {"all together", sched::Eviction::kAdaptive, true, true, true},
};

struct Outcome {
  double makespan = 0;
  double itl_p99 = 0;
};

Outcome run(const model::StudyFit& fit, const Setting& setting, const Arm& arm, std::span<const Lengths> requests) {
  sched::Config config = sched::vllm_0_4_2(setting.blocks, setting.context);
  config.eviction = arm.eviction;
  config.partial = arm.partial;
  config.host_blocks = study_host_blocks(setting.model);
  EngineCosts costs = study_costs(fit, setting.model, true, config.block_tokens);
  costs.async_swap = arm.async;
  costs.gathered = arm.gathered;
  // Reading and writing the blocks once, at the rate at which decodes read KV.
  const double kv_bytes = model::kStudyModelTable[setting.model].kv_bytes_per_token();
  costs.gather_byte_s = 2 * costs.step.context_token_s / kv_bytes;
  costs.track_itl = true;
  config.swap_is_cheaper = [&costs](std::uint32_t blocks, std::uint32_t tokens, std::uint32_t context) {
    const double swap = 2 * copy_seconds(costs, blocks, 1);
    return swap < costs.step.seconds(model::prefill_shape(tokens, context, 1, context > 0));
  };
  EngineRun result = run_engine(config, requests, costs);
  const auto rank = result.itl_s.begin() + static_cast<std::ptrdiff_t>(0.99 * static_cast<double>(result.itl_s.size()));
  std::ranges::nth_element(result.itl_s, rank);
  return {result.seconds, static_cast<double>(*rank)};
}

std::vector<Lengths> shuffled(std::span<const Lengths> requests, std::uint64_t seed) {
  std::vector<Lengths> order(requests.begin(), requests.end());
  Random random(seed);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

void add_setting(const model::StudyFit& fit, const StudyInputs& inputs, const Setting& setting, std::uint32_t seeds,
                 std::vector<OpportunityRow>& rows) {
  const std::span<const Lengths> requests(inputs.requests.at(setting.workload).data(), setting.requests);
  std::vector<std::vector<Outcome>> outcomes(std::size(kArms));
  for (std::uint32_t seed = 1; seed <= seeds; ++seed) {
    const std::vector<Lengths> order = shuffled(requests, seed);
    for (std::size_t arm = 0; arm < std::size(kArms); ++arm) {
      outcomes[arm].push_back(run(fit, setting, kArms[arm], order));
    }
  }
  for (std::size_t arm = 0; arm < std::size(kArms); ++arm) {
    std::vector<double> makespan, itl, makespan_gain, itl_gain;
    OpportunityRow row;
    for (std::uint32_t s = 0; s < seeds; ++s) {
      const Outcome& o = outcomes[arm][s];
      const double best = std::min(outcomes[0][s].makespan, outcomes[1][s].makespan);
      makespan.push_back(o.makespan);
      itl.push_back(o.itl_p99);
      makespan_gain.push_back(1 - o.makespan / best);
      itl_gain.push_back(1 - o.itl_p99 / std::min(outcomes[0][s].itl_p99, outcomes[1][s].itl_p99));
      row.worst_makespan = std::max(row.worst_makespan, o.makespan / best);
    }
    row.setting = setting.name;
    row.arm = kArms[arm].name;
    row.makespan_s = interval(makespan);
    row.itl_p99_s = interval(itl);
    row.makespan_gain = interval(makespan_gain);
    row.itl_p99_gain = interval(itl_gain);
    rows.push_back(std::move(row));
  }
}

}  // namespace

std::vector<OpportunityRow> opportunities(const model::StudyFit& fit, const StudyInputs& inputs, std::uint32_t seeds) {
  std::vector<OpportunityRow> rows;
  for (const Setting& setting : kSettings) add_setting(fit, inputs, setting, seeds, rows);
  return rows;
}

}  // namespace kvd::sim
