// `kvdepot plan talk`: the SDC'25 talk's example and figures from the closed forms, with its own settings, and beside
// them the same set-ups simulated (plan_talk_runs.h). Pure.
#pragma once

#include <string>
#include <vector>

#include "cmd/svg_chart.h"
#include "model/closed_form.h"
#include "sim/talk_loop.h"

namespace kvd::cmd {

// One set-up of the talk. What the talk leaves open is said in `assumed`.
struct TalkSetup {
  std::string name;
  std::string title;
  std::string assumed;
  model::Replica replica;  // attention counted in full, as the talk does
  std::uint32_t gpus = 1;
  model::Workload workload;  // its mean prompt, output and reuse
  sim::TalkTraffic traffic;  // what is simulated, of that mean; clients and requests are set for each run
  std::uint32_t layers = 1;
  model::StorePath store;
  double memory_for_kv_bytes = 0;
};
inline constexpr model::Sla kTalkSla{0.4, 0.040};

struct TalkFigure {
  std::string id;  // "example", "sla-batch", "efficiency-<set-up>"
  Chart chart;
};

// llama-70b-tp1 (the SLA figure), llama-70b-tp2 (prompts 100-3500), llama-70b-chat (2200/170, 15 turns), qwen3-14b.
[[nodiscard]] std::vector<TalkSetup> talk_setups();
struct TalkRuns;
// Closed forms as lines, `runs` as points.
[[nodiscard]] std::vector<TalkFigure> talk_figures(const TalkRuns& runs);
[[nodiscard]] std::string talk_table(const TalkRuns& runs);
// The figures' points by figure and line, and under "runs" and "sla" what was simulated with its intervals.
[[nodiscard]] std::string talk_json(const std::vector<TalkFigure>& figures, const TalkRuns& runs);

}  // namespace kvd::cmd
