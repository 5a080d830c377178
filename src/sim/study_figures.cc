// Each figure of the study: which runs it is made of, and how they are laid out.
#include <algorithm>
#include <functional>
#include <ranges>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "sim/study.h"

namespace kvd::sim {

using model::kLlama;
using model::kOpt;
using model::kStudyModelTable;
using model::kYarn;
using model::StudyModelIndex;
using nlohmann::ordered_json;

namespace {

struct Study {
  const model::StudyFit& fit;
  const StudyInputs& inputs;
  std::string& misfit;   // the first run that leaves out requests says so here
  bool partial = false;  // evictions take only as many blocks of a request as are needed
};

// Own inputs may hold requests that a setting has no room for.
void note_misfits(const Study& s, const sched::Config& config, std::uint64_t misfits, std::size_t requests) {
  if (misfits == 0 || !s.misfit.empty()) return;
  s.misfit = fmt::format("{} of {} requests cannot end in {} blocks of {} tokens, or in passes of at most {}", misfits,
                         requests, config.blocks, config.block_tokens, config.pass_tokens_max);
}

EngineRun run(const Study& s, const sched::Config& config, std::span<const Lengths> requests,
              const EngineCosts& costs) {
  EngineRun result = run_engine(config, requests, costs);
  note_misfits(s, config, result.rejected, requests.size());
  return result;
}

// What `draw` makes of the study, unless a run of it left out requests.
template <class Draw>
StudyResult drawn(const model::StudyFit& fit, const StudyInputs& inputs, Draw draw) {
  std::string misfit;
  ordered_json out = draw(Study{fit, inputs, misfit});
  if (!misfit.empty()) return std::unexpected(std::move(misfit));
  return out;
}

constexpr std::array<std::uint32_t, 10> kBatches = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
constexpr std::array<StudyModelIndex, 3> kModels = {kYarn, kLlama, kOpt};

std::string name_of(StudyModelIndex m) { return std::string(kStudyModelTable[m].name); }

// Blocks of the device in the measured runs.
std::uint32_t yarn_blocks(std::uint32_t context) {
  if (context <= 2048) return 3083;
  if (context <= 4096) return 3077;
  return context <= 8192 ? 3027 : 2928;
}
std::uint32_t blocks_at_2k(StudyModelIndex m) { return static_cast<std::uint32_t>(kStudyModelTable[m].kv_blocks); }

constexpr std::uint32_t kYarnContext = 8192;  // of figure 3a; the others' are 16K and 2K
std::uint32_t prefill_context(StudyModelIndex m) { return m == kYarn ? kYarnContext : m == kLlama ? 16384 : 2048; }

ordered_json fig3a(const Study& s) {
  ordered_json out;
  for (const StudyModelIndex m : kModels) {
    for (std::uint32_t length = 16; length <= 8192; length *= 2) {
      ordered_json row = ordered_json::array();
      for (const std::uint32_t batch : kBatches) {
        if (length * batch > prefill_context(m)) {
          row.push_back(nullptr);
          continue;
        }
        const double seconds = model::predict(s.fit, m, model::PrefillPoint{double(length), double(batch), 0});
        row.push_back(length * batch / seconds);
      }
      out[name_of(m)][std::to_string(length)] = std::move(row);
    }
  }
  return out;
}

// Like 3a the first pass of a fresh run, with ever more prompts in it.
ordered_json fig3b(const Study& s) {
  ordered_json out;
  for (const auto& [order, prompts] : s.inputs.prompts_joining) {
    model::PassShape pass;
    ordered_json row = ordered_json::array();
    for (const double prompt : prompts) {
      pass.prefill_tokens += prompt;
      pass.prefill_seqs += 1;
      pass.new_pairs += prompt * prompt / 2;
      double warmup = s.fit.step[kYarn].warmup_max_s;
      row.push_back(pass.prefill_tokens / s.fit.step[kYarn].seconds(pass, warmup));
    }
    out[order] = std::move(row);
  }
  return out;
}

ordered_json fig3c(const Study& s) {
  ordered_json out;
  for (const StudyModelIndex m : kModels) {
    ordered_json row = ordered_json::array();
    for (const std::uint32_t batch : kBatches) {
      row.push_back(batch / model::predict(s.fit, m, model::DecodePoint{double(batch), 0}));
    }
    out[name_of(m)] = std::move(row);
  }
  return out;
}

ordered_json rate(const EngineRun& run, std::uint64_t tokens) {
  return {{"tokens_per_s", static_cast<double>(tokens) / run.seconds}, {"passes", run.passes.size()}};
}

// A strategy of figures 4 and 5 by its name: vllm, mix, or a chunk size.
sched::Config strategy(const std::string& name, std::uint32_t blocks, std::uint32_t context) {
  sched::Config config = sched::vllm_0_4_2(blocks, context);
  if (name == "mix") {
    config.batching = sched::Batching::kMixed;
  } else if (name != "vllm" && name != "none") {
    config.batching = sched::Batching::kChunked;
    const auto chunk = static_cast<std::uint32_t>(std::stoul(name));
    config.pass_tokens_max = name.back() == 'k' ? chunk * 1024 : chunk;
  }
  return config;
}

ordered_json fig4a(const Study& s) {
  ordered_json out;
  EngineCosts costs = study_costs(s.fit, kYarn, true, 16);
  costs.fresh = true;  // as its table, which is fitted to
  const Lengths prompt[] = {{8192, 1}};
  for (const char* const chunk : {"none", "8k", "4k", "2k", "1k", "512", "256", "128", "64", "32"}) {
    out[chunk] = rate(run(s, strategy(chunk, yarn_blocks(8192), 8192), prompt, costs), 8192);
  }
  return out;
}

ordered_json rows(const Study& s, StudyModelIndex m, std::uint32_t blocks, std::uint32_t context,
                  std::span<const Lengths> requests, std::initializer_list<const char*> strategies) {
  ordered_json out;
  for (const char* const name : strategies) {
    const EngineRun result = run(s, strategy(name, blocks, context), requests, study_costs(s.fit, m, true, 16));
    out[name] = rate(result, result.tokens);
  }
  return out;
}

ordered_json fig4b(const Study& s) {
  ordered_json out;
  for (const char* const workload : {"w1", "w2", "w3"}) {
    for (const std::uint32_t context : {4096U, 8192U, 16384U}) {
      out[workload][std::to_string(context)] =
          rows(s, kYarn, yarn_blocks(context), context, s.inputs.requests.at(workload),
               {"vllm", "mix", "4k", "2k", "1k", "512"});
    }
  }
  return out;
}

ordered_json fig4c(const Study& s) {
  ordered_json out;
  for (const char* const workload : {"w2", "w3"}) {
    for (const StudyModelIndex m : kModels) {
      out[workload][name_of(m)] =
          rows(s, m, blocks_at_2k(m), 2048, s.inputs.requests.at(workload), {"vllm", "mix", "2k", "1k", "512"});
    }
  }
  return out;
}

ordered_json fig4c_fixed(const Study& s) {
  ordered_json out;
  for (const std::uint32_t output : {10U, 128U}) {
    const std::vector<Lengths> requests(20, Lengths{1024, output});
    for (const StudyModelIndex m : kModels) {
      out[std::to_string(output)][name_of(m)] =
          rows(s, m, blocks_at_2k(m), 2048, requests, {"vllm", "mix", "2k", "1k", "512"});
    }
  }
  return out;
}

ordered_json fig5(const Study& s) {
  ordered_json out;
  for (const char* const name : {"vllm", "mix", "4k", "2k", "1k", "512"}) {
    const EngineRun result = run(s, strategy(name, yarn_blocks(4096), 4096), s.inputs.requests.at("w3"),
                                 study_costs(s.fit, kYarn, true, 16));
    ordered_json row = ordered_json::array();
    for (const PassRecord& pass : result.passes | std::views::take(20)) row.push_back(pass.tokens);
    out[name] = std::move(row);
  }
  return out;
}

// One eviction of a known number of tokens: overheads as the fit has them.
ordered_json fig8a(const Study& s) {
  ordered_json out;
  for (double block = 2; block <= 64; block *= 2) {
    const model::EvictionPoint p{4096, block, 0};
    out["recompute"].push_back(model::predict_recompute(s.fit, p));
    out["swap_pinned"].push_back(model::predict_swap(s.fit, p, true));
    out["swap_pageable"].push_back(model::predict_swap(s.fit, p, false));
  }
  return out;
}

ordered_json fig8b(const Study& s) {
  ordered_json out;
  for (double tokens = 1024; tokens <= 16384; tokens *= 2) {
    const model::EvictionPoint p{tokens, 16, 0};
    out["recompute"].push_back(model::predict_recompute(s.fit, p));
    out["swap"].push_back(model::predict_swap(s.fit, p, true));
  }
  return out;
}

EngineRun evicting_run(const Study& s, const EvictionSetting& setting, bool swap) {
  sched::Config config = sched::vllm_0_4_2(setting.blocks, setting.context);
  config.eviction = swap ? sched::Eviction::kSwap : sched::Eviction::kRecompute;
  config.partial = s.partial;
  config.host_blocks = study_host_blocks(setting.model);
  return run(s, config, setting.requests, study_costs(s.fit, setting.model, true, 16));
}

// What the figures of evictions show of a run.
using Value = ordered_json (*)(const EngineRun& run);
ordered_json overhead(const EngineRun& run) { return run.overhead_s(); }
ordered_json evictions(const EngineRun& run) { return run.counts.recomputes + run.counts.swaps_out; }
ordered_json makespan(const EngineRun& run) { return run.seconds; }

ordered_json runs_of_9(const Study& s, Value value) {
  ordered_json out;
  for (const LengthOf9& length : kLengthsOf9) {
    for (const bool swap : {false, true}) {
      for (const std::uint32_t count : kCountsOf9) {
        const EngineRun result = evicting_run(s, setting_of_9(s.inputs, length, count), swap);
        out[length.name][swap ? "swap" : "recompute"].push_back(value(result));
      }
    }
  }
  return out;
}

ordered_json runs_of_10a(const Study& s, Value value) {
  ordered_json out;
  for (const bool swap : {false, true}) {
    for (const std::uint32_t gib : kGibOf10a) {
      const EngineRun result = evicting_run(s, setting_of_10a(s.inputs, gib), swap);
      out["zipf"][swap ? "swap" : "recompute"][std::to_string(gib)] = value(result);
    }
  }
  return out;
}

ordered_json runs_of_10b(const Study& s, Value value) {
  ordered_json out;
  for (const StudyModelIndex m : kModelsOf10b) {
    for (const bool swap : {false, true}) {
      out[name_of(m)][swap ? "swap" : "recompute"] = value(evicting_run(s, setting_of_10b(s.inputs, m), swap));
    }
  }
  return out;
}

ordered_json runs_of_9_and_10(const Study& s, Value value) {
  return {{"fig9", runs_of_9(s, value)}, {"fig10a", runs_of_10a(s, value)}, {"fig10b", runs_of_10b(s, value)}};
}

ordered_json fig9(const Study& s) { return runs_of_9(s, overhead); }
ordered_json fig10a(const Study& s) { return runs_of_10a(s, overhead); }
ordered_json fig10b(const Study& s) { return runs_of_10b(s, overhead); }

ordered_json use_over_time(const EngineRun& run, double gpu_blocks, double host_blocks) {
  ordered_json out = ordered_json::array();
  for (const PassRecord& pass : run.passes) {
    out.push_back({pass.end_s, 100 * pass.gpu_blocks / gpu_blocks, 100 * pass.host_blocks / host_blocks});
  }
  return out;
}

ordered_json fig11(const Study& s) {
  ordered_json out;
  const std::pair<const char*, EvictionSetting> parts[] = {{"a", {kYarn, 1064, 16384, s.inputs.requests.at("fig11a")}},
                                                           {"b", setting_of_10a(s.inputs, 6)},
                                                           {"c", setting_of_10b(s.inputs, kOpt)}};
  for (const auto& [part, setting] : parts) {
    for (const bool swap : {false, true}) {
      out[part][swap ? "swap" : "recompute"] =
          use_over_time(evicting_run(s, setting, swap), setting.blocks, study_host_blocks(setting.model));
    }
  }
  return out;
}

// --- what the paper says of passes without a figure that has it

// Calls see(scheduler, pass, seconds) for each pass, until nobody is left or it answers false.
template <class See>
void each_pass(const Study& s, const sched::Config& config, std::span<const Lengths> requests, See see) {
  const EngineCosts costs = study_costs(s.fit, kYarn, true, 16);
  Engine engine(config, requests, costs);
  const sched::Pass* pass = engine.begin();
  while (pass != nullptr && see(engine.scheduler(), *pass, engine.record().seconds)) {
    engine.end(*pass);
    pass = engine.begin();
  }
  const auto misfits =
      std::ranges::count(engine.scheduler().requests(), sched::State::kRejected, &sched::Request::state);
  note_misfits(s, config, static_cast<std::uint64_t>(misfits), requests.size());
}

std::uint32_t prompt_tokens_of(const sched::Scheduler& scheduler, const sched::Pass& pass) {
  std::uint32_t tokens = 0;
  for (const sched::Item& item : pass.items) {
    const std::uint32_t prompt = scheduler.request(item.request).prompt;
    if (item.context < prompt) tokens += std::min(item.tokens, prompt - item.context);
  }
  return tokens;
}

// What a pass writes to the KV cache and reads from it. A block counts as written if one of its tokens is.
ordered_json accesses_of(const sched::Scheduler& scheduler, const sched::Pass& pass, double seconds) {
  const std::uint32_t block_tokens = scheduler.config().block_tokens;
  std::uint64_t read_tokens = 0;
  std::uint32_t written_blocks = 0;
  std::uint32_t ascending = 0;
  for (const sched::Item& item : pass.items) {
    const std::uint32_t end = item.context + item.tokens;
    read_tokens += item.context;
    written_blocks += (end + block_tokens - 1) / block_tokens - item.context / block_tokens;
    if (std::ranges::is_sorted(scheduler.request(item.request).blocks)) ++ascending;
  }
  return {{"seconds", seconds},
          {"requests", pass.items.size()},
          {"prompt_tokens", prompt_tokens_of(scheduler, pass)},
          {"written_tokens", pass.tokens},
          {"read_tokens", read_tokens},
          {"blocks", scheduler.pool().used()},
          {"written_blocks", written_blocks},
          {"requests_with_ascending_blocks", ascending}};
}

const std::vector<std::pair<std::string, ordered_json (*)(const Study&)>>& figures() {
  static const std::vector<std::pair<std::string, ordered_json (*)(const Study&)>> all = {{"3a", fig3a},
                                                                                          {"3b", fig3b},
                                                                                          {"3c", fig3c},
                                                                                          {"4a", fig4a},
                                                                                          {"4b", fig4b},
                                                                                          {"4c", fig4c},
                                                                                          {"4c_fixed", fig4c_fixed},
                                                                                          {"5", fig5},
                                                                                          {"8a", fig8a},
                                                                                          {"8b", fig8b},
                                                                                          {"9", fig9},
                                                                                          {"10a", fig10a},
                                                                                          {"10b", fig10b},
                                                                                          {"11", fig11}};
  return all;
}

}  // namespace

const std::vector<std::string>& study_figures() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const auto& [name, draw] : figures()) out.push_back(name);
    return out;
  }();
  return names;
}

