// Random operations of a start that cannot read the headers of some segments, which then takes place in every way; and
// what the next start, which can, may find.
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "store/format.h"
#include "store/testing/store_kit.h"

namespace kvd::store {
namespace {

// Of one start without removals or replacements before it, whose own cannot have gone with what was not read.
class DoubtRun {
 public:
  explicit DoubtRun(std::uint64_t seed) : random_(seed), kit_(seed), records_(40) {
    kit_.versions_max = 60;
    kit_.options.demote_idle = Millis(5);
    kit_.options.recover_later = random_.chance(1, 2);
    kit_.options.flash_bytes = kHeadBytes + 12 * kit_.options.segment_bytes;
    if (random_.chance(1, 3)) kit_.add_device(12);
  }

  void run() {
    open();
    for (std::uint64_t n = 0; n < records_.size(); ++n) put(n, AckLevel::kSynced);
    end();
    const std::size_t devices = 1 + kit_.options.devices.size();
    for (int left = 1 + static_cast<int>(random_.below(6)); left > 0; --left) {
      const std::uint64_t at = kHeadBytes + random_.below(9) * kit_.options.segment_bytes;
      kit_.drive(random_.below(devices)).wear_out(io::DiskOp::Kind::kRead, at, kPageBytes);
    }
    if (random_.chance(1, 2)) kit_.options.index_records_max = 10 + random_.below(60);
    open();
    const std::uint64_t unread = doubtful();
    for (std::uint64_t left = random_.below(random_.chance(1, 3) ? 5 : 60); left > 0; --left) step();
    kit_.drive().set_fault_rates({});
    const bool abruptly = random_.chance(1, 3);
    if (!abruptly)
      kit_.loop.run_for(std::chrono::seconds(1));  // the flush behind removals, and all that is to be written
    // Or a put that finds nothing free is having one overwritten.
    touched_ = touched_ || abruptly || kit_.stats().segments_evicted.value() > 0 || doubtful() < unread;
    ended_ = unread > 0 && doubtful() == 0;
    // A loss of power takes removals with it whose flush a device that is off does not answer.
    abruptly || off() ? kit_.kill(random_.next()) : end();
    for (std::size_t device = 0; device < devices; ++device) kit_.drive(device).mend();
    kit_.options.index_records_max = 0;
    open();
    for (std::uint64_t n = 0; n < records_.size(); ++n) {
      const std::uint64_t got = kit_.get(n);
      EXPECT_TRUE(got == 0 || got > records_[n].ended_for_good) << "record " << n << ": " << got << " comes back";
      EXPECT_TRUE(got != 0 || touched_) << "record " << n << " is lost";
    }
  }
  [[nodiscard]] bool touched() const { return touched_; }
  [[nodiscard]] bool ended() const { return ended_; }

 private:
  struct Record {
    std::uint64_t last = 0, ended = 0, removed = 0, ended_for_good = 0;  // versions
  };

  void open() { ASSERT_TRUE(kit_.open()) << kit_.why; }
  void end() {
    if (random_.chance(1, 2)) return kit_.close();
    kit_.lose_power(random_.next(), static_cast<std::uint32_t>(random_.below(101)));
  }
  std::uint64_t sum(auto DeviceStats::* figure) const {
    std::uint64_t sum = 0;
    for (const auto& device : kit_.store->device_figures()) sum += (device.stats->*figure).value();
    return sum;
  }
  [[nodiscard]] std::uint64_t doubtful() const { return sum(&DeviceStats::segments_doubtful); }
  [[nodiscard]] bool off() const { return sum(&DeviceStats::off) > 0; }

  void step() {
    const std::uint64_t n = random_.below(records_.size());
    switch (random_.below(12)) {
      case 0:
      case 1: return remove(n);
      case 2: return replace(n);
      case 3:
      case 4: return put(n, static_cast<AckLevel>(random_.below(3)));
      case 5:
        for (int i = 0; i < 6; ++i) static_cast<void>(kit_.put(filler_++, 1, AckLevel::kWritten));
        return;
      case 6: return kit_.loop.run_for(std::chrono::microseconds(random_.below(2'000)));
      case 7:
        touched_ = true;  // the tombstone of a frame that failed ends older copies
        kit_.drive().set_fault_rates({.write_error = 100'000, .sync_error = 100'000});
        return;
      default: break;
    }
    const std::uint64_t got = kit_.get(n);
    EXPECT_TRUE(got == 0 || got > records_[n].ended) << "record " << n << " comes back";
  }

  void put(std::uint64_t n, AckLevel level) {
    const auto puts = kit_.stats().puts.value();
    static_cast<void>(kit_.put(n, records_[n].last + 1, level));
    records_[n].last += kit_.stats().puts.value() - puts;
  }

  void replace(std::uint64_t n) {
    Record& record = records_[n];
    const auto puts = kit_.stats().puts.value();
    const Status status = kit_.replace(n, record.last + 1, AckLevel::kSynced);
    if (kit_.stats().puts.value() == puts) return;
    touched_ = true;
    record.ended = record.last++;
    if (status) record.ended_for_good = record.ended;
  }

  void remove(std::uint64_t n) {
    touched_ = true;
    kit_.remove(n);
    records_[n].ended = records_[n].removed = records_[n].last;
    if (random_.chance(1, 2)) return;
    std::optional<Status> answer;
    kit_.store->await_removals([&](Status status) { answer = status; });
    ASSERT_TRUE(kit_.loop.run_until([&] { return answer.has_value(); }, std::chrono::minutes(1)));
    if (!*answer) return;
    for (Record& record : records_) record.ended_for_good = std::max(record.ended_for_good, record.removed);
  }

  Random random_;
  StoreKit kit_;
  std::vector<Record> records_;
  std::uint64_t filler_ = 1'000;
  bool touched_ = false, ended_ = false;
};

TEST(StoreDoubtModel, NothingThatWasEndedComesBackFromWhatOneStartCouldNotRead) {
  std::array<int, 2> untouched_and_ended{};
  for (std::uint64_t seed = 1; seed <= 120 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    DoubtRun run(seed);
    run.run();
    untouched_and_ended[0] += run.touched() ? 0 : 1;
    untouched_and_ended[1] += run.ended() ? 1 : 0;
  }
  EXPECT_GT(untouched_and_ended[0], 2);
  EXPECT_GT(untouched_and_ended[1], 20);
}

}  // namespace
}  // namespace kvd::store
