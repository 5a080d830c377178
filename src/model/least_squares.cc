#include "model/least_squares.h"

#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace kvd::model {

namespace {

constexpr int kRounds = 80;
constexpr double kDifference = 1e-6;    // step of the numeric derivative, in the logarithm of a parameter
constexpr double kStepMax = 1.0;        // a round changes a parameter by at most a factor of e
constexpr double kDampingFirst = 1e-3;  // Marquardt's lambda: how much of gradient descent is mixed in
constexpr double kDampingMax = 1e8;
constexpr double kGainMin = 1e-12;  // relative gain below which the fit has converged

using Matrix = std::array<std::array<double, kFitParametersMax + 1>, kFitParametersMax>;

// Solves the n x n system whose right side is column n; false when it is singular.
bool solve(Matrix& m, std::size_t n, std::span<double> out) {
  for (std::size_t col = 0; col < n; ++col) {
    std::size_t pivot = col;
    for (std::size_t row = col + 1; row < n; ++row) {
      if (std::fabs(m[row][col]) > std::fabs(m[pivot][col])) pivot = row;
    }
    if (m[pivot][col] == 0) return false;
    std::swap(m[pivot], m[col]);
    for (std::size_t row = col + 1; row < n; ++row) {
      const double factor = m[row][col] / m[col][col];
      for (std::size_t k = col; k <= n; ++k) m[row][k] -= factor * m[col][k];
    }
  }
  for (std::size_t row = n; row-- > 0;) {
    double sum = m[row][n];
    for (std::size_t k = row + 1; k < n; ++k) sum -= m[row][k] * out[k];
    out[row] = sum / m[row][row];
  }
  return true;
}

double squares(std::span<const double> values) {
  double sum = 0;
  for (const double v : values) sum += v * v;
  return sum;
}

class Fit {
 public:
  Fit(const Residuals& residuals, std::size_t count, std::vector<double> start)
      : residuals_(residuals), logs_(start.size()), values_(std::move(start)), now_(count), moved_(count) {
    KVD_CHECK(!values_.empty() && values_.size() <= kFitParametersMax);
    for (std::size_t i = 0; i < logs_.size(); ++i) {
      KVD_CHECK(values_[i] > 0);
      logs_[i] = std::log(values_[i]);
    }
    jacobian_.assign(logs_.size(), std::vector<double>(count));
  }

  std::vector<double> run() {
    evaluate(logs_, now_);
    double error = squares(now_);
    for (int round = 0; round < kRounds && damping_ < kDampingMax; ++round) {
      differentiate();
      const double before = error;
      if (!step(error)) break;
      if (before - error <= kGainMin * before) break;
    }
    for (std::size_t i = 0; i < logs_.size(); ++i) values_[i] = std::exp(logs_[i]);
    return values_;
  }

 private:
  void evaluate(std::span<const double> logs, std::vector<double>& out) {
    for (std::size_t i = 0; i < logs.size(); ++i) values_[i] = std::exp(logs[i]);
    residuals_(values_, out);
  }

  void differentiate() {
    std::vector<double> logs = logs_;
    for (std::size_t p = 0; p < logs.size(); ++p) {
      logs[p] += kDifference;
      evaluate(logs, moved_);
      for (std::size_t r = 0; r < now_.size(); ++r) jacobian_[p][r] = (moved_[r] - now_[r]) / kDifference;
      logs[p] = logs_[p];
    }
  }

  // Tries steps with growing damping until one lowers the error; false when none does.
  bool step(double& error) {
    const std::size_t n = logs_.size();
    for (; damping_ < kDampingMax; damping_ *= 8) {
      Matrix m{};
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          for (std::size_t r = 0; r < now_.size(); ++r) m[i][j] += jacobian_[i][r] * jacobian_[j][r];
        }
        for (std::size_t r = 0; r < now_.size(); ++r) m[i][n] -= jacobian_[i][r] * now_[r];
        m[i][i] += damping_ * (m[i][i] + 1e-9);
      }
      std::array<double, kFitParametersMax> move{};
      if (!solve(m, n, move)) continue;
      std::vector<double> logs = logs_;
      for (std::size_t i = 0; i < n; ++i) logs[i] += std::fmin(std::fmax(move[i], -kStepMax), kStepMax);
      evaluate(logs, moved_);
      const double moved = squares(moved_);
      if (!(moved < error)) continue;
      error = moved;
      logs_ = std::move(logs);
      now_ = moved_;
      damping_ /= 4;
      return true;
    }
    return false;
  }

  const Residuals& residuals_;
  std::vector<double> logs_;
  std::vector<double> values_;
  std::vector<double> now_;
  std::vector<double> moved_;
  std::vector<std::vector<double>> jacobian_;  // [parameter][residual]
  double damping_ = kDampingFirst;
};

}  // namespace

std::vector<double> fit_positive(const Residuals& residuals, std::size_t residual_count, std::vector<double> start) {
  return Fit(residuals, residual_count, std::move(start)).run();
}

}  // namespace kvd::model
