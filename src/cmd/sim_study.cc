#include "cmd/sim_study.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <ranges>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "cmd/complaint.h"
#include "cmd/percentile.h"
#include "cmd/sim_calibrate.h"
#include "cmd/sim_charts.h"
#include "cmd/text_file.h"
#include "sim/study_text.h"

namespace kvd::cmd {

namespace {

// What --figure takes besides the figures: what the paper says in words of runs that it draws otherwise.
struct Aside {
  std::string_view name;
  sim::StudyResult (*run)(const model::StudyFit& fit, const sim::StudyInputs& inputs);
};
constexpr std::array<Aside, 4> kAsides = {{{"evictions", sim::study_evictions},
                                           {"makespans", sim::study_makespans},
                                           {"accesses", sim::study_accesses},
                                           {"prompt_passes", sim::study_prompt_passes}}};

// One of the study's files: of the folder that was typed, or what is compiled in.
struct StudyText {
  std::string name;
  std::string text;
};

std::expected<StudyText, std::string> study_text(const std::string& folder, const char* name,
                                                 std::string_view built_in) {
  if (folder.empty()) return StudyText{fmt::format("{} (built in)", name), std::string(built_in)};
  const std::string path = folder + "/" + name;
  auto text = read_text(path);
  if (!text) return std::unexpected(text.error() + "; --data names a folder with the study's tables");
  return StudyText{path, std::move(*text)};
}

}  // namespace

std::expected<StudyFiles, std::string> load_study(const std::string& data) {
  const auto calibration = study_text(data, "calibration.json", sim::built_in_calibration());
  if (!calibration) return std::unexpected(calibration.error());
  const auto workloads = study_text(data, "workloads.json", sim::built_in_workloads());
  if (!workloads) return std::unexpected(workloads.error());
  auto tables = sim::read_tables(calibration->text, calibration->name);
  if (!tables) return std::unexpected(tables.error().str());
  auto inputs = sim::read_inputs(workloads->text, workloads->name);
  if (!inputs) return std::unexpected(inputs.error().str());
  return StudyFiles{std::move(*tables), std::move(*inputs), workloads->name};
}

namespace {

nlohmann::ordered_json constants(const model::StudyFit& fit) {
  nlohmann::ordered_json out;
  for (std::size_t m = 0; m < model::kStudyModels; ++m) {
    const model::StepTime& step = fit.step[m];
    out[std::string(model::kStudyModelTable[m].name)] = {{"floor_s", step.floor_s},
                                                         {"token_s", step.token_s},
                                                         {"pair_s", step.pair_s},
                                                         {"prefill_sequence_s", step.seq_s},
                                                         {"warmup_share", step.warmup_share},
                                                         {"warmup_max_s", step.warmup_max_s},
                                                         {"chunked_floor_s", step.chunked_floor_s},
                                                         {"chunked_pair_s", step.chunked_pair_s},
                                                         {"chunked_context_pair_s", step.chunked_context_pair_s},
                                                         {"context_token_s", step.context_token_s},
                                                         {"decode_batch", step.decode_batch.batch},
                                                         {"decode_batch_s", step.decode_batch.seconds}};
  }
  out["swap_pinned"] = {{"copy_s", fit.pinned.copy_s}, {"bytes_per_s", 1 / fit.pinned.byte_s}};
  out["swap_pageable"] = {{"copy_s", fit.pageable.copy_s}, {"bytes_per_s", 1 / fit.pageable.byte_s}};
  return out;
}

std::string constants_text(const model::StudyFit& fit) {
  std::string text = fmt::format("{:<18}{:>9}{:>10}{:>9}{:>9}{:>11}{:>11}{:>11}{:>12}\n", "model", "floor ms",
                                 "token us", "pair ns", "seq us", "chunk ms", "pair ns", "ctx ns", "context us");
  for (std::size_t m = 0; m < model::kStudyModels; ++m) {
    const model::StepTime& s = fit.step[m];
    text += fmt::format("{:<18}{:>9.2f}{:>10.2f}{:>9.3f}{:>9.1f}{:>11.2f}{:>11.3f}{:>11.3f}{:>12.4f}\n",
                        model::kStudyModelTable[m].name, 1e3 * s.floor_s, 1e6 * s.token_s, 1e9 * s.pair_s,
                        1e6 * s.seq_s, 1e3 * s.chunked_floor_s, 1e9 * s.chunked_pair_s, 1e9 * s.chunked_context_pair_s,
                        1e6 * s.context_token_s);
  }
  const model::StepTime& yarn = fit.step[model::kYarn];
  return text + fmt::format(
                    "warm-up: {:.1f} % slower for up to {:.1f} ms\nswap, pinned: {:.3f} us a copy, {:.2f} GB/s; "
                    "pageable: {:.3f} us a copy, {:.2f} GB/s\n",
                    100 * yarn.warmup_share, 1e3 * yarn.warmup_max_s, 1e6 * fit.pinned.copy_s, 1e-9 / fit.pinned.byte_s,
                    1e6 * fit.pageable.copy_s, 1e-9 / fit.pageable.byte_s);
}

// Errors of the points left out, by table and over all, ends of series apart.
std::string errors_text(const std::vector<sim::LeftOut>& points) {
  std::map<std::string, std::vector<double>> inner;
  std::map<std::string, std::vector<double>> ends;
  for (const sim::LeftOut& p : points) {
    for (const std::string& table : {p.table, std::string("~ all")}) {
      (p.end ? ends : inner)[table].push_back(std::fabs(p.error()));
      inner[table].reserve(1);
    }
  }
  std::string text = fmt::format("\nleft out one at a time {:>10}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "points",
                                 "median %", "95th %", "end pts", "median %", "95th %");
  const auto share = [](const std::vector<double>& errors, double s) {
    return errors.empty() ? std::string("-") : fmt::format("{:.2f}", 100 * percentile(errors, s));
  };
  for (const auto& [table, errors] : inner) {
    const std::vector<double>& outer = ends[table];
    text += fmt::format("{:<22} {:>10}{:>10}{:>10}{:>10}{:>10}{:>10}\n", table, errors.size(), share(errors, 0.5),
                        share(errors, 0.95), outer.size(), share(outer, 0.5), share(outer, 0.95));
  }
  return text;
}

}  // namespace

int run_study(const StudyFlags& flags) {
  const auto& known = sim::study_figures();
  for (const std::string& figure : flags.figures) {
    const auto aside = std::ranges::find(kAsides, figure, &Aside::name);
    if (aside == kAsides.end() && std::ranges::find(known, figure) == known.end()) {
      return complain(fmt::format("--figure {}: the study has {}; and {}", figure, fmt::join(known, ", "),
                                  fmt::join(kAsides | std::views::transform(&Aside::name), ", ")));
    }
  }
  const auto loaded = load_study(flags.data);
  if (!loaded) return complain(loaded.error());
  const model::StudyFit fit = model::fit_study(loaded->tables);
  nlohmann::ordered_json out;
  for (const std::string& figure : flags.figures.empty() ? known : flags.figures) {
    const auto aside = std::ranges::find(kAsides, figure, &Aside::name);
    const bool drawn = aside == kAsides.end();
    auto result = drawn ? sim::study_figure(figure, fit, loaded->inputs) : aside->run(fit, loaded->inputs);
    if (!result) {
      return complain(InputFault{loaded->inputs_name, 0, fmt::format("--figure {}: {}", figure, result.error())}.str());
    }
    out[(drawn ? "fig" : "") + figure] = std::move(*result);
  }
  TextFiles files;
  std::string error;
  if (!flags.html.empty()) {
    const std::string text =
        constants_text(fit) +
        "\nLines are predicted, dots were measured and are fitted to.\nchecks: tokens and blocks of every run are "
        "conserved, all requests end, Little's law holds within 1 %; a run that breaks one ends the program";
    error = files.add(flags.html, page("The IPDPS'25 study, predicted", text, study_charts(out, loaded->tables)));
  }
  if (error.empty()) error = files.add(flags.out, out.dump(1) + "\n");
  if (error.empty()) error = files.commit();
  if (!error.empty()) return complain(error);
  if (flags.out.empty() && flags.html.empty()) fmt::print("{}\n", out.dump(1));
  return 0;
}

int run_calibrate(const StudyFlags& flags) {
  if (const std::string fault = misplaced_option(flags); !fault.empty()) return complain(fault);
  if (!flags.passes.empty()) return run_calibrate_on_passes(flags);
  const auto loaded = load_study(flags.data);
  if (!loaded) return complain(loaded.error());
  const model::StudyFit fit = model::fit_study(loaded->tables);
  const std::vector<sim::LeftOut> left_out = sim::leave_one_out(loaded->tables);
  if (!flags.json) return deliver(constants_text(fit) + errors_text(left_out), flags.out);
  nlohmann::ordered_json out;
  out["constants"] = constants(fit);
  for (const sim::LeftOut& p : left_out) {
    out["left_out"].push_back({{"table", p.table},
                               {"point", p.point},
                               {"end_of_series", p.end},
                               {"measured_s", p.measured},
                               {"predicted_s", p.predicted}});
  }
  return deliver(out.dump(1) + "\n", flags.out);
}

}  // namespace kvd::cmd
