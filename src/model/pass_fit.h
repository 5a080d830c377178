// A step model fitted to passes that were measured on an engine, one line of a CSV each, and its error on passes that
// the fit has not seen. Pure: text in, values out.
//
//   seconds = sqrt(floor^2 + (prefill tokens * token + pairs * pair)^2) + decodes * seq + context tokens * context
//
// Columns, found by name in a header line: seconds, prefill_tokens, pairs ((query, key) pairs of the prefills), decodes
// (sequences with one new token), context_tokens (their cached tokens, summed).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "base/input.h"

namespace kvd::model {

struct MeasuredPass {
  double seconds = 0;
  double prefill_tokens = 0;
  double pairs = 0;
  double decodes = 0;
  double context_tokens = 0;
};

struct PassFit {
  double floor_s = 0;
  double token_s = 0;
  double pair_s = 0;
  double seq_s = 0;
  double context_s = 0;
  [[nodiscard]] double seconds(const MeasuredPass& pass) const noexcept;
};

inline constexpr std::size_t kFitPassesMin = 10;

// Faults: a missing column, a value that is no number, negative or not finite, a time of 0, fewer than 2 *
// kFitPassesMin passes (half of them test the fit).
FromInput<std::vector<MeasuredPass>> read_passes(std::string_view text, std::string_view file);

// Requires at least kFitPassesMin passes.
PassFit fit_passes(std::span<const MeasuredPass> passes);

}  // namespace kvd::model
