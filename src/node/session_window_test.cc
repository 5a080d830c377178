// GETs of clients that may not see the pool: copied to memory of their own, right, bounded, and nobody else's.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include <gtest/gtest.h>

#include "net/window.h"
#include "node/testing/view_fixture.h"
#include "node/views.h"

namespace kvd::node {
namespace {

using net::Received;

constexpr std::uint64_t kDefault = std::uint64_t{32} << 20;
constexpr std::uint64_t kSmallest = net::Window::kBytesMin;
constexpr std::uint32_t kMiB = 1U << 20;

class WindowsTest : public ViewTest {
 protected:
  // The pool of these nodes is not made for sharing.
  void start(NodeOptions options = test_options(), bool flash = false) { start_with(std::move(options), flash); }
  void start_small(std::uint64_t bytes = kSmallest) {
    NodeOptions options = test_options();
    options.limits.window_bytes = bytes;
    options.limits.stall_limit = Millis(400);
    start(options);
  }
  // Eight records take half of the smallest window.
  void start_of_halves() {
    records = Records(small_namespace(1));
    start_small();
    ASSERT_TRUE(rig->put_all(records, 0, 8));
  }
  [[nodiscard]] std::uint64_t copied() const { return rig->stat("node", "get_window_bytes"); }
  // A GET of which one message was sent, and the next one of 2 MiB is being copied. Returns its id.
  std::uint64_t copies_much() {
    records = Records(small_namespace(3, kMiB));
    start();
    EXPECT_TRUE(rig->put_all(records, 0, 1));
    const std::uint64_t id = client->new_id();
    client->send(Records::get(id, ns, 0, 1));
    client->peer().connection->flush();
    while (copied() < kMiB) rig->loop->run_once(Millis(1));
    EXPECT_EQ(copied(), kMiB);
    EXPECT_GT(rig->stat("store", "pool_bytes_pinned"), 0U);
    return id;
  }
};

TEST_F(WindowsTest, WhatWasPutIsCopiedAndHoldsNothingOfThePool) {
  start();
  EXPECT_EQ(memory->bytes().size(), kDefault);
  EXPECT_EQ(rig->stat("node", "window_bytes"), memory->bytes().size());
  ASSERT_TRUE(rig->put_all(records, 0, 5));
  const Lent lent = get(0, 6);
  EXPECT_EQ(lent.failed, 1U);
  expect_records(lent, 0, 5);
  EXPECT_EQ(copied(), 5 * 3 * 4096U);
  EXPECT_EQ(rig->stat("node", "view_bytes"), 5 * 3 * 4096U);
  EXPECT_EQ(rig->stat("node", "gets_lent") + rig->stat("node", "gets_not_lent"), 0U);
  EXPECT_EQ(rig->stat("store", "pool_bytes_pinned"), 0U);
  EXPECT_EQ(rig->stat("node", "pinned_bytes"), 0U);
  EXPECT_EQ(rig->stat("node", "keys_got"), 5U);
  release(lent.views);
  EXPECT_TRUE(nothing_held());
}

TEST_F(WindowsTest, AWindowShowsItsClientNothingElse) {
  records = Records(small_namespace(3, kMiB));
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 3));
  const auto other = rig->connect(true, wire::kFeatureSharedMemory);
  const std::uint32_t handle = (other->next(), other->open(records.ns()));
  other->send(Records::get(other->new_id(), handle, 0, 1));
  while (!other->next().header.last()) {
  }
  EXPECT_EQ(copied(), 3 * std::uint64_t{kMiB});
  EXPECT_TRUE(std::ranges::all_of(memory->bytes(), [](std::byte b) { return b == std::byte{0}; }));
}

// A client that writes to its window changes what it sees itself, and no record.
TEST_F(WindowsTest, WritingToOneHarmsNobodyElse) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 1));
  void* const mine = ::mmap(nullptr, memory->bytes().size(), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  const Lent lent = get(0, 1);
  if (mine != MAP_FAILED) std::memset(mine, 0xEE, memory->bytes().size());
  release(lent.views);
  expect_records(get(0, 1), 0, 1);
  if (mine != MAP_FAILED) ::munmap(mine, memory->bytes().size());
}

