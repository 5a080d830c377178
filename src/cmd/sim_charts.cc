#include "cmd/sim_charts.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace kvd::cmd {

using nlohmann::ordered_json;

namespace {

constexpr double kNone = NAN;  // is left out of a chart

// A row of numbers over x0, x0 * factor, ...; null is left out.
ChartSeries geometric(std::string name, const ordered_json& row, double x0, double factor) {
  ChartSeries series{std::move(name)};
  for (const ordered_json& value : row) {
    series.points.emplace_back(x0, value.is_null() ? kNone : value.get<double>());
    x0 *= factor;
  }
  return series;
}

ChartSeries counted(std::string name, const ordered_json& row) {
  ChartSeries series{std::move(name)};
  double x = 0;
  for (const ordered_json& value : row) series.points.emplace_back(++x, value.get<double>());
  return series;
}

ChartSeries measured(std::string name) {
  ChartSeries series{std::move(name)};
  series.dots = true;
  return series;
}

void add_3a(const ordered_json& figure, const model::StudyTables& tables, std::vector<Chart>& charts) {
  for (const auto& [name, rows] : figure.items()) {
    Chart chart{fmt::format("3a: one prefill pass, {}", name), "requests in the pass", "tokens/s"};
    chart.x_log = true;
    for (const char* const length : {"16", "128", "1024", "4096"}) {
      chart.series.push_back(geometric(fmt::format("{} tokens", length), rows.at(length), 1, 2));
    }
    ChartSeries dots = measured("measured");
    for (std::size_t m = 0; m < model::kStudyModels; ++m) {
      if (model::kStudyModelTable[m].name != name) continue;
      for (const model::PrefillPoint& p : tables.first_pass[m]) {
        const bool drawn = p.length == 16 || p.length == 128 || p.length == 1024 || p.length == 4096;
        if (drawn) dots.points.emplace_back(p.seqs, p.length * p.seqs / p.seconds);
      }
    }
    if (!dots.points.empty()) chart.series.push_back(std::move(dots));
    charts.push_back(std::move(chart));
  }
}

void add_3b(const ordered_json& figure, const model::StudyTables&, std::vector<Chart>& charts) {
  Chart chart{"3b: prompts of mixed lengths in one pass, Yarn-Llama-2-7B", "requests in the pass", "tokens/s"};
  for (const auto& [order, row] : figure.items()) chart.series.push_back(counted(order, row));
  charts.push_back(std::move(chart));
}

void add_3c(const ordered_json& figure, const model::StudyTables& tables, std::vector<Chart>& charts) {
  Chart chart{"3c: one decode pass", "requests in the pass", "tokens/s"};
  chart.x_log = true;
  for (const auto& [name, row] : figure.items()) chart.series.push_back(geometric(name, row, 1, 2));
  ChartSeries dots = measured("measured");
  for (const auto& table : tables.decode) {
    for (const model::DecodePoint& p : table) dots.points.emplace_back(p.batch, p.batch / p.seconds);
  }
  chart.series.push_back(std::move(dots));
  charts.push_back(std::move(chart));
}

void add_4a(const ordered_json& figure, const model::StudyTables& tables, std::vector<Chart>& charts) {
  Chart chart{"4a: one prompt of 8K in chunks, Yarn-Llama-2-7B", "tokens a chunk", "tokens/s"};
  chart.x_log = true;
  ChartSeries line{"predicted"};
  for (const auto& [chunk, cell] : figure.items()) {
    if (chunk == "none") continue;
    const double tokens = std::stod(chunk) * (chunk.back() == 'k' ? 1024 : 1);
    line.points.emplace_back(tokens, cell.at("tokens_per_s").get<double>());
  }
  ChartSeries dots = measured("measured");
  for (const model::ChunkPoint& p : tables.chunked) dots.points.emplace_back(p.chunk, p.prompt / p.seconds);
  chart.series = {std::move(line), std::move(dots)};
  charts.push_back(std::move(chart));
}

double tokens_per_s(const ordered_json& cell) { return cell.is_null() ? kNone : cell.at("tokens_per_s").get<double>(); }

// Bars: groups[name][series] as `value` says, a group for each name.
template <class F>
Chart bar_chart(std::string title, std::string y_label, const ordered_json& groups, F value) {
  Chart chart{std::move(title), "", std::move(y_label)};
  for (const auto& [name, group] : groups.items()) {
    const auto x = static_cast<double>(chart.categories.size());
    chart.categories.push_back(name);
    for (const auto& [how, cell] : group.items()) {
      auto series = std::ranges::find(chart.series, how, &ChartSeries::name);
      if (series == chart.series.end()) series = chart.series.insert(series, ChartSeries{how});
      series->points.emplace_back(x, value(cell));
    }
  }
  return chart;
}

void add_4b(const ordered_json& figure, std::vector<Chart>& charts) {
  for (const auto& [workload, contexts] : figure.items()) {
    charts.push_back(bar_chart(fmt::format("4b: batching over the context window, {}, Yarn-Llama-2-7B", workload),
                               "tokens/s", contexts, tokens_per_s));
    charts.back().x_label = "tokens in a pass at most";
  }
}

void add_4c(const ordered_json& figure, const std::string& what, std::vector<Chart>& charts) {
  for (const auto& [workload, models] : figure.items()) {
    charts.push_back(
        bar_chart(fmt::format("4c: batching over models, {}{}", workload, what), "tokens/s", models, tokens_per_s));
  }
}

void add_5(const ordered_json& figure, const model::StudyTables&, std::vector<Chart>& charts) {
  Chart chart{"5: use of a context window of 4K, Yarn-Llama-2-7B", "pass", "tokens in the pass"};
  for (const auto& [strategy, row] : figure.items()) chart.series.push_back(counted(strategy, row));
  charts.push_back(std::move(chart));
}

void add_8(const ordered_json& figure, const model::StudyTables& tables, bool by_block, std::vector<Chart>& charts) {
  Chart chart{by_block ? "8a: overhead of evicting 4K tokens" : "8b: overhead of one eviction, blocks of 16",
              by_block ? "tokens a block" : "tokens evicted", "s"};
  chart.x_log = true;
  for (const auto& [how, row] : figure.items()) chart.series.push_back(geometric(how, row, by_block ? 2 : 1024, 2));
  ChartSeries dots = measured("measured");
  constexpr std::size_t kBlockSizes = 6;  // of 8a, which comes first in each table
  for (const auto* const table : {&tables.recompute, &tables.swap_pinned, &tables.swap_pageable}) {
    for (std::size_t i = 0; i < table->size(); ++i) {
      const model::EvictionPoint& p = (*table)[i];
      if ((i < kBlockSizes) == by_block)
        dots.points.emplace_back(by_block ? p.block_tokens : p.evicted_tokens, p.seconds);
    }
  }
  chart.series.push_back(std::move(dots));
  charts.push_back(std::move(chart));
}

void add_9(const ordered_json& figure, std::vector<Chart>& charts) {
  Chart chart{"9: overhead over requests and their lengths, Yarn-Llama-2-7B", "requests", "s"};
  for (const auto& [length, rows] : figure.items()) {
    for (const auto& [how, row] : rows.items()) {
      chart.series.push_back(geometric(fmt::format("{} {}", length, how), row, 32, 2));
      chart.series.back().dashed = how == "swap";
    }
  }
  charts.push_back(std::move(chart));
}

void add_10a(const ordered_json& figure, std::vector<Chart>& charts) {
  Chart chart{"10a: overhead over KV memory, Yarn-Llama-2-7B", "GiB", "s"};
  for (const auto& [how, cells] : figure.at("zipf").items()) {
    ChartSeries line{how};
    for (const auto& [gib, seconds] : cells.items()) line.points.emplace_back(std::stod(gib), seconds.get<double>());
    chart.series.push_back(std::move(line));
  }
  charts.push_back(std::move(chart));
}

void add_10b(const ordered_json& figure, std::vector<Chart>& charts) {
  charts.push_back(bar_chart("10b: overhead over models, 10 GiB for KV", "s", figure,
                             [](const ordered_json& seconds) { return seconds.get<double>(); }));
}

void add_11(const ordered_json& figure, std::vector<Chart>& charts) {
  for (const auto& [part, runs] : figure.items()) {
    Chart chart{fmt::format("11{}: KV blocks in use", part), "s", "%"};
    for (const auto& [how, passes] : runs.items()) {
      ChartSeries device{fmt::format("{}, device", how)};
      ChartSeries host{fmt::format("{}, host", how)};
      host.dashed = true;
      const std::size_t step = passes.size() / 600 + 1;  // as many points as a chart is wide
      for (std::size_t i = 0; i < passes.size(); i += step) {
        const double t = passes[i][0].get<double>();
        device.points.emplace_back(t, passes[i][1].get<double>());
        host.points.emplace_back(t, passes[i][2].get<double>());
      }
      chart.series.push_back(std::move(device));
      if (how == "swap") chart.series.push_back(std::move(host));
    }
    charts.push_back(std::move(chart));
  }
}

}  // namespace

