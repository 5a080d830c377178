// Puts whose slabs go through the depot's arena, in virtual time.
#include <gtest/gtest.h>

#include "client/testing/core_rig.h"

namespace kvd::client {
namespace {

using wire::Opcode;

constexpr std::uint64_t kArena = std::uint64_t{16} << 20;

class CoreArena : public testing::Test {
 protected:
  void start(RigOptions options = {}, const ScriptChange& change = {}) {
    options.shared_memory = true;
    options.connect = false;
    rig = std::make_unique<CoreRig>(options);
    rig->depot->script.arena_bytes = kArena;
    if (change) change(rig->depot->script);
    rig->start_core();
    ASSERT_TRUE(rig->wait_connected());
    rig->loop.settle();
    rig->fill_source();
  }
  // The depot has the records that were put.
  [[nodiscard]] bool all_stored() {
    rig->poison();
    if (rig->finish(rig->get()).failed_keys != 0) return false;
    for (std::size_t key = 0; key < rig->options.keys; ++key)
      for (std::size_t layer = 0; layer < rig->options.layers; ++layer)
        if (!rig->landed(layer, key)) return false;
    return true;
  }
  static RigOptions large() { return {.layers = 12, .slab_bytes = 2 << 20, .keys = 2}; }  // three times the arena

