// Tests of Tombstones by themselves: who waits for which. What becomes of them on flash is in store_removal_test.cc.
#include "store/tombstones.h"

#include <gtest/gtest.h>

#include "policy/eviction.h"

namespace kvd::store {
namespace {

class TombstonesTest : public ::testing::Test {
 protected:
  TombstonesTest() {
    for (std::uint32_t segment = 0; segment < 4; ++segment) segments_.device(0).ready(segment, generation_of(segment));
  }
  static std::uint64_t generation_of(std::uint32_t segment) { return 10 + segment; }
  static Tombstone naming(std::uint32_t segment, std::uint64_t put_seq) {
    return {{}, put_seq, segment, generation_of(segment)};
  }
  // The next one that waits is written to `holder`.
  void write_one(std::uint32_t holder) {
    const Tombstone tombstone = tombstones_.next_pending();
    tombstones_.take_pending();
    tombstones_.written(tombstone, holder, generation_of(holder));
  }

  Segments segments_{4, policy::make_eviction(policy::Eviction::kLru, 4)};
  Tombstones tombstones_{segments_, segments_.device(0)};
};

// A record ends its copies in two segments with its own number.
TEST_F(TombstonesTest, TwoOfOneNumberAreBothWaitedFor) {
  tombstones_.add(naming(0, 7));
  tombstones_.add(naming(1, 7));
  write_one(2);
  EXPECT_FALSE(tombstones_.written_before(8)) << "the other one waits";
  EXPECT_TRUE(tombstones_.written_before(7));
  write_one(2);
  EXPECT_TRUE(tombstones_.written_before(8));
}

TEST_F(TombstonesTest, OneOfTwoThatHasNothingToNameAnyMoreIsNotWaitedFor) {
  tombstones_.add(naming(0, 7));
  tombstones_.add(naming(1, 7));
  tombstones_.forget(0);
  EXPECT_FALSE(tombstones_.written_before(8));
  write_one(2);
  EXPECT_TRUE(tombstones_.written_before(8));
}

// One that a record implies, or that was written before and is carried, answers for none that waits.
TEST_F(TombstonesTest, OneThatNobodyWaitsForAnswersForNoOther) {
  tombstones_.add(naming(0, 7));
  tombstones_.imply(naming(1, 7), 2, generation_of(2));
  EXPECT_FALSE(tombstones_.written_before(8));
  tombstones_.carry_from(2);
  ASSERT_TRUE(tombstones_.next_is_carried());
  write_one(3);
  EXPECT_FALSE(tombstones_.written_before(8));
  write_one(3);
  EXPECT_TRUE(tombstones_.written_before(8));
  EXPECT_FALSE(tombstones_.pending());
}

// Until it is written, wherever it is meanwhile.
TEST_F(TombstonesTest, WhichRecordsWaitIsKnownByTheirHashes) {
  tombstones_.tell_apart();
  const auto of = [](std::uint64_t hash, std::uint32_t segment) {
    Tombstone tombstone = naming(segment, 7);
    tombstone.key.hash = hash << 32;
    return tombstone;
  };
  const auto waits = [&](std::uint64_t hash) { return tombstones_.may_wait(hash << 32); };
  tombstones_.add(of(1, 0));
  tombstones_.add(of(1, 1));
  tombstones_.add(of(2, 2));
  EXPECT_TRUE(waits(1));
  EXPECT_TRUE(waits(2));
  EXPECT_FALSE(waits(3));
  const Tombstone in_frame = tombstones_.next_pending();
  tombstones_.take_pending();
  tombstones_.failed(in_frame);
  write_one(3);
  EXPECT_TRUE(waits(1)) << "in another segment";
  write_one(3);
  EXPECT_FALSE(waits(1));
  tombstones_.forget(2);
  EXPECT_FALSE(waits(2)) << "it has nothing to name";
  tombstones_.imply(of(3, 1), 3, generation_of(3));
  tombstones_.carry_from(3);
  EXPECT_FALSE(waits(3)) << "its record says so";
  tombstones_.add(of(4, 0));
  EXPECT_TRUE(waits(4));
  tombstones_.device_off([](const Tombstone&) { return true; });
  EXPECT_TRUE(waits(4)) << "a removal";
  Tombstone outdated = of(5, 0);
  outdated.outdates = true;
  tombstones_.add(outdated);
  tombstones_.device_off([](const Tombstone&) { return true; });
  EXPECT_FALSE(waits(5)) << "a stray";
  tombstones_.await_end(1, 8);
  EXPECT_TRUE(waits(6));
}

class ToldTombstonesTest : public TombstonesTest {
 protected:
  static constexpr std::uint32_t kElsewhere = 4;

