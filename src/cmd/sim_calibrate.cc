#include "cmd/sim_calibrate.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/sizes.h"
#include "cmd/complaint.h"
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

double percentile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
}

std::string device_entry(const model::PassFit& fit, const model::Transformer& model, const std::string& name,
                         double memory_bytes, double error, const std::string& source) {
  constexpr double kElementBytes = 2;
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

namespace {

int deliver_device(const StudyFlags& flags, const model::PassFit& fit, std::size_t fitted,
                   const std::vector<double>& errors) {
  const model::Catalogue& catalogue = model::Catalogue::built_in();
  const model::Transformer* const model = catalogue.model(flags.model);
  if (model == nullptr) {
    return complain(fmt::format("--model {}: whose passes these are is expected, one of {}", flags.model,
                                fmt::join(catalogue.model_names(), ", ")));
  }
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
