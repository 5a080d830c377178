// Tests of Disk with both engines on a real file: transfers, limits, errors, ends of life, and opening.
#include "io/disk.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "io/disk_file.h"
#include "io/testing/disk_testing.h"

namespace kvd::io {
namespace {

class TempDir {
 public:
  TempDir() {
    std::string name = testing::TempDir() + "kvd_disk_XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

using Buffer = TestBuffer;
using Op = TestOp;

class DiskTest : public testing::TestWithParam<const char*> {
 protected:
  DiskTest() : loop_(std::move(make_real_loop().value())) {}

  [[nodiscard]] DiskOptions options(std::uint64_t bytes) const {
    return {.bytes = bytes, .force_threads = std::string(GetParam()) == "threads"};
  }
  std::unique_ptr<Disk> open(const DiskOptions& options, const std::string& name = "disk") {
    auto disk = open_disk(*loop_, log_, dir_.file(name), options);
    EXPECT_TRUE(disk) << (disk ? "" : disk.error().what);
    return disk ? std::move(*disk) : nullptr;
  }
  Status run(Disk& disk, Op& op) {
    if (const Status status = disk.submit(op.op); !status) return status;
    EXPECT_FALSE(op.result);
    while (!op.result) loop_->run_once(Duration::max());
    return *op.result;
  }
  void wait_idle(const Disk& disk) {
    while (disk.in_flight() > 0) loop_->run_once(Duration::max());
  }

  TempDir dir_;
  RecordingLog log_;
  std::unique_ptr<Loop> loop_;
};

INSTANTIATE_TEST_SUITE_P(Engines, DiskTest, testing::Values("io_uring", "threads"),
                         [](const auto& engine) { return std::string(engine.param); });

TEST_P(DiskTest, UsesTheEngineThatWasAskedFor) {
  const auto disk = open(options(kMiB));
  if (log_.count("no io_uring") == 1) GTEST_SKIP() << "this machine has no io_uring";
  EXPECT_STREQ(disk->engine(), GetParam());
  EXPECT_EQ(log_.count(GetParam()), 1u);
}

TEST_P(DiskTest, ReadsWhatWasWritten) {
  const auto disk = open(options(4 * kMiB));
  EXPECT_EQ(disk->size(), 4 * kMiB);
  const Buffer written(kMiB, 1);
  const Buffer read(kMiB);
  Op write(kWrite, 2 * kMiB, {written.all()});
  EXPECT_TRUE(run(*disk, write));
  Op sync(kSync, 0, {});
  EXPECT_TRUE(run(*disk, sync));
  Op back(kRead, 2 * kMiB, {read.all()});
  EXPECT_TRUE(run(*disk, back));
  EXPECT_TRUE(written == read);
  EXPECT_EQ(disk->in_flight(), 0u);
}

TEST_P(DiskTest, ScattersAndGathers) {
  const auto disk = open(options(4 * kMiB));
  const Buffer written(kMiB, 2);
  std::vector<iovec> parts;
  for (std::size_t at = 0; at < kMiB; at += kPageBytes) parts.push_back(written.part(at, kPageBytes));
  Op write(kWrite, 0, parts);
  EXPECT_TRUE(run(*disk, write));
  const Buffer read(kMiB);
  Op back(kRead, 0, {read.part(0, 3 * kPageBytes), read.part(3 * kPageBytes, kMiB - 3 * kPageBytes)});
  EXPECT_TRUE(run(*disk, back));
  EXPECT_TRUE(written == read);
}

TEST_P(DiskTest, NewFileReadsAsZeros) {
  const auto disk = open(options(kMiB));
  const Buffer read(kMiB, 3);
  Op op(kRead, 0, {read.all()});
  EXPECT_TRUE(run(*disk, op));
  EXPECT_TRUE(read == Buffer(kMiB));
}

constexpr std::uint64_t kOwnBytesMax = 64 << 10;  // a file system's own list of a file's extents

std::uint64_t allocated_bytes(const std::string& path) {
  struct stat st{};
  EXPECT_EQ(::stat(path.c_str(), &st), 0);
  return static_cast<std::uint64_t>(st.st_blocks) * 512;
}

TEST_P(DiskTest, AHoleTakesNoSpaceAlsoInAFileThatHadIt) {
  DiskOptions with_hole = options(8 * kMiB);
  with_hole.hole_at = kMiB;
  with_hole.hole_bytes = 2 * kMiB;
  for (const char* name : {"new", "old"}) {
    if (std::string(name) == "old") open(options(4 * kMiB), name).reset();
    const auto disk = open(with_hole, name);
    EXPECT_EQ(disk->size(), 8 * kMiB);
    EXPECT_LE(allocated_bytes(dir_.file(name)), 6 * kMiB + kOwnBytesMax) << name;
    const Buffer written(kMiB, 5), read(4 * kMiB);
    Op first(kWrite, 0, {written.all()}), last(kWrite, 3 * kMiB, {written.all()}), back(kRead, 0, {read.all()});
    EXPECT_TRUE(run(*disk, first) && run(*disk, last) && run(*disk, back));
    EXPECT_EQ(std::memcmp(read.all().iov_base, written.all().iov_base, kMiB), 0);
    EXPECT_EQ(std::memcmp(read.part(kMiB, 2 * kMiB).iov_base, Buffer(2 * kMiB).all().iov_base, 2 * kMiB), 0);
    EXPECT_EQ(std::memcmp(read.part(3 * kMiB, kMiB).iov_base, written.all().iov_base, kMiB), 0);
  }
  for (const auto& [at, bytes] : std::initializer_list<std::pair<std::uint64_t, std::uint64_t>>{
           {100, kMiB}, {kMiB, 100}, {7 * kMiB, kMiB}, {8 * kMiB, kMiB}, {kMiB, UINT64_MAX - kPageBytes + 1}}) {
    with_hole.hole_at = at;
    with_hole.hole_bytes = bytes;
    EXPECT_EQ(open_disk(*loop_, log_, dir_.file("none"), with_hole).error().code, Code::kInvalid) << at << " " << bytes;
  }
}

TEST_P(DiskTest, RunsManyOperationsAtOnceAndIsBusyBeyondItsDepth) {
  DiskOptions with_depth = options(64 * kMiB);
  with_depth.depth_max = 32;
  const auto disk = open(with_depth);
  const Buffer written(64 * kMiB, 4);
  const Buffer read(64 * kMiB);
  for (const auto kind : {kWrite, kRead}) {
    const Buffer& buffer = kind == kWrite ? written : read;
    std::vector<std::unique_ptr<Op>> ops;
    std::size_t done = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      ops.push_back(std::make_unique<Op>(kind, i * kMiB, std::vector{buffer.part(i * kMiB, kMiB)}));
      ops.back()->op.on_done = [&](Status status) {
        EXPECT_TRUE(status);
        ++done;
      };
      Status status = disk->submit(ops.back()->op);
      if (i >= 32 && !status) {
        EXPECT_EQ(status.error().code, Code::kBusy);
        while (disk->in_flight() == 32) loop_->run_once(Duration::max());
        status = disk->submit(ops.back()->op);
      }
      EXPECT_TRUE(status);
      EXPECT_TRUE(i != 31 || disk->in_flight() == 32);
    }
    wait_idle(*disk);
    EXPECT_EQ(done, 64u);
  }
  EXPECT_TRUE(written == read);
}

TEST_P(DiskTest, CompletesAllThatPiledUpWhileTheLoopWasAway) {
  const auto disk = open(options(kMiB));
  const Buffer buffer(kMiB);
  std::vector<std::unique_ptr<Op>> ops;
  for (std::size_t i = 0; i < 256; ++i) {
    ops.push_back(std::make_unique<Op>(kRead, i * kPageBytes, std::vector{buffer.part(i * kPageBytes, kPageBytes)}));
    ASSERT_TRUE(disk->submit(ops.back()->op));
  }
  loop_->run_once(Duration::zero());                       // starts them
  for (int i = 0; i < 8; ++i) open(options(kMiB), "new");  // takes as long as they do, more or less
  wait_idle(*disk);
  EXPECT_TRUE(std::ranges::all_of(ops, [](const auto& op) { return op->result && *op->result; }));
}

TEST_P(DiskTest, RefusesWhatBreaksTheRules) {
  const auto disk = open(options(kMiB));
  const Buffer buffer(2 * kMiB);
  const auto refused = [&](Op&& op) {
    const Status status = disk->submit(op.op);
    return !status && status.error().code == Code::kInvalid && disk->in_flight() == 0;
  };
  EXPECT_TRUE(refused(Op(kRead, 512, {buffer.part(0, kPageBytes)})));
  EXPECT_TRUE(refused(Op(kRead, 0, {buffer.part(512, kPageBytes)})));
  EXPECT_TRUE(refused(Op(kRead, 0, {buffer.part(0, 512)})));
  EXPECT_TRUE(refused(Op(kRead, 0, {buffer.part(0, 0)})));
  EXPECT_TRUE(refused(Op(kRead, 0, {})));
  EXPECT_TRUE(refused(Op(kRead, kMiB, {buffer.part(0, kPageBytes)})));
  EXPECT_TRUE(refused(Op(kWrite, kMiB - kPageBytes, {buffer.part(0, 2 * kPageBytes)})));
  EXPECT_TRUE(refused(Op(kRead, ~std::uint64_t{kPageBytes - 1}, {buffer.part(0, kPageBytes)})));
  EXPECT_TRUE(refused(Op(kSync, 0, {buffer.part(0, kPageBytes)})));
  EXPECT_TRUE(refused(Op(kRead, 0, std::vector(1025, buffer.part(0, kPageBytes)))));
  Op without_callback(kRead, 0, {buffer.part(0, kPageBytes)});
  without_callback.op.on_done = nullptr;
  EXPECT_FALSE(disk->submit(without_callback.op));
}

TEST_P(DiskTest, ReportsEndOfFileAsAnError) {
  const auto disk = open(options(kMiB));
  ASSERT_EQ(::truncate(dir_.file("disk").c_str(), kMiB / 2), 0);  // behind the disk's back
  const Buffer buffer(kMiB);
  Op across(kRead, 0, {buffer.all()});
  const Status status = run(*disk, across);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kIo);
  Op before(kRead, 0, {buffer.part(0, kMiB / 2)});
  EXPECT_TRUE(run(*disk, before));
}

TEST_P(DiskTest, CallbackMaySubmitTheSameOperationAgain) {
  const auto disk = open(options(kMiB));
  const Buffer buffer(kPageBytes);
  Op op(kRead, 0, {buffer.all()});
  int left = 100;
  std::function<void(Status)> again = [&](Status status) {
    ASSERT_TRUE(status);
    if (--left == 0) return;
    op.op.on_done = again;
    ASSERT_TRUE(disk->submit(op.op));
  };
  op.op.on_done = again;
  ASSERT_TRUE(disk->submit(op.op));
  wait_idle(*disk);
  EXPECT_EQ(left, 0);
}

TEST_P(DiskTest, CallbackMayDestroyTheDisk) {
  auto disk = open(options(8 * kMiB));
  const Buffer buffer(8 * kMiB);
  std::vector<std::unique_ptr<Op>> ops;
  int calls = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    ops.push_back(std::make_unique<Op>(kRead, i * kMiB / 8, std::vector{buffer.part(i * kMiB / 8, kMiB / 8)}));
    ops.back()->op.on_done = [&](Status) {
      ++calls;
      disk.reset();
    };
    ASSERT_TRUE(disk->submit(ops.back()->op));
  }
  while (disk != nullptr) loop_->run_once(Duration::max());
  while (loop_->run_once(Duration::zero())) {
  }
  EXPECT_EQ(calls, 1);
}

TEST_P(DiskTest, DestructionWaitsAndRunsNoCallback) {
  auto disk = open(options(8 * kMiB));
  const Buffer written(8 * kMiB, 5);
  Op write(kWrite, 0, {written.all()});
  ASSERT_TRUE(run(*disk, write));
  auto read = std::make_unique<Buffer>(8 * kMiB);
  const Buffer page(kPageBytes);
  Op started(kRead, 0, {read->all()});
  Op queued(kRead, 0, {page.all()});
  ASSERT_TRUE(disk->submit(started.op));
  loop_->run_once(Duration::zero());  // starts it
  ASSERT_TRUE(disk->submit(queued.op));
  disk.reset();
  // All or nothing: it has ended, or a thread of the pool had not taken it yet.
  EXPECT_TRUE(*read == written || *read == Buffer(8 * kMiB));
  read.reset();  // address sanitizer: nobody touches it any more
  while (loop_->run_once(Duration::zero())) {
  }
  EXPECT_FALSE(started.result || queued.result);
}

TEST_P(DiskTest, FollowsItsLoopToAnotherThread) {
  const auto disk = open(options(8 * kMiB));
  const Buffer written(8 * kMiB, 6);
  const Buffer read(8 * kMiB);
  Op write(kWrite, 0, {written.all()});
  EXPECT_TRUE(run(*disk, write));
  Op back(kRead, 0, {read.all()});
  ASSERT_TRUE(disk->submit(back.op));
  loop_->run_once(Duration::zero());  // handed to the kernel on this thread
  std::thread([&] { wait_idle(*disk); }).join();
  ASSERT_TRUE(back.result && *back.result);
  EXPECT_TRUE(written == read);
}

TEST_P(DiskTest, CanBeDestroyedAfterItsThreadEnded) {
  auto disk = open(options(8 * kMiB));
  const Buffer buffer(8 * kMiB, 7);
  Op op(kWrite, 0, {buffer.all()});
  std::thread([&] {
    ASSERT_TRUE(disk->submit(op.op));
    loop_->run_once(Duration::zero());
  }).join();
  disk.reset();
}

TEST_P(DiskTest, SubmittedFromAnotherThreadsPost) {
  const auto disk = open(options(8 * kMiB));
  const Buffer written(kMiB, 8);
  const Buffer read(kMiB);
  Op write(kWrite, 0, {written.all()});
  Op back(kRead, 0, {read.all()});
  write.op.on_done = [&](Status status) {
    EXPECT_TRUE(status);
    EXPECT_TRUE(disk->submit(back.op));
  };
  back.op.on_done = [&](Status status) {
    EXPECT_TRUE(status);
    loop_->stop();
  };
  std::thread thread([&] { loop_->run(); });
  loop_->post([&] { EXPECT_TRUE(disk->submit(write.op)); });
  thread.join();
  EXPECT_TRUE(written == read);  // this thread reads what the kernel wrote: ordered by the loop's thread
}

TEST_P(DiskTest, IsWrittenByOneOnly) {
  auto disk = open(options(kMiB));
  const auto second = open_disk(*loop_, log_, dir_.file("disk"), options(kMiB));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kBusy);
  DiskOptions look = options(0);
  look.read_only = true;
  EXPECT_NE(open(look), nullptr) << "who only reads may";
  disk.reset();
  EXPECT_NE(open(options(kMiB)), nullptr);
}

