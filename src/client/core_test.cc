// Operations against a depot that does what it should, in virtual time.
#include "client/core.h"

#include <gtest/gtest.h>

#include "client/testing/core_rig.h"

namespace kvd::client {
namespace {

using wire::Opcode;

bool failed(const Completion& done, std::size_t key) { return (done.failed[key / 8] >> (key % 8) & 1) != 0; }

TEST(Core, MatchFindsThePrefixThatTheDepotHolds) {
  CoreRig rig;
  rig.store_record(0);
  rig.store_record(1);
  const Completion done = rig.finish(rig.match());
  EXPECT_EQ(done.code, Code::kOk);
  EXPECT_EQ(done.prefix_blocks, 2U);
  EXPECT_EQ(done.flash_blocks, 0U);
  EXPECT_EQ(done.keys, 3U);
}

TEST(Core, AnOperationSaysHowLongItTookAndNotWhenItWasLookedAt) {
  CoreRig rig;
  rig.store_records();
  const OpId op = rig.match({.total = Millis(70), .progress = {}});
  rig.loop.settle();
  EXPECT_LT(rig.ops->try_get(op, kWholeOp)->took, Millis(1));
  rig.loop.run_for(Millis(50));
  EXPECT_LT(rig.ops->try_get(op, kWholeOp)->took, Millis(1));
  rig.depot->script.hung = true;
  EXPECT_EQ(rig.finish(rig.match({.total = Millis(70), .progress = {}})).took, Millis(70));
}

TEST(Core, GetBringsEverySlabToItsPlaceInOneRequest) {
  CoreRig rig;
  rig.store_records();
  const OpId op = rig.get();
  const Completion done = rig.finish(op);
  EXPECT_EQ(done.code, Code::kOk);
  EXPECT_EQ(done.failed_keys, 0U);
  for (std::size_t layer = 0; layer < 4; ++layer) {
    for (std::size_t key = 0; key < 3; ++key) EXPECT_TRUE(rig.landed(layer, key)) << layer << ' ' << key;
  }
  EXPECT_EQ(rig.depot->seen[Opcode::kGet], 1U);
  EXPECT_EQ(rig.state.get.bytes_loaded.value(), rig.memory.size());
}

TEST(Core, GetAnnouncesEachLayerInOrderAndThenTheWhole) {
  CoreRig rig;
  rig.store_records();
  const OpId op = rig.get();
  rig.finish(op);
  std::array<Completion, 10> out;
  ASSERT_EQ(rig.ops->poll(out), 5U);
  for (std::uint16_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(out[layer].layer, layer);
    EXPECT_EQ(out[layer].code, Code::kOk);
  }
  EXPECT_EQ(out[4].layer, kWholeOp);
  EXPECT_EQ(rig.ops->poll(out), 0U);
}

TEST(Core, SeveralLayersInOneMessageAreStillOneCompletionEach) {
  CoreRig rig;
  rig.depot->script.layers_per_message = 3;
  rig.depot->script.last_message_apart = true;
  rig.store_records();
  const OpId op = rig.get();
  EXPECT_EQ(rig.finish(op).code, Code::kOk);
  std::array<Completion, 10> out;
  EXPECT_EQ(rig.ops->poll(out), 5U);
  rig.release(op);
  EXPECT_EQ(rig.finish(rig.get()).code, Code::kOk) << "the late last message is nobody's error";
}

TEST(Core, AMissEndsThePrefix) {
  CoreRig rig;
  rig.store_record(0);
  rig.store_record(2);
  const Completion done = rig.finish(rig.get());
  EXPECT_EQ(done.code, Code::kOk);
  EXPECT_EQ(done.failed_keys, 2U);
  EXPECT_FALSE(failed(done, 0));
  EXPECT_TRUE(failed(done, 1));
  EXPECT_TRUE(failed(done, 2));
  EXPECT_TRUE(rig.landed(3, 0));
  EXPECT_TRUE(rig.poisoned(0, 1));
  EXPECT_TRUE(rig.poisoned(0, 2));
}

TEST(Core, AMissFailsOneKeyWhenKeysAreIndependent) {
  CoreRig rig;
  rig.store_record(0);
  rig.store_record(2);
  const Completion done = rig.finish(rig.get({.total = {}, .progress = {}}, false));
  EXPECT_EQ(done.failed_keys, 1U);
  EXPECT_TRUE(failed(done, 1));
  EXPECT_TRUE(rig.landed(3, 2));
}

TEST(Core, NothingStoredIsNoError) {
  CoreRig rig;
  const OpId op = rig.get();
  const Completion done = rig.finish(op);
  EXPECT_EQ(done.code, Code::kOk);
  EXPECT_EQ(done.failed_keys, 3U);
  EXPECT_EQ(rig.ops->try_get(op, 3)->failed_keys, 3U);
}

TEST(Core, ACorruptSlabFailsItsKeyFromThatLayerOn) {
  CoreRig rig;
  rig.store_records();
  rig.depot->script.corrupt = {{1, 2}};
  const OpId op = rig.get({.total = {}, .progress = {}}, false);
  const Completion done = rig.finish(op);
  EXPECT_EQ(done.code, Code::kOk);
  EXPECT_EQ(done.failed_keys, 1U);
  EXPECT_TRUE(failed(done, 1));
  EXPECT_EQ(rig.state.get.corrupt_slabs.value(), 1U);
  rig.loop.settle();
  EXPECT_EQ(as_text(rig.depot->checked), "key10") << "the depot is told which one";
  const Completion before = *rig.ops->try_get(op, 1);
  EXPECT_EQ(before.failed_keys, 0U);
  EXPECT_FALSE(failed(before, 1)) << "a layer's bitmap does not change after it was announced";
  EXPECT_TRUE(failed(*rig.ops->try_get(op, 2), 1));
}

TEST(Core, ACorruptSlabEndsThePrefix) {
  CoreRig rig;
  rig.store_records();
  rig.depot->script.corrupt = {{1, 0}};
  const Completion done = rig.finish(rig.get());
  EXPECT_EQ(done.failed_keys, 2U);
  EXPECT_FALSE(failed(done, 0));
  EXPECT_TRUE(failed(done, 2));
}

TEST(Core, WithoutVerificationCorruptBytesPass) {
  CoreRig rig({.verify = false});
  rig.store_records();
  rig.depot->script.corrupt = {{1, 0}};
  EXPECT_EQ(rig.finish(rig.get()).failed_keys, 0U);
  EXPECT_FALSE(rig.landed(0, 1));
}

TEST(Core, PutThenGetBringsTheSameBytes) {
  CoreRig rig;
  rig.fill_source();
  const Completion stored = rig.finish(rig.put());
  EXPECT_EQ(stored.code, Code::kOk);
  EXPECT_EQ(stored.failed_keys, 0U);
  EXPECT_EQ(rig.depot->bad_slabs, 0U);
  EXPECT_EQ(rig.depot->records_put, 3U);
  rig.poison();
  EXPECT_EQ(rig.finish(rig.get()).failed_keys, 0U);
  EXPECT_TRUE(rig.landed(0, 0));
  EXPECT_TRUE(rig.landed(3, 2));
}

TEST(Core, AdjacentReleasedLayersTravelInOneMessage) {
  CoreRig rig;
  rig.fill_source();
  rig.finish(rig.put());
  EXPECT_EQ(rig.depot->seen[Opcode::kPut], 1U);
  EXPECT_EQ(rig.depot->seen[Opcode::kPutData], 1U);
}

TEST(Core, APutGoesOutWithTheFirstOfItsBytes) {
  CoreRig rig;
  rig.fill_source();
  const std::uint64_t before = rig.state.net.send_calls.value();
  const OpId waits = rig.put(false);
  rig.loop.settle();
  EXPECT_EQ(rig.state.net.send_calls.value() - before, 1U) << "what has nothing to send yet is told at once";
  EXPECT_EQ(rig.depot->seen[Opcode::kPut], 1U);
  rig.cancel(waits);
  rig.loop.settle();
  const std::uint64_t alone = rig.state.net.send_calls.value();
  rig.finish(rig.put());
  EXPECT_EQ(rig.state.net.send_calls.value() - alone, 1U);
}

TEST(Core, PutsThatAreReadyTogetherGoOutTogether) {
  CoreRig rig;
  rig.fill_source();
  const std::uint64_t before = rig.state.net.send_calls.value();
  std::vector<OpId> puts;
  for (int i = 0; i < 4; ++i) puts.push_back(rig.put());
  for (const OpId put : puts) EXPECT_EQ(rig.finish(put).code, Code::kOk);
  EXPECT_EQ(rig.state.net.send_calls.value() - before, 1U);
  EXPECT_EQ(rig.depot->seen[Opcode::kPutData], 4U);
}

// They are begun in one turn.
TEST(Core, PutsWhoseHeadsFillTheLineAreSent) {
  CoreRig rig({.ops_max = 16, .layers = 1, .slab_bytes = 64, .keys = 4096, .key_bytes = 64});
  rig.fill_source();
  std::vector<OpId> puts;
  for (int i = 0; i < 12; ++i) puts.push_back(rig.put());  // 3 MiB of keys
  for (const OpId put : puts) EXPECT_EQ(rig.finish(put).code, Code::kOk);
}

TEST(Core, ALongPutTravelsInPartsThatNeedNotEndWithALayer) {
  CoreRig rig({.slab_bytes = 384 << 10});  // two slabs a message, three keys a layer
  rig.fill_source();
  EXPECT_EQ(rig.finish(rig.put()).failed_keys, 0U);
  EXPECT_EQ(rig.depot->seen[Opcode::kPutData], 6U);
  EXPECT_EQ(rig.depot->bad_slabs, 0U);
  rig.poison();
  EXPECT_EQ(rig.finish(rig.get()).failed_keys, 0U);
  for (std::size_t layer = 0; layer < 4; ++layer) EXPECT_TRUE(rig.landed(layer, 0) && rig.landed(layer, 2));
}

TEST(Core, ThePutThatCameFirstIsSentFirst) {
  CoreRig rig({.slab_bytes = 384 << 10});
  rig.fill_source();
  const OpId first = rig.put();
  const OpId second = rig.put();
  rig.finish(first);
  rig.finish(second);
  std::vector<std::uint64_t> order(6, first);
  order.insert(order.end(), 6, second);
  EXPECT_EQ(rig.depot->put_data_of, order);
}

TEST(Core, ALongPutLeavesTurnsToOthers) {
  CoreRig rig({.layers = 2, .slab_bytes = 1 << 20});  // a slab a message, four of them a turn
  rig.fill_source();
  const OpId first = rig.put();
  const OpId second = rig.put();
  rig.finish(first);
  rig.finish(second);
  std::vector<std::uint64_t> order(4, first);
  order.insert(order.end(), 4, second);
  order.insert(order.end(), 2, first);
  order.insert(order.end(), 2, second);
  EXPECT_EQ(rig.depot->put_data_of, order);
}

TEST(Core, PartsWaitForTheirLayers) {
  CoreRig rig({.slab_bytes = 384 << 10});
  rig.fill_source();
  const OpId op = rig.put(false);
  rig.put_layer(op, 0);
  rig.loop.settle();
  EXPECT_EQ(rig.depot->seen[Opcode::kPutData], 2U) << "two slabs and one";
  for (const int layer : {2, 1, 3}) rig.put_layer(op, static_cast<std::uint16_t>(layer));
  EXPECT_EQ(rig.finish(op).failed_keys, 0U);
  EXPECT_EQ(rig.depot->bad_slabs, 0U);
  EXPECT_EQ(rig.depot->records_put, 3U);
}

TEST(Core, ADepotOfBeforePartsGetsWholeLayers) {
  CoreRig rig({.connect = false, .slab_bytes = 96 << 10});
  rig.depot->script.takes_parts = false;
  rig.start_core();
  ASSERT_TRUE(rig.wait_connected());
  rig.fill_source();
  EXPECT_EQ(rig.finish(rig.put()).failed_keys, 0U);
  EXPECT_EQ(rig.depot->seen[Opcode::kPutData], 1U);
  EXPECT_EQ(rig.depot->bad_slabs, 0U);
}

TEST(Core, LayersReleasedInAnyOrderAreSentInLayerOrder) {
  CoreRig rig;
  rig.fill_source();
  const OpId op = rig.put(false);
  rig.put_layer(op, 2);
  rig.put_layer(op, 1);
  rig.loop.settle();
  EXPECT_EQ(rig.depot->seen[Opcode::kPutData], 0U);
  rig.put_layer(op, 0);
  rig.loop.settle();
  EXPECT_EQ(rig.depot->seen[Opcode::kPutData], 1U);
  EXPECT_FALSE(rig.ended(op));
  rig.put_layer(op, 3);
  EXPECT_EQ(rig.finish(op).code, Code::kOk);
  EXPECT_EQ(rig.depot->bad_slabs, 0U);
}

TEST(Core, RemoveSaysHowManyWereThere) {
  CoreRig rig;
  rig.store_record(0);
  rig.store_record(2);
  EXPECT_EQ(rig.finish(rig.remove()).removed, 2U);
  EXPECT_EQ(rig.finish(rig.match()).prefix_blocks, 0U);
}

TEST(Core, StatsBringsTheDepotsText) {
  CoreRig rig;
  const OpId op = rig.stats();
  EXPECT_EQ(rig.finish(op).code, Code::kOk);
  EXPECT_EQ(*rig.ops->take_text(op), R"({"fake": 1})");
}

TEST(Core, ARequestThatTheDepotRefusesEndsWithItsCode) {
  CoreRig rig;
  rig.store_records();
  rig.depot->script.get_status = Code::kBusy;
  EXPECT_EQ(rig.finish(rig.get()).code, Code::kBusy);
  rig.depot->script.put_status = Code::kNoSpace;
  EXPECT_EQ(rig.finish(rig.put()).code, Code::kNoSpace);
  rig.depot->script.get_status = Code::kOk;
  EXPECT_EQ(rig.finish(rig.get()).code, Code::kOk) << "the connection is as good as before";
}

TEST(Core, APutThatIsRefusedWhileItsBodyIsOnTheWayKeepsTheFraming) {
  CoreRig rig({.slab_bytes = 1 << 20});  // 3 MiB a layer: far more than a socket holds
  rig.fill_source();
  rig.depot->script.put_status = Code::kBusy;
  const OpId op = rig.put();
  EXPECT_EQ(rig.finish(op).code, Code::kBusy);
  rig.poison();  // the source is the caller's again
  rig.depot->script.put_status = Code::kOk;
  rig.store_records();
  EXPECT_EQ(rig.finish(rig.get()).code, Code::kOk);
  EXPECT_EQ(rig.depot->connections, 2U);
}

TEST(Core, ManyOperationsAtOnceAllEnd) {
  CoreRig rig({.ops_max = 64, .slab_bytes = 65536});
  rig.store_records();
  std::vector<OpId> ids;
  for (int i = 0; i < 60; ++i) ids.push_back(i % 3 == 0 ? rig.match() : rig.get());
  for (const OpId id : ids) EXPECT_EQ(rig.finish(id).code, Code::kOk);
  EXPECT_TRUE(rig.landed(3, 2));
}

TEST(Core, MoreRequestsThanTheDepotsCreditsAreBusy) {
  CoreRig rig({.connect = false});
  rig.depot->script.credits = 2;
  rig.start_core();
  ASSERT_TRUE(rig.wait_connected());
  rig.loop.settle();
  rig.depot->script.hung = true;
  const OpId a = rig.get();
  const OpId b = rig.get();
  const OpId c = rig.get();
  EXPECT_EQ(rig.finish(c).code, Code::kBusy);
  EXPECT_FALSE(rig.ended(a));
  EXPECT_FALSE(rig.ended(b));
}

TEST(Core, ARefusedNamespaceEndsOperationsWithTheDepotsReason) {
  CoreRig rig({.connect = false});
  rig.depot->script.open_status = Code::kInvalid;
  rig.depot->script.reason = "a record is larger\nthan a quarter of the pool";
  rig.start_core();
  ASSERT_TRUE(rig.wait_connected());
  for (const Completion& done : {rig.finish(rig.get()), rig.finish(rig.match())}) {
    EXPECT_EQ(done.code, Code::kInvalid);
    EXPECT_STREQ(done.why, "a record is larger?than a quarter of the pool");
  }
  EXPECT_EQ(rig.state.refusal(), "invalid: a record is larger?than a quarter of the pool");
}

// A depot that recovers has not read yet what it holds of a namespace: what is asked for is not there, until it is.
TEST(Core, ANamespaceThatTheDepotCannotOpenYetIsAskedForAgain) {
  CoreRig rig({.connect = false});
  rig.depot->script.open_status = Code::kUnavailable;
  rig.depot->script.reason = "the depot is recovering";
  rig.store_records();
  rig.start_core();
  ASSERT_TRUE(rig.wait_connected());
  for (const Completion& done : {rig.finish(rig.get()), rig.finish(rig.match()), rig.finish(rig.put())}) {
    EXPECT_EQ(done.code, Code::kUnavailable);
    EXPECT_STREQ(done.why, "the depot is recovering");
  }
  EXPECT_FALSE(rig.state.breaker_open());
  const std::uint64_t before = rig.depot->seen[wire::Opcode::kOpen];
  rig.loop.run_for(std::chrono::seconds(10));
  const std::uint64_t asked = rig.depot->seen[wire::Opcode::kOpen] - before;
  EXPECT_GT(asked, 2 * 9U) << "by itself, on both connections";
  EXPECT_LT(asked, 2 * 24U) << "at most about once a second in the end";
  rig.depot->script.open_status = Code::kOk;
  rig.loop.run_for(std::chrono::seconds(2));
  const std::uint64_t opened = rig.depot->seen[wire::Opcode::kOpen];
  rig.loop.run_for(std::chrono::seconds(10));
  EXPECT_EQ(rig.depot->seen[wire::Opcode::kOpen], opened) << "it is open";
  EXPECT_EQ(rig.finish(rig.get()).failed_keys, 0U);
  EXPECT_EQ(rig.depot->connections, 2U);
}

TEST(Core, AnOperationNeedNotWaitForTheNextAttemptToOpenItsNamespace) {
  CoreRig rig({.connect = false});
  rig.depot->script.open_status = Code::kUnavailable;
  rig.store_records();
  rig.start_core();
  ASSERT_TRUE(rig.wait_connected());
  rig.loop.run_for(std::chrono::seconds(10));
  rig.depot->script.open_status = Code::kOk;
  const Time before = rig.loop.now();
  const Completion found = rig.finish(rig.match());
  EXPECT_EQ(found.code, Code::kOk);
  EXPECT_EQ(found.prefix_blocks, rig.options.keys);
  EXPECT_EQ(rig.finish(rig.get()).failed_keys, 0U);
  EXPECT_LT(rig.loop.now() - before, Millis(100));
}

TEST(Core, ARefusedOperationSaysWhyInAtMostALine) {
  CoreRig rig;
  rig.store_records();
  EXPECT_STREQ(rig.finish(rig.get()).why, "");
  EXPECT_EQ(rig.state.refusal(), "");
  rig.depot->script.get_status = Code::kBusy;
  rig.depot->script.reason = std::string(1000, 'x');
  const OpId op = rig.get();
  const Completion done = rig.finish(op);
  EXPECT_EQ(done.code, Code::kBusy);
  EXPECT_EQ(std::string_view(done.why), std::string(wire::kNameBytesMax, 'x'));
  EXPECT_EQ(rig.ops->try_get(op, 0)->why, done.why) << "a layer that it did not reach";
  rig.release(op);
}

TEST(Core, WhatEndsHereSaysWhy) {
  CoreRig rig;
  rig.depot->script.hung = true;
  const OpId cancelled = rig.get();
  rig.cancel(cancelled);
  EXPECT_STREQ(rig.finish(cancelled).why, "cancelled by the caller");
  EXPECT_STREQ(rig.finish(rig.get({.total = Millis(10), .progress = {}})).why, "the operation's deadline has passed");
  EXPECT_EQ(rig.state.refusal(), "") << "the depot has refused nothing";
}

TEST(Core, AClosedNamespaceIsGivenBackWhenItsLastOperationHasEnded) {
  CoreRig rig;
  rig.depot->script.hung = true;
  const OpId op = rig.get();
  rig.loop.settle();
  ASSERT_TRUE(*rig.namespaces.close(rig.ns));
  rig.core->close_namespace(rig.ns);
  rig.loop.settle();
  rig.depot->script.hung = false;
  EXPECT_TRUE(rig.depot->closed.empty()) << "an operation names it";
  rig.cancel(op);
  rig.loop.settle();
  EXPECT_EQ(rig.depot->closed.size(), 2U) << "on both connections";
}

TEST(Core, ANamespaceThatIsClosedBeforeTheDepotAnswersIsGivenBackThen) {
  CoreRig rig;
  Namespace other = rig.ns_value();
  other.fingerprint = "other weights";
  const NamespaceId id = *rig.namespaces.add(other);
  rig.core->open_namespaces();
  ASSERT_TRUE(*rig.namespaces.close(id));
  rig.core->close_namespace(id);
  rig.loop.settle();
  EXPECT_EQ(rig.depot->closed.size(), 2U);
  rig.store_records();
  EXPECT_EQ(rig.finish(rig.get()).failed_keys, 0U) << "the other one is open";
}

TEST(Core, AnOperationOnANamespaceClosedMeanwhileIsInvalid) {
  CoreRig rig;
  rig.depot->drop_connections();
  rig.loop.settle();
  const OpId op = rig.match();
  ASSERT_TRUE(*rig.namespaces.close(rig.ns));
  ASSERT_TRUE(rig.wait_connected());
  const Completion done = rig.finish(op);
  EXPECT_TRUE(done.code == Code::kInvalid || done.code == Code::kUnavailable) << code_name(done.code);
  EXPECT_EQ(rig.depot->seen[wire::Opcode::kMatch], 0U);
}

TEST(Core, OperationsOnANewNamespaceWaitForItsHandle) {
  CoreRig rig;
  Namespace other = rig.ns_value();
  other.fingerprint = "other weights";
  rig.ns = *rig.namespaces.add(other);
  const OpId op = rig.match();  // before the depot has heard of it
  rig.core->open_namespaces();
  EXPECT_EQ(rig.finish(op).code, Code::kOk);
}

TEST(Core, StopEndsWhatIsInFlight) {
  CoreRig rig;
  rig.depot->script.hung = true;
  const OpId op = rig.get();
  const OpId late = rig.match();
  rig.loop.settle();
  rig.stop_core();
  EXPECT_EQ(rig.ops->try_get(op, kWholeOp)->code, Code::kCancelled);
  EXPECT_EQ(rig.ops->try_get(late, kWholeOp)->code, Code::kCancelled);
}

TEST(Core, TheRegionIsFreeAsSoonAsItsOperationsHaveEnded) {
  CoreRig rig;
  rig.store_records();
  const OpId op = rig.get();
  EXPECT_EQ(rig.regions.remove(rig.region).error().code, Code::kBusy);
  rig.finish(op);
  EXPECT_TRUE(rig.regions.remove(rig.region).has_value());
}

}  // namespace
}  // namespace kvd::client
