// What a simulated fleet is asked: the trace of a configuration, read once however many runs use it, or a generator.
#pragma once

#include <expected>
#include <map>
#include <memory>
#include <string>
#include <utility>

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
// line when its blocks do not fit.
std::expected<std::unique_ptr<sim::ArrivalSource>, std::string> make_source(SimConfig& config, const TraceShelf& shelf);

}  // namespace kvd::cmd
