#include "bench/large_store.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "base/random.h"
#include "bench/sparse_store.h"
#include "io/loop.h"
#include "store/store.h"

namespace kvd::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kHitSecondsMax = 60;
constexpr Duration kDrainLimit = std::chrono::seconds(60);
constexpr double kServesOnSeconds = 1;  // before an end as by a kill: one amid serving, not at the end of recovery

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Opened {
  std::unique_ptr<io::Loop> loop;
  SparseDisks disks;
  std::unique_ptr<store::Store> store;
  store::NamespaceHandle ns = 0;
};

// With `recover_later` what is there is not read yet, and no namespace can be opened.
Status open(Log& log, const LargeOptions& options, bool recover_later, Opened& opened, std::string& why) {
  auto loop = io::make_real_loop();
  if (!loop) return fail(loop.error());
  opened.loop = std::move(*loop);
  store::StoreOptions wanted;
  wanted.dir = options.dir;
  wanted.pool_bytes = options.pool_bytes;
  wanted.flash_bytes = std::uint64_t{1} << 40;
  wanted.flash_bytes_given = false;
  wanted.index_records_max = options.index_records;
  wanted.prefault = wanted.recover_later = recover_later;  // as a depot that serves; the other measures memory
  auto store = store::Store::open(*opened.loop, log, wanted, &why, &opened.disks);
  if (!store) return fail(store.error());
  opened.store = std::move(*store);
  if (recover_later) return {};
  const auto ns = opened.store->open_namespace(cmd::bench_namespace(options.size));
  if (!ns) return fail(ns.error());
  opened.ns = *ns;
  return {};
}

std::uint64_t peak_kib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss);
}

// Asks for a record every millisecond until it was got whole, and says when that was.
class FirstHit {
 public:
  static constexpr Duration kAskEvery = std::chrono::milliseconds(1);

  FirstHit(Opened& opened, const LargeOptions& options, Clock::time_point start)
      : opened_(opened), options_(options), start_(start), ask_(*opened.loop, [this] { ask(); }) {
    get_.id = cmd::bench_record(options.records - 1);
    ask_.arm(opened.loop->now());
  }
  [[nodiscard]] std::optional<double> seconds() const noexcept { return seconds_; }

 private:
  void ask() {
    const auto ns = opened_.store->open_namespace(cmd::bench_namespace(options_.size));
    if (!ns) return ask_.arm_in(kAskEvery);
    get_.ns = *ns;
    get_.on_done = [this](const Result<store::RecordView>& view) {
      if (!view) return ask_.arm_in(kAskEvery);
      seconds_ = seconds_since(start_);
    };
    opened_.store->start_get(get_);
  }

  Opened& opened_;
  const LargeOptions& options_;
  const Clock::time_point start_;
  store::Get get_;
  io::Timer ask_;
  std::optional<double> seconds_;
};

}  // namespace

Status print_match(Log& log, const LargeOptions& options, std::string& why) {
  Opened opened;
  if (auto done = open(log, options, false, opened, why); !done) return done;
  const std::uint64_t records = opened.store->stats().recovered_records.value();
  if (records != options.records) return fail(Code::kCorrupt, "another number of records was recovered");
  Random random(options.seed);
  std::vector<block::RecordId> ids(options.keys);
  std::vector<Tier> tiers(options.keys);
  std::vector<double> us;
  for (std::uint32_t call = 0; call < options.calls; ++call) {
    for (block::RecordId& id : ids) id = cmd::bench_record(random.below(records));
    const auto start = Clock::now();
    opened.store->lookup_all(opened.ns, ids, tiers);
    us.push_back(seconds_since(start) * 1e6);
    if (std::ranges::find(tiers, Tier::kNone) != tiers.end()) return fail(Code::kNotFound, "a record is missing");
  }
  std::ranges::sort(us);
  fmt::print("{{\"records\": {}, \"match_us\": {:.2f}, \"match_p99_us\": {:.2f}, \"peak_kib\": {}}}\n", records,
             us[us.size() / 2], us[us.size() * 99 / 100], peak_kib());
  return {};
}

Status print_recovery(Log& log, const LargeOptions& options, std::string& why) {
  const auto start = Clock::now();
  Opened opened;
  if (auto done = open(log, options, true, opened, why); !done) return done;
  const double open_s = seconds_since(start);
  FirstHit hit(opened, options, start);
  if (auto recovered = opened.store->recover(&why); !recovered) return recovered;
  const double served_s = seconds_since(start);
  while (!hit.seconds() && seconds_since(start) < kHitSecondsMax) opened.loop->run_once(std::chrono::milliseconds(1));
  if (!hit.seconds()) return fail(Code::kNotFound, "the newest record is not got");
  const std::uint64_t records = opened.store->stats().recovered_records.value();
  if (records != options.records) return fail(Code::kCorrupt, "another number of records was recovered");
  fmt::print("{{\"records\": {}, \"open_s\": {:.3f}, \"first_hit_s\": {:.3f}, \"served_s\": {:.3f}}}\n", records,
             open_s, *hit.seconds(), served_s);
  if (!options.drain) {
    for (const auto served = Clock::now(); seconds_since(served) < kServesOnSeconds;)
      opened.loop->run_once(std::chrono::milliseconds(10));
    return {};
  }
  bool drained = false;
  opened.store->drain(after(opened.loop->now(), kDrainLimit), [&] { drained = true; });
  while (!drained) opened.loop->run_once(Duration::max());
  return {};
}

}  // namespace kvd::bench