EvictionSetting setting_of_9(const StudyInputs& inputs, const LengthOf9& length, std::uint32_t count) {
  EvictionSetting setting{kYarn, 2928, 16384, std::vector(count, Lengths{length.tokens, length.tokens})};
  const auto& listed = inputs.requests.at(kListOf9);
  if (length.tokens == 0) setting.requests.assign(listed.begin(), listed.begin() + count);
  return setting;
}

EvictionSetting setting_of_10a(const StudyInputs& inputs, std::uint32_t gib) {
  return {kYarn, study_blocks(kYarn, gib), 8192, inputs.requests.at(kListOf10)};
}

EvictionSetting setting_of_10b(const StudyInputs& inputs, StudyModelIndex m) {
  return {m, study_blocks(m, 10), 2048, inputs.requests.at(kListOf10)};
}

StudyResult study_evictions(const model::StudyFit& fit, const StudyInputs& inputs) {
  return drawn(fit, inputs, [](const Study& s) { return runs_of_9_and_10(s, evictions); });
}

StudyResult study_makespans(const model::StudyFit& fit, const StudyInputs& inputs) {
  return drawn(fit, inputs, [](const Study& s) {
    return ordered_json{{"whole", runs_of_9_and_10(s, makespan)},
                        {"partial", runs_of_9_and_10({s.fit, s.inputs, s.misfit, true}, makespan)}};
  });
}

