// `kvdepot plan talk`: the SDC'25 talk's example and figures from the closed forms, with its own settings, and beside
// them the same set-ups simulated (sim/talk_loop.h). Pure; some tenths of a second for the simulations.
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
  model::Workload workload;      // its mean prompt, output and reuse
  std::uint32_t prompt_min = 1;  // prompts are uniform between these two where they are simulated
  std::uint32_t prompt_max = 1;
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
// A set-up simulated with so many clients in a closed loop; memory as it is, 50 requests a client but 400 at least.
[[nodiscard]] sim::TalkPoint simulate(const TalkSetup& setup, bool depot, std::uint32_t clients);
[[nodiscard]] std::vector<TalkFigure> talk_figures();
[[nodiscard]] std::string talk_table();
[[nodiscard]] std::string talk_json(const std::vector<TalkFigure>& figures);

}  // namespace kvd::cmd
