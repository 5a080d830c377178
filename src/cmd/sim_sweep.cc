// `kvdepot sim sweep`: every combination of values, each with the same seeds, on all cores. Threads share traces, which
// nobody changes, and write to results of their own; what is printed is in the order of arms and seeds.
#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "cmd/complaint.h"
#include "cmd/progress_bar.h"
#include "cmd/run_jobs.h"
#include "cmd/sim_ablate.h"
#include "cmd/sim_report.h"
#include "cmd/sim_run.h"
#include "cmd/sim_workload.h"
#include "cmd/text_file.h"
#include "sim/interval.h"

namespace kvd::cmd {

namespace {

constexpr std::size_t kRunsMax = 100'000;

struct Axis {
  std::string key;
  std::vector<std::string> values;
};

struct Arm {
  std::vector<std::string> values;  // one an axis
  std::vector<SimConfig> configs;   // one a seed
  std::vector<sim::FleetResult> results;
  [[nodiscard]] sim::Interval over_seeds(double (*figure)(const sim::FleetResult&)) const {
    std::vector<double> values_of;
    for (const sim::FleetResult& r : results) values_of.push_back(figure(r));
    return sim::interval(values_of);
  }
  [[nodiscard]] std::size_t unstable() const {
    return static_cast<std::size_t>(std::ranges::count_if(results, &sim::FleetResult::unstable));
  }
};

struct Sweep {
  std::vector<Axis> axes;
  std::vector<Arm> arms;
  unsigned seeds = 0;
};

double goodput(const sim::FleetResult& r) { return r.goodput; }
double ttft_mean(const sim::FleetResult& r) { return r.ttft.mean; }
double ttft_p90(const sim::FleetResult& r) { return r.ttft.p90; }
double tpot_p90(const sim::FleetResult& r) { return r.tpot.p90; }
double hit_share(const sim::FleetResult& r) { return r.hit_share; }
double loaded_share(const sim::FleetResult& r) { return r.loaded_share; }

// "key=a,b,c"; "ablate=each" becomes "none" and every mechanism that the configuration has.
std::expected<Axis, std::string> parse_axis(const std::string& typed, const SimConfig& base) {
  const std::size_t equals = typed.find('=');
  Axis axis{typed.substr(0, equals), {}};
  const bool key = axis.key == "ablate" || axis.key.find('.') != std::string::npos;
  if (equals == std::string::npos || equals + 1 == typed.size() || !key) {
    return std::unexpected(fmt::format(
        "--vary {}: section.key=VALUE,VALUE or ablate=NAME,NAME is expected, as in workload.speed=0.5,1,2", typed));
  }
  if (axis.key == "fleet.seed")
    return std::unexpected("--vary fleet.seed: use --seeds N, each arm runs with all seeds");
  for (std::size_t at = equals + 1; at <= typed.size();) {
    const std::size_t comma = std::min(typed.find(',', at), typed.size());
    axis.values.push_back(typed.substr(at, comma - at));
    at = comma + 1;
  }
  if (axis.key == "ablate" && axis.values == std::vector<std::string>{"each"}) {
    axis.values = {"none"};
    for (const Ablation& a : ablations()) {
      if (a.active(base)) axis.values.emplace_back(a.name);
    }
  }
  return axis;
}

// The configuration of one arm and seed.
std::expected<SimConfig, std::string> configure(const std::string& text, const SimSweepFlags& flags,
                                                const std::vector<Axis>& axes, const std::vector<std::string>& values,
                                                unsigned seed) {
  std::vector<std::string> set = flags.set;
  std::vector<std::string> off = flags.ablate;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].key != "ablate") {
      set.push_back(fmt::format("{}={}", axes[i].key, values[i]));
    } else if (values[i] != "none") {
      off.push_back(values[i]);
    }
  }
  if (seed > 0) set.push_back(fmt::format("fleet.seed={}", seed));
  auto config = read_sim_config(text, flags.config, set);
  if (!config) return std::unexpected(config.error().str());
  if (const auto done = ablate(*config, off); !done) return std::unexpected(done.error());
  return std::move(*config);
}