StudyResult study_accesses(const model::StudyFit& fit, const StudyInputs& inputs) {
  constexpr std::size_t kPasses = 5;
  constexpr std::uint32_t kContext = 8192;  // the smallest that takes in the prompts of each workload in one pass
  return drawn(fit, inputs, [](const Study& s) {
    ordered_json out;
    for (const char* const workload : {"w1", "w2", "w3"}) {
      ordered_json& passes = out[workload];
      each_pass(s, strategy("vllm", yarn_blocks(kContext), kContext),
                std::span(s.inputs.requests.at(workload)).first(kRequestsOf6),
                [&](const sched::Scheduler& scheduler, const sched::Pass& pass, double seconds) {
                  passes.push_back(accesses_of(scheduler, pass, seconds));
                  return passes.size() < kPasses;
                });
    }
    return out;
  });
}

StudyResult study_prompt_passes(const model::StudyFit& fit, const StudyInputs& inputs) {
  constexpr std::uint32_t kContext = 4096;
  return drawn(fit, inputs, [](const Study& s) {
    ordered_json out;
    for (const char* const workload : {"w1", "w2", "w3"}) {
      for (const char* const name : {"vllm", "mix", "4k", "2k", "1k", "512"}) {
        ordered_json& passes = out[workload][name] = ordered_json::array();
        each_pass(s, strategy(name, yarn_blocks(kContext), kContext), s.inputs.requests.at(workload),
                  [&](const sched::Scheduler& scheduler, const sched::Pass& pass, double seconds) {
                    const std::uint32_t prompt_tokens = prompt_tokens_of(scheduler, pass);
                    if (prompt_tokens > 0) passes.push_back({seconds, pass.tokens, prompt_tokens});
                    return true;
                  });
      }
    }
    return out;
  });
}

StudyResult study_figure(const std::string& figure, const model::StudyFit& fit, const StudyInputs& inputs) {
  const auto found = std::ranges::find(figures(), figure, [](const auto& entry) { return entry.first; });
  KVD_CHECK(found != figures().end());  // a name of study_figures()
  return drawn(fit, inputs, found->second);
}

}  // namespace kvd::sim
