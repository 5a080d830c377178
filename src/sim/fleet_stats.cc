#include "sim/fleet_stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvd::sim {

using model::kPicosecondsPerSecond;

namespace {

double seconds(model::Picoseconds time) { return static_cast<double>(time) / kPicosecondsPerSecond; }

double mean(const float* begin, const float* end) {
  return begin == end ? 0 : std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
}

// The smallest value that `share` of all values do not exceed.
double at_share(std::vector<float>& values, double share) {
  const auto rank = static_cast<std::ptrdiff_t>(std::ceil(share * static_cast<double>(values.size())));
  const auto at = values.begin() + std::max<std::ptrdiff_t>(rank - 1, 0);
  std::ranges::nth_element(values, at);
  return static_cast<double>(*at);
}

Percentiles percentiles(std::vector<float>& values) {
  if (values.empty()) return {};
  return {mean(values.data(), values.data() + values.size()), at_share(values, 0.5), at_share(values, 0.9),
          at_share(values, 0.99), values.size()};
}

// Unfinished requests in the last third of the arrivals since the backlog was last empty, against the first third.
bool grew(const std::vector<float>& unfinished, std::uint32_t instances) {
  const std::size_t third = unfinished.size() / 3;
  if (third == 0) return false;
  const float* const at = unfinished.data();
  const double begin = mean(at, at + third);
  const double end = mean(at + 2 * third, at + unfinished.size());
  return end > 1.5 * begin && end - begin > 8.0 * instances;
}

// Less overload than this is not told apart from the queue of a fleet that keeps up.
constexpr double kOverloadMin = 0.02;

// How long requests of the last third of the arrivals waited for their first token, for each second since the backlog
// was last empty. Where work comes rho times as fast as it is done, the wait grows by rho - 1 with every second from
// there on, and what is left behind the last arrival takes rho - 1 of that time to drain: this is the overload. A queue
// that gets just what it can serve comes as far as some 1/sqrt(n) by chance, with Poisson arrivals: twice that is asked
// for. A prompt's own time stays below: one instance computes n of them within the span. Requests that are all asked
// for at once have no rate that could be too high.
bool overloaded(std::vector<Wait>& waits) {
  const auto third = static_cast<std::ptrdiff_t>(waits.size() / 3);
  if (third == 0) return false;
  const auto later = waits.end() - third;
  std::ranges::nth_element(waits, later, {}, &Wait::scheduled_s);
  double waited = 0;
  double elapsed = 0;
  bool at_once = true;
  for (auto wait = later; wait != waits.end(); ++wait) {
    waited += static_cast<double>(wait->seconds);
    elapsed += static_cast<double>(wait->scheduled_s);
    at_once = at_once && wait->scheduled_s == later->scheduled_s;
  }
  const double chance = 2 / std::sqrt(static_cast<double>(waits.size()));
  return !at_once && waited > std::max(kOverloadMin, chance) * elapsed;
}

}  // namespace

FleetStats::FleetStats(const FleetConfig& config) : config_(config), warmup_(model::picoseconds(config.warmup_s)) {}

void FleetStats::arrivals_until(model::Picoseconds scheduled, model::Picoseconds time) {
  if (first_ < 0) first_ = time;
  last_ = last_arrival_ = time;
  if (in_flight_ == 0 && last_end_ < scheduled) begin_backlog(scheduled);
  if (time >= warmup_ && begin_ < 0) begin_ = time;
  if (config_.in_flight_max > 0) {
    scheduled_.push_back(scheduled);
  } else {
    unfinished_.push_back(static_cast<float>(in_flight_));
  }
}

// Nothing is left of what was asked for before.
void FleetStats::begin_backlog(model::Picoseconds scheduled) {
  backlog_from_ = scheduled;
  unfinished_.clear();
  waits_.clear();
  scheduled_.clear();
  ended_.clear();
}

// Those that were asked for before, less those that have ended: what the load generator holds back counts, too.
void FleetStats::count_unfinished() {
  std::size_t ended = 0;
  for (std::size_t asked = 0; asked < scheduled_.size(); ++asked) {
    while (ended < ended_.size() && ended_[ended] < scheduled_[asked]) ++ended;
    unfinished_.push_back(static_cast<float>(asked - ended));
  }
}

