// Discrete-event simulation of a fleet of engines: routing, engines as vLLM V1 schedules them, their prefix caches, and
// one depot that all of them share. One global order of events (time, then instance); pure: no threads, no clock, no
// I/O; the same configuration and source give the same bytes out.
//
// Runs of passes in which sequences only decode are taken at once, in closed form and in whole picoseconds; `skip` off
// takes every pass by itself and gives the same records.
//
// Memory: what is in flight, 8 bytes a request for percentiles, and a record a request where they are kept.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/linear_pass.h"
#include "sched/v1_engine.h"
#include "sim/arrivals.h"

namespace kvd::sim {

// One depot behind all instances. A request whose prefix goes on there fetches it before its first pass, over its
// instance's own link, one fetch after the other, if that is sooner than computing it. What a prefill computed is there
// when its pass ends; writes use a link direction of their own and hold nobody up.
struct DepotConfig {
  bool on = false;
  double bytes_per_s = 0;        // an instance
  double latency_s = 0;          // a fetch
  std::uint64_t tokens_max = 0;  // capacity; 0 = unbounded
  double kv_bytes_per_token = 0;
};

struct FleetConfig {
  std::uint32_t instances = 1;
  sched::V1Config engine;
  model::LinearPass pass;
  std::string policy = "least-request";  // of route::kPolicyNames
  DepotConfig depot;
  std::uint64_t seed = 1;
  bool skip = true;
  double warmup_s = 0;    // requests that arrive earlier are simulated and left out of the summary
  double sla_ttft_s = 5;  // goodput: both within
  double sla_tpot_s = 0.05;
  bool keep_records = false;
};

struct RequestRecord {
  model::Picoseconds arrival = 0;
  model::Picoseconds first_token = 0;
  model::Picoseconds finish = 0;
  std::uint32_t instance = 0;
  std::uint32_t prompt = 0;
  std::uint32_t output = 0;
  std::uint32_t hit_tokens = 0;     // in the instance's own cache
  std::uint32_t loaded_tokens = 0;  // from the depot
  std::uint32_t preemptions = 0;
};

struct Percentiles {
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
};

struct FleetResult {
  std::uint64_t requests = 0;  // finished, after the warm-up
  std::uint64_t rejected = 0;  // too long for an instance
  double seconds = 0;          // from the first arrival that counts to the last token
  Percentiles ttft;
  Percentiles tpot;  // of requests with at least two tokens
  double output_tokens_per_s = 0;
  double hit_share = 0;  // of prompt tokens
  double loaded_share = 0;
  double goodput = 0;  // requests a second within the SLA
  double busy_share = 0;
  bool unstable = false;  // queues grew to the end of the arrivals: the means describe the length of the run
  std::uint64_t passes = 0;
  std::uint64_t passes_executed = 0;  // the others were taken in closed form
  std::uint64_t preemptions = 0;
  double little_error = 0;  // relative difference of both sides of Little's law
  bool tokens_conserved = false;
  bool blocks_conserved = false;
  std::vector<RequestRecord> records;  // in order of their end, where kept
};

// Runs until the last request has its last token. Requires a policy of route::kPolicyNames, at least one instance, and
// an engine whose blocks divide the source's units.
FleetResult run_fleet(const FleetConfig& config, ArrivalSource& source);

}  // namespace kvd::sim
