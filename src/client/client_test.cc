// The public client on its own thread, against a fake depot on another.
#include "kvdepot/client.h"

#include <poll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "base/cores.h"
#include "client/testing/fake_depot.h"

namespace kvd::client {
namespace {

using std::chrono::milliseconds;

constexpr Deadline kPatient{.total = std::chrono::seconds(20), .progress = {}};

Namespace make_namespace(std::uint16_t layers, std::uint32_t slab_bytes) {
  Namespace ns;
  ns.fingerprint = "weights";
  ns.groups.push_back({.group = 0, .layers = layers, .slab_bytes = slab_bytes, .block_tokens = 16, .order = "LBHNC"});
  return ns;
}

// A client, a fake depot, memory for `keys` records.
class Bench {
 public:
  // `shares`: the depot lends its memory, all layers of a get in one message.
  Bench(std::size_t keys, std::uint16_t layers, std::uint32_t slab_bytes, ClientOptions options = {},
        const std::string& address = "tcp://127.0.0.1:0", bool shares = false)
      : layers_(layers), slab_bytes_(slab_bytes), memory(keys * layers * slab_bytes), depot(address) {
    options.require_connection = true;
    options.connect_timeout = std::chrono::seconds(10);
    if (shares) {
      depot.run([](FakeDepot& fake) {
        fake.script.shares = true;
        fake.script.layers_per_message = 400;
        fake.listen_locally();
      });
    }
    client = std::move(*Client::open(depot.address(), options));
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 131 + i / 4096);
    region = *client->register_region(memory.data(), memory.size());
    ns = *client->open_namespace(make_namespace(layers, slab_bytes));
    for (std::size_t l = 0; l < layers; ++l) layer_offset.push_back(l * keys * slab_bytes);
    for (std::size_t k = 0; k < keys; ++k) {
      block_offset.push_back(k * slab_bytes);
      const std::uint64_t key = k;
      const auto* bytes = reinterpret_cast<const std::byte*>(&key);
      key_bytes.insert(key_bytes.end(), bytes, bytes + 8);
    }
  }

  [[nodiscard]] KeyList keys() const { return {.bytes = key_bytes, .key_bytes = 8}; }
  [[nodiscard]] Placement place() const {
    return {.region = region, .layer_offset = layer_offset, .block_offset = block_offset, .runs = {}};
  }
  Result<OpId> put(bool whole = true) {
    return client->multiput({.ns = ns, .keys = keys(), .src = place(), .whole = whole, .deadline = kPatient});
  }
  Result<OpId> get() { return client->multiget({.ns = ns, .keys = keys(), .dest = place(), .deadline = kPatient}); }
  Result<OpId> match() {
    const std::uint16_t zero = 0;
    return client->match_prefix(
        {.ns = ns, .shards = {&zero, 1}, .groups = {&zero, 1}, .keys = keys(), .deadline = kPatient});
  }
  Completion finish(Result<OpId> op) {
    EXPECT_TRUE(op.has_value());
    const Completion done = *client->wait(*op, kWholeOp, std::chrono::seconds(30));
    client->release(*op);
    return done;
  }

  std::uint16_t layers_;
  std::uint32_t slab_bytes_;
  std::vector<std::byte> memory;
  FakeDepotThread depot;
  std::unique_ptr<Client> client;
  RegionId region;
  NamespaceId ns = 0;
  std::vector<std::uint64_t> layer_offset, block_offset;
  std::vector<std::byte> key_bytes;
};

// Says whether a client's I/O thread has run since it was asked last: by the time that it has had of a core, exactly.
class IoThread {
 public:
  IoThread() {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      if (std::getline(std::ifstream(task.path() / "comm"), name) && name == "kvd-client") {
        EXPECT_EQ(task_, 0) << "there is one client";
        task_ = std::stoi(task.path().filename());
      }
    }
    EXPECT_NE(task_, 0);
  }
  bool has_run() { return std::exchange(ran_, now()) != ran_; }
  // The time that it has had of a core so far, in ns.
  [[nodiscard]] std::int64_t now() const {
    constexpr unsigned kOfAThread = 6;  // as in pthread_getcpuclockid(), which wants a pthread_t
    timespec ran{};
    const auto clock = static_cast<clockid_t>(~static_cast<unsigned>(task_) << 3 | kOfAThread);
    EXPECT_EQ(::clock_gettime(clock, &ran), 0);
    return std::int64_t{ran.tv_sec} * 1'000'000'000 + ran.tv_nsec;
  }

