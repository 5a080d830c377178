// Tests of the probe of a device that failed, alone, and of when FlashHealth makes one.
#include "store/device_probe.h"

#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "io/sim/sim_disk.h"
#include "io/sim/sim_loop.h"
#include "store/flash_health.h"
#include "store/format.h"

namespace kvd::store {
namespace {

using std::chrono::seconds;

class DeviceProbeTest : public ::testing::Test {
 protected:
  void start() {
    how_.reset();
    began_ = loop_.now();
    probe_.start([this](Status how) {
      how_ = how;
      took_ = loop_.now() - began_;
    });
    EXPECT_FALSE(how_) << "it ends from the loop";
  }
  // Its error's text; empty when it ended well.
  std::string ends() {
    EXPECT_TRUE(loop_.run_until([&] { return how_.has_value(); }, std::chrono::hours(1)));
    return *how_ ? "" : how_->error().what;
  }
  io::SimDrive& drive() { return disks_.drive("disk"); }

  io::SimClock clock_;
  io::SimLoop loop_{clock_};
  RecordingLog log_;
  io::SimDisks disks_{1};
  std::unique_ptr<io::Disk> disk_ = std::move(*disks_.open(loop_, log_, "disk", {.bytes = kHeadBytes}));
  DeviceProbe probe_{loop_, *disk_};
  std::optional<Status> how_;
  Time began_{};
  Duration took_{};
};

TEST_F(DeviceProbeTest, WritesFlushesAndReadsItsPageOnly) {
  start();
  EXPECT_TRUE(probe_.busy());
  EXPECT_EQ(ends(), "");
  EXPECT_FALSE(probe_.busy());
  EXPECT_EQ(drive().counters().writes, 1U);
  EXPECT_EQ(drive().counters().bytes_written, kPageBytes);
  EXPECT_EQ(drive().counters().syncs, 1U);
  EXPECT_EQ(drive().counters().reads, 1U);
  std::vector<std::byte> page(kPageBytes);
  drive().peek(kProbeAt, page);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(page.data()), 8), "KVDPROBE");
  start();
  EXPECT_EQ(ends(), "");
}

TEST_F(DeviceProbeTest, SaysWhatFailed) {
  drive().inject(io::DiskOp::Kind::kWrite, 1, io::SimFault::kError);
  start();
  EXPECT_EQ(ends(), "a probe's write failed");
  EXPECT_EQ(drive().counters().syncs, 0U);
  drive().inject(io::DiskOp::Kind::kSync, 1, io::SimFault::kError);
  start();
  EXPECT_EQ(ends(), "a probe's flush failed");
  drive().inject(io::DiskOp::Kind::kRead, 1, io::SimFault::kError);
  start();
  EXPECT_EQ(ends(), "a probe's page could not be read again");
  drive().inject(io::DiskOp::Kind::kWrite, 1, io::SimFault::kLose);
  start();
  EXPECT_EQ(ends(), "a probe's page was not what had been written");
  disks_.kill({});
  start();
  EXPECT_EQ(ends(), "a probe's write failed") << "refused";
  EXPECT_FALSE(probe_.busy());
}

TEST_F(DeviceProbeTest, IsOverAfterTenSecondsAndBusyUntilItsOperationIsAnswered) {
  drive().stall(1, seconds(25));
  start();
  EXPECT_EQ(ends(), "a probe's write does not complete");
  EXPECT_EQ(took_, seconds(10));
  EXPECT_TRUE(probe_.busy());
  loop_.run_for(seconds(20));
  EXPECT_FALSE(probe_.busy());
  EXPECT_EQ(drive().counters().syncs, 0U) << "nothing follows";
}

TEST_F(DeviceProbeTest, TenSecondsAreForAllOfIt) {
  drive().stall(UINT64_MAX, seconds(4));
  start();
  EXPECT_EQ(ends(), "a probe's read does not complete");
  EXPECT_EQ(took_, seconds(10));
  loop_.run_for(seconds(10));
}

TEST_F(DeviceProbeTest, ASlowReadIsNoGoodAnswer) {
  drive().set_fault_rates({.read_delay = 1'000'000, .read_delay_min = seconds(2), .read_delay_max = seconds(2)});
  start();
  EXPECT_EQ(ends(), "a probe's read takes too long");
  drive().set_fault_rates({.read_delay = 1'000'000, .read_delay_min = seconds(1), .read_delay_max = seconds(1)});
  start();
  EXPECT_EQ(ends(), "");
}

TEST_F(DeviceProbeTest, StoppedItSubmitsNothingMoreAndTellsNobody) {
  start();
  probe_.stop();
  loop_.run_for(seconds(20));
  EXPECT_FALSE(how_);
  EXPECT_EQ(drive().counters().syncs, 0U);
  EXPECT_FALSE(probe_.busy());
}