std::expected<Sweep, std::string> plan_sweep(const SimSweepFlags& flags) {
  const auto text = read_text(flags.config);
  if (!text) return std::unexpected(text.error());
  const auto base = configure(*text, flags, {}, {}, 0);
  if (!base) return std::unexpected(base.error());
  Sweep sweep;
  sweep.seeds = flags.seeds;
  std::size_t arms = 1;
  for (const std::string& typed : flags.vary) {
    auto axis = parse_axis(typed, *base);
    if (!axis) return std::unexpected(axis.error());
    arms *= axis->values.size();
    if (arms * flags.seeds > kRunsMax) return std::unexpected(fmt::format("--vary: more than {} runs", kRunsMax));
    sweep.axes.push_back(std::move(*axis));
  }
  for (std::size_t n = 0; n < arms; ++n) {
    Arm arm;
    std::size_t rest = n;  // the last axis counts fastest
    for (std::size_t i = sweep.axes.size(); i-- > 0;) {
      arm.values.insert(arm.values.begin(), sweep.axes[i].values[rest % sweep.axes[i].values.size()]);
      rest /= sweep.axes[i].values.size();
    }
    for (unsigned seed = 1; seed <= flags.seeds; ++seed) {
      auto config = configure(*text, flags, sweep.axes, arm.values, seed);
      if (!config) return std::unexpected(config.error());
      arm.configs.push_back(std::move(*config));
    }
    arm.results.resize(flags.seeds);
    sweep.arms.push_back(std::move(arm));
  }
  return sweep;
}

// "fleet.policy=random, workload.speed=2: ", to say where something is wrong; empty for the only arm.
std::string arm_name(const Sweep& sweep, const Arm& arm) {
  std::string name;
  for (std::size_t i = 0; i < sweep.axes.size(); ++i) {
    name += fmt::format("{}{}={}", i == 0 ? "" : ", ", sweep.axes[i].key, arm.values[i]);
  }
  return name.empty() ? name : name + ": ";
}

// Runs everything; a line when a workload does not fit its engine, or leaves nothing to count.
std::optional<std::string> simulate(Sweep& sweep, const TraceShelf& shelf, unsigned jobs) {
  const std::size_t runs = sweep.arms.size() * sweep.seeds;
  std::vector<std::string> faults(runs);
  const auto job = [&](std::size_t i) {
    Arm& arm = sweep.arms[i / sweep.seeds];
    SimConfig& config = arm.configs[i % sweep.seeds];
    auto source = make_source(config, shelf);
    if (source) {
      sim::FleetResult& result = arm.results[i % sweep.seeds];
      result = sim::run_fleet(config.fleet, **source);
      if (const auto empty = nothing_counted(result, config)) faults[i] = arm_name(sweep, arm) + *empty;
    } else {
      faults[i] = arm_name(sweep, arm) + source.error();
    }
  };
  {
    ProgressBar bar("simulating");
    run_jobs(runs, jobs, job, [&](std::size_t done, std::size_t all) { bar.show(done, all); });
  }
  for (const std::string& fault : faults) {
    if (!fault.empty()) return fault;
  }
  return std::nullopt;
}

// A field and its comma; empty where there is no such time: of an unstable queue, of no request.
std::string time_field(double time, bool known) { return known ? fmt::format("{:.9g},", time) : ","; }

std::string csv(const Sweep& sweep) {
  std::string text;
  for (const Axis& axis : sweep.axes) text += axis.key + ",";
  text +=
      "seed,requests,rejected,ttft_mean_s,ttft_p50_s,ttft_p90_s,ttft_p99_s,tpot_mean_s,tpot_p90_s,"
      "output_tokens_per_s,goodput_per_s,hit_share,loaded_share,busy_share,preemptions,unstable,warmup_requests,"
      "unfinished,little_error,sound\n";
  for (const Arm& arm : sweep.arms) {
    for (unsigned s = 0; s < sweep.seeds; ++s) {
      const sim::FleetResult& r = arm.results[s];
      for (const std::string& value : arm.values) text += value + ",";
      text += fmt::format("{},{},{},", s + 1, r.requests, r.rejected);
      const bool known = !r.unstable && r.ttft.count > 0;
      for (const double time : {r.ttft.mean, r.ttft.p50, r.ttft.p90, r.ttft.p99}) text += time_field(time, known);
      for (const double time : {r.tpot.mean, r.tpot.p90}) text += time_field(time, known && r.tpot.count > 0);
      text += fmt::format("{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{},{},{},{},{:.3g},{}\n", r.output_tokens_per_s,
                          r.goodput, r.hit_share, r.loaded_share, r.busy_share, r.preemptions, r.unstable ? 1 : 0,
                          r.warmup_requests, r.unfinished, r.little_error, sound(r) ? 1 : 0);
    }
  }
  return text;
}

