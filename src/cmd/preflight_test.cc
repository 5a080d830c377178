// Tests of the start-up checks: what is judged, and how a cgroup's limit is found on the way to the root.
#include "cmd/preflight.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace kvd::cmd {
namespace {

Needs usual() { return {"/data/kv", std::uint64_t{8} << 30, std::uint64_t{200} << 30, 1024}; }
Offers plenty() { return {std::uint64_t{64} << 30, 0, 0, 65536, std::uint64_t{500} << 30}; }

TEST(Preflight, IsQuietWhereThereIsPlenty) {
  const auto findings = judge(usual(), plenty());
  ASSERT_EQ(findings.size(), 4u);
  for (const auto& finding : findings) EXPECT_EQ(finding.level, Level::kInfo) << finding.line;
}

TEST(Preflight, WarnsOfAPoolAboveTheCgroupLimit) {
  auto offers = plenty();
  offers.cgroup_memory_bytes = std::uint64_t{4} << 30;
  const auto finding = judge(usual(), offers)[0];
  EXPECT_EQ(finding.level, Level::kWarn);
  EXPECT_NE(finding.line.find("--pool"), std::string::npos);
}

TEST(Preflight, NamesTheFallbackForLockedMemory) {
  auto offers = plenty();
  offers.memlock_bytes = 8 << 20;
  EXPECT_NE(judge(usual(), offers)[1].line.find("not registered"), std::string::npos);
}

TEST(Preflight, WarnsOfTooFewFilesAndTooLittleDisk) {
  auto offers = plenty();
  offers.open_files = 256;
  offers.disk_free_bytes = std::uint64_t{1} << 30;
  const auto findings = judge(usual(), offers);
  EXPECT_EQ(findings[2].level, Level::kWarn);
  EXPECT_EQ(findings[3].level, Level::kWarn);
}

TEST(Preflight, TakesTheSmallestLimitOnTheWayToTheRoot) {
  const auto root = std::filesystem::path(::testing::TempDir()) / "kvd_cgroup_test";
  std::filesystem::create_directories(root / "a/b");
  std::ofstream(root / "a/memory.max") << "1000\n";
  std::ofstream(root / "a/b/memory.max") << "max\n";
  EXPECT_EQ(cgroup_limit("0::/a/b\n", root.string()), 1000u);
  EXPECT_EQ(cgroup_limit("0::/\n", root.string()), 0u);
  EXPECT_EQ(cgroup_limit("12:cpu:/a\n", root.string()), 0u);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace kvd::cmd
