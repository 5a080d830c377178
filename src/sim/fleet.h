// Discrete-event simulation of a fleet of engines: routing, engines as vLLM V1 schedules them, their prefix caches, and
// the tiers behind those: DRAM and flash of each instance, one depot that all of them share (tiers.h). One global order
// of events (time, then instance); pure: no threads, no clock, no I/O; the same configuration and source give the same
// bytes out.
//
// Runs of passes in which sequences only decode are taken at once, in closed form and in whole picoseconds; `skip` off
// takes every pass by itself and gives the same records.
//
// Memory: what is in flight, 20 bytes a request for percentiles and the check of stability (40 where the load generator
// holds requests back), and what is kept: a record a request, a record an event, samples over time (fleet_series.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "model/linear_pass.h"
#include "sched/v1_engine.h"
#include "sim/arrivals.h"
#include "sim/fleet_series.h"
#include "sim/tiers.h"

namespace kvd::sim {

struct FleetConfig {
  std::uint32_t instances = 1;
  sched::V1Config engine;
  model::LinearPass pass;
  std::string policy = "least-request";  // of route::kPolicyNames
  // The router knows queues and KV use as they were at the last multiple of this; 0 = as they are. What it has sent
  // itself and which prefixes are cached it knows at once.
  double metrics_age_s = 0;
  // Most requests that the load generator has in flight; the next ones wait there, in order. 0 = no limit.
  std::uint32_t in_flight_max = 0;
  TiersConfig tiers;
  std::uint64_t seed = 1;
  bool skip = true;
  double warmup_s = 0;    // requests that arrive earlier are simulated and left out of the summary
  double sla_ttft_s = 5;  // goodput: both within
  double sla_tpot_s = 0.05;
  bool keep_records = false;
  bool keep_passes = false;
  double sample_s = 0;  // samples over time, that far apart at first; 0 = none
  // Fleets of more instances lie in huge pages, some 10 KiB each: faster, and otherwise the same (fleet.cc says why).
  std::uint32_t ordinary_pages_max = 256;
};

struct RequestRecord {
  model::Picoseconds arrival = 0;  // at the router
  model::Picoseconds first_token = 0;
  model::Picoseconds finish = 0;
  std::uint32_t instance = 0;
  std::uint32_t prompt = 0;
  std::uint32_t output = 0;
  std::uint32_t hit_tokens = 0;     // in the instance's own cache
  std::uint32_t loaded_tokens = 0;  // from tiers behind it
  std::uint32_t preemptions = 0;
  model::Picoseconds scheduled = 0;  // when the workload asked for it: before `arrival` where it was held back
};

// One event: `passes` passes that were taken at once, the first of which held this.
struct FleetPass {
  model::Picoseconds start = 0;
  model::Picoseconds end = 0;
  std::uint32_t instance = 0;
  std::uint64_t passes = 0;
  sched::V1Pass pass;
};

struct Percentiles {
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  std::uint64_t count = 0;  // of values; with none the others say nothing
};

struct FleetResult {
  std::uint64_t requests = 0;           // finished, after the warm-up
  std::uint64_t warmup_requests = 0;    // finished, arrived in the warm-up
  std::uint64_t unfinished = 0;         // when the run ended; 0, since it ends with the last token
  std::uint64_t rejected = 0;           // too long for an instance
  std::uint64_t rejected_shortest = 0;  // prompt and answer of the shortest of these, tokens
  double last_arrival_s = 0;            // of all
  double seconds = 0;                   // from the first arrival that counts to the last token
  Percentiles ttft;                     // from the arrival
  Percentiles ttft_scheduled;           // from when the workload asked, where in_flight_max holds requests back
  Percentiles tpot;                     // of requests with at least two tokens
  double output_tokens_per_s = 0;
  double hit_share = 0;  // of prompt tokens
  double loaded_share = 0;
  double goodput = 0;  // requests a second within the SLA
  double busy_share = 0;
  // Queues grew from where they were last empty to the end of the arrivals (the load generator's, too) for want of
  // speed, not with the load: times are of the run's length then, not of the fleet, and have no business in a report.
  // docs/sim.md has the rule.
  bool unstable = false;
  std::uint64_t passes = 0;
  std::uint64_t passes_executed = 0;  // the others were taken in closed form
  std::uint64_t preemptions = 0;
  // Relative difference of both sides of Little's law: requests over time by the engines' own counts, and what requests
  // took by their records.
  double little_error = 0;
  bool out_of_time = false;  // kClockMaxS was reached first; nothing else is to be taken from here then
  bool tokens_conserved = false;
  bool blocks_conserved = false;
  bool loads_conserved = false;  // what requests were given by tiers is what the tiers sent
  std::array<TierTraffic, kTiers> traffic;
  std::vector<RequestRecord> records;  // in order of their end, where kept
  std::vector<FleetPass> pass_log;     // in order of their end, where kept
  std::vector<FleetSample> samples;    // where asked for
};

// Until when fleets are simulated, 104 days: picoseconds in 64 bits reach 106, and passes under way need time to end.
inline constexpr double kClockMaxS = 9'000'000;

// Runs until the last request has its last token, or until kClockMaxS. Requires a policy of route::kPolicyNames, at
// least one instance, and an engine whose blocks divide the source's units.
FleetResult run_fleet(const FleetConfig& config, ArrivalSource& source);

}  // namespace kvd::sim