// Goodput of an arm less that of the first with the same seed.
sim::Interval paired(const Sweep& sweep, const Arm& arm) {
  std::vector<double> gains;
  for (unsigned s = 0; s < sweep.seeds; ++s) {
    gains.push_back(arm.results[s].goodput - sweep.arms[0].results[s].goodput);
  }
  return sim::interval(gains);
}

// What the intervals of so many seeds are worth.
std::string seeds_text(unsigned seeds) {
  if (seeds == 1) return "seed 1; no intervals, which take at least 2 seeds (10 to say something)";
  return fmt::format("seeds 1 to {} for each; 95 % intervals{}", seeds,
                     seeds < 10 ? ", of fewer than the 10 seeds that they take to say something" : "");
}

// The checks of all runs, in a line.
std::string checks_text(const Sweep& sweep) {
  std::size_t runs = 0;
  std::size_t broken = 0;
  std::uint64_t warmup = 0;
  std::uint64_t unfinished = 0;
  double little = 0;
  for (const Arm& arm : sweep.arms) {
    for (const sim::FleetResult& r : arm.results) {
      ++runs;
      broken += sound(r) ? 0 : 1;
      warmup += r.warmup_requests;
      unfinished += r.unfinished;
      little = std::max(little, r.little_error);
    }
  }
  return fmt::format(
      "checks: tokens, blocks, loads and Little's law (within {:.2g}) {} in {} of {} runs; {} requests of "
      "warm-ups not counted, {} unfinished\n",
      little, broken == 0 ? "hold" : "BROKEN", broken == 0 ? runs : broken, runs, warmup, unfinished);
}

// "1.234 ± 0.056"; a single seed has no interval.
std::string spread(const sim::Interval& of, unsigned seeds, bool difference = false) {
  const std::string mean = difference ? fmt::format("{:+.3f}", of.mean) : fmt::format("{:.3f}", of.mean);
  return seeds == 1 ? mean : fmt::format("{} ± {:.3f}", mean, of.half);
}

std::string table(const Sweep& sweep) {
  const SimConfig& base = sweep.arms[0].configs[0];
  std::string text = fmt::format(
      "{} arms, {}. Requests that arrive in the first {} s are simulated and not "
      "counted;\nevery request runs to its end. Goodput: TTFT within {} s and TPOT within {} s.\n\n|",
      sweep.arms.size(), seeds_text(sweep.seeds), base.fleet.warmup_s, base.fleet.sla_ttft_s, base.fleet.sla_tpot_s);
  for (const Axis& axis : sweep.axes) text += fmt::format(" {} |", axis.key);
  text += " TTFT mean s | TTFT p90 s | TPOT p90 ms | goodput /s | over the first arm | own hits % | tiers % |\n|";
  for (std::size_t i = 0; i < sweep.axes.size() + 7; ++i) text += "---|";
  text += '\n';
  for (const Arm& arm : sweep.arms) {
    text += '|';
    for (const std::string& value : arm.values) text += fmt::format(" {} |", value);
    if (const std::size_t unstable = arm.unstable(); unstable > 0) {
      text += fmt::format(" unstable in {} of {} | | |", unstable, sweep.seeds);
    } else {
      text += fmt::format(" {} | {} | {:.1f} |", spread(arm.over_seeds(ttft_mean), sweep.seeds),
                          spread(arm.over_seeds(ttft_p90), sweep.seeds), 1e3 * arm.over_seeds(tpot_p90).mean);
    }
    text += fmt::format(" {} | {} | {:.1f} | {:.1f} |\n", spread(arm.over_seeds(goodput), sweep.seeds),
                        spread(paired(sweep, arm), sweep.seeds, true), 100 * arm.over_seeds(hit_share).mean,
                        100 * arm.over_seeds(loaded_share).mean);
  }
  return text + '\n' + checks_text(sweep);
}

