#include "model/pass_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/csv.h"
#include "model/least_squares.h"

namespace kvd::model {

namespace {

constexpr std::array<std::string_view, 5> kColumns = {"seconds", "prefill_tokens", "pairs", "decodes",
                                                      "context_tokens"};

// Which of the terms beyond the five that every fit has.
struct Terms {
  bool knee = false;
  bool first = false;
  [[nodiscard]] std::size_t parameters() const noexcept { return 5 + (knee ? 2U : 0U) + (first ? 2U : 0U); }
};

PassFit from(std::span<const double> p, Terms terms) {
  PassFit fit{.floor_s = p[0], .token_s = p[1], .pair_s = p[2], .seq_s = p[3], .context_s = p[4]};
  if (terms.knee) {
    fit.seq_beyond_s = p[5];
    fit.knee_decodes = p[6];
  }
  if (terms.first) {
    fit.first_share = p[p.size() - 2];
    fit.first_max_s = p[p.size() - 1];
  }
  return fit;
}

// Where the search for the knee of the decodes begins, as quantiles of the passes' decodes: the error over the knee's
// place may have more than one valley.
constexpr std::array<double, 3> kKneeStarts = {0.25, 0.5, 0.75};
// And those for what first passes pay: the share, and the total as a share of the longest pass.
constexpr std::array<double, 2> kFirstStarts = {0.1, 0.5};
// Error per pass, relative, below which further terms explain rounding.
constexpr double kErrorMin = 1e-5;
// First passes are among the first quarter; a first-pass term that reaches further is another slope in disguise.
constexpr std::size_t kFirstPart = 4;

struct Scales {
  double shortest_s = 0;
  double longest_s = 0;
  double tokens = 1;
  double context = 1;
  std::vector<double> decodes{};  // of passes that have any, ascending
};

// Of the passes that are fitted to.
Scales scales_of(std::span<const MeasuredPass> passes, std::size_t step) {
  Scales s{.shortest_s = passes[0].seconds};
  for (std::size_t i = 0; i < passes.size(); i += step) {
    const MeasuredPass& p = passes[i];
    s.shortest_s = std::fmin(s.shortest_s, p.seconds);
    s.longest_s = std::fmax(s.longest_s, p.seconds);
    s.tokens = std::fmax(s.tokens, p.prefill_tokens);
    s.context = std::fmax(s.context, p.context_tokens);
    if (p.decodes > 0) s.decodes.push_back(p.decodes);
  }
  std::ranges::sort(s.decodes);
  return s;
}

// Passes whose time is their tokens', with small shares of the rest: floor, token, pair, seq, context.
std::vector<double> first_guess(const Scales& s) {
  return {s.shortest_s, 0.5 * s.longest_s / s.tokens, 0.5 * s.longest_s / (s.tokens * s.tokens), 0.01 * s.shortest_s,
          0.1 * s.shortest_s / s.context};
}

// Tries the terms one after the other, and keeps one where the passes speak for it: by the Bayesian information
// criterion, count * log(error without / error with) > added parameters * log(count).
class PassFitter {
 public:
  PassFitter(std::span<const MeasuredPass> passes, std::size_t step)
      : passes_(passes), step_(step), count_((passes.size() + step - 1) / step), scales_(scales_of(passes, step)) {}

  PassFit run() {
    const Scales& s = scales_;
    Found best = fit(first_guess(s), {});
    for (const double share : kKneeStarts) {
      if (s.decodes.empty()) break;
      std::vector<double> start(best.parameters.begin(), best.parameters.begin() + 5);
      const auto at = static_cast<std::size_t>(share * static_cast<double>(s.decodes.size() - 1));
      start.insert(start.end(), {start[3], s.decodes[at]});
      keep_better(best, fit(std::move(start), {.knee = true}));
    }
    const Found warm = best;
    for (const double share : kFirstStarts) {
      std::vector<double> start = warm.parameters;
      start.insert(start.end(), {share, share * s.longest_s});
      Found first = fit(std::move(start), {.knee = warm.terms.knee, .first = true});
      if (ends_early(first)) keep_better(best, std::move(first));
    }
    return from(best.parameters, best.terms);
  }

 private:
  struct Found {
    std::vector<double> parameters;
    Terms terms;
    double squares = 0;  // of the logarithms of predicted over measured
  };

  Found fit(std::vector<double> start, Terms terms) const {
    const auto residuals = [&](std::span<const double> p, std::span<double> out) {
      const std::vector<double> predicted = predict_passes(from(p, terms), passes_);
      for (std::size_t i = 0; i < passes_.size(); i += step_) {
        out[i / step_] = std::log(predicted[i] / passes_[i].seconds);
      }
    };
    Found found{fit_positive(residuals, count_, std::move(start)), terms};
    std::vector<double> errors(count_);
    residuals(found.parameters, errors);
    for (const double e : errors) found.squares += e * e;
    return found;
  }

  void keep_better(Found& best, Found other) const {
    const auto count = static_cast<double>(count_);
    if (best.squares < count * kErrorMin * kErrorMin) return;
    const auto added = static_cast<double>(other.terms.parameters() - best.terms.parameters());
    const bool speaks = other.squares <= 0 || count * std::log(best.squares / other.squares) > added * std::log(count);
    if (speaks) best = std::move(other);
  }

