// Tests of the replay's report. The replay itself: src/sim/cache_replay_test.cc.
#include "cmd/sim_replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::cmd {
namespace {

using testing::HasSubstr;

constexpr const char* kTrace =
    "{\"timestamp\": 0, \"input_length\": 2048, \"output_length\": 1, \"hash_ids\": [1, 2, 3, 4]}\n"
    "{\"timestamp\": 1, \"input_length\": 2048, \"output_length\": 1, \"hash_ids\": [1, 2, 5, 6]}\n";

SimReplayFlags flags() {
  SimReplayFlags flags;
  flags.capacities = {50, 100};
  flags.segments = {2, 4};
  flags.interleave = 8;
  return flags;
}

TEST(SimReplay, AHitRateForEveryCacheAndCapacity) {
  const nlohmann::ordered_json replay = replay_json(*trace::read_trace(kTrace, "t"), flags());
  EXPECT_EQ(replay["distinct_blocks"], 6);
  EXPECT_DOUBLE_EQ(replay["unlimited_hit_rate"], 0.25);
  ASSERT_EQ(replay["caches"].size(), 3U + 2 + 2 + 2);
  for (const auto& cache : replay["caches"]) {
    ASSERT_EQ(cache["hit_rates"].size(), 2U);
    const bool fits = cache["cache"].get<std::string>().find("segments of 4") == std::string::npos;
    EXPECT_EQ(cache["hit_rates"][1].is_null(), !fits) << cache;
    if (!fits) continue;
    EXPECT_DOUBLE_EQ(cache["hit_rates"][1], 0.25) << cache;
  }
  EXPECT_EQ(replay["caches"][0]["cache"], "single blocks, LRU");
  EXPECT_DOUBLE_EQ(replay["caches"][0]["hit_rates"][0], 0);  // the first block went when the fourth came
}

TEST(SimReplay, TheTableHasALineForEachCache) {
  const std::string text = replay_text(replay_json(*trace::read_trace(kTrace, "t"), flags()));
  EXPECT_THAT(text, HasSubstr("2 requests, 6 distinct blocks of 512 tokens"));
  EXPECT_THAT(text, HasSubstr("| cache | 50 % | 100 % |\n|---|---|---|\n| single blocks, LRU | 0.000 | 0.250 |\n"));
  EXPECT_THAT(text, HasSubstr("| segments of 4, LRU, 8 requests interleaved | - | - |\n"));
}

}  // namespace
}  // namespace kvd::cmd
