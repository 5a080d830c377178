#include "cmd/sim_run.h"

#include <sys/resource.h>

#include <chrono>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cmd/sim_config.h"
#include "cmd/text_file.h"
#include "trace/trace.h"

namespace kvd::cmd {

namespace {

constexpr int kUsageError = 2;
constexpr int kBroken = 1;  // a run whose own checks failed

int complain(const std::string& line) {
  fmt::print(stderr, "kvdepot: error: {}\n", line);
  return kUsageError;
}

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

std::string requests_csv(const sim::FleetResult& result) {
  std::string text = "arrival_s,first_token_s,finish_s,instance,prompt,output,hit_tokens,loaded_tokens,preemptions\n";
  text.reserve(result.records.size() * 80);
  const auto time = [](model::Picoseconds t) {
    return fmt::format("{}.{:012}", t / 1'000'000'000'000, t % 1'000'000'000'000);
  };
  for (const sim::RequestRecord& r : result.records) {
    text += fmt::format("{},{},{},{},{},{},{},{},{}\n", time(r.arrival), time(r.first_token), time(r.finish),
                        r.instance, r.prompt, r.output, r.hit_tokens, r.loaded_tokens, r.preemptions);
  }
  return text;
}

nlohmann::ordered_json percentiles(const sim::Percentiles& p) {
  return {{"mean", p.mean}, {"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}};
}

nlohmann::ordered_json summary(const sim::FleetResult& r, double simulate_s, double all_s) {
  return {{"requests", r.requests},
          {"rejected", r.rejected},
          {"seconds", r.seconds},
          {"ttft_s", percentiles(r.ttft)},
          {"tpot_s", percentiles(r.tpot)},
          {"output_tokens_per_s", r.output_tokens_per_s},
          {"hit_share", r.hit_share},
          {"loaded_share", r.loaded_share},
          {"goodput_per_s", r.goodput},
          {"busy_share", r.busy_share},
          {"unstable", r.unstable},
          {"preemptions", r.preemptions},
          {"passes", r.passes},
          {"passes_executed", r.passes_executed},
          {"checks",
           {{"tokens_conserved", r.tokens_conserved},
            {"blocks_conserved", r.blocks_conserved},
            {"little_error", r.little_error}}},
          {"wall_s", all_s},
          {"simulate_s", simulate_s},
          {"events_per_s", static_cast<double>(r.passes_executed) / simulate_s},
          {"peak_mib", peak_mib()}};
}

void print_summary(const sim::FleetResult& r, double simulate_s, double all_s) {
  const auto line = [](const char* name, const sim::Percentiles& p, double unit, const char* what) {
    fmt::print("{:<10} mean {:>9.3f}  p50 {:>9.3f}  p90 {:>9.3f}  p99 {:>9.3f} {}\n", name, p.mean * unit, p.p50 * unit,
               p.p90 * unit, p.p99 * unit, what);
  };
  fmt::print("requests   {} in {:.1f} s simulated, {} rejected{}\n", r.requests, r.seconds, r.rejected,
             r.unstable ? "; UNSTABLE: queues grew to the end of the arrivals" : "");
  line("TTFT", r.ttft, 1, "s");
  line("TPOT", r.tpot, 1e3, "ms");
  fmt::print("output     {:.0f} tokens/s; goodput {:.3f} requests/s within the SLA\n", r.output_tokens_per_s,
             r.goodput);
  fmt::print("prompts    {:.2f} % from the own cache, {:.2f} % from the depot\n", 100 * r.hit_share,
             100 * r.loaded_share);
  fmt::print("engines    {:.1f} % busy, {} preemptions\n", 100 * r.busy_share, r.preemptions);
  fmt::print("passes     {} ({} executed, the others taken in closed form)\n", r.passes, r.passes_executed);
  fmt::print("checks     tokens {}, blocks {}, Little's law within {:.2g}\n", r.tokens_conserved ? "conserved" : "LOST",
             r.blocks_conserved ? "conserved" : "LEAKED", r.little_error);
  fmt::print("took       {:.3f} s ({:.3f} s simulating, {:.2f} million executed passes a second), {:.0f} MiB\n", all_s,
             simulate_s, 1e-6 * static_cast<double>(r.passes_executed) / simulate_s, peak_mib());
}

}  // namespace

int run_sim_run(const SimRunFlags& flags) {
  const auto start = std::chrono::steady_clock::now();
  const auto text = read_text(flags.config);
  if (!text) return complain(text.error());
  auto config = read_sim_config(*text, flags.config, flags.set);
  if (!config) return complain(config.error().str());
  config->fleet.skip = !flags.no_skip;
  config->fleet.keep_records = !flags.requests.empty();
  trace::Trace trace;
  std::unique_ptr<sim::ArrivalSource> source;
  if (config->trace_path.empty()) {
    source = sim::shared_prefix_source(config->shared_prefix);
  } else {
    const auto trace_text = read_text(config->trace_path);
    if (!trace_text) return complain(trace_text.error());
    trace::ReadOptions options;
    options.context_tokens_max = config->context_tokens_max;
    auto read = trace::read_trace(*trace_text, config->trace_path, options);
    if (!read) return complain(read.error().str());
    trace = std::move(*read);
    source = sim::trace_source(trace, config->trace);
  }
  const std::uint32_t block = config->fleet.engine.block_tokens;
  if (source->unit_tokens() % block != 0) {
    return complain(
        fmt::format("engine.block_tokens = {}: prefixes of this workload come in units of {} tokens, which "
                    "must be whole blocks",
                    block, source->unit_tokens()));
  }
  config->fleet.engine.unit_blocks = source->unit_tokens() / block;
  const auto simulating = std::chrono::steady_clock::now();
  const sim::FleetResult result = sim::run_fleet(config->fleet, *source);
  const double simulate_s = since(simulating);
  if (!flags.requests.empty()) {
    const std::string error = write_text(flags.requests, requests_csv(result));
    if (!error.empty()) return complain(error);
  }
  if (flags.json) {
    fmt::print("{}\n", summary(result, simulate_s, since(start)).dump(1));
  } else {
    print_summary(result, simulate_s, since(start));
  }
  const bool sound = result.tokens_conserved && result.blocks_conserved && result.little_error < 0.01;
  return sound ? 0 : kBroken;
}

}  // namespace kvd::cmd
