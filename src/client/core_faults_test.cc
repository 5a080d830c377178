// Operations against a depot that is slow, hung, gone or wrong, in virtual time.
#include <algorithm>

#include <gtest/gtest.h>

#include "client/core.h"
#include "client/testing/core_rig.h"

namespace kvd::client {
namespace {

using wire::Opcode;
using Then = Proxy::Then;

constexpr std::size_t kControl = 0;  // the first two links of a rig
constexpr std::size_t kData = 1;

// Lets `bytes` more come down the data link, then nothing.
void hold_after(CoreRig& rig, std::uint64_t bytes) {
  rig.proxy->limit_down(kData, {.bytes = rig.proxy->forwarded_down(kData) + bytes, .then = Then::kHold});
}

void hold_control(CoreRig& rig) {
  rig.proxy->limit_down(kControl, {.bytes = rig.proxy->forwarded_down(kControl), .then = Then::kHold});
}

void let_go(CoreRig& rig) { rig.proxy->limit_down(kData, {}); }

TEST(CoreFaults, NoByteLandsAfterACancelInMidMessage) {
  CoreRig rig({.slab_bytes = 65536});
  rig.store_records();
  hold_after(rig, 100'000);  // in the middle of layer 0, key 1
  const OpId op = rig.get();
  rig.loop.settle();
  ASSERT_TRUE(rig.landed(0, 0));
  rig.cancel(op);
  EXPECT_EQ(rig.ops->try_get(op, kWholeOp)->code, Code::kCancelled);
  rig.poison();
  let_go(rig);
  rig.loop.settle();
  for (std::size_t layer = 0; layer < 4; ++layer) {
    for (std::size_t key = 0; key < 3; ++key) EXPECT_TRUE(rig.poisoned(layer, key));
  }
  EXPECT_EQ(rig.depot->seen[Opcode::kCancel], 1U);
  EXPECT_EQ(rig.finish(rig.get()).code, Code::kOk);
  EXPECT_TRUE(rig.landed(3, 2));
  EXPECT_EQ(rig.depot->connections, 2U) << "the connection has survived";
}

// Nothing comes behind a message that says it is the last: the depot's credit is free again.
TEST(CoreFaults, ACancelInTheLastMessageCostsNoCredit) {
  CoreRig rig({.connect = false, .slab_bytes = 65536});
  rig.depot->script.credits = 2;
  rig.depot->script.layers_per_message = 4;
  rig.start_core();
  ASSERT_TRUE(rig.wait_connected());
  rig.store_records();
  for (int i = 0; i < 4; ++i) {
    hold_after(rig, 100'000);
    const OpId op = rig.get();
    rig.loop.settle();
    rig.cancel(op);
    rig.release(op);
    let_go(rig);
    rig.loop.settle();
  }
  EXPECT_EQ(rig.depot->connections, 2U) << "the connection has survived";
  EXPECT_EQ(rig.finish(rig.get()).code, Code::kOk);
}

TEST(CoreFaults, ACancelledGetBehindAnotherLandsNothing) {
  CoreRig rig({.slab_bytes = 65536});
  rig.store_records();
  hold_after(rig, 100'000);
  const OpId first = rig.get();
  const OpId second = rig.get();
  rig.loop.settle();
  rig.cancel(second);
  let_go(rig);
  EXPECT_EQ(rig.finish(first).code, Code::kOk);
  rig.poison();
  rig.loop.settle();
  EXPECT_TRUE(rig.poisoned(3, 2));
}

TEST(CoreFaults, ACancelledPutReadsItsSourceNoMore) {
  CoreRig rig({.slab_bytes = 4 << 20});  // a message, and more than a socket holds
  rig.fill_source();
  rig.proxy->limit_up(kData, {.bytes = rig.proxy->forwarded_up(kData) + 500'000, .then = Then::kHold});
  const OpId op = rig.put();
  rig.loop.settle();
  rig.cancel(op);
  rig.poison();
  rig.proxy->limit_up(kData, {});
  rig.loop.settle();
  EXPECT_EQ(rig.depot->records_put, 0U);
  EXPECT_EQ(rig.depot->seen[Opcode::kCancel], 1U);
  // The message was completed with zeros; had its source been read on, the poison would be there.
  const auto tail = Bytes(rig.depot->last_put_data).last(std::size_t{1} << 20);
  EXPECT_TRUE(std::ranges::all_of(tail, [](std::byte byte) { return byte == std::byte{}; }));
  rig.fill_source();
  EXPECT_EQ(rig.finish(rig.put()).code, Code::kOk) << "framing goes on";
  EXPECT_EQ(rig.depot->records_put, 3U);
  EXPECT_EQ(rig.depot->connections, 2U);
}

TEST(CoreFaults, BytesThatWereNeverSentAreNotCountedAsStored) {
  CoreRig rig({.slab_bytes = 1 << 20});
  rig.fill_source();
  rig.proxy->limit_up(kData, {.bytes = rig.proxy->forwarded_up(kData) + 500'000, .then = Then::kCut});
  EXPECT_EQ(rig.finish(rig.put()).code, Code::kUnavailable);
  EXPECT_EQ(rig.state.bytes_stored.value(), 0U) << "its first message of 1 MiB was cut";
  ASSERT_TRUE(rig.wait_connected());
  EXPECT_EQ(rig.finish(rig.put()).code, Code::kOk);
  EXPECT_EQ(rig.state.bytes_stored.value(), std::uint64_t{12} << 20);
}

TEST(CoreFaults, ACancelForAnEarlierOperationOfTheSlotDoesNothing) {
  CoreRig rig({.ops_max = 1});
  rig.store_records();
  const OpId old = rig.get();
  rig.finish(old);
  rig.release(old);
  const OpId op = rig.get();
  rig.ops->find(op)->cancel_id = old;
  rig.core->submit(*rig.ops->find(op), Op::kCancel);
  EXPECT_EQ(rig.finish(op).code, Code::kOk);
}

TEST(CoreFaults, TheTotalDeadlineEndsAnOperationAndItsLateBytesLandNowhere) {
  CoreRig rig({.slab_bytes = 65536});
  rig.store_records();
  hold_after(rig, 100'000);
  const Time start = rig.loop.now();
  const OpId op = rig.get({.total = Millis(250), .progress = {}});
  EXPECT_EQ(rig.finish(op).code, Code::kTimeout);
  EXPECT_EQ(rig.loop.now() - start, Millis(250));
  rig.poison();
  let_go(rig);
  rig.loop.settle();
  EXPECT_TRUE(rig.poisoned(0, 1));
  EXPECT_TRUE(rig.poisoned(3, 2));
  EXPECT_EQ(rig.state.timeouts.value(), 1U);
}

TEST(CoreFaults, ProgressKeepsAnOperationAlive) {
  CoreRig rig({.slab_bytes = 65536});
  rig.store_records();
  hold_after(rig, 10'000);
  const Time start = rig.loop.now();
  const OpId op = rig.get({.total = {}, .progress = Millis(100)});
  for (int i = 0; i < 20; ++i) {
    rig.loop.run_for(Millis(80));
    hold_after(rig, 10'000);
  }
  EXPECT_FALSE(rig.ended(op));
  hold_control(rig);
  EXPECT_EQ(rig.finish(op).code, Code::kTimeout);
  EXPECT_EQ(rig.loop.now() - start, Millis(20 * 80 + 100));
}

TEST(CoreFaults, ADepotThatSaysItIsThereIsWaitedForWhileItsDriveStandsStill) {
  CoreRig rig({.slab_bytes = 65536});
  rig.store_records();
  rig.loop.run_for(std::chrono::seconds(10));  // what moved long ago is no reason not to ask
  hold_after(rig, 0);
  const OpId op = rig.get({.total = {}, .progress = Millis(100)});
  rig.loop.run_for(Millis(900));
  EXPECT_FALSE(rig.ended(op));
  EXPECT_EQ(rig.depot->seen[Opcode::kPing], 18U) << "one every 50 ms";
  let_go(rig);
  EXPECT_EQ(rig.finish(op).code, Code::kOk);
  EXPECT_FALSE(rig.state.breaker_open());
  const std::uint64_t asked = rig.depot->seen[Opcode::kPing];
  rig.loop.run_for(Millis(500));
  EXPECT_EQ(rig.depot->seen[Opcode::kPing], asked) << "nothing is owed";
}

TEST(CoreFaults, APutThatWaitsForItsAnswerAsksTheDepotToo) {
  CoreRig rig;
  rig.fill_source();
  rig.loop.run_for(std::chrono::seconds(10));
  hold_after(rig, 0);
  const OpId op = rig.put(true, {.total = {}, .progress = Millis(100)});
  rig.loop.run_for(Millis(900));
  EXPECT_FALSE(rig.ended(op));
  let_go(rig);
  EXPECT_EQ(rig.finish(op).code, Code::kOk);
}

// Also when the client itself goes on sending. Afterwards the connection is made anew: it may be what hangs.
TEST(CoreFaults, ItsWordCountsForASecondWithoutAByte) {
  CoreRig rig({.slab_bytes = 65536});
  rig.store_records();
  hold_after(rig, 10'000);
  const Time start = rig.loop.now();
  const OpId op = rig.get({.total = {}, .progress = Millis(100)});
  rig.loop.run_for(Millis(900));
  const OpId later = rig.get({.total = {}, .progress = Millis(100)});
  EXPECT_EQ(rig.finish(op).code, Code::kTimeout);
  EXPECT_EQ(rig.loop.now() - start, Millis(1100));
  EXPECT_TRUE(rig.state.breaker_open());
  EXPECT_EQ(rig.finish(later).code, Code::kUnavailable);
  ASSERT_TRUE(rig.wait_connected());
  EXPECT_EQ(rig.depot->connections, 3U);
  EXPECT_TRUE(rig.state.breaker_open()) << "a drive that hangs is not healed by a greeting";
  EXPECT_EQ(rig.state.breaker_opened.value(), 1U);
  rig.loop.run_for(Millis(1001));
  EXPECT_FALSE(rig.state.breaker_open());
  EXPECT_EQ(rig.finish(rig.get()).code, Code::kOk);
}

TEST(CoreFaults, APutsBodiesRenewTheWordOfThoseThatWaitBesideIt) {
  CoreRig rig;
  rig.store_records();
  rig.fill_source();
  hold_after(rig, 0);
  const OpId load = rig.get({.total = {}, .progress = Millis(100)});
  const OpId store = rig.put(false);
  for (std::uint16_t layer = 0; layer < 4; ++layer) {
    rig.loop.run_for(Millis(400));
    rig.put_layer(store, layer);
  }
  rig.loop.run_for(Millis(900));
  EXPECT_FALSE(rig.ended(load)) << "2.5 s after it was asked for, and 0.9 s behind the last body";
  EXPECT_EQ(rig.finish(load).code, Code::kTimeout);
}

TEST(CoreFaults, ACallersOwnDelayCostsNobodyTheConnection) {
  CoreRig rig;
  rig.store_records();
  rig.fill_source();
  const OpId slow = rig.put(false, {.total = std::chrono::seconds(5), .progress = Millis(100)});
  rig.put_layer(slow, 0);
  rig.loop.run_for(Millis(4930));
  hold_after(rig, 0);
  const OpId load = rig.get({.total = {}, .progress = Millis(100)});
  EXPECT_EQ(rig.finish(slow).code, Code::kTimeout);
  rig.loop.run_for(Millis(50));
  EXPECT_FALSE(rig.ended(load));
  let_go(rig);
  EXPECT_EQ(rig.finish(load).code, Code::kOk);
  EXPECT_EQ(rig.depot->connections, 2U);
}

TEST(CoreFaults, ItsWordDoesNotExcuseALoadThatEndsWithoutAByte) {
  CoreRig rig({.slab_bytes = 65536});
  rig.store_records();
  hold_after(rig, 10'000);
  const Time start = rig.loop.now();
  EXPECT_EQ(rig.finish(rig.get({.total = Millis(300), .progress = Millis(100)})).code, Code::kTimeout);
  EXPECT_EQ(rig.loop.now() - start, Millis(300));
  EXPECT_TRUE(rig.state.breaker_open());
  EXPECT_EQ(rig.depot->connections, 2U);
}

TEST(CoreFaults, ADepotIsAskedAgainAlthoughAConnectionWasLostWithTheQuestion) {
  CoreRig rig({.slab_bytes = 65536});
  rig.store_records();
  hold_after(rig, 10'000);
  hold_control(rig);
  const OpId op = rig.get({.total = {}, .progress = Millis(100)});
  rig.loop.run_for(Millis(60));
  ASSERT_EQ(rig.depot->seen[Opcode::kPing], 1U);
  rig.proxy->limit_down(kControl, {.bytes = 0, .then = Then::kCut});
  rig.loop.run_for(Millis(500));
  EXPECT_FALSE(rig.ended(op));
  EXPECT_GT(rig.depot->seen[Opcode::kPing], 5U);
  let_go(rig);
  EXPECT_EQ(rig.finish(op).code, Code::kOk);
}

TEST(CoreFaults, AHungDepotIsGivenUpAfterTheTimeWithoutProgressAlthoughItWasAsked) {
  CoreRig rig({.slab_bytes = 65536});
  rig.store_records();
  hold_after(rig, 10'000);
  hold_control(rig);
  const Time start = rig.loop.now();
  EXPECT_EQ(rig.finish(rig.get({.total = {}, .progress = Millis(100)})).code, Code::kTimeout);
  EXPECT_EQ(rig.loop.now() - start, Millis(100));
  EXPECT_EQ(rig.depot->seen[Opcode::kPing], 1U);
}

// As a virtual machine does: the client's timers are due before the depot has had its turn.
void stand_still(CoreRig& rig, Duration duration) { rig.clock.advance_to(rig.loop.now() + duration); }

TEST(CoreFaults, AMachineThatStandsStillCostsNoOperation) {
  CoreRig rig({.slab_bytes = 65536});
  rig.store_records();
  for (const bool body : {false, true}) {
    const Deadline deadline{.total = Millis(1000), .progress = Millis(100)};
    hold_after(rig, 0);
    hold_control(rig);
    const OpId op = body ? rig.get(deadline) : rig.match(deadline);
    rig.loop.settle();
    stand_still(rig, Millis(150));
    rig.loop.settle();
    EXPECT_FALSE(rig.ended(op)) << body;
    let_go(rig);
    rig.proxy->limit_down(kControl, {});
    EXPECT_EQ(rig.finish(op).code, Code::kOk) << body;
  }
  EXPECT_EQ(rig.state.breaker_opened.value(), 0U);
}

TEST(CoreFaults, ADepotThatDoesNotGoOnWithItsMachineIsGivenUp) {
  CoreRig rig;
  rig.store_records();
  hold_control(rig);
  const Time start = rig.loop.now();
  const OpId op = rig.match({.total = Millis(1000), .progress = Millis(100)});
  rig.loop.settle();
  stand_still(rig, Millis(150));
  EXPECT_EQ(rig.finish(op).code, Code::kTimeout);
  EXPECT_EQ(rig.loop.now() - start, Millis(200));
  EXPECT_TRUE(rig.state.breaker_open());
}

TEST(CoreFaults, ItConnectsAtOnceWhenSomebodyElseHasSeenTheDepot) {
  CoreRig rig;
  rig.depot->kill();
  rig.loop.run_for(std::chrono::seconds(10));  // the back-off is at its longest
  rig.depot->restart();
  rig.loop.settle();
  ASSERT_FALSE(rig.state.connected());
  rig.core->hurry();
  rig.loop.settle();
  EXPECT_TRUE(rig.state.connected());
  rig.core->hurry();
  rig.loop.settle();
  EXPECT_EQ(rig.state.reconnects.value(), 1U) << "it costs no connection";
}

TEST(CoreFaults, AMatchPromisesNothingWhileBodiesHaveNoConnection) {
  CoreRig rig;
  rig.store_records();
  rig.proxy->limit_down(kData, {.bytes = 0, .then = Then::kCut});
  rig.finish(rig.get());
  EXPECT_EQ(rig.finish(rig.match()).code, Code::kUnavailable);
  ASSERT_TRUE(rig.wait_connected());
  EXPECT_EQ(rig.finish(rig.match()).prefix_blocks, 3U);
}

TEST(CoreFaults, FiveRequestsToAHungDepotTogetherPayOneDeadline) {
  CoreRig rig;
  rig.store_records();
  rig.depot->script.hung = true;
  const Time start = rig.loop.now();
  int sent = 0;
  for (int i = 0; i < 5; ++i) {
    if (!rig.state.connected() || rig.state.breaker_open()) continue;  // what Client::match_prefix looks at
    ++sent;
    EXPECT_EQ(rig.finish(rig.match({.total = {}, .progress = Millis(100)})).code, Code::kTimeout);
  }
  EXPECT_EQ(sent, 1);
  EXPECT_EQ(rig.loop.now() - start, Millis(100));
  EXPECT_EQ(rig.state.breaker_opened.value(), 1U);
}

TEST(CoreFaults, RequestsThatKeepComingDoNotProlongTheOneThatAHungDepotOwes) {
  CoreRig rig;
  rig.store_records();
  rig.loop.run_for(std::chrono::seconds(1));
  hold_control(rig);
  const Deadline deadline{.total = Millis(1000), .progress = Millis(100)};
  const Time start = rig.loop.now();
  const OpId first = rig.match(deadline);
  for (int i = 0; i < 10 && !rig.ended(first); ++i) {
    rig.loop.run_for(Millis(50));
    static_cast<void>(rig.match(deadline));
  }
  EXPECT_EQ(rig.finish(first).code, Code::kTimeout);
  EXPECT_EQ(rig.loop.now() - start, Millis(100));
  EXPECT_TRUE(rig.state.breaker_open());
}

TEST(CoreFaults, AnImpatientRequestToASlowDepotDoesNotShutTheOthersOut) {
  CoreRig rig;
  rig.store_records();
  hold_control(rig);
  EXPECT_EQ(rig.finish(rig.match({.total = Millis(25), .progress = Millis(100)})).code, Code::kTimeout);
  EXPECT_FALSE(rig.state.breaker_open()) << "25 ms without an answer";
  rig.proxy->limit_down(kControl, {});
  EXPECT_EQ(rig.finish(rig.match({.total = Millis(25), .progress = Millis(100)})).code, Code::kOk);
  EXPECT_EQ(rig.state.breaker_opened.value(), 0U);
}

TEST(CoreFaults, ALoadThatMovesButIsTooSlowDoesNotShutTheOthersOut) {
  CoreRig rig({.slab_bytes = 65536});
  rig.store_records();
  hold_after(rig, 10'000);
  hold_control(rig);
  const OpId op = rig.get({.total = Millis(500), .progress = Millis(100)});
  for (int i = 0; i < 6; ++i) {
    rig.loop.run_for(Millis(80));
    hold_after(rig, 10'000);
  }
  EXPECT_EQ(rig.finish(op).code, Code::kTimeout);
  EXPECT_FALSE(rig.state.breaker_open());
}

TEST(CoreFaults, WhatAnotherClientFoundOpensTheBreakerUntilAProbeIsAnswered) {
  CoreRig rig({.breaker_failures = 3});
  rig.core->suspect();
  EXPECT_TRUE(rig.state.breaker_open());
  rig.loop.run_for(Millis(1001));
  EXPECT_EQ(rig.depot->seen[Opcode::kPing], 1U);
  EXPECT_FALSE(rig.state.breaker_open());
}

TEST(CoreFaults, TheBreakerClosesWhenAProbeIsAnswered) {
  CoreRig rig;
  rig.store_records();
  rig.depot->script.hung = true;
  rig.finish(rig.match({.total = {}, .progress = Millis(100)}));
  ASSERT_TRUE(rig.state.breaker_open());
  rig.loop.run_for(Millis(900));
  EXPECT_EQ(rig.depot->seen[Opcode::kPing], 0U);
  rig.depot->script.hung = false;
  rig.loop.run_for(Millis(101));
  EXPECT_EQ(rig.depot->seen[Opcode::kPing], 1U);
  EXPECT_FALSE(rig.state.breaker_open());
  EXPECT_EQ(rig.finish(rig.match()).prefix_blocks, 3U);
}

TEST(CoreFaults, ALateAnswerToAProbeClosesTheBreakerAtOnce) {
  CoreRig rig;
  hold_control(rig);
  rig.finish(rig.match({.total = {}, .progress = Millis(100)}));
  rig.loop.run_for(Millis(2500));  // the probe at 1 s was not answered by 2 s
  ASSERT_TRUE(rig.state.breaker_open());
  rig.proxy->limit_down(kControl, {});
  rig.loop.settle();
  EXPECT_FALSE(rig.state.breaker_open());
}

TEST(CoreFaults, ConnectionsThatStayMuteAreMadeAnew) {
  CoreRig rig;
  hold_control(rig);
  hold_after(rig, 0);
  rig.finish(rig.match({.total = {}, .progress = Millis(100)}));
  ASSERT_TRUE(rig.loop.run_until([&] { return rig.proxy->links() >= 4; }, std::chrono::seconds(10)));
  ASSERT_TRUE(rig.wait_connected());
  EXPECT_FALSE(rig.state.breaker_open());
  EXPECT_EQ(rig.finish(rig.match()).code, Code::kOk);
}

TEST(CoreFaults, ACallersOwnDelayIsNotTheDepotsFault) {
  CoreRig rig;
  rig.fill_source();
  const OpId op = rig.put(false, {.total = std::chrono::seconds(5), .progress = Millis(100)});
  rig.put_layer(op, 0);
  rig.loop.run_for(std::chrono::seconds(4));
  EXPECT_FALSE(rig.ended(op)) << "progress rests while layers are not released";
  EXPECT_EQ(rig.depot->seen[Opcode::kPing], 0U);
  EXPECT_EQ(rig.finish(op).code, Code::kTimeout);
  EXPECT_FALSE(rig.state.breaker_open());
}

TEST(CoreFaults, ALostConnectionEndsItsOperationsAtOnceAndComesBackByItself) {
  CoreRig rig;
  rig.store_records();
  rig.depot->script.hung = true;
  const OpId op = rig.get();
  rig.loop.settle();
  rig.depot->script.hung = false;
  const Time start = rig.loop.now();
  rig.depot->drop_connections();
  EXPECT_EQ(rig.finish(op).code, Code::kUnavailable);
  EXPECT_EQ(rig.loop.now(), start);
  EXPECT_FALSE(rig.state.connected());
  EXPECT_EQ(rig.state.breaker_opened.value(), 1U) << "a lost connection is a failure";
  ASSERT_TRUE(rig.wait_connected());
  EXPECT_LE(rig.loop.now() - start, Millis(10));
  EXPECT_FALSE(rig.state.breaker_open());
  EXPECT_EQ(rig.finish(rig.get()).failed_keys, 0U) << "the namespace is open again";
  EXPECT_EQ(rig.state.reconnects.value(), 1U);
}

TEST(CoreFaults, ALossOfTheDataConnectionAloneIsAReconnectToo) {
  CoreRig rig;
  EXPECT_EQ(rig.state.reconnects.value(), 0U);
  rig.proxy->limit_down(kData, {.bytes = rig.proxy->forwarded_down(kData) + 1, .then = Then::kCut});
  rig.store_records();
  EXPECT_EQ(rig.finish(rig.get()).code, Code::kUnavailable);
  ASSERT_TRUE(rig.wait_connected());
  EXPECT_EQ(rig.depot->connections, 3U) << "the control connection has stayed";
  EXPECT_EQ(rig.state.reconnects.value(), 1U);
}

TEST(CoreFaults, BothConnectionsAreBackAsSoonAsOneIs) {
  CoreRig rig;
  rig.depot->kill();
  rig.loop.run_for(std::chrono::seconds(30));  // the attempts of both are far apart by now
  rig.depot->restart();
  ASSERT_TRUE(rig.loop.run_until([&] { return !rig.state.breaker_open(); }, std::chrono::seconds(2)));
  const Time one = rig.loop.now();
  ASSERT_TRUE(rig.wait_connected());
  EXPECT_LE(rig.loop.now() - one, Millis(1));
}

TEST(CoreFaults, ADepotThatIsAwayIsAskedAtMostAboutOnceASecond) {
  CoreRig rig;
  rig.depot->kill();  // the proxy hangs up on whoever comes
  rig.loop.run_for(std::chrono::seconds(60));
  EXPECT_GE(rig.proxy->links(), 2U * 60);
  EXPECT_LE(rig.proxy->links(), 2U * 90) << "two channels, back-off of 0.75 to 1 s after a few quick attempts";
  EXPECT_FALSE(rig.state.connected());
  EXPECT_EQ(rig.state.error().code, Code::kUnavailable);
  const OpId op = rig.match();
  EXPECT_EQ(rig.finish(op).code, Code::kUnavailable);
}

TEST(CoreFaults, ADepotThatGreetsNobodyIsGivenUpAndTriedAgain) {
  CoreRig rig({.connect = false});
  rig.depot->script.hung = true;
  rig.start_core();
  rig.loop.run_for(std::chrono::seconds(3));
  EXPECT_FALSE(rig.state.connected());
  EXPECT_EQ(rig.state.error().code, Code::kTimeout);
  rig.depot->script.hung = false;
  EXPECT_TRUE(rig.wait_connected());
}

TEST(CoreFaults, AnotherVersionIsStale) {
  CoreRig rig({.connect = false});
  rig.depot->script.hello_status = Code::kStale;
  rig.start_core();
  rig.loop.run_for(Millis(100));
  EXPECT_FALSE(rig.state.connected());
  EXPECT_EQ(rig.state.error().code, Code::kStale);
  rig.depot->script.hello_status = Code::kOk;
  rig.depot->script.version = 2;
  rig.loop.run_for(Millis(2000));
  EXPECT_EQ(rig.state.error().code, Code::kStale);
}

TEST(CoreFaults, ADepotThatBreaksTheProtocolLosesItsConnection) {
  CoreRig rig;
  rig.store_records();
  rig.depot->script.wrong_layer_order = true;
  EXPECT_EQ(rig.finish(rig.get()).code, Code::kUnavailable);
  rig.depot->script.wrong_layer_order = false;
  ASSERT_TRUE(rig.wait_connected());
  EXPECT_EQ(rig.finish(rig.get()).code, Code::kOk);
}

TEST(CoreFaults, TheLeaseOfAMatchNobodyWaitsForIsGivenBack) {
  CoreRig rig;
  rig.depot->script.lease = 77;
  hold_control(rig);
  const OpId op = rig.match({.total = Millis(50), .progress = {}}, 1000);
  EXPECT_EQ(rig.finish(op).code, Code::kTimeout);
  rig.proxy->limit_down(kControl, {});
  rig.loop.settle();
  EXPECT_EQ(rig.depot->unpinned, std::vector<LeaseId>{77});
}

// Cuts the data connection after every n-th byte of a get and a put, and looks that each ends and the next one works.
class CoreCuts : public testing::TestWithParam<std::uint64_t> {};

TEST_P(CoreCuts, AGetEndsWhereverItsConnectionIsCut) {
  CoreRig rig({.slab_bytes = 512});
  rig.store_records();
  const std::uint64_t before = rig.proxy->forwarded_down(kData);
  rig.proxy->limit_down(kData, {.bytes = before + GetParam(), .then = Then::kCut});
  const Completion done = rig.finish(rig.get());
  EXPECT_EQ(done.code, Code::kUnavailable);
  rig.poison();
  ASSERT_TRUE(rig.wait_connected());
  rig.loop.settle();
  EXPECT_TRUE(rig.poisoned(0, 0));
  EXPECT_EQ(rig.finish(rig.get()).failed_keys, 0U);
  EXPECT_TRUE(rig.landed(3, 2));
}

TEST_P(CoreCuts, APutEndsWhereverItsConnectionIsCut) {
  CoreRig rig({.slab_bytes = 512});
  rig.fill_source();
  const std::uint64_t before = rig.proxy->forwarded_up(kData);
  rig.proxy->limit_up(kData, {.bytes = before + GetParam(), .then = Then::kCut});
  EXPECT_EQ(rig.finish(rig.put()).code, Code::kUnavailable);
  ASSERT_TRUE(rig.wait_connected());
  EXPECT_EQ(rig.finish(rig.put()).code, Code::kOk);
  EXPECT_EQ(rig.depot->records_put, 3U);
  EXPECT_EQ(rig.depot->bad_slabs, 0U);
}

// A get of this rig is 4 x (64 + 1 + 24 + 1536) = 6,500 bytes, a put 64 + 31 and 64 + 100 + 6,144.
INSTANTIATE_TEST_SUITE_P(Every, CoreCuts, testing::Range<std::uint64_t>(0, 6300, 89));

// The same of a put of six messages: 64 + 31 bytes and six times 64 + 20 + 786,432.
class PartCuts : public testing::TestWithParam<std::uint64_t> {};

TEST_P(PartCuts, APutOfManyMessagesEndsAndItsSourceIsFree) {
  CoreRig rig({.slab_bytes = 384 << 10});
  rig.fill_source();
  const std::uint64_t before = rig.proxy->forwarded_up(kData);
  rig.proxy->limit_up(kData, {.bytes = before + GetParam(), .then = Then::kCut});
  const OpId op = rig.put();
  EXPECT_EQ(rig.finish(op).code, Code::kUnavailable);
  rig.poison();
  ASSERT_TRUE(rig.wait_connected());
  rig.loop.settle();
  EXPECT_EQ(rig.depot->records_put, 0U);
  EXPECT_EQ(rig.depot->bad_slabs, 0U) << "what came had not been read from the poison";
  rig.fill_source();
  EXPECT_EQ(rig.finish(rig.put()).code, Code::kOk);
  EXPECT_EQ(rig.depot->records_put, 3U);
}

INSTANTIATE_TEST_SUITE_P(Every, PartCuts, testing::Range<std::uint64_t>(0, 4'719'000, 393'215));

// The same inside the handshake.
class HandshakeCuts : public testing::TestWithParam<std::uint64_t> {};

TEST_P(HandshakeCuts, AreTriedAgain) {
  CoreRig rig({.connect = false});
  rig.proxy->limit_down(kControl, {.bytes = GetParam(), .then = Then::kCut});
  rig.proxy->limit_up(kData, {.bytes = GetParam(), .then = Then::kCut});
  rig.start_core();
  EXPECT_TRUE(rig.wait_connected());
}

INSTANTIATE_TEST_SUITE_P(Every, HandshakeCuts, testing::Range<std::uint64_t>(0, 90, 7));

}  // namespace
}  // namespace kvd::client
