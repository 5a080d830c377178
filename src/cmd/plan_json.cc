// The answer for programs: JSON and CSV, SI units, names with their unit at the end.
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cmd/plan_report.h"

namespace kvd::cmd {
namespace {

using nlohmann::ordered_json;

ordered_json finite(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr); }
ordered_json positive(double value) { return value > 0 ? finite(value) : ordered_json(nullptr); }
ordered_json range(const model::Range& r) {
  return {{"low", finite(r.low)}, {"mid", finite(r.mid)}, {"high", finite(r.high)}};
}

ordered_json prefill_json(const model::Prefill& p) {
  static constexpr const char* kBounds[] = {"compute", "read", "write"};
  return {{"compute_s_per_token", p.compute_token_s},
          {"suffix_compute_s_per_token", p.suffix_token_s},
          {"read_s_per_token", p.read_token_s},
          {"write_s_per_token", p.write_token_s},
          {"acceleration", finite(p.acceleration)},
          {"crossover", p.crossover},
          {"ttft_vanilla_s", p.ttft_vanilla_s},
          {"ttft_s", p.ttft_depot_s},
          {"speedup", finite(p.speedup)},
          {"bound", kBounds[static_cast<int>(p.bound)]}};
}

ordered_json class_json(const model::ClassAnswer& c, const model::ClassAnswer& vanilla, double tpot_sla_s) {
  const model::Sizing& s = c.sizing;
  return {{"class", c.name},
          {"title", c.title},
          {"hit_rate", c.hit},
          {"read_bytes_per_s", finite(c.path.read_bytes_per_s)},
          {"write_bytes_per_s", finite(c.path.write_bytes_per_s)},
          {"latency_s", c.path.latency_s},
          {"prefill", prefill_json(c.prefill)},
          {"prefill_s_per_step", c.batching.prefill_s},
          {"context_s_per_step", c.batching.context_s},
          {"batch_gain", model::batch_gain(vanilla.batching, c.batching)},
          {"batch_gain_limit", model::batch_gain_limit(vanilla.batching)},
          {"batch_of_talk", model::batch_of_talk(c.batching, tpot_sla_s)},
          {"batch", c.batch},
          {"memory_binds", c.memory_binds},
          {"ttft_at_batch_s", positive(c.ttft_s)},
          {"tpot_at_batch_s", positive(c.tpot_s)},
          {"requests_per_s_per_replica", positive(c.requests_per_s)},
          {"gpus_for_rate", positive(c.gpus_needed)},
          {"break_even_bytes_per_s", finite(c.break_even_bytes_per_s)},
          {"saturating_bytes_per_s", finite(c.saturating_bytes_per_s)},
          {"shortest_prompt_worth_storing",
           c.shortest_prompt > 0 ? ordered_json(c.shortest_prompt) : ordered_json(nullptr)},
          {"speedup_with_twice_the_bandwidth", finite(c.speedup_twice_io)},
          {"speedup_with_a_tenth_fewer_misses", finite(c.speedup_more_hits)},
          {"worth_it", c.hit >= 0.001 && c.prefill.speedup >= 1.02},
          {"dollars_per_million_tokens", positive(c.cost_per_million)},
          {"storage_without_price", c.unpriced.empty() ? ordered_json(nullptr) : ordered_json(c.unpriced)},
          {"sizing",
           {{"capacity_bytes", s.capacity_bytes},
            {"capacity_for_90_percent_of_hits_bytes", finite(s.capacity_90_bytes)},
            {"capacity_for_99_percent_of_hits_bytes", finite(s.capacity_99_bytes)},
            {"written_bytes_per_s", s.write_bytes_per_s},
            {"read_bytes_per_s", s.read_bytes_per_s},
            {"write_budget_bytes_per_s", positive(s.write_budget_bytes_per_s)},
            {"drive_life_years", positive(s.drive_life_years)},
            {"drives_per_gpu", positive(s.drives_per_gpu)},
            {"links_per_gpu", positive(s.links_per_gpu)}}},
          {"ranges",
           {{"ttft_s", range(c.ttft_range)},
            {"speedup", range(c.speedup_range)},
            {"tpot_at_batch_s", range(c.tpot_range)},
            {"batch", range(c.batch_range)},
            {"requests_per_s_per_replica", range(c.requests_range)},
            {"gpus_for_rate", range(c.gpus_range)},
            {"break_even_bytes_per_s", range(c.break_even_range)},
            {"saturating_bytes_per_s", range(c.saturating_range)},
            {"shortest_prompt_worth_storing", range(c.shortest_prompt_range)},
            {"drive_life_years", range(c.drive_life_range)},
            {"drives_per_gpu", range(c.drives_range)},
            {"links_per_gpu", range(c.links_range)},
            {"dollars_per_million_tokens", range(c.cost_range)}}}};
}

ordered_json trace_json(const PlanTrace& t) {
  ordered_json out = {{"requests", t.trace.requests.size()},
                      {"span_s", t.trace.span_s()},
                      {"prompt_tokens_mean", t.prompt_mean},
                      {"output_tokens_mean", t.output_mean}};
  if (t.reuse == nullptr) return out;
  out["block_tokens"] = t.trace.block_tokens;
  out["ideal_hit_rate"] = t.reuse->ideal_hit_rate();
  out["ideal_hit_rate_blocks"] = t.reuse->ideal_hit_rate_blocks();
  if (!t.of_replica.empty()) out["private_ideal_hit_rate"] = private_ideal_hit_rate(t);
  out["distinct_blocks"] = t.reuse->distinct_blocks();
  out["blocks_used_once"] = t.reuse->blocks_used_once();
  for (const double share : {0.25, 0.5, 0.75, 0.9, 0.99}) {
    const std::string name = fmt::format("p{:.0f}", share * 100);
    out["stack_distance_blocks"][name] = t.reuse->distance_quantile(share);
    out["reuse_time_s"][name] = t.reuse->reuse_time_quantile_s(share);
  }
  for (const std::uint64_t blocks : kCurveBlocks) {
    out["lru"].push_back(
        {{"blocks", blocks}, {"tokens", blocks * t.trace.block_tokens}, {"hit_rate", t.reuse->hit_rate(blocks)}});
  }
  return out;
}

ordered_json model_json(const model::Question& q, const model::Answer& answer) {
  ordered_json kinds = ordered_json::array();
  for (const model::FlopsRow& row : model::flops_by_kind(*q.model)) {
    kinds.push_back({{"kind", row.kind},
                     {"layers", row.layers},
                     {"flops_per_token", row.token_flops},
                     {"flops_per_pair", row.pair_flops}});
  }
  return {{"name", q.model->name},
          {"source", q.model->source},
          {"params", q.model->params()},
          {"params_active", q.model->params_active()},
          {"kv_bytes_per_token", answer.kv_token_bytes},
          {"kv_bytes_per_block_of_16", q.model->kv_block_bytes(16, q.kv_bytes_per_element)},
          {"flops_by_kind", kinds}};
}

}  // namespace

