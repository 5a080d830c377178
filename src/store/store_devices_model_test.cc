// Random operations on a store of two devices of which one goes off and comes back at times, with kills and power
// losses between, and a model of what may be found. Both are honest, but they hang, give errors, and are reset: then
// what was not flushed is lost. Flash has room for everything, and both are there at each start.
//   always               bytes that were put; nothing that was removed or replaced in this opening
//   for good             nothing whose removal, or replacement, is durable: it was answered and a flush came behind it
//   what was `synced`    is found whenever both are on, in this version or one that was put later
#include <algorithm>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "store/format.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

constexpr std::uint64_t kFlushingBoth = 20'000;  // put to have everything before flushed

class TwoDevicesRun {
 public:
  explicit TwoDevicesRun(std::uint64_t seed) : random_(seed), kit_(seed), records_(24) {
    kit_.versions_max = 100;
    kit_.wrong = &wrong_;
    kit_.options.demote_idle = Millis(5);
    kit_.options.demote_after = Millis(50);
    kit_.options.flash_bytes = kHeadBytes + 400 * kit_.options.segment_bytes;
    kit_.add_device(300);
    kit_.options.removals_waiting_max = random_.chance(1, 2) ? 65'536 : 4 + random_.below(12);
    // Segments that are given up for removals take `synced` records with them.
    bounded_ = kit_.options.removals_waiting_max < 65'536;
    open();
  }

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

 private:
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

  // Whether some device is.
  [[nodiscard]] bool off() const {
    return kit_.stats().tier_outages.value() > kit_.log.count("is on again") - returned_before_;
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
    ASSERT_TRUE(kit_.loop.run_until([&] { return answer.has_value(); }, minutes(2)));
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
    off_ = random_.below(2);
    kit_.drive(off_).stall(UINT64_MAX, Duration::max());
    while (!off() && !::testing::Test::HasFailure()) {
      static_cast<void>(kit_.put(filler_++));
      kit_.loop.run_for(seconds(1));
    }
  }

  void mend() {
    if (off() && random_.chance(2, 3))
      kit_.drive(off_).reset({.seed = random_.next(), .keep_percent = static_cast<std::uint32_t>(random_.below(101))});
    kit_.drive(off_).release();
    if (!off()) return;
    ASSERT_TRUE(kit_.loop.run_until([&] { return !off(); }, minutes(3)));
    ++returns_;
  }

  void crash() {
    const bool power = random_.chance(1, 2);
    const std::uint64_t seed = random_.next();
    power ? kit_.lose_power(seed, static_cast<std::uint32_t>(random_.below(101))) : kit_.kill(seed);
    kit_.drive(off_).release();
    returned_before_ = kit_.log.count("is on again");
    open();
    for (Record& record : records_) record.ended = record.removed = record.ended_safely;
  }

  void open() { ASSERT_TRUE(kit_.open()) << kit_.why; }

  Random random_;
  StoreKit kit_;
  std::vector<Record> records_;
  bool bounded_ = false;
  std::size_t off_ = 0;  // the device that is, or was last
  std::uint64_t returned_before_ = 0;
  std::uint64_t wrong_ = 0, filler_ = 30'000, flushing_ = kFlushingBoth, returns_ = 0;
};

class StoreDevicesModel : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(StoreDevicesModel, NothingIsUndeadAndWhatWasSyncedStays) {
  TwoDevicesRun run(GetParam());
  run.run(400);
  EXPECT_GT(run.returns(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, StoreDevicesModel, ::testing::Range<std::uint64_t>(1, 41));

}  // namespace
}  // namespace kvd::store
