#include "cmd/sim_report.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace kvd::cmd {

using nlohmann::ordered_json;

namespace {

ordered_json percentiles(const sim::Percentiles& p, bool unstable) {
  if (unstable || p.count == 0) return nullptr;
  return {{"mean", p.mean}, {"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}};
}

std::string percentiles_line(const char* name, const sim::Percentiles& p, bool unstable, double unit,
                             const char* what) {
  if (unstable) return fmt::format("{:<10} unstable\n", name);
  if (p.count == 0) return fmt::format("{:<10} -\n", name);
  return fmt::format("{:<10} mean {:>9.3f}  p50 {:>9.3f}  p90 {:>9.3f}  p99 {:>9.3f} {}\n", name, p.mean * unit,
                     p.p50 * unit, p.p90 * unit, p.p99 * unit, what);
}

std::string time(model::Picoseconds t) {
  return fmt::format("{}.{:012}", t / 1'000'000'000'000, t % 1'000'000'000'000);
}

// What a cumulative figure grew by from sample to sample, for each second, times `factor`.
template <class F>
ChartSeries rate(std::string name, const std::vector<sim::FleetSample>& samples, double factor, F figure) {
  ChartSeries series{std::move(name)};
  for (std::size_t i = 1; i < samples.size(); ++i) {
    const double seconds = samples[i].time_s - samples[i - 1].time_s;
    series.points.emplace_back(samples[i].time_s, factor * (figure(samples[i]) - figure(samples[i - 1])) / seconds);
  }
  return series;
}

template <class F>
ChartSeries level(std::string name, const std::vector<sim::FleetSample>& samples, F figure) {
  ChartSeries series{std::move(name)};
  for (const sim::FleetSample& s : samples) series.points.emplace_back(s.time_s, figure(s));
  return series;
}

// Percent of the prompt tokens of the requests that ended since the sample before.
template <class F>
ChartSeries prompt_share(std::string name, const std::vector<sim::FleetSample>& samples, F figure) {
  ChartSeries series{std::move(name)};
  for (std::size_t i = 1; i < samples.size(); ++i) {
    const double prompts = samples[i].prompt_tokens - samples[i - 1].prompt_tokens;
    if (prompts > 0) {
      series.points.emplace_back(samples[i].time_s, 100 * (figure(samples[i]) - figure(samples[i - 1])) / prompts);
    }
  }
  return series;
}

}  // namespace

bool sound(const sim::FleetResult& r) {
  return r.tokens_conserved && r.blocks_conserved && r.loads_conserved && r.little_error < 0.01;
}

ordered_json fleet_json(const sim::FleetResult& r, const SimConfig& config) {
  ordered_json out = {{"requests", r.requests},
                      {"rejected", r.rejected},
                      {"warmup_s", config.fleet.warmup_s},
                      {"warmup_requests", r.warmup_requests},
                      {"unfinished", r.unfinished},
                      {"seconds", r.seconds},
                      {"ttft_s", percentiles(r.ttft, r.unstable)},
                      {"tpot_s", percentiles(r.tpot, r.unstable)},
                      {"output_tokens_per_s", r.output_tokens_per_s},
                      {"hit_share", r.hit_share},
                      {"loaded_share", r.loaded_share},
                      {"goodput_per_s", r.goodput},
                      {"busy_share", r.busy_share},
                      {"unstable", r.unstable},
                      {"preemptions", r.preemptions},
                      {"passes", r.passes},
                      {"passes_executed", r.passes_executed}};
  if (config.fleet.in_flight_max > 0) out["ttft_from_schedule_s"] = percentiles(r.ttft_scheduled, r.unstable);
  for (std::size_t t = 0; t < sim::kTiers; ++t) {
    if (!config.fleet.tiers.tier.at(t).on) continue;
    const sim::TierTraffic& traffic = r.traffic.at(t);
    out["tiers"][std::string(sim::kTierNames.at(t))] = {{"read_bytes", traffic.read_bytes},
                                                        {"written_bytes", traffic.written_bytes},
                                                        {"refused_bytes", traffic.refused_bytes}};
  }
  out["checks"] = {{"tokens_conserved", r.tokens_conserved},
                   {"blocks_conserved", r.blocks_conserved},
                   {"loads_conserved", r.loads_conserved},
                   {"little_error", r.little_error},
                   {"sound", sound(r)}};
  out["assumptions"] = config.assumptions;
  return out;
}

std::string fleet_text(const sim::FleetResult& r, const SimConfig& config) {
  std::string out = fmt::format("requests   {} in {:.1f} s simulated, {} rejected{}\n", r.requests, r.seconds,
                                r.rejected, r.unstable ? "; UNSTABLE: queues grew to the end of the arrivals" : "");
  out += fmt::format(
      "warm-up    {} requests of the first {:g} s are simulated and not counted; {} unfinished at the end\n",
      r.warmup_requests, config.fleet.warmup_s, r.unfinished);
  out += percentiles_line("TTFT", r.ttft, r.unstable, 1, "s");
  if (config.fleet.in_flight_max > 0) {
    out += percentiles_line("scheduled", r.ttft_scheduled, r.unstable, 1, "s: TTFT and the wait in the load generator");
  }
  out += percentiles_line("TPOT", r.tpot, r.unstable, 1e3, "ms");
  out += fmt::format("output     {:.0f} tokens/s; goodput {:.3f} requests/s within the SLA\n", r.output_tokens_per_s,
                     r.goodput);
  out += fmt::format("prompts    {:.2f} % from the own cache, {:.2f} % from tiers behind it\n", 100 * r.hit_share,
                     100 * r.loaded_share);
  for (std::size_t t = 0; t < sim::kTiers; ++t) {
    if (!config.fleet.tiers.tier.at(t).on) continue;
    const sim::TierTraffic& traffic = r.traffic.at(t);
    out += fmt::format("{:<10} {:.3g} GB read, {:.3g} GB written, {:.3g} GB refused by its write budget\n",
                       sim::kTierNames.at(t), 1e-9 * traffic.read_bytes, 1e-9 * traffic.written_bytes,
                       1e-9 * traffic.refused_bytes);
  }
  out += fmt::format("engines    {:.1f} % busy, {} preemptions\n", 100 * r.busy_share, r.preemptions);
  out += fmt::format("passes     {} ({} executed, the others taken in closed form)\n", r.passes, r.passes_executed);
  out += fmt::format("checks     tokens {}, blocks {}, loads {}, Little's law within {:.2g}\n",
                     r.tokens_conserved ? "conserved" : "LOST", r.blocks_conserved ? "conserved" : "LEAKED",
                     r.loads_conserved ? "conserved" : "LOST", r.little_error);
  for (const std::string& line : config.assumptions) out += fmt::format("assumed    {}\n", line);
  return out;
}

std::string cost_text(const sim::FleetResult& r, const SimCost& cost) {
  const double rate = static_cast<double>(r.passes_executed) / cost.simulate_s;
  return fmt::format("took       {:.3f} s ({:.3f} s simulating, {:.2f} million executed passes a second), {:.0f} MiB\n",
                     cost.wall_s, cost.simulate_s, 1e-6 * rate, cost.peak_mib);
}

std::string requests_csv(const sim::FleetResult& result) {
  std::string text =
      "arrival_s,first_token_s,finish_s,instance,prompt,output,hit_tokens,loaded_tokens,preemptions,scheduled_s\n";
  text.reserve(result.records.size() * 100);
  for (const sim::RequestRecord& r : result.records) {
    text +=
        fmt::format("{},{},{},{},{},{},{},{},{},{}\n", time(r.arrival), time(r.first_token), time(r.finish), r.instance,
                    r.prompt, r.output, r.hit_tokens, r.loaded_tokens, r.preemptions, time(r.scheduled));
  }
  return text;
}

std::string passes_csv(const sim::FleetResult& result) {
  std::string text = "start_s,seconds,instance,passes,prefill_tokens,pairs,decodes,context_tokens\n";
  for (const sim::FleetPass& p : result.pass_log) {
    text += fmt::format("{},{},{},{},{},{},{},{}\n", time(p.start), time(p.end - p.start), p.instance, p.passes,
                        p.pass.prefill_tokens, p.pass.pairs, p.pass.decodes, p.pass.context);
  }
  return text;
}

std::string samples_csv(const sim::FleetResult& result, const SimConfig& config) {
  std::string text =
      "time_s,waiting,running,kv_used,kv_cached,dram_tokens,flash_tokens,depot_tokens,busy_share,output_tokens,"
      "prompt_tokens,hit_tokens,loaded_tokens,dram_read_bytes,flash_read_bytes,depot_read_bytes,dram_written_bytes,"
      "flash_written_bytes,depot_written_bytes\n";
  double busy_s = 0;
  double time_s = 0;
  for (const sim::FleetSample& s : result.samples) {
    const double span = std::max(s.time_s - time_s, 1e-12) * config.fleet.instances;
    text +=
        fmt::format("{:.6f},{},{},{:.6f},{:.6f},{:.0f},{:.0f},{:.0f},{:.6f},{:.0f},{:.0f},{:.0f},{:.0f}", s.time_s,
                    s.waiting, s.running, s.kv_used, s.kv_cached, s.tier_tokens[0], s.tier_tokens[1], s.tier_tokens[2],
                    (s.busy_s - busy_s) / span, s.output_tokens, s.prompt_tokens, s.hit_tokens, s.loaded_tokens);
    for (const double bytes : s.read_bytes) text += fmt::format(",{:.0f}", bytes);
    for (const double bytes : s.written_bytes) text += fmt::format(",{:.0f}", bytes);
    text += '\n';
    busy_s = s.busy_s;
    time_s = s.time_s;
  }
  return text;
}

std::vector<Chart> fleet_charts(const sim::FleetResult& result, const SimConfig& config) {
  using Sample = sim::FleetSample;
  const std::vector<Sample>& samples = result.samples;
  const double instances = config.fleet.instances;
  std::vector<Chart> charts;
  charts.push_back({"Requests in the fleet", "s", "requests"});
  charts.back().series = {level("running", samples, [](const Sample& s) { return static_cast<double>(s.running); }),
                          level("waiting", samples, [](const Sample& s) { return static_cast<double>(s.waiting); })};
  charts.push_back({"Utilisation", "s", "%"});
  charts.back().y_max = 100;
  charts.back().series = {
      rate("engines busy", samples, 100 / instances, [](const Sample& s) { return s.busy_s; }),
      level("KV blocks in use", samples, [](const Sample& s) { return 100 * s.kv_used; }),
      level("KV blocks cached, not in use", samples, [](const Sample& s) { return 100 * s.kv_cached; })};
  charts.push_back({"Prompt tokens found", "s", "% of the requests that end"});
  charts.back().y_max = 100;
  charts.back().series = {prompt_share("in the own cache", samples, [](const Sample& s) { return s.hit_tokens; }),
                          prompt_share("in tiers", samples, [](const Sample& s) { return s.loaded_tokens; })};
  charts.push_back({"Output", "s", "tokens/s"});
  charts.back().series = {rate("finished", samples, 1, [](const Sample& s) { return s.output_tokens; })};
  if (!config.fleet.tiers.any()) return charts;
  Chart held{"Tiers hold", "s", "tokens"};
  Chart moved{"Tiers send and take", "s", "GB/s, all instances"};
  for (std::size_t t = 0; t < sim::kTiers; ++t) {
    if (!config.fleet.tiers.tier.at(t).on) continue;
    const std::string name(sim::kTierNames.at(t));
    held.series.push_back(level(name, samples, [t](const Sample& s) { return s.tier_tokens.at(t); }));
    moved.series.push_back(rate(name + " read", samples, 1e-9, [t](const Sample& s) { return s.read_bytes.at(t); }));
    moved.series.push_back(
        rate(name + " written", samples, 1e-9, [t](const Sample& s) { return s.written_bytes.at(t); }));
    moved.series.back().dashed = true;
  }
  charts.push_back(std::move(held));
  charts.push_back(std::move(moved));
  return charts;
}

}  // namespace kvd::cmd
