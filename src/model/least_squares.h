// Fits positive parameters of a model to measurements: Levenberg-Marquardt on the logarithms of the parameters, with
// differences for derivatives. Pure and deterministic; for fits of at most kFitParametersMax parameters to a few
// hundred residuals (milliseconds), not for inner loops.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace kvd::model {

inline constexpr std::size_t kFitParametersMax = 12;

// Fills `out` with one residual per measurement for these parameters. Residuals should be free of units, such as
// log(predicted / measured), so that no measurement outweighs the others.
using Residuals = std::function<void(std::span<const double> parameters, std::span<double> out)>;

// The parameters, all > 0, that make the sum of squared residuals small, starting from `start` (all > 0). A parameter
// that the measurements push to zero ends up tiny, not zero. The result depends on the arguments only.
std::vector<double> fit_positive(const Residuals& residuals, std::size_t residual_count, std::vector<double> start);

}  // namespace kvd::model
