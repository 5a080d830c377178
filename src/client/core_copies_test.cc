// Gets whose slabs are copied by those who wait for them, too: the core in virtual time, helpers on their threads.
#include <array>
#include <functional>
#include <thread>

#include <gtest/gtest.h>

#include "client/core.h"
#include "client/testing/core_rig.h"

namespace kvd::client {
namespace {

class CoreCopies : public SharingRigTest {
 protected:
  // One view of 12 MiB, of which the I/O thread takes 4 to 5 in a turn.
  static RigOptions shared() { return {.layers = 12, .slab_bytes = 256 << 10, .keys = 4}; }
  void start_in_the_middle(const ScriptChange& change = {}, Deadline deadline = kNone) {
    start(shared(), change);
    go_to_the_middle(rig->get(deadline, false));
  }
  void start(RigOptions options, const ScriptChange& change = {}) {
    SharingRigTest::start(std::move(options), [&](FakeScript& script) {
      whole(script);
      if (change) change(script);
    });
  }
  void go_to_the_middle(OpId op) {
    op_ = op;
    const GetCounters& counters = rig->state.get;
    while (counters.bytes_loaded.value() == 0) rig->loop.run_once(Duration::zero());
    ASSERT_FALSE(rig->ended(op));
    before_ = counters.bytes_loaded.value();
    ASSERT_LT(before_, rig->memory.size());
  }
  CopyJob& job() { return rig->ops->copies(); }
  // Whether there is something to copy for it, which is copied here.
  bool copies_some() {
    const auto claim = job().claim(op_);
    if (claim) CopyJob::run(*claim);
    return claim.has_value();
  }
  // Copies all that is left on another thread.
  void help() {
    std::thread helper([this] {
      while (copies_some()) {
      }
    });
    helper.join();
  }
  [[nodiscard]] bool all_landed() const {
    for (std::size_t key = 0; key < rig->options.keys; ++key) {
      for (std::size_t layer = 0; layer < rig->options.layers; ++layer) {
        if (!rig->landed(layer, key)) return false;
      }
    }
    return true;
  }
  // `end` ends the operation with `code` while a helper is at a slab, which it leaves later.
  void expect_waits(Code code, const std::function<void()>& end) {
    const auto claim = job().claim(op_);
    ASSERT_TRUE(claim.has_value());
    std::atomic<bool> ended_under_it{false};
    std::thread helper([&] {
      for (int i = 0; i < 20'000; ++i) {
        if (rig->ended(op_)) ended_under_it = true;
        std::this_thread::yield();
      }
      CopyJob::run(*claim);
    });
    end();
    EXPECT_TRUE(rig->ended(op_));
    rig->poison();
    helper.join();
    EXPECT_FALSE(ended_under_it);
    EXPECT_EQ(rig->ops->try_get(op_, kWholeOp)->code, code);
    EXPECT_FALSE(copies_some());
    for (std::size_t layer = 0; layer < rig->options.layers; ++layer) EXPECT_TRUE(rig->poisoned(layer, 3));
  }

