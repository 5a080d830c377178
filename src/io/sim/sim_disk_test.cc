// Tests of SimDisks: it is a disk, it fails as told, and a crash leaves what a crash may leave.
#include "io/sim/sim_disk.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "io/sim/sim_loop.h"
#include "io/testing/disk_testing.h"

namespace kvd::io {
namespace {

constexpr std::size_t kPage = kPageBytes;

class SimDiskTest : public testing::Test {
 protected:
  std::unique_ptr<Disk> open(std::uint64_t bytes = kMiB, std::uint32_t depth_max = 256) {
    auto disk = disks_.open(loop_, log_, "disk", {.bytes = bytes, .depth_max = depth_max});
    EXPECT_TRUE(disk);
    return std::move(*disk);
  }
  SimDrive& drive() { return disks_.drive("disk"); }

  Status run(Disk& disk, TestOp& op) {
    if (const Status status = disk.submit(op.op); !status) return status;
    EXPECT_TRUE(loop_.run_until([&] { return op.result.has_value(); }, std::chrono::hours(1)));
    return *op.result;
  }
  Status write(Disk& disk, std::uint64_t offset, const TestBuffer& buffer) {
    TestOp op(kWrite, offset, {buffer.all()});
    return run(disk, op);
  }
  Status read(Disk& disk, std::uint64_t offset, const TestBuffer& buffer) {
    TestOp op(kRead, offset, {buffer.all()});
    return run(disk, op);
  }
  Status sync(Disk& disk) {
    TestOp op(kSync, 0, {});
    return run(disk, op);
  }
  // What the medium holds at `offset`.
  TestBuffer medium(std::uint64_t offset, std::size_t bytes) {
    TestBuffer buffer(bytes);
    drive().peek(offset, buffer.span());
    return buffer;
  }

