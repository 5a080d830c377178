// Long random runs of a store on a drive that fails in every way a SimDrive can: errors, a full file system, wrong
// bits, lost, misdirected and repeated writes, misdirected reads, late completions, a device that stops answering; with
// kills and power losses between. What must hold in all of them:
//   no get yields bytes that nobody put under its key, nor, in one opening, a version that was removed or replaced, nor
//   another one while the store recovers than behind it;
//   every get is answered once, by its deadline; every put and drain ends in bounded time, whatever the device does;
//   opening never fails but with an I/O error while the device gives errors;
//   nothing is left pinned, unfinished or over the pool's size (and, under the address sanitizer, nothing leaks);
//   behind a crash, where the drive was slow or hung and neither lied nor gave errors nor lost anything: nothing older
//   than what was acknowledged as `written` (kill) or `synced` (power loss), and nothing whose removal was answered
//   (kill).
//
//   kvd_fault_runs --seeds 200 --first 1
//
// Exit status 1 when something was wrong; the failing seed is printed with the command that repeats it.
#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/random.h"
#include "block/checksum.h"
#include "crash/command_line.h"
#include "store/testing/store_kit.h"

namespace kvd::crash {
namespace {

constexpr std::size_t kRecords = 48;  // more than flash and pool hold
constexpr std::uint16_t kLayers = 4;
constexpr std::uint32_t kSlabBytes = 5'000;
// A device that completes nothing turns the tier off after 10 s (store/flash_health.h); twice for two in a row.
constexpr Duration kAnswerMax = std::chrono::seconds(45);
constexpr Duration kSlack = Millis(1);

// How the device fails, by seed.
io::SimFaultRates rates_of(std::uint64_t seed) {
  io::SimFaultRates errors{.read_error = 4'000,
                           .write_error = 4'000,
                           .write_error_done = 4'000,
                           .write_no_space = 4'000,
                           .sync_error = 4'000,
                           .sync_forget = 4'000};
  io::SimFaultRates lies{.read_flip = 8'000,
                         .read_misdirect = 8'000,
                         .write_flip = 8'000,
                         .write_lose = 4'000,
                         .write_misdirect = 4'000,
                         .write_repeat = 8'000,
                         .sync_lose = 20'000};
  const io::SimFaultRates late{.delay = 20'000, .delay_max = std::chrono::seconds(2)};
  switch (seed % 4) {
    case 0: return errors;
    case 1: return lies;
    case 2: return late;
    default:
      lies.read_error = lies.write_error = lies.sync_error = 2'000;
      lies.delay = 5'000;
      lies.delay_max = Millis(200);
      return lies;
  }
}

struct Totals {
  std::uint64_t gets = 0, hits = 0, timeouts = 0, puts = 0, faults = 0, crashes = 0, tiers_off = 0, corrupt = 0;
  std::uint64_t writes_dropped = 0, outages = 0, returns = 0, of_two = 0;
  std::uint64_t held_to_floors = 0;  // first finds behind a crash of records that had been promised something
};

class FaultRun {
 public:
  FaultRun(std::uint64_t seed, Totals& totals)
      : random_(seed),
        rates_{rates_of(seed), rates_of(seed + 1)},
        honest_(seed % 4 == 2 && seed / 4 % 2 == 0),
        late_openings_(seed / 8 % 2 == 1),
        reads_hang_(seed / 8 % 3 == 1),
        kit_(seed, {.discards = seed % 5 < 2}),
        totals_(totals) {
    if (seed / 4 % 2 == 1) kit_.add_device(6);  // which fails in another way
    totals_.of_two += devices() - 1;
    kit_.name_space = store::namespace_of(kLayers, kSlabBytes);
    kit_.options.demote_idle = Millis(5);
    kit_.options.demote_after = Millis(50);
    kit_.options.prefault = seed % 8 == 0;  // a thread of the pool's own, for the thread sanitizer
    if (seed % 2 == 0) kit_.options.scrub_bytes_per_s = std::uint64_t{8} << 20;
    if (seed % 3 == 1) kit_.options.drive_writes_per_day = 10;  // ten records at each opening, hardly more later
    if (random_.chance(1, 3)) kit_.options.index_records_max = 30;
    kit_.options.recover_later = random_.chance(1, 2);
    kit_.options.list_uses = true;
    if (seed % 5 == 3) kit_.options.tombstones_spent_max = 6;  // segments are given up for them
    kit_.meanwhile = [this] { ask_early(); };
    open();
  }

  void run(unsigned steps) {
    for (unsigned i = 0; i < steps && wrong_.empty(); ++i) step();
    finish();
  }
  [[nodiscard]] const std::vector<std::string>& wrong() const { return wrong_; }

 private:
  struct Record {
    std::uint64_t versions = 0;  // put so far
    std::uint64_t current = 0;   // what a get must yield if anything; 0 = nothing
    bool known = true;           // false after a crash, until it is put or removed again
    // It was put while the tier was off, and flash may hold another version, which counts as well.
    bool other_too = false;
    std::uint64_t ended = 0;  // the last version that was removed or replaced in this opening
    // What was promised: no version before these is found behind a kill, behind a power loss, in this opening.
    std::uint64_t floor_kill = 0, floor_power = 0, floor = 0;
  };
  struct PendingGet {
    store::Get get;
    std::size_t record = 0;
    std::vector<std::byte> foreign;
    Time latest{};
    int answers = 0;
  };
  struct PendingPut {
    Time latest{};
    int answers = 0;
  };

  void fail(std::string line) { wrong_.push_back(std::move(line)); }
  [[nodiscard]] io::SimLoop& loop() { return kit_.loop; }
  [[nodiscard]] std::size_t devices() const { return 1 + kit_.options.devices.size(); }
  void each_drive(const std::function<void(io::SimDrive&)>& work) {
    for (std::size_t i = 0; i < devices(); ++i) work(kit_.drive(i));
  }
  // How many devices are off.
  [[nodiscard]] std::uint64_t off() const {
    return kit_.stats().tier_outages.value() - (kit_.log.count("is on again") - returned_before_);
  }

  void step() {
    const std::size_t n = random_.below(kRecords);
    switch (random_.below(24)) {
      case 0:
      case 1: remove(n); break;
      case 2: kit_.store->promote(kit_.ns, store::id_of(n)); break;
      case 3: lease(n); break;
      case 4: loop().run_for(Millis(static_cast<std::int64_t>(random_.below(120)))); break;
      case 5: cancel_one(); break;
      case 6:
        if (random_.chance(1, 4)) crash();
        break;
      case 7:
        if (random_.chance(1, 12)) hang();
        if (random_.chance(1, 6)) mend();
        break;
      case 8:
      case 9:
      case 10:
      case 11:
      case 12:
      case 13:
      case 14: put(n); break;
      default: get(n);
    }
    if (random_.chance(2, 3)) loop().run_for(std::chrono::microseconds(static_cast<std::int64_t>(random_.below(600))));
    look();
  }

  // Everything pending is still in time.
  void look() {
    const Time now = loop().now();
    std::erase_if(gets_, [&](const auto& get) {
      if (get->answers > 1) fail(fmt::format("a get of record {} was answered twice", get->record));
      if (get->answers == 0 && now > get->latest) fail(fmt::format("a get of record {} is overdue", get->record));
      return get->answers > 0;
    });
    std::erase_if(puts_, [&](const auto& put) {
      if (put->answers > 1) fail("a put was answered twice");
      if (put->answers == 0 && now > put->latest)
        fail(fmt::format("a put or removal is overdue: {} dirty records, {} free segments, {} given up, tier {}",
                         kit_.stats().dirty_records.value(), kit_.stats().segments_free.value(),
                         kit_.stats().segments_evicted.value(), kit_.stats().tier_off.value() == 0 ? "on" : "off"));
      return put->answers > 0;
    });
    if (kit_.stats().pool_bytes_used.value() > kit_.options.pool_bytes) fail("the pool is larger than it may be");
  }

  void put(std::size_t n) {
    const bool replaces = random_.chance(1, 4);
    auto put = replaces ? kit_.store->begin_replacement(kit_.ns, store::id_of(n), store::foreign_of(n))
                        : kit_.store->begin_put(kit_.ns, store::id_of(n), store::foreign_of(n));
    const auto level = static_cast<AckLevel>(random_.below(3));
    auto pending = std::make_unique<PendingPut>();
    pending->latest = after(loop().now(), kAnswerMax);
    if (!put) return;  // no room
    const bool begun = static_cast<bool>(*put);
    const bool others_there = !replaces && off() > 0;  // the copy that flash has may be what is acknowledged
    const auto on_ack = [this, p = pending.get(), n, version = records_[n].versions + 1, level,
                         counts = begun && !others_there](const Status& status) {
      ++p->answers;
      if (!status || !counts || level == AckLevel::kPooled) return;
      Record& of = records_[n];
      of.floor_kill = std::max(of.floor_kill, version);
      if (level == AckLevel::kSynced) of.floor_power = std::max(of.floor_power, version);
    };
    ++totals_.puts;
    puts_.push_back(std::move(pending));
    if (!*put) return kit_.store->await(kit_.ns, store::id_of(n), level, on_ack);
    if (random_.chance(1, 10)) {
      puts_.pop_back();  // the caller gives up: the handle goes out of scope
      return;
    }
    Record& record = records_[n];
    const std::uint64_t version = record.versions + 1;
    std::vector<std::uint64_t> checksums;
    for (std::uint16_t layer = 0; layer < kLayers; ++layer) {
      store::fill_slab(put->slab(layer), n, version, layer);
      checksums.push_back(block::slab_checksum(put->seed(), layer, put->slab(layer)));
    }
    const bool others = !replaces && off() > 0 && (record.other_too || !record.known || record.current != 0);
    if (replaces) record.ended = record.versions;
    record.versions = record.current = version;
    record.known = true;
    record.other_too = others;
    kit_.store->complete_put(std::move(*put), checksums, level, on_ack);
  }

  void get(std::size_t n) {
    ++totals_.gets;
    auto pending = std::make_unique<PendingGet>();
    PendingGet& p = *pending;
    p.record = n;
    p.foreign = store::foreign_of(n);
    p.get.ns = kit_.ns;
    p.get.id = store::id_of(n);
    p.get.foreign = p.foreign;
    p.get.layer_first = static_cast<std::uint16_t>(random_.below(kLayers));
    p.latest = after(loop().now(), kAnswerMax);
    if (random_.chance(3, 4)) {
      p.get.deadline = after(loop().now(), std::chrono::microseconds(random_.below(50'000)));
      p.latest = after(p.get.deadline, kSlack);
    }
    p.get.on_done = [this, &p](Result<store::RecordView> view) {
      ++p.answers;
      if (loop().now() > p.latest) fail(fmt::format("a get of record {} was answered late", p.record));
      if (view) return judge(p, *view);
      if (view.error().code == Code::kTimeout) ++totals_.timeouts;
    };
    gets_.push_back(std::move(pending));
    kit_.store->start_get(p.get);
  }

  // The record may have been put anew since the get began, but not within it: a get of the old one ends when it goes.
  void judge(const PendingGet& p, const store::RecordView& view) {
    ++totals_.hits;
    Record& record = records_[p.record];
    std::uint64_t found = 0;
    for (std::uint64_t version = record.versions; version > 0 && found == 0; --version) {
      bool all = true;
      for (std::uint16_t i = 0; all && i < p.get.layer_count; ++i)
        all = store::slab_is({view.first_slab + std::size_t{i} * view.slab_stride, kSlabBytes}, p.record, version,
                             p.get.layer_first + i);
      if (all) found = version;
    }
    if (found == 0) return fail(fmt::format("record {}: bytes that nobody put", p.record));
    const bool other = record.other_too && found > record.ended;
    if (record.known && found != record.current && !other)
      fail(fmt::format("record {}: version {} instead of {}", p.record, found, record.current));
    if (record.known) return;
    totals_.held_to_floors += record.floor > 0 ? 1 : 0;
    if (found < record.floor)
      fail(fmt::format("record {}: version {} is back, {} was promised", p.record, found, record.floor));
    record.current = found;
    record.known = true;
    record.other_too = false;
  }

  // While the store recovers: gets, promotions and leases go on, puts are refused.
  void ask_early() {
    if (!kit_.store->recovering()) return;
    const std::size_t n = random_.below(kRecords);
    if (random_.chance(1, 2)) get(n);
    if (random_.chance(1, 8)) kit_.store->promote(kit_.ns, store::id_of(n));
    if (random_.chance(1, 8)) cancel_one();
    if (random_.chance(1, 8)) static_cast<void>(kit_.store->check(kit_.ns, store::id_of(n)));
    if (kit_.store->begin_put(kit_.ns, store::id_of(n), store::foreign_of(n))) fail("a put is taken during recovery");
    if (kit_.stats().flash_bytes_written.value() > 0) fail("something is written before recovery has ended");
    look();
  }

  void remove(std::size_t n) {
    kit_.store->remove(kit_.ns, store::id_of(n));
    Record& record = records_[n];
    record.current = 0;
    record.ended = record.versions;
    record.known = true;
    record.other_too = false;
    if (random_.chance(1, 2)) return;
    auto pending = std::make_unique<PendingPut>();
    pending->latest = after(loop().now(), kAnswerMax);
    kit_.store->await_removals([this, p = pending.get(), n, ended = record.ended](const Status& status) {
      ++p->answers;
      if (status) records_[n].floor_kill = std::max(records_[n].floor_kill, ended + 1);
    });
    puts_.push_back(std::move(pending));
  }

  void lease(std::size_t n) {
    store::Pin pin = kit_.store->pin_for_lease(kit_.ns, store::id_of(n), UINT64_MAX).pin;
    loop().run_for(Millis(1));
    kit_.store->unpin_lease(std::move(pin));
  }

  void cancel_one() {
    if (gets_.empty()) return;
    PendingGet& p = *gets_[random_.below(gets_.size())];
    if (p.get.internal == nullptr) return;
    kit_.store->cancel(p.get);
    if (p.answers != 1) fail("a cancelled get was not answered");
  }

  // The device stops answering or gives errors only, for a while or until the next crash.
  void hang() {
    if (off() == 0) hung_ = random_.below(devices());
    io::SimDrive& drive = kit_.drive(hung_);
    if (!honest_ && random_.chance(1, 4)) return drive.fail_all(EIO);
    drive.stall(1 + random_.below(40), random_.chance(1, 2) ? Duration::max() : std::chrono::seconds(12), reads_hang_);
  }

  // It works again. Where it has not answered, or is off, it may have been reset: then what was not flushed is lost.
  void mend() {
    if (off() > 0 && !honest_ && random_.chance(1, 2))
      kit_.drive(hung_).reset({.seed = random_.next(), .keep_percent = static_cast<std::uint32_t>(random_.below(101))});
    each_drive([](io::SimDrive& drive) {
      drive.release();
      drive.fail_all(0);
    });
    loop().run_for(std::chrono::seconds(random_.below(20)));
  }

  void crash() {
    ++totals_.crashes;
    // What nobody can answer any more: the process is gone.
    note_end();
    const bool killed = random_.chance(1, 2);
    killed ? kit_.kill(random_.next()) : kit_.lose_power(random_.next());
    gets_.clear();
    puts_.clear();
    for (Record& record : records_) {
      if (!killed) record.floor_kill = record.floor_power;
      record.floor = honest_ ? record.floor_kill : 0;
      record.known = record.other_too = false;
      record.ended = 0;
    }
    open();
  }

  void note_end() {
    totals_.tiers_off += kit_.stats().tier_off.value();
    totals_.outages += kit_.stats().tier_outages.value();
    totals_.returns += kit_.stats().tier_outages.value() - off();
    totals_.corrupt += kit_.stats().corrupt.value();
    totals_.writes_dropped += kit_.stats().writes_dropped.value();
  }

  // Opening waits for the device, so it must answer; it may give errors, three times.
  void open() {
    each_drive([](io::SimDrive& drive) {
      drive.stall(0, {});
      drive.fail_all(0);
    });
    returned_before_ = kit_.log.count("is on again");
    for (int attempt = 0; attempt < 5; ++attempt) {
      for (std::size_t i = 0; i < devices(); ++i) {
        io::SimFaultRates opening = rates_[i];
        if (!late_openings_) opening.delay = 0;
        kit_.drive(i).set_fault_rates(attempt < 3 ? opening : io::SimFaultRates{});
      }
      const Status opened = kit_.open();
      for (std::size_t i = 0; i < devices(); ++i) kit_.drive(i).set_fault_rates(rates_[i]);
      if (opened) return;
      // A device of several that cannot be read is missing.
      const bool excused = opened.error().code == Code::kIo || (devices() > 1 && opened.error().code == Code::kInvalid);
      if (attempt >= 3 || !excused) return fail("the store refuses to open: " + kit_.why);
    }
  }

  void finish() {
    if (kit_.store == nullptr) return;
    loop().run_for(kAnswerMax);
    look();
    if (!gets_.empty() || !puts_.empty()) fail("something is never answered");
    if (kit_.stats().unfinished_puts.value() != 0) fail("unfinished puts are left");
    if (kit_.stats().pool_bytes_pinned.value() != 0) fail("pinned bytes are left");
    bool drained = false;
    const Time end = after(loop().now(), std::chrono::seconds(20));
    kit_.store->drain(end, [&] { drained = true; });
    loop().run_until([&] { return drained; }, kAnswerMax);
    if (!drained || loop().now() > after(end, Millis(5))) fail("a drain ends late");
    note_end();
    each_drive([this](const io::SimDrive& drive) { totals_.faults += drive.faults(); });
    kit_.disks.kill({.seed = 1});  // a device that hangs would keep the store from ending
    kit_.store.reset();
  }

  Random random_;
  const std::array<io::SimFaultRates, 2> rates_;  // by device
  const bool honest_;                             // the drive takes long or hangs, and that is all
  const bool late_openings_;                      // completions may be late while the store opens, too
  const bool reads_hang_;                         // where it hangs writes go on
  std::array<Record, kRecords> records_{};
  std::vector<std::unique_ptr<PendingGet>> gets_;
  std::vector<std::unique_ptr<PendingPut>> puts_;
  std::vector<std::string> wrong_;
  store::StoreKit kit_;
  std::size_t hung_ = 0;  // the device that hangs, or did last
  std::uint64_t returned_before_ = 0;
  Totals& totals_;
};

int run(int argc, char** argv) {
  std::uint64_t first = 1, seeds = 200;
  unsigned steps = 300;
  CommandLine options("Runs a store on drives that fail");
  options.add("--first", first, "first seed");
  options.add("--seeds", seeds, "how many");
  options.add("--steps", steps, "operations of each run");
  if (const auto status = options.parse(argc, argv)) return *status;
  Totals t;
  int failures = 0;
  for (std::uint64_t seed = first; seed < first + seeds && failures < 8; ++seed) {
    FaultRun one(seed, t);
    one.run(steps);
    if (one.wrong().empty()) continue;
    ++failures;
    for (const std::string& line : one.wrong()) fmt::print("WRONG seed {}: {}\n", seed, line);
    fmt::print("  again: kvd_fault_runs --first {} --seeds 1 --steps {}\n", seed, steps);
  }
  fmt::print(
      "{} seeds, {} of two devices: {} gets ({} hits, {} ended by their deadline), {} puts, {} faults, {} crashes,\n"
      "{} times a device went off, {} times one came back, {} times all were off at an end, {} records dropped as "
      "corrupt, {} writes beyond the "
      "budget, {} finds behind crashes held to what was promised, {} seeds wrong\n",
      seeds, t.of_two, t.gets, t.hits, t.timeouts, t.puts, t.faults, t.crashes, t.outages, t.returns, t.tiers_off,
      t.corrupt, t.writes_dropped, t.held_to_floors, failures);
  return failures > 0 ? 1 : 0;
}

}  // namespace
}  // namespace kvd::crash

int main(int argc, char** argv) { return kvd::crash::run(argc, argv); }
