// GETs through shared memory, seen by a client that speaks raw protocol: agreed upon, right bytes, pinned for as long
// as they may be read and no longer, and bounded.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include <gtest/gtest.h>

#include "net/listener.h"
#include "net/shared_memory.h"
#include "node/testing/view_fixture.h"

namespace kvd::node {
namespace {

using net::Received;

class SharedMemoryTest : public ViewTest {
 protected:
  void start(NodeOptions options = test_options(), bool flash = false) {
    options.store.share_pool = true;
    start_with(std::move(options), flash);
  }
};

TEST_F(SharedMemoryTest, TheClientCanReadThePoolAndNothingElse) {
  start();
  const std::size_t bytes = memory->bytes().size();
  EXPECT_EQ(bytes, std::size_t{64} << 20);
  EXPECT_EQ(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0), MAP_FAILED);
  void* const shared = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file.get(), 0);
  EXPECT_EQ(::mprotect(shared, 4096, PROT_READ | PROT_WRITE), -1);
  ::munmap(shared, 4096);
  EXPECT_EQ(::pwrite(file.get(), "x", 1, 0), -1);
  EXPECT_EQ(::ftruncate(file.get(), 0), -1);
  EXPECT_EQ(::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK), -1);
}

TEST_F(SharedMemoryTest, IsForThoseWhoAskOnASocketThatCanCarryIt) {
  NodeOptions options = test_options();
  options.listen = {"tcp://127.0.0.1:0"};
  start(options);
  EXPECT_EQ(rig->connect()->features(), 0U);
  EXPECT_EQ(rig->connect_tcp(wire::kFeatureSharedMemory)->features(), 0U);
  EXPECT_EQ(rig->connect(true, wire::kFeatureSharedMemory | 0xC0)->features(), wire::kFeatureSharedMemory);
}

TEST_F(SharedMemoryTest, CanBeSwitchedOffAndIsOffWhenReadsAreSlowedDown) {
  for (const bool slow : {false, true}) {
    NodeOptions options = test_options();
    options.store.share_pool = true;
    options.shared_memory = slow;
    if (slow) options.shape_read_bytes_per_s = 50'000'000;
    Rig other(options);
    const auto refused = other.connect(true, wire::kFeatureSharedMemory);
    EXPECT_EQ(refused->features(), 0U);
    const std::uint32_t handle = refused->open(records.ns());
    ASSERT_TRUE(other.put_all(records, 0, 1));
    const Received got = refused->call(Records::get(refused->new_id(), handle, 0, 1));
    EXPECT_EQ(got.header.opcode, wire::Opcode::kGetData);
  }
}

TEST_F(SharedMemoryTest, AUnixListenerMakesThePoolOneToShare) {
  NodeOptions options = test_options();
  std::string folder = testing::TempDir() + "kvd_shm_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  options.listen = {"unix://" + folder + "/s"};
  {
    Rig other(options);
    EXPECT_EQ(other.connect(true, wire::kFeatureSharedMemory)->features(), wire::kFeatureSharedMemory);
  }
  NodeOptions without = test_options();
  without.limits.window_bytes = 0;
  EXPECT_EQ(Rig(without).connect(true, wire::kFeatureSharedMemory)->features(), 0U);
  ::unlink((folder + "/s.lock").c_str());
  ::rmdir(folder.c_str());
}

NodeOptions with_port() {
  NodeOptions options = test_options();
  options.listen = {"tcp://127.0.0.1:0"};
  return options;
}

TEST_F(SharedMemoryTest, ALoopbackPortHasASocketBesideItThatCanCarryIt) {
  Rig other(with_port());
  EXPECT_EQ(other.node->addresses().size(), 1U) << "it is not one to tell anybody";
  EXPECT_EQ(other.connect_local(wire::kFeatureSharedMemory)->features(), wire::kFeatureSharedMemory);
  EXPECT_EQ(other.connect_tcp(wire::kFeatureSharedMemory)->features(), 0U);
}

TEST_F(SharedMemoryTest, WithoutItNothingListensBesideAPort) {
  NodeOptions options = with_port();
  options.shared_memory = false;
  EXPECT_EQ(Rig(options).connect_local(0), nullptr);
  options = with_port();
  options.shape_read_bytes_per_s = 50'000'000;
  EXPECT_EQ(Rig(options).connect_local(0), nullptr);
}

TEST_F(SharedMemoryTest, ANameThatSomebodyHasTakenCostsThePortItsSharedMemoryOnly) {
  NodeOptions options = with_port();
  const auto loop = *io::make_real_loop();
  std::unique_ptr<net::Listener> somebody;
  {
    const auto port = *net::Listener::bind(*loop, *net::parse_address(options.listen[0]));
    somebody = *port->bind_local_socket(*loop);
    options.listen[0] = port->address().text();
  }
  Rig other(options);
  EXPECT_EQ(other.connect_tcp(wire::kFeatureSharedMemory)->features(), 0U);
  EXPECT_EQ(other.log.count("no shared memory for clients of this port"), 1U);
}

