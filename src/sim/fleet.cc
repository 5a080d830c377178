#include "sim/fleet.h"

#include <algorithm>
#include <memory>
#include <memory_resource>

#include "base/check.h"
#include "base/huge_pages.h"
#include "base/random.h"
#include "route/policy.h"
#include "sim/event_tree.h"
#include "sim/fleet_stats.h"

namespace kvd::sim {

using model::kPicosecondsPerSecond;
using sched::V1Id;

namespace {

constexpr auto kLatest = static_cast<Picoseconds>(kClockMaxS * kPicosecondsPerSecond);
static_assert(kTransferEndMax > kLatest);
constexpr double kRunMax = 1e17;  // picoseconds of passes that are taken at once: below what is left behind kLatest

// What every pass touches comes first, and an instance begins a line of the processor's cache: in a fleet of thousands
// it has left the caches when its next pass comes.
struct alignas(64) Instance {
  Instance(const FleetConfig& config, std::vector<sched::V1Request>& requests, TierStore* depot,
           std::pmr::memory_resource* memory)
      : tiers(make_tiers(config, requests, depot)), engine(config.engine, requests, tiers.get(), memory) {}

  static std::unique_ptr<InstanceTiers> make_tiers(const FleetConfig& config,
                                                   const std::vector<sched::V1Request>& requests, TierStore* depot) {
    if (!config.tiers.any()) return nullptr;
    return std::make_unique<InstanceTiers>(config.tiers, config.pass, requests, config.engine.block_tokens,
                                           config.engine.unit_blocks, depot);
  }

  // Adds up over time how many requests the engine has by its own count: to be asked when that should have changed.
  void count(Picoseconds now) noexcept {
    const std::uint32_t has = engine.waiting() + engine.running();
    if (has == counted) return;
    present += static_cast<double>(counted) * static_cast<double>(now - counted_at);
    counted = has;
    counted_at = now;
  }

  std::unique_ptr<InstanceTiers> tiers;  // null where there are none
  sched::V1Pass pass;
  Picoseconds start = 0;   // of the passes in progress
  Picoseconds single = 0;  // how long it takes, if it is one
  std::int64_t run = 0;    // how many; 0 = none
  sched::V1Engine engine;
  double present = 0;  // requests times picoseconds, until the count last changed
  std::uint32_t counted = 0;
  Picoseconds counted_at = 0;
};

// What the instances of a large fleet are made of: each pass of theirs finds another instance in memory, and with
// ordinary pages it would look up nearly every address there, too. Small fleets stay in the processor's caches, and a
// huge page takes longer to clear than their memory does.
class FleetMemory {
 public:
  explicit FleetMemory(bool large) noexcept : large_(large) {}
  std::pmr::memory_resource* get() noexcept { return large_ ? &pools_ : std::pmr::get_default_resource(); }

 private:
  static constexpr std::size_t kPooledMost = 1 << 20;  // bytes; what is larger would never be used again
  bool large_;
  HugePages pages_;
  std::pmr::monotonic_buffer_resource arena_{HugePages::kBytes, &pages_};
  std::pmr::unsynchronized_pool_resource pools_{{0, kPooledMost}, &arena_};
};

class Fleet {
 public:
  Fleet(const FleetConfig& config, ArrivalSource& source)
      : config_(config),
        source_(source),
        policy_(route::make_policy(config.policy, Random(~config.seed).next())),  // sources draw from the seed itself
        metrics_age_(policy_ != nullptr && policy_->reads_engines() ? model::picoseconds(config.metrics_age_s) : 0),
        events_(config.instances),
        outstanding_(config.instances),
        waiting_(config.instances),
        kv_used_(config.instances),
        memory_(config.instances > config.ordinary_pages_max),
        instances_(memory_.get()),
        series_(model::picoseconds(config.sample_s)),
        stats_(config) {
    KVD_CHECK(policy_ != nullptr);
    KVD_CHECK(config.engine.block_tokens * config.engine.unit_blocks == source.unit_tokens());
    const TierConfig& depot = config.tiers[Tier::kDepot];
    if (depot.on) {
      depot_ = std::make_unique<TierStore>(depot, config.tiers, config.engine.block_tokens, config.engine.unit_blocks);
    }
    instances_.reserve(config.instances);
    for (std::uint32_t i = 0; i < config.instances; ++i) {
      instances_.emplace_back(config, requests_, depot_.get(), memory_.get());
    }
  }

  FleetResult run() {
    Arrival arrival;
    while (!out_of_time_ && source_.next(arrival)) {
      const Picoseconds scheduled = arrival.time;
      arrival.time = std::max(arrival.time, sent_);
      while (events_.first_time() < arrival.time) next_event();
      if (config_.in_flight_max > 0) wait_for_room(arrival);
      sent_ = arrival.time;
      stats_.arrivals_until(scheduled, arrival.time);
      arrive(arrival, scheduled);
    }
    while (!out_of_time_ && events_.first_time() != EventTree::kNever) next_event();
    return finish();
  }