 private:
  int task_ = 0;
  std::int64_t ran_ = 0;
};

// How many of so many gets came without the I/O thread.
int received_here(Bench& bench, IoThread& io, int gets) {
  int here = 0;
  for (int i = 0; i < gets && !testing::Test::HasFailure(); ++i) {
    std::ranges::fill(bench.memory, std::byte{});
    io.has_run();
    const auto op = bench.get();
    const auto done = bench.client->wait(*op, kWholeOp, std::chrono::seconds(30));
    here += io.has_run() ? 0 : 1;
    EXPECT_EQ(done->failed_keys, 0U);
    bench.client->release(*op);
  }
  return here;
}

TEST(Client, ASmallGetThatIsWaitedForAloneIsReceivedByItsCaller) {
  if (!has_other_cores()) GTEST_SKIP() << "nobody spins on one core";
  Bench bench(4, 4, 16384, {.spin = milliseconds(5)});  // 256 KiB
  const std::vector<std::byte> original = bench.memory;
  ASSERT_EQ(bench.finish(bench.put()).code, Code::kOk);
  IoThread io;
  int here = 0;  // not all: the loop's thread looks at times, and a core may be wanted by others
  for (int tries = 0; tries < 200 && here < 5; ++tries) here += received_here(bench, io, 10);
  EXPECT_GE(here, 5);
  EXPECT_TRUE(bench.memory == original);
  const OpId other = *bench.match();
  ASSERT_TRUE(bench.client->wait(other, kWholeOp, std::chrono::seconds(30)).has_value());
  EXPECT_EQ(received_here(bench, io, 50), 0) << "one that is not alone";
  bench.client->release(other);
}

TEST(Client, WhatIsNotSmallOrIsNotToBeWaitedForIsReceivedByTheIoThread) {
  for (const auto& [keys, spin] : {std::pair(17, milliseconds(5)), std::pair(16, milliseconds(0))}) {
    Bench bench(static_cast<std::size_t>(keys), 1, 16384, {.spin = spin});
    ASSERT_EQ(bench.finish(bench.put()).code, Code::kOk);
    IoThread io;
    EXPECT_EQ(received_here(bench, io, 50), 0);
  }
}

TEST(Client, StoresAndLoadsOverTcp) {
  Bench bench(20, 5, 16384);
  const std::vector<std::byte> original = bench.memory;
  EXPECT_EQ(bench.finish(bench.put()).code, Code::kOk);
  EXPECT_EQ(bench.finish(bench.match()).prefix_blocks, 20U);
  std::ranges::fill(bench.memory, std::byte{});
  const Completion done = bench.finish(bench.get());
  EXPECT_EQ(done.code, Code::kOk);
  EXPECT_EQ(done.failed_keys, 0U);
  EXPECT_TRUE(bench.memory == original);
}

// One request per operation and one message per layer, whatever the number of keys; few system calls for many slabs.
TEST(Client, AMultigetIsOneMessageAndFewSystemCalls) {
  Bench bench(54, 30, 98304);
  ASSERT_EQ(bench.finish(bench.put()).code, Code::kOk);
  const ClientStats before = bench.client->stats();
  ASSERT_EQ(bench.finish(bench.get()).code, Code::kOk);
  const ClientStats after = bench.client->stats();
  EXPECT_EQ(after.messages_sent - before.messages_sent, 1U);
  EXPECT_EQ(after.send_calls - before.send_calls, 1U);
  EXPECT_EQ(after.messages_received - before.messages_received, 30U);
  EXPECT_LT(after.recv_calls - before.recv_calls, 54U * 30U) << "fewer than one for a slab, sanitizers included";
  EXPECT_EQ(after.bytes_loaded - before.bytes_loaded, bench.memory.size());
}