// When it is made.
class ProbeTimesTest : public ::testing::Test {
 protected:
  ProbeTimesTest() {
    health_.on_change([this] { ++off_; }, [this] { back_at_.push_back(loop_.now()); });
    health_.may_probe(true);
  }
  void fail_reads(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      FlashHealth::Operation read;
      health_.submitted(read, io::DiskOp::Kind::kRead, 4096);
      health_.completed(read, false);
    }
  }
  // Seconds between the next `count` probes, each of which fails.
  std::vector<long> pauses(std::size_t count) {
    std::vector<long> pauses;
    Time last = loop_.now();
    std::uint64_t writes = drive().counters().writes;
    for (const Time limit = after(last, std::chrono::hours(1)); pauses.size() < count && loop_.now() < limit;) {
      loop_.run_for(Millis(100));
      if (drive().counters().writes == writes) continue;
      writes = drive().counters().writes;
      pauses.push_back(std::chrono::round<seconds>(loop_.now() - last).count());
      last = loop_.now();
    }
    return pauses;
  }
  io::SimDrive& drive() { return disks_.drive("disk"); }

  io::SimClock clock_;
  io::SimLoop loop_{clock_};
  RecordingLog log_;
  io::SimDisks disks_{1};
  std::unique_ptr<io::Disk> disk_ = std::move(*disks_.open(loop_, log_, "disk", {.bytes = kHeadBytes}));
  FlashHealth health_{loop_, log_, *disk_};
  int off_ = 0;
  std::vector<Time> back_at_;
};

TEST_F(ProbeTimesTest, ItIsAskedMoreSeldomTheLongerItFails) {
  drive().fail_all(EIO);
  fail_reads(FlashHealth::kErrorsMax);
  EXPECT_FALSE(health_.on());
  EXPECT_EQ(pauses(8), (std::vector<long>{1, 2, 4, 8, 16, 32, 60, 60}));
  EXPECT_EQ(off_, 1);
  EXPECT_EQ(log_.count("the flash tier stays off: a probe's write failed"), 8U);
  drive().fail_all(0);
  loop_.run_for(seconds(61));
  EXPECT_TRUE(health_.on());
  EXPECT_EQ(back_at_.size(), 1U);
  EXPECT_EQ(log_.count("the flash tier is on again after 243 s (too many errors)"), 1U);
}

TEST_F(ProbeTimesTest, OffAgainWithinAMinuteItBeginsWithTheNextLongerPause) {
  for (int i = 1; i <= 8; ++i) {
    const Time off = loop_.now();
    fail_reads(FlashHealth::kErrorsMax);
    ASSERT_FALSE(health_.on());
    ASSERT_TRUE(loop_.run_until([&] { return health_.on(); }, seconds(61)));
    EXPECT_EQ(std::chrono::round<seconds>(loop_.now() - off).count(), std::min(1L << (i - 1), 60L));
  }
  EXPECT_EQ(off_, 8);
  loop_.run_for(seconds(61));
  fail_reads(FlashHealth::kErrorsMax);
  loop_.run_for(Millis(1'100));
  EXPECT_TRUE(health_.on()) << "the first pause again";
}

TEST_F(ProbeTimesTest, ItStaysOffWhileSomethingOfBeforeIsUnderWay) {
  FlashHealth::Operation write;
  health_.submitted(write, io::DiskOp::Kind::kWrite, 4096);
  health_.turn_off("for a test");
  loop_.run_for(std::chrono::minutes(10));
  EXPECT_FALSE(health_.on());
  EXPECT_EQ(drive().counters().writes, 0U) << "no probe";
  EXPECT_EQ(log_.count("stays off until the device has answered 1 operations"), 1U);
  health_.completed(write, true);
  loop_.run_for(Millis(1'100));
  EXPECT_TRUE(health_.on());
}

TEST_F(ProbeTimesTest, AProbeThatHangsIsWaitedForBeforeTheNext) {
  drive().stall(1, Duration::max());
  health_.turn_off("for a test");
  loop_.run_for(std::chrono::minutes(10));
  EXPECT_EQ(drive().counters().writes, 1U);
  EXPECT_FALSE(health_.on());
  EXPECT_EQ(log_.count("the flash tier stays off: a probe's write does not complete"), 1U);
  drive().release();
  loop_.run_for(seconds(2));
  EXPECT_TRUE(health_.on());
}

TEST_F(ProbeTimesTest, NoneWhereItMayNotBe) {
  health_.may_probe(false);
  health_.turn_off("for a test");
  health_.may_probe(true);
  loop_.run_for(std::chrono::minutes(10));
  EXPECT_FALSE(health_.on());
  EXPECT_EQ(drive().counters().writes, 0U);
  EXPECT_EQ(log_.count("turned off until the next start"), 1U);
}

TEST_F(ProbeTimesTest, NoneThatWasToComeWhenItMayNotAnyMore) {
  health_.turn_off("for a test");
  health_.may_probe(false);
  loop_.run_for(std::chrono::minutes(10));
  EXPECT_EQ(drive().counters().writes, 0U);
}

}  // namespace
}  // namespace kvd::store