TEST_P(DiskTest, ReadOnlyDiskReadsAndRefusesWrites) {
  open(options(kMiB)).reset();
  DiskOptions read_only = options(0);
  read_only.read_only = true;
  const auto disk = open(read_only);
  EXPECT_EQ(disk->size(), kMiB);
  const Buffer buffer(kPageBytes);
  Op write(kWrite, 0, {buffer.all()});
  EXPECT_EQ(run(*disk, write).error().code, Code::kInvalid);
  Op read(kRead, 0, {buffer.all()});
  EXPECT_TRUE(run(*disk, read));
}

// Opening, which does not depend on the engine.
class DiskOpenTest : public testing::Test {
 protected:
  DiskOpenTest() : loop_(std::move(make_real_loop().value())) {}
  Result<std::unique_ptr<Disk>> open(const std::string& path, const DiskOptions& options) {
    return RealDisks().open(*loop_, log_, path, options);
  }
  static struct stat stat_of(const std::string& path) {
    struct stat st{};
    EXPECT_EQ(::stat(path.c_str(), &st), 0);
    return st;
  }
  TempDir dir_;
  RecordingLog log_;
  std::unique_ptr<Loop> loop_;
};

TEST_F(DiskOpenTest, NewFileIsPrivateAndAllocated) {
  ASSERT_TRUE(open(dir_.file("disk"), {.bytes = kMiB}));
  const struct stat st = stat_of(dir_.file("disk"));
  EXPECT_EQ(st.st_mode & 07777, 0600u);
  EXPECT_EQ(st.st_size, static_cast<off_t>(kMiB));
  EXPECT_TRUE(st.st_blocks * 512 >= static_cast<off_t>(kMiB) || log_.count("cannot preallocate") == 1);
}