TEST(Client, LayersArriveBeforeTheWhole) {
  Bench bench(4, 3, 4096);
  bench.finish(bench.put());
  const OpId op = *bench.get();
  for (std::uint16_t layer = 0; layer < 3; ++layer) {
    const auto done = bench.client->wait(op, layer, std::chrono::seconds(30));
    ASSERT_TRUE(done.has_value());
    EXPECT_EQ(done->layer, layer);
  }
  EXPECT_EQ(bench.client->wait(op, 3, milliseconds(0)).error().code, Code::kInvalid);
  bench.client->release(op);
  EXPECT_EQ(bench.client->wait(op, kWholeOp, milliseconds(0)).error().code, Code::kNotFound);
}

TEST(Client, PollingByTheDescriptor) {
  Bench bench(4, 3, 4096);
  const int fd = bench.client->event_fd();
  bench.finish(bench.put());
  std::array<Completion, 16> out;
  while (bench.client->poll(out) > 0) {
  }
  const OpId op = *bench.get();
  std::vector<std::uint16_t> layers;
  while (layers.size() < 4) {
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&waiting, 1, 30'000), 1);
    const std::size_t n = bench.client->poll(out);
    for (std::size_t i = 0; i < n; ++i) {
      if (out[i].op == op) layers.push_back(out[i].layer);
    }
  }
  EXPECT_EQ(layers, (std::vector<std::uint16_t>{0, 1, 2, kWholeOp}));
  bench.client->release(op);
}

