// Tests of PutSeqs: when it knows by itself, when it reads, and what it says where it cannot.
#include "store/put_seqs.h"

#include <gtest/gtest.h>

namespace kvd::store {
namespace {

Descriptor record(std::uint32_t offset, std::uint64_t put_seq) {
  Descriptor d;
  d.offset = offset;
  d.put_seq = put_seq;
  return d;
}

Descriptor tombstone(std::uint64_t put_seq) {
  Descriptor d = record(1, put_seq);
  d.flags = Descriptor::kTombstone;
  return d;
}

class PutSeqsTest : public ::testing::Test {
 protected:
  void add(std::uint32_t segment, std::vector<Descriptor> descriptors, bool has_footer = true) {
    seqs.note(segment, descriptors, has_footer);
    if (has_footer) footers[segment].content.descriptors = std::move(descriptors);
  }

  std::map<std::uint32_t, Footer> footers;
  std::vector<std::uint32_t> reads;
  PutSeqs seqs{8,
               [this](std::uint32_t segment) -> Result<Footer> {
                 reads.push_back(segment);
                 if (!footers.contains(segment)) return fail(Code::kIo, "gone");
                 return footers[segment];
               },
               4};
};

TEST_F(PutSeqsTest, RangeOfASegmentTellsWithoutReading) {
  add(3, {record(1, 20), tombstone(2), record(9, 10), tombstone(99)});
  EXPECT_EQ(seqs.newer(21, 3, 1), true);
  EXPECT_EQ(seqs.newer(10, 3, 9), false);
  EXPECT_EQ(seqs.newer(5, 3, 1), false);
  EXPECT_TRUE(reads.empty()) << "tombstones keep old numbers and count for nothing";
}

TEST_F(PutSeqsTest, FooterIsReadWhereTheRangeDoesNotTell) {
  add(3, {record(9, 10), record(1, 20)});
  EXPECT_EQ(seqs.newer(15, 3, 9), true);
  EXPECT_EQ(seqs.newer(15, 3, 1), false);
  EXPECT_EQ(seqs.newer(20, 3, 1), false) << "equal is not newer";
  EXPECT_EQ(reads, std::vector<std::uint32_t>{3}) << "read once";
}

TEST_F(PutSeqsTest, FootersAreKeptUpToABoundOnTheirRecords) {
  for (std::uint32_t segment = 0; segment < 3; ++segment) add(segment, {record(1, 10 + segment), record(2, 30)});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(seqs.newer(20, 0, 1), true);
    EXPECT_EQ(seqs.newer(20, 1, 1), true);
  }
  EXPECT_EQ(reads, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(seqs.newer(20, 2, 2), false);
  EXPECT_EQ(seqs.newer(11, 0, 2), false);
  EXPECT_EQ(reads, (std::vector<std::uint32_t>{0, 1, 2, 0}));
}

TEST_F(PutSeqsTest, TheNumberItselfIsRead) {
  add(3, {record(9, 10), record(1, 20)});
  EXPECT_EQ(seqs.at(3, 1), 20U);
  EXPECT_EQ(seqs.at(3, 2), std::nullopt);
  footers.clear();
  EXPECT_EQ(seqs.at(3, 9), 10U) << "kept";
  EXPECT_EQ(seqs.at(4, 9), std::nullopt);
}

TEST_F(PutSeqsTest, WhatHasNoFooterIsKeptWhole) {
  add(3, {record(9, 10), record(1, 20)}, false);
  EXPECT_EQ(seqs.newer(15, 3, 9), true);
  EXPECT_EQ(seqs.newer(15, 3, 1), false);
  EXPECT_TRUE(reads.empty());
}

TEST_F(PutSeqsTest, WhereNothingCanBeReadItCannotBeTold) {
  add(3, {record(9, 10), record(1, 20)});
  footers.clear();
  EXPECT_EQ(seqs.newer(15, 3, 9), std::nullopt);
}

}  // namespace
}  // namespace kvd::store