TEST_F(DiskOpenTest, GrowsAnExistingFileAndNeverShrinksIt) {
  ASSERT_TRUE(open(dir_.file("disk"), {.bytes = kMiB}));
  EXPECT_EQ(open(dir_.file("disk"), {.bytes = 2 * kMiB}).value()->size(), 2 * kMiB);
  EXPECT_EQ(open(dir_.file("disk"), {.bytes = kMiB}).value()->size(), 2 * kMiB);
  EXPECT_EQ(open(dir_.file("disk"), {}).value()->size(), 2 * kMiB);
}

TEST_F(DiskOpenTest, SizeIsRoundedDownToPages) {
  std::ofstream(dir_.file("odd")).close();
  std::filesystem::resize_file(dir_.file("odd"), 2 * kPageBytes + 5);
  EXPECT_EQ(open(dir_.file("odd"), {}).value()->size(), 2 * kPageBytes);
}

TEST_F(DiskOpenTest, FullDiskIsNoSpaceAndLeavesNothing) {
  const auto refused = open(dir_.file("disk"), {.bytes = 1ull << 43});  // 8 TiB, below ext4's limit of 16 TiB a file
  ASSERT_FALSE(refused);
  if (refused.error().sys_errno == EFBIG) GTEST_SKIP() << "this file system's files are smaller";
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  EXPECT_FALSE(std::filesystem::exists(dir_.file("disk")));

  ASSERT_TRUE(open(dir_.file("old"), {.bytes = kMiB}));
  EXPECT_EQ(open(dir_.file("old"), {.bytes = 1ull << 43}).error().code, Code::kNoSpace);
  EXPECT_EQ(stat_of(dir_.file("old")).st_size, static_cast<off_t>(kMiB));
}

