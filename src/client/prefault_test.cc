#include "client/prefault.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "io/sim/sim_loop.h"

namespace kvd::client {
namespace {

constexpr std::uint64_t kSteps = 8;
constexpr std::uint64_t kBytes = kSteps * Prefault::kStepBytes;

// A depot's memory of which nothing was written to, mapped, and a Prefault in virtual time.
class PrefaultTest : public testing::Test {
 protected:
  PrefaultTest() : file_(::memfd_create("prefault-test", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    EXPECT_EQ(::ftruncate(file_.get(), kBytes), 0);
    EXPECT_EQ(::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  }
  [[nodiscard]] SharedMapping map() const {
    return net::SharedMemory::map(io::PrivateFd(io::UniqueFd(::dup(file_.get()))), kBytes).value();
  }
  void write(std::uint64_t at, std::uint64_t bytes) const {
    const std::vector<std::byte> noise(bytes, std::byte{0x5C});
    EXPECT_EQ(::pwrite(file_.get(), noise.data(), bytes, static_cast<off_t>(at)), static_cast<ssize_t>(bytes));
  }
  // Whether reading these bytes of it faults on a page.
  static bool faults(const net::SharedMemory& memory, std::uint64_t at, std::uint64_t bytes) {
    rusage before{}, behind{};
    ::getrusage(RUSAGE_THREAD, &before);
    read_pages(memory.bytes().data() + at, bytes);
    ::getrusage(RUSAGE_THREAD, &behind);
    return behind.ru_minflt > before.ru_minflt;
  }
  // The thread sanitizer notes reads in pages of its own, which would count as faults.
  __attribute__((no_sanitize("thread"))) static void read_pages(const volatile std::byte* from, std::uint64_t bytes) {
    for (std::uint64_t page = 0; page < bytes; page += kPageBytes) static_cast<void>(from[page]);
  }
  [[nodiscard]] std::uint64_t taken_bytes() const {
    struct stat status{};
    EXPECT_EQ(::fstat(file_.get(), &status), 0);
    return static_cast<std::uint64_t>(status.st_blocks) * 512;
  }

  io::UniqueFd file_;
  io::SimClock clock_;
  io::SimLoop loop_{clock_};
  bool busy_ = false;
  Prefault prefault_{loop_, [this] { return busy_; }};
};

TEST_F(PrefaultTest, EntersAllAStepAtATimeAndLetsGo) {
  write(0, kBytes);
  const SharedMapping mapping = map();
  prefault_.start(mapping);
  loop_.run_for(kSteps / 2 * Prefault::kPause);
  EXPECT_EQ(mapping.use_count(), 2);
  EXPECT_TRUE(faults(*map(), 0, kPageBytes)) << "each mapping has its own";
  loop_.run_for(kSteps / 2 * Prefault::kPause);
  EXPECT_EQ(mapping.use_count(), 1);
  EXPECT_FALSE(faults(*mapping, 0, kBytes));
}

TEST_F(PrefaultTest, DoesNothingWhileSomebodyWaits) {
  write(0, kBytes);
  const SharedMapping mapping = map();
  busy_ = true;
  prefault_.start(mapping);
  loop_.run_for(10 * kSteps * Prefault::kPause);
  EXPECT_TRUE(faults(*mapping, 0, kPageBytes));
  busy_ = false;
  loop_.run_for(kSteps * Prefault::kPause);
  EXPECT_FALSE(faults(*mapping, 0, kBytes));
}

TEST_F(PrefaultTest, TakesNoMemoryAndLooksAgainForWhatTheDepotHasNotWrittenToYet) {
  write(0, Prefault::kStepBytes);
  const SharedMapping mapping = map();
  const std::uint64_t taken = taken_bytes();
  prefault_.start(mapping);
  loop_.run_for(kSteps * Prefault::kPause + Prefault::kRoundPause / 2);
  EXPECT_EQ(taken_bytes(), taken);
  EXPECT_FALSE(faults(*mapping, 0, Prefault::kStepBytes));
  write(Prefault::kStepBytes, kBytes - Prefault::kStepBytes);
  loop_.run_for(Prefault::kRoundPause);
  EXPECT_FALSE(faults(*mapping, 0, kBytes));
  EXPECT_EQ(mapping.use_count(), 1);
}

TEST_F(PrefaultTest, GivesUpWhenNothingComesAnyMoreAndWaitsLongerWhereSomethingDoes) {
  const SharedMapping mapping = map();
  prefault_.start(mapping);
  loop_.run_for(std::chrono::seconds(100));
  write(0, kPageBytes);
  loop_.run_for(std::chrono::seconds(100));
  EXPECT_EQ(mapping.use_count(), 2) << "a page came";
  loop_.run_for(std::chrono::seconds(100));
  EXPECT_EQ(mapping.use_count(), 1);
  EXPECT_EQ(taken_bytes(), kPageBytes);
}

TEST_F(PrefaultTest, LetsGoAtOnceWhenItIsStoppedOrGivenAnother) {
  const SharedMapping first = map(), second = map();
  prefault_.start(first);
  loop_.run_for(2 * Prefault::kPause);
  prefault_.start(second);
  EXPECT_EQ(first.use_count(), 1);
  EXPECT_EQ(second.use_count(), 2);
  prefault_.stop();
  EXPECT_EQ(second.use_count(), 1);
  loop_.run_for(std::chrono::seconds(5));
}

}  // namespace
}  // namespace kvd::client