  std::unique_ptr<CoreRig> rig;
};

TEST_F(CoreArena, APutGoesThroughItAndNoByteOfItThroughTheSocket) {
  start();
  const std::uint64_t before = rig->state.net.bytes_out.value();
  const Completion done = rig->finish(rig->put());
  EXPECT_EQ(done.code, Code::kOk);
  EXPECT_EQ(done.failed_keys, 0U);
  EXPECT_EQ(rig->depot->seen[Opcode::kPutData], 0U);
  EXPECT_EQ(rig->depot->arena_put_bytes, rig->memory.size());
  EXPECT_EQ(rig->state.bytes_stored.value(), rig->memory.size());
  EXPECT_LT(rig->state.net.bytes_out.value() - before, 4096U);
  EXPECT_EQ(rig->depot->bad_slabs, 0U);
  EXPECT_TRUE(all_stored());
}

TEST_F(CoreArena, WhatIsLargerThanTheArenaGoesThroughItAsTheDepotTakesIt) {
  start(large());
  EXPECT_EQ(rig->finish(rig->put()).code, Code::kOk);
  EXPECT_EQ(rig->depot->seen[Opcode::kPutData], 0U);
  EXPECT_TRUE(all_stored());
}

TEST_F(CoreArena, LayersGoAsTheyAreReleased) {
  start();
  const OpId op = rig->put(false);
  rig->put_layer(op, 1);
  rig->loop.settle();
  EXPECT_EQ(rig->depot->seen[Opcode::kPutArena], 0U);
  for (const std::uint16_t layer : std::initializer_list<std::uint16_t>{0, 2, 3}) rig->put_layer(op, layer);
  EXPECT_EQ(rig->finish(op).code, Code::kOk);
  EXPECT_TRUE(all_stored());
}

TEST_F(CoreArena, WithoutRoomPutsWaitUntilTheDepotHasTakenSomething) {
  start(large(), [](FakeScript& script) { script.arena_keeps = true; });
  const OpId op = rig->put();
  rig->loop.settle();
  EXPECT_FALSE(rig->ended(op));
  const std::uint64_t there = rig->depot->arena_put_bytes;
  EXPECT_GE(there, kArena / 2);
  EXPECT_LE(there, kArena);
  EXPECT_EQ(rig->depot->seen[Opcode::kPutData], 0U);
  rig->depot->tell_taken();
  rig->loop.settle();
  EXPECT_GT(rig->depot->arena_put_bytes, there) << "it goes on";
  EXPECT_FALSE(rig->ended(op));
  rig->cancel(op);
  EXPECT_EQ(rig->finish(op).code, Code::kCancelled);
  rig->depot->script.arena_keeps = false;
  rig->depot->drop_connections();  // a new connection has a new arena
  rig->loop.settle();
  ASSERT_TRUE(rig->wait_connected());
  EXPECT_EQ(rig->finish(rig->put()).code, Code::kOk);
  EXPECT_TRUE(all_stored());
}

TEST_F(CoreArena, ACancelledPutLeavesNoHoleBehind) {
  start({.layers = 4, .slab_bytes = 1 << 20, .keys = 3});
  for (int round = 0; round < 20; ++round) {
    const OpId op = rig->put(false);
    rig->put_layer(op, 0);
    if (round % 2 == 0) rig->loop.settle();
    rig->cancel(op);
    EXPECT_EQ(rig->finish(op).code, Code::kCancelled);
    rig->release(op);
  }
  EXPECT_EQ(rig->finish(rig->put()).code, Code::kOk);
  EXPECT_EQ(rig->depot->seen[Opcode::kPutData], 0U);
  EXPECT_TRUE(all_stored());
}

TEST_F(CoreArena, SlabsThatAreTooLargeForItAreSent) {
  start({.layers = 2, .slab_bytes = (4 << 20) + 64, .keys = 1});
  EXPECT_EQ(rig->finish(rig->put()).code, Code::kOk);
  EXPECT_EQ(rig->depot->seen[Opcode::kPutArena], 0U);
  EXPECT_GT(rig->depot->seen[Opcode::kPutData], 0U);
  EXPECT_TRUE(all_stored());
}

TEST_F(CoreArena, ADepotWithoutOneIsSentBytes) {
  start({}, [](FakeScript& script) { script.arena_bytes = 0; });
  EXPECT_EQ(rig->finish(rig->put()).code, Code::kOk);
  EXPECT_EQ(rig->depot->seen[Opcode::kPutArena], 0U);
  EXPECT_TRUE(all_stored());
}

TEST_F(CoreArena, OneThatCannotBeMappedIsDoneWithout) {
  start({}, [](FakeScript& script) { script.no_arena = true; });
  EXPECT_EQ(rig->depot->connections, 3U) << "one attempt more";
  EXPECT_EQ(rig->state.breaker_opened.value(), 0U);
  EXPECT_EQ(rig->finish(rig->put()).code, Code::kOk);
  EXPECT_EQ(rig->depot->seen[Opcode::kPutArena], 0U);
}

TEST_F(CoreArena, ASlabThatWasWrittenToMeanwhileFailsItsKey) {
  start({.keys = 1}, [](FakeScript& script) { script.arena_scribbled = true; });
  const Completion done = rig->finish(rig->put());
  EXPECT_EQ(done.failed_keys, 1U);
  EXPECT_EQ(done.failed_code, Code::kCorrupt);
}

TEST_F(CoreArena, ADepotThatHasTakenWhatWasNotSentIsLeft) {
  start({}, [](FakeScript& script) { script.arena_lies = 1; });
  EXPECT_NE(rig->finish(rig->put()).code, Code::kOk);
  rig->depot->script.arena_lies = 0;
  rig->loop.settle();
  ASSERT_TRUE(rig->wait_connected());
  EXPECT_EQ(rig->finish(rig->put()).code, Code::kOk);
}

TEST_F(CoreArena, ADepotThatIsKilledAndComesBackIsPutToAgain) {
  start(large());
  for (int round = 0; round < 3; ++round) {
    const OpId op = rig->put();
    if (round > 0) rig->loop.run_until([&] { return rig->depot->arena_put_bytes > 0; }, std::chrono::seconds(1));
    rig->depot->kill();
    EXPECT_EQ(rig->finish(op).code, Code::kUnavailable);
    rig->release(op);
    rig->depot->script.arena_bytes = round == 1 ? 0 : kArena;
    rig->depot->restart();
    rig->loop.run_for(std::chrono::seconds(2));
    ASSERT_TRUE(rig->wait_connected());
    const OpId again = rig->put();
    EXPECT_EQ(rig->finish(again).code, Code::kOk);
    rig->release(again);
  }
}

}  // namespace
}  // namespace kvd::client
