#include "cmd/plan_talk.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cmd/plan_report.h"
#include "model/catalogue.h"
#include "model/deployment.h"

namespace kvd::cmd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kEfficiency = 0.5;   // of peak FLOP/s, as in the check vectors
constexpr double kReadPerGpu = 20e9;  // bytes/s, as in the check vectors
constexpr double kGpuMemory = 80e9;   // H100
constexpr double kExampleAcceleration = 9;
constexpr std::array<std::uint32_t, 9> kSimulatedClients{1, 2, 4, 8, 16, 32, 64, 128, 256};
constexpr std::uint64_t kSeed = 1;

struct SetupNumbers {
  const char* model;
  const char* precision;
  double params;
  double bytes;  // of a weight and of a KV element
  std::uint32_t gpus;
  double tpot_one_s;
  model::Workload workload;
  std::uint32_t prompt_min;
  std::uint32_t prompt_max;
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
                 .prompt_min = numbers.prompt_min,
                 .prompt_max = numbers.prompt_max,
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

TalkFigure sla_figure(const TalkSetup& s) {
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
  figure.chart.series = {vanilla, depot, memory};
  for (const auto& [x, y] : depot.points) figure.chart.y_max = std::max(figure.chart.y_max, y * 1.1);
  return figure;
}

TalkFigure efficiency_figure(const TalkSetup& s) {
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
    for (const std::uint32_t clients : kSimulatedClients) {
      const sim::TalkPoint p = simulate(s, depot, clients);
      points.points.emplace_back(1 / p.tpot_s, p.requests_per_s / s.gpus);
    }
    figure.chart.series.push_back(std::move(points));
  }
  return figure;
}

// The closed form beside the simulation at some numbers of clients.
std::string simulated_lines(const TalkSetup& s) {
  std::string out;
  for (const bool depot : {false, true}) {
    const model::Batching form = depot ? depot_of(s) : vanilla_of(s);
    for (const std::uint32_t clients : {1U, 8U, 32U, 128U}) {
      const sim::TalkPoint p = simulate(s, depot, clients);
      out += fmt::format("{:<15} {:<8} {:>7} {:>10.1f} {:>10.1f} {:>10.2f} {:>10.2f} {:>10.3f} {:>10.3f} {:>7.0f}\n",
                         s.name, depot ? "depot" : "vanilla", clients, form.ttft_s(clients) * 1e3, p.ttft_s * 1e3,
                         form.tpot_s(clients) * 1e3, p.tpot_s * 1e3, form.requests_per_s(clients) / s.gpus,
                         p.requests_per_s / s.gpus, static_cast<double>(p.preemptions));
    }
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

sim::TalkPoint simulate(const TalkSetup& setup, bool depot, std::uint32_t clients) {
  const model::Replica& r = setup.replica;
  const double pair_flops = r.attention.front().pair_flops;
  const double block_bytes = r.kv_token_bytes * sim::kTalkBlockTokens;
  const sim::TalkEngine engine{.step_s = r.tpot_one_s,
                               .token_s = r.token_flops / r.flops_per_s,
                               .pair_s = pair_flops / r.flops_per_s,
                               .context_token_s = r.kv_token_bytes / r.memory_bytes_per_s,
                               .read_token_s = r.kv_token_bytes / setup.store.read_bytes_per_s,
                               .reuse = depot ? setup.workload.reuse : 0,
                               .blocks = static_cast<std::uint32_t>(setup.memory_for_kv_bytes / block_bytes)};
  const sim::TalkTraffic traffic{.prompt_min = setup.prompt_min,
                                 .prompt_max = setup.prompt_max,
                                 .output_mean = setup.workload.output_tokens,
                                 .clients = clients,
                                 .requests = std::max(400U, clients * 50)};
  return sim::talk_loop(engine, traffic, kSeed);
}

std::vector<TalkSetup> talk_setups() {
  const char* const kOpen = "reuse 0.9, 20 GB/s per GPU and efficiency 0.5 are assumed as in the check vectors";
  return {
      setup("llama-70b-tp1", "Llama-3-70B FP8, one H100, output 64",
            "TPOT(1) 31.4 ms: weights at 0.734 of the memory's bandwidth and 32.1 us a layer; prompts of 1800 on "
            "average; the rest as below",
            {"llama-3-70b", "fp8", 70.6e9, 1, 1, 0.0314, {1800, 64, 0.9}, 100, 3500}),
      setup("llama-70b-tp2", "Llama-3-70B FP8, TP 2, prompts 100-3500, output 64", kOpen,
            {"llama-3-70b", "fp8", 70.6e9, 1, 2, 0.020, {1800, 64, 0.9}, 100, 3500}),
      setup("llama-70b-chat", "Llama-3-70B FP8, TP 2, 2200/170, 15 turns", kOpen,
            {"llama-3-70b", "fp8", 70.6e9, 1, 2, 0.020, {2200, 170, 0.9}, 2200, 2200}),
      setup("qwen3-14b", "Qwen3-14B FP16, one H100, 9600/100, 6.5 turns",
            "reuse 0.85, TPOT(1) 12 ms, 20 GB/s and efficiency 0.5 as in the check vectors",
            {"qwen3-14b", "fp16", 14.8e9, 2, 1, 0.012, {9600, 100, 0.85}, 9600, 9600}),
  };
}

std::vector<TalkFigure> talk_figures() {
  const auto setups = talk_setups();
  std::vector<TalkFigure> figures{example_figure(), sla_figure(setups.front())};
  for (std::size_t i = 1; i < setups.size(); ++i) figures.push_back(efficiency_figure(setups[i]));
  return figures;
}

std::string talk_table() {
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
      "memory holds, which the talk leaves out; req/s/GPU at B\n\nLargest batch by prompt length, llama-70b-tp1:\n";
  for (const double tokens : {100, 500, 1000, 1500, 2000, 2500, 3000, 3500}) {
    out += fmt::format("  {:>5.0f} tokens: vanilla {:>4}, depot {:>4}\n", tokens, batch_at(setups[0], tokens, false),
                       batch_at(setups[0], tokens, true));
  }
  out += fmt::format(
      "\nSimulated (closed form | simulation; prompts and answers vary, memory is finite, loads come before the "
      "pass):\n"
      "{:<15} {:<8} {:>7} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>7}\n",
      "set-up", "", "clients", "TTFT ms", "simulated", "TPOT ms", "simulated", "req/s/GPU", "simulated", "preempt");
  for (std::size_t i = 1; i < setups.size(); ++i) out += simulated_lines(setups[i]);
  out += "\nAssumed where the talk is silent:\n";
  for (const TalkSetup& s : setups) out += fmt::format("  {}: {}\n", s.name, s.assumed);
  return out;
}

std::string talk_json(const std::vector<TalkFigure>& figures) {
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
  return out.dump(1) + "\n";
}

}  // namespace kvd::cmd
