#include "model/step_fit.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/check.h"
#include "model/least_squares.h"

namespace kvd::model {

namespace {

// Passes of figure 3c had contexts below 98 tokens; prompts of figure 3a's shortest row have 16. Their middle.
constexpr double kDecodeTableContext = 57;
constexpr double kStudyBlockTokens = 16;
// The five points of 8b are means of several runs of a running engine; the 65 of 3a are single passes.
constexpr double kSteadyWeight = 2;

double table_context(const StudyModel& model, double batch) {
  return std::min(kDecodeTableContext, std::floor(model.kv_blocks / batch) * kStudyBlockTokens);
}

// All times over this: a fit then sees numbers without units, and scales exactly with the tables.
double reference_seconds(const StudyTables& tables) {
  double longest = 0;
  for (const PrefillPoint& p : tables.first_pass[kYarn]) longest = std::max(longest, p.seconds);
  KVD_CHECK(longest > 0);
  return longest;
}

StepTime prefill_constants(std::span<const double> p, double warmup_share, double warmup_max) {
  StepTime step;
  step.floor_s = p[0];
  step.token_s = p[1];
  step.pair_s = p[2];
  step.seq_s = p[3];
  step.warmup_share = warmup_share;
  step.warmup_max_s = warmup_max;
  return step;
}

double first_pass_seconds(const StepTime& step, const PrefillPoint& point) {
  double warmup = step.warmup_max_s;
  return step.seconds(prefill_shape(point.length, 0, point.seqs, false), warmup);
}

// Where the search starts, as shares of the reference time (the longest pass, of 8,192 tokens).
const std::vector<double> kPrefillStart = {0.025, 1e-4, 3e-9, 1e-4};

StepTime fit_yarn_prefill(const StudyTables& tables, double ref) {
  const auto& first = tables.first_pass[kYarn];
  const auto residuals = [&](std::span<const double> p, std::span<double> out) {
    const StepTime step = prefill_constants(p, p[4], p[5]);
    std::size_t i = 0;
    for (const PrefillPoint& point : first) {
      out[i++] = std::log(first_pass_seconds(step, point) / (point.seconds / ref));
    }
    for (const EvictionPoint& point : tables.recompute) {
      const double steady = step.seconds(prefill_shape(point.evicted_tokens, 0, 1, false));
      out[i++] = kSteadyWeight * std::log(steady / (point.seconds / ref));
    }
  };
  std::vector<double> start = kPrefillStart;
  start.insert(start.end(), {0.3, 0.05});
  const auto p = fit_positive(residuals, first.size() + tables.recompute.size(), start);
  return prefill_constants(p, p[4], p[5]);
}

StepTime fit_llama_prefill(const StudyTables& tables, double ref, const StepTime& yarn) {
  const auto& first = tables.first_pass[kLlama];
  const auto residuals = [&](std::span<const double> p, std::span<double> out) {
    const StepTime step = prefill_constants(p, yarn.warmup_share, yarn.warmup_max_s);
    for (std::size_t i = 0; i < first.size(); ++i) {
      out[i] = std::log(first_pass_seconds(step, first[i]) / (first[i].seconds / ref));
    }
  };
  const auto p = fit_positive(residuals, first.size(), kPrefillStart);
  return prefill_constants(p, yarn.warmup_share, yarn.warmup_max_s);
}

double attention_size(StudyModelIndex m) { return kStudyModelTable[m].layers * kStudyModelTable[m].hidden; }

// Scales by work: the matrices by their FLOP at the mean rate of the measured models, attention by layers * hidden, the
// floor by the decode floor, as both read all weights once.
StepTime derive_opt_prefill(const StepTime& yarn, const StepTime& llama, double decode_floor_ratio) {
  const double yarn_rate = kStudyModelTable[kYarn].flop_per_token() / yarn.token_s;
  const double llama_rate = kStudyModelTable[kLlama].flop_per_token() / llama.token_s;
  StepTime opt = yarn;
  opt.token_s = kStudyModelTable[kOpt].flop_per_token() / ((yarn_rate + llama_rate) / 2);
  opt.pair_s = (yarn.pair_s / attention_size(kYarn) + llama.pair_s / attention_size(kLlama)) / 2 * attention_size(kOpt);
  opt.floor_s = yarn.floor_s * decode_floor_ratio;
  return opt;
}

void fit_chunked(const StudyTables& tables, double ref, std::array<StepTime, kStudyModels>& steps) {
  StepTime yarn = steps[kYarn];
  const auto with = [&yarn](std::span<const double> p) {
    StepTime step = yarn;
    step.chunked_floor_s = p[0];
    step.chunked_pair_s = p[1];
    step.chunked_context_pair_s = p[2];
    return step;
  };
  StudyFit trial;
  const auto residuals = [&](std::span<const double> p, std::span<double> out) {
    trial.step[kYarn] = with(p);
    for (std::size_t i = 0; i < tables.chunked.size(); ++i) {
      const double measured = tables.chunked[i].seconds / ref;
      out[i] = std::log(predict_chunked(trial, tables.chunked[i]) / measured);
    }
  };
  const auto p = fit_positive(residuals, tables.chunked.size(), {0.06, 1e-8, 2e-8});
  steps[kYarn] = with(p);
  // The kernel's launches cost the same in every layer; its pairs as much as the heads together are wide.
  for (const StudyModelIndex m : {kLlama, kOpt}) {
    const double launches = (p[0] - yarn.floor_s) * kStudyModelTable[m].layers / kStudyModelTable[kYarn].layers;
    steps[m].chunked_floor_s = steps[m].floor_s + launches;
    steps[m].chunked_pair_s = p[1] * attention_size(m) / attention_size(kYarn);
    steps[m].chunked_context_pair_s = p[2] * attention_size(m) / attention_size(kYarn);
  }
}

void fit_decode(const StudyTables& tables, double ref, std::array<StepTime, kStudyModels>& steps) {
  double byte_s = 0;
  for (std::size_t m = 0; m < kStudyModels; ++m) {
    byte_s +=
        tables.decode[m].front().seconds / ref / kStudyModelTable[m].weights_bytes / static_cast<double>(kStudyModels);
  }
  for (std::size_t m = 0; m < kStudyModels; ++m) {
    const StudyModel& model = kStudyModelTable[m];
    StepTime& step = steps[m];
    step.context_token_s = model.kv_bytes_per_token() * byte_s;
    for (const DecodePoint& p : tables.decode[m]) {
      const double kv_read = p.batch * table_context(model, p.batch) * step.context_token_s;
      step.decode_batch.batch.push_back(p.batch);
      step.decode_batch.seconds.push_back(p.seconds / ref - kv_read);
    }
  }
}

SwapTime fit_swap(const std::vector<EvictionPoint>& table, double ref, const StepTime& yarn, bool pinned) {
  StudyFit trial;
  trial.step[kYarn] = yarn;
  SwapTime& swap = pinned ? trial.pinned : trial.pageable;
  const auto residuals = [&](std::span<const double> p, std::span<double> out) {
    swap = {p[0], p[1]};
    for (std::size_t i = 0; i < table.size(); ++i) {
      out[i] = std::log(predict_swap(trial, table[i], pinned) / (table[i].seconds / ref));
    }
  };
  const auto p = fit_positive(residuals, table.size(), {4e-6, 7e-11});
  return {p[0], p[1]};
}

void multiply(StepTime& step, double factor) {
  for (double* const value :
       {&step.floor_s, &step.token_s, &step.pair_s, &step.seq_s, &step.chunked_floor_s, &step.chunked_pair_s,
        &step.chunked_context_pair_s, &step.context_token_s, &step.warmup_max_s}) {
    *value *= factor;
  }
  for (double& seconds : step.decode_batch.seconds) seconds *= factor;
}

}  // namespace

PassShape prefill_shape(double tokens, double context, double seqs, bool chunked) noexcept {
  PassShape pass;
  pass.prefill_tokens = tokens * seqs;
  pass.prefill_seqs = seqs;
  pass.new_pairs = seqs * tokens * tokens / 2;
  pass.context_pairs = seqs * tokens * context;
  pass.chunked = chunked;
  return pass;
}

void StudyTables::scale(double factor) noexcept {
  for (auto& table : first_pass) {
    for (PrefillPoint& p : table) p.seconds *= factor;
  }
  for (auto& table : decode) {
    for (DecodePoint& p : table) p.seconds *= factor;
  }
  for (auto* const table : {&chunked, &whole}) {
    for (ChunkPoint& p : *table) p.seconds *= factor;
  }
  for (auto* const table : {&recompute, &swap_pinned, &swap_pageable}) {
    for (EvictionPoint& p : *table) p.seconds *= factor;
  }
}

StudyFit fit_study(const StudyTables& tables) {
  const double ref = reference_seconds(tables);
  StudyFit fit;
  fit.step[kYarn] = fit_yarn_prefill(tables, ref);
  fit.step[kLlama] = fit_llama_prefill(tables, ref, fit.step[kYarn]);
  const double floors = tables.decode[kOpt].front().seconds / tables.decode[kYarn].front().seconds;
  fit.step[kOpt] = derive_opt_prefill(fit.step[kYarn], fit.step[kLlama], floors);
  fit_chunked(tables, ref, fit.step);
  fit_decode(tables, ref, fit.step);
  fit.pinned = fit_swap(tables.swap_pinned, ref, fit.step[kYarn], true);
  fit.pageable = fit_swap(tables.swap_pageable, ref, fit.step[kYarn], false);
  for (StepTime& step : fit.step) multiply(step, ref);
  for (SwapTime* const swap : {&fit.pinned, &fit.pageable}) {
    swap->copy_s *= ref;
    swap->byte_s *= ref;
  }
  return fit;
}

double predict(const StudyFit& fit, StudyModelIndex model, const PrefillPoint& point) {
  return first_pass_seconds(fit.step[model], point);
}

double predict(const StudyFit& fit, StudyModelIndex model, const DecodePoint& point) {
  PassShape pass;
  pass.decode_seqs = point.batch;
  pass.decode_context = point.batch * table_context(kStudyModelTable[model], point.batch);
  return fit.step[model].seconds(pass);
}

double predict_chunked(const StudyFit& fit, const ChunkPoint& point) {
  const StepTime& step = fit.step[kYarn];
  double warmup = step.warmup_max_s;
  double seconds = 0;
  for (double done = 0; done < point.prompt; done += point.chunk) {
    seconds += step.seconds(prefill_shape(std::min(point.chunk, point.prompt - done), done, 1, true), warmup);
  }
  return seconds;
}

double predict_whole(const StudyFit& fit, const ChunkPoint& point) {
  return first_pass_seconds(fit.step[kYarn], {point.prompt, 1, 0});
}

double predict_recompute(const StudyFit& fit, const EvictionPoint& point) {
  return fit.step[kYarn].seconds(prefill_shape(point.evicted_tokens, 0, 1, false));
}

double predict_swap(const StudyFit& fit, const EvictionPoint& point, bool pinned) {
  const StudyModel& model = kStudyModelTable[kYarn];
  const StepTime& step = fit.step[kYarn];
  const double blocks = std::ceil(point.evicted_tokens / point.block_tokens);
  const double block_bytes = model.kv_bytes_per_token() * point.block_tokens;
  const double one_way = (pinned ? fit.pinned : fit.pageable).seconds(blocks, 2 * model.layers, block_bytes);
  PassShape pass;
  pass.decode_seqs = 1;
  pass.decode_context = point.evicted_tokens;
  return 2 * one_way + step.seconds(pass);
}

}  // namespace kvd::model