std::string plan_json(const Plan& plan, const model::Answer& answer) {
  const model::Question& q = plan.question;
  ordered_json out;
  out["model"] = model_json(q, answer);
  out["device"] = {{"name", q.device->name},
                   {"gpus", q.gpus},
                   {"precision", q.precision},
                   {"flops_per_s", answer.replica.flops_per_s},
                   {"memory_bytes_per_s", answer.replica.memory_bytes_per_s},
                   {"tpot_one_s", answer.replica.tpot_one_s},
                   {"all_reduce_s_per_token", answer.replica.reduce_decode_s},
                   {"tpot_one_range_s", range(answer.tpot_one_range)},
                   {"error", q.device->error},
                   {"measured", q.device->origin.measured},
                   {"data_sheet", q.device->origin.data_sheet},
                   {"source", q.device->origin.source}};
  out["workload"] = {{"prompt_tokens", q.workload.prompt_tokens},
                     {"output_tokens", q.workload.output_tokens},
                     {"reuse", q.workload.reuse},
                     {"requests_per_s", answer.requests_per_s},
                     {"requests_per_s_range", range(answer.rate_range)},
                     {"replicas", q.replicas},
                     {"sla_ttft_s", q.sla.ttft_s},
                     {"sla_tpot_s", q.sla.tpot_s},
                     {"attention", q.attention == model::Attention::kFull ? "full" : "causal"}};
  out["assumptions"] = model::reduce_assumptions(plan.question);
  if (plan.trace != nullptr) out["trace"] = trace_json(*plan.trace);
  out["s3_with_all_reuse_found"] = prefill_json(answer.talk);
  out["vanilla"] = class_json(answer.vanilla, answer.vanilla, q.sla.tpot_s);
  for (const model::ClassAnswer& c : answer.classes)
    out["classes"].push_back(class_json(c, answer.vanilla, q.sla.tpot_s));
  return out.dump(1) + "\n";
}

std::string plan_csv(const model::Answer& answer) {
  std::string out =
      "class,hit_rate,read_bytes_per_s,ttft_s,ttft_low_s,ttft_high_s,speedup,speedup_low,speedup_high,batch,tpot_s,"
      "requests_per_s_per_replica,gpus_for_rate,break_even_bytes_per_s,saturating_bytes_per_s,shortest_prompt,"
      "capacity_bytes,written_bytes_per_s,drive_life_years,dollars_per_million_tokens,batch_low,batch_high,"
      "tpot_low_s,tpot_high_s,requests_per_s_low,requests_per_s_high,gpus_low,gpus_high,break_even_low,"
      "break_even_high,saturating_low,saturating_high,shortest_prompt_low,shortest_prompt_high,drive_life_low_years,"
      "drive_life_high_years,dollars_low,dollars_high\n";
  const auto cell = [](double value) { return std::isfinite(value) ? fmt::format("{:.9g}", value) : std::string(); };
  const auto row = [&](const model::ClassAnswer& c) {
    out += c.name;
    for (const double value :
         {c.hit, c.path.read_bytes_per_s, c.prefill.ttft_depot_s, c.ttft_range.low, c.ttft_range.high,
          c.prefill.speedup, c.speedup_range.low, c.speedup_range.high, static_cast<double>(c.batch), c.tpot_s,
          c.requests_per_s, c.gpus_needed, c.break_even_bytes_per_s, c.saturating_bytes_per_s,
          static_cast<double>(c.shortest_prompt), c.sizing.capacity_bytes, c.sizing.write_bytes_per_s,
          c.sizing.drive_life_years, c.cost_per_million}) {
      out += "," + cell(value);
    }
    for (const model::Range& r : {c.batch_range, c.tpot_range, c.requests_range, c.gpus_range, c.break_even_range,
                                  c.saturating_range, c.shortest_prompt_range, c.drive_life_range, c.cost_range}) {
      out += "," + cell(r.low) + "," + cell(r.high);
    }
    out += "\n";
  };
  row(answer.vanilla);
  for (const model::ClassAnswer& c : answer.classes) row(c);
  return out;
}

}  // namespace kvd::cmd
