// Tests of what the loop and the disk do where the kernel refuses them something: each runs on a thread of its own,
// for which a system call is denied.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "io/disk.h"
#include "io/testing/deny_syscall.h"
#include "io/testing/disk_testing.h"

namespace kvd::io {
namespace {

struct Denial {
  long number;
  int error;
  unsigned arg = 0;
  std::uint32_t mask = 0;
};

class RefusalTest : public testing::Test {
 protected:
  RefusalTest() {
    std::string name = testing::TempDir() + "kvd_refusal_XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    dir_ = name;
  }
  ~RefusalTest() override { std::filesystem::remove_all(dir_); }

  // Runs `body` on a thread where the kernel refuses `denials`.
  void with(const std::vector<Denial>& denials, const std::function<void()>& body) {
    bool denied = true;
    std::thread([&] {
      for (const Denial& d : denials) denied = denied && deny_syscall(d.number, d.error, d.arg, d.mask);
      if (denied) body();
    }).join();
    if (!denied) GTEST_SKIP() << "no seccomp filters here";
  }

  Result<std::unique_ptr<Disk>> open(Loop& loop, const DiskOptions& options = {.bytes = kMiB}) {
    return open_disk(loop, log_, path(), options);
  }
  [[nodiscard]] std::string path() const { return dir_ + "/disk"; }

  static Status run(Loop& loop, Disk& disk, TestOp& op) {
    if (const Status status = disk.submit(op.op); !status) return status;
    while (!op.result) loop.run_once(Duration::max());
    return *op.result;
  }
  static void write_and_read_back(Loop& loop, Disk& disk) {
    const TestBuffer written(kMiB, 1);
    const TestBuffer back(kMiB);
    TestOp write(kWrite, 0, {written.all()});
    TestOp read(kRead, 0, {back.all()});
    EXPECT_TRUE(run(loop, disk, write));
    EXPECT_TRUE(run(loop, disk, read));
    EXPECT_TRUE(written == back);
  }