TEST_F(WindowsTest, ItsMemoryGoesWithTheConnection) {
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 5));
  get(0, 5);
  struct stat status{};
  ASSERT_EQ(::fstat(file.get(), &status), 0);
  EXPECT_GT(status.st_blocks, 0);
  client->vanish();
  EXPECT_TRUE(nothing_held());
  EXPECT_TRUE(rig->until([&] { return rig->stat("node", "window_bytes") == 0; }));
  ASSERT_EQ(::fstat(file.get(), &status), 0);
  EXPECT_EQ(status.st_blocks, 0) << "though the client keeps the file";
}

TEST_F(WindowsTest, RecordsOnFlashComeToo) {
  start(test_options(), true);
  expect_records_behind_a_restart();
}

TEST_F(WindowsTest, LargeGetsGoRoundInASmallWindow) {
  records = Records(small_namespace(64, 64 << 10));
  start_small(4 * kMiB);  // a message has 2 MiB
  std::map<std::uint64_t, std::size_t> key_of;
  for (std::size_t key = 0; key < 4; ++key) ASSERT_TRUE(rig->put_all(records, key, 1));
  for (std::size_t key = 0; key < 4; ++key) {
    key_of[client->new_id()] = key;
    client->send(Records::get(std::prev(key_of.end())->first, ns, key, 1));
  }
  std::size_t layers = 0;
  while (layers < 4 * 64) {
    const Received m = client->next();
    ASSERT_EQ(m.header.opcode, wire::Opcode::kGetView);
    const auto view = wire::decode<wire::GetView>(m.header, m.meta);
    ASSERT_TRUE(view.has_value());
    for (std::uint32_t i = 0; i < m.header.layer_count; ++i) {
      const std::uint64_t at = view->offsets[0] + std::uint64_t{i} * view->slab_stride;
      EXPECT_TRUE(std::ranges::equal(memory->bytes().subspan(at, records.slab_bytes()),
                                     records.slab(key_of.at(m.header.request_id), m.header.layer_first + i)));
    }
    layers += m.header.layer_count;
    release({view->view});
  }
  EXPECT_TRUE(nothing_held());
}

// Of several layers as many go together as half of the window has room for.
TEST_F(WindowsTest, AMessageIsNoLongerThanHalfOfTheWindow) {
  records = Records(small_namespace(12));
  start_small();
  ASSERT_TRUE(rig->put_all(records, 0, 2));
  ask(0, 2);
  std::vector<std::uint32_t> layers;
  for (bool last = false; !last;) {
    const Received m = client->next();
    last = m.header.last();
    ASSERT_EQ(m.header.opcode, wire::Opcode::kGetView);
    layers.push_back(m.header.layer_count);
    release({wire::decode<wire::GetView>(m.header, m.meta)->view});
  }
  EXPECT_EQ(layers, (std::vector<std::uint32_t>{1, 4, 4, 3})) << "of 8 KiB each";
  EXPECT_EQ(rig->stat("node", "get_window_refused"), 0U);
}

TEST_F(WindowsTest, ALayerOfTheWholeWindowWaitsUntilAllOfItIsFree) {
  records = Records(small_namespace(1));
  start_small();
  ASSERT_TRUE(rig->put_all(records, 0, 17));
  const Lent first = get(0, 1);
  ask(0, 16);
  client->call(wire::frame({.request_id = client->new_id()}, wire::Ping{}));
  EXPECT_EQ(copied(), 4096U);
  release(first.views);
  const Lent all = collect(16);
  expect_records(all, 0, 16);
  release(all.views);
  ask(0, 17);
  const Received sent = client->next();
  EXPECT_EQ(sent.header.opcode, wire::Opcode::kGetData) << "no window has room for it";
  EXPECT_TRUE(sent.payload == records.put_body(0, 17, 0, 1));
  EXPECT_EQ(rig->stat("node", "get_window_refused"), 1U);
}

