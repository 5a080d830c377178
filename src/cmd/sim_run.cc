#include "cmd/sim_run.h"

#include <sys/resource.h>

#include <chrono>
#include <memory>

#include <fmt/format.h>

#include "cmd/complaint.h"
#include "cmd/sim_ablate.h"
#include "cmd/sim_report.h"
#include "cmd/sim_workload.h"
#include "cmd/text_file.h"

namespace kvd::cmd {

namespace {

constexpr double kSampleSeconds = 1;  // apart at first; long runs thin their samples out

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

sim::FleetResult simulate(const sim::FleetConfig& config, sim::ArrivalSource& source) {
  WatchedSource watched(source, "simulating");
  return sim::run_fleet(config, watched);
}

// Writes the files that were asked for; one line, and none of them, when one cannot be written.
std::string write_files(const SimRunFlags& flags, const SimConfig& config, const sim::FleetResult& result,
                        const std::string& text) {
  TextFiles files;
  const auto add = [&](const std::string& path, const auto& make) {
    return path.empty() ? std::string() : files.add(path, make());
  };
  std::string error = add(flags.requests, [&] { return requests_csv(result); });
  if (error.empty()) error = add(flags.passes, [&] { return passes_csv(result); });
  if (error.empty()) error = add(flags.series, [&] { return samples_csv(result, config); });
  if (error.empty()) {
    error = add(flags.html, [&] { return page("Fleet of " + flags.config, text, fleet_charts(result, config)); });
  }
  return error.empty() ? files.commit() : error;
}

}  // namespace

int run_sim_run(const SimRunFlags& flags) {
  const auto start = std::chrono::steady_clock::now();
  const auto text = read_text(flags.config);
  if (!text) return complain(text.error());
  auto config = read_sim_config(*text, flags.config, flags.set);
  if (!config) return complain(config.error().str());
  if (const auto done = ablate(*config, flags.ablate); !done) return complain(done.error());
  config->fleet.skip = !flags.no_skip;
  config->fleet.keep_records = !flags.requests.empty();
  config->fleet.keep_passes = !flags.passes.empty();
  config->fleet.sample_s = flags.html.empty() && flags.series.empty() ? 0 : kSampleSeconds;
  TraceShelf shelf;
  if (const auto done = shelf.load(*config); !done) return complain(done.error());
  auto source = make_source(*config, shelf);
  if (!source) return complain(source.error());
  const auto simulating = std::chrono::steady_clock::now();
  const sim::FleetResult result = simulate(config->fleet, **source);
  SimCost cost;
  cost.simulate_s = since(simulating);
  if (const auto empty = nothing_counted(result, *config)) return complain(*empty);
  const std::string summary = fleet_text(result, *config);
  const std::string error = write_files(flags, *config, result, summary);
  if (!error.empty()) return complain(error);
  cost.wall_s = since(start);
  cost.peak_mib = peak_mib();
  if (flags.json) {
    nlohmann::ordered_json out = fleet_json(result, *config);
    out["wall_s"] = cost.wall_s;
    out["simulate_s"] = cost.simulate_s;
    out["events_per_s"] = static_cast<double>(result.passes_executed) / cost.simulate_s;
    out["peak_mib"] = cost.peak_mib;
    fmt::print("{}\n", out.dump(1));
  } else {
    fmt::print("{}{}", summary, cost_text(result, cost));
  }
  return sound(result) ? 0 : kBroken;
}

}  // namespace kvd::cmd
