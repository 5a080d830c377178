#include "net/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#include <gtest/gtest.h>

#include "io/aligned_map.h"

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
