#include "cmd/sim_workload.h"

#include <fmt/format.h>

#include "cmd/text_file.h"

namespace kvd::cmd {

std::expected<void, std::string> TraceShelf::load(const SimConfig& config) {
  if (config.trace_path.empty() || traces_.contains({config.trace_path, config.context_tokens_max})) return {};
  const auto text = read_text(config.trace_path);
  if (!text) return std::unexpected(text.error());
  trace::ReadOptions options;
  options.context_tokens_max = config.context_tokens_max;
  auto read = trace::read_trace(*text, config.trace_path, options);
  if (!read) return std::unexpected(read.error().str());
  traces_.emplace(std::pair{config.trace_path, config.context_tokens_max}, std::move(*read));
  return {};
}

std::expected<std::unique_ptr<sim::ArrivalSource>, std::string> make_source(SimConfig& config,
                                                                            const TraceShelf& shelf) {
  std::unique_ptr<sim::ArrivalSource> source;
  if (config.source == "trace") {
    source = sim::trace_source(shelf.at(config), config.trace);
  } else if (config.source == "poisson") {
    source = sim::poisson_source(config.poisson);
  } else if (config.source == "multi-turn") {
    source = sim::session_source(config.sessions);
  } else {
    source = sim::shared_prefix_source(config.shared_prefix);
  }
  const std::uint32_t block = config.fleet.engine.block_tokens;
  if (source->unit_tokens() % block != 0) {
    return std::unexpected(
        fmt::format("engine.block_tokens = {}: prefixes of this workload come in units of {} tokens, which "
                    "must be whole blocks",
                    block, source->unit_tokens()));
  }
  config.fleet.engine.unit_blocks = source->unit_tokens() / block;
  return source;
}

}  // namespace kvd::cmd
