// GETs of clients that may not see the pool: copied to memory of their own, right, bounded, and nobody else's.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include <gtest/gtest.h>

#include "net/window.h"
#include "node/testing/view_fixture.h"

namespace kvd::node {
namespace {

using net::Received;

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
  // Six records take 24 KiB a layer: half of the smallest window is enough for one layer of them, and not for two.
  void start_of_one_layer() {
    records = Records(small_namespace(1));
    start_small();
    ASSERT_TRUE(rig->put_all(records, 0, 6));
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
  EXPECT_EQ(memory->bytes().size(), std::size_t{16} << 20);
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
  ASSERT_TRUE(rig->put_all(records, 0, 4, AckLevel::kWritten));
  client.reset();
  rig->restart();
  connect();
  const Lent lent = get(0, 4);
  expect_records(lent, 0, 4);
  release(lent.views);
  EXPECT_TRUE(nothing_held());
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

TEST_F(WindowsTest, WhatIsTooLargeForItIsSent) {
  start_small();
  ASSERT_TRUE(rig->put_all(records, 0, 6));
  ask(0, 6);
  const Received first = client->next(), second = client->next();
  EXPECT_EQ(first.header.opcode, wire::Opcode::kGetView);
  EXPECT_EQ(first.header.layer_count, 1U);
  EXPECT_EQ(second.header.opcode, wire::Opcode::kGetData);
  EXPECT_TRUE(second.header.last());
  EXPECT_TRUE(second.payload == records.put_body(0, 6, 1, 3));
}

TEST_F(WindowsTest, WhoHasNoRoomWaitsForWhatIsGivenBack) {
  start_of_one_layer();
  const Lent first = get(0, 6), second = get(0, 6);
  ask(0, 6);
  client->call(wire::frame({.request_id = client->new_id()}, wire::Ping{}));
  EXPECT_EQ(copied(), 2 * 6 * 4096U) << "the third one waits";
  EXPECT_EQ(rig->stat("node", "ops"), 1U);
  release(second.views);
  client->call(wire::frame({.request_id = client->new_id()}, wire::Ping{}));
  EXPECT_EQ(rig->stat("node", "ops"), 1U) << "behind the first, whose place is the ring's next";
  release(first.views);
  expect_records(collect(6), 0, 6);
}

TEST_F(WindowsTest, WhoWaitsInVainEndsByItsDeadline) {
  start_of_one_layer();
  get(0, 6);
  const Lent second = get(0, 6);
  ask(0, 6, 30);
  const Received m = client->next();
  EXPECT_EQ(m.header.status, Code::kTimeout);
  EXPECT_EQ(rig->stat("store", "pool_bytes_pinned"), 0U);
  EXPECT_EQ(rig->stat("node", "pinned_bytes"), 0U);
}

// What is never given back is taken back, and the GET that waits for it goes on.
TEST_F(WindowsTest, AViewsTimePasses) {
  start_of_one_layer();
  const Lent first = get(0, 6);
  get(0, 6);
  ask(0, 6);
  expect_records(collect(6), 0, 6);
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

}  // namespace
}  // namespace kvd::node
