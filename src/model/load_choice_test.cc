// Tests of the choice between a layer-wise load, an asynchronous one and none.
#include "model/load_choice.h"

#include <gtest/gtest.h>

namespace kvd::model {
namespace {

constexpr PassCoefficients kCost{0.03, 0.0011, 3.0e-8};
constexpr std::uint64_t kTokenBytes = 23'040;

// A document of 54 blocks and a question behind it, all of the document in the depot's pool.
LoadQuestion document(std::uint64_t question = 8) {
  LoadQuestion q;
  q.prompt_tokens = 6912 + question;
  q.hit_tokens = 6912;
  q.token_bytes = kTokenBytes;
  return q;
}

LoadChoice choice_at(double bytes_per_s, bool spare_core = true) {
  LoadChoice choice(kCost, spare_core);
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t bytes = 1000 * kTokenBytes;
    choice.observe_load(bytes, 0, static_cast<double>(bytes) / bytes_per_s, false);
  }
  return choice;
}

TEST(LoadChoice, LoadsNothingWithoutAHit) {
  LoadQuestion q = document();
  q.hit_tokens = 0;
  EXPECT_EQ(choice_at(2e9).choose(q).mode, LoadMode::kNone);
}

TEST(LoadChoice, ARequestAloneOverlapsItsLoadWithItsPass) {
  const LoadAnswer answer = choice_at(2e9).choose(document(512));
  EXPECT_EQ(answer.mode, LoadMode::kLayerwise);
  EXPECT_LT(answer.layerwise_s, answer.async_s);
}

TEST(LoadChoice, OthersAreNotHeldUpByALoadThatOutlastsThePass) {
  LoadQuestion q = document();
  q.others = 8;
  q.others_work = {8, 8 * 500};
  EXPECT_EQ(choice_at(50e6).choose(q).mode, LoadMode::kAsync);
}

TEST(LoadChoice, OthersAreNotHeldUpByALoadThatThePassHides) {
  LoadQuestion q = document(2048);
  q.others = 8;
  const LoadAnswer answer = choice_at(2e9).choose(q);
  EXPECT_LE(answer.load_s, answer.pass_s);
  EXPECT_EQ(answer.mode, LoadMode::kLayerwise);
}

TEST(LoadChoice, WithOthersAnUnmeasuredDepotIsAskedAsynchronously) {
  LoadQuestion q = document(2048);
  q.others = 1;
  EXPECT_EQ(LoadChoice(kCost, true).choose(q).mode, LoadMode::kAsync);
  q.others = 0;
  EXPECT_EQ(LoadChoice(kCost, true).choose(q).mode, LoadMode::kLayerwise);
}

// What was read from flash says nothing of the pool, and the other way round.
TEST(LoadChoice, WithOthersATierThatWasNotMeasuredIsAskedAsynchronously) {
  LoadQuestion q = document(2048);
  q.others = 1;
  LoadChoice choice(kCost, true);
  choice.observe_load(0, 6912 * kTokenBytes, 0.1, false);
  EXPECT_EQ(choice.choose(q).mode, LoadMode::kAsync);
  q.flash_tokens = 6912;
  EXPECT_EQ(choice.choose(q).mode, LoadMode::kLayerwise);
  EXPECT_EQ(choice_at(2e9).choose(q).mode, LoadMode::kAsync);
}

TEST(LoadChoice, WhatComputesSoonerIsComputed) {
  EXPECT_EQ(choice_at(10e6).choose(document()).mode, LoadMode::kNone);  // 159 MB at 10 MB/s against 8 s
  LoadQuestion q = document();
  q.others = 3;
  EXPECT_EQ(choice_at(10e6).choose(q).mode, LoadMode::kNone);
}

TEST(LoadChoice, AWholePromptStillComputesItsLastToken) {
  const LoadAnswer answer = choice_at(2e9).choose(document(0));
  EXPECT_NE(answer.mode, LoadMode::kNone);
  EXPECT_GT(answer.pass_s, 0);
  EXPECT_GT(answer.saved_s, 0);
}

TEST(LoadChoice, SavedTimeIsThatOfTheHitOnly) {
  LoadQuestion q = document();
  q.local_tokens = 3456;
  q.hit_tokens = 3456;
  const LoadChoice choice = choice_at(2e9);
  EXPECT_LT(choice.choose(q).saved_s, choice.choose(document()).saved_s);
  EXPECT_NEAR(choice.choose(q).saved_s, kCost.seconds(chunk_work(3456 + 8, 3456)) - kCost.seconds(chunk_work(8, 6912)),
              1e-6);
}

TEST(LoadChoice, FlashIsNeverFasterThanThePoolItPassesThrough) {
  LoadChoice choice(kCost, true);
  const std::uint64_t bytes = 100'000'000;
  for (int i = 0; i < 20; ++i) choice.observe_load(bytes, 0, 2.0, false);  // 50 MB/s
  for (int i = 0; i < 20; ++i) choice.observe_load(0, bytes, 0.1, false);  // promoted before it was asked for
  EXPECT_LE(choice.load().flash_bytes_per_s(), choice.load().pool_bytes_per_s() * 1.001);
}

TEST(LoadChoice, OneGoodLoadEndsABeliefThatWasFarTooSlow) {
  LoadChoice choice(kCost, true);
  for (int i = 0; i < 5; ++i) choice.observe_load(40'000'000, 0, 15.0, true);
  EXPECT_EQ(choice.choose(document()).mode, LoadMode::kNone);
  choice.observe_load(40'000'000, 0, 0.04, true);
  EXPECT_NE(choice.choose(document()).mode, LoadMode::kNone);
  EXPECT_NEAR(choice.load().pool_bytes_per_s(), 1e9, 1e8);
}

TEST(LoadChoice, OneSlowLoadAmongGoodOnesIsNotBelieved) {
  LoadChoice choice = choice_at(1e9);
  choice.observe_load(1000 * kTokenBytes, 0, 0.23, true);  // ten times slower
  EXPECT_GT(choice.load().pool_bytes_per_s(), 3e8);
}

TEST(LoadChoice, LearnsThatLoadAndComputeShareTheCores) {
  LoadChoice choice = choice_at(2e9, false);
  const LoadQuestion q = document(64);
  const PassWork work = chunk_work(64, 6912);
  const double serial = choice.choose(q).load_s + choice.choose(q).pass_s;
  for (int i = 0; i < 30; ++i) choice.observe_overlap(work, 6912 * kTokenBytes, 0, serial * 1.2);
  EXPECT_GT(choice.overlap_loss(), 0.9);
  EXPECT_EQ(choice.choose(q).mode, LoadMode::kAsync);
  for (int i = 0; i < 300; ++i) choice.observe_load(1'000'000'000, 0, 0.5, false);
  EXPECT_LT(choice.overlap_loss(), 0.9);  // and tries again after some time
}

// A load of 7 s that takes 2 % longer than predicted says nothing of how a pass of 70 ms was hidden behind it.
TEST(LoadChoice, LearnsOfOverlapFromWhatIsOfOneLength) {
  LoadChoice choice = choice_at(25e6);
  const PassWork last{1, 6912};
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t bytes = 6912 * kTokenBytes;
    choice.observe_overlap(last, bytes, 0, 1.02 * choice.load().seconds(bytes, 0));
  }
  EXPECT_LT(choice.overlap_loss(), 0.2);
  const PassWork half = chunk_work(3456, 3456);
  const auto bytes = static_cast<std::uint64_t>(choice.pass().seconds(half) * 25e6);
  for (int i = 0; i < 10; ++i) choice.observe_overlap(half, bytes, 0, 2 * choice.pass().seconds(half));
  EXPECT_GT(choice.overlap_loss(), 0.8);
}

TEST(LoadChoice, ChunkedRemaindersAreHiddenOnlyBehindTheirFirstPass) {
  LoadQuestion q = document(4096);
  q.pass_tokens_max = 512;
  const LoadChoice choice = choice_at(200e6);
  const LoadAnswer answer = choice.choose(q);
  EXPECT_LT(answer.pass_s, answer.load_s);
  EXPECT_GT(answer.layerwise_s, answer.load_s);
}

}  // namespace
}  // namespace kvd::model
