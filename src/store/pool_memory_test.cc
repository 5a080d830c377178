// Tests of the pool's memory: where it lies, and that making it real changes nothing in it.
#include "store/pool_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace kvd::store {
namespace {

constexpr std::uint64_t kHuge = std::uint64_t{2} << 20;

class PoolMemoryTest : public ::testing::Test {
 protected:
  void map(std::uint64_t bytes) {
    bytes_ = bytes;
    fd_ = ::memfd_create("pool-memory-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ASSERT_EQ(::ftruncate(fd_, static_cast<off_t>(bytes)), 0);
    void* const mapped = map_pool(fd_, bytes);
    ASSERT_NE(mapped, MAP_FAILED);
    base_ = static_cast<std::byte*>(mapped);
  }
  void TearDown() override {
    if (base_ != nullptr) ::munmap(base_, bytes_);
    if (fd_ >= 0) ::close(fd_);
  }
  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
  int fd_ = -1;
};

TEST_F(PoolMemoryTest, LiesOnAHugePagesBoundaryAndIsTheFile) {
  map(3 * kHuge + kPageBytes);
  EXPECT_TRUE(is_aligned(reinterpret_cast<std::uintptr_t>(base_), kHuge));
  base_[bytes_ - 1] = std::byte{7};
  std::byte last{};
  ASSERT_EQ(::pread(fd_, &last, 1, static_cast<off_t>(bytes_ - 1)), 1);
  EXPECT_EQ(last, std::byte{7});
}

TEST_F(PoolMemoryTest, AFileThatIsSharedIsWrittenThroughItsOwnMappingOnly) {
  map(2 * kHuge);
  ASSERT_TRUE(seal_pool(fd_, true));
  EXPECT_EQ(::mmap(nullptr, kHuge, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0), MAP_FAILED);
  EXPECT_EQ(::pwrite(fd_, "x", 1, 0), -1);
  EXPECT_EQ(::ftruncate(fd_, 4096), -1);
  EXPECT_TRUE(populate_pool(base_, bytes_)) << "the owner's pages still come";
  base_[5] = std::byte{9};
  void* const reader = ::mmap(nullptr, kHuge, PROT_READ, MAP_SHARED, fd_, 0);
  ASSERT_NE(reader, MAP_FAILED);
  EXPECT_EQ(static_cast<const std::byte*>(reader)[5], std::byte{9});
  ::munmap(reader, kHuge);
}

TEST_F(PoolMemoryTest, AFileThatIsNotSharedKeepsItsSize) {
  map(kHuge);
  EXPECT_FALSE(seal_pool(fd_, false));
  EXPECT_EQ(::ftruncate(fd_, 4096), -1);
  EXPECT_EQ(::pwrite(fd_, "x", 1, 0), 1);
}

TEST_F(PoolMemoryTest, PopulatingKeepsWhatIsThere) {
  map(2 * kHuge + 5 * kPageBytes);
  for (std::uint64_t at = 0; at < bytes_; at += 3 * kPageBytes)
    base_[at + 11] = static_cast<std::byte>(at / kPageBytes);
  EXPECT_TRUE(populate_pool(base_, bytes_));
  for (std::uint64_t at = 0; at < bytes_; at += kPageBytes) {
    const auto expected = at % (3 * kPageBytes) == 0 ? static_cast<std::byte>(at / kPageBytes) : std::byte{0};
    EXPECT_EQ(base_[at + 11], expected) << at;
    EXPECT_EQ(base_[at + 12], std::byte{0});
  }
  EXPECT_TRUE(populate_pool(base_, bytes_)) << "again, on huge pages";
}

TEST_F(PoolMemoryTest, APartOfAHugePageIsPopulatedInPlainPages) {
  map(kPageBytes);
  EXPECT_TRUE(populate_pool(base_, bytes_));
}

}  // namespace
}  // namespace kvd::store
