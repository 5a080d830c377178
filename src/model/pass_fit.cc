#include "model/pass_fit.h"

#include <array>
#include <cmath>

#include "base/check.h"
#include "base/csv.h"
#include "model/least_squares.h"

namespace kvd::model {

namespace {

constexpr std::array<std::string_view, 5> kColumns = {"seconds", "prefill_tokens", "pairs", "decodes",
                                                      "context_tokens"};

PassFit from(std::span<const double> p) { return {p[0], p[1], p[2], p[3], p[4]}; }

}  // namespace

double PassFit::seconds(const MeasuredPass& pass) const noexcept {
  const double compute = pass.prefill_tokens * token_s + pass.pairs * pair_s;
  return std::sqrt(floor_s * floor_s + compute * compute) + pass.decodes * seq_s + pass.context_tokens * context_s;
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

PassFit fit_passes(std::span<const MeasuredPass> passes) {
  KVD_CHECK(passes.size() >= kFitPassesMin);
  double shortest = passes[0].seconds;
  double longest = 0;
  double tokens = 1;
  double context = 1;
  for (const MeasuredPass& p : passes) {
    shortest = std::fmin(shortest, p.seconds);
    longest = std::fmax(longest, p.seconds);
    tokens = std::fmax(tokens, p.prefill_tokens);
    context = std::fmax(context, p.context_tokens);
  }
  const auto residuals = [&](std::span<const double> p, std::span<double> out) {
    const PassFit fit = from(p);
    for (std::size_t i = 0; i < passes.size(); ++i) out[i] = std::log(fit.seconds(passes[i]) / passes[i].seconds);
  };
  // Starts from passes whose time is their tokens', with small shares of the rest.
  const std::vector<double> start = {shortest, 0.5 * longest / tokens, 0.5 * longest / (tokens * tokens),
                                     0.01 * shortest, 0.1 * shortest / context};
  return from(fit_positive(residuals, passes.size(), start));
}

}  // namespace kvd::model
