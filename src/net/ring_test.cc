#include "net/ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include <gtest/gtest.h>

#include "net/testing/peer.h"

namespace kvd::net {
namespace {

std::unique_ptr<RingMemory> map_again(const RingMemory& memory) {
  auto mapped = RingMemory::map(io::PrivateFd(io::UniqueFd(::dup(memory.fd()))), memory.bytes());
  EXPECT_TRUE(mapped.has_value());
  return std::move(*mapped);
}

class RingTest : public testing::Test {
 protected:
  std::unique_ptr<RingMemory> memory = std::move(*RingMemory::create(RingMemory::kRingBytesMin));
  std::unique_ptr<RingMemory> mapped = map_again(*memory);
  RingWriter writer{*memory, 0};
  RingReader reader{*mapped, 0};
};

TEST_F(RingTest, BytesComeOutInOrderAcrossTheEnd) {
  const auto bytes = make_bytes(3000, 7);
  for (int i = 0; i < 5; ++i) {
    ASSERT_GE(writer.room(bytes.size()).value(), bytes.size());
    writer.put(bytes);
    EXPECT_EQ(reader.available().value(), 0U) << "not shown yet";
    EXPECT_FALSE(writer.publish());
    ASSERT_EQ(reader.available().value(), bytes.size());
    std::vector<std::byte> got(bytes.size());
    reader.take(got);
    EXPECT_FALSE(reader.publish());
    EXPECT_EQ(got, bytes);
  }
}

TEST_F(RingTest, IsFullWhenItsBytesAreWritten) {
  writer.put(make_bytes(RingMemory::kRingBytesMin, 1));
  static_cast<void>(writer.publish());
  EXPECT_EQ(writer.room(1).value(), 0U);
  std::vector<std::byte> some(5);
  ASSERT_EQ(reader.available().value(), RingMemory::kRingBytesMin);
  reader.take(some);
  static_cast<void>(reader.publish());
  EXPECT_EQ(writer.room(1).value(), 5U);
  ASSERT_EQ(reader.available().value(), RingMemory::kRingBytesMin - 5);
  reader.take(some);
  static_cast<void>(reader.publish());
  EXPECT_EQ(writer.room(5).value(), 5U) << "enough: the reader's index is left alone";
  EXPECT_EQ(writer.room(6).value(), 10U);
}

TEST_F(RingTest, WhoSleepsIsWokenOnceAndWhoDoesNotIsNot) {
  reader.announce(true);
  writer.put(make_bytes(1, 1));
  EXPECT_TRUE(writer.publish());
  writer.put(make_bytes(1, 1));
  EXPECT_FALSE(writer.publish()) << "it is being woken";
  writer.announce(true);
  EXPECT_TRUE(reader.publish());
  EXPECT_FALSE(reader.publish());
  reader.announce(true);
  reader.announce(false);
  EXPECT_FALSE(writer.publish());
}

TEST_F(RingTest, IndicesThatCannotBeAreFound) {
  for (const std::uint64_t wild :
       std::initializer_list<std::uint64_t>{RingMemory::kRingBytesMin + 1, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    memory->control(0).tail = wild;
    EXPECT_EQ(reader.available().error().code, Code::kCorrupt);
    memory->control(0).head = 0 - wild;  // so far behind the tail, which is 0
    EXPECT_EQ(writer.room(RingMemory::kRingBytesMin + 1).error().code, Code::kCorrupt);
  }
}

TEST_F(RingTest, ItsSizeCannotBeChangedAndOthersAreNotTaken) {
  EXPECT_EQ(::ftruncate(memory->fd(), 0), -1);
  EXPECT_EQ(::ftruncate(memory->fd(), 1 << 20), -1);
  const auto code_of = [](io::PrivateFd file, std::uint64_t bytes) {
    const auto taken = RingMemory::map(std::move(file), bytes);
    return taken ? Code::kOk : taken.error().code;
  };
  const auto file_of = [](std::uint64_t bytes, int seals) {
    io::UniqueFd file(::memfd_create("ring-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
    EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
    return io::PrivateFd(std::move(file));
  };
  constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW;
  EXPECT_EQ(code_of(file_of(12'288, kSealed), 12'288), Code::kOk);
  EXPECT_EQ(code_of(file_of(12'288, F_SEAL_GROW), 12'288), Code::kInvalid) << "it could shrink: a read would fault";
  EXPECT_EQ(code_of(file_of(12'288, kSealed), 20'480), Code::kInvalid);
  EXPECT_EQ(code_of(file_of(16'384, kSealed), 16'384), Code::kInvalid) << "6 KiB is no power of two";
  EXPECT_EQ(code_of(file_of(4096, kSealed), 4096), Code::kInvalid);
  EXPECT_EQ(code_of(file_of(0, kSealed), 0), Code::kInvalid);
  EXPECT_EQ(code_of({}, 12'288), Code::kInvalid);
}

TEST_F(RingTest, AForkedChildDoesNotHaveIt) {
  unsigned char present = 0;
  ASSERT_EQ(::mincore(memory->data(0), 4096, &present), 0);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::mincore(memory->data(0), 4096, &present) == -1 && errno == ENOMEM ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Two threads, for the sanitizer: nothing but the ring orders them.
TEST_F(RingTest, CarriesBytesBetweenThreads) {
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  const auto bytes = make_bytes(kBytes, 3);
  std::thread other([&] {
    for (std::size_t at = 0; at < kBytes;) {
      const std::size_t n = std::min({*writer.room(1 + at % 777), kBytes - at, std::size_t{1} + at % 777});
      writer.put(Bytes(bytes).subspan(at, n));
      static_cast<void>(writer.publish());
      at += n;
      if (n == 0) std::this_thread::yield();
    }
  });
  std::vector<std::byte> got(kBytes);
  for (std::size_t at = 0; at < kBytes;) {
    const std::size_t n = std::min(*reader.available(), kBytes - at);
    reader.take(MutableBytes(got).subspan(at, n));
    static_cast<void>(reader.publish());
    at += n;
    if (n == 0) std::this_thread::yield();
  }
  other.join();
  EXPECT_TRUE(got == bytes);
}

}  // namespace
}  // namespace kvd::net
