#include "net/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "io/aligned_map.h"
#include "io/testing/deny_syscall.h"

namespace kvd::net {
namespace {

io::PrivateFd make_file(std::uint64_t bytes, int seals) {
  io::UniqueFd file(::memfd_create("shared-memory-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::pwrite(file.get(), "first", 5, 0), 5);
  EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
  return io::PrivateFd(std::move(file));
}

// Whether a file of this name is mapped into this process. Allocates nothing: a forked child may call it.
bool maps_name(std::string_view name) {
  static std::array<char, std::size_t{1} << 20> text;
  const io::UniqueFd maps(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  std::size_t size = 0;
  for (ssize_t got = 1; got > 0 && size < text.size(); size += static_cast<std::size_t>(std::max<ssize_t>(got, 0))) {
    got = ::read(maps.get(), text.data() + size, text.size() - size);
  }
  return std::string_view(text.data(), size).find(name) != std::string_view::npos;
}

Code error_of(io::PrivateFd file, std::uint64_t bytes) {
  const auto mapped = SharedMemory::map(std::move(file), bytes);
  return mapped ? Code::kOk : mapped.error().code;
}

TEST(SharedMemory, TakesNoFileOfHugePages) {  // a read of it faults when none is free
  io::UniqueFd file(::memfd_create("shared-memory-test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!file.ok()) GTEST_SKIP() << "the kernel has none";
  constexpr std::uint64_t kBytes = std::uint64_t{2} << 20;
  ASSERT_EQ(::ftruncate(file.get(), kBytes), 0);
  ASSERT_EQ(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(error_of(io::PrivateFd(std::move(file)), kBytes), Code::kInvalid);
}

TEST(SharedMemory, ShowsTheFileOnABoundaryOfHugePages) {
  const auto memory = SharedMemory::map(make_file(10'000, F_SEAL_SHRINK), 10'000);
  ASSERT_TRUE(memory.has_value());
  const Bytes bytes = (*memory)->bytes();
  EXPECT_EQ(bytes.size(), 10'000U);
  EXPECT_EQ(as_text(bytes.first(5)), "first");
  EXPECT_TRUE(is_aligned(reinterpret_cast<std::uintptr_t>(bytes.data()), io::kHugePageBytes));
}

TEST(SharedMemory, APartThatIsCutLooseKeepsItsBytesAndTheRestAndANewMappingShowTheFile) {
  constexpr std::size_t kPages = 4 * 4096;
  io::PrivateFd file = make_file(kPages, F_SEAL_SHRINK);
  const int writes = ::dup(file.get());
  const auto memory = SharedMemory::map(std::move(file), kPages);
  ASSERT_TRUE(memory.has_value());
  const Bytes bytes = (*memory)->bytes();
  const Bytes part = bytes.subspan(4096 + 100, 4096);  // of two pages
  for (int again = 0; again < 2; ++again) ASSERT_TRUE((*memory)->cut_loose(part).has_value());
  const std::vector<std::byte> noise(kPages, std::byte{0x5C});
  ASSERT_EQ(::pwrite(writes, noise.data(), noise.size(), 0), static_cast<ssize_t>(noise.size()));
  ::close(writes);
  EXPECT_TRUE(std::ranges::all_of(bytes.subspan(4096, 8192), [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(bytes[0], std::byte{0x5C});
  EXPECT_EQ(bytes[3 * 4096], std::byte{0x5C});
  const auto fresh = (*memory)->again();
  ASSERT_TRUE(fresh.has_value());
  EXPECT_TRUE(std::ranges::equal((*fresh)->bytes(), noise));
}

TEST(SharedMemory, MoreMappingsTakeNoMoreDescriptors) {
  constexpr std::size_t kBytes = 4 * kPageBytes;
  std::vector<std::unique_ptr<SharedMemory>> mappings;
  mappings.push_back(SharedMemory::map(make_file(kBytes, F_SEAL_SHRINK), kBytes).value());
  const io::UniqueFd before(::dup(0));
  for (int more = 0; more < 3; ++more) mappings.push_back(mappings.back()->again().value());
  const io::UniqueFd behind(::dup(0));
  EXPECT_EQ(behind.get(), before.get() + 1);
  mappings.erase(mappings.begin());
  EXPECT_TRUE(mappings.back()->again().has_value()) << "whoever maps it last holds it";
}

// Page faults of this thread while it reads a byte of each page.
long faults_of_reading(Bytes bytes) {
  rusage before{}, behind{};
  ::getrusage(RUSAGE_THREAD, &before);
  for (std::size_t at = 0; at < bytes.size(); at += kPageBytes) {
    static_cast<void>(*static_cast<const volatile std::byte*>(bytes.data() + at));
  }
  ::getrusage(RUSAGE_THREAD, &behind);
  return behind.ru_minflt - before.ru_minflt;
}

// What the file takes of the system's memory.
std::uint64_t taken_bytes(int fd) {
  struct stat status{};
  EXPECT_EQ(::fstat(fd, &status), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

// A file of `bytes` whose first half is written to.
struct HalfWritten {
  explicit HalfWritten(std::size_t bytes) {
    io::PrivateFd file = make_file(bytes, F_SEAL_SHRINK);
    descriptor.reset(::dup(file.get()));
    const std::vector<std::byte> noise(bytes / 2, std::byte{0x5C});
    EXPECT_EQ(::pwrite(descriptor.get(), noise.data(), noise.size(), 0), static_cast<ssize_t>(noise.size()));
    memory = SharedMemory::map(std::move(file), bytes).value();
  }
  io::UniqueFd descriptor;
  std::unique_ptr<SharedMemory> memory;
};

TEST(SharedMemory, WhatWasPrefaultedIsReadWithoutAFault) {
  constexpr std::size_t kBytes = 2 * 700 * kPageBytes;  // more than a system call asks for
  const HalfWritten file(kBytes);
  const Bytes there = file.memory->bytes().first(kBytes / 2);
  EXPECT_EQ(file.memory->prefault(there.subspan(100, there.size() - 200)), 0U);
  EXPECT_EQ(faults_of_reading(there), 0);
  EXPECT_EQ(there[kBytes / 2 - 1], std::byte{0x5C});
}

TEST(SharedMemory, PrefaultingTakesNoMemoryForPagesThatThePeerNeverWroteTo) {
  constexpr std::size_t kBytes = 2 * 64 * kPageBytes;
  const HalfWritten file(kBytes);
  const std::uint64_t before = taken_bytes(file.descriptor.get());
  EXPECT_EQ(file.memory->prefault(file.memory->bytes()), kBytes / 2);
  EXPECT_EQ(taken_bytes(file.descriptor.get()), before);
  EXPECT_EQ(::pwrite(file.descriptor.get(), "later", 5, kBytes / 2 + 10 * kPageBytes), 5);
  EXPECT_EQ(file.memory->prefault(file.memory->bytes()), kBytes / 2 - kPageBytes);
}

TEST(SharedMemory, AKernelThatDoesNotTellWhatIsThereLeavesAllToItsReader) {
  constexpr std::size_t kBytes = 2 * 64 * kPageBytes;
  const HalfWritten file(kBytes);
  bool denied = false;
  std::uint64_t missing = 0;
  std::thread([&] {
    denied = io::deny_syscall(SYS_mincore, ENOSYS);
    if (denied) missing = file.memory->prefault(file.memory->bytes());
  }).join();
  if (!denied) GTEST_SKIP() << "system calls cannot be denied here";
  EXPECT_EQ(missing, kBytes);
  EXPECT_GT(faults_of_reading(file.memory->bytes().first(kBytes / 2)), 0);
}

// Cuts all of the mapping loose on a thread that the kernel answers so when it asks for copies; kOk also where nothing
// can be denied, with `denied` false.
Code cut_where_copies_fail(const SharedMemory& memory, int error, bool& denied) {
  Code code = Code::kOk;
  std::thread([&] {
    denied = io::deny_syscall(SYS_madvise, error, 2, 16);  // MADV_POPULATE_WRITE = 23
    if (!denied) return;
    const Status cut = memory.cut_loose(memory.bytes());
    if (!cut) code = cut.error().code;
  }).join();
  return code;
}

TEST(SharedMemory, WithoutMemoryForACopyItGoesOnShowingTheFile) {
  constexpr std::size_t kBytes = 4 * kPageBytes;
  const auto memory = SharedMemory::map(make_file(kBytes, F_SEAL_SHRINK), kBytes);
  ASSERT_TRUE(memory.has_value());
  bool denied = false;
  const Code code = cut_where_copies_fail(**memory, ENOMEM, denied);
  if (!denied) GTEST_SKIP() << "system calls cannot be denied here";
  EXPECT_EQ(code, Code::kNoSpace);
  EXPECT_EQ(as_text((*memory)->bytes().first(5)), "first");
  EXPECT_TRUE((*memory)->cut_loose((*memory)->bytes()).has_value()) << "later";
  EXPECT_EQ(as_text((*memory)->bytes().first(5)), "first");
}

TEST(SharedMemory, AKernelThatCannotCopyARangeIsMadeToByWriting) {
  constexpr std::size_t kBytes = 4 * kPageBytes;
  io::PrivateFd file = make_file(kBytes, F_SEAL_SHRINK);
  const io::UniqueFd writes(::dup(file.get()));
  const auto memory = SharedMemory::map(std::move(file), kBytes);
  ASSERT_TRUE(memory.has_value());
  bool denied = false;
  const Code code = cut_where_copies_fail(**memory, EINVAL, denied);
  if (!denied) GTEST_SKIP() << "system calls cannot be denied here";
  EXPECT_EQ(code, Code::kOk);
  const std::vector<std::byte> noise(kBytes, std::byte{0x5C});
  ASSERT_EQ(::pwrite(writes.get(), noise.data(), noise.size(), 0), static_cast<ssize_t>(noise.size()));
  EXPECT_EQ(as_text((*memory)->bytes().first(5)), "first");
  EXPECT_TRUE(std::ranges::all_of((*memory)->bytes().subspan(5), [](std::byte b) { return b == std::byte{0}; }));
}

// While a part is cut loose again and again, in another mapping each time, and the file is written over behind it, a
// reader finds its bytes there at every moment.
TEST(SharedMemory, AReaderFindsItsBytesWhileAPartIsCutLoose) {
  constexpr std::size_t kBytes = 64 * kPageBytes;
  const std::vector<std::byte> noise(kBytes, std::byte{0x5C});
  for (int round = 0; round < 50; ++round) {
    io::PrivateFd file = make_file(kBytes, F_SEAL_SHRINK);
    const io::UniqueFd writes(::dup(file.get()));
    const auto memory = SharedMemory::map(std::move(file), kBytes);
    ASSERT_TRUE(memory.has_value());
    const Bytes bytes = (*memory)->bytes();
    std::atomic<bool> stop{false};
    std::atomic<std::size_t> wrong{0}, reads{0};
    {
      const std::jthread reader([&] {
        while (!stop || reads == 0) {
          const bool right = as_text(bytes.first(5)) == "first" && bytes[kBytes - 1] == std::byte{0};
          if (!right) ++wrong;
          ++reads;
        }
      });
      while (reads == 0) std::this_thread::yield();
      EXPECT_TRUE((*memory)->cut_loose(bytes).has_value());
      EXPECT_EQ(::pwrite(writes.get(), noise.data(), noise.size(), 0), static_cast<ssize_t>(noise.size()));
      stop = true;
    }
    ASSERT_EQ(wrong, 0U);
  }
}

TEST(SharedMemory, TakesOnlyFilesWhoseBytesStay) {
  EXPECT_EQ(error_of(make_file(8192, F_SEAL_SHRINK), 8192), Code::kOk);
  EXPECT_EQ(error_of(make_file(8192, 0), 8192), Code::kInvalid) << "could be cut while it is read";
  EXPECT_EQ(error_of(make_file(8192, F_SEAL_SHRINK), 8191), Code::kInvalid);
  EXPECT_EQ(error_of(make_file(8192, F_SEAL_SHRINK), 12288), Code::kInvalid) << "bytes beyond its end";
  EXPECT_EQ(error_of(make_file(0, F_SEAL_GROW), 0), Code::kInvalid);
  EXPECT_EQ(error_of(io::PrivateFd(), 8192), Code::kInvalid) << "no descriptor came";
  EXPECT_EQ(error_of(io::PrivateFd(io::UniqueFd(::open("/dev/zero", O_RDONLY | O_CLOEXEC))), 8192), Code::kInvalid);
}

TEST(SharedMemory, AForkedChildDoesNotHaveIt) {
  const auto memory = SharedMemory::map(make_file(8192, F_SEAL_SHRINK), 8192);
  ASSERT_TRUE(memory.has_value());
  ASSERT_TRUE(maps_name("shared-memory-test"));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(maps_name("shared-memory-test") ? 1 : 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace kvd::net