 private:
  class Match final : public route::PrefixMatch {
   public:
    Match(Fleet& fleet, const Arrival& arrival) : fleet_(fleet), arrival_(arrival) {}
    std::uint32_t tokens(std::uint32_t instance) const override {
      Instance& in = fleet_.instances_[instance];
      const std::uint32_t own = in.engine.match_tokens(arrival_.units, arrival_.prompt);
      if (in.tiers == nullptr) return own;
      const std::uint32_t block = fleet_.config_.engine.block_tokens;
      return std::max(own,
                      block * in.tiers->private_match(arrival_.units, (arrival_.prompt - 1) / block, arrival_.time));
    }

    std::uint32_t prompt_tokens() const override { return arrival_.prompt; }

   private:
    Fleet& fleet_;
    const Arrival& arrival_;
  };

  FleetResult finish() {
    bool conserved = true;
    std::array<TierTraffic, kTiers> traffic;
    for (const Instance& in : instances_) {
      conserved &= in.engine.cache().used() == 0 && in.engine.waiting() == 0;
      stats_.add_preemptions(in.engine.preemptions());
      stats_.add_presence(in.present / kPicosecondsPerSecond);
    }
    for_stores([&](std::size_t tier, TierStore& store) {
      traffic[tier].read_bytes += store.traffic.read_bytes;
      traffic[tier].written_bytes += store.traffic.written_bytes;
      traffic[tier].refused_bytes += store.traffic.refused_bytes;
    });
    FleetResult result = stats_.finish(conserved, traffic);
    result.out_of_time = out_of_time_;
    result.pass_log = std::move(pass_log_);
    result.samples = series_.take();
    return result;
  }

  // Each instance's own stores, and the depot once.
  template <class F>
  void for_stores(F&& visit) {
    for (const Instance& in : instances_) {
      for (const Tier t : {Tier::kDram, Tier::kFlash}) {
        TierStore* const store = in.tiers == nullptr ? nullptr : in.tiers->store(t);
        if (store != nullptr) visit(static_cast<std::size_t>(t), *store);
      }
    }
    if (depot_ != nullptr) visit(static_cast<std::size_t>(Tier::kDepot), *depot_);
  }

  void sample(Picoseconds now) {
    bring_up_to_date(now);
    FleetSample s;
    s.time_s = static_cast<double>(now) / kPicosecondsPerSecond;
    TotalPicoseconds busy = stats_.busy();
    for (const Instance& in : instances_) {
      const sched::PrefixCache& cache = in.engine.cache();
      s.waiting += in.engine.waiting();
      s.running += in.engine.running();
      s.kv_used += static_cast<double>(cache.used()) / cache.blocks() / config_.instances;
      s.kv_cached += static_cast<double>(cache.cached()) / cache.blocks() / config_.instances;
      if (in.run > 0) busy += now - in.start;
    }
    for_stores([&](std::size_t tier, TierStore& store) {
      s.tier_tokens[tier] += static_cast<double>(store.blocks_held(now)) * config_.engine.block_tokens;
      s.read_bytes[tier] += store.traffic.read_bytes;
      s.written_bytes[tier] += store.traffic.written_bytes;
    });
    s.busy_s = static_cast<double>(busy) / kPicosecondsPerSecond;
    stats_.add_totals(s);
    series_.add(s);
  }

  // The load generator sends its next request an instant after another has ended: 1 ps, so that all that happens at
  // that moment has happened, whether or not passes are skipped.
  void wait_for_room(Arrival& arrival) {
    while (stats_.in_flight() >= config_.in_flight_max && !out_of_time_) {
      const Picoseconds now = events_.first_time();
      KVD_CHECK(now != EventTree::kNever);
      next_event();
      arrival.time = std::max(arrival.time, now + 1);
    }
    while (events_.first_time() < arrival.time) next_event();
  }

