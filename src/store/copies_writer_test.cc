// Tests of rewriting four copies: whatever interrupts it, the old or the new content is in force.
#include "store/copies_writer.h"

#include <memory>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include "io/sim/sim_disk.h"
#include "io/sim/sim_loop.h"
#include "store/blocking_disk.h"
#include "store/device_table.h"
#include "store/found_file.h"

namespace kvd::store {
namespace {

constexpr std::uint64_t kStepsInAll = 7;  // four writes and three flushes

// A machine with one file of copies. Content n has generation n.
class CopiesRig {
 public:
  CopiesRig() { start(); }
  ~CopiesRig() { disk_.reset(); }

  // Begins to write content n; it ends from the loop.
  void begin(std::uint64_t n) { begin(content(n)); }
  void begin(const DeviceTable& table) {
    how.reset();
    first_step_ = steps();
    writer_->write([&](MutableBytes page, std::uint32_t copy) { encode_device_table(page, table, copy); },
                   [this](Status told) { how = told; });
    EXPECT_FALSE(how);
  }
  Status end() {
    EXPECT_TRUE(loop.run_until([this] { return how.has_value(); }, std::chrono::hours(1)));
    return *how;
  }
  // Until the drive has begun with the step; behind the last one, until all is told.
  void run_to(std::uint64_t step) {
    const auto there = [&] { return step > kStepsInAll ? how.has_value() : steps() - first_step_ >= step; };
    EXPECT_TRUE(loop.run_until(there, std::chrono::hours(1)));
  }
  // Behind kill() or lose_power().
  void start() {
    disk_.reset();
    disk_ = std::move(*disks.open(loop, log_, "list", {.bytes = kSuperblockCopies * kDeviceTableStride}));
    writer_ = std::make_unique<CopiesWriter>(loop, *disk_, kDeviceTableStride);
  }
  // Which content is in force; 0: none.
  std::uint64_t in_force() {
    const auto found = look_at<DeviceTableScan>(loop, disks, "list", kDeviceTableStride, false);
    EXPECT_EQ(found.verdict.in_force, content(found.verdict.in_force.generation));
    return found.verdict.kind == CopiesKind::kValid ? found.verdict.in_force.generation : 0;
  }
  // What is there, as an opening finds it; and that no two copies of one generation differ.
  CopiesVerdict<DeviceTable> look() {
    const auto disk = std::move(*disks.open(loop, log_, "list", {.read_only = true}));
    BlockingDisk blocking(loop, *disk);
    const auto scan = scan_copies<DeviceTableScan>(
        disk->size(), kDeviceTableStride, [&](std::uint64_t at, MutableBytes page) { return blocking.read(at, page); });
    for (std::uint32_t i = 0; i < kSuperblockCopies; ++i) {
      for (std::uint32_t j = 0; j < i; ++j) {
        if (scan.copy(i) && scan.copy(j) && scan.copy(i)->generation == scan.copy(j)->generation) {
          EXPECT_EQ(*scan.copy(i), *scan.copy(j)) << "copies " << j << " and " << i;
        }
      }
    }
    return scan.verdict();
  }
  CopiesWriter& writer() { return *writer_; }
  io::Disk& disk() { return *disk_; }
  io::SimDrive& drive() { return disks.drive("list"); }

  static DeviceTable content(std::uint64_t n) {
    return n == 0 ? DeviceTable{} : DeviceTable{{}, n, 10 * n, kSegmentBytesMin, {}};
  }

  io::SimClock clock;
  io::SimLoop loop{clock};
  io::SimDisks disks{1};
  std::optional<Status> how;

 private:
  std::uint64_t steps() { return drive().counters().writes + drive().counters().syncs; }

