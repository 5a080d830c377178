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
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/input.h"
#include "model/step_fit.h"
#include "sim/engine_run.h"

namespace kvd::sim {

// Inputs of the experiments (workloads.json).
struct StudyInputs {
  std::map<std::string, std::vector<Lengths>> requests;               // "w1", ..., "fig11a"
  std::map<std::string, std::vector<std::uint32_t>> prompts_joining;  // figure 3b, by order
};

// From the text of calibration.json and of workloads.json, which `file` is in complaints. Faults: no JSON (with its
// line), a key that is missing or holds something else (with its place in the file and what was expected there), a
// series that cannot be fitted to: too short, not above 0.
FromInput<model::StudyTables> read_tables(std::string_view calibration, std::string_view file);
FromInput<StudyInputs> read_inputs(std::string_view workloads, std::string_view file);

// Names of the figures that study_figure() knows, in the paper's order: 3a 3b 3c 4a 4b 4c 4c_fixed 5 8a ... 11.
const std::vector<std::string>& study_figures();

// A prediction; or, where inputs of one's own have requests that a run of it cannot hold, one line with the arithmetic.
using StudyResult = std::expected<nlohmann::ordered_json, std::string>;

// One figure's predictions, in the layout of study.json (docs/sim.md). Requires a name of study_figures().
StudyResult study_figure(const std::string& figure, const model::StudyFit& fit, const StudyInputs& inputs);

// How often requests were preempted in the runs of figures 9, 10a and 10b, laid out as these: the paper explains with
// it, and does not draw it.
StudyResult study_evictions(const model::StudyFit& fit, const StudyInputs& inputs);

// Makespans in the same runs, with whole requests evicted as vLLM does, and with as many blocks as are needed: "whole"
// and "partial".
StudyResult study_makespans(const model::StudyFit& fit, const StudyInputs& inputs);

// What figure 6 draws, as far as passes go: five passes of the first four requests of w1, w2 and w3, with the tokens
// whose KV each writes and the cached ones that it reads. The paper does not give the lengths of its four. A context of
// 8K takes in all four prompts at once.
StudyResult study_accesses(const model::StudyFit& fit, const StudyInputs& inputs);

// The passes that hold prompts in figure 4b's runs at a context of 4K: [seconds, tokens, tokens of prompts] of each.
StudyResult study_prompt_passes(const model::StudyFit& fit, const StudyInputs& inputs);

// A run of figures 9, 10a and 10b, but for how it evicts; which there are, and each of them.
struct EvictionSetting {
  model::StudyModelIndex model = model::kYarn;
  std::uint32_t blocks = 0;
  std::uint32_t context = 0;
  std::vector<Lengths> requests;
};
struct LengthOf9 {
  const char* name;
  std::uint32_t tokens;  // of each prompt, and of each answer; 0 = as the inputs' list has them
};
inline constexpr std::array<LengthOf9, 5> kLengthsOf9 = {
    {{"1K", 512}, {"2K", 1024}, {"4K", 2048}, {"8K", 4096}, {"128-8K", 0}}};
// The inputs' lists of figure 9's last lengths, and of figure 10.
inline constexpr const char* kListOf9 = "zipf_128_8192_ratio_0.5";
inline constexpr const char* kListOf10 = "zipf_512_2048_ratio_0.5";
inline constexpr std::array<std::uint32_t, 3> kCountsOf9 = {32, 64, 128};  // of requests
inline constexpr std::uint32_t kRequestsOf6 = 4;                           // of w1, w2 and w3
inline constexpr std::array<std::uint32_t, 6> kGibOf10a = {6, 10, 14, 18, 22, 24};
inline constexpr std::array<model::StudyModelIndex, 3> kModelsOf10b = {model::kYarn, model::kLlama, model::kOpt};
EvictionSetting setting_of_9(const StudyInputs& inputs, const LengthOf9& length, std::uint32_t count);
EvictionSetting setting_of_10a(const StudyInputs& inputs, std::uint32_t gib);
EvictionSetting setting_of_10b(const StudyInputs& inputs, model::StudyModelIndex m);

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
