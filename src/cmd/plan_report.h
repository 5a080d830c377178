// The answer of `kvdepot plan` as a table for people, as JSON, as CSV and as a page with figures. Pure; text out.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cmd/plan_options.h"
#include "cmd/svg_chart.h"

namespace kvd::cmd {

[[nodiscard]] std::string plan_table(const Plan& plan, const model::Answer& answer);
// One object; figures that don't exist (a bandwidth without limit, a batch outside of the SLA) are null.
[[nodiscard]] std::string plan_json(const Plan& plan, const model::Answer& answer);
// A header and a line for each class.
[[nodiscard]] std::string plan_csv(const model::Answer& answer);
// The talk's figures for this plan: speed-up over reuse, largest batch over prompt length, requests/s/GPU over output
// tokens/s/user and, with a trace, hit rate over capacity.
[[nodiscard]] std::vector<Chart> plan_charts(const Plan& plan, const model::Answer& answer);

// Points of requests/s/GPU over output tokens/s/user as the batch grows.
[[nodiscard]] ChartSeries efficiency_series(const std::string& name, const model::Batching& batching,
                                            std::uint32_t gpus, bool split);

// Capacities, in blocks, at which a trace's hit rate is told.
inline constexpr std::array<std::uint64_t, 9> kCurveBlocks{500,    1'000,  2'000,  5'000,  10'000,
                                                           20'000, 30'000, 50'000, 100'000};

}  // namespace kvd::cmd