  ToldTombstonesTest() { segments_.add_device(2, policy::make_eviction(policy::Eviction::kLru, 2)); }
  static Tombstone told(std::uint32_t segment, std::uint64_t put_seq) {
    Tombstone tombstone = naming(segment, put_seq);
    tombstone.told_by = kElsewhere;
    return tombstone;
  }
  void give_up_elsewhere() {
    segments_.change(kElsewhere, SegmentState::kEvicting);
    tombstones_.hurry(kElsewhere);
  }
};

// A record in a segment of another device implies it until it is durable, however often it is written.
TEST_F(ToldTombstonesTest, WhatAnotherDeviceTellsCountsUntilItIsDurable) {
  tombstones_.add(told(0, 7));
  tombstones_.add(naming(1, 8));
  tombstones_.add(told(1, 9));
  give_up_elsewhere();
  EXPECT_EQ(tombstones_.next_pending().put_seq, 7u);
  write_one(2);
  EXPECT_EQ(tombstones_.next_pending().put_seq, 9u) << "before what nobody waits for";
  write_one(2);
  EXPECT_FALSE(tombstones_.carrying());
  tombstones_.flush_begins();
  tombstones_.flush_failed();
  write_one(2);
  tombstones_.flush_begins();
  write_one(2);
  tombstones_.flushed();
  EXPECT_EQ(tombstones_.told_by(kElsewhere), 1u) << "the other one was written behind the flush";
  tombstones_.carry_from(2);
  tombstones_.forget(0);
  tombstones_.forget(1);
  EXPECT_EQ(tombstones_.told_by(kElsewhere), 0u);
  EXPECT_EQ(tombstones_.carried(kElsewhere), 0u);
  EXPECT_FALSE(tombstones_.carrying());
}

// The segment that tells them waits for them, also when they were on their way as it was begun to be given up.
TEST_F(ToldTombstonesTest, WhatFailsOrComesBehindThatHurriesToo) {
  tombstones_.add(told(0, 7));
  tombstones_.add(told(0, 8));
  write_one(2);
  const Tombstone in_frame = tombstones_.next_pending();
  tombstones_.take_pending();
  tombstones_.flush_begins();
  give_up_elsewhere();
  EXPECT_FALSE(tombstones_.pending());
  tombstones_.failed(in_frame);
  ASSERT_TRUE(tombstones_.next_is_carried());
  EXPECT_EQ(tombstones_.next_pending().put_seq, 8u);
  write_one(2);
  tombstones_.flush_failed();
  ASSERT_TRUE(tombstones_.next_is_carried()) << "no flush covers either";
  write_one(2);
  ASSERT_TRUE(tombstones_.next_is_carried());
  write_one(2);
  tombstones_.add(told(1, 9));
  ASSERT_TRUE(tombstones_.next_is_carried());
  write_one(2);
  tombstones_.flush_begins();
  tombstones_.flushed();
  EXPECT_EQ(tombstones_.told_by(kElsewhere), 0u);
  EXPECT_EQ(tombstones_.carried(kElsewhere), 0u);
  EXPECT_FALSE(tombstones_.carrying());
}

// ---- How many lie on flash ----

TEST_F(TombstonesTest, WhatLiesInASegmentIsCountedUntilThatIsForgotten) {
  tombstones_.lie_in(2, 5);
  tombstones_.lie_in(3, 1);
  tombstones_.lie_in(2, 1);
  EXPECT_EQ(tombstones_.on_flash(), 7U);
  tombstones_.forget(2);
  EXPECT_EQ(tombstones_.on_flash(), 1U);
  tombstones_.forget(2);
  EXPECT_EQ(tombstones_.on_flash(), 1U);
}

// Segment 1 holds more, but of its six four would be carried, and one is implied by a record: it would be written.
TEST_F(TombstonesTest, WhatWouldBeCarriedIsNotSpent) {
  for (const std::uint32_t holder : {1U, 2U, 3U}) segments_.seal(holder);
  for (std::uint64_t n = 0; n < 4; ++n) tombstones_.add(naming(0, n));
  for (int n = 0; n < 4; ++n) write_one(1);
  tombstones_.lie_in(1, 6);
  tombstones_.imply(naming(0, 9), 1, generation_of(1));
  tombstones_.lie_in(2, 2);
  tombstones_.lie_in(3, 1);
  EXPECT_EQ(tombstones_.most_spent(3), 2U);
  EXPECT_EQ(tombstones_.most_spent(4), std::nullopt) << "four are not too many";
  tombstones_.forget(0);
  EXPECT_EQ(tombstones_.most_spent(8), 1U) << "nothing needs them any more";
  EXPECT_EQ(tombstones_.most_spent(9), std::nullopt);
}

// Those in one that is going are gone soon; of one that still takes frames nothing can be given up.
TEST_F(TombstonesTest, OnlyWhatIsSealedIsSpent) {
  tombstones_.lie_in(1, 6);
  EXPECT_EQ(tombstones_.most_spent(5), std::nullopt) << "it is not sealed";
  segments_.seal(1);
  EXPECT_EQ(tombstones_.most_spent(5), 1U);
  segments_.device(0).start_eviction_of(1);
  EXPECT_EQ(tombstones_.most_spent(5), std::nullopt);
  tombstones_.lie_in(2, 6);
  segments_.seal(2);
  EXPECT_EQ(tombstones_.most_spent(5), 2U);
}

// One that is carried away lies elsewhere then: nothing is gained, and others need not go for those.
TEST_F(TombstonesTest, WhereAllAreNeededNothingIsGivenUp) {
  for (const std::uint32_t holder : {1U, 2U}) segments_.seal(holder);
  for (std::uint64_t n = 0; n < 4; ++n) tombstones_.add(naming(0, n));
  for (int n = 0; n < 4; ++n) write_one(1);
  tombstones_.lie_in(1, 4);
  tombstones_.lie_in(2, 1);
  EXPECT_EQ(tombstones_.most_spent(1), std::nullopt);
}

TEST(TombstonesOfTwoDevicesTest, EachHasAShareOfTheBound) {
  Segments segments(1, policy::make_eviction(policy::Eviction::kLru, 1));
  segments.add_device(3, policy::make_eviction(policy::Eviction::kLru, 3));
  Tombstones one(segments, segments.device(0)), three(segments, segments.device(1));
  for (std::uint32_t s = 0; s < 4; ++s) {
    segments.device(s == 0 ? 0 : 1).ready(s, 10 + s);
    segments.seal(s);
  }
  one.lie_in(0, 3);
  three.lie_in(2, 6);
  EXPECT_EQ(one.most_spent(12), std::nullopt);
  EXPECT_EQ(one.most_spent(11), 0U);
  EXPECT_EQ(three.most_spent(8), std::nullopt);
  EXPECT_EQ(three.most_spent(7), 2U);
  EXPECT_TRUE(one.fills(0, 51)) << "a quarter of a quarter";
  EXPECT_FALSE(one.fills(0, 52));
  EXPECT_TRUE(three.fills(2, 33)) << "a quarter of three";
  EXPECT_FALSE(three.fills(2, 34));
  EXPECT_FALSE(three.fills(3, 1)) << "it has none";
}

}  // namespace
}  // namespace kvd::store