  std::string dir_;
  RecordingLog log_;
};

TEST_F(RefusalTest, WithoutIoUringThreadsDoTheWorkAndTheLogSaysWhy) {
  for (const int error : {EPERM, ENOSYS, ENOMEM}) {
    with({{SYS_io_uring_setup, error}}, [&] {
      const auto loop = std::move(make_real_loop().value());
      const auto disk = std::move(open(*loop).value());
      EXPECT_STREQ(disk->engine(), "threads");
      write_and_read_back(*loop, *disk);
    });
  }
  EXPECT_EQ(log_.count("no io_uring (set up io_uring: Operation not permitted)"), 1u);
  EXPECT_EQ(log_.count("no io_uring"), 3u);
}

TEST_F(RefusalTest, IoUringThatRegistersNothingIsNotUsed) {
  with({{SYS_io_uring_register, EPERM}}, [&] {
    const auto loop = std::move(make_real_loop().value());
    EXPECT_STREQ(open(*loop).value()->engine(), "threads");
  });
}

TEST_F(RefusalTest, IoUringThatTakesNothingFailsEveryOperation) {
  with({{SYS_io_uring_enter, EINVAL}}, [&] {
    const auto loop = std::move(make_real_loop().value());
    const auto disk = std::move(open(*loop).value());
    if (std::string(disk->engine()) != "io_uring") return;
    const TestBuffer buffer(2 * kPageBytes);
    for (int round = 0; round < 2; ++round) {  // with a new ring in the second
      TestOp first(kRead, 0, {buffer.part(0, kPageBytes)});
      TestOp second(kRead, 0, {buffer.part(kPageBytes, kPageBytes)});
      EXPECT_TRUE(disk->submit(first.op));
      const Status status = run(*loop, *disk, second);
      ASSERT_TRUE(first.result && !*first.result && !status);
      EXPECT_EQ(first.result->error(), (Error{Code::kIo, EINVAL, ""}));
      EXPECT_EQ(status.error(), (Error{Code::kIo, EINVAL, ""}));
      EXPECT_EQ(disk->in_flight(), 0u);
    }
  });
}

TEST_F(RefusalTest, AnyOfTheFailedOperationsMayDestroyTheDisk) {
  with({{SYS_io_uring_enter, EINVAL}}, [&] {
    const auto loop = std::move(make_real_loop().value());
    auto disk = std::move(open(*loop).value());
    if (std::string(disk->engine()) != "io_uring") return;
    const TestBuffer buffer(2 * kPageBytes);
    TestOp first(kRead, 0, {buffer.part(0, kPageBytes)});
    TestOp second(kRead, 0, {buffer.part(kPageBytes, kPageBytes)});
    int calls = 0;
    for (TestOp* op : {&first, &second}) {
      op->op.on_done = [&](Status) {
        ++calls;
        disk.reset();
      };
      ASSERT_TRUE(disk->submit(op->op));
    }
    loop->run_once(Duration::max());
    EXPECT_EQ(calls, 1);
  });
}

TEST_F(RefusalTest, WithoutDirectIoItIsBufferedWithOneLine) {
  with({{SYS_openat, EINVAL, 2, O_DIRECT}}, [&] {
    const auto loop = std::move(make_real_loop().value());
    const auto disk = std::move(open(*loop).value());
    write_and_read_back(*loop, *disk);
  });
  EXPECT_EQ(log_.count("no direct I/O"), 1u);
  EXPECT_EQ(log_.count("buffered"), 1u);
}

TEST_F(RefusalTest, DirectIoThatOpensButDoesNotReadIsBufferedToo) {
  std::ofstream(path()).close();
  std::filesystem::resize_file(path(), kMiB);
  with({{SYS_pread64, EINVAL}}, [&] {
    const auto loop = std::move(make_real_loop().value());
    const auto disk = std::move(open(*loop).value());
    write_and_read_back(*loop, *disk);
  });
  EXPECT_EQ(log_.count("no direct I/O"), 1u);
}

TEST_F(RefusalTest, WithoutPreallocationTheFileGrowsAndTheLogWarns) {
  with({{SYS_fallocate, EOPNOTSUPP}}, [&] {
    const auto loop = std::move(make_real_loop().value());
    auto disk = std::move(open(*loop).value());
    EXPECT_EQ(disk->size(), kMiB);
    write_and_read_back(*loop, *disk);
    disk.reset();
    EXPECT_EQ(open(*loop, {.bytes = kMiB / 2}).value()->size(), kMiB);
    EXPECT_EQ(std::filesystem::file_size(path()), kMiB);  // never shrinks
  });
  EXPECT_EQ(log_.count("cannot preallocate"), 2u);
}

TEST_F(RefusalTest, FailedPreallocationLeavesNoFile) {
  for (const int error : {ENOSPC, EDQUOT, EIO}) {
    with({{SYS_fallocate, error}}, [&] {
      const auto loop = std::move(make_real_loop().value());
      const auto refused = open(*loop);
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code, error == EIO ? Code::kIo : Code::kNoSpace);
      EXPECT_EQ(refused.error().sys_errno, error);
      EXPECT_FALSE(std::filesystem::exists(path()));
    });
  }
}

TEST_F(RefusalTest, DirectoryThatCannotBeSyncedIsAnError) {
  with({{SYS_fsync, EIO}}, [&] {
    const auto loop = std::move(make_real_loop().value());
    EXPECT_EQ(open(*loop).error(), (Error{Code::kIo, EIO, ""}));
    EXPECT_FALSE(std::filesystem::exists(path()));
  });
}

TEST_F(RefusalTest, ReportsTheErrnoOfATransfer) {
  with({{SYS_io_uring_setup, EPERM}, {SYS_preadv, EIO}, {SYS_fdatasync, ENOSPC}}, [&] {
    const auto loop = std::move(make_real_loop().value());
    const auto disk = std::move(open(*loop).value());  // its threads inherit the denials
    const TestBuffer buffer(kPageBytes);
    TestOp read(kRead, 0, {buffer.all()});
    EXPECT_EQ(run(*loop, *disk, read).error(), (Error{Code::kIo, EIO, ""}));
    TestOp sync(DiskOp::Kind::kSync, 0, {});
    EXPECT_EQ(run(*loop, *disk, sync).error(), (Error{Code::kNoSpace, ENOSPC, ""}));
    TestOp write(kWrite, 0, {buffer.all()});
    EXPECT_TRUE(run(*loop, *disk, write));
  });
}

TEST_F(RefusalTest, LoopWithoutEpollPwait2WaitsInMilliseconds) {
  for (const int error : {ENOSYS, EPERM}) {
    with({{SYS_epoll_pwait2, error}}, [&] {
      const auto loop = std::move(make_real_loop().value());
      const Time start = loop->now();
      bool fired = false;
      Timer timer(*loop, [&] { fired = true; });
      timer.arm_in(std::chrono::microseconds(1500));
      int turns = 0;
      while (!fired) {
        loop->run_once(Duration::max());
        ++turns;
      }
      EXPECT_GE(loop->now() - start, std::chrono::microseconds(1500));
      EXPECT_LE(turns, 2);  // rounded up: no busy waiting
    });
  }
}

TEST_F(RefusalTest, LoopWithoutEpollOrEventfdIsAnError) {
  with({{SYS_epoll_create1, EMFILE}}, [&] { EXPECT_EQ(make_real_loop().error(), (Error{Code::kIo, EMFILE, ""})); });
  with({{SYS_eventfd2, ENFILE}}, [&] { EXPECT_EQ(make_real_loop().error(), (Error{Code::kIo, ENFILE, ""})); });
}

}  // namespace
}  // namespace kvd::io
