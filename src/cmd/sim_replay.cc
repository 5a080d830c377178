#include "cmd/sim_replay.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "cmd/complaint.h"
#include "cmd/progress_bar.h"
#include "cmd/run_jobs.h"
#include "cmd/text_file.h"
#include "sim/cache_replay.h"
#include "trace/reuse.h"

namespace kvd::cmd {
namespace {

struct ReplayArm {
  std::string name;
  sim::ReplayCache cache;
  bool s3_fifo = false;
};

std::vector<ReplayArm> arms_of(const SimReplayFlags& flags) {
  using policy::Eviction;
  std::vector<ReplayArm> arms = {{"single blocks, LRU", {.eviction = Eviction::kLru}},
                                 {"single blocks, FIFO", {.eviction = Eviction::kFifo}},
                                 {"single blocks, S3-FIFO", {}, true}};
  for (const auto& [eviction, name] : {std::pair{Eviction::kLru, "LRU"}, {Eviction::kFifo, "FIFO"}}) {
    for (const std::uint32_t blocks : flags.segments) {
      arms.push_back({fmt::format("segments of {}, {}", blocks, name), {eviction, 0, blocks}});
    }
  }
  for (const std::uint32_t blocks : flags.segments) {
    arms.push_back({fmt::format("segments of {}, LRU, {} requests interleaved", blocks, flags.interleave),
                    {Eviction::kLru, 0, blocks, flags.interleave}});
  }
  if (!flags.two_open) return arms;
  const std::pair<sim::Grouping, std::string> groupings[] = {
      {sim::Grouping::kDepth, fmt::format("first {} blocks of a prompt apart", flags.head_blocks)},
      {sim::Grouping::kAgain, "what was there before apart"},
      {sim::Grouping::kKnown, "what is used again apart"}};
  for (const auto& [grouping, what] : groupings) {
    for (const std::uint32_t interleave : {1U, flags.interleave}) {
      for (const std::uint32_t blocks : flags.segments) {
        const std::string turns = interleave == 1 ? "" : fmt::format(", {} requests interleaved", interleave);
        arms.push_back({fmt::format("segments of {}, LRU, {}{}", blocks, what, turns),
                        {Eviction::kLru, 0, blocks, interleave, grouping, flags.head_blocks}});
      }
    }
  }
  return arms;
}

std::string fault_of(const SimReplayFlags& flags) {
  for (const double percent : flags.capacities) {
    if (!(percent > 0 && percent <= 100)) {
      return fmt::format("--capacity: {} is no share of the distinct blocks, above 0 and at most 100 percent", percent);
    }
  }
  return {};
}

}  // namespace

nlohmann::ordered_json replay_json(const trace::Trace& trace, const SimReplayFlags& flags) {
  const std::vector<ReplayArm> arms = arms_of(flags);
  std::vector<std::vector<double>> rates(arms.size(), std::vector<double>(flags.capacities.size(), NAN));
  ProgressBar bar("replay");
  const auto job = [&](std::size_t i) {
    const std::size_t c = i % flags.capacities.size();
    const ReplayArm& arm = arms[i / flags.capacities.size()];
    sim::ReplayCache cache = arm.cache;
    cache.capacity_blocks = static_cast<std::uint64_t>(flags.capacities[c] / 100 * trace.distinct_blocks);
    if (sim::replay_segments(cache) < sim::replay_segments_min(cache)) return;
    rates[i / flags.capacities.size()][c] =
        arm.s3_fifo ? sim::replay_s3_fifo_hit_rate(trace, cache.capacity_blocks) : sim::replay_hit_rate(trace, cache);
  };
  run_jobs(arms.size() * flags.capacities.size(), threads_of_machine(), job,
           [&](std::size_t done, std::size_t all) { bar.show(done, all); });

  nlohmann::ordered_json caches = nlohmann::ordered_json::array();
  for (std::size_t a = 0; a < arms.size(); ++a) {
    nlohmann::ordered_json of_arm = nlohmann::ordered_json::array();
    for (const double rate : rates[a]) {
      of_arm.push_back(std::isnan(rate) ? nlohmann::ordered_json() : nlohmann::ordered_json(rate));
    }
    nlohmann::ordered_json cache = {{"cache", arms[a].name}};
    cache["hit_rates"] = std::move(of_arm);
    caches.push_back(std::move(cache));
  }
  return {{"requests", trace.requests.size()},      {"distinct_blocks", trace.distinct_blocks},
          {"block_tokens", trace.block_tokens},     {"unlimited_hit_rate", trace::ReuseProfile(trace).ideal_hit_rate()},
          {"capacities_percent", flags.capacities}, {"caches", std::move(caches)}};
}

std::string replay_text(const nlohmann::ordered_json& replay) {
  std::string text = fmt::format(
      "{} requests, {} distinct blocks of {} tokens; share of prompt tokens found with everything before them, {:.3f} "
      "without a limit; capacity in percent of the distinct blocks\n\n| cache |",
      replay["requests"].get<std::uint64_t>(), replay["distinct_blocks"].get<std::uint64_t>(),
      replay["block_tokens"].get<std::uint64_t>(), replay["unlimited_hit_rate"].get<double>());
  std::string rule = "\n|---|";
  for (const auto& percent : replay["capacities_percent"]) {
    text += fmt::format(" {:g} % |", percent.get<double>());
    rule += "---|";
  }
  text += rule + "\n";
  for (const auto& cache : replay["caches"]) {
    text += fmt::format("| {} |", cache["cache"].get<std::string>());
    for (const auto& rate : cache["hit_rates"])
      text += rate.is_null() ? " - |" : fmt::format(" {:.3f} |", rate.get<double>());
    text += "\n";
  }
  return text;
}

int run_sim_replay(const SimReplayFlags& flags) {
  if (const std::string fault = fault_of(flags); !fault.empty()) return complain(fault);
  const auto text = read_text(flags.trace);
  if (!text) return complain(text.error());
  const auto trace = trace::read_trace(*text, flags.trace, {.block_tokens = flags.block_tokens});
  if (!trace) return complain(trace.error().str());
  if (trace->block_tokens == 0) {
    return complain(flags.trace + " has no ids of prefix blocks (hash_ids), so nothing is known of what repeats");
  }
  const nlohmann::ordered_json replay = replay_json(*trace, flags);
  const std::string report = flags.json ? replay.dump(1) + "\n" : replay_text(replay);
  if (flags.out.empty()) {
    fmt::print("{}", report);
  } else if (const std::string error = write_text(flags.out, report); !error.empty()) {
    return complain(error);
  }
  return 0;
}

}  // namespace kvd::cmd
