#include "cmd/plan_talk.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cmd/plan_report.h"
#include "cmd/plan_talk_runs.h"
#include "model/catalogue.h"
#include "model/deployment.h"

namespace kvd::cmd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kEfficiency = 0.5;   // of peak FLOP/s, as in the check vectors
constexpr double kReadPerGpu = 20e9;  // bytes/s, as in the check vectors
constexpr double kGpuMemory = 80e9;   // H100
constexpr double kExampleAcceleration = 9;
constexpr std::array<std::uint32_t, 4> kTableClients{1, 8, 32, 128};

struct SetupNumbers {
  const char* model;
  const char* precision;
  double params;
  double bytes;  // of a weight and of a KV element
  std::uint32_t gpus;
  double tpot_one_s;
  model::Workload workload;
  sim::TalkTraffic traffic;
};

TalkSetup setup(const char* name, const char* title, const char* assumed, const SetupNumbers& numbers) {
  const model::Catalogue& catalogue = model::Catalogue::built_in();
  const model::Transformer& transformer = *catalogue.model(numbers.model);
  const model::Device& h100 = *catalogue.device("h100");
  TalkSetup made{.name = name,
                 .title = title,
                 .assumed = assumed,
                 .replica = {},
                 .gpus = numbers.gpus,
                 .workload = numbers.workload,
                 .traffic = numbers.traffic,
                 .layers = transformer.layers(),
                 .store = {}};
  made.replica.flops_per_s = h100.peak_flops_per_s(numbers.precision) * kEfficiency * numbers.gpus;
  made.replica.memory_bytes_per_s = h100.memory_bytes_per_s * numbers.gpus;
  made.replica.token_flops = 2 * numbers.params;
  made.replica.attention = transformer.attention();
  made.replica.mode = model::Attention::kFull;
  made.replica.kv_token_bytes = transformer.kv_token_bytes(numbers.bytes);
  made.replica.tpot_one_s = numbers.tpot_one_s;
  made.store = {kReadPerGpu * numbers.gpus, kInfinity, 0, true};
  made.memory_for_kv_bytes = kGpuMemory * numbers.gpus * model::kMemoryUsed - numbers.params * numbers.bytes;
  return made;
}

model::Batching vanilla_of(const TalkSetup& s) {
  const model::Prefill p = model::prefill(s.replica, s.workload, s.store);
  return model::batching(s.replica, s.workload, p.ttft_vanilla_s);
}
model::Batching depot_of(const TalkSetup& s) {
  const model::Prefill p = model::prefill(s.replica, s.workload, s.store);
  return model::batching(s.replica, s.workload, p.ttft_depot_s);
}

TalkFigure example_figure() {
  TalkFigure figure{"example",
                    {.title = "Prefill speed-up over reuse, e = 9", .x_label = "reuse ratio a", .y_label = "speed-up"}};
  ChartSeries total{.name = "with the depot: min(1/(1-a), e/a)"};
  ChartSeries compute{.name = "compute-bound: 1/(1-a)", .dashed = true};
  ChartSeries read{.name = "I/O-bound: e/a", .dashed = true};
  for (int i = 0; i <= 100; ++i) {
    const double a = i / 100.0;
    const double by_compute = a < 1 ? 1 / (1 - a) : kInfinity;
    const double by_read = a > 0 ? kExampleAcceleration / a : kInfinity;
    total.points.emplace_back(a, std::min(by_compute, by_read));
    compute.points.emplace_back(a, by_compute);
    read.points.emplace_back(a, by_read);
  }
  figure.chart.series = {total, compute, read};
  figure.chart.y_max = 40;
  return figure;
}

// The largest batch within the SLA at one prompt length.
std::uint64_t batch_at(const TalkSetup& s, double prompt_tokens, bool depot) {
  TalkSetup at = s;
  at.workload.prompt_tokens = prompt_tokens;
  return model::batch_within(depot ? depot_of(at) : vanilla_of(at), kTalkSla);
}

ChartSeries sla_dots(const TalkRuns& runs, bool depot, bool memory) {
  const char* const how = memory ? "simulated, memory as it is" : "simulated";
  ChartSeries dots{.name = fmt::format("{} ({})", depot ? "depot" : "vanilla", how), .dots = true};
  for (const TalkSla& point : runs.sla) {
    if (point.memory == memory) {
      dots.points.emplace_back(point.prompt_tokens, depot ? point.depot.mean : point.vanilla.mean);
    }
  }
  return dots;
}

