#include "model/pass_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvd::model {
namespace {

constexpr double kDecay = 0.85;        // of a class at each of its observations: remembers about the last seven
constexpr double kPriorWeight = 0.02;  // of a pseudo-observation beside a real one: one measurement outweighs it

// A pass that another process held up says little about passes. Were it believed at once, and the only one of its size
// (an engine that only prefills computes few tokens in a pass only behind a load), loads could seem to save nothing, so
// that none is tried and the size is never seen again. A machine that has become much slower is learnt in a few passes.
constexpr double kSurpriseMax = 2;  // times what was expected

std::size_t class_of(double value, double base, std::size_t classes) noexcept {
  const double level = std::log(std::max(value, 1.0)) / std::log(base);
  return std::min(static_cast<std::size_t>(level), classes - 1);
}

// Solves the k x k system of the columns in `use` by Gaussian elimination; false when it is singular.
bool solve(const std::array<double, 9>& a, const std::array<double, 3>& b, const std::array<bool, 3>& use,
           std::array<double, 3>& x) noexcept {
  std::array<std::size_t, 3> column{};
  std::size_t k = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    if (use[i]) column[k++] = i;
  }
  std::array<std::array<double, 4>, 3> m{};
  for (std::size_t r = 0; r < k; ++r) {
    for (std::size_t c = 0; c < k; ++c) m[r][c] = a[column[r] * 3 + column[c]];
    m[r][k] = b[column[r]];
  }
  for (std::size_t i = 0; i < k; ++i) {
    if (!(m[i][i] > 1e-300)) return false;  // symmetric and positive definite where it can be solved at all
    for (std::size_t r = i + 1; r < k; ++r) {
      const double factor = m[r][i] / m[i][i];
      for (std::size_t c = i; c <= k; ++c) m[r][c] -= factor * m[i][c];
    }
  }
  x = {};
  for (std::size_t i = k; i-- > 0;) {
    double sum = m[i][k];
    for (std::size_t c = i + 1; c < k; ++c) sum -= m[i][c] * x[column[c]];
    x[column[i]] = sum / m[i][i];
  }
  return true;
}

}  // namespace

PassWork chunk_work(double tokens, double context) noexcept {
  return {tokens, tokens * context + tokens * (tokens + 1) / 2};
}

void PassCost::Normal::add(PassWork work, double seconds, double weight) noexcept {
  const std::array<double, 3> row{1, work.tokens, work.pairs};
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) a[i * 3 + j] += weight * row[i] * row[j];
    b[i] += weight * row[i] * seconds;
  }
}

void PassCost::Normal::decay(double factor) noexcept {
  for (auto& v : a) v *= factor;
  for (auto& v : b) v *= factor;
}

// Errors count relative to the mean of their class, so that decode steps of 30 ms teach as much as prompts of 30 s.
void PassCost::Normal::merge(const Normal& other) noexcept {
  if (!(other.b[0] > 0)) return;
  const double per_s = other.a[0] / other.b[0];
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += per_s * per_s * other.a[i];
  for (std::size_t i = 0; i < b.size(); ++i) b[i] += per_s * per_s * other.b[i];
}

PassCost::PassCost(const PassCoefficients& prior) noexcept : prior_(prior), fitted_(prior) {}

PassCost::Normal PassCost::scaled_prior() const noexcept {
  double logs = 0, count = 0;
  for (const double ratio : over_prior_) {
    if (ratio > 0) {
      logs += std::log(ratio);
      ++count;
    }
  }
  const double scale = count > 0 ? std::exp(logs / count) : 1;
  Normal normal;
  for (const PassWork work :
       {chunk_work(1, 128), chunk_work(1, 8192), chunk_work(512, 0), chunk_work(4096, 0), chunk_work(64, 8192)}) {
    const double seconds = scale * prior_.seconds(work);
    if (seconds > 0) normal.add(work, seconds, kPriorWeight / (seconds * seconds));
  }
  return normal;
}

void PassCost::observe(PassWork work, double seconds) noexcept {
  if (!(seconds > 0) || !(work.tokens > 0) || !std::isfinite(seconds)) return;
  const std::size_t index = class_of(work.tokens, 2, kTokenClasses) * kContextClasses +
                            class_of(work.pairs / work.tokens, 4, kContextClasses);
  if (observations_ > 0) seconds = std::min(seconds, kSurpriseMax * fitted_.seconds(work));
  classes_[index].decay(kDecay);
  classes_[index].add(work, seconds, 1);
  if (prior_.seconds(work) > 0) over_prior_[index] = seconds / prior_.seconds(work);
  ++observations_;
  fit();
}

// Non-negative least squares: with three terms, the best of all subsets of terms whose solution is not negative.
void PassCost::fit() noexcept {
  Normal sum = scaled_prior();
  for (const Normal& each : classes_) sum.merge(each);
  // Scale the columns to unit diagonal: pairs and tokens differ by many orders of magnitude.
  std::array<double, 3> scale{};
  for (std::size_t i = 0; i < 3; ++i) scale[i] = sum.a[i * 3 + i] > 0 ? 1 / std::sqrt(sum.a[i * 3 + i]) : 0;
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) sum.a[i * 3 + j] *= scale[i] * scale[j];
    sum.a[i * 3 + i] += 1e-9;
    sum.b[i] *= scale[i];
  }
  double best_error = std::numeric_limits<double>::infinity();
  for (unsigned subset = 1; subset < 8; ++subset) {
    const std::array<bool, 3> use{(subset & 1) != 0, (subset & 2) != 0, (subset & 4) != 0};
    std::array<double, 3> x{};
    if (!solve(sum.a, sum.b, use, x) || *std::min_element(x.begin(), x.end()) < 0) continue;
    double error = 0;  // x'Ax - 2b'x, the squared error less a constant
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j < 3; ++j) error += x[i] * sum.a[i * 3 + j] * x[j];
      error -= 2 * sum.b[i] * x[i];
    }
    if (error < best_error) {
      best_error = error;
      fitted_ = {x[0] * scale[0], x[1] * scale[1], x[2] * scale[2]};
    }
  }
}

double PassCost::prompt_seconds(std::uint64_t tokens, std::uint64_t context,
                                std::uint64_t pass_tokens_max) const noexcept {
  if (tokens == 0) return 0;
  const double chunk = static_cast<double>(pass_tokens_max == 0 ? tokens : std::min(tokens, pass_tokens_max));
  const double passes = std::ceil(static_cast<double>(tokens) / chunk);
  // The pairs of consecutive chunks add up to those of one pass; only the fixed part is paid for each.
  return seconds(chunk_work(static_cast<double>(tokens), static_cast<double>(context))) +
         (passes - 1) * fitted_.fixed_s;
}

}  // namespace kvd::model