TEST_F(SharedMemoryTest, WhatWasPutIsReadInPlaceAndPinnedUntilGivenBack) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 5));
  const Lent lent = get(0, 6);
  EXPECT_EQ(lent.failed, 1U);
  expect_records(lent, 0, 5);
  EXPECT_EQ(rig->stat("node", "bytes_lent"), 5 * 3 * 4096U);
  EXPECT_EQ(rig->stat("node", "view_bytes"), 5 * 3 * 4096U);
  EXPECT_EQ(rig->stat("node", "ops"), 0U) << "the request is over, its views are not";
  EXPECT_EQ(rig->stat("store", "pool_bytes_pinned"), 5 * 4 * 4096U);
  release(lent.views);
  EXPECT_TRUE(nothing_held());
  EXPECT_EQ(rig->stat("node", "keys_got"), 5U);
}

TEST_F(SharedMemoryTest, RecordsThatAreAllAbsentAreAnsweredWithoutAView) {
  start();
  ask(0, 3);
  const Received m = client->next();
  EXPECT_EQ(m.header.opcode, wire::Opcode::kGetData);
  EXPECT_TRUE(m.header.last());
  EXPECT_EQ(rig->stat("node", "gets_lent") + rig->stat("node", "gets_not_lent"), 0U);
}

TEST_F(SharedMemoryTest, RemovedAndEvictedRecordsStayReadableWhileTheyAreLent) {
  records = Records(small_namespace(3, 64 << 10));
  NodeOptions options = test_options();
  options.store.small_sizes = true;
  options.store.pool_bytes = 16 << 20;
  start(options);
  ASSERT_TRUE(rig->put_all(records, 0, 6));
  const Lent lent = get(0, 6);
  const auto keys = Records::keys(0, 6);
  client->call(wire::frame({.request_id = client->new_id()},
                           wire::Remove{.ns = ns, .shards = {0}, .groups = {0}, .keys = {keys, sizeof(Key), true}}));
  for (std::size_t first = 100; first < 200; first += 4) ASSERT_TRUE(rig->put_all(records, first, 4));
  EXPECT_GT(rig->stat("store", "pool_evictions"), 0U) << "the pool was filled more than once";
  expect_records(lent, 0, 6);
  release(lent.views);
  EXPECT_TRUE(nothing_held());
}

TEST_F(SharedMemoryTest, RecordsOnFlashAreReadInPlaceToo) {
  start(test_options(), true);
  expect_records_behind_a_restart();
}

TEST_F(SharedMemoryTest, ALargeGetIsLentInTurnsThatLeaveTheLoopToOthers) {
  records = Records(small_namespace(3, 1 << 20));
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 3));
  ask(0, 3);  // three messages of 3 MiB
  while (rig->stat("node", "views") == 0) rig->loop->run_once(Millis(1));
  EXPECT_EQ(rig->stat("node", "views"), 3U);
  NodeOptions options = test_options();
  options.limits.connection_percent_max = 100;
  start(options);
  ASSERT_TRUE(rig->put_all(records, 0, 5));
  ask(0, 5);  // of 5 MiB
  while (rig->stat("node", "views") == 0) rig->loop->run_once(Millis(1));
  EXPECT_EQ(rig->stat("node", "views"), 2U);
  expect_records(collect(5), 0, 5);
}

TEST_F(SharedMemoryTest, AClientThatDiesLetsGo) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 5));
  get(0, 5);
  EXPECT_GT(rig->stat("node", "views"), 0U);
  client->vanish();
  EXPECT_TRUE(nothing_held());
}

TEST_F(SharedMemoryTest, ACancelledGetTakesBackWhatWasNotSent) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 600));
  auto [near, far] = net::make_socket_pair();
  const int small = 4096;
  ASSERT_EQ(::setsockopt(far.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
  ASSERT_TRUE(rig->node->adopt(net::make_socket_stream(std::move(far))).has_value());
  client = std::make_unique<RawClient>(*rig->loop, std::move(near), true, wire::kFeatureSharedMemory);
  client->next();
  ns = client->open(records.ns());
  client->peer().connection->hold();  // reads nothing
  const std::uint64_t id = client->new_id();
  client->send(Records::get(id, ns, 0, 600));
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "views") > 1; }));
  client->send(wire::frame({.request_id = id}, wire::Cancel{}));
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "ops") == 0; }));
  EXPECT_EQ(rig->stat("node", "views"), 1U) << "the one whose message had begun";
  client->peer().connection->resume();
  const Lent lent = [&] {
    const Received m = client->next();
    Lent one;
    one.views.push_back(wire::decode<wire::GetView>(m.header, m.meta)->view);
    return one;
  }();
  EXPECT_EQ(client->next().header.status, Code::kCancelled);
  EXPECT_GT(rig->stat("store", "pool_bytes_pinned"), 0U) << "the client may be reading it";
  release(lent.views);
  EXPECT_TRUE(nothing_held());
}

