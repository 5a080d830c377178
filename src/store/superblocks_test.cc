#include "store/superblocks.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "io/sim/sim_disk.h"
#include "io/sim/sim_loop.h"
#include "store/volume.h"

namespace kvd::store {
namespace {

using Verdict = SuperblockVerdict::Kind;
using Page = std::array<std::byte, kPageBytes>;

constexpr Error kBroken{.code = Code::kIo, .sys_errno = 5, .what = "reading"};

Page page_of(std::uint32_t copy, std::uint64_t generation) {
  Superblock block;
  block.copy = copy;
  block.generation = generation;
  block.segment_bytes = kSegmentBytesMin;
  block.segments = 4;
  Page page{};
  encode_superblock(page, block);
  return page;
}

// As a later version writes them: nothing is known but where version, magic and checksum are.
Page newer_page(std::uint32_t copy) {
  Superblock block;
  block.version = kFormatVersion + 1;
  block.copy = copy;
  Page page{};
  encode_superblock(page, block);
  return page;
}

Page torn_page(std::uint32_t copy) {
  Page page = page_of(copy, 1);
  page[100] ^= std::byte{1};
  return page;
}

SuperblockVerdict verdict_of(std::span<const Page> pages) {
  SuperblockScan scan;
  for (std::uint32_t i = 0; i < pages.size(); ++i) scan.take(i, pages[i]);
  return scan.verdict();
}

TEST(SuperblockScan, TheNewestThatTwoCopiesHoldIsInForce) {
  struct Case {
    std::array<std::uint64_t, kSuperblockCopies> generations;
    std::uint64_t in_force;
    std::uint32_t copies;
  };
  for (const Case& c : {Case{{7, 7, 7, 7}, 7, 4}, Case{{9, 7, 7, 7}, 7, 3}, Case{{8, 8, 7, 7}, 8, 2},
                        Case{{7, 7, 8, 8}, 8, 2}, Case{{9, 6, 6, 8}, 6, 2}, Case{{6, 7, 9, 8}, 9, 1}}) {
    std::vector<Page> pages;
    for (std::uint32_t i = 0; i < kSuperblockCopies; ++i) pages.push_back(page_of(i, c.generations[i]));
    const SuperblockVerdict verdict = verdict_of(pages);
    EXPECT_EQ(verdict.kind, Verdict::kValid);
    EXPECT_EQ(verdict.in_force.generation, c.in_force);
    EXPECT_EQ(verdict.copies, c.copies);
  }
}

// A rewrite that was interrupted, and one behind it that took the same generation for something else.
TEST(SuperblockScan, CopiesOfOneGenerationThatDifferDoNotAgree) {
  Superblock other;
  other.generation = 8;
  other.boot_epoch = 5;
  other.segment_bytes = kSegmentBytesMin;
  other.segments = 4;
  Page page{};
  encode_superblock(page, other);
  const SuperblockVerdict verdict = verdict_of(std::array{page, page_of(1, 8), page_of(2, 7), page_of(3, 7)});
  EXPECT_EQ(verdict.in_force.generation, 7U);
  EXPECT_EQ(verdict.copies, 2U);
  EXPECT_EQ(verdict.generation_max, 8U) << "the next one is above both";
}

TEST(SuperblockScan, OneCopyThatClaimsToBeNewerIsDamageWhereOthersAreFine) {
  EXPECT_EQ(verdict_of(std::array{newer_page(0), page_of(1, 3)}).kind, Verdict::kValid);
  EXPECT_EQ(verdict_of(std::array{newer_page(0), torn_page(1)}).kind, Verdict::kNewer);
  EXPECT_EQ(verdict_of(std::array{newer_page(0), newer_page(1), page_of(2, 3), page_of(3, 3)}).kind, Verdict::kNewer);
}

// What is gone for good is begun anew; what may be there all the same is not.
TEST(SuperblockScan, ATornCopyIsALostStoreUnlessAnotherCannotBeRead) {
  SuperblockScan scan;
  scan.take(0, torn_page(0));
  scan.take(1, Page{});
  EXPECT_EQ(scan.verdict().kind, Verdict::kLost);
  scan.take_unreadable(2, kBroken);
  EXPECT_EQ(scan.verdict().kind, Verdict::kUnreadable);
}

TEST(SuperblockScan, ReadsWhatTheFileIsLongEnoughFor) {
  std::vector<std::uint64_t> offsets;
  const auto read = [&offsets](std::uint64_t offset, MutableBytes page) -> Status {
    offsets.push_back(offset);
    if (offset == kSuperblockStride) return fail(kBroken);
    std::ranges::copy(page_of(static_cast<std::uint32_t>(offset / kSuperblockStride), 5), page.begin());
    return {};
  };
  EXPECT_EQ(scan_superblocks(kPageBytes - 1, read).verdict().kind, Verdict::kEmpty);
  EXPECT_TRUE(offsets.empty());
  const SuperblockScan scan = scan_superblocks(3 * kSuperblockStride + kPageBytes - 1, read);
  EXPECT_EQ(offsets, (std::vector<std::uint64_t>{0, kSuperblockStride, 2 * kSuperblockStride}));
  EXPECT_EQ(scan.verdict().copies, 2U);
  EXPECT_EQ(scan.read_error(), kBroken);
}

TEST(SuperblockScan, WithoutAnyCopyThereIsNothing) { EXPECT_EQ(SuperblockScan().verdict().kind, Verdict::kEmpty); }

TEST(SuperblockScan, ZerosAreANewFileUnlessACopyCannotBeRead) {
  SuperblockScan scan;
  Page page{};
  page.back() = std::byte{1};  // in the checksum's sector
  for (std::uint32_t i = 1; i < kSuperblockCopies; ++i) scan.take(i, page);
  EXPECT_EQ(scan.verdict().kind, Verdict::kEmpty);
  scan.take_unreadable(0, kBroken);
  EXPECT_EQ(scan.verdict().kind, Verdict::kUnreadable);
  EXPECT_EQ(scan.read_error(), kBroken);
  EXPECT_EQ(scan.copy(0).error().code, Code::kCorrupt);
}

TEST(SuperblockScan, WhatIsNeitherZerosNorOursIsForeign) {
  SuperblockScan scan;
  Page page{};
  page.front() = std::byte{1};
  scan.take(0, page);
  scan.take_unreadable(1, kBroken);
  EXPECT_EQ(scan.verdict().kind, Verdict::kForeign);
}

TEST(SuperblockScan, ACopyThatCannotBeReadIsWhatTheOthersAreFor) {
  SuperblockScan scan;
  for (std::uint32_t i = 0; i < kSuperblockCopies; ++i) scan.take_unreadable(i, kBroken);
  EXPECT_EQ(scan.verdict().kind, Verdict::kUnreadable);
  scan.take(2, page_of(2, 7));
  const SuperblockVerdict verdict = scan.verdict();
  EXPECT_EQ(verdict.kind, Verdict::kValid);
  EXPECT_EQ(verdict.in_force.generation, 7U);
  EXPECT_EQ(verdict.copies, 1U);
}

// One that was interrupted is in no quorum, and its generation is not used again.
TEST(SuperblockScan, AnOpeningTakesAGenerationThatWasNotTriedBefore) {
  io::SimClock clock;
  io::SimLoop loop(clock);
  io::SimDisks disks(1);
  RecordingLog log;
  std::string why;
  const VolumeOptions options{.flash_bytes = kHeadBytes + 4 * kSegmentBytesMin, .segment_bytes = kSegmentBytesMin};
  const auto generation = [&] {
    const auto volume = Volume::open(loop, log, disks, "flash", options, why);
    EXPECT_TRUE(volume) << why;
    return volume->superblock().generation;
  };
  EXPECT_EQ(generation(), 1U);
  disks.drive("flash").poke(0, page_of(0, 2));
  EXPECT_EQ(generation(), 3U);
}

}  // namespace
}  // namespace kvd::store
