// What a fleet's run is summed up to, and the checks that every run makes of itself. Owned by the run; no locking.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/fleet.h"

namespace kvd::sim {

// A request from the moment at which the workload asked for it to its first token, in seconds.
struct Wait {
  float scheduled_s = 0;  // since the backlog was last empty
  float seconds = 0;
};

// Picoseconds of all instances together: 64 bits would end after 2.5 hours of a thousand.
using TotalPicoseconds = __int128;

class FleetStats {
 public:
  explicit FleetStats(const FleetConfig& config);

  // A request that was asked for at `scheduled` arrives at `time`: samples how many are unfinished, which tells whether
  // queues grow.
  void arrivals_until(model::Picoseconds scheduled, model::Picoseconds time);
  void arrived(const Arrival& arrival);
  // It is too long for an instance.
  void reject(const Arrival& arrival);
  // `passes` passes have run as one event that took `time`.
  void ran(std::uint64_t passes, model::Picoseconds time) noexcept {
    ++result_.passes_executed;
    result_.passes += passes;
    busy_ += time;
  }
  // The request has its last token; `generated` is what the engine counted.
  void left(const RequestRecord& record, std::uint32_t generated);
  void add_preemptions(std::uint64_t count) noexcept { result_.preemptions += count; }
  // Requests over time, in seconds, that an instance has had by its own count: one side of Little's law. The other one
  // is what requests took by their records.
  void add_presence(double seconds) noexcept { present_s_ += seconds; }

  [[nodiscard]] TotalPicoseconds busy() const noexcept { return busy_; }
  // Requests that have arrived and not left.
  [[nodiscard]] std::uint64_t in_flight() const noexcept { return in_flight_; }
  // Fills in what finished requests add up to.
  void add_totals(FleetSample& sample) const noexcept;

  FleetResult finish(bool blocks_conserved, const std::array<TierTraffic, kTiers>& traffic);

 private:
  void begin_backlog(model::Picoseconds scheduled);
  void count_unfinished();

  const FleetConfig& config_;
  FleetResult result_;
  std::vector<float> ttft_;
  std::vector<float> tpot_;
  // Since the backlog was last empty, which begins these anew:
  std::vector<float> unfinished_;  // when each request was asked for
  std::vector<Wait> waits_;
  // and where the load generator holds requests back:
  std::vector<model::Picoseconds> scheduled_;
  std::vector<model::Picoseconds> ended_;
  std::vector<float> ttft_scheduled_;  // of the whole run, where requests are held back
  model::Picoseconds warmup_ = 0;
  model::Picoseconds begin_ = -1;        // first arrival that counts
  model::Picoseconds first_ = -1;        // first arrival
  model::Picoseconds backlog_from_ = 0;  // when what is unfinished now began to pile up
  model::Picoseconds last_end_ = -1;     // of a request
  model::Picoseconds last_arrival_ = 0;
  model::Picoseconds last_ = 0;
  TotalPicoseconds busy_ = 0;
  double present_s_ = 0;  // requests that instances had, over time
  double latency_s_ = 0;  // of finished requests
  std::uint64_t in_flight_ = 0;
  std::uint64_t tokens_asked_ = 0;
  std::uint64_t tokens_made_ = 0;
  std::uint64_t outputs_ = 0;
  std::uint64_t prompts_ = 0;
  std::uint64_t hits_ = 0;
  std::uint64_t loads_ = 0;
  std::uint64_t good_ = 0;
  struct Totals {  // with the warm-up
    std::uint64_t prompts = 0;
    std::uint64_t hits = 0;
    std::uint64_t loads = 0;
  } all_;
};

}  // namespace kvd::sim
