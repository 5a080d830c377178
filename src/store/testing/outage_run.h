// OutageRun: random operations on a store one of whose devices goes off and comes back, with kills and power losses
// between, and a model of what may be found. Devices are honest, but they hang, give errors, and are reset: then what
// was not flushed is lost. Flash has room for everything.
//   always               bytes that were put; nothing that was removed or replaced in this opening
//   for good             nothing whose removal, or replacement, is durable: it was answered and a flush came behind it
//   what was `synced`    is found whenever all devices are on, in this version or one that was put later
// For tests, which say what the store has, and how a device breaks down.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "store/format.h"
#include "store/testing/store_kit.h"

namespace kvd::store {

class OutageRun {
 public:
  virtual ~OutageRun() = default;

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      step();
      ASSERT_EQ(wrong_, 0U) << "bytes that nobody put, at step " << i;
      ASSERT_EQ(kit_.stats().corrupt.value(), 0U) << "at step " << i;
    }
    mend();
    for (std::uint64_t n = 0; n < records_.size(); ++n) get(n);
    durable_removals();
    crash();
    for (std::uint64_t n = 0; n < records_.size(); ++n) get(n);
  }
  [[nodiscard]] std::uint64_t returns() const { return returns_; }

 protected:
  explicit OutageRun(std::uint64_t seed) : random_(seed), kit_(seed), records_(24) {
    kit_.versions_max = 100;
    kit_.wrong = &wrong_;
    kit_.options.demote_idle = Millis(5);
    kit_.options.demote_after = Millis(50);
    kit_.options.flash_bytes = kHeadBytes + 400 * kit_.options.segment_bytes;
  }
  // The last of the constructor.
  void begin() {
    kit_.options.removals_waiting_max = random_.chance(1, 2) ? 65'536 : 4 + random_.below(12);
    // Segments that are given up for removals take `synced` records with them.
    bounded_ = kit_.options.removals_waiting_max < 65'536;
    if (kit_.options.removals_waiting_max % 2 == 1) kit_.options.tombstones_spent_max = 5;
    open();
  }
  void open() { ASSERT_TRUE(kit_.open()) << kit_.why; }

  // Whether some device is.
  [[nodiscard]] virtual bool off() const = 0;
  // That of the device that is off, or was last.
  [[nodiscard]] virtual io::SimDrive& drive() = 0;
  // Until it is off.
  virtual void break_down() = 0;
  // The store is about to be opened again.
  virtual void before_start() {}

  Random random_;
  StoreKit kit_;
  std::uint64_t filler_ = 30'000;  // next record of those that nobody asks for

 private:
  static constexpr std::uint64_t kFlushing = 20'000;  // put to have everything before flushed

  struct Record {
    std::uint64_t last = 0;          // version put last
    std::uint64_t ended = 0;         // versions up to this one were removed or replaced in this opening
    std::uint64_t removed = 0;       // ... of these, by removals
    std::uint64_t ended_safely = 0;  // ... for good
    std::uint64_t synced = 0;        // this one, or a later one, must be found
  };

  void step() {
    const std::uint64_t n = random_.below(records_.size());
    switch (random_.below(24)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4: return put(n);
      case 5: return replace(n);
      case 6:
      case 7: return remove(n);
      case 8: return durable_removals();
      case 9: return kit_.loop.run_for(Millis(static_cast<std::int64_t>(random_.below(60))));
      case 10: return kit_.loop.run_for(std::chrono::microseconds(static_cast<std::int64_t>(random_.below(2'000))));
      case 11: return start_puts();
      case 12: return fill();
      case 13: return random_.chance(1, 3) ? crash() : void();
      case 14:
      case 15: return off() ? mend() : random_.chance(1, 3) ? go_off() : void();
      case 16: kit_.store->promote(kit_.ns, id_of(n)); return;
      default: return get(n);
    }
  }

  AckLevel level() { return static_cast<AckLevel>(random_.below(3)); }

  void put(std::uint64_t n) {
    Record& record = records_[n];
    const auto puts = kit_.stats().puts.value();
    const AckLevel wanted = level();
    const Status status = kit_.put(n, record.last + 1, wanted);
    if (kit_.stats().puts.value() > puts) {
      ++record.last;
      if (status && wanted == AckLevel::kSynced) record.synced = record.last;
    }
  }

  void replace(std::uint64_t n) {
    Record& record = records_[n];
    const auto puts = kit_.stats().puts.value();
    const AckLevel wanted = level();
    const Status status = kit_.replace(n, record.last + 1, wanted);
    if (kit_.stats().puts.value() == puts) return;
    record.ended = record.last++;
    record.synced = 0;
    if (status && wanted == AckLevel::kSynced) {
      record.synced = record.last;
      record.ended_safely = record.ended;
    }
  }

  void remove(std::uint64_t n) {
    Record& record = records_[n];
    kit_.remove(n);
    record.ended = record.removed = record.last;
    record.synced = 0;
    EXPECT_EQ(kit_.lookup(n), Tier::kNone);
  }

  // Puts that are under way when something else happens.
  void start_puts() {
    for (int i = 0; i < 4; ++i) {
      const std::uint64_t n = random_.below(records_.size());
      const auto puts = kit_.stats().puts.value();
      if (!kit_.put(n, records_[n].last + 1)) continue;
      records_[n].last += kit_.stats().puts.value() - puts;
      kit_.store->await(kit_.ns, id_of(n), level(), [](Status) {});
    }
  }

  // Others take the place of most of what is in the pool.
  void fill() {
    for (int i = 0; i < 20; ++i) static_cast<void>(kit_.put(filler_++));
  }

  void durable_removals() {
    std::optional<Status> answer;
    kit_.store->await_removals([&](Status status) { answer = status; });
    ASSERT_TRUE(kit_.loop.run_until([&] { return answer.has_value(); }, std::chrono::minutes(2)));
    if (!*answer) {
      EXPECT_TRUE(off());
      return;
    }
    if (!kit_.put(flushing_++, 1, AckLevel::kSynced)) return;
    for (Record& record : records_) record.ended_safely = std::max(record.ended_safely, record.removed);
  }

  void get(std::uint64_t n) {
    Record& record = records_[n];
    const bool must = !off() && record.synced != 0 && !bounded_;
    const std::uint64_t got = kit_.get(n);
    if (got == 0) {
      EXPECT_FALSE(must && !off() && kit_.why_missed != Code::kBusy)
          << "record " << n << ": synced version " << record.synced << " is lost";
      return;
    }
    EXPECT_GT(got, record.ended) << "record " << n << " comes back";
    EXPECT_LE(got, record.last);
  }

  void go_off() {
    kit_.loop.run_for(Millis(2));  // nothing is read any more: what fails twice is dropped
    start_puts();
    kit_.loop.run_for(std::chrono::microseconds(static_cast<std::int64_t>(random_.below(1'500))));
    break_down();
  }

  void mend() {
    if (off() && random_.chance(2, 3))
      drive().reset({.seed = random_.next(), .keep_percent = static_cast<std::uint32_t>(random_.below(101))});
    drive().release();
    drive().fail_all(0);
    if (!off()) return;
    ASSERT_TRUE(kit_.loop.run_until([&] { return !off(); }, std::chrono::minutes(3)));
    ++returns_;
  }

  void crash() {
    const bool power = random_.chance(1, 2);
    const std::uint64_t seed = random_.next();
    power ? kit_.lose_power(seed, static_cast<std::uint32_t>(random_.below(101))) : kit_.kill(seed);
    drive().fail_all(0);
    drive().release();
    before_start();
    open();
    for (Record& record : records_) record.ended = record.removed = record.ended_safely;
  }

  std::vector<Record> records_;
  bool bounded_ = false;
  std::uint64_t wrong_ = 0, flushing_ = kFlushing, returns_ = 0;
};

}  // namespace kvd::store
