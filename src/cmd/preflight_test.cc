// Tests of the start-up checks: what is judged, and how a cgroup's limit is found on the way to the root.
#include "cmd/preflight.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace kvd::cmd {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

Needs usual() { return {{{"/data/kv", 200 * kGiB}}, 8 * kGiB, 1024}; }
Offers plenty() { return {64 * kGiB, 0, 0, 65536, 0, {{1, 500 * kGiB, 0}}}; }

TEST(Preflight, IsQuietWhereThereIsPlenty) {
  const auto findings = judge(usual(), plenty());
  ASSERT_EQ(findings.size(), 4u);
  for (const auto& finding : findings) EXPECT_EQ(finding.level, Level::kInfo) << finding.line;
}

TEST(Preflight, WarnsOfAPoolAboveTheCgroupLimit) {
  auto offers = plenty();
  offers.cgroup_memory_bytes = std::uint64_t{8} << 30;
  const auto finding = judge(usual(), offers)[0];
  EXPECT_EQ(finding.level, Level::kWarn);
  EXPECT_NE(finding.line.find("--pool"), std::string::npos);
}

TEST(Preflight, RefusesAPoolThatMemoryAndSwapCannotHold) {
  auto offers = plenty();
  offers.cgroup_memory_bytes = std::uint64_t{4} << 30;
  const auto finding = judge(usual(), offers)[0];
  EXPECT_EQ(finding.level, Level::kError);
  EXPECT_NE(finding.line.find("8GiB does not fit into the cgroup's memory limit of 4GiB"), std::string::npos)
      << finding.line;
  offers.swap_bytes = std::uint64_t{4} << 30;
  EXPECT_EQ(judge(usual(), offers)[0].level, Level::kWarn);
}

TEST(Preflight, SaysWhetherThePoolCanStayInMemory) {
  auto needs = usual();
  auto offers = plenty();
  EXPECT_NE(judge(needs, offers)[1].line.find("no limit; where io_uring takes it"), std::string::npos);
  offers.memlock_bytes = needs.pool_bytes;
  EXPECT_NE(judge(needs, offers)[1].line.find("limit 8GiB; where io_uring takes it"), std::string::npos);
  offers.memlock_bytes = 8 << 20;
  EXPECT_NE(judge(needs, offers)[1].line.find("limit 8MiB; less than the pool, which"), std::string::npos);
  needs.disks.push_back({"/more", kGiB});
  offers.disks.push_back({2, kGiB, 0});
  offers.memlock_bytes = 2 * needs.pool_bytes;
  EXPECT_NE(judge(needs, offers)[1].line.find("limit 16GiB; where io_uring takes it"), std::string::npos);
  --offers.memlock_bytes;
  EXPECT_NE(judge(needs, offers)[1].line.find("less than the pool for each of 2 devices"), std::string::npos);
  offers.memlock_bytes = 8 << 20;
  needs.disks.clear();
  EXPECT_NE(judge(needs, offers)[1].line.find("limit 8MiB; without flash"), std::string::npos);
}

TEST(Preflight, CountsTheIndexOfALargeLog) {
  auto needs = usual();
  needs.disks[0].flash_bytes = std::uint64_t{200} << 40;  // 56 GiB of index
  auto offers = plenty();
  offers.disks[0].free_bytes = needs.disks[0].flash_bytes;
  EXPECT_EQ(judge(needs, offers)[0].level, Level::kWarn);
}

TEST(Preflight, WarnsOfTooFewFilesAndTooLittleDisk) {
  auto offers = plenty();
  offers.open_files = 256;
  offers.disks[0].free_bytes = kGiB;
  const auto findings = judge(usual(), offers);
  EXPECT_EQ(findings[2].level, Level::kWarn);
  EXPECT_EQ(findings[3].level, Level::kWarn);
}

