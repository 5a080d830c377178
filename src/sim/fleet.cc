#include "sim/fleet.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>

#include "base/check.h"
#include "route/policy.h"
#include "sim/event_tree.h"
#include "sim/fleet_stats.h"

namespace kvd::sim {

using model::kPicosecondsPerSecond;
using sched::V1Id;

namespace {

class Fleet;

// The depot as one instance sees it: its link, and what is on its way.
class DepotLink final : public sched::OtherTier {
 public:
  explicit DepotLink(Fleet& fleet) : fleet_(fleet) {}
  std::uint32_t match(const sched::V1Request& request, std::uint32_t have, std::uint32_t most) override;
  void fetch(V1Id id, std::uint32_t have, std::uint32_t to) override;

  struct Load {
    Picoseconds ready;
    V1Id id;
  };
  std::deque<Load> loads;  // in order of their end: the link serves one after the other
  Picoseconds now = 0;     // when the pass that asks is decided

 private:
  Fleet& fleet_;
  Picoseconds free_at_ = 0;
};

struct Instance {
  Instance(const sched::V1Config& config, std::vector<sched::V1Request>& requests, Fleet& fleet, bool depot)
      : link(fleet), engine(config, requests, depot ? &link : nullptr) {}
  DepotLink link;
  sched::V1Engine engine;
  sched::V1Pass pass;
  Picoseconds start = 0;  // of the passes in progress
  std::int64_t run = 0;   // how many; 0 = none
};

class Fleet {
 public:
  Fleet(const FleetConfig& config, ArrivalSource& source)
      : config_(config),
        source_(source),
        policy_(route::make_policy(config.policy, config.seed)),
        events_(config.instances),
        outstanding_(config.instances),
        waiting_(config.instances),
        kv_used_(config.instances),
        stats_(config) {
    KVD_CHECK(policy_ != nullptr);
    KVD_CHECK(config.engine.block_tokens * config.engine.unit_blocks == source.unit_tokens());
    if (config.depot.on) {
      const std::uint64_t blocks = config.depot.tokens_max / config.engine.block_tokens;
      const bool bounded = blocks > 0 && blocks < UINT32_MAX;
      depot_ = std::make_unique<sched::PrefixCache>(bounded ? static_cast<std::uint32_t>(blocks) : UINT32_MAX,
                                                    config.engine.unit_blocks);
    }
    for (std::uint32_t i = 0; i < config.instances; ++i) {
      instances_.push_back(std::make_unique<Instance>(config.engine, requests_, *this, config.depot.on));
    }
  }

  FleetResult run() {
    Arrival arrival;
    while (source_.next(arrival)) {
      while (events_.first_time() < arrival.time) next_event();
      stats_.arrivals_until(arrival.time);
      arrive(arrival);
    }
    while (events_.first_time() != EventTree::kNever) next_event();
    bool conserved = true;
    for (const auto& in : instances_) conserved &= in->engine.cache().used() == 0 && in->engine.waiting() == 0;
    for (const auto& in : instances_) stats_.add_preemptions(in->engine.preemptions());
    return stats_.finish(conserved);
  }

  sched::PrefixCache* depot() { return depot_.get(); }
  const FleetConfig& config() const { return config_; }
  // Time to compute the prompt's tokens have..to in passes of their own: what a fetch competes with.
  [[nodiscard]] Picoseconds compute_time(std::uint64_t have, std::uint64_t to) const {
    const std::uint64_t n = to - have;
    const std::uint64_t pairs = n * have + n * (n + 1) / 2;
    return config_.pass.token * static_cast<Picoseconds>(n) + config_.pass.pair * static_cast<Picoseconds>(pairs);
  }

 private:
  class Match final : public route::PrefixMatch {
   public:
    Match(const Fleet& fleet, const Arrival& arrival) : fleet_(fleet), arrival_(arrival) {}
    std::uint32_t tokens(std::uint32_t instance) const override {
      return fleet_.instances_[instance]->engine.match_tokens(arrival_.units, arrival_.prompt);
    }

    std::uint32_t prompt_tokens() const override { return arrival_.prompt; }

   private:
    const Fleet& fleet_;
    const Arrival& arrival_;
  };

  void arrive(const Arrival& arrival) {
    if (policy_->reads_engines()) look_at_engines(arrival.time);
    const std::uint32_t i = policy_->pick({outstanding_, waiting_, kv_used_}, Match(*this, arrival));
    const V1Id id = slot_for(arrival, i);
    Instance& in = *instances_[i];
    if (!in.engine.enqueue(id)) {
      free_slots_.push_back(id);
      stats_.reject(arrival.time);
      return;
    }
    ++outstanding_[i];
    stats_.arrived(arrival);
    if (in.run == 0) {
      start_pass(i, arrival.time);
    } else if (in.run > 1) {
      // The queue is looked at before each pass: the run ends with the pass that is under way.
      const std::int64_t begun = passes_begun(in, arrival.time);
      if (begun < in.run) set_run(i, begun);
    }
  }

  V1Id slot_for(const Arrival& arrival, std::uint32_t instance) {
    V1Id id = static_cast<V1Id>(requests_.size());
    if (free_slots_.empty()) {
      requests_.emplace_back();
      slots_.emplace_back();
    } else {
      id = free_slots_.back();
      free_slots_.pop_back();
    }
    requests_[id] = sched::V1Request{arrival.units, arrival.prompt, arrival.output};
    slots_[id] = RequestRecord{arrival.time, 0, 0, instance, arrival.prompt, arrival.output};
    return id;
  }