TalkFigure sla_figure(const TalkSetup& s, const TalkRuns& runs) {
  TalkFigure figure{"sla-batch",
                    {.title = "Largest batch within TTFT 400 ms, TPOT 40 ms: " + s.title,
                     .x_label = "prompt tokens",
                     .y_label = "requests at once"}};
  ChartSeries vanilla{.name = "vanilla"};
  ChartSeries depot{.name = "depot"};
  ChartSeries memory{.name = "what GPU memory holds", .dashed = true};
  for (int tokens = 100; tokens <= 3500; tokens += 100) {
    vanilla.points.emplace_back(tokens, batch_at(s, tokens, false));
    depot.points.emplace_back(tokens, batch_at(s, tokens, true));
    memory.points.emplace_back(
        tokens, s.memory_for_kv_bytes / ((tokens + s.workload.output_tokens) * s.replica.kv_token_bytes));
  }
  figure.chart.series = {
      vanilla, depot, memory, sla_dots(runs, false, false), sla_dots(runs, true, false), sla_dots(runs, true, true)};
  for (const auto& [x, y] : depot.points) figure.chart.y_max = std::max(figure.chart.y_max, y * 1.1);
  return figure;
}

TalkFigure efficiency_figure(const TalkSetup& s, const TalkRuns& runs) {
  TalkFigure figure{"efficiency-" + s.name,
                    {.title = "Efficiency against experience: " + s.title,
                     .x_label = "output tokens/s for a user",
                     .y_label = "requests/s/GPU"}};
  figure.chart.series = {efficiency_series("vanilla (closed form)", vanilla_of(s), s.gpus, false),
                         efficiency_series("depot (closed form)", depot_of(s), s.gpus, false),
                         efficiency_series("prefill/decode split (closed form)", vanilla_of(s), s.gpus, true)};
  figure.chart.series.back().dashed = true;
  for (const bool depot : {false, true}) {
    ChartSeries points{.name = depot ? "depot (simulated)" : "vanilla (simulated)", .dots = true};
    for (const TalkSeries& series : runs.series) {
      if (series.setup != s.name || series.plain) continue;
      for (const TalkClients& at : series.points) {
        const TalkRun& run = depot ? at.depot : at.vanilla;
        points.points.emplace_back(1 / run.tpot_s.mean, run.requests_per_s.mean);
      }
    }
    figure.chart.series.push_back(std::move(points));
  }
  return figure;
}

std::string with_half(const sim::Interval& value, double factor, int decimals) {
  return fmt::format("{:.{}f} ±{:.{}f}", value.mean * factor, decimals, value.half * factor, decimals);
}

std::string simulated_line(const TalkSetup& s, const TalkSeries& series, const TalkClients& at, bool depot) {
  const model::Batching form = depot ? depot_of(s) : vanilla_of(s);
  const TalkRun& run = depot ? at.depot : at.vanilla;
  return fmt::format(
      "{:<15} {:<13} {:<8} {:>7} {:>9.1f} {:>15} {:>9.2f} {:>14} {:>9.3f} {:>14} {:>14} {:>6.1f} {:>8.0f}\n", s.name,
      series.plain              ? "plain"
      : s.traffic.turns_max > 1 ? "conversations"
                                : "prompts",
      depot ? "depot" : "vanilla", at.clients, form.ttft_s(at.clients) * 1e3, with_half(run.ttft_s, 1e3, 1),
      form.tpot_s(at.clients) * 1e3, with_half(run.tpot_s, 1e3, 2), form.requests_per_s(at.clients) / s.gpus,
      with_half(run.requests_per_s, 1, 3), depot ? with_half(at.gain, 1, 2) : "", run.loaded_share * 100,
      run.preemptions);
}

// The closed form beside the simulation at some numbers of clients.
std::string simulated_lines(const std::vector<TalkSetup>& setups, const TalkRuns& runs) {
  std::string out = fmt::format(
      "\nSimulated, seeds 1 to {}, 95 % intervals (closed form | simulation; memory is finite, loads overlap layer by "
      "layer):\n{:<15} {:<13} {:<8} {:>7} {:>9} {:>15} {:>9} {:>14} {:>9} {:>14} {:>14} {:>6} {:>8}\n",
      runs.seeds, "set-up", "traffic", "", "clients", "TTFT ms", "simulated", "TPOT ms", "simulated", "req/s/GPU",
      "simulated", "depot/vanilla", "hit %", "preempt");
  for (const TalkSeries& series : runs.series) {
    const TalkSetup& s = *std::ranges::find(setups, series.setup, &TalkSetup::name);
    for (const TalkClients& at : series.points) {
      if (std::ranges::find(kTableClients, at.clients) == kTableClients.end()) continue;
      out += simulated_line(s, series, at, false) + simulated_line(s, series, at, true);
    }
  }
  return out +
         "conversations: turn after turn, what is found is the prompt of the turn before; plain: prompts of the mean "
         "length, all\nwith the closed form's reuse. depot/vanilla: requests/s, seed by seed\n";
}