TEST(Client, LayersAreReleasedFromSeveralThreads) {
  Bench bench(8, 40, 4096);
  const std::vector<std::byte> original = bench.memory;
  const OpId op = *bench.put(false);
  std::vector<std::thread> threads;
  for (std::uint16_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint16_t i = 0; i < 10; ++i) {
        EXPECT_TRUE(bench.client->put_layer(op, static_cast<std::uint16_t>(39 - (i * 4 + t))).has_value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bench.client->put_layer(op, 3).error().code, Code::kInvalid);
  EXPECT_EQ(bench.finish(op).code, Code::kOk);
  std::ranges::fill(bench.memory, std::byte{});
  EXPECT_EQ(bench.finish(bench.get()).failed_keys, 0U);
  EXPECT_TRUE(bench.memory == original);
}

TEST(Client, ManyThreadsShareIt) {
  Bench bench(6, 4, 8192, {.ops_max = 16});
  bench.finish(bench.put());
  std::vector<std::thread> threads;
  std::atomic<int> done{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const auto op = i % 2 == t % 2 ? bench.match() : bench.get();
        if (!op) continue;
        if (i % 7 == 3) {
          EXPECT_TRUE(bench.client->cancel(*op).has_value());
        }
        const auto whole = bench.client->wait(*op, kWholeOp, std::chrono::seconds(30));
        EXPECT_TRUE(whole && (whole->code == Code::kOk || whole->code == Code::kCancelled));
        bench.client->release(*op);
        ++done;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(done.load(), 0);
}

// wait_owned() is for callers who cannot know that. What tsan sees where one looks at an operation as it is released.
TEST(Client, AnOperationMayBeReleasedWhileOthersWaitForIt) {
  Bench bench(2, 2, 4096);
  ASSERT_EQ(bench.finish(bench.put()).code, Code::kOk);
  std::atomic<OpId> current{0};
  std::atomic<bool> stop{false};
  std::array<std::thread, 2> waiters;
  for (std::thread& waiter : waiters) {
    waiter = std::thread([&] {
      while (!stop) {
        const OpId op = current;
        const auto done = bench.client->wait_owned(op, kWholeOp, std::chrono::seconds(30));
        EXPECT_TRUE(done ? done->done.op == op : done.error().code == Code::kNotFound);
      }
    });
  }
  for (int round = 0; round < 500; ++round) {
    const OpId op = round % 2 == 0 ? *bench.match() : *bench.get();
    current = op;
    if (round % 4 < 2) {
      EXPECT_TRUE(bench.client->wait(op, kWholeOp, std::chrono::seconds(30)).has_value());
    }
    bench.client->release(op);
  }
  stop = true;
  for (std::thread& waiter : waiters) waiter.join();
}

// A caller may be the one who finds the connection lost, and one within whose turn others cancel.
TEST(Client, WhoReceivesByHimselfSurvivesALostConnectionAndCancels) {
  Bench bench(2, 2, 4096, {.breaker_probe = milliseconds(5)});
  ASSERT_EQ(bench.finish(bench.put()).code, Code::kOk);
  std::atomic<OpId> current{0};
  std::atomic<bool> stop{false};
  std::thread canceller([&] {
    for (; !stop; std::this_thread::yield()) static_cast<void>(bench.client->cancel(current));
  });
  std::thread killer([&] {
    for (int drops = 0; drops < 20 && !stop; ++drops) {
      bench.depot.run([](FakeDepot& depot) { depot.drop_connections(); });
      EXPECT_TRUE(bench.client->reconnect(std::chrono::seconds(30)).has_value());
    }
  });
  for (int ended = 0; ended < 200;) {
    const auto op = ended % 2 == 0 ? bench.match() : bench.get();
    if (!op) {
      std::this_thread::yield();
      continue;
    }
    if (ended % 5 == 0) current = *op;
    const auto whole = bench.client->wait(*op, kWholeOp, std::chrono::seconds(30));
    EXPECT_TRUE(whole.has_value());
    bench.client->release(*op);
    ++ended;
  }
  stop = true;
  canceller.join();
  killer.join();
}

// Cancels loads at whatever point they have reached; after cancel() returns the memory is the caller's again.
TEST(Client, NothingLandsAfterCancelReturns) {
  Bench bench(16, 8, 65536);
  ASSERT_EQ(bench.finish(bench.put()).code, Code::kOk);
  for (int i = 0; i < 60; ++i) {
    const OpId op = *bench.get();
    if (i % 3 == 1) static_cast<void>(bench.client->wait(op, static_cast<std::uint16_t>(i % 8), milliseconds(100)));
    ASSERT_TRUE(bench.client->cancel(op).has_value());
    std::ranges::fill(bench.memory, std::byte{0xA5});
    bench.client->release(op);
    const auto match = bench.finish(bench.match());  // a round trip later
    EXPECT_EQ(match.code, Code::kOk);
    EXPECT_TRUE(std::ranges::all_of(bench.memory, [](std::byte byte) { return byte == std::byte{0xA5}; })) << i;
  }
  EXPECT_EQ(bench.finish(bench.get()).failed_keys, 0U);
}

constexpr char kTcp[] = "tcp://127.0.0.1:0";

// A get of 8 MiB in one view, which the depot places where the last one was.
OpId get_view(Bench& bench) {
  bench.depot.run([](FakeDepot& depot) { depot.reuse_memory(); });
  return *bench.get();
}

std::int64_t time_of_this_thread() {
  timespec ran{};
  EXPECT_EQ(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ran), 0);
  return std::int64_t{ran.tv_sec} * 1'000'000'000 + ran.tv_nsec;
}

TEST(Client, WhoWaitsForALargeGetThroughMemoryCopiesAPartOfIt) {
  if (!has_other_cores()) GTEST_SKIP() << "nobody helps on one core";
  Bench bench(16, 8, 65536, {}, kTcp, true);
  const std::vector<std::byte> original = bench.memory;
  ASSERT_EQ(bench.finish(bench.put()).code, Code::kOk);
  const IoThread io;
  int helped = 0;  // not always: a core may be wanted by others
  for (int tries = 0; tries < 200 && helped < 3; ++tries) {
    std::ranges::fill(bench.memory, std::byte{});
    const std::int64_t io_before = io.now();
    const OpId op = get_view(bench);
    const std::int64_t before = time_of_this_thread();
    const auto done = bench.client->wait(op, kWholeOp, std::chrono::seconds(30));
    if ((time_of_this_thread() - before) * 4 > io.now() - io_before) ++helped;
    ASSERT_EQ(done->failed_keys, 0U);
    ASSERT_TRUE(bench.memory == original);
    bench.client->release(op);
  }
  EXPECT_EQ(helped, 3);
  EXPECT_GE(bench.client->stats().bytes_shared, 3 * bench.memory.size());
}

TEST(Client, WaitersOfLayersAndOfTheWholeCopyOneGetTogether) {
  Bench bench(16, 8, 65536, {}, kTcp, true);
  const std::vector<std::byte> original = bench.memory;
  ASSERT_EQ(bench.finish(bench.put()).code, Code::kOk);
  for (int round = 0; round < 30; ++round) {
    std::ranges::fill(bench.memory, std::byte{});
    const OpId op = get_view(bench);
    std::vector<std::thread> waiters;
    for (const std::uint16_t layer : {std::uint16_t{0}, std::uint16_t{5}, kWholeOp}) {
      waiters.emplace_back([&, layer] {
        const auto done = bench.client->wait(op, layer, std::chrono::seconds(30));
        ASSERT_TRUE(done.has_value());
        EXPECT_EQ(done->code, Code::kOk);
        if (layer == kWholeOp) return;
        const std::size_t bytes = bench.memory.size() / 8, at = layer * bytes;
        EXPECT_EQ(std::memcmp(bench.memory.data() + at, original.data() + at, bytes), 0);
      });
    }
    for (std::thread& waiter : waiters) waiter.join();
    EXPECT_TRUE(bench.memory == original);
    bench.client->release(op);
  }
}

// The same where those who wait for it are at it.
TEST(Client, NothingLandsAfterCancelReturnsWhereWaitersHelp) {
  Bench bench(16, 8, 65536, {}, kTcp, true);
  ASSERT_EQ(bench.finish(bench.put()).code, Code::kOk);
  for (int i = 0; i < 60; ++i) {
    const OpId op = get_view(bench);
    std::thread waiter([&] { EXPECT_TRUE(bench.client->wait(op, kWholeOp, std::chrono::seconds(30)).has_value()); });
    if (i % 3 != 0) static_cast<void>(bench.client->wait(op, static_cast<std::uint16_t>(i % 8), milliseconds(100)));
    ASSERT_TRUE(bench.client->cancel(op).has_value());
    std::ranges::fill(bench.memory, std::byte{0xA5});
    waiter.join();
    bench.client->release(op);
    EXPECT_EQ(bench.finish(bench.match()).code, Code::kOk);
    EXPECT_TRUE(std::ranges::all_of(bench.memory, [](std::byte byte) { return byte == std::byte{0xA5}; })) << i;
  }
  EXPECT_EQ(bench.finish(get_view(bench)).failed_keys, 0U);
}

TEST(Client, FullIsBusyAtOnce) {
  Bench bench(2, 2, 4096, {.ops_max = 2});
  bench.depot.run([](FakeDepot& depot) { depot.script.hung = true; });
  const OpId a = *bench.match();
  const OpId b = *bench.match();
  EXPECT_EQ(bench.match().error().code, Code::kBusy);
  EXPECT_EQ(bench.client->stats().busy, 1U);
  bench.client->release(a);  // cancels it
  EXPECT_TRUE(bench.match().has_value());
  EXPECT_EQ(bench.client->unregister_region(RegionId{77}).error().code, Code::kNotFound);
  static_cast<void>(b);
}

// Whoever learns that a deadline has passed finds the breaker open: the next request pays nothing.
TEST(Client, AfterADeadlineTheNextRequestIsUnavailableAtOnce) {
  Bench bench(2, 2, 4096, {.breaker_probe = std::chrono::seconds(60)});
  bench.depot.run([](FakeDepot& depot) { depot.script.hung = true; });
  const std::uint16_t zero = 0;
  const auto ask = [&] {
    return bench.client->match_prefix({.ns = bench.ns,
                                       .shards = {&zero, 1},
                                       .groups = {&zero, 1},
                                       .keys = bench.keys(),
                                       .deadline = {.total = milliseconds(20), .progress = {}}});
  };
  const auto op = ask();
  ASSERT_TRUE(op.has_value());
  EXPECT_EQ(bench.client->wait(*op, kWholeOp, std::chrono::seconds(30))->code, Code::kTimeout);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(ask().error().code, Code::kUnavailable);
  bench.client->release(*op);
}

TEST(Client, ABreakerOpenedByTheCallerCountsForTheNextSubmission) {
  Bench bench(2, 2, 4096);
  ASSERT_TRUE(bench.client->open_breaker().has_value());
  EXPECT_EQ(bench.get().error().code, Code::kUnavailable);
  EXPECT_TRUE(bench.client->stats().breaker_open);
}

TEST(Client, ItConnectsWhenItIsToldThatTheDepotIsThere) {
  Bench bench(2, 2, 4096);
  ASSERT_TRUE(bench.client->reconnect(milliseconds(0)).has_value());
  bench.depot.run([](FakeDepot& depot) { depot.kill(); });
  while (bench.client->stats().connected) std::this_thread::yield();
  EXPECT_EQ(bench.client->reconnect(milliseconds(1)).error().code, Code::kUnavailable);
  bench.depot.run([](FakeDepot& depot) { depot.restart(); });
  EXPECT_TRUE(bench.client->reconnect(std::chrono::seconds(30)).has_value());
  EXPECT_TRUE(bench.client->stats().connected);
}

TEST(Client, ARegionInUseCannotBeUnregistered) {
  Bench bench(2, 2, 4096);
  bench.depot.run([](FakeDepot& depot) { depot.script.hung = true; });
  const OpId op = *bench.get();
  EXPECT_EQ(bench.client->unregister_region(bench.region).error().code, Code::kBusy);
  bench.client->release(op);
  EXPECT_TRUE(bench.client->unregister_region(bench.region).has_value());
}

TEST(Client, DestroyingItEndsWhatIsInFlight) {
  Bench bench(16, 8, 65536);
  ASSERT_EQ(bench.finish(bench.put()).code, Code::kOk);
  static_cast<void>(*bench.get());
  static_cast<void>(*bench.put(false));
  bench.client.reset();
  std::ranges::fill(bench.memory, std::byte{0xA5});
  EXPECT_TRUE(std::ranges::all_of(bench.memory, [](std::byte byte) { return byte == std::byte{0xA5}; }));
}

TEST(Client, AForkedChildGetsInvalid) {
  Bench bench(2, 2, 4096);
  const OpId op = *bench.match();
  const pid_t child = ::fork();
  if (child == 0) {
    const std::array wrong{
        bench.match().has_value(),
        bench.get().has_value(),
        bench.put().has_value(),
        bench.client->wait(op, kWholeOp, milliseconds(1)).has_value(),
        bench.client->cancel(op).has_value(),
        bench.client->put_layer(op, 0).has_value(),
        bench.client->depot_stats(milliseconds(10)).has_value(),
        bench.client->open_namespace(make_namespace(1, 4096)).has_value(),
        bench.match().error().code != Code::kInvalid,
    };
    bench.client->release(op);
    bench.client.reset();  // neither hangs nor disturbs the parent
    ::_exit(std::ranges::count(wrong, true) == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(bench.finish(op).code, Code::kOk);
  EXPECT_EQ(bench.finish(bench.match()).code, Code::kOk);
}

TEST(Client, TheDepotsStatistics) {
  Bench bench(1, 1, 4096);
  EXPECT_EQ(*bench.client->depot_stats(std::chrono::seconds(20)), R"({"fake": 1})");
  std::array<Completion, 4> out;
  EXPECT_EQ(bench.client->poll(out), 0U) << "an operation of the client's own is nobody's completion";
}

TEST(ClientOpen, SaysWhatIsWrong) {
  const auto code = [](const std::string& depot, const ClientOptions& options = {}) {
    const auto client = Client::open(depot, options);
    return client ? Code::kOk : client.error().code;
  };
  EXPECT_EQ(code("127.0.0.1:7070"), Code::kInvalid);
  EXPECT_EQ(code("tcp://127.0.0.1"), Code::kInvalid);
  EXPECT_EQ(code("file:///tmp/x"), Code::kInvalid);
  EXPECT_EQ(code("tcp://127.0.0.1:1", {.ops_max = 0}), Code::kInvalid);
  EXPECT_EQ(code("tcp://127.0.0.1:1", {.breaker_failures = 0}), Code::kInvalid);
  EXPECT_EQ(code("tcp://127.0.0.1:1"), Code::kOk) << "connects in the background";
  EXPECT_EQ(code("tcp://127.0.0.1:1", {.connect_timeout = milliseconds(30), .require_connection = true}),
            Code::kUnavailable);
}

TEST(ClientOpen, AnotherVersionIsRefusedAtOnce) {
  FakeDepotThread depot;
  depot.run([](FakeDepot& fake) { fake.script.hello_status = Code::kStale; });
  const auto client =
      Client::open(depot.address(), {.connect_timeout = std::chrono::seconds(60), .require_connection = true});
  ASSERT_FALSE(client.has_value());
  EXPECT_EQ(client.error().code, Code::kStale);
  EXPECT_STREQ(client.error().what, "the depot speaks another version of the protocol");
}

TEST(ClientOpen, AnEndpointOfAnotherProtocolIsRefusedAtOnce) {
  auto loop = std::move(*io::make_real_loop());
  auto listener = std::move(*net::Listener::bind(*loop, *net::parse_address("tcp://127.0.0.1:0")));
  std::vector<io::UniqueFd> accepted;
  ASSERT_TRUE(listener
                  ->start([&](io::UniqueFd socket) {
                    constexpr std::string_view kReply = "HTTP/1.1 400 Bad Request\r\n\r\n";
                    ASSERT_EQ(::write(socket.get(), kReply.data(), kReply.size()), static_cast<ssize_t>(kReply.size()));
                    accepted.push_back(std::move(socket));
                  })
                  .has_value());
  std::thread server([&] { loop->run(); });
  const auto client = Client::open(listener->address().text(),
                                   {.connect_timeout = std::chrono::seconds(60), .require_connection = true});
  loop->stop();
  server.join();
  ASSERT_FALSE(client.has_value());
  EXPECT_EQ(client.error().code, Code::kInvalid);
  EXPECT_STREQ(client.error().what, "the endpoint does not speak the kvdepot protocol");
}

TEST(ClientOpen, WithoutADepotEverythingIsUnavailableAtOnce) {
  const auto client = std::move(*Client::open("unix:///nonexistent/kvdepot.sock"));
  const NamespaceId ns = *client->open_namespace(make_namespace(1, 4096));
  const std::uint16_t zero = 0;
  const std::array<std::byte, 8> key{};
  const auto op = client->match_prefix(
      {.ns = ns, .shards = {&zero, 1}, .groups = {&zero, 1}, .keys = {.bytes = key, .key_bytes = 8}});
  EXPECT_EQ(op.error().code, Code::kUnavailable);
  EXPECT_EQ(client->unpin(1).error().code, Code::kUnavailable);
  EXPECT_FALSE(client->stats().connected);
}

}  // namespace
}  // namespace kvd::client