TEST_F(WindowsTest, WhoHasNoRoomWaitsForWhatIsGivenBack) {
  start_of_halves();
  const Lent first = get(0, 8), second = get(0, 8);
  ask(0, 8);
  client->call(wire::frame({.request_id = client->new_id()}, wire::Ping{}));
  EXPECT_EQ(copied(), 2 * 8 * 4096U) << "the third one waits";
  EXPECT_EQ(rig->stat("node", "ops"), 1U);
  release(second.views);
  client->call(wire::frame({.request_id = client->new_id()}, wire::Ping{}));
  EXPECT_EQ(rig->stat("node", "ops"), 1U) << "behind the first, whose place is the ring's next";
  release(first.views);
  expect_records(collect(8), 0, 8);
}

TEST_F(WindowsTest, WhoWaitsInVainEndsByItsDeadline) {
  start_of_halves();
  get(0, 8);
  const Lent second = get(0, 8);
  ask(0, 8, 30);
  const Received m = client->next();
  EXPECT_EQ(m.header.status, Code::kTimeout);
  EXPECT_EQ(rig->stat("store", "pool_bytes_pinned"), 0U);
  EXPECT_EQ(rig->stat("node", "pinned_bytes"), 0U);
}

// What is never given back is taken back, and the GET that waits for it goes on.
TEST_F(WindowsTest, AViewsTimePasses) {
  start_of_halves();
  const Lent first = get(0, 8);
  get(0, 8);
  ask(0, 8);
  expect_records(collect(8), 0, 8);
  EXPECT_GE(rig->stat("node", "views_expired"), 1U);
  release(first.views);  // late, and not an error
  client->call(wire::frame({.request_id = client->new_id()}, wire::Ping{}));
}

TEST_F(WindowsTest, ACancelledGetIsNotCopiedToItsEnd) {
  const std::uint64_t id = copies_much();
  client->send(wire::frame({.request_id = id}, wire::Cancel{}));
  const Received view = client->next(), end = client->next();
  EXPECT_EQ(view.header.opcode, wire::Opcode::kGetView);
  EXPECT_EQ(end.header.status, Code::kCancelled);
  EXPECT_EQ(copied(), kMiB);
  EXPECT_EQ(rig->stat("store", "pool_bytes_pinned"), 0U);
  release({wire::decode<wire::GetView>(view.header, view.meta)->view});
  const Lent again = get(0, 1);
  expect_records(again, 0, 1);
  release(again.views);
  EXPECT_TRUE(nothing_held());
}

TEST_F(WindowsTest, AClientThatGoesWhileItIsCopiedForLeavesNothing) {
  copies_much();
  client->vanish();
  EXPECT_TRUE(nothing_held());
  EXPECT_TRUE(rig->until([&] { return rig->stat("node", "window_bytes") == 0; }));
}

// Whoever asks for little is answered between two slices of another's.
TEST_F(WindowsTest, CopyingLeavesTheLoopToOthers) {
  records = Records(small_namespace(8, kMiB));
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 1));
  const auto other = rig->connect();
  ask(0, 1);
  client->peer().connection->flush();
  while (copied() == 0) rig->loop->run_once(Millis(1));
  other->call(wire::frame({.request_id = other->new_id()}, wire::Ping{}));
  EXPECT_LT(copied(), 7 * std::uint64_t{kMiB}) << "some turns, and not all of it";
}

TEST_F(WindowsTest, ThereAreSoManyAndNoMore) {
  NodeOptions options = test_options();
  options.limits.window_bytes = kSmallest;
  options.limits.window_bytes_all_max = 2 * kSmallest;
  start(options);
  auto second = rig->connect(true, wire::kFeatureSharedMemory);
  EXPECT_EQ(second->features(), wire::kFeatureSharedMemory);
  const auto third = rig->connect(true, wire::kFeatureSharedMemory);
  EXPECT_EQ(third->features(), 0U);
  ASSERT_TRUE(rig->put_all(records, 0, 1));
  const std::uint32_t handle = third->open(records.ns());
  const Received sent = third->call(Records::get(third->new_id(), handle, 0, 1));
  EXPECT_EQ(sent.header.opcode, wire::Opcode::kGetData);
  second->vanish();
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "window_bytes") == kSmallest; }));
  EXPECT_EQ(rig->connect(true, wire::kFeatureSharedMemory)->features(), wire::kFeatureSharedMemory);
}

