// Borrows in virtual time: slabs that stay in the depot's memory, or are copied for the view where that cannot be.
#include <poll.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include <gtest/gtest.h>

#include "client/core.h"
#include "client/testing/core_rig.h"

namespace kvd::client {
namespace {

using wire::Opcode;

class CoreBorrow : public SharingRigTest {
 protected:
  void start(RigOptions options = {}, const ScriptChange& wrong = {}) {
    SharingRigTest::start(std::move(options), [&](FakeScript& script) {
      script.keeps = true;
      if (wrong) wrong(script);
    });
  }
  // The view of a borrow that went through; the operation is released.
  std::unique_ptr<View> view_of(OpId op) {
    EXPECT_EQ(rig->finish(op).code, Code::kOk);
    auto view = rig->ops->take_view(op);
    EXPECT_TRUE(view.has_value());
    rig->release(op);
    rig->loop.settle();
    return view ? std::move(*view) : nullptr;
  }
  [[nodiscard]] bool shows_all(const View& view) const {
    for (std::size_t key = 0; key < rig->options.keys; ++key) {
      const auto record = rig->record(key);
      for (std::uint16_t layer = 0; layer < rig->options.layers; ++layer) {
        if (!std::ranges::equal(view.slab(key, layer), record[layer])) return false;
      }
    }
    return true;
  }
  // The client has no copy of its keeper any more.
  [[nodiscard]] bool keeper_closed() const {
    pollfd look{.fd = rig->depot->keeper.get(), .events = 0, .revents = 0};
    return ::poll(&look, 1, 0) == 1 && (look.revents & POLLHUP) != 0;
  }
};

TEST_F(CoreBorrow, SlabsStayWhereTheyAreUntilTheViewEnds) {
  start();
  auto view = view_of(rig->borrow());
  EXPECT_TRUE(shows_all(*view));
  EXPECT_TRUE(view->borrowed());
  EXPECT_EQ(rig->state.get.bytes_borrowed.value(), rig->memory.size());
  EXPECT_EQ(rig->state.get.bytes_loaded.value(), rig->memory.size());
  EXPECT_EQ(rig->state.get.bytes_shared.value(), 0U);
  EXPECT_EQ(rig->depot->gets_keep, 1U);
  EXPECT_EQ(rig->depot->lent.size(), 4U) << "a message a layer";
  EXPECT_EQ(rig->depot->seen[Opcode::kRelease], 0U);
  view.reset();
  EXPECT_TRUE(rig->all_given_back());
  EXPECT_EQ(rig->depot->seen[Opcode::kRelease], 1U);
}

// A caller that uses a view for a moment has another request soon.
TEST_F(CoreBorrow, AViewThatComesBackSoonGoesWithTheNextRequestAndWakesNobody) {
  start();
  auto view = view_of(rig->borrow());
  view.reset();
  EXPECT_FALSE(rig->loop.run_once(Duration::zero())) << "nothing was posted";
  const std::uint64_t sends = rig->state.net.send_calls.value();
  const auto next = view_of(rig->borrow());
  EXPECT_EQ(rig->state.net.send_calls.value() - sends, 1U) << "with the request";
  EXPECT_EQ(rig->depot->lent.size(), 4U) << "of the second";
  rig->clock.advance_to(rig->clock.now() + Millis(50));
  rig->loop.settle();
  auto late = view_of(rig->borrow());
  rig->clock.advance_to(rig->clock.now() + Millis(3));
  rig->loop.settle();
  late.reset();
  EXPECT_TRUE(rig->loop.run_once(Duration::zero())) << "one that is kept for longer is told of at once";
}

TEST_F(CoreBorrow, WhatWasNotAskedForIsEmpty) {
  start();
  const auto view = view_of(rig->borrow());
  EXPECT_TRUE(view->slab(rig->options.keys, 0).empty());
  EXPECT_TRUE(view->slab(0, rig->options.layers).empty());
  EXPECT_TRUE(view->slab(SIZE_MAX, 0xFFFF).empty());
}

TEST_F(CoreBorrow, ADamagedSlabFailsItsKey) {
  for (const std::uint32_t slab_bytes : {4096U, 600'000U}) {  // hashed at once, and in steps
    start({.slab_bytes = slab_bytes}, [](FakeScript& script) { script.corrupt = {{1, 2}}; });
    const OpId op = rig->borrow(true, std::chrono::seconds(10), false);
    EXPECT_EQ(rig->finish(op).failed_keys, 1U);
    EXPECT_EQ(rig->finish(op).failed[0], 2);
    EXPECT_EQ(rig->state.get.corrupt_slabs.value(), 1U);
    const auto view = view_of(op);
    EXPECT_TRUE(view->slab(1, 0).empty()) << "also the slabs that were right";
    EXPECT_TRUE(std::ranges::equal(view->slab(2, 3), rig->record(2)[3]));
    EXPECT_EQ(rig->depot->checked.size(), 5U);
  }
}

TEST_F(CoreBorrow, WithoutVerificationNothingIsRead) {
  start({}, [](FakeScript& script) { script.corrupt = {{1, 2}}; });
  const auto view = view_of(rig->borrow(false));
  EXPECT_EQ(rig->state.get.corrupt_slabs.value(), 0U);
  EXPECT_FALSE(std::ranges::equal(view->slab(1, 2), rig->record(1)[2]));
  EXPECT_TRUE(std::ranges::equal(view->slab(2, 3), rig->record(2)[3]));
}

TEST_F(CoreBorrow, WhoReadsASlabVerifiesItThen) {
  start({.slab_bytes = 5000}, [](FakeScript& script) { script.corrupt = {{1, 2}}; });
  const auto view = view_of(rig->borrow(false));
  for (std::size_t key = 0; key < rig->options.keys; ++key) {
    for (std::uint16_t layer = 0; layer < rig->options.layers; ++layer)
      EXPECT_EQ(view->verify(key, layer), key != 1 || layer != 2) << key << ' ' << layer;
  }
  EXPECT_FALSE(view->verify(rig->options.keys, 0));
  EXPECT_FALSE(view->verify(0, rig->options.layers));
  EXPECT_EQ(rig->core->damaged_in_views(), 1U);
  rig->loop.settle();
  EXPECT_EQ(rig->depot->checked.size(), 5U) << "key 1";
  rig->stop_core();
  EXPECT_TRUE(view->verify(2, 3));
  EXPECT_FALSE(view->verify(1, 2));
}

TEST_F(CoreBorrow, AVerifiedSlabIsNotReadAgain) {
  start({}, [](FakeScript& script) { script.corrupt = {{1, 2}}; });
  const OpId op = rig->borrow(true, std::chrono::seconds(10), false);
  rig->finish(op);
  const auto view = view_of(op);
  EXPECT_FALSE(view->verify(1, 0)) << "it has failed";
  EXPECT_TRUE(view->verify(0, 2));
  rig->depot->scribble();
  EXPECT_TRUE(view->verify(0, 2));
  EXPECT_EQ(rig->core->damaged_in_views(), 0U);
}

// Another one may have the memory before it has been copied: only the checksum tells.
TEST_F(CoreBorrow, WhatIsCopiedIsVerifiedAlsoWhereThatWasNotAskedFor) {
  for (const bool shares : {false, true}) {
    start({}, [shares](FakeScript& script) {
      script.shares = shares;
      script.keeps = false;
      script.corrupt = {{1, 2}};
    });
    const OpId op = rig->borrow(false, std::chrono::seconds(10), false);
    EXPECT_EQ(rig->finish(op).failed_keys, 1U);
    EXPECT_TRUE(view_of(op)->slab(1, 2).empty());
  }
}

TEST_F(CoreBorrow, ADepotThatKeepsNothingOrSendsBytesIsCopiedFrom) {
  for (const bool shares : {false, true}) {
    start({.slab_bytes = 300'000}, [shares](FakeScript& script) {
      script.shares = shares;
      script.keeps = false;
    });
    const auto view = view_of(rig->borrow());
    EXPECT_TRUE(shows_all(*view));
    EXPECT_FALSE(view->borrowed());
    EXPECT_EQ(rig->depot->gets_keep, 0U);
    EXPECT_EQ(rig->state.get.bytes_borrowed.value(), 0U);
    EXPECT_TRUE(rig->all_given_back()) << "what it was copied from";
  }
}

TEST_F(CoreBorrow, ADamagedCopyFailsItsKey) {
  start({}, [](FakeScript& script) {
    script.shares = false;
    script.corrupt = {{0, 1}};
  });
  const OpId op = rig->borrow(true, std::chrono::seconds(10), false);
  EXPECT_EQ(rig->finish(op).failed_keys, 1U);
  const auto view = view_of(op);
  EXPECT_TRUE(view->slab(0, 1).empty());
  EXPECT_TRUE(std::ranges::equal(view->slab(1, 1), rig->record(1)[1]));
}

TEST_F(CoreBorrow, AViewThatNobodyTakesIsGivenBackWithItsOperation) {
  start();
  const OpId op = rig->borrow();
  EXPECT_EQ(rig->ops->take_view(op).error().code, Code::kBusy);
  rig->finish(op);
  EXPECT_FALSE(rig->depot->lent.empty());
  rig->release(op);
  EXPECT_TRUE(rig->all_given_back());
  EXPECT_EQ(rig->ops->take_view(op).error().code, Code::kNotFound);
}

TEST_F(CoreBorrow, AViewIsTakenOnce) {
  start();
  const OpId op = rig->borrow();
  rig->finish(op);
  const auto view = rig->ops->take_view(op);
  EXPECT_EQ(rig->ops->take_view(op).error().code, Code::kNotFound);
  const OpId get = rig->get();
  rig->finish(get);
  EXPECT_EQ(rig->ops->take_view(get).error().code, Code::kNotFound);
}

TEST_F(CoreBorrow, ACancelledBorrowGivesBackWhatItHas) {
  start({.layers = 6, .slab_bytes = 2 << 20, .keys = 2}, whole);
  const OpId op = rig->borrow();
  while (rig->state.get.bytes_borrowed.value() == 0) rig->loop.run_once(Duration::zero());
  ASSERT_FALSE(rig->ended(op));
  rig->cancel(op);
  EXPECT_EQ(rig->finish(op).code, Code::kCancelled);
  EXPECT_EQ(rig->ops->take_view(op).error().code, Code::kNotFound);
  EXPECT_TRUE(rig->all_given_back());
}

TEST_F(CoreBorrow, WhenItsTimeIsOverAViewTurnsIntoACopyAtTheSameAddress) {
  start();
  const auto view = view_of(rig->borrow(true, Millis(500)));
  const std::byte* const place = view->slab(0, 0).data();
  rig->clock.advance_to(rig->clock.now() + Millis(400));
  EXPECT_FALSE(rig->all_given_back());
  rig->clock.advance_to(rig->clock.now() + Millis(200));
  EXPECT_TRUE(rig->all_given_back());
  EXPECT_FALSE(view->borrowed());
  EXPECT_EQ(rig->state.get.loans_ended.value(), 1U);
  rig->depot->scribble();
  EXPECT_EQ(view->slab(0, 0).data(), place);
  EXPECT_TRUE(shows_all(*view));
}

// Callers are heard meanwhile: a cancel() waits for a step of it.
TEST_F(CoreBorrow, ALargeViewTurnsIntoACopyInSeveralTurns) {
  start({.layers = 4, .slab_bytes = 1 << 20}, whole);
  const auto view = view_of(rig->borrow(true, Millis(500)));
  rig->clock.advance_to(rig->clock.now() + Millis(600));
  int turns = 0;
  for (; view->borrowed() && turns < 100; ++turns) rig->loop.run_once(Duration::zero());
  EXPECT_FALSE(view->borrowed());
  EXPECT_GE(turns, 6) << "12 MiB";
  EXPECT_EQ(rig->state.get.loans_ended.value(), 1U);
  EXPECT_TRUE(rig->all_given_back());
  rig->depot->scribble();
  EXPECT_TRUE(shows_all(*view));
}

TEST_F(CoreBorrow, BehindACopyNewGetsReadTheDepotsMemory) {
  start();
  const auto old = view_of(rig->borrow(true, Millis(500)));
  rig->clock.advance_to(rig->clock.now() + Millis(600));
  ASSERT_TRUE(rig->all_given_back());
  rig->depot->scribble();
  rig->depot->reuse_memory();  // new views lie where the old one did
  const auto view = view_of(rig->borrow());
  EXPECT_TRUE(shows_all(*view));
  EXPECT_TRUE(view->borrowed());
  EXPECT_EQ(rig->finish(rig->get()).failed_keys, 0U);
  EXPECT_TRUE(shows_all(*old));
}

TEST_F(CoreBorrow, BehindACopyTheNewMappingIsEnteredAheadOfItsFirstRead) {
  start();
  const auto old = view_of(rig->borrow(true, Millis(500)));
  rig->loop.run_for(Millis(800));
  EXPECT_FALSE(old->borrowed());
  const auto entered = CoreRig::entered_bytes();  // what was cut loose is listed apart
  EXPECT_GE(std::accumulate(entered.begin(), entered.end(), std::uint64_t{0}), 2 * rig->memory.size());
}

TEST_F(CoreBorrow, AViewOutlastsItsConnectionAndIsNotGivenBackOnTheNext) {
  start();
  auto view = view_of(rig->borrow());
  const io::UniqueFd keeper = std::move(rig->depot->keeper);
  rig->depot->drop_connections();
  ASSERT_TRUE(rig->loop.run_until([&] { return !rig->state.connected(); }, std::chrono::seconds(5)));
  ASSERT_TRUE(rig->wait_connected());
  pollfd look{.fd = keeper.get(), .events = 0, .revents = 0};
  EXPECT_EQ(::poll(&look, 1, 0), 0) << "the depot still has to keep it";
  EXPECT_TRUE(shows_all(*view));
  rig->depot->lent.clear();
  view.reset();
  EXPECT_TRUE(rig->all_given_back());
  EXPECT_EQ(rig->depot->seen[Opcode::kRelease], 0U);
  EXPECT_EQ(::poll(&look, 1, 0), 1);
}

TEST_F(CoreBorrow, AViewOutlastsItsClient) {
  start();
  auto view = view_of(rig->borrow());
  rig->stop_core();
  EXPECT_TRUE(shows_all(*view));
  EXPECT_FALSE(keeper_closed());
  view.reset();
  EXPECT_TRUE(keeper_closed());
}

TEST_F(CoreBorrow, WithoutViewsTheKeeperGoesWithTheConnection) {
  start();
  view_of(rig->borrow()).reset();
  rig->stop_core();
  EXPECT_TRUE(keeper_closed());
}

TEST_F(CoreBorrow, WhereNoKeeperArrivesTheNextAttemptDoesWithout) {
  start();
  rig->depot->script.no_keeper = true;
  rig->depot->drop_connections();
  ASSERT_TRUE(rig->loop.run_until([&] { return !rig->state.connected(); }, std::chrono::seconds(5)));
  ASSERT_TRUE(rig->wait_connected());
  const auto view = view_of(rig->borrow());
  EXPECT_FALSE(view->borrowed());
  EXPECT_TRUE(shows_all(*view));
}

}  // namespace
}  // namespace kvd::client