  void arrive(const Arrival& arrival, Picoseconds scheduled) {
    look_until(arrival.time);
    if (policy_->reads_engines()) look_at_engines(arrival.time);
    const std::uint32_t i = policy_->pick({outstanding_, waiting_, kv_used_}, Match(*this, arrival));
    const V1Id id = slot_for(arrival, i);
    slots_[id].scheduled = scheduled;
    Instance& in = instances_[i];
    if (!in.engine.enqueue(id)) {
      free_slots_.push_back(id);
      stats_.reject(arrival);
      return;
    }
    in.count(arrival.time);
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

  // Caches and block counts as they are at `now`, in the middle of runs too.
  void bring_up_to_date(Picoseconds now) {
    for (Instance& in : instances_) {
      if (in.run > 1) in.engine.begun(static_cast<std::uint64_t>(passes_begun(in, now)));
    }
  }

  // Samples and readings of metrics that are due before what happens at `now`, in order of time: engines can be looked
  // at later and later only.
  void look_until(Picoseconds now) {
    while (series_.due() < now) {
      metrics_until(series_.due());
      sample(series_.due());
    }
    metrics_until(now);
  }

  // Where metrics have an age: reads them as their last multiple of it found them, unless that was done.
  void metrics_until(Picoseconds now) {
    if (metrics_age_ == 0) return;
    const Picoseconds at = now - now % metrics_age_;
    if (at <= metrics_at_) return;
    metrics_at_ = at;
    read_metrics(at);
  }

  // What the router knows of engines at `now`, for a request that comes then.
  void look_at_engines(Picoseconds now) {
    if (metrics_age_ == 0) {
      read_metrics(now);
    } else {
      bring_up_to_date(now);
    }
  }

  void read_metrics(Picoseconds now) {
    bring_up_to_date(now);
    for (std::uint32_t i = 0; i < config_.instances; ++i) {
      const Instance& in = instances_[i];
      waiting_[i] = in.engine.waiting();
      kv_used_[i] = static_cast<float>(in.engine.cache().used()) / static_cast<float>(config_.engine.blocks);
    }
  }

  [[nodiscard]] Picoseconds duration(const Instance& in, std::int64_t passes) const {
    const auto decodes = static_cast<std::int64_t>(in.pass.decodes);
    const auto context = static_cast<std::int64_t>(in.pass.context);
    if (passes == 1) return in.single;
    return config_.pass.decode_run(passes, decodes, context);
  }

  // Whether the passes of the run take longer, at the speed of the last one, which is the slowest.
  [[nodiscard]] bool longer_than(const Instance& in, double most) const {
    const auto passes = static_cast<double>(in.run);
    const double grown = static_cast<double>(config_.pass.context) * static_cast<double>(in.pass.decodes) * passes;
    return passes * (static_cast<double>(in.single) + grown) > most;
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
    Instance& in = instances_[i];
    in.run = passes;
    events_.set(i, in.start + duration(in, passes));
  }

  void start_pass(std::uint32_t i, Picoseconds now) {
    Instance& in = instances_[i];
    Picoseconds next_load = EventTree::kNever;
    if (in.tiers != nullptr) {
      while (in.tiers->next_load() <= now) in.engine.loaded(in.tiers->pop_load());
      in.tiers->now = now;
    }
    in.pass = in.engine.schedule();
    // When the last running request was preempted for want of blocks, the queue gets its turn at once.
    if (in.pass.run == 0 && in.engine.running() == 0 && in.engine.waiting() > 0) in.pass = in.engine.schedule();
    in.start = now;
    in.run = 0;
    if (in.tiers != nullptr) next_load = in.tiers->next_load();
    if (in.pass.run == 0) {
      events_.set(i, next_load);
      return;
    }
    in.single =
        config_.pass.pass(static_cast<std::int64_t>(in.pass.prefill_tokens), static_cast<std::int64_t>(in.pass.pairs),
                          static_cast<std::int64_t>(in.pass.decodes), static_cast<std::int64_t>(in.pass.context));
    if (in.tiers != nullptr && in.pass.prefill_tokens > 0) in.single = in.tiers->begin_pass(in.engine, in.single);
    in.run = config_.skip ? static_cast<std::int64_t>(in.pass.run) : 1;
    if (in.run > 1 && longer_than(in, kRunMax)) in.run = 1;
    if (in.run > 1 && next_load != EventTree::kNever) in.run = passes_begun(in, next_load);
    set_run(i, in.run);
  }

  void next_event() {
    const std::uint32_t i = events_.first();
    const Picoseconds now = events_.first_time();
    out_of_time_ = now > kLatest;
    look_until(now);
    Instance& in = instances_[i];
    if (in.run > 0) {
      in.engine.complete(static_cast<std::uint64_t>(in.run), first_, done_);
      if (!done_.empty()) in.count(now);
      stats_.ran(static_cast<std::uint64_t>(in.run), now - in.start);
      if (config_.keep_passes) {
        pass_log_.push_back({in.start, now, i, static_cast<std::uint64_t>(in.run), in.pass});
      }
      if (in.tiers != nullptr && in.pass.prefill_tokens > 0) in.tiers->end_pass(now);
      for (const V1Id id : first_) slots_[id].first_token = now;
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
  Picoseconds metrics_age_;
  Picoseconds metrics_at_ = -1;  // when engines were last read
  Picoseconds sent_ = 0;         // when the last request came
  bool out_of_time_ = false;     // an event came behind kLatest
  EventTree events_;
  std::vector<sched::V1Request> requests_;  // by slot; slots are used again
  std::vector<RequestRecord> slots_;
  std::vector<V1Id> free_slots_;
  std::vector<std::uint32_t> outstanding_;
  std::vector<std::uint32_t> waiting_;
  std::vector<float> kv_used_;
  FleetMemory memory_;
  std::pmr::vector<Instance> instances_;
  std::unique_ptr<TierStore> depot_;
  std::vector<FleetPass> pass_log_;
  FleetSeries series_;
  FleetStats stats_;
  std::vector<V1Id> first_;
  std::vector<V1Id> done_;
};

}  // namespace

FleetResult run_fleet(const FleetConfig& config, ArrivalSource& source) { return Fleet(config, source).run(); }

}  // namespace kvd::sim
