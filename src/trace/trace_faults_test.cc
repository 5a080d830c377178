// Tests of what readers say about bad traces: file, line, what was expected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trace/trace.h"

namespace kvd::trace {
namespace {

using testing::HasSubstr;

std::string line(const std::string& time, const std::string& input, const std::string& output, const std::string& ids) {
  return R"({"timestamp": )" + time + R"(, "input_length": )" + input + R"(, "output_length": )" + output +
         R"(, "hash_ids": )" + ids + "}\n";
}

const std::string kGoodLine = line("1000", "600", "5", "[1, 2]");
const std::string kHeader = "arrived_at,num_prefill_tokens,num_decode_tokens\n";

// The complaint about `text`, or "" when it was read.
std::string complaint(const std::string& text, const ReadOptions& options = {}) {
  const auto read = read_trace(text, "t.x", options);
  return read ? "" : read.error().str();
}

TEST(TraceFaults, AnEmptyFileHasNoRequests) {
  EXPECT_THAT(complaint(""), HasSubstr("t.x: no requests"));
  EXPECT_THAT(complaint(kHeader), HasSubstr("t.x: no requests"));
  EXPECT_THAT(complaint("\n\n"), HasSubstr("no requests"));
}

TEST(TraceFaults, AMissingFieldIsNamedWithItsLine) {
  EXPECT_THAT(complaint(kGoodLine + "{\"timestamp\": 1500, \"input_length\": 5, \"hash_ids\": [1]}\n"),
              HasSubstr("t.x:2: missing output_length"));
}

TEST(TraceFaults, BrokenJsonIsFoundWhereItBreaks) {
  for (const char* text :
       {"{", "{\"timestamp\"", "{\"timestamp\": 1,", "{\"timestamp\": 1}}", "{\"hash_ids\": [1,]}",
        "{\"hash_ids\": [1 2]}", "{\"hash_ids\": [-1]}", "{\"input_length\": 1.5}", "{\"input_length\": \"5\"}",
        "{\"x\": [1}", "{\"x\":}", "{\"timestamp\": true}", "{\"timestamp\": 1, \"timestamp\": 2}"}) {
    EXPECT_THAT(complaint(kGoodLine + "\n" + text), HasSubstr("t.x:3: ")) << text;
  }
}

TEST(TraceFaults, DeepNestingIsRefused) {
  EXPECT_THAT(complaint("{\"x\": " + std::string(100'000, '[')), HasSubstr("nested too deeply"));
}

TEST(TraceFaults, NegativeTimesAreRefused) {
  EXPECT_THAT(complaint(line("-1", "600", "5", "[1, 2]")), HasSubstr("t.x:1: the arrival is negative"));
  EXPECT_THAT(complaint(kHeader + "-0.5,10,10\n"), HasSubstr("t.x:2: the arrival is negative"));
}

TEST(TraceFaults, TimesThatAreNoNumbersAreRefused) {
  EXPECT_THAT(complaint(kHeader + "nan,10,10\n"), HasSubstr("not a finite number"));
  EXPECT_THAT(complaint(kHeader + "1,10,10\ninf,10,10\n"), HasSubstr("t.x:3: the arrival is not a finite number"));
  EXPECT_THAT(complaint(kHeader + "soon,10,10\n"), HasSubstr("expected seconds"));
  EXPECT_THAT(complaint(kHeader + "1,10,10\n2023-11-16 18:15:46,1,1\n"), HasSubstr("as in the first request"));
  EXPECT_THAT(complaint(line("NaN", "600", "5", "[1, 2]")), HasSubstr("t.x:1: "));
}

TEST(TraceFaults, ArrivalsMustAscend) {
  EXPECT_THAT(complaint(kGoodLine + line("999", "600", "5", "[1, 2]")), HasSubstr("t.x:2: arrives at 0.999 s, before"));
  EXPECT_THAT(complaint(kHeader + "5,1,1\n4,1,1\n"), HasSubstr("t.x:3: arrives at 4 s"));
  EXPECT_EQ(complaint(kGoodLine + kGoodLine), "");
}

TEST(TraceFaults, ARequestLongerThanTheContextIsRefused) {
  EXPECT_THAT(complaint(kGoodLine, {.context_tokens_max = 604}), HasSubstr("make 605, more than the context of 604"));
  EXPECT_EQ(complaint(kGoodLine, {.context_tokens_max = 605}), "");
}

TEST(TraceFaults, TheNumberOfBlocksMustFitThePrompt) {
  EXPECT_THAT(complaint(line("0", "600", "5", "[1]")), HasSubstr("1 hash_ids for a prompt of 600 tokens: expected 2"));
  EXPECT_THAT(complaint(kGoodLine, {.block_tokens = 16}), HasSubstr("expected 38"));
}

TEST(TraceFaults, LengthsMustBeWholeAndSensible) {
  EXPECT_THAT(complaint(line("0", "0", "5", "[]")), HasSubstr("0 tokens"));
  EXPECT_THAT(complaint(line("0", "99999999999999999999", "5", "[1]")), HasSubstr("whole number"));
  EXPECT_THAT(complaint(line("0", "600000000", "5", "[1]")), HasSubstr("above 100000000"));
  for (const char* cell : {"", "1.5", "-3", "nan", "1e30", "ten"}) {
    EXPECT_THAT(complaint(kHeader + "0," + cell + ",3\n"), HasSubstr("t.x:2: prompt tokens are")) << cell;
    EXPECT_THAT(complaint(kHeader + "0,3," + cell + "\n"), HasSubstr("t.x:2: output tokens are")) << cell;
  }
}

TEST(TraceFaults, MissingColumnsAreNamed) {
  EXPECT_THAT(complaint("arrived_at,num_decode_tokens\n0,5\n"), HasSubstr("t.x:1: no column of prompt tokens"));
  EXPECT_THAT(complaint("arrived_at,prompt_tokens\n0,5\n"), HasSubstr("t.x:1: no column of output tokens"));
  EXPECT_THAT(complaint(kHeader + "0,5\n"), HasSubstr("t.x:2: 2 columns: expected 3"));
}

TEST(TraceFaults, DatesMustBeDates) {
  const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (const char* cell : {"2023-13-01 00:00:00", "2023-01-01", "2023-01-01 25:00:00", "2023-01-01 00:00:00.x"}) {
    EXPECT_THAT(complaint(header + cell + ",1,1\n"), HasSubstr("t.x:2: the arrival is")) << cell;
  }
}

}  // namespace
}  // namespace kvd::trace
