#include "client/op_table.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <thread>

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvd::client {
namespace {

OpRequest get_of(std::uint16_t layers, std::size_t keys, std::uint16_t layer_first = 0) {
  OpRequest request;
  request.kind = OpKind::kGet;
  request.layer_first = layer_first;
  request.layer_count = layers;
  request.key_bytes.resize(keys * 4);
  request.keys = {.bytes = request.key_bytes, .key_bytes = 4};
  return request;
}

class OpTableTest : public testing::Test {
 protected:
  OpTableTest() : event_fd_(::eventfd(0, EFD_NONBLOCK)), table_(4, event_fd_, true) {}
  ~OpTableTest() override { ::close(event_fd_); }

  OpId add(std::uint16_t layers = 3, std::size_t keys = 10) { return (*table_.add(get_of(layers, keys)))->id.load(); }
  void end(OpId id, Code code = Code::kOk) {
    Op& op = *table_.find(id);
    op.results.whole.code = code;
    table_.announce_end(op);
  }
  [[nodiscard]] bool readable() const {
    pollfd fd{.fd = event_fd_, .events = POLLIN, .revents = 0};
    return ::poll(&fd, 1, 0) == 1;
  }

  int event_fd_;
  OpTable table_;
};

TEST_F(OpTableTest, IdsAreNeverZeroAndNeverComeBack) {
  const OpId first = add();
  EXPECT_NE(first, 0U);
  end(first);
  ASSERT_TRUE(table_.release(first).has_value());
  const OpId second = add();
  EXPECT_NE(first, second);
  EXPECT_EQ(table_.find(first), nullptr);
  EXPECT_EQ(table_.try_get(first, kWholeOp).error().code, Code::kNotFound);
  EXPECT_EQ(table_.release(first).error().code, Code::kNotFound);
  for (const OpId id : {OpId{0}, OpId{5}, OpId{0xFFFF}, ~OpId{0}}) EXPECT_EQ(table_.find(id), nullptr);
}

TEST_F(OpTableTest, IsBusyUntilAnOpIsReleased) {
  std::array<OpId, 4> ids{add(), add(), add(), add()};
  EXPECT_EQ(table_.add(get_of(1, 1)).error().code, Code::kBusy);
  EXPECT_EQ(table_.release(ids[2]).error().code, Code::kBusy) << "it has not ended";
  end(ids[2]);
  EXPECT_EQ(table_.add(get_of(1, 1)).error().code, Code::kBusy);
  EXPECT_TRUE(table_.release(ids[2]).has_value());
  EXPECT_TRUE(table_.add(get_of(1, 1)).has_value());
}

TEST_F(OpTableTest, LayersAreKnownOneAfterTheOther) {
  const OpId id = (*table_.add(get_of(3, 10, 5)))->id.load();
  Op& op = *table_.find(id);
  EXPECT_EQ(table_.try_get(id, 5).error().code, Code::kBusy);
  op.results.layers[0].failed_keys = 2;
  table_.announce_layer(op);
  EXPECT_EQ(table_.try_get(id, 5)->failed_keys, 2U);
  EXPECT_EQ(table_.try_get(id, 5)->keys, 10U);
  EXPECT_EQ(table_.try_get(id, 6).error().code, Code::kBusy);
  EXPECT_EQ(table_.try_get(id, kWholeOp).error().code, Code::kBusy);
  EXPECT_EQ(table_.try_get(id, 4).error().code, Code::kInvalid);
  EXPECT_EQ(table_.try_get(id, 8).error().code, Code::kInvalid);
}

TEST_F(OpTableTest, LayersThatNeverCameEndWithTheOperation) {
  const OpId id = add();
  table_.announce_layer(*table_.find(id));
  end(id, Code::kTimeout);
  EXPECT_EQ(table_.try_get(id, 0)->code, Code::kOk);
  EXPECT_EQ(table_.try_get(id, 1)->code, Code::kTimeout);
  EXPECT_EQ(table_.try_get(id, 1)->layer, 1);
  EXPECT_EQ(table_.try_get(id, kWholeOp)->code, Code::kTimeout);
}

TEST_F(OpTableTest, PollGivesEveryCompletionOnceAndInOrder) {
  const OpId a = add(2);
  const OpId b = add(1);
  table_.announce_layer(*table_.find(a));
  table_.announce_layer(*table_.find(b));
  table_.announce_layer(*table_.find(a));
  end(b);
  end(a);
  std::map<OpId, std::vector<std::uint16_t>> seen;
  std::array<Completion, 2> out;
  for (std::size_t n = table_.poll(out); n > 0; n = table_.poll(out)) {
    for (std::size_t i = 0; i < n; ++i) seen[out[i].op].push_back(out[i].layer);
  }
  EXPECT_EQ(seen[a], (std::vector<std::uint16_t>{0, 1, kWholeOp}));
  EXPECT_EQ(seen[b], (std::vector<std::uint16_t>{0, kWholeOp}));
}

TEST_F(OpTableTest, ReleasedOperationsAreNotPolled) {
  std::array<Completion, 8> out;
  for (int i = 0; i < 100; ++i) {  // nobody polls: the queue stays bounded by the slots
    const OpId id = add();
    table_.announce_layer(*table_.find(id));
    end(id);
    ASSERT_TRUE(table_.release(id).has_value());
  }
  EXPECT_EQ(table_.poll(out), 0U);
  const OpId id = add();
  end(id);
  EXPECT_EQ(table_.poll(out), 1U);
  EXPECT_EQ(out[0].op, id);
}

TEST_F(OpTableTest, AnOperationWithManyEventsDisplacesNoOther) {
  const OpId quiet = add(1);
  const OpId busy = add(30);
  table_.announce_layer(*table_.find(quiet));
  for (int i = 0; i < 30; ++i) table_.announce_layer(*table_.find(busy));
  std::array<Completion, 64> out;
  const std::size_t n = table_.poll(out);
  EXPECT_EQ(n, 31U);
  EXPECT_EQ(std::count_if(out.begin(), out.begin() + 31, [&](const Completion& done) { return done.op == quiet; }), 1);
}

TEST_F(OpTableTest, TheDescriptorIsReadableWhileCompletionsWait) {
  const OpId id = add();
  table_.announce_layer(*table_.find(id));
  EXPECT_FALSE(readable()) << "nobody asked for it";
  table_.signal();
  EXPECT_TRUE(readable());
  std::array<Completion, 8> out;
  EXPECT_EQ(table_.poll(out), 1U);
  EXPECT_FALSE(readable());
  table_.announce_layer(*table_.find(id));
  table_.announce_layer(*table_.find(id));
  EXPECT_TRUE(readable());
  EXPECT_EQ(table_.poll(std::span(out).first(1)), 1U);
  EXPECT_TRUE(readable()) << "one is left";
  EXPECT_EQ(table_.poll(out), 1U);
  EXPECT_FALSE(readable());
}

TEST_F(OpTableTest, WaitingIsBoundedAndDoesNotEndTheOperation) {
  const OpId id = add();
  EXPECT_EQ(table_.wait(id, kWholeOp, monotonic_now()).error().code, Code::kTimeout);
  EXPECT_EQ(table_.wait(id, 1, monotonic_now()).error().code, Code::kTimeout);
  end(id);
  EXPECT_TRUE(table_.wait(id, kWholeOp, monotonic_now()).has_value());
}

TEST_F(OpTableTest, WaitersOfEachLayerAndOfTheWholeAreWoken) {
  const OpId id = add(3);
  std::vector<std::thread> waiters;
  std::array<Code, 4> got{};
  for (std::uint16_t i = 0; i < 4; ++i) {
    waiters.emplace_back([&, i] { got[i] = table_.wait(id, i == 3 ? kWholeOp : i, kNever)->code; });
  }
  Op& op = *table_.find(id);
  for (int i = 0; i < 3; ++i) table_.announce_layer(op);
  end(id, Code::kBusy);
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(got, (std::array{Code::kOk, Code::kOk, Code::kOk, Code::kBusy}));
}

// Who sleeps is woken by his layer, not by the time that he would wait at the most.
TEST_F(OpTableTest, AWaiterOfALayerSleepsUntilThatLayer) {
  const OpId id = add(2);
  const Time until = monotonic_now() + std::chrono::seconds(10);
  Time woken = kNever;
  std::thread waiter([&] {
    EXPECT_TRUE(table_.wait(id, 1, until).has_value());
    woken = monotonic_now();
  });
  std::this_thread::sleep_for(Millis(50));
  for (int i = 0; i < 2; ++i) table_.announce_layer(*table_.find(id));
  waiter.join();
  EXPECT_LT(woken, until);
  end(id);
}

// A slot's next operation begins while somebody still sleeps for the last one.
TEST(EventCount, WhatIsForAllWakesAlsoWhoseChannelsAResetHasForgotten) {
  EventCount events;
  const Time until = monotonic_now() + std::chrono::seconds(10);
  std::atomic<bool> in_time{false};
  std::thread waiter([&] { in_time = events.wait(0, 1, until); });
  std::this_thread::sleep_for(Millis(50));
  events.reset();
  events.raise(1, EventCount::kAllChannels);
  waiter.join();
  EXPECT_TRUE(in_time);
}

// Without a new value: who sleeps looks again, and who was about to sleep does not.
TEST(EventCount, ACallWakesWhoSleepsAndWhoIsAboutTo) {
  EventCount events;
  events.raise(5, 0);
  const Time until = monotonic_now() + std::chrono::seconds(10);
  const std::uint32_t seen = events.seen();
  events.call();
  EXPECT_TRUE(events.wait(seen, 1, until));
  EXPECT_EQ(events.value(), 5U);
  std::atomic<bool> woken{false};
  std::thread waiter([&, now = events.seen()] {
    EXPECT_TRUE(events.wait(now, 1, until));
    woken = true;
  });
  while (!woken) {
    events.call();
    std::this_thread::yield();
  }
  waiter.join();
  events.raise(6, 0);
  EXPECT_EQ(events.value(), 6U);
}

// Slabs to be copied, of which `on_slab` may do something besides.
class CopiesToDo final : public CopyJob::Work {
 public:
  explicit CopiesToDo(std::function<void(std::size_t)> on_slab = {}) : on_slab_(std::move(on_slab)) {}
  [[nodiscard]] bool run_slab(std::size_t slab) const noexcept override {
    if (on_slab_) on_slab_(slab);
    ++run;
    return true;
  }
  mutable std::atomic<std::size_t> run{0};

 private:
  std::function<void(std::size_t)> on_slab_;
};

constexpr std::size_t kSlabsToCopy = 64;
constexpr std::uint32_t kSlabOfAClaim = 1 << 20;  // a claim each

TEST_F(OpTableTest, WhoWaitsAndHelpsCopiesWhatThereIs) {
  const OpId id = add();
  const CopiesToDo work([&](std::size_t slab) {
    if (slab + 1 == kSlabsToCopy) end(id);  // as the I/O thread does
  });
  table_.copies().open(id, work, kSlabsToCopy, kSlabOfAClaim);
  EXPECT_TRUE(table_.wait(id, kWholeOp, kNever, nullptr, true).has_value());
  EXPECT_EQ(work.run, kSlabsToCopy);
  table_.copies().close();
}

TEST_F(OpTableTest, WhoSleepsIsCalledToHelp) {
  const OpId id = add();
  const CopiesToDo work;
  std::thread waiter([&] { EXPECT_TRUE(table_.wait(id, kWholeOp, kNever, nullptr, true).has_value()); });
  std::this_thread::sleep_for(Millis(20));
  table_.copies().open(id, work, kSlabsToCopy, kSlabOfAClaim);
  table_.find(id)->events.call();
  while (work.run < kSlabsToCopy) std::this_thread::yield();
  table_.copies().close();
  end(id);
  waiter.join();
}

// Nobody calls: who sleeps would not notice. Only behind a first view, and not by who waits for something else.
TEST_F(OpTableTest, WhereViewsComeAWaiterLooksForTheNextBeforeHeSleeps) {
  OpTable table(4, event_fd_, true, std::chrono::seconds(20));
  OpRequest large = get_of(1, 1);
  large.layout = Layout::packed(nullptr, 1, 1, kSlabOfAClaim);
  const OpId first = (*table.add(get_of(1, 1)))->id.load();
  const OpId id = (*table.add(std::move(large)))->id.load();
  const CopiesToDo work;
  table.copies().open(first, work, 1, kSlabOfAClaim);
  EXPECT_EQ(table.copies().run_next(), 1U);
  table.copies().close();
  std::atomic<bool> over{false};
  std::thread waiter([&] {
    EXPECT_TRUE(table.wait(id, kWholeOp, monotonic_now() + std::chrono::seconds(10), nullptr, true).has_value());
    over = true;
  });
  std::this_thread::sleep_for(Millis(20));
  table.copies().open(id, work, kSlabsToCopy, kSlabOfAClaim);
  while (work.run <= kSlabsToCopy && !over) std::this_thread::yield();
  EXPECT_EQ(work.run, kSlabsToCopy + 1);
  table.copies().close();
  const Time soon = monotonic_now() + Millis(5);
  EXPECT_EQ(table.wait(first, kWholeOp, soon, nullptr, true).error().code, Code::kTimeout) << "a small one";
  table.announce_end(*table.find(id));
  waiter.join();
}

TEST_F(OpTableTest, NobodyHelpsWhoDoesNotWaitForItOrHasNoTimeOrIsToBeDone) {
  const OpId id = add();
  const OpId other = add();
  const CopiesToDo work;
  table_.copies().open(id, work, kSlabsToCopy, kSlabOfAClaim);
  const Time soon = monotonic_now() + Millis(5);
  EXPECT_EQ(table_.wait(other, kWholeOp, soon, nullptr, true).error().code, Code::kTimeout);
  EXPECT_EQ(table_.wait(id, kWholeOp, soon).error().code, Code::kTimeout) << "as cancel() waits";
  EXPECT_EQ(table_.wait(id, kWholeOp, monotonic_now(), nullptr, true).error().code, Code::kTimeout);
  EXPECT_EQ(work.run, 0U);
  table_.copies().close();
}

TEST_F(OpTableTest, HelpingIsOverWhenItsLayerIsThereOrItsTimeIsUp) {
  const OpId id = add(3);
  const CopiesToDo work([&](std::size_t slab) {
    if (slab == 2 || slab == 5) table_.announce_layer(*table_.find(id));
  });
  table_.copies().open(id, work, kSlabsToCopy, kSlabOfAClaim);
  EXPECT_TRUE(table_.wait(id, 0, kNever, nullptr, true).has_value());
  EXPECT_EQ(work.run, 3U);
  EXPECT_TRUE(table_.wait(id, 1, kNever, nullptr, true).has_value());
  EXPECT_EQ(work.run, 6U);
  table_.copies().close();
  const Time until = monotonic_now() + Millis(1);
  const CopiesToDo slow([&](std::size_t) {
    while (monotonic_now() < until) std::this_thread::yield();
  });
  table_.copies().open(id, slow, kSlabsToCopy, kSlabOfAClaim);
  EXPECT_EQ(table_.wait(id, kWholeOp, until, nullptr, true).error().code, Code::kTimeout);
  EXPECT_LE(slow.run, 1U) << "the one that it was at";
  table_.copies().close();
}

TEST_F(OpTableTest, AWaiterLearnsThatItsOperationWasReleased) {
  const OpId id = add();
  end(id);
  std::thread waiter([&] {
    const auto done = table_.wait(id, kWholeOp, kNever);
    EXPECT_TRUE(done.has_value() || done.error().code == Code::kNotFound);
  });
  ASSERT_TRUE(table_.release(id).has_value());
  waiter.join();
}

TEST_F(OpTableTest, LayersOfAPutAreReleasedOnce) {
  OpRequest request = get_of(70, 1);
  request.kind = OpKind::kPut;
  const OpId id = (*table_.add(std::move(request)))->id.load();
  EXPECT_TRUE(table_.release_layer(id, 69).has_value());
  EXPECT_TRUE(table_.find(id)->layer_released(69));
  EXPECT_FALSE(table_.find(id)->layer_released(68));
  EXPECT_EQ(table_.release_layer(id, 69).error().code, Code::kInvalid);
  EXPECT_EQ(table_.release_layer(id, 70).error().code, Code::kInvalid);
  EXPECT_EQ(table_.release_layer(add(), 0).error().code, Code::kInvalid) << "not a put";
  EXPECT_EQ(table_.release_layer(12345, 0).error().code, Code::kNotFound);
}

TEST_F(OpTableTest, CopiesOutliveTheOp) {
  const OpId id = add(1);
  Op& op = *table_.find(id);
  op.results.bitmaps.push_back(std::make_unique<std::uint8_t[]>(2));
  op.results.bitmaps[1][1] = 2;  // key 9
  op.results.layers[0] = {.failed_keys = 1, .failed = op.results.bitmaps[1].get()};
  table_.announce_layer(op);
  op.results.why = "a text that is too long to be kept inside of a string";
  op.results.whole.why = op.results.why.c_str();
  end(id, Code::kBusy);
  OwnedCompletion layer;
  ASSERT_TRUE(table_.wait(id, 0, kNever, &layer).has_value());
  std::array<Completion, 4> out;
  std::vector<OwnedCompletion> polled;
  ASSERT_EQ(table_.poll(out, &polled), 2U);
  ASSERT_TRUE(table_.release(id).has_value());
  EXPECT_EQ(layer.done.failed_keys, 1U);
  EXPECT_EQ(layer.failed, (std::vector<std::uint8_t>{0, 2}));
  ASSERT_EQ(polled.size(), 2U);
  EXPECT_EQ(polled[0].failed, layer.failed);
  EXPECT_EQ(polled[1].done.code, Code::kBusy);
  EXPECT_EQ(polled[1].why, "a text that is too long to be kept inside of a string");
  EXPECT_EQ(polled[1].done.failed, nullptr);
}

// The race that tsan and asan see when a bitmap is copied after wait() has returned.
TEST_F(OpTableTest, AnOpMayBeReleasedWhileOthersCopyItsCompletion) {
  for (int round = 0; round < 500; ++round) {
    const OpId id = add(1, 100);
    std::array<std::thread, 2> waiters;
    for (std::thread& waiter : waiters) {
      waiter = std::thread([this, id] {
        OwnedCompletion copy;
        const auto done = table_.wait(id, kWholeOp, kNever, &copy);
        EXPECT_TRUE(done ? copy.failed == std::vector<std::uint8_t>(13) : done.error().code == Code::kNotFound);
      });
    }
    end(id);
    EXPECT_TRUE(table_.release(id).has_value());
    for (std::thread& waiter : waiters) waiter.join();
  }
}

// One thread plays the I/O thread; others submit, wait, poll and release as they like.
TEST_F(OpTableTest, ManyThreadsNeverLoseACompletion) {
  constexpr int kRounds = 2000;
  std::array<std::atomic<Op*>, 4> work{};
  std::atomic<bool> stop{false};
  std::thread io([&] {
    while (!stop.load()) {
      for (auto& slot : work) {
        Op* const op = slot.exchange(nullptr);
        if (op == nullptr) continue;
        for (std::size_t i = op->results.layers.size(); i > 0; --i) table_.announce_layer(*op);
        table_.announce_end(*op);
      }
    }
  });
  std::thread poller([&] {
    std::array<Completion, 3> out;
    while (!stop.load()) table_.poll(out);
  });
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&, c] {
      for (int i = 0; i < kRounds; ++i) {
        const auto op = table_.add(get_of(static_cast<std::uint16_t>(1 + i % 5), 3));
        if (!op) continue;
        const OpId id = (*op)->id.load();
        Op* expected = nullptr;
        while (!work[static_cast<std::size_t>(c)].compare_exchange_weak(expected, *op)) expected = nullptr;
        EXPECT_TRUE(table_.wait(id, 0, kNever).has_value());
        EXPECT_TRUE(table_.wait(id, kWholeOp, kNever).has_value());
        EXPECT_TRUE(table_.release(id).has_value());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  stop = true;
  io.join();
  poller.join();
}

}  // namespace
}  // namespace kvd::client