// The largest batch by prompt length, closed form and simulated.
std::string sla_lines(const TalkSetup& s, const TalkRuns& runs) {
  std::string out = fmt::format(
      "\nMost requests at once within TTFT 400 ms and TPOT 40 ms by prompt length, {} (closed form | simulation with "
      "memory to spare | with the memory that there is):\n{:>8} {:>8} {:>14} {:>14} {:>8} {:>14} {:>14}\n",
      s.name, "tokens", "vanilla", "simulated", "in memory", "depot", "simulated", "in memory");
  for (std::size_t i = 0; i + 1 < runs.sla.size(); i += 2) {
    const TalkSla& ample = runs.sla[i];
    const TalkSla& finite = runs.sla[i + 1];
    const double tokens = ample.prompt_tokens;
    out += fmt::format("{:>8} {:>8} {:>14} {:>14} {:>8} {:>14} {:>14}\n", ample.prompt_tokens,
                       batch_at(s, tokens, false), with_half(ample.vanilla, 1, 1), with_half(finite.vanilla, 1, 1),
                       batch_at(s, tokens, true), with_half(ample.depot, 1, 1), with_half(finite.depot, 1, 1));
  }
  return out;
}

std::string setup_line(const TalkSetup& s) {
  const model::Prefill p = model::prefill(s.replica, s.workload, s.store);
  const model::Batching vanilla = vanilla_of(s);
  const model::Batching depot = depot_of(s);
  const std::uint64_t batch_vanilla = model::batch_within(vanilla, kTalkSla);
  const std::uint64_t batch_depot = model::batch_within(depot, kTalkSla);
  const auto rate = [&](const model::Batching& b, std::uint64_t batch) {
    return batch == 0 ? 0.0 : b.requests_per_s(static_cast<double>(batch)) / s.gpus;
  };
  const double request = (s.workload.prompt_tokens + s.workload.output_tokens) * s.replica.kv_token_bytes;
  return fmt::format(
      "{:<15} {:>8.2f} {:>7.3f} {:>7.2f} {:>7.4f} {:>9.1f} {:>9.1f} {:>7.2f} {:>8.4f} {:>8.4f} {:>6} {:>6} {:>7.2f} "
      "{:>7.2f} {:>9.3f} {:>9.3f} {:>7.0f}\n",
      s.name, p.compute_token_s * 1e6, p.read_token_s * 1e6, p.acceleration, p.crossover, p.ttft_vanilla_s * 1e3,
      p.ttft_depot_s * 1e3, p.speedup, vanilla.prefill_s * 1e3, vanilla.context_s * 1e3, batch_vanilla, batch_depot,
      model::batch_gain(vanilla, depot), model::batch_gain_limit(vanilla), rate(vanilla, batch_vanilla),
      rate(depot, batch_depot), std::max(0.0, s.memory_for_kv_bytes) / request);
}

}  // namespace

std::vector<TalkSetup> talk_setups() {
  const char* const kOpen =
      "reuse 0.9, 20 GB/s per GPU and efficiency 0.5 are assumed as in the check vectors; prompts are uniform";
  // First prompts such that the mean over all turns is the talk's: 800 + 7 * (30 + 170), and of 6 or 7 turns
  // 8492 + (6 * 2.5 + 7 * 3)/13 * (300 + 100).
  return {
      setup("llama-70b-tp1", "Llama-3-70B FP8, one H100, output 64",
            "TPOT(1) 31.4 ms: weights at 0.734 of the memory's bandwidth and 32.1 us a layer; prompts of 1800 on "
            "average; the rest as below",
            {"llama-3-70b",
             "fp8",
             70.6e9,
             1,
             1,
             0.0314,
             {1800, 64, 0.9},
             {.prompt_min = 100, .prompt_max = 3500, .output_mean = 64}}),
      setup("llama-70b-tp2", "Llama-3-70B FP8, TP 2, prompts 100-3500, output 64", kOpen,
            {"llama-3-70b",
             "fp8",
             70.6e9,
             1,
             2,
             0.020,
             {1800, 64, 0.9},
             {.prompt_min = 100, .prompt_max = 3500, .output_mean = 64}}),
      setup("llama-70b-chat", "Llama-3-70B FP8, TP 2, 2200/170, 15 turns",
            "as above; conversations begin with 800 tokens and the user adds 30 a turn, answers are geometric",
            {"llama-3-70b",
             "fp8",
             70.6e9,
             1,
             2,
             0.020,
             {2200, 170, 0.9},
             {.prompt_min = 800,
              .prompt_max = 800,
              .output_mean = 170,
              .turns_min = 15,
              .turns_max = 15,
              .user_tokens = 30}}),
      setup("qwen3-14b", "Qwen3-14B FP16, one H100, 9600/100, 6.5 turns",
            "reuse 0.85, TPOT(1) 12 ms, 20 GB/s and efficiency 0.5 as in the check vectors; conversations of 6 or 7 "
            "turns begin with 8,492 tokens and the user adds 300 a turn, answers have 80 to 120",
            {"qwen3-14b",
             "fp16",
             14.8e9,
             2,
             1,
             0.012,
             {9600, 100, 0.85},
             {.prompt_min = 8492,
              .prompt_max = 8492,
              .output_mean = 100,
              .output_min = 80,
              .output_max = 120,
              .turns_min = 6,
              .turns_max = 7,
              .user_tokens = 300}}),
  };
}

