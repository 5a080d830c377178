// What a simulated fleet is asked: the trace of a configuration, read once however many runs use it, or a generator.
#pragma once

#include <expected>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cmd/progress_bar.h"
#include "cmd/sim_config.h"

namespace kvd::cmd {

// Traces that have been read, by path and context. Fill it before threads share it; reading from it is safe then.
class TraceShelf {
 public:
  // Reads the configuration's trace, if it has one and it is not here yet; one line when that fails.
  std::expected<void, std::string> load(const SimConfig& config);
  [[nodiscard]] const trace::Trace& at(const SimConfig& config) const {
    return traces_.at({config.trace_path, config.context_tokens_max});
  }

 private:
  std::map<std::pair<std::string, std::uint64_t>, trace::Trace> traces_;
};

// The configuration's requests; `shelf` has its trace and outlives them. Sets what the engine has to know of them; one
// line when its blocks do not fit, or when there are more prompts than can be told apart.
std::expected<std::unique_ptr<sim::ArrivalSource>, std::string> make_source(SimConfig& config, const TraceShelf& shelf);

// Why a run has nothing to report, with the arithmetic: no request fits, all came in the warm-up, or the simulated
// clock ended first. Nothing if it has.
[[nodiscard]] std::optional<std::string> nothing_counted(const sim::FleetResult& result, const SimConfig& config);

// Passes requests on and shows on a terminal how many have come. The source outlives it.
class WatchedSource final : public sim::ArrivalSource {
 public:
  WatchedSource(sim::ArrivalSource& source, std::string label);

  bool next(sim::Arrival& out) override;
  std::uint32_t unit_tokens() const override { return source_.unit_tokens(); }
  double expected() const override { return source_.expected(); }

 private:
  sim::ArrivalSource& source_;
  std::uint64_t expected_;
  std::uint64_t sent_ = 0;
  ProgressBar bar_;
};

}  // namespace kvd::cmd
