// Tests of the readers of traces on good input. The faults are in trace_faults_test.cc.
#include "trace/trace.h"

#include <gtest/gtest.h>

namespace kvd::trace {
namespace {

constexpr const char* kTwo =
    "{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 500, \"hash_ids\": [40, 7, 99]}\n"
    "{\"timestamp\": 27482, \"input_length\": 1024, \"output_length\": 1, \"hash_ids\": [40, 12]}\n";

Trace good(std::string_view text, const ReadOptions& options = {}) {
  auto read = read_trace(text, "t", options);
  EXPECT_TRUE(read.has_value()) << read.error().str();
  return read.value_or(Trace{});
}

TEST(Mooncake, ReadsTimesLengthsAndBlocks) {
  const Trace trace = good(kTwo);
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_TRUE(trace.timed);
  EXPECT_DOUBLE_EQ(trace.requests[1].arrival_s, 27.482);
  EXPECT_EQ(trace.requests[0].prompt_tokens, 1100U);
  EXPECT_EQ(trace.requests[0].output_tokens, 500U);
  EXPECT_DOUBLE_EQ(trace.span_s(), 27.482);
}

TEST(Mooncake, RenumbersBlocksInOrderOfAppearance) {
  const Trace trace = good(kTwo);
  EXPECT_EQ(trace.block_ids, (std::vector<std::uint32_t>{0, 1, 2, 0, 3}));
  EXPECT_EQ(trace.distinct_blocks, 4U);
  EXPECT_EQ(trace.blocks_of(trace.requests[1])[1], 3U);
}

TEST(Mooncake, IdsOf64BitsAreIdsToo) {
  const Trace trace = good(
      "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, "
      "\"hash_ids\": [18446744073709551615, 9223372036854775808]}\n"
      "{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 5, \"hash_ids\": [18446744073709551615]}");
  EXPECT_EQ(trace.block_ids, (std::vector<std::uint32_t>{0, 1, 0}));
}

TEST(Mooncake, TheLastBlockOfARequestIsPartial) {
  const Trace trace = good(kTwo);
  EXPECT_EQ(trace.tokens_of_block(trace.requests[0], 0), 512U);
  EXPECT_EQ(trace.tokens_of_block(trace.requests[0], 2), 76U);
  EXPECT_EQ(trace.tokens_of_block(trace.requests[1], 1), 512U);
}

TEST(Mooncake, FieldsMayComeInAnyOrderWithUnknownOnesAmongThem) {
  const Trace trace = good(
      "\n  {\"type\":\"text\",\"hash_ids\":[3],\"x\":{\"a\":[1,{\"b\":\"}\\\"\"}],\"c\":null},\"output_length\":2,"
      "\"input_length\":16 , \"timestamp\":1.5e3}\r\n\n",
      {.block_tokens = 16});
  ASSERT_EQ(trace.requests.size(), 1U);
  EXPECT_DOUBLE_EQ(trace.requests[0].arrival_s, 1.5);
  EXPECT_EQ(trace.block_tokens, 16U);
}

TEST(Csv, ReadsArrivalsAndLengths) {
  const Trace trace = good("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396,109\n");
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_TRUE(trace.timed);
  EXPECT_DOUBLE_EQ(trace.requests[1].arrival_s, 4.314579);
  EXPECT_EQ(trace.requests[1].prompt_tokens, 396U);
  EXPECT_EQ(trace.requests[1].output_tokens, 109U);
  EXPECT_EQ(trace.block_tokens, 0U);
  EXPECT_TRUE(trace.blocks_of(trace.requests[0]).empty());
}

TEST(Csv, CountsDatesFromTheFirstAcrossMidnightAndLeapDay) {
  const Trace trace = good(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-02-28 23:59:59.5000000,374,44\r\n"
      "2024-02-29T00:00:01.25,1,2\r\n2024-03-01 00:00:00,1,2\r\n");
  ASSERT_EQ(trace.requests.size(), 3U);
  EXPECT_DOUBLE_EQ(trace.requests[0].arrival_s, 0);
  EXPECT_DOUBLE_EQ(trace.requests[1].arrival_s, 1.75);
  EXPECT_DOUBLE_EQ(trace.requests[2].arrival_s, 86'400.5);
}

TEST(Csv, WithoutArrivalsAllComeAtOnce) {
  const Trace trace = good("num_total_tokens,num_decode_tokens,num_prefill_tokens\n3826,54,3772.0\n2171,156,2015\n");
  EXPECT_FALSE(trace.timed);
  EXPECT_EQ(trace.requests[0].prompt_tokens, 3772U);
  EXPECT_EQ(trace.requests[1].output_tokens, 156U);
  EXPECT_DOUBLE_EQ(trace.requests[1].arrival_s, 0);
}

TEST(Csv, ColumnsMayBeQuoted) {
  const Trace trace = good("\"Timestamp\",\"Model\",\"Request tokens\",\"Response tokens\"\n5,\"m\",472,18\n");
  EXPECT_EQ(trace.requests[0].prompt_tokens, 472U);
  EXPECT_DOUBLE_EQ(trace.requests[0].arrival_s, 5);
}

}  // namespace
}  // namespace kvd::trace