std::vector<TalkFigure> talk_figures(const TalkRuns& runs) {
  const auto setups = talk_setups();
  std::vector<TalkFigure> figures{example_figure(), sla_figure(setups.front(), runs)};
  for (const TalkSetup& s : setups) figures.push_back(efficiency_figure(s, runs));
  return figures;
}

std::string talk_table(const TalkRuns& runs) {
  std::string out = fmt::format(
      "The example: e = {0}: crossover a* = e/(1+e) = {1:.2g}, largest speed-up 1+e = {2}; at reuse 0.5 {3:.3g}, at "
      "0.9 {2}, "
      "at 1 {0}\n\nThe set-ups (attention counted in full; ms unless said otherwise):\n"
      "{4:<15} {5:>8} {6:>7} {7:>7} {8:>7} {9:>9} {10:>9} {11:>7} {12:>8} {13:>8} {14:>6} {15:>6} {16:>7} {17:>7} "
      "{18:>9} {19:>9} {20:>7}\n",
      kExampleAcceleration, kExampleAcceleration / (1 + kExampleAcceleration), 1 + kExampleAcceleration, 2.0, "set-up",
      "T us", "R us", "e", "a*", "TTFT", "depot", "x", "dP", "dH", "B", "B dep", "gain", "limit", "req/s/GPU", "depot",
      "B mem");
  const auto setups = talk_setups();
  for (const TalkSetup& s : setups) out += setup_line(s);
  out +=
      "B: largest batch within TTFT 400 ms and TPOT 40 ms, one more than the talk's floor where TPOT binds; B mem: "
      "what GPU\n"
      "memory holds, which the talk leaves out; req/s/GPU at B\n";
  out += sla_lines(setups.front(), runs) + simulated_lines(setups, runs);
  out += "\nAssumed where the talk is silent:\n";
  for (const TalkSetup& s : setups) out += fmt::format("  {}: {}\n", s.name, s.assumed);
  double little_error = 0;
  for (const TalkSeries& series : runs.series) {
    for (const TalkClients& p : series.points) {
      little_error = std::max({little_error, p.vanilla.little_error, p.depot.little_error});
    }
  }
  return out +
         fmt::format(
             "\nchecks: tokens and blocks of every run are conserved, all requests end, Little's law holds within "
             "{:.2g}; a run that breaks one ends the program\n",
             little_error);
}

namespace {

nlohmann::ordered_json interval_json(const sim::Interval& value) {
  return {{"mean", value.mean}, {"half", value.half}};
}

nlohmann::ordered_json run_json(const TalkRun& run) {
  return {{"ttft_s", interval_json(run.ttft_s)},
          {"tpot_s", interval_json(run.tpot_s)},
          {"requests_per_s_per_gpu", interval_json(run.requests_per_s)},
          {"preemptions", run.preemptions},
          {"prompt_tokens_mean", run.prompt_mean},
          {"loaded_share", run.loaded_share}};
}

}  // namespace

std::string talk_json(const std::vector<TalkFigure>& figures, const TalkRuns& runs) {
  nlohmann::ordered_json out;
  for (const TalkFigure& figure : figures) {
    auto& series = out[figure.id];
    for (const ChartSeries& line : figure.chart.series) {
      auto& points = series[line.name];
      points = nlohmann::ordered_json::array();
      for (const auto& [x, y] : line.points) {
        if (std::isfinite(x) && std::isfinite(y)) points.push_back({x, y});
      }
    }
  }
  out["seeds"] = runs.seeds;
  for (const TalkSeries& series : runs.series) {
    auto& points = out["runs"][series.setup][series.plain ? "plain" : "talk"];
    for (const TalkClients& at : series.points) {
      points.push_back({{"clients", at.clients},
                        {"vanilla", run_json(at.vanilla)},
                        {"depot", run_json(at.depot)},
                        {"depot_over_vanilla", interval_json(at.gain)}});
    }
  }
  for (const TalkSla& point : runs.sla) {
    out["sla"].push_back({{"prompt_tokens", point.prompt_tokens},
                          {"memory_as_it_is", point.memory},
                          {"vanilla", interval_json(point.vanilla)},
                          {"depot", interval_json(point.depot)}});
  }
  return out.dump(1) + "\n";
}

}  // namespace kvd::cmd