TEST_F(SharedMemoryTest, KeysCountForAsLongAsTheirBookkeepingLasts) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 1));
  const Lent lent = get(0, 40);
  EXPECT_EQ(lent.failed, 39U);
  EXPECT_EQ(rig->stat("node", "ops"), 0U);
  EXPECT_EQ(rig->stat("node", "op_keys"), 40U) << "absent ones too";
  release(lent.views);
  EXPECT_TRUE(nothing_held());
}

TEST_F(SharedMemoryTest, ADeadlineEndsViewsAMomentLater) {
  NodeOptions options = test_options();
  options.limits.view_grace = Millis(30);
  start(options);
  ASSERT_TRUE(rig->put_all(records, 0, 5));
  const Lent lent = get(0, 5, 2000);
  EXPECT_GT(rig->stat("node", "views"), 0U);
  EXPECT_TRUE(nothing_held());
  EXPECT_EQ(rig->stat("node", "views_expired"), lent.views.size());
  release(lent.views);  // late, and no fault
  EXPECT_EQ(client->call(wire::frame({.request_id = client->new_id()}, wire::Ping{})).header.opcode,
            wire::Opcode::kPingReply);
  release({lent.views[0]});
  EXPECT_TRUE(client->ended());
}

TEST_F(SharedMemoryTest, WithoutADeadlineAClientThatStopsLosesItsViews) {
  NodeOptions options = test_options();
  options.limits.stall_limit = Millis(100);
  start(options);
  ASSERT_TRUE(rig->put_all(records, 0, 5));
  const Lent lent = get(0, 5);
  EXPECT_TRUE(nothing_held());
  EXPECT_EQ(rig->stat("node", "views_expired"), lent.views.size());
}

TEST_F(SharedMemoryTest, BeyondTheBoundBytesAreSent) {
  records = Records(small_namespace(3, 1 << 20));
  start();  // a connection's views may hold 12 MB of this pool
  for (const std::size_t key : {0U, 4U}) ASSERT_TRUE(rig->put_all(records, key, 4));
  const Lent first = get(0, 3);
  expect_records(first, 0, 3);
  ask(3, 3);
  std::size_t slabs = 0;
  for (bool last = false; !last;) {
    const Received m = client->next();
    ASSERT_EQ(m.header.opcode, wire::Opcode::kGetData);
    slabs += m.payload.size() >> 20;
    last = m.header.last();
  }
  EXPECT_EQ(slabs, 9U);
  EXPECT_EQ(rig->stat("node", "gets_not_lent"), 1U);
  release(first.views);
  ASSERT_TRUE(nothing_held());
  const Lent second = get(3, 3);
  expect_records(second, 3, 3);
  release(second.views);
  ASSERT_TRUE(nothing_held());
  ask(0, 8);  // alone, and more than may be lent
  EXPECT_EQ(client->next().header.opcode, wire::Opcode::kGetData);
}

TEST_F(SharedMemoryTest, AllConnectionsTogetherLeaveRoomForBytes) {
  records = Records(small_namespace(3, 1 << 20));
  NodeOptions options = test_options();
  options.limits.connection_percent_max = 100;
  options.limits.lent_percent_max = 40;  // 19 MB, of the node and of a connection
  start(options);
  ASSERT_TRUE(rig->put_all(records, 0, 5));
  const Lent first = get(0, 5);
  EXPECT_EQ(first.slabs.size(), 15U);
  const auto held = std::move(client);
  const auto mapping = std::move(memory);
  connect();
  ask(0, 5);
  EXPECT_EQ(client->next().header.opcode, wire::Opcode::kGetData);
}

TEST_F(SharedMemoryTest, WhoGivesBackWhatItDoesNotHoldIsCut) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 2));
  release({4711});
  EXPECT_TRUE(client->ended());
  client.reset();
  connect();
  const Lent lent = get(0, 2);
  release(lent.views);
  release(lent.views);
  EXPECT_TRUE(client->ended());
  EXPECT_TRUE(nothing_held());
  client = rig->connect();  // has agreed to nothing
  release({1});
  EXPECT_TRUE(client->ended());
  EXPECT_EQ(rig->stat("net", "protocol_errors"), 3U);
}

TEST_F(SharedMemoryTest, ADrainWaitsForViews) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 2));
  const Lent lent = get(0, 2);
  bool drained = false;
  rig->node->drain(std::chrono::seconds(20), [&] { drained = true; });
  for (int turn = 0; turn < 50; ++turn) rig->loop->run_once(Millis(1));
  EXPECT_FALSE(client->peer().closed.has_value());
  expect_records(lent, 0, 2);
  release(lent.views);
  EXPECT_TRUE(rig->until([&] { return drained; }));
}

}  // namespace
}  // namespace kvd::node