  // Queues, KV use and caches as they are at `now`, in the middle of runs too.
  void look_at_engines(Picoseconds now) {
    for (std::uint32_t i = 0; i < config_.instances; ++i) {
      Instance& in = *instances_[i];
      if (in.run > 1) in.engine.begun(static_cast<std::uint64_t>(passes_begun(in, now)));
      waiting_[i] = in.engine.waiting();
      kv_used_[i] = static_cast<float>(in.engine.cache().used()) / static_cast<float>(config_.engine.blocks);
    }
  }

  [[nodiscard]] Picoseconds duration(const Instance& in, std::int64_t passes) const {
    const auto decodes = static_cast<std::int64_t>(in.pass.decodes);
    const auto context = static_cast<std::int64_t>(in.pass.context);
    if (passes != 1) return config_.pass.decode_run(passes, decodes, context);
    return config_.pass.pass(static_cast<std::int64_t>(in.pass.prefill_tokens),
                             static_cast<std::int64_t>(in.pass.pairs), decodes, context);
  }

  // How many passes of the run begin before `time`, at least the first.
  [[nodiscard]] std::int64_t passes_begun(const Instance& in, Picoseconds time) const {
    std::int64_t begun = 1;
    for (std::int64_t end = in.run + 1; end - begun > 1;) {
      const std::int64_t middle = begun + (end - begun) / 2;
      (in.start + duration(in, middle - 1) < time ? begun : end) = middle;
    }
    return begun;
  }

  void set_run(std::uint32_t i, std::int64_t passes) {
    Instance& in = *instances_[i];
    in.run = passes;
    events_.set(i, in.start + duration(in, passes));
  }

  void start_pass(std::uint32_t i, Picoseconds now) {
    Instance& in = *instances_[i];
    auto& loads = in.link.loads;
    for (; !loads.empty() && loads.front().ready <= now; loads.pop_front()) in.engine.loaded(loads.front().id);
    in.link.now = now;
    in.pass = in.engine.schedule();
    // When the last running request was preempted for want of blocks, the queue gets its turn at once.
    if (in.pass.run == 0 && in.engine.running() == 0 && in.engine.waiting() > 0) in.pass = in.engine.schedule();
    in.start = now;
    in.run = 0;
    if (in.pass.run == 0) {
      events_.set(i, loads.empty() ? EventTree::kNever : loads.front().ready);
      return;
    }
    in.run = config_.skip ? static_cast<std::int64_t>(in.pass.run) : 1;
    if (in.run > 1 && !loads.empty()) in.run = passes_begun(in, loads.front().ready);
    set_run(i, in.run);
  }

  void next_event() {
    const std::uint32_t i = events_.first();
    const Picoseconds now = events_.first_time();
    Instance& in = *instances_[i];
    if (in.run > 0) {
      in.engine.complete(static_cast<std::uint64_t>(in.run), first_, done_);
      stats_.ran(static_cast<std::uint64_t>(in.run), now - in.start);
      for (const V1Id id : first_) {
        slots_[id].first_token = now;
        const sched::V1Request& r = requests_[id];
        if (depot_) depot_->remember(r.units, r.prompt / config_.engine.block_tokens);
      }
      for (const V1Id id : done_) leave(id, now);
    }
    start_pass(i, now);
  }

  void leave(V1Id id, Picoseconds now) {
    RequestRecord& record = slots_[id];
    const sched::V1Request& r = requests_[id];
    record.finish = now;
    record.hit_tokens = r.hit_tokens;
    record.loaded_tokens = r.loaded_tokens;
    record.preemptions = r.preemptions;
    --outstanding_[record.instance];
    stats_.left(record, r.generated);
    free_slots_.push_back(id);
  }

  const FleetConfig& config_;
  ArrivalSource& source_;
  std::unique_ptr<route::Policy> policy_;
  EventTree events_;
  std::vector<sched::V1Request> requests_;  // by slot; slots are used again
  std::vector<RequestRecord> slots_;
  std::vector<V1Id> free_slots_;
  std::vector<std::unique_ptr<Instance>> instances_;
  std::vector<std::uint32_t> outstanding_;
  std::vector<std::uint32_t> waiting_;
  std::vector<float> kv_used_;
  std::unique_ptr<sched::PrefixCache> depot_;
  FleetStats stats_;
  std::vector<V1Id> first_;
  std::vector<V1Id> done_;
};

std::uint32_t DepotLink::match(const sched::V1Request& request, std::uint32_t have, std::uint32_t most) {
  const std::uint32_t there = fleet_.depot()->match(request.units, most);
  if (there <= have) return have;
  const DepotConfig& depot = fleet_.config().depot;
  const std::uint64_t block = fleet_.config().engine.block_tokens;
  const double bytes = static_cast<double>((there - have) * block) * depot.kv_bytes_per_token;
  const Picoseconds wait = std::max<Picoseconds>(0, free_at_ - now);
  const auto fetch = std::llround((bytes / depot.bytes_per_s + depot.latency_s) * kPicosecondsPerSecond);
  return wait + fetch < fleet_.compute_time(have * block, there * block) ? there : have;
}

void DepotLink::fetch(V1Id id, std::uint32_t have, std::uint32_t to) {
  const DepotConfig& depot = fleet_.config().depot;
  const std::uint64_t tokens = std::uint64_t{to - have} * fleet_.config().engine.block_tokens;
  const double seconds = static_cast<double>(tokens) * depot.kv_bytes_per_token / depot.bytes_per_s + depot.latency_s;
  free_at_ = std::max(now, free_at_) + std::llround(seconds * kPicosecondsPerSecond);
  loads.push_back({free_at_, id});
}

}  // namespace

FleetResult run_fleet(const FleetConfig& config, ArrivalSource& source) { return Fleet(config, source).run(); }

}  // namespace kvd::sim