  static constexpr Deadline kNone{.total = {}, .progress = {}};
  OpId op_ = 0;
  std::uint64_t before_ = 0;
};

TEST_F(CoreCopies, WhatAHelperCopiesIsCollectedInOrder) {
  start_in_the_middle();
  std::array<Completion, 16> out;
  const std::size_t early = rig->ops->poll(out);
  help();
  EXPECT_EQ(rig->state.get.bytes_shared.value(), before_) << "by the I/O thread alone";
  EXPECT_EQ(rig->ops->poll(out), 0U);
  EXPECT_EQ(rig->finish(op_).code, Code::kOk);
  EXPECT_TRUE(all_landed());
  EXPECT_EQ(rig->state.get.bytes_shared.value(), rig->memory.size());
  EXPECT_EQ(rig->state.get.bytes_loaded.value(), rig->memory.size());
  const std::size_t late = rig->ops->poll(out);
  ASSERT_EQ(early + late, 13U);
  for (std::size_t i = 0; i + 1 < late; ++i) EXPECT_EQ(out[i].layer, early + i);
  EXPECT_EQ(out[late - 1].layer, kWholeOp);
  EXPECT_TRUE(rig->all_given_back());
}

TEST_F(CoreCopies, ADamagedSlabThatAHelperFindsFailsItsKey) {
  start_in_the_middle([](FakeScript& script) { script.corrupt = {{1, 10}}; });
  help();
  EXPECT_EQ(rig->state.get.corrupt_slabs.value(), 0U);
  const Completion done = rig->finish(op_);
  EXPECT_EQ(done.failed_keys, 1U);
  EXPECT_EQ(done.failed[0], 0b0010);
  EXPECT_EQ(rig->ops->try_get(op_, 9)->failed_keys, 0U);
  EXPECT_EQ(rig->ops->try_get(op_, 10)->failed_keys, 1U);
  EXPECT_EQ(rig->state.get.corrupt_slabs.value(), 1U);
  rig->loop.settle();
  EXPECT_EQ(rig->depot->checked.size(), 5U) << "the depot is told";
}

TEST_F(CoreCopies, CancelWaitsForAHelperAndNothingLandsAfterIt) {
  start_in_the_middle();
  expect_waits(Code::kCancelled, [this] { rig->cancel(op_); });
  EXPECT_TRUE(rig->all_given_back());
  rig->release(op_);
  EXPECT_EQ(rig->finish(rig->get()).code, Code::kOk) << "the connection goes on";
  EXPECT_TRUE(all_landed());
}

TEST_F(CoreCopies, TheDeadlineDoesToo) {
  start_in_the_middle({}, {.total = Millis(50), .progress = {}});
  expect_waits(Code::kTimeout, [this] {
    rig->clock.advance_to(rig->clock.now() + Millis(60));
    rig->loop.run_once(Duration::zero());
  });
}

TEST_F(CoreCopies, TheClientsEndDoesToo) {
  start_in_the_middle();
  expect_waits(Code::kCancelled, [this] { rig->core->stop(); });
}

// What helpers have is not there yet: the loop serves others meanwhile.
TEST_F(CoreCopies, AHelperWhoHasLostHisCoreHoldsUpHisGetOnly) {
  start_in_the_middle();
  std::vector<CopyJob::Claim> claims;
  while (const auto claim = job().claim(op_)) claims.push_back(*claim);
  const OpId other = rig->match();
  EXPECT_EQ(rig->finish(other).code, Code::kOk);
  EXPECT_FALSE(rig->ended(op_));
  for (const CopyJob::Claim& claim : claims) CopyJob::run(claim);
  EXPECT_EQ(rig->finish(op_).code, Code::kOk);
  EXPECT_TRUE(all_landed());
}

TEST_F(CoreCopies, ViewsThatStayAreVerifiedByHelpers) {
  start(shared(), [](FakeScript& script) {
    script.keeps = true;
    script.corrupt = {{2, 11}};
  });
  go_to_the_middle(rig->borrow(true, std::chrono::seconds(10), false));
  help();
  EXPECT_EQ(rig->finish(op_).failed[0], 0b0100);
  EXPECT_EQ(rig->state.get.bytes_borrowed.value(), rig->memory.size());
  const auto view = rig->ops->take_view(op_);
  ASSERT_TRUE(view.has_value());
  EXPECT_TRUE((*view)->borrowed());
  EXPECT_TRUE((*view)->slab(2, 0).empty());
  for (std::uint16_t layer = 0; layer < 12; ++layer) {
    EXPECT_TRUE(std::ranges::equal((*view)->slab(3, layer), rig->record(3)[layer])) << layer;
  }
}

TEST_F(CoreCopies, LargeSlabsAreTheIoThreadsAlone) {
  start({.layers = 6, .slab_bytes = 2 << 20, .keys = 2});
  go_to_the_middle(rig->get());
  EXPECT_FALSE(copies_some());
  EXPECT_EQ(rig->finish(op_).code, Code::kOk);
  EXPECT_TRUE(all_landed());
}

}  // namespace
}  // namespace kvd::client
