// Gets whose slabs lie in the depot's memory, in virtual time.
#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "client/core.h"
#include "client/testing/core_rig.h"

namespace kvd::client {
namespace {

using wire::Opcode;

class CoreViews : public SharingRigTest {
 protected:
  [[nodiscard]] bool all_landed() const {
    for (std::size_t key = 0; key < rig->options.keys; ++key) {
      const auto record = rig->record(key);
      for (std::size_t layer = 0; layer < rig->options.layers; ++layer) {
        if (!std::ranges::equal(rig->slab(layer, key), record[layer])) return false;
      }
    }
    return true;
  }
  // Several turns of copying, in one message.
  static RigOptions large() { return {.layers = 6, .slab_bytes = 2 << 20, .keys = 2}; }
};

constexpr Deadline kNone{.total = {}, .progress = {}};

TEST_F(CoreViews, EverySlabIsCopiedToItsPlaceAndNothingComesThroughTheSocket) {
  start();
  const std::uint64_t before = rig->state.net.bytes_in.value();
  const Completion done = rig->finish(rig->get());
  EXPECT_EQ(done.code, Code::kOk);
  EXPECT_EQ(done.failed_keys, 0U);
  EXPECT_TRUE(all_landed());
  EXPECT_EQ(rig->state.get.bytes_shared.value(), rig->memory.size());
  EXPECT_EQ(rig->state.get.bytes_loaded.value(), rig->memory.size());
  EXPECT_LT(rig->state.net.bytes_in.value() - before, 4096U);
  EXPECT_EQ(rig->depot->views, 4U);
  EXPECT_TRUE(rig->all_given_back());
}

TEST_F(CoreViews, LayersAreAnnouncedInOrderAndThenTheWhole) {
  start({.slab_bytes = 300'000}, whole);
  rig->finish(rig->get());
  std::array<Completion, 10> out;
  ASSERT_EQ(rig->ops->poll(out), 5U);
  for (std::uint16_t layer = 0; layer < 4; ++layer) EXPECT_EQ(out[layer].layer, layer);
  EXPECT_EQ(out[4].layer, kWholeOp);
  EXPECT_TRUE(all_landed());
}

TEST_F(CoreViews, ViewsAreGivenBackInOneMessageWithTheNextRequestOrAMomentLater) {
  start();
  rig->finish(rig->get());
  rig->loop.settle();
  EXPECT_EQ(rig->depot->views, 4U);
  EXPECT_EQ(rig->depot->seen[Opcode::kRelease], 0U);
  const std::uint64_t sends = rig->state.net.send_calls.value();
  rig->finish(rig->get());
  EXPECT_EQ(rig->depot->seen[Opcode::kRelease], 1U);
  EXPECT_EQ(rig->depot->lent.size(), 4U) << "of the second";
  EXPECT_EQ(rig->state.net.send_calls.value() - sends, 1U) << "with the request";
  EXPECT_TRUE(rig->all_given_back());
  EXPECT_EQ(rig->depot->seen[Opcode::kRelease], 2U);
}

TEST_F(CoreViews, ManyViewsAreNotKeptBack) {
  start({.layers = 300, .slab_bytes = 64});
  rig->finish(rig->get());
  rig->loop.settle();
  EXPECT_LT(rig->depot->lent.size(), 256U);
  EXPECT_TRUE(rig->all_given_back());
}

TEST_F(CoreViews, TheDataConnectionAsksForMemoryAndTheOtherForRings) {
  start();
  std::ranges::sort(rig->depot->features_asked);
  EXPECT_EQ(rig->depot->features_asked,
            (std::vector<std::uint64_t>{wire::kFeatureRings, wire::kFeatureSharedMemory | wire::kFeatureKeep |
                                                                 wire::kFeaturePutParts | wire::kFeatureArena}));
  CoreRig without;
  std::ranges::sort(without.depot->features_asked);
  EXPECT_EQ(without.depot->features_asked, (std::vector<std::uint64_t>{0, wire::kFeaturePutParts}));
  start({.verify = false});  // only verification tells of a view that has ended
  std::ranges::sort(rig->depot->features_asked);
  EXPECT_EQ(rig->depot->features_asked, (std::vector<std::uint64_t>{wire::kFeatureRings, wire::kFeaturePutParts}));
}

TEST_F(CoreViews, ADepotThatDoesNotShareSendsBytes) {
  start({}, [](FakeScript& script) { script.shares = false; });
  EXPECT_EQ(rig->finish(rig->get()).code, Code::kOk);
  EXPECT_TRUE(all_landed());
  EXPECT_EQ(rig->state.get.bytes_shared.value(), 0U);
}

TEST_F(CoreViews, MemoryThatCannotBeMappedIsDoneWithout) {
  for (const bool file : {false, true}) {
    start({}, [file](FakeScript& script) { (file ? script.unsealed : script.no_file) = true; });
    EXPECT_EQ(rig->depot->connections, 3U) << "one attempt more";
    EXPECT_EQ(rig->state.breaker_opened.value(), 0U);
    EXPECT_EQ(rig->finish(rig->get()).code, Code::kOk);
    EXPECT_TRUE(all_landed());
    EXPECT_EQ(rig->depot->views, 0U);
  }
}

TEST_F(CoreViews, ADamagedSlabFailsItsKeyAndTheDepotIsTold) {
  start({.slab_bytes = 600'000}, [](FakeScript& script) { script.corrupt = {{1, 2}}; });
  const Completion done = rig->finish(rig->get(kNone, false));
  EXPECT_EQ(done.code, Code::kOk);
  EXPECT_EQ(done.failed_keys, 1U);
  EXPECT_EQ(done.failed[0], 2);
  EXPECT_EQ(rig->state.get.corrupt_slabs.value(), 1U);
  EXPECT_TRUE(rig->landed(3, 0) && rig->landed(3, 2));
  EXPECT_TRUE(rig->poisoned(3, 1)) << "later slabs of the key are passed over";
  EXPECT_TRUE(rig->all_given_back());
  EXPECT_EQ(rig->depot->checked.size(), 5U);
}

TEST_F(CoreViews, AMissFailsItsKey) {
  CoreRig other({.connect = false, .keys = 4, .shared_memory = true});
  other.depot->script.shares = true;
  for (const std::size_t key : {0U, 1U, 3U}) other.store_record(key);
  other.start_core();
  ASSERT_TRUE(other.wait_connected());
  const Completion done = other.finish(other.get(kNone, false));
  EXPECT_EQ(done.failed_keys, 1U);
  EXPECT_TRUE(other.landed(3, 3));
  EXPECT_TRUE(other.poisoned(0, 2));
}

TEST_F(CoreViews, ALargeViewIsCopiedInTurnsThatLeaveTheLoopToOthers) {
  start(large(), whole);
  const OpId op = rig->get();
  while (rig->state.get.bytes_shared.value() == 0) rig->loop.run_once(Duration::zero());
  EXPECT_FALSE(rig->ended(op));
  EXPECT_LE(rig->state.get.bytes_shared.value(), 2 * kCopiesPerTurn * kReceiveBytesMax);
  EXPECT_EQ(rig->finish(op).code, Code::kOk);
  EXPECT_TRUE(all_landed());
  EXPECT_TRUE(rig->all_given_back());
}

TEST_F(CoreViews, AfterCancelNothingLandsAndTheViewIsGivenBack) {
  start(large(), whole);
  const OpId op = rig->get();
  while (rig->state.get.bytes_shared.value() == 0) rig->loop.run_once(Duration::zero());
  ASSERT_FALSE(rig->ended(op));
  rig->cancel(op);
  EXPECT_EQ(rig->finish(op).code, Code::kCancelled);
  rig->poison();
  EXPECT_TRUE(rig->all_given_back());
  for (std::size_t layer = 0; layer < 6; ++layer) EXPECT_TRUE(rig->poisoned(layer, 0) && rig->poisoned(layer, 1));
  rig->release(op);
  EXPECT_EQ(rig->finish(rig->get()).code, Code::kOk) << "the connection goes on";
  EXPECT_TRUE(all_landed());
}

TEST_F(CoreViews, ViewsOfAGetThatHasEndedAreGivenBackUnread) {
  start();
  const OpId op = rig->get();
  rig->cancel(op);
  EXPECT_TRUE(rig->all_given_back());
  EXPECT_GT(rig->depot->views, 0U);
  EXPECT_EQ(rig->state.get.bytes_shared.value(), 0U);
  rig->release(op);
  EXPECT_EQ(rig->finish(rig->get()).code, Code::kOk);
}

TEST_F(CoreViews, ALongCopyIsProgress) {
  start(large(), whole);
  const OpId op = rig->get({.total = {}, .progress = Millis(100)});
  for (int turn = 0; turn < 20 && !rig->ended(op); ++turn) {
    rig->clock.advance_to(rig->clock.now() + Millis(60));
    rig->loop.run_once(Duration::zero());
  }
  EXPECT_EQ(rig->finish(op).code, Code::kOk);
  EXPECT_GT(rig->ops->try_get(op, kWholeOp)->took, Millis(250)) << "longer than the limit";
}

TEST_F(CoreViews, WhatTheDepotLentOutlastsItsConnection) {
  start(large(), whole);
  const OpId op = rig->get();
  while (rig->state.get.bytes_shared.value() == 0) rig->loop.run_once(Duration::zero());
  rig->depot->drop_connections();
  EXPECT_EQ(rig->finish(op).code, Code::kOk) << "every slab was verified";
  EXPECT_TRUE(all_landed());
  EXPECT_TRUE(rig->loop.run_until([&] { return !rig->state.connected(); }, std::chrono::seconds(1)));
}

TEST_F(CoreViews, AClientThatIsClosedInTheMiddleTouchesNothingMore) {
  start(large(), whole);
  const OpId op = rig->get();
  while (rig->state.get.bytes_shared.value() == 0) rig->loop.run_once(Duration::zero());
  rig->core->stop();
  EXPECT_EQ(rig->finish(op).code, Code::kCancelled);
  rig->poison();
  rig->loop.settle();
  EXPECT_TRUE(rig->poisoned(5, 1));
}

TEST_F(CoreViews, SlabsOutsideOfTheMemoryEndTheConnection) {
  start({}, [](FakeScript& script) { script.views_beyond = true; });
  EXPECT_EQ(rig->finish(rig->get()).code, Code::kUnavailable);
  EXPECT_EQ(rig->state.error().code, Code::kCorrupt);
  EXPECT_EQ(rig->state.get.bytes_shared.value(), 0U);
}

TEST_F(CoreViews, AfterAReconnectTheMemoryIsTheNewOne) {
  start();
  rig->depot->drop_connections();
  ASSERT_TRUE(rig->loop.run_until([&] { return !rig->state.connected(); }, std::chrono::seconds(5)));
  rig->depot->lent.clear();
  ASSERT_TRUE(rig->wait_connected());
  EXPECT_EQ(rig->finish(rig->get()).code, Code::kOk);
  EXPECT_TRUE(all_landed());
  EXPECT_TRUE(rig->all_given_back());
}

TEST_F(CoreViews, TheMemoryIsEnteredAheadOfItsFirstRead) {
  start();
  EXPECT_EQ(rig->finish(rig->get()).code, Code::kOk);
  rig->depot->drop_connections();
  ASSERT_TRUE(rig->loop.run_until([&] { return !rig->state.connected(); }, std::chrono::seconds(5)));
  EXPECT_EQ(CoreRig::entered_bytes().size(), 0U);
  ASSERT_TRUE(rig->wait_connected());
  rig->loop.run_for(Millis(200));
  const auto entered = CoreRig::entered_bytes();
  ASSERT_EQ(entered.size(), 1U);
  EXPECT_GE(entered[0], rig->memory.size());
}

}  // namespace
}  // namespace kvd::client