void FleetStats::arrived(const Arrival& arrival) {
  ++in_flight_;
  tokens_asked_ += arrival.output;
}

void FleetStats::reject(const Arrival& arrival) {
  const std::uint64_t tokens = std::uint64_t{arrival.prompt} + arrival.output;
  result_.rejected_shortest = result_.rejected == 0 ? tokens : std::min(result_.rejected_shortest, tokens);
  ++result_.rejected;
  last_end_ = arrival.time;
  if (config_.in_flight_max > 0) ended_.push_back(arrival.time);
}

void FleetStats::left(const RequestRecord& record, std::uint32_t generated) {
  last_ = last_end_ = record.finish;
  --in_flight_;
  tokens_made_ += generated;
  latency_s_ += seconds(record.finish - record.arrival);
  if (config_.in_flight_max > 0) ended_.push_back(record.finish);
  const double wait = seconds(record.first_token - record.scheduled);
  waits_.push_back({static_cast<float>(seconds(record.scheduled - backlog_from_)), static_cast<float>(wait)});
  if (config_.keep_records) result_.records.push_back(record);
  all_.prompts += record.prompt;
  all_.hits += record.hit_tokens;
  all_.loads += record.loaded_tokens;
  if (record.arrival < warmup_) {
    ++result_.warmup_requests;
    return;
  }
  ++result_.requests;
  const double ttft = seconds(record.first_token - record.arrival);
  ttft_.push_back(static_cast<float>(ttft));
  if (config_.in_flight_max > 0) {
    ttft_scheduled_.push_back(static_cast<float>(wait));
  }
  double tpot = 0;
  if (record.output > 1) {
    tpot = seconds(record.finish - record.first_token) / (record.output - 1);
    tpot_.push_back(static_cast<float>(tpot));
  }
  if (ttft <= config_.sla_ttft_s && tpot <= config_.sla_tpot_s) ++good_;
  outputs_ += record.output;
  prompts_ += record.prompt;
  hits_ += record.hit_tokens;
  loads_ += record.loaded_tokens;
}

void FleetStats::add_totals(FleetSample& sample) const noexcept {
  sample.output_tokens = static_cast<double>(tokens_made_);
  sample.prompt_tokens = static_cast<double>(all_.prompts);
  sample.hit_tokens = static_cast<double>(all_.hits);
  sample.loaded_tokens = static_cast<double>(all_.loads);
}

FleetResult FleetStats::finish(bool blocks_conserved, const std::array<TierTraffic, kTiers>& traffic) {
  result_.ttft = percentiles(ttft_);
  result_.ttft_scheduled = percentiles(ttft_scheduled_);
  result_.tpot = percentiles(tpot_);
  result_.unfinished = in_flight_;
  result_.last_arrival_s = seconds(last_arrival_);
  result_.seconds = seconds(last_ - std::max<model::Picoseconds>(begin_, 0));
  const double span = std::max(result_.seconds, 1e-12);
  result_.output_tokens_per_s = static_cast<double>(outputs_) / span;
  result_.goodput = static_cast<double>(good_) / span;
  if (prompts_ > 0) {
    result_.hit_share = static_cast<double>(hits_) / static_cast<double>(prompts_);
    result_.loaded_share = static_cast<double>(loads_) / static_cast<double>(prompts_);
  }
  result_.busy_share = static_cast<double>(busy_) / kPicosecondsPerSecond /
                       (std::max(seconds(last_ - first_), 1e-12) * config_.instances);
  count_unfinished();
  result_.unstable = grew(unfinished_, config_.instances) && overloaded(waits_);
  const double both = std::max(present_s_, latency_s_);
  result_.little_error = both > 0 ? std::fabs(present_s_ - latency_s_) / both : 0;
  result_.tokens_conserved = tokens_asked_ == tokens_made_ && in_flight_ == 0;
  result_.blocks_conserved = blocks_conserved;
  result_.traffic = traffic;
  double sent = 0;
  for (const TierTraffic& t : traffic) sent += t.read_bytes;
  const double given = static_cast<double>(all_.loads) * config_.tiers.kv_bytes_per_token;
  result_.loads_conserved = std::fabs(sent - given) <= 1e-9 * std::max(sent, 1.0);
  return std::move(result_);
}

}  // namespace kvd::sim