  SimClock clock_;
  SimLoop loop_{clock_};
  NullLog log_;
  SimDisks disks_{42};
};

TEST_F(SimDiskTest, ReadsWhatWasWrittenAndKeepsItWhenReopened) {
  auto disk = open();
  const TestBuffer written(8 * kPage, 1);
  ASSERT_TRUE(write(*disk, 4 * kPage, written));
  disk = open(2 * kMiB);
  EXPECT_EQ(disk->size(), 2 * kMiB);
  const TestBuffer back(8 * kPage);
  ASSERT_TRUE(read(*disk, 4 * kPage, back));
  EXPECT_TRUE(written == back);
  ASSERT_TRUE(read(*disk, kMiB, back));
  EXPECT_TRUE(back == TestBuffer(8 * kPage));
  EXPECT_STREQ(disk->engine(), "sim");
  EXPECT_EQ(drive().counters().reads, 2u);
  EXPECT_EQ(drive().counters().bytes_written, 8 * kPage);
}

TEST_F(SimDiskTest, RefusesWhatADiskRefuses) {
  const TestBuffer buffer(2 * kPage);
  TestOp misaligned(kRead, 512, {buffer.all()});
  TestOp behind(kRead, kMiB - kPage, {buffer.all()});
  TestOp first(kRead, 0, {buffer.all()});
  TestOp second(kRead, 0, {buffer.all()});
  const auto disk = open(kMiB, 1);
  EXPECT_EQ(disk->submit(misaligned.op).error().code, Code::kInvalid);
  EXPECT_EQ(disk->submit(behind.op).error().code, Code::kInvalid);
  ASSERT_TRUE(disk->submit(first.op));
  EXPECT_EQ(disk->submit(second.op).error().code, Code::kBusy);
  EXPECT_EQ(disks_.open(loop_, log_, "other", {}).error().code, Code::kNotFound);
  EXPECT_EQ(disks_.open(loop_, log_, "other", {.bytes = 1}).error().code, Code::kInvalid);
}

TEST_F(SimDiskTest, TakesTimeAndCompletesOutOfOrderAsTheSeedSays) {
  const auto order_of = [](std::uint64_t seed) {
    SimClock clock;
    SimLoop loop(clock);
    NullLog log;
    SimDisks disks(seed);
    auto disk = std::move(disks.open(loop, log, "disk", {.bytes = kMiB}).value());
    const TestBuffer buffer(16 * kPage);
    const Time start = clock.now();
    std::vector<std::size_t> order;
    std::vector<std::unique_ptr<TestOp>> ops;
    for (std::size_t i = 0; i < 16; ++i) {
      ops.push_back(std::make_unique<TestOp>(kRead, 0, std::vector{buffer.part(i * kPage, kPage)}));
      ops.back()->op.on_done = [&, i](Status) { order.push_back(i); };
      EXPECT_TRUE(disk->submit(ops.back()->op));
    }
    EXPECT_EQ(disk->in_flight(), 16u);
    loop.run_for(std::chrono::microseconds(79));
    EXPECT_TRUE(order.empty());
    loop.run_until([&] { return order.size() == 16; }, std::chrono::seconds(1));
    EXPECT_LE(clock.now(), start + std::chrono::microseconds(200));
    return order;
  };
  EXPECT_EQ(order_of(1), order_of(1));
  EXPECT_NE(order_of(1), order_of(2));
  EXPECT_FALSE(std::ranges::is_sorted(order_of(1)));
}

TEST_F(SimDiskTest, SharesItsBandwidth) {
  SimDisks disks(1, {.latency_min = {}, .latency_max = {}, .bytes_per_second = 1 << 20});
  const auto disk = std::move(disks.open(loop_, log_, "disk", {.bytes = 4 * kMiB}).value());
  const TestBuffer buffer(kMiB);
  TestOp first(kRead, 0, {buffer.all()});
  TestOp second(kRead, kMiB, {buffer.all()});
  const Time start = clock_.now();
  ASSERT_TRUE(disk->submit(first.op));
  ASSERT_TRUE(disk->submit(second.op));
  ASSERT_TRUE(loop_.run_until([&] { return second.result.has_value(); }, std::chrono::hours(1)));
  EXPECT_TRUE(first.result);
  EXPECT_EQ(clock_.now() - start, std::chrono::seconds(2));
}

TEST_F(SimDiskTest, FailsTheOperationThatItWasToldToFail) {
  const auto disk = open();
  const TestBuffer buffer(kPage, 2);
  drive().inject(kRead, 2, SimFault::kError);
  drive().inject(kSync, 1, SimFault::kError, ENXIO);
  EXPECT_TRUE(read(*disk, 0, buffer));
  EXPECT_EQ(read(*disk, 0, buffer).error(), (Error{Code::kIo, EIO, ""}));
  EXPECT_TRUE(read(*disk, 0, buffer));
  EXPECT_EQ(sync(*disk).error().sys_errno, ENXIO);
  EXPECT_TRUE(sync(*disk));
}

TEST_F(SimDiskTest, FailedWriteMayBeTorn) {
  const auto disk = open();
  const TestBuffer old(64 * kPage, 3);
  const TestBuffer fresh(64 * kPage, 4);
  ASSERT_TRUE(write(*disk, 0, old));
  drive().inject(kWrite, 1, SimFault::kError);
  EXPECT_FALSE(write(*disk, 0, fresh));
  const TestBuffer left = medium(0, 64 * kPage);
  EXPECT_FALSE(left == old);
  EXPECT_FALSE(left == fresh);
}

TEST_F(SimDiskTest, FailedWriteMayBeWhole) {
  const auto disk = open();
  const TestBuffer fresh(64 * kPage, 4);
  drive().inject(kWrite, 1, SimFault::kErrorDone);
  EXPECT_EQ(write(*disk, 0, fresh).error().sys_errno, EIO);
  EXPECT_TRUE(medium(0, 64 * kPage) == fresh);
}

TEST_F(SimDiskTest, FlipsABitOfAReadOrAtRest) {
  const auto disk = open();
  const TestBuffer written(kPage, 5);
  const TestBuffer back(kPage);
  ASSERT_TRUE(write(*disk, 0, written));
  drive().inject(kRead, 1, SimFault::kFlipBit);
  ASSERT_TRUE(read(*disk, 0, back));
  EXPECT_FALSE(written == back);
  ASSERT_TRUE(read(*disk, 0, back));
  EXPECT_TRUE(written == back);
  drive().flip_bit(100, 3);
  ASSERT_TRUE(read(*disk, 0, back));
  back.data()[100] ^= std::byte{1 << 3};
  EXPECT_TRUE(written == back);
}

TEST_F(SimDiskTest, LosesAWriteSilently) {
  const auto disk = open();
  drive().inject(kWrite, 1, SimFault::kLose);
  EXPECT_TRUE(write(*disk, 0, TestBuffer(kPage, 6)));
  EXPECT_TRUE(medium(0, kPage) == TestBuffer(kPage));
}

TEST_F(SimDiskTest, MisdirectsAWriteToAnotherPlace) {
  const auto disk = open();
  const TestBuffer written(kPage, 21);
  drive().inject(kWrite, 1, SimFault::kMisdirect);
  EXPECT_TRUE(write(*disk, 8 * kPage, written));
  EXPECT_TRUE(medium(8 * kPage, kPage) == TestBuffer(kPage));
  std::size_t found = 0;
  for (std::uint64_t at = 0; at < kMiB; at += kPage) found += medium(at, kPage) == written ? 1 : 0;
  EXPECT_EQ(found, 1u);
}

TEST_F(SimDiskTest, MisdirectsAReadFromAnotherPlace) {
  const auto disk = open(2 * kPage);
  const TestBuffer written(kPage, 22);
  const TestBuffer back(kPage);
  ASSERT_TRUE(write(*disk, 0, written));
  drive().inject(kRead, 1, SimFault::kMisdirect);
  EXPECT_TRUE(read(*disk, 0, back));
  EXPECT_TRUE(back == TestBuffer(kPage)) << "the other page";
  EXPECT_TRUE(read(*disk, 0, back));
  EXPECT_TRUE(back == written);
}

TEST_F(SimDiskTest, RepeatsAWriteAfterLaterOnes) {
  const auto disk = open();
  const TestBuffer old(kPage, 23);
  const TestBuffer fresh(kPage, 24);
  drive().inject(kWrite, 1, SimFault::kRepeat);
  ASSERT_TRUE(write(*disk, 0, old));
  ASSERT_TRUE(write(*disk, 0, fresh));
  ASSERT_TRUE(sync(*disk));
  for (std::uint64_t i = 1; i <= 8; ++i) ASSERT_TRUE(write(*disk, i * kPage, fresh));
  EXPECT_TRUE(medium(0, kPage) == old);
}

TEST_F(SimDiskTest, FailsByChanceAsTheSeedAndTheRatesSay) {
  const auto outcome = [&](std::uint64_t seed, const SimFaultRates& rates) {
    SimDisks disks(seed);
    const auto disk = std::move(disks.open(loop_, log_, "disk", {.bytes = kMiB}).value());
    disks.drive("disk").set_fault_rates(rates);
    std::vector<int> errors;
    const TestBuffer buffer(kPage);
    for (int i = 0; i < 400; ++i) {
      const Status status = i % 2 == 0 ? write(*disk, 0, buffer) : read(*disk, 0, buffer);
      errors.push_back(status ? 0 : status.error().sys_errno);
    }
    EXPECT_EQ(disks.drive("disk").faults(), 400u - static_cast<std::size_t>(std::ranges::count(errors, 0)));
    return errors;
  };
  const SimFaultRates rates{.read_error = 200'000, .write_error = 100'000, .write_no_space = 100'000};
  EXPECT_EQ(outcome(1, rates), outcome(1, rates));
  EXPECT_NE(outcome(1, rates), outcome(2, rates));
  const auto errors = outcome(3, rates);
  EXPECT_GT(std::ranges::count(errors, ENOSPC), 5);
  EXPECT_GT(std::ranges::count(errors, EIO), 20);
  EXPECT_EQ(std::ranges::count(outcome(1, {}), 0), 400);
}

TEST_F(SimDiskTest, DelaysByChance) {
  const auto disk = open();
  const TestBuffer buffer(kPage);
  drive().set_fault_rates({.delay = 100'000, .delay_max = std::chrono::seconds(10)});
  int late = 0;
  for (int i = 0; i < 200; ++i) {
    const Time start = clock_.now();
    EXPECT_TRUE(read(*disk, 0, buffer));
    late += clock_.now() - start > std::chrono::seconds(1) ? 1 : 0;
  }
  EXPECT_GT(late, 5);
  EXPECT_LT(late, 40);
}

TEST_F(SimDiskTest, DelaysAndStallsReadsOnlyWhenTold) {
  const auto disk = open();
  const TestBuffer buffer(kPage);
  const auto took = [&](bool writes) {
    const Time start = clock_.now();
    EXPECT_TRUE(writes ? write(*disk, 0, buffer) : read(*disk, 0, buffer));
    return clock_.now() - start;
  };
  drive().set_fault_rates(
      {.read_delay = 1'000'000, .read_delay_min = std::chrono::seconds(2), .read_delay_max = std::chrono::seconds(3)});
  for (int i = 0; i < 10; ++i) {
    EXPECT_LT(took(true), Millis(10));
    const Duration time = took(false);
    EXPECT_GE(time, std::chrono::seconds(2));
    EXPECT_LE(time, Millis(3'010));
  }
  drive().set_fault_rates({});
  drive().stall(1, std::chrono::seconds(5), true);
  EXPECT_LT(took(true), Millis(10));
  EXPECT_GE(took(false), std::chrono::seconds(5));
  EXPECT_LT(took(false), Millis(10));
}

TEST_F(SimDiskTest, ChancesDoNotDependOnTheDirectory) {
  SimDisks one(7), other(7);
  for (int i = 0; i < 2; ++i) {
    SimDisks& disks = i == 0 ? one : other;
    const auto disk = std::move(disks.open(loop_, log_, i == 0 ? "/a/disk" : "/b/c/disk", {.bytes = kMiB}).value());
    EXPECT_TRUE(write(*disk, 0, TestBuffer(64 * kPage, 25)));
  }
  one.lose_power({.seed = 3});
  other.lose_power({.seed = 3});
  TestBuffer left(64 * kPage), right(64 * kPage);
  one.drive("/a/disk").peek(0, left.span());
  other.drive("/b/c/disk").peek(0, right.span());
  EXPECT_TRUE(left == right);
}

TEST_F(SimDiskTest, GoesOnFromAStateThatWasTakenOver) {
  SparseBytes durable;
  const TestBuffer old(kPage, 26), cached(kPage, 27);
  durable.write(0, old.span());
  drive().start_from(kMiB, durable, {{.offset = 0, .bytes = {cached.span().begin(), cached.span().end()}}});
  const auto disk = open();
  const TestBuffer back(kPage);
  ASSERT_TRUE(read(*disk, 0, back));
  EXPECT_TRUE(back == cached);
  disks_.lose_power({.keep_percent = 0});
  EXPECT_TRUE(medium(0, kPage) == old);
}

TEST_F(SimDiskTest, TellsAnObserverEveryOperation) {
  struct Observer final : SimObserver {
    void submitted(std::uint64_t id, DiskOp::Kind kind, std::uint64_t offset, Bytes bytes) override {
      lines.push_back(id * 1'000 + offset / kPage * 10 + static_cast<std::uint64_t>(kind));
      written += bytes.size();
    }
    void completed(std::uint64_t id, DiskOp::Kind, bool ok) override { lines.push_back(id + (ok ? 500 : 900)); }
    std::vector<std::uint64_t> lines;
    std::size_t written = 0;
  } observer;
  const auto disk = open();
  drive().observe(&observer);
  drive().inject(kSync, 1, SimFault::kError);
  EXPECT_TRUE(write(*disk, 3 * kPage, TestBuffer(2 * kPage)));
  EXPECT_FALSE(sync(*disk));
  EXPECT_EQ(observer.lines, (std::vector<std::uint64_t>{31, 500, 1'002, 901}));
  EXPECT_EQ(observer.written, 2 * kPage);
  drive().observe(nullptr);
}

TEST_F(SimDiskTest, StallsAsLongAsToldAndForEver) {
  const TestBuffer buffer(kPage);
  TestOp stuck(kRead, 0, {buffer.all()});
  const auto disk = open();
  const Time start = clock_.now();
  drive().stall(1, std::chrono::seconds(30));
  EXPECT_TRUE(read(*disk, 0, buffer));
  EXPECT_GE(clock_.now(), start + std::chrono::seconds(30));
  drive().stall(1, Duration::max());
  ASSERT_TRUE(disk->submit(stuck.op));
  const TestBuffer other(kPage);
  EXPECT_TRUE(read(*disk, 0, other));
  loop_.run_for(std::chrono::hours(24));
  EXPECT_FALSE(stuck.result);
  EXPECT_EQ(disk->in_flight(), 1u);
}

TEST_F(SimDiskTest, RunsOutOfSpace) {
  disks_.set_capacity(3 * kMiB);
  open(2 * kMiB);
  EXPECT_EQ(disks_.open(loop_, log_, "other", {.bytes = 2 * kMiB}).error().code, Code::kNoSpace);
  EXPECT_EQ(disks_.open(loop_, log_, "disk", {.bytes = 4 * kMiB}).error().code, Code::kNoSpace);
  EXPECT_TRUE(disks_.open(loop_, log_, "disk", {.bytes = 3 * kMiB}));
}

TEST_F(SimDiskTest, ReadBuffersHoldNothingUsefulUntilDone) {
  const TestBuffer written(kPage, 7);
  const TestBuffer back(kPage, 7);  // the right bytes by chance
  TestOp op(kRead, 0, {back.all()});
  const auto disk = open();
  ASSERT_TRUE(write(*disk, 0, written));
  ASSERT_TRUE(disk->submit(op.op));
  EXPECT_FALSE(written == back);
}

// First, without threads of other tests: gtest forks for it.
using SimDiskDeathTest = SimDiskTest;
TEST_F(SimDiskDeathTest, AbortsWhenABufferChangesUnderAWrite) {
  const auto disk = open();
  const TestBuffer buffer(kPage, 8);
  EXPECT_DEATH(
      {
        TestOp op(kWrite, 0, {buffer.all()});
        (void)disk->submit(op.op);
        buffer.data()[7] ^= std::byte{1};
        loop_.run_for(std::chrono::seconds(1));
      },
      "check failed");
}

TEST_F(SimDiskTest, CallbackMayDestroyTheDisk) {
  auto disk = open();
  const TestBuffer buffer(2 * kPage);
  TestOp first(kRead, 0, {buffer.part(0, kPage)});
  TestOp second(kRead, 0, {buffer.part(kPage, kPage)});
  int calls = 0;
  for (TestOp* op : {&first, &second}) {
    op->op.on_done = [&](Status) {
      ++calls;
      disk.reset();
    };
  }
  ASSERT_TRUE(disk->submit(first.op));
  ASSERT_TRUE(disk->submit(second.op));
  loop_.run_for(std::chrono::seconds(1));
  EXPECT_EQ(calls, 1);
}

TEST_F(SimDiskTest, PowerLossKeepsWhatWasFlushedWhateverTheSeed) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    auto disk = open();
    const TestBuffer flushed(16 * kPage, seed);
    ASSERT_TRUE(write(*disk, 0, flushed));
    ASSERT_TRUE(sync(*disk));
    EXPECT_EQ(drive().unflushed(), 0u);
    ASSERT_TRUE(write(*disk, 16 * kPage, TestBuffer(16 * kPage, seed + 100)));
    EXPECT_EQ(drive().unflushed(), 1u);
    disks_.lose_power({.seed = seed});
    EXPECT_TRUE(medium(0, 16 * kPage) == flushed);
  }
}

TEST_F(SimDiskTest, PowerLossDropsKeepsOrTearsWhatWasNot) {
  const TestBuffer fresh(64 * kPage, 9);
  const TestBuffer zeros(64 * kPage);
  const auto left_after = [&](const SimCrash& crash) {
    SimDisks disks(42);
    auto disk = std::move(disks.open(loop_, log_, "disk", {.bytes = kMiB}).value());
    EXPECT_TRUE(write(*disk, 0, fresh));
    disks.lose_power(crash);
    TestBuffer left(64 * kPage);
    disks.drive("disk").peek(0, left.span());
    return left;
  };
  EXPECT_TRUE(left_after({.keep_percent = 0}) == zeros);
  EXPECT_TRUE(left_after({.keep_percent = 100}) == fresh);
  EXPECT_TRUE(left_after({.seed = 3}) == left_after({.seed = 3}));
  EXPECT_FALSE(left_after({.seed = 3}) == left_after({.seed = 4}));
  for (const std::uint32_t sector : {512u, 4096u}) {
    const TestBuffer left = left_after({.seed = 5, .sector_bytes = sector});
    std::size_t kept = 0;
    for (std::size_t at = 0; at < 64 * kPage; at += sector) {
      const bool is_fresh = std::memcmp(left.data() + at, fresh.data() + at, sector) == 0;
      EXPECT_TRUE(is_fresh || std::memcmp(left.data() + at, zeros.data() + at, sector) == 0);
      kept += is_fresh ? 1 : 0;
    }
    EXPECT_GT(kept, 0u);
    EXPECT_LT(kept, 64 * kPage / sector);
  }
}

TEST_F(SimDiskTest, PowerLossMayKeepTheOlderOfTwoWrites) {
  std::set<char> seen;  // which write a page holds afterwards
  for (std::uint64_t seed = 1; seed <= 64; ++seed) {
    SimDisks disks(seed);
    auto disk = std::move(disks.open(loop_, log_, "disk", {.bytes = kMiB}).value());
    const TestBuffer first(kPage, 1000);
    const TestBuffer second(kPage, 2000);
    ASSERT_TRUE(write(*disk, 0, first));
    ASSERT_TRUE(write(*disk, 0, second));
    disks.lose_power({.seed = seed, .sector_bytes = 4096});
    TestBuffer left(kPage);
    disks.drive("disk").peek(0, left.span());
    seen.insert(left == first ? '1' : left == second ? '2' : left == TestBuffer(kPage) ? '0' : '?');
  }
  EXPECT_EQ(seen, (std::set{'0', '1', '2'}));
}

TEST_F(SimDiskTest, SyncDoesNotCoverWritesThatCompleteAfterItsSubmit) {
  const auto disk = open();
  const TestBuffer late(kPage, 10);
  TestOp writing(kWrite, 0, {late.all()});
  TestOp flush(kSync, 0, {});
  ASSERT_TRUE(disk->submit(writing.op));
  ASSERT_TRUE(disk->submit(flush.op));
  ASSERT_TRUE(loop_.run_until([&] { return writing.result && flush.result; }, std::chrono::hours(1)));
  EXPECT_EQ(drive().unflushed(), 1u);
  disks_.lose_power({.keep_percent = 0});
  EXPECT_TRUE(medium(0, kPage) == TestBuffer(kPage));
}

TEST_F(SimDiskTest, LostSyncKeepsNothing) {
  const auto disk = open();
  drive().inject(kSync, 1, SimFault::kLose);
  ASSERT_TRUE(write(*disk, 0, TestBuffer(kPage, 11)));
  ASSERT_TRUE(sync(*disk));
  EXPECT_EQ(drive().unflushed(), 1u);
}

TEST_F(SimDiskTest, ForgottenWritesAreSeenUntilThePowerGoes) {
  const auto disk = open();
  const TestBuffer first(kPage, 14);
  const TestBuffer second(kPage, 15);
  drive().inject(kSync, 1, SimFault::kForget);
  ASSERT_TRUE(write(*disk, 0, first));
  EXPECT_FALSE(sync(*disk));
  ASSERT_TRUE(write(*disk, kPage, second));
  EXPECT_TRUE(sync(*disk)) << "it is told once";
  EXPECT_TRUE(medium(0, kPage) == first);
  disks_.lose_power({.keep_percent = 100});
  EXPECT_TRUE(medium(0, kPage) == TestBuffer(kPage));
  EXPECT_TRUE(medium(kPage, kPage) == second);
}

TEST_F(SimDiskTest, KillKeepsCompletedWritesAndMayTearThoseInFlight) {
  auto disk = open();
  const TestBuffer completed(64 * kPage, 12);
  const TestBuffer started(64 * kPage, 13);
  ASSERT_TRUE(write(*disk, 0, completed));
  TestOp op(kWrite, 64 * kPage, {started.all()});
  ASSERT_TRUE(disk->submit(op.op));
  disks_.kill({.seed = 1});
  EXPECT_TRUE(medium(0, 64 * kPage) == completed);
  const TestBuffer left = medium(64 * kPage, 64 * kPage);
  EXPECT_FALSE(left == started);
  EXPECT_FALSE(left == TestBuffer(64 * kPage));
  EXPECT_EQ(drive().unflushed(), 2u);  // a power loss may still take them

  TestOp after_death(kRead, 0, {started.part(0, kPage)});
  EXPECT_EQ(disk->submit(after_death.op).error().code, Code::kIo);
  loop_.run_for(std::chrono::hours(1));
  EXPECT_FALSE(op.result);
  disk = open();
  EXPECT_TRUE(read(*disk, 0, TestBuffer(kPage)));
}

TEST_F(SimDiskTest, DestructionFinishesWhatIsInFlightWithoutCallbacks) {
  auto disk = open();
  const TestBuffer written(kPage, 14);
  TestOp op(kWrite, 0, {written.all()});
  ASSERT_TRUE(disk->submit(op.op));
  disk.reset();
  loop_.run_for(std::chrono::seconds(1));
  EXPECT_FALSE(op.result);
  EXPECT_TRUE(medium(0, kPage) == written);
}

TEST_F(SimDiskTest, AResetFailsWhatIsInFlightAndLosesWhatWasNotFlushed) {
  auto disk = open();
  const TestBuffer flushed(kPage, 15), completed(kPage, 16), started(64 * kPage, 17);
  ASSERT_TRUE(write(*disk, 0, flushed));
  ASSERT_TRUE(sync(*disk));
  ASSERT_TRUE(write(*disk, kPage, completed));
  drive().stall(1, Duration::max());
  TestOp stalled(kSync, 0, {});
  TestOp op(kWrite, 64 * kPage, {started.all()});
  ASSERT_TRUE(disk->submit(stalled.op));
  ASSERT_TRUE(disk->submit(op.op));
  drive().reset({.seed = 1, .keep_percent = 0});
  EXPECT_FALSE(op.result) << "told from the loop";
  loop_.run_for(Millis(1));
  EXPECT_EQ(stalled.result->error().code, Code::kIo);
  EXPECT_EQ(op.result->error().sys_errno, EIO);
  EXPECT_TRUE(medium(0, kPage) == flushed);
  EXPECT_TRUE(medium(kPage, kPage) == TestBuffer(kPage));
  EXPECT_FALSE(medium(64 * kPage, 64 * kPage) == started);
  ASSERT_TRUE(write(*disk, kPage, completed)) << "it goes on";
  ASSERT_TRUE(sync(*disk));
  EXPECT_EQ(drive().unflushed(), 0u);
}

TEST_F(SimDiskTest, ReleaseCompletesWhatWasStalledForEver) {
  auto disk = open();
  const TestBuffer written(kPage, 18);
  drive().stall(UINT64_MAX, Duration::max());
  TestOp op(kWrite, 0, {written.all()});
  ASSERT_TRUE(disk->submit(op.op));
  loop_.run_for(std::chrono::hours(1));
  EXPECT_FALSE(op.result);
  drive().release();
  loop_.run_for(Millis(1));
  EXPECT_TRUE(op.result && *op.result);
  EXPECT_TRUE(medium(0, kPage) == written);
  EXPECT_TRUE(read(*disk, 0, TestBuffer(kPage)));
}

TEST_F(SimDiskTest, EverythingFailsUntilItIsMended) {
  auto disk = open();
  drive().fail_all(EIO);
  EXPECT_EQ(read(*disk, 0, TestBuffer(kPage)).error().sys_errno, EIO);
  EXPECT_FALSE(sync(*disk));
  EXPECT_FALSE(write(*disk, 0, TestBuffer(kPage)));
  drive().fail_all(0);
  EXPECT_TRUE(sync(*disk));
}

TEST_F(SimDiskTest, TwoDrivesOfOneNameFailEachInItsWay) {
  const TestBuffer written(64 * kPage, 19);
  const auto torn = [&](SimDisks& disks, const std::string& path) {
    const auto disk = std::move(disks.open(loop_, log_, path, {.bytes = kMiB}).value());
    EXPECT_TRUE(write(*disk, 0, written));
    disks.lose_power({.seed = 3});
    TestBuffer left(64 * kPage);
    disks.drive(path).peek(0, left.span());
    return left;
  };
  SimDisks one(7), other(7);
  const TestBuffer first = torn(one, "/a/disk"), second = torn(one, "/b/disk");
  EXPECT_FALSE(first == second);
  EXPECT_TRUE(torn(other, "/c/disk") == first) << "by the seed and the order alone";
  EXPECT_TRUE(torn(other, "/d/disk") == second);
}

TEST_F(SimDiskTest, AVanishedDriveFailsWhatIsUnderWay) {
  auto disk = open();
  const TestBuffer flushed(kPage, 20), completed(kPage, 21), started(kPage, 22);
  ASSERT_TRUE(write(*disk, 0, flushed));
  ASSERT_TRUE(sync(*disk));
  ASSERT_TRUE(write(*disk, kPage, completed));
  TestOp op(kWrite, 2 * kPage, {started.all()});
  ASSERT_TRUE(disk->submit(op.op));
  disks_.vanish("disk", {.seed = 1, .keep_percent = 0});
  EXPECT_FALSE(op.result) << "told from the loop";
  EXPECT_EQ(read(*disk, 0, TestBuffer(kPage)).error().sys_errno, ENODEV);
  loop_.run_for(Millis(1));
  ASSERT_TRUE(op.result);
  EXPECT_EQ(op.result->error().sys_errno, ENODEV);
  EXPECT_EQ(disks_.open(loop_, log_, "disk", {.bytes = kMiB}).error().code, Code::kNotFound);
  disks_.come_back("disk");
  EXPECT_EQ(read(*disk, 0, TestBuffer(kPage)).error().sys_errno, ENODEV) << "it is another device node";
  disk = open();
  const TestBuffer back(kPage);
  ASSERT_TRUE(read(*disk, 0, back));
  EXPECT_TRUE(back == flushed);
  EXPECT_TRUE(medium(kPage, kPage) == TestBuffer(kPage)) << "it was not flushed";
}

TEST_F(SimDiskTest, DrivesChangePlacesAndComeBackFromBefore) {
  const TestBuffer first(kPage, 23), second(kPage, 24), later(kPage, 25);
  const auto write_to = [&](const std::string& path, const TestBuffer& buffer) {
    const auto disk = std::move(disks_.open(loop_, log_, path, {.bytes = kMiB}).value());
    EXPECT_TRUE(write(*disk, 0, buffer));
  };
  const auto holds = [&](const std::string& path, const TestBuffer& buffer) {
    TestBuffer there(kPage);
    disks_.drive(path).peek(0, there.span());
    return there == buffer;
  };
  write_to("a", first);
  write_to("b", second);
  disks_.swap("a", "b");
  EXPECT_TRUE(holds("a", second) && holds("b", first));
  const SimImage before = disks_.drive("a").image();
  write_to("a", later);
  EXPECT_TRUE(holds("a", later));
  disks_.put_back("a", before);
  EXPECT_TRUE(holds("a", second));
  EXPECT_EQ(disks_.drive("a").size(), kMiB);
  disks_.lose_power({.seed = 1, .keep_percent = 0});
  EXPECT_TRUE(holds("a", second)) << "it is durable";
}

TEST(SimDiskOnRealLoop, Works) {
  const auto loop = std::move(make_real_loop().value());
  NullLog log;
  SimDisks disks(1);
  const auto disk = std::move(disks.open(*loop, log, "disk", {.bytes = kMiB}).value());
  const TestBuffer buffer(kPage);
  TestOp op(kRead, 0, {buffer.all()});
  ASSERT_TRUE(disk->submit(op.op));
  while (!op.result) loop->run_once(Duration::max());
  EXPECT_TRUE(*op.result);
}

}  // namespace
}  // namespace kvd::io
