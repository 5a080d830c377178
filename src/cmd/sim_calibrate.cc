#include "cmd/sim_calibrate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/sizes.h"
#include "cmd/complaint.h"
#include "cmd/percentile.h"
#include "cmd/text_file.h"
#include "model/catalogue.h"

namespace kvd::cmd {

int deliver(const std::string& text, const std::string& out) {
  if (out.empty()) {
    fmt::print("{}", text);
    return 0;
  }
  const std::string error = write_text(out, text);
  return error.empty() ? 0 : complain(error);
}

namespace {
constexpr double kElementBytes = 2;  // weights and KV of the passes
}

std::string device_entry(const model::PassFit& fit, const model::Transformer& model, const std::string& name,
                         double memory_bytes, double error, const std::string& source) {
  if (fit.token_s <= 0 || fit.context_s <= 0 || fit.floor_s <= 0) return {};
  const double weights = model.params() * kElementBytes;
  const double one_s = fit.floor_s + fit.decode_s(1);  // a pass with one decode
  const double bytes_per_s = std::max(model.kv_token_bytes(kElementBytes) / fit.context_s, weights / one_s);
  return fmt::format(
      "[[device]]\nname = \"{}\"\nmemory_bytes = {:.4g}\nmemory_bytes_per_s = {:.4g}\n"
      "flops_per_s = {{bf16 = {:.4g}}}\ncompute_efficiency = 1\nmemory_efficiency = 1\nerror = {:.3g}\n"
      "layer_s = 0\nstep_s = {:.4g}\nmeasured = true\nsource = \"{}\"\n",
      name, memory_bytes, bytes_per_s, model.token_flops() / fit.token_s, std::clamp(error, 0.01, 0.99),
      std::max(0.0, one_s - weights / bytes_per_s), source);
}

std::string engine_section(const model::LinearFit& fit, const model::Transformer* model, std::uint64_t context_tokens,
                           const std::vector<std::string>& about) {
  std::string out;
  for (const std::string& line : about) out += "# " + line + "\n";
  out += fmt::format(
      "[engine]\nbase_ms = {:.6g}\ntoken_us = {:.6g}\npair_ns = {:.6g}\nseq_us = {:.6g}\ncontext_ns = {:.6g}\n",
      fit.base_s * 1e3, fit.token_s * 1e6, fit.pair_s * 1e9, fit.seq_s * 1e6, fit.context_s * 1e9);
  out += fmt::format("context_tokens = {}\n", context_tokens);
  if (model != nullptr) {
    out += fmt::format("kv_token_bytes = {:.0f}\nlayers = {}\n", model->kv_token_bytes(kElementBytes), model->layers());
  }
  return out;
}

std::string misplaced_option(const StudyFlags& flags) {
  struct Use {
    const char* option;
    bool given;
    bool applies;
    const char* belongs;
  };
  const bool passes = !flags.passes.empty();
  const bool device = passes && !flags.device.empty();
  const bool engine = passes && flags.engine;
  if (device && engine) return "--engine and --device: choose one";
  const Use uses[] = {
      {"--device", !flags.device.empty(), passes, "a CSV of the device's passes is expected"},
      {"--engine", flags.engine, passes, "a CSV of the engine's passes is expected"},
      {"--test", !flags.test.empty(), passes, "a CSV of passes to fit to is expected, too"},
      {"--data", !flags.data.empty(), !passes, "the study's tables are not used beside a CSV of passes"},
      {"--json", flags.json, !device && !engine, "--device and --engine write TOML: leave one out"},
      {"--model", !flags.model.empty(), device || engine, "belongs to --device and --engine"},
      {"--memory", !flags.memory.empty(), device, "belongs to --device"},
      {"--context", flags.context > 0, engine, "belongs to --engine"}};
  for (const Use& use : uses) {
    if (use.given && !use.applies) return fmt::format("{}: {}", use.option, use.belongs);
  }
  return {};
}

namespace {

// The model that --model names, which may be left out where `needed` is not set: then nullptr.
std::expected<const model::Transformer*, std::string> named_model(const StudyFlags& flags, bool needed) {
  const model::Catalogue& catalogue = model::Catalogue::built_in();
  const model::Transformer* const model = catalogue.model(flags.model);
  if (model != nullptr || (!needed && flags.model.empty())) return model;
  return std::unexpected(fmt::format("--model {}: whose passes these are is expected, one of {}", flags.model,
                                     fmt::join(catalogue.model_names(), ", ")));
}

int deliver_device(const StudyFlags& flags, const model::PassFit& fit, std::size_t fitted,
                   const std::vector<double>& errors) {
  const auto found = named_model(flags, true);
  if (!found) return complain(found.error());
  const model::Transformer* const model = *found;
  const auto memory = parse_size(flags.memory);
  if (!memory || *memory == 0) return complain("--memory: the device's memory is expected, as in 8GiB");
  const std::string source =
      fmt::format("kvdepot sim calibrate: {} passes of {} in 16 bits; {} others within {:.1f} % (median)", fitted,
                  model->name, errors.size(), 100 * percentile(errors, 0.5));
  const std::string entry =
      device_entry(fit, *model, flags.device, static_cast<double>(*memory), percentile(errors, 0.95), source);
  if (entry.empty()) {
    return complain(flags.passes +
                    ": too little prefill or context in these passes for an entry: record prompts of several lengths, "
                    "and decodes behind long and short ones");
  }
  return deliver(entry, flags.out);
}

// Predicted against measured, of passes that the fit has not seen.
struct LeftOut {
  std::vector<double> errors{};  // relative
  double measured_s = 0;
  double predicted_s = 0;

