// The talk's figures for the user's numbers.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cmd/plan_report.h"

namespace kvd::cmd {
namespace {

using model::ClassAnswer;

Chart speedup_chart(const Plan& plan, const model::Answer& answer) {
  Chart chart{.title = "Prefill speed-up over the share that is stored",
              .x_label = "share of the prompt found",
              .y_label = "speed-up"};
  double y_max = 2;
  for (const ClassAnswer& c : answer.classes) {
    if (!std::isfinite(c.path.read_bytes_per_s)) continue;
    ChartSeries line{.name = fmt::format("{}: e = {:.3g}", c.name, c.prefill.acceleration)};
    for (int i = 0; i <= 200; ++i) {
      model::Workload workload = plan.question.workload;
      workload.reuse = i / 200.0;
      line.points.emplace_back(workload.reuse, model::prefill(answer.replica, workload, c.path).speedup);
      y_max = std::max(y_max, line.points.back().second);
    }
    chart.series.push_back(std::move(line));
  }
  ChartSeries limit{.name = "1/(1-a): nothing to wait for", .dashed = true};
  for (int i = 0; i < 200; ++i) limit.points.emplace_back(i / 200.0, 1 / (1 - i / 200.0));
  chart.series.push_back(std::move(limit));
  chart.y_max = y_max * 1.1;
  return chart;
}

Chart batch_chart(const Plan& plan, const model::Answer& answer) {
  const model::Question& q = plan.question;
  Chart chart{.title = "Largest batch within the SLA over prompt length",
              .x_label = "prompt tokens",
              .y_label = "requests at once"};
  const double n_max = 2 * q.workload.prompt_tokens;
  const auto line = [&](const ClassAnswer& c) {
    ChartSeries series{.name = c.name};
    for (int i = 1; i <= 60; ++i) {
      model::Workload workload{n_max * i / 60, q.workload.output_tokens, c.hit};
      const double ttft = model::prefill(answer.replica, workload, c.path).ttft_depot_s;
      const auto batch = model::batch_within(model::batching(answer.replica, workload, ttft, q.growing), q.sla);
      const double request = answer.replica.context_bytes(workload.prompt_tokens + workload.output_tokens);
      series.points.emplace_back(workload.prompt_tokens,
                                 std::min(static_cast<double>(batch), answer.kv_memory_bytes / request));
    }
    chart.series.push_back(std::move(series));
  };
  line(answer.vanilla);
  for (const ClassAnswer& c : answer.classes) line(c);
  return chart;
}

Chart efficiency_chart(const Plan& plan, const model::Answer& answer) {
  Chart chart{
      .title = "Efficiency against experience", .x_label = "output tokens/s for a user", .y_label = "requests/s/GPU"};
  const std::uint32_t gpus = plan.question.gpus;
  chart.series.push_back(efficiency_series("vanilla", answer.vanilla.batching, gpus, false));
  chart.series.push_back(efficiency_series("vanilla, prefill and decode apart", answer.vanilla.batching, gpus, true));
  chart.series.back().dashed = true;
  for (const ClassAnswer& c : answer.classes) {
    if (c.hit > 0.001) chart.series.push_back(efficiency_series(c.name, c.batching, gpus, false));
  }
  return chart;
}

Chart reuse_chart(const PlanTrace& trace) {
  Chart chart{.title = "Hit rate over capacity (LRU, one store)",
              .x_label = "tokens stored",
              .y_label = "share of prompt tokens",
              .x_log = true};
  ChartSeries line{.name = "hit rate"};
  ChartSeries ideal{.name = fmt::format("ideal {:.4f}", trace.reuse->ideal_hit_rate()), .dashed = true};
  const double most = std::max<double>(2, static_cast<double>(trace.reuse->distinct_blocks()));
  for (int i = 0; i <= 80; ++i) {
    const double blocks = std::max(1.0, most / 1000) * std::pow(most / std::max(1.0, most / 1000), i / 80.0);
    const double tokens = blocks * trace.trace.block_tokens;
    line.points.emplace_back(tokens, trace.reuse->hit_rate(static_cast<std::uint64_t>(blocks)));
    ideal.points.emplace_back(tokens, trace.reuse->ideal_hit_rate());
  }
  chart.series = {line, ideal};
  return chart;
}

}  // namespace

ChartSeries efficiency_series(const std::string& name, const model::Batching& batching, std::uint32_t gpus,
                              bool split) {
  ChartSeries series{.name = name};
  for (double batch = 1; batch <= 512; batch = std::max(batch + 1, std::floor(batch * 1.1))) {
    const double tpot = split ? model::split_tpot_s(batching, batch) : batching.tpot_s(batch);
    const double rate = split ? model::split_requests_per_s(batching, batch) : batching.requests_per_s(batch);
    series.points.emplace_back(1 / tpot, rate / gpus);
  }
  return series;
}

std::vector<Chart> plan_charts(const Plan& plan, const model::Answer& answer) {
  std::vector<Chart> charts{speedup_chart(plan, answer), batch_chart(plan, answer), efficiency_chart(plan, answer)};
  if (plan.trace != nullptr && plan.trace->reuse != nullptr) charts.push_back(reuse_chart(*plan.trace));
  return charts;
}

}  // namespace kvd::cmd