  RecordingLog log_;
  std::unique_ptr<CopiesWriter> writer_;
  std::unique_ptr<io::Disk> disk_;
  std::uint64_t first_step_ = 0;
};

TEST(CopiesWriter, WritesEachCopyOnceAndSaysWhenAllAreDurable) {
  CopiesRig rig;
  rig.begin(1);
  EXPECT_TRUE(rig.writer().busy());
  EXPECT_TRUE(rig.end());
  EXPECT_FALSE(rig.writer().busy());
  EXPECT_EQ(rig.drive().counters().writes, kSuperblockCopies);
  EXPECT_EQ(rig.drive().unflushed(), 0U);
  EXPECT_EQ(rig.in_force(), 1U);
  const auto encode = [](MutableBytes page, std::uint32_t copy) {
    encode_device_table(page, CopiesRig::content(2), copy);
  };
  EXPECT_TRUE(write_copies(rig.loop, rig.disk(), kDeviceTableStride, encode)) << "the same, and waits";
  EXPECT_EQ(rig.in_force(), 2U);
}

TEST(CopiesWriter, EveryStepMayBeTheLast) {
  for (std::uint64_t step = 1; step <= kStepsInAll + 1; ++step) {
    for (std::uint64_t seed = 1; seed <= 24; ++seed) {
      for (const bool power : {false, true}) {
        CopiesRig rig;
        rig.begin(1);
        EXPECT_TRUE(rig.end());
        rig.begin(2);
        rig.run_to(step);
        const io::SimCrash crash{.seed = seed, .keep_percent = static_cast<std::uint32_t>(seed % 3) * 50};
        power ? rig.disks.lose_power(crash) : rig.disks.kill(crash);
        const std::uint64_t in_force = rig.in_force();
        EXPECT_TRUE(in_force == 2 || (in_force == 1 && step <= kStepsInAll))
            << in_force << " behind step " << step << ", seed " << seed << ", power " << power;
      }
    }
  }
}

// What a killed one has left is visible and may not be durable: the next one makes it so before it writes.
TEST(CopiesWriter, AlsoOfOneThatFollowsOneThatWasKilled) {
  for (std::uint64_t first = 1; first <= kStepsInAll; ++first) {
    for (std::uint64_t second = 1; second <= kStepsInAll; ++second) {
      for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        CopiesRig rig;
        rig.begin(1);
        EXPECT_TRUE(rig.end());
        rig.begin(2);
        rig.run_to(first);
        rig.disks.kill({.seed = seed});
        rig.start();
        rig.begin(3);
        rig.run_to(second);
        rig.disks.lose_power({.seed = seed, .keep_percent = static_cast<std::uint32_t>(seed % 3) * 50});
        EXPECT_NE(rig.in_force(), 0U) << "steps " << first << ", " << second << ", seed " << seed;
      }
    }
  }
}

// As openings do it, whose generations follow from what they find: in force is what the last one has found or what it
// writes, never nothing, and never what one before it tried in vain.
TEST(CopiesWriter, OneThatFollowsOneThatWasInterruptedIsNotTakenForIt) {
  for (std::uint64_t first = 1; first <= kStepsInAll; ++first) {
    for (std::uint64_t second = 1; second <= kStepsInAll; ++second) {
      for (std::uint64_t seed = 1; seed <= 24; ++seed) {
        CopiesRig rig;
        rig.begin(1);
        EXPECT_TRUE(rig.end());
        for (std::uint64_t n = 1; const std::uint64_t last : {first, second, first}) {
          const auto found = rig.look();
          const DeviceTable before = found.in_force;
          DeviceTable table = before;
          table.generation = found.generation_max + 1;
          table.boot_epoch = 1000 * n++;
          rig.start();
          rig.begin(table);
          rig.run_to(last);
          const io::SimCrash crash{.seed = seed + last, .keep_percent = static_cast<std::uint32_t>(seed % 3) * 50};
          const bool power = (seed >> (n % 3) & 1) != 0;
          power ? rig.disks.lose_power(crash) : rig.disks.kill(crash);
          const auto then = rig.look();
          const bool flushed = !power || last > 1;  // or a killed one's may go
          ASSERT_EQ(then.kind, CopiesKind::kValid);
          ASSERT_TRUE(then.in_force == before || then.in_force == table || !flushed)
              << "steps " << first << ", " << second << ", seed " << seed << ": " << then.in_force.boot_epoch;
        }
      }
    }
  }
}

TEST(CopiesWriter, SaysWhatFailedAndCanTryAgain) {
  for (std::uint64_t nth = 1; nth <= kSuperblockCopies; ++nth) {
    CopiesRig rig;
    rig.begin(1);
    EXPECT_TRUE(rig.end());
    const bool write = nth % 2 == 0;
    rig.drive().inject(write ? io::DiskOp::Kind::kWrite : io::DiskOp::Kind::kSync, (nth + 1) / 2, io::SimFault::kError);
    rig.begin(2);
    EXPECT_EQ(rig.end().error().code, Code::kIo);
    EXPECT_FALSE(rig.writer().busy());
    rig.begin(3);
    EXPECT_TRUE(rig.end());
    EXPECT_EQ(rig.in_force(), 3U);
  }
}

TEST(CopiesWriter, ADiskThatRefusesIsAnErrorFromTheLoop) {
  CopiesRig rig;
  rig.disks.kill({});
  rig.begin(1);
  EXPECT_FALSE(rig.end());
}

}  // namespace
}  // namespace kvd::store
