#include "cmd/sim_workload.h"

#include <algorithm>
#include <cmath>
#include <optional>

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

namespace {

// Why the workload cannot be made, nothing if it can.
std::optional<std::string> workload_fault(const SimConfig& config, const TraceShelf& shelf) {
  double ids = 0;
  if (config.source == "trace") {
    const trace::Trace& trace = shelf.at(config);
    if (config.trace.rate > 0 && trace.timed) {
      return fmt::format("workload.rate = {}: {} has arrivals of its own; workload.speed changes their rate",
                         config.trace.rate, config.trace_path);
    }
    if (config.trace.repeats > 1 && config.trace.rate <= 0 && trace.span_s() <= 0) {
      return fmt::format(
          "workload.repeats = {}: the requests of {} all come at once, and so would repeats: use copies, or give a "
          "workload.rate",
          config.trace.repeats, config.trace_path);
    }
    if (const double last = sim::last_arrival_s(trace, config.trace); last > sim::kArrivalMaxS) {
      InputFault fault = config.arrivals_at;
      fault.text += fmt::format(
          ": {}: {}; {}, or a higher workload.speed, are expected", config.trace_path, too_late(last),
          config.trace.rate > 0 ? "fewer requests, a higher rate"
                                : fmt::format("its arrivals count from 0, and the first is at {:.3g} s: earlier or "
                                              "fewer requests",
                                              trace.requests.front().arrival_s));
      return fault.str();
    }
    ids = sim::prefix_ids(trace, config.trace);
  } else if (config.source == "poisson") {
    ids = sim::prefix_ids(config.poisson);
  } else if (config.source == "multi-turn") {
    ids = sim::prefix_ids(config.sessions);
  } else if (const double listed = sim::listed_ids(config.shared_prefix); listed > sim::kListedIdsMax) {
    return fmt::format("workload: {} groups x {} prompts take {:.3g} prefix ids, at most {:.3g} are held in memory",
                       config.shared_prefix.groups, config.shared_prefix.prompts, listed, sim::kListedIdsMax);
  }
  if (ids <= sim::kPrefixIdsMax) return std::nullopt;
  return fmt::format(
      "workload: its prompts need up to {:.3g} prefix ids, and {:.3g} can be told apart: fewer requests are expected{}",
      ids, sim::kPrefixIdsMax, config.source == "trace" ? ", by fewer copies and repeats or by requests_max" : "");
}

}  // namespace

std::expected<std::unique_ptr<sim::ArrivalSource>, std::string> make_source(SimConfig& config,
                                                                            const TraceShelf& shelf) {
  if (auto fault = workload_fault(config, shelf)) return std::unexpected(std::move(*fault));
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

std::optional<std::string> nothing_counted(const sim::FleetResult& result, const SimConfig& config) {
  if (result.out_of_time) {
    return fmt::format(
        "workload: the fleet is not done with it after {:.0f} s (104 days), where picoseconds of 64 bits end: less "
        "load, or more instances, are expected",
        sim::kClockMaxS);
  }
  if (result.requests > 0) return std::nullopt;
  if (result.warmup_requests > 0) {
    return fmt::format(
        "fleet.warmup_s = {}: all {} requests that were served arrive earlier, the last of all at {:.3f} s; nothing is "
        "left to count",
        config.fleet.warmup_s, result.warmup_requests, result.last_arrival_s);
  }
  if (result.rejected == 0) return "workload: there is no request in it";
  const double bytes = config.fleet.tiers.kv_bytes_per_token;
  const auto tokens = static_cast<double>(result.rejected_shortest);
  return fmt::format(
      "engine.kv_tokens = {}: none of the {} requests fits: the shortest has {} tokens with its answer, x {:.0f} B = "
      "{:.3g} GB of KV, and an instance has {:.3g} GB",
      config.kv_tokens, result.rejected, result.rejected_shortest, bytes, 1e-9 * tokens * bytes,
      1e-9 * config.kv_tokens * bytes);
}

WatchedSource::WatchedSource(sim::ArrivalSource& source, std::string label)
    : source_(source),
      expected_(static_cast<std::uint64_t>(std::max(1.0, source.expected()))),
      bar_(std::move(label)) {}

bool WatchedSource::next(sim::Arrival& out) {
  bar_.show(sent_++, expected_);
  return source_.next(out);
}

}  // namespace kvd::cmd
