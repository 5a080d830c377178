// The experiments of the IPDPS'25 study, predicted: each figure of the paper recomputed from the calibration tables and
// the experiments' inputs, with the study's settings and definitions. Pure; reading files is the caller's.
//
// Settings: GPU blocks of 16 tokens are those of the measured runs (Yarn 3,083 / 3,077 / 3,027 / 2,928 at contexts of
// 2K, 4K, 8K and 16K; OPT 1,014 and Llama 10,697 at 2K; 2,928 in figure 9; 128 blocks a GiB in 10a; 10 GiB in 10b;
// 1,064 in 11a), the host has 64 GiB, a pass at most 512 sequences, the watermark is 1 %.
#pragma once

#include <array>
#include <expected>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/step_fit.h"
#include "sim/engine_run.h"

namespace kvd::sim {

// Inputs of the experiments (workloads.json).
struct StudyInputs {
  std::map<std::string, std::vector<Lengths>> requests;               // "w1", ..., "fig11a"
  std::map<std::string, std::vector<std::uint32_t>> prompts_joining;  // figure 3b, by order
};

// From the parsed files; the error names what is missing, or a series that cannot be fitted to: too short, not above 0.
std::expected<model::StudyTables, std::string> read_tables(const nlohmann::json& calibration);
std::expected<StudyInputs, std::string> read_inputs(const nlohmann::json& workloads);

// Names of the figures that study_figure() knows, in the paper's order: 3a 3b 3c 4a 4b 4c 4c_fixed 5 8a ... 11.
const std::vector<std::string>& study_figures();

// One figure's predictions, in the layout of study.json (docs/sim.md). Requires a name of study_figures().
nlohmann::ordered_json study_figure(const std::string& figure, const model::StudyFit& fit, const StudyInputs& inputs);

// How often requests were preempted in the runs of figures 9, 10a and 10b, laid out as these: the paper explains with
// it, and does not draw it.
nlohmann::ordered_json study_evictions(const model::StudyFit& fit, const StudyInputs& inputs);

// A table point that was left out of the fit: what was measured, and what the fit of all others predicts.
struct LeftOut {
  std::string table;  // "3a Yarn-Llama-2-7B", "8b recompute", ...
  std::string point;  // "4096 x 2"
  bool end = false;   // first or last point of its series
  double measured = 0;
  double predicted = 0;
  [[nodiscard]] double error() const noexcept { return predicted / measured - 1; }
};

// Fits once per point of tables 3a, 3c, 4a, 8a and 8b, without that point.
std::vector<LeftOut> leave_one_out(const model::StudyTables& tables);

// Costs of an engine of the study: model, pinned or pageable host memory.
EngineCosts study_costs(const model::StudyFit& fit, model::StudyModelIndex m, bool pinned, std::uint32_t block_tokens);

// Blocks of 16 tokens of the model in so much memory, and in the host's 64 GiB.
std::uint32_t study_blocks(model::StudyModelIndex m, double gib) noexcept;
std::uint32_t study_host_blocks(model::StudyModelIndex m) noexcept;

}  // namespace kvd::sim