TEST_F(WindowsTest, CanBeSwitchedOff) {
  for (const bool memory_at_all : {false, true}) {
    NodeOptions options = test_options();
    options.shared_memory = memory_at_all;
    if (memory_at_all) options.limits.window_bytes = 0;
    EXPECT_EQ(Rig(options).connect(true, wire::kFeatureSharedMemory)->features(), 0U);
  }
}

// Small ones have room at once, and would take what a large one waits for.
TEST_F(WindowsTest, WhoWaitsForMuchRoomHasItsTurnBeforeThoseBehindIt) {
  records = Records(small_namespace(1));
  start_small();
  ASSERT_TRUE(rig->put_all(records, 0, 8));
  std::vector<std::uint64_t> held;
  for (int i = 0; i < 10; ++i) held.push_back(get(0, 1).views[0]);
  ask(0, 8);
  ask(0, 1);
  EXPECT_EQ(copied(), 10 * 4096U);
  client->call(wire::frame({.request_id = client->new_id()}, wire::Ping{}));
  EXPECT_EQ(copied(), 10 * 4096U);
  release(held);
  expect_records(collect(8), 0, 8);
  expect_records(collect(1), 0, 1);
}

TEST_F(WindowsTest, WithTooManyViewsOutstandingRecordsAreSent) {
  records = Records(small_namespace(1));
  NodeOptions options = test_options();
  options.limits.stall_limit = Millis(300);
  start(options);
  ASSERT_TRUE(rig->put_all(records, 0, 1));
  std::vector<std::uint64_t> views;
  while (views.size() < Views::kViewsMax) views.push_back(get(0, 1).views.at(0));
  ask(0, 1);
  EXPECT_EQ(client->next().header.opcode, wire::Opcode::kGetData);
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "views") == 0; })) << "their time passes";
  ask(0, 1);
  EXPECT_EQ(client->next().header.opcode, wire::Opcode::kGetData) << "and their numbers stay";
  release(views);
  expect_records(get(0, 1), 0, 1);
}

// A GET that has ended with its last message on its way, and the next one with the same number.
TEST_F(WindowsTest, ANumberThatIsUsedAgainIsAnotherGet) {
  records = Records(small_namespace(1, 4 * kMiB));
  NodeOptions options = test_options();
  options.limits.window_bytes = 8 * kMiB;
  start(options);
  for (std::size_t key = 0; key < 3; ++key) ASSERT_TRUE(rig->put_all(records, key, 1));
  for (std::uint64_t left = 64 << 10; left < 4 * kMiB; left *= 2) {
    const std::uint64_t before = rig->stat("net", "bytes_out");
    const std::uint64_t id = client->new_id();
    client->send(Records::get(id, ns, 0, 3));  // of 12 MiB: sent
    for (int i = 0; i < 3000 && rig->stat("net", "bytes_out") < before + 12 * kMiB - left; ++i)
      rig->loop->run_once(Duration::zero());
    client->send(wire::frame({.request_id = id}, wire::Cancel{}));
    client->send(Records::get(id, ns, 0, 2));  // of 8 MiB: copied
    std::uint64_t view = 0;
    for (int answers = 0; view == 0 && answers < 3; ++answers) {
      const Received m = client->next();
      if (m.header.opcode == wire::Opcode::kGetView) view = wire::decode<wire::GetView>(m.header, m.meta)->view;
    }
    ASSERT_NE(view, 0U) << left;
    release({view});
    ASSERT_TRUE(nothing_held());
  }
}