TEST_F(DiskOpenTest, SaysWhatIsWrongWithThePath) {
  EXPECT_EQ(open(dir_.path(), {.bytes = kMiB}).error().code, Code::kInvalid);
  EXPECT_EQ(open(dir_.file("absent"), {}).error().code, Code::kNotFound);
  EXPECT_EQ(open(dir_.file("absent"), {.bytes = kMiB, .read_only = true}).error().code, Code::kNotFound);
  EXPECT_EQ(open(dir_.file("absent/disk"), {.bytes = kMiB}).error().code, Code::kNotFound);
  ASSERT_EQ(::mkfifo(dir_.file("fifo").c_str(), 0600), 0);
  EXPECT_EQ(open(dir_.file("fifo"), {.read_only = true}).error().code, Code::kInvalid);
}

TEST_F(DiskOpenTest, RefusesImpossibleOptions) {
  EXPECT_EQ(open(dir_.file("disk"), {.bytes = kMiB + 1}).error().code, Code::kInvalid);
  EXPECT_EQ(open(dir_.file("disk"), {.bytes = kMiB, .depth_max = 0}).error().code, Code::kInvalid);
  EXPECT_EQ(open(dir_.file("disk"), {.bytes = kMiB, .depth_max = 4097}).error().code, Code::kInvalid);
  EXPECT_FALSE(std::filesystem::exists(dir_.file("disk")));
}

