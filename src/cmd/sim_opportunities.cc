#include "cmd/sim_opportunities.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "cmd/complaint.h"
#include "cmd/progress_bar.h"
#include "cmd/run_jobs.h"
#include "cmd/text_file.h"
#include "sim/adaptive_eviction.h"

namespace kvd::cmd {
namespace {

std::vector<sim::OpportunityRow> simulate(const StudyFiles& files, std::uint32_t seeds) {
  const model::StudyFit fit = model::fit_study(files.tables);
  std::vector<std::vector<sim::OpportunityRow>> rows(sim::opportunity_settings());
  ProgressBar bar("opportunities");
  // The last settings have the most seeds and come first: threads end together.
  const auto job = [&](std::size_t i) {
    const std::size_t setting = rows.size() - 1 - i;
    rows[setting] = sim::opportunities(fit, files.inputs, setting, seeds);
  };
  run_jobs(rows.size(), threads_of_machine(), job, [&](std::size_t done, std::size_t all) { bar.show(done, all); });
  std::vector<sim::OpportunityRow> all;
  for (const auto& setting : rows) all.insert(all.end(), setting.begin(), setting.end());
  return all;
}

// In how many settings an arm keeps to the limit with every seed, and where it is worst.
std::string judged(const std::vector<sim::OpportunityRow>& rows, const std::string& arm, const char* what,
                   double sim::OpportunityRow::* worst) {
  std::size_t settings = 0;
  std::size_t within = 0;
  const sim::OpportunityRow* last = nullptr;
  for (const sim::OpportunityRow& r : rows) {
    if (r.arm != arm) continue;
    ++settings;
    if (r.*worst <= sim::kWorseAtMost) ++within;
    if (last == nullptr || r.*worst > last->*worst) last = &r;
  }
  if (last == nullptr) return {};
  return fmt::format(
      "- {}, {}: within 2 % of the better of both with every seed in {} of {} settings; at worst {:+.2f} % ({}).\n",
      arm, what, within, settings, 100 * (last->*worst - 1), last->setting);
}

constexpr std::array<std::string_view, 7> kDrawn = {
    "recompute", "swap", "adaptive", "partial swap", "gathered swap", "asynchronous swap", "all together"};

Chart chart_of(const std::vector<sim::OpportunityRow>& rows, bool fixed, std::string title,
               sim::Interval sim::OpportunityRow::* value) {
  Chart chart{std::move(title), "", "% above the best arm"};
  std::map<std::string, double> best;  // by setting
  for (const sim::OpportunityRow& r : rows) {
    if (std::ranges::find(kDrawn, r.arm) == kDrawn.end()) continue;
    const auto [at, added] = best.try_emplace(r.setting, (r.*value).mean);
    at->second = std::min(at->second, (r.*value).mean);
    if (added && r.fixed == fixed) chart.categories.push_back(r.label);
  }
  for (const std::string_view arm : kDrawn) {
    ChartSeries series{std::string(arm)};
    double x = 0;
    for (const sim::OpportunityRow& r : rows) {
      if (r.fixed != fixed || r.arm != arm) continue;
      series.points.emplace_back(x++, 100 * ((r.*value).mean / best.at(r.setting) - 1));
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

// A mean with its interval, which one seed has none of.
std::string shown(const sim::OpportunityRow& row, const sim::Interval& value, double scale, const char* sign,
                  int digits) {
  const std::string mean = fmt::format("{}{:.{}f}", value.mean < 0 ? "" : sign, scale * value.mean, digits);
  return row.seeds == 1 ? mean : fmt::format("{} ± {:.{}f}", mean, scale * value.half, digits);
}

}  // namespace

std::string opportunities_text(const std::vector<sim::OpportunityRow>& rows) {
  std::string text;
  for (const char* const arm : {"adaptive", "adaptive, pageable"}) {
    text += judged(rows, arm, "makespan", &sim::OpportunityRow::worst_makespan);
    text += judged(rows, arm, "p99 ITL", &sim::OpportunityRow::worst_itl_p99);
  }
  text +=
      "\nGains and \"worst\" are over the better of recompute and swap with the same seed, for each measure by itself "
      "(of recompute and swap, pageable, for pageable arms); 95 % intervals over seeds. Preempted: recomputed + "
      "swapped.\n\n"
      "| setting | seeds (1 seed: deterministic) | arm | makespan s | gain % | worst | ITL p99 ms | gain % | worst | "
      "preempted |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n";
  double little_error = 0;
  for (const sim::OpportunityRow& r : rows) {
    little_error = std::max(little_error, r.little_error);
    text += fmt::format("| {} | {} | {} | {} | {} | {:.4f} | {} | {} | {:.3f} | {:.0f} + {:.0f} |\n", r.setting,
                        r.seeds, r.arm, shown(r, r.makespan_s, 1, "", 2), shown(r, r.makespan_gain, 100, "+", 2),
                        r.worst_makespan, shown(r, r.itl_p99_s, 1e3, "", 1), shown(r, r.itl_p99_gain, 100, "+", 1),
                        r.worst_itl_p99, r.recomputes, r.swaps);
  }
  return text + fmt::format(
                    "\nchecks: tokens and blocks of every run are conserved, all requests end, Little's law holds "
                    "within {:.2g}; a run that breaks one ends the program\n",
                    little_error);
}

std::vector<Chart> opportunity_charts(const std::vector<sim::OpportunityRow>& rows) {
  std::vector<Chart> charts;
  for (const bool fixed : {true, false}) {
    const char* const which = fixed ? "figure 9, fixed lengths" : "figure 9 (128-8K), 10a and 10b";
    charts.push_back(chart_of(rows, fixed, fmt::format("Makespan: {}", which), &sim::OpportunityRow::makespan_s));
    charts.push_back(chart_of(rows, fixed, fmt::format("99th percentile of inter-token latency: {}", which),
                              &sim::OpportunityRow::itl_p99_s));
  }
  return charts;
}

int run_opportunities(const StudyFlags& flags) {
  if (flags.seeds < 2) return complain("--seeds: at least 2 are needed for an interval");
  const auto files = load_study(flags.data);
  if (!files) return complain(files.error());
  if (std::string fault = sim::opportunities_fault(files->inputs); !fault.empty()) {
    return complain(InputFault{files->inputs_name, 0, std::move(fault)}.str());
  }
  const std::vector<sim::OpportunityRow> rows = simulate(*files, flags.seeds);
  const std::string text = opportunities_text(rows);
  const std::vector<Chart> charts = opportunity_charts(rows);
  TextFiles outputs;
  std::string error = outputs.add(flags.html, page("The IPDPS'25 study's open opportunities", text, charts));
  if (error.empty()) error = outputs.add(flags.svg, draw_all(charts));
  if (error.empty()) error = outputs.add(flags.out, text);
  if (error.empty()) error = outputs.commit();
  if (!error.empty()) return complain(error);
  if (flags.out.empty() && flags.html.empty() && flags.svg.empty()) fmt::print("{}", text);
  return 0;
}

}  // namespace kvd::cmd