// Whoever asks for more than its window has room for and gives nothing back holds parts of the pool.
TEST_F(WindowsTest, WhoGivesNothingBackLosesItsRoomWhenAGetWaitsForIt) {
  records = Records(small_namespace(10, kMiB));
  NodeOptions options = test_options();
  options.limits.window_bytes = 4 * kMiB;
  options.limits.contended_stall_limit = Millis(20);
  start(options);
  ASSERT_TRUE(rig->put_all(records, 0, 1));
  std::vector<std::unique_ptr<RawClient>> deaf;
  for (int i = 0; i < 4; ++i) {
    const std::uint64_t pinned = rig->stat("node", "pinned_bytes");
    deaf.push_back(rig->connect(true, wire::kFeatureSharedMemory));
    deaf.back()->next();
    const std::uint32_t handle = deaf.back()->open(records.ns());
    deaf.back()->send(Records::get(deaf.back()->new_id(), handle, 0, 1));
    if (i < 3) {
      ASSERT_TRUE(rig->until([&] { return rig->stat("node", "pinned_bytes") > pinned; }));
    }
  }
  const auto other = rig->connect();
  const std::uint32_t handle = other->open(records.ns());
  other->send(Records::get(other->new_id(), handle, 0, 1, false, 0, 0, 4000));
  for (bool last = false; !last;) {
    const Received m = other->next();
    ASSERT_EQ(m.header.status, Code::kOk);
    last = m.header.last();
  }
  EXPECT_LT(rig->stat("node", "connections"), 6U) << "one was cut";
}

// More than the pool has room for: layers that pass through it, each of 12 MiB.
TEST_F(WindowsTest, RecordsThatStreamFromFlashComeWhole) {
  records = Records(small_namespace(8, 128 << 10));
  NodeOptions options = test_options();
  options.store.flash_bytes = std::uint64_t{256} << 20;
  options.limits.window_bytes = 16 * kMiB;
  start(options, true);
  for (std::size_t first = 0; first < 96; first += 8) ASSERT_TRUE(rig->put_all(records, first, 8, AckLevel::kWritten));
  ask(0, 96);
  std::size_t layers = 0;
  while (layers < 8) {
    const Received m = client->next();
    ASSERT_TRUE(m.header.status == Code::kOk && m.header.opcode == wire::Opcode::kGetView) << layers;
    Lent lent;
    const auto view = wire::decode<wire::GetView>(m.header, m.meta);
    ASSERT_TRUE(view.has_value());
    take_slabs(m.header, *view, 96, lent);
    EXPECT_EQ(lent.slabs.size(), 96U * m.header.layer_count);
    for (const auto& [place, bytes] : lent.slabs)
      EXPECT_TRUE(std::ranges::equal(bytes, records.slab(place.second, place.first)));
    layers += m.header.layer_count;
    release({view->view});
  }
  EXPECT_TRUE(nothing_held());
}

// Two at a time in the line: neither waits for the other's end.
TEST_F(WindowsTest, ClientsAreCopiedForInTurns) {
  records = Records(small_namespace(4, 2 * kMiB));
  start();
  ASSERT_TRUE(rig->put_all(records, 0, 1));
  const auto other = rig->connect(true, wire::kFeatureSharedMemory);
  other->next();
  const std::uint32_t handle = other->open(records.ns());
  other->send(Records::get(other->new_id(), handle, 0, 1));
  ask(0, 1);
  std::size_t mine = 0, theirs = 0, apart = 0;
  while (mine < 3 || theirs < 3) {
    rig->loop->run_once(Millis(1));
    const auto views = [](RawClient& of) {
      return static_cast<std::size_t>(std::ranges::count_if(
          of.peer().received, [](const Received& m) { return m.header.opcode == wire::Opcode::kGetView; }));
    };
    mine = views(*client);
    theirs = views(*other);
    apart = std::max(apart, mine > theirs ? mine - theirs : theirs - mine);
  }
  EXPECT_LE(apart, 1U);
}

}  // namespace
}  // namespace kvd::node