  void add(double measured, double predicted) {
    errors.push_back(std::fabs(predicted / measured - 1));
    measured_s += measured;
    predicted_s += predicted;
  }
};

const char* kind_of(const model::MeasuredPass& pass) {
  if (pass.prefill_tokens <= 0) return "decode";
  return pass.decodes > 0 ? "mixed" : "prefill";
}

nlohmann::ordered_json fit_json(const model::PassFit& fit) {
  const bool bent = std::isfinite(fit.knee_decodes);
  return {{"floor_s", fit.floor_s},
          {"token_s", fit.token_s},
          {"pair_s", fit.pair_s},
          {"seq_s", fit.seq_s},
          {"context_s", fit.context_s},
          {"knee_decodes", bent ? nlohmann::ordered_json(fit.knee_decodes) : nlohmann::ordered_json(nullptr)},
          {"seq_beyond_s", fit.seq_beyond_s},
          {"first_share", fit.first_share},
          {"first_max_s", fit.first_max_s}};
}

// The fit, and its error on passes left out: of all, and by what they held.
nlohmann::ordered_json report(const model::PassFit& fit, std::size_t fitted, const LeftOut& all,
                              const std::map<std::string, LeftOut>& kinds) {
  nlohmann::ordered_json out = fit_json(fit);
  out["passes_fitted"] = fitted;
  out["passes_left_out"] = all.errors.size();
  const auto add = [&](const std::string& name, const LeftOut& part) {
    out[name + "_median_error"] = percentile(part.errors, 0.5);
    out[name + "_p95_error"] = percentile(part.errors, 0.95);
    out[name + "_measured_s"] = part.measured_s;
    out[name + "_predicted_s"] = part.predicted_s;
  };
  add("left_out", all);
  for (const auto& [kind, part] : kinds) {
    out["left_out_" + kind + "_passes"] = part.errors.size();
    add("left_out_" + kind, part);
  }
  return out;
}

int deliver_engine(const StudyFlags& flags, std::span<const model::MeasuredPass> passes, std::size_t step,
                   const model::PassFit& fit, std::span<const model::MeasuredPass> tested) {
  const auto model = named_model(flags, false);
  if (!model) return complain(model.error());
  const std::uint64_t context = flags.context > 0 || *model == nullptr ? flags.context : (*model)->context_tokens;
  if (context == 0) return complain("--engine: its context is expected, too: --context TOKENS, or --model NAME for it");
  bool prompts = false;
  bool decodes = false;
  for (std::size_t i = 0; i < passes.size(); i += step) {
    prompts = prompts || (passes[i].prefill_tokens > 0 && passes[i].pairs > 0);
    decodes = decodes || (passes[i].decodes > 0 && passes[i].context_tokens > 0);
  }
  if (!prompts || !decodes) {
    return complain(fmt::format("{}: no {} in these passes: an engine's section takes both, of several lengths",
                                flags.passes, prompts ? "decodes" : "prompts"));
  }
  const model::LinearFit linear = model::fit_linear(passes, fit, step);
  const std::vector<double> curved = model::predict_passes(fit, tested);
  std::vector<double> errors;
  std::vector<double> curved_errors;
  for (std::size_t i = step - 1; i < tested.size(); i += step) {
    errors.push_back(std::fabs(linear.seconds(tested[i]) / tested[i].seconds - 1));
    curved_errors.push_back(std::fabs(curved[i] / tested[i].seconds - 1));
  }
  std::vector<std::string> about{
      fmt::format("kvdepot sim calibrate --engine: {} passes, in a form in which all terms add up. Error on {} others:",
                  (passes.size() + step - 1) / step, errors.size()),
      fmt::format("median {:.1f} %, 95th percentile {:.1f} %; of the whole fit {:.1f} % and {:.1f} %.",
                  100 * percentile(errors, 0.5), 100 * percentile(errors, 0.95), 100 * percentile(curved_errors, 0.5),
                  100 * percentile(curved_errors, 0.95)),
      "Dropped: that prompts hide behind reading the weights, up to the floor of a pass" +
          std::string(std::isfinite(fit.knee_decodes) || fit.first_max_s > 0 ? "," : ".")};
  if (std::isfinite(fit.knee_decodes)) {
    about.push_back(fmt::format("that decodes cost more beyond {:.0f} of them{}", fit.knee_decodes,
                                fit.first_max_s > 0 ? "," : "."));
  }
  if (fit.first_max_s > 0) {
    about.push_back(fmt::format("that a process's first passes take {:.2f} s longer in all.", fit.first_max_s));
  }
  about.emplace_back("Add kv_tokens, what the engine's log says of its KV cache: else it is that of the preset.");
  if (*model == nullptr) about.emplace_back("Add kv_token_bytes and layers where there are tiers, or use --model.");
  return deliver(engine_section(linear, *model, context, about), flags.out);
}

}  // namespace

int run_calibrate_on_passes(const StudyFlags& flags) {
  const auto text = read_text(flags.passes);
  if (!text) return complain(text.error());
  const auto passes = model::read_passes(*text, flags.passes);
  if (!passes) return complain(passes.error().str());
  // Passes of one process are predicted in order, those that were fitted to included: its first ones may be slower.
  const std::size_t step = flags.test.empty() ? 2 : 1;
  std::vector<model::MeasuredPass> tested = *passes;
  if (!flags.test.empty()) {
    const auto test_text = read_text(flags.test);
    if (!test_text) return complain(test_text.error());
    auto others = model::read_passes(*test_text, flags.test);
    if (!others) return complain(others.error().str());
    tested = std::move(*others);
  }
  const model::PassFit fit = model::fit_passes(*passes, step);
  if (flags.engine) return deliver_engine(flags, *passes, step, fit, tested);
  const std::vector<double> predicted = model::predict_passes(fit, tested);
  LeftOut all;
  std::map<std::string, LeftOut> kinds;
  for (std::size_t i = step - 1; i < tested.size(); i += step) {
    all.add(tested[i].seconds, predicted[i]);
    kinds[kind_of(tested[i])].add(tested[i].seconds, predicted[i]);
  }
  const std::size_t fitted = (passes->size() + step - 1) / step;
  if (!flags.device.empty()) return deliver_device(flags, fit, fitted, all.errors);
  const nlohmann::ordered_json out = report(fit, fitted, all, kinds);
  if (flags.json) return deliver(out.dump(1) + "\n", flags.out);
  std::string lines;
  for (const auto& [name, value] : out.items()) {
    if (!value.is_null()) lines += fmt::format("{:<32}{:.6g}\n", name, value.get<double>());
  }
  return deliver(lines, flags.out);
}

}  // namespace kvd::cmd