TEST(Preflight, JudgesEachFileSystemOnce) {
  auto needs = usual();
  needs.disks = {{"/a", 100 * kGiB}, {"/b", 200 * kGiB}, {"/c", 100 * kGiB}};
  auto offers = plenty();
  offers.disks = {{1, 150 * kGiB, 0}, {2, 200 * kGiB, 0}, {1, 150 * kGiB, 50 * kGiB}};
  auto findings = judge(needs, offers);
  ASSERT_EQ(findings.size(), 5u);
  EXPECT_EQ(findings[3].line,
            "disk: flash 200GiB of 200GiB free for /a and /c, which are on one file system: is a drive "
            "not mounted?");
  EXPECT_EQ(findings[3].level, Level::kWarn);
  EXPECT_EQ(findings[4].line, "disk: flash 200GiB of 200GiB free for /b");
  EXPECT_EQ(findings[4].level, Level::kInfo);
  offers.disks[2].held_bytes -= 1;
  offers.disks[1].free_bytes = kGiB;
  findings = judge(needs, offers);
  EXPECT_EQ(findings[3].level, Level::kWarn);
  EXPECT_EQ(findings[4].level, Level::kWarn);
  EXPECT_NE(findings[4].line.find("disk: flash of 200GiB but only 1GiB are free for /b: the store will not open"),
            std::string::npos)
      << findings[4].line;
}

TEST(Preflight, CountsADescriptorMoreForEachConnectionOfThisHost) {
  auto offers = plenty();
  offers.open_files = 2 * usual().connections_max + 64;
  EXPECT_EQ(judge(usual(), offers)[2].level, Level::kInfo);
  --offers.open_files;
  EXPECT_EQ(judge(usual(), offers)[2].level, Level::kWarn);
}

TEST(Preflight, TakesTheSmallestLimitOnTheWayToTheRoot) {
  const auto root = std::filesystem::path(::testing::TempDir()) / "kvd_cgroup_test";
  std::filesystem::create_directories(root / "a/b");
  std::ofstream(root / "a/memory.max") << "1000\n";
  std::ofstream(root / "a/b/memory.max") << "max\n";
  EXPECT_EQ(cgroup_limit("0::/a/b\n", root.string()), 1000u);
  EXPECT_EQ(cgroup_limit("0::/\n", root.string()), 0u);
  EXPECT_EQ(cgroup_limit("12:cpu:/a\n", root.string()), 0u);
  EXPECT_EQ(cgroup_limit("", root.string()), 0u);
  EXPECT_EQ(cgroup_limit("nonsense\n::\n0::\n", root.string()), 0u);
  std::filesystem::remove_all(root);
}

TEST(Preflight, ReadsLimitsOfCgroupVersion1) {
  const auto root = std::filesystem::path(::testing::TempDir()) / "kvd_cgroup1_test";
  std::filesystem::create_directories(root / "memory/a/b");
  std::ofstream(root / "memory/memory.limit_in_bytes") << "9223372036854771712\n";  // none
  std::ofstream(root / "memory/a/memory.limit_in_bytes") << "2000\n";
  std::ofstream(root / "memory/a/b/memory.limit_in_bytes") << "3000\n";
  const auto limit = [&](std::string_view cgroup) { return cgroup_limit(cgroup, root.string()); };
  EXPECT_EQ(limit("11:cpu,cpuacct:/x\n4:memory:/a/b\n1:name=systemd:/a/b\n"), 2000u);
  EXPECT_EQ(limit("4:hugetlb,memory:/a\n0::/a/b\n"), 2000u) << "hybrid: v2 has no memory controller";
  EXPECT_EQ(limit("4:memory:/\n"), 0u);
  EXPECT_EQ(limit("4:memory:/docker/0123\n"), 0u) << "a path of the host, which the container does not see";
  std::ofstream(root / "memory/memory.limit_in_bytes") << "5000\n";
  EXPECT_EQ(limit("4:memory:/docker/0123\n"), 5000u) << "what it sees as the root is its own";
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace kvd::cmd