nlohmann::ordered_json json(const Sweep& sweep) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const Arm& arm : sweep.arms) {
    nlohmann::ordered_json entry;
    for (std::size_t i = 0; i < sweep.axes.size(); ++i) entry["arm"][sweep.axes[i].key] = arm.values[i];
    const sim::Interval gain = paired(sweep, arm);
    entry["goodput_over_first"] = {{"mean", gain.mean}, {"half_95", nullptr}};
    if (sweep.seeds > 1) entry["goodput_over_first"]["half_95"] = gain.half;
    for (unsigned s = 0; s < sweep.seeds; ++s) entry["runs"].push_back(fleet_json(arm.results[s], arm.configs[s]));
    out.push_back(std::move(entry));
  }
  return out;
}

// Over the first axis whose values are numbers; a line for each combination of the others. Unstable arms are left out.
std::vector<Chart> charts(const Sweep& sweep) {
  const auto number = [](const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc{} && end != text.data() ? std::optional(value) : std::nullopt;
  };
  const auto axis = std::ranges::find_if(sweep.axes, [&](const Axis& a) {
    return a.values.size() > 1 &&
           std::ranges::all_of(a.values, [&](const std::string& v) { return number(v).has_value(); });
  });
  if (axis == sweep.axes.end()) return {};
  const auto x = static_cast<std::size_t>(axis - sweep.axes.begin());
  std::vector<Chart> out{{"Goodput within the SLA", axis->key, "requests/s"},
                         {"Time to first token, 90th percentile", axis->key, "s"}};
  for (const Arm& arm : sweep.arms) {
    std::string name;
    for (std::size_t i = 0; i < sweep.axes.size(); ++i) {
      if (i != x) name += (name.empty() ? "" : ", ") + arm.values[i];
    }
    if (name.empty()) name = "all";
    const double values[] = {arm.over_seeds(goodput).mean, arm.over_seeds(ttft_p90).mean};
    for (std::size_t c = 0; c < out.size(); ++c) {
      auto line = std::ranges::find(out[c].series, name, &ChartSeries::name);
      if (line == out[c].series.end()) line = out[c].series.insert(line, ChartSeries{name});
      if (c == 0 || arm.unstable() == 0) line->points.emplace_back(*number(arm.values[x]), values[c]);
    }
  }
  return out;
}

}  // namespace

int run_sim_sweep(const SimSweepFlags& flags) {
  if (flags.seeds == 0) return complain("--seeds: at least 1 is expected, 10 for intervals that say something");
  auto sweep = plan_sweep(flags);
  if (!sweep) return complain(sweep.error());
  TraceShelf shelf;
  for (const Arm& arm : sweep->arms) {
    if (const auto done = shelf.load(arm.configs[0]); !done) return complain(done.error());
  }
  const unsigned jobs = flags.jobs > 0 ? flags.jobs : threads_of_machine();
  if (const auto fault = simulate(*sweep, shelf, jobs)) return complain(*fault);
  const std::string text = table(*sweep);
  TextFiles files;
  std::string error = files.add(flags.out, csv(*sweep));
  if (error.empty()) error = files.add(flags.html, page("Sweep of " + flags.config, text, charts(*sweep)));
  if (error.empty()) error = files.commit();
  if (!error.empty()) return complain(error);
  fmt::print("{}", flags.json ? json(*sweep).dump(1) + "\n" : text);
  const bool all_sound = std::ranges::all_of(sweep->arms, [](const Arm& arm) {
    return std::ranges::all_of(arm.results, [](const sim::FleetResult& r) { return sound(r); });
  });
  return all_sound ? 0 : kBroken;
}

}  // namespace kvd::cmd