TEST_F(DiskOpenTest, TakesTheGreatestDepth) {
  ASSERT_TRUE(open(dir_.file("disk"), {.bytes = kMiB, .depth_max = 4096}));
}

// Short transfers and interruptions, which a healthy disk does not produce.
class TransferTest : public testing::Test {
 protected:
  TransferTest() : op_(kRead, 0, {buffer_.part(0, 2 * kPageBytes), buffer_.part(2 * kPageBytes, kPageBytes)}) {}
  Buffer buffer_{3 * kPageBytes};
  Op op_;
  iovec rest_{};
};

TEST_F(TransferTest, ContinuesAShortTransferInsideABuffer) {
  Transfer transfer(op_.op);
  EXPECT_EQ(transfer.piece(rest_).size(), 2u);
  EXPECT_EQ(transfer.advance(512), Transfer::Step::kAgain);
  EXPECT_EQ(transfer.offset(), 512u);
  ASSERT_EQ(transfer.piece(rest_).size(), 1u);
  EXPECT_EQ(transfer.piece(rest_)[0].iov_base, buffer_.data() + 512);
  EXPECT_EQ(transfer.piece(rest_)[0].iov_len, 2 * kPageBytes - 512);
  EXPECT_EQ(transfer.advance(2 * kPageBytes - 512), Transfer::Step::kAgain);
  ASSERT_EQ(transfer.piece(rest_).size(), 1u);
  EXPECT_EQ(transfer.piece(rest_)[0].iov_base, buffer_.data() + 2 * kPageBytes);
  EXPECT_EQ(transfer.advance(kPageBytes), Transfer::Step::kDone);
  EXPECT_TRUE(transfer.status());
}

TEST_F(TransferTest, RetriesInterruptionsButNotForEver) {
  Transfer transfer(op_.op);
  std::uint32_t tries = 0;
  while (transfer.advance(-EAGAIN) == Transfer::Step::kAgain) ++tries;
  EXPECT_EQ(tries, kRetriesMax);
  EXPECT_EQ(transfer.status().error().sys_errno, EAGAIN);
}

TEST_F(TransferTest, NamesTheError) {
  Transfer full(op_.op);
  EXPECT_EQ(full.advance(-ENOSPC), Transfer::Step::kDone);
  EXPECT_EQ(full.status().error().code, Code::kNoSpace);
  Transfer broken(op_.op);
  EXPECT_EQ(broken.advance(-EIO), Transfer::Step::kDone);
  EXPECT_EQ(broken.status().error(), (Error{Code::kIo, EIO, ""}));
  Transfer at_end(op_.op);
  EXPECT_EQ(at_end.advance(0), Transfer::Step::kDone);
  EXPECT_EQ(at_end.status().error(), (Error{Code::kIo, 0, ""}));
}

}  // namespace
}  // namespace kvd::io