  // The first passes have paid all of the term within the first part of the passes.
  [[nodiscard]] bool ends_early(const Found& found) const {
    const PassFit trial = from(found.parameters, found.terms);
    double left = trial.first_max_s;
    for (std::size_t i = 0; i < passes_.size() / kFirstPart; ++i) (void)trial.seconds(passes_[i], left);
    return left <= 1e-9 * trial.first_max_s;
  }

  std::span<const MeasuredPass> passes_;
  std::size_t step_;
  std::size_t count_;
  Scales scales_;
};

}  // namespace

double PassFit::decode_s(double decodes) const noexcept {
  return std::fmin(decodes, knee_decodes) * seq_s + std::fmax(0.0, decodes - knee_decodes) * seq_beyond_s;
}

double PassFit::seconds(const MeasuredPass& pass) const noexcept {
  double none = 0;
  return seconds(pass, none);
}

double PassFit::seconds(const MeasuredPass& pass, double& first_left) const noexcept {
  double compute = pass.prefill_tokens * token_s + pass.pairs * pair_s;
  const double first = std::fmin(compute * first_share, first_left);
  first_left -= first;
  compute += first;
  return std::sqrt(floor_s * floor_s + compute * compute) + decode_s(pass.decodes) + pass.context_tokens * context_s;
}

double LinearFit::seconds(const MeasuredPass& pass) const noexcept {
  return base_s + pass.prefill_tokens * token_s + pass.pairs * pair_s + pass.decodes * seq_s +
         pass.context_tokens * context_s;
}

std::vector<double> predict_passes(const PassFit& fit, std::span<const MeasuredPass> passes) {
  std::vector<double> seconds;
  seconds.reserve(passes.size());
  double first_left = fit.first_max_s;
  for (const MeasuredPass& pass : passes) seconds.push_back(fit.seconds(pass, first_left));
  return seconds;
}

FromInput<std::vector<MeasuredPass>> read_passes(std::string_view text, std::string_view file) {
  CsvLines lines(text);
  const auto fault = [&](std::string what) {
    return std::unexpected(InputFault{std::string(file), lines.line(), std::move(what)});
  };
  std::vector<std::string_view> cells;
  if (!lines.next(cells)) return fault("the file is empty; a header line and a line per pass are expected");
  std::array<std::size_t, kColumns.size()> where{};
  for (std::size_t c = 0; c < kColumns.size(); ++c) {
    while (where[c] < cells.size() && cells[where[c]] != kColumns[c]) ++where[c];
    if (where[c] == cells.size()) return fault("column " + std::string(kColumns[c]) + " is missing in the header");
  }
  std::vector<MeasuredPass> passes;
  while (lines.next(cells)) {
    std::array<double, kColumns.size()> values{};
    for (std::size_t c = 0; c < kColumns.size(); ++c) {
      if (where[c] >= cells.size()) return fault("fewer values than columns in the header");
      const auto value = csv_number(cells[where[c]]);
      if (!value || !std::isfinite(*value) || *value < 0 || (c == 0 && *value == 0)) {
        return fault(std::string(kColumns[c]) + " is '" + std::string(cells[where[c]]) + "'; a number " +
                     (c == 0 ? "above 0" : "of at least 0") + " is expected");
      }
      values[c] = *value;
    }
    passes.push_back({values[0], values[1], values[2], values[3], values[4]});
  }
  if (passes.size() < 2 * kFitPassesMin) return fault("at least 20 passes are expected, half of them to test the fit");
  return passes;
}

PassFit fit_passes(std::span<const MeasuredPass> passes, std::size_t step) {
  KVD_CHECK(step > 0 && (passes.size() + step - 1) / step >= kFitPassesMin);
  return PassFitter(passes, step).run();
}

LinearFit fit_linear(std::span<const MeasuredPass> passes, const PassFit& fit, std::size_t step) {
  const std::size_t count = step == 0 ? 0 : (passes.size() + step - 1) / step;
  KVD_CHECK(count >= kFitPassesMin);
  std::vector<double> warm_s = predict_passes(fit, passes);
  for (std::size_t i = 0; i < passes.size(); ++i) warm_s[i] = passes[i].seconds * fit.seconds(passes[i]) / warm_s[i];
  const auto from = [](std::span<const double> p) { return LinearFit{p[0], p[1], p[2], p[3], p[4]}; };
  const auto residuals = [&](std::span<const double> p, std::span<double> out) {
    const LinearFit trial = from(p);
    for (std::size_t i = 0; i < passes.size(); i += step)
      out[i / step] = std::log(trial.seconds(passes[i]) / warm_s[i]);
  };
  // From the other fit; what that has pushed to zero begins as a small share again.
  constexpr double kShare = 0.1;
  std::vector<double> start = first_guess(scales_of(passes, step));
  const std::array<double, 5> known{fit.floor_s, fit.token_s, fit.pair_s, fit.seq_s, fit.context_s};
  for (std::size_t i = 0; i < start.size(); ++i) start[i] = std::fmax(known.at(i), kShare * start[i]);
  return from(fit_positive(residuals, count, std::move(start)));
}

}  // namespace kvd::model