std::vector<Chart> study_charts(const ordered_json& study, const model::StudyTables& tables) {
  std::vector<Chart> charts;
  if (study.contains("fig3a")) add_3a(study.at("fig3a"), tables, charts);
  if (study.contains("fig3b")) add_3b(study.at("fig3b"), tables, charts);
  if (study.contains("fig3c")) add_3c(study.at("fig3c"), tables, charts);
  if (study.contains("fig4a")) add_4a(study.at("fig4a"), tables, charts);
  if (study.contains("fig4b")) add_4b(study.at("fig4b"), charts);
  if (study.contains("fig4c")) add_4c(study.at("fig4c"), "", charts);
  if (study.contains("fig4c_fixed")) add_4c(study.at("fig4c_fixed"), " output tokens", charts);
  if (study.contains("fig5")) add_5(study.at("fig5"), tables, charts);
  if (study.contains("fig8a")) add_8(study.at("fig8a"), tables, true, charts);
  if (study.contains("fig8b")) add_8(study.at("fig8b"), tables, false, charts);
  if (study.contains("fig9")) add_9(study.at("fig9"), charts);
  if (study.contains("fig10a")) add_10a(study.at("fig10a"), charts);
  if (study.contains("fig10b")) add_10b(study.at("fig10b"), charts);
  if (study.contains("fig11")) add_11(study.at("fig11"), charts);
  return charts;
}

}  // namespace kvd::cmd
