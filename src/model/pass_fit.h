// A step model fitted to passes that were measured on an engine, one line of a CSV each, and its error on passes that
// the fit has not seen. Pure: text in, values out.
//
//   seconds = sqrt(floor^2 + (gpu + first)^2) + decode(decodes) + context tokens * context
//   gpu     = prefill tokens * token + pairs * pair
//   first   = gpu * first_share while a process's first passes have paid less than first_max in all, 0 afterwards
//   decode  = decodes * seq up to `knee` sequences, each further one takes seq_beyond: a batch that reads the same
//             weights is nearly free until its own compute shows
//
// Columns, found by name in a header line: seconds, prefill_tokens, pairs ((query, key) pairs of the prefills), decodes
// (sequences with one new token), context_tokens (their cached tokens, summed). Lines are in the order in which one
// process ran the passes; where it was warm before the first, the fit finds no first-pass term.
#pragma once

#include <cstddef>
#include <limits>
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
  double seq_beyond_s = 0;
  double knee_decodes = std::numeric_limits<double>::infinity();  // one slope
  double first_share = 0;
  double first_max_s = 0;

  // The pass in a process that is warm.
  [[nodiscard]] double seconds(const MeasuredPass& pass) const noexcept;
  // The same in a process that has `first_left` of first_max_s to pay, which is reduced.
  [[nodiscard]] double seconds(const MeasuredPass& pass, double& first_left) const noexcept;
  [[nodiscard]] double decode_s(double decodes) const noexcept;
};

// The same in the form that a fleet's engine has (linear_pass.h), in which all terms add up: the floor does not hide
// behind compute, decodes have one slope, and processes are warm.
struct LinearFit {
  double base_s = 0;
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

// All passes of one process, in order, from its first.
std::vector<double> predict_passes(const PassFit& fit, std::span<const MeasuredPass> passes);

// Fits to every `step`-th pass, the first included; the others only tell how far the process had come. The knee and the
// first-pass term are there where the passes speak for them, otherwise their fields are as in PassFit{}. Requires that
// the passes fitted to are at least kFitPassesMin.
PassFit fit_passes(std::span<const MeasuredPass> passes, std::size_t step = 1);

// Fits to the same passes, less what `fit`, fitted to them, says that first ones took longer. Terms of which the passes
// hold nothing, prompts or decodes, mean nothing.
LinearFit fit_linear(std::span<const MeasuredPass> passes, const PassFit& fit, std::size_t step = 1);

}  // namespace kvd::model
