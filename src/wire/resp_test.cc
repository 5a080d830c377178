#include "wire/resp.h"

#include <gtest/gtest.h>

namespace kvd::wire {
namespace {

using Event = RespParser::Event;
using Words = std::vector<std::string>;

// All commands of a text that comes in pieces of `step` bytes; the problem, if there is one, as the last.
std::vector<Words> commands_of(std::string_view text, std::size_t step = 1000) {
  RespParser parser;
  std::vector<Words> commands;
  while (!text.empty()) {
    Bytes chunk = as_bytes(text.substr(0, step));
    text.remove_prefix(chunk.size());
    for (Event event = Event::kArgument; event != Event::kMore;) {
      std::size_t used = 0;
      event = parser.next(chunk, used);
      chunk = chunk.subspan(used);
      if (event == Event::kBroken) {
        commands.push_back({parser.problem()});
        return commands;
      }
      if (event != Event::kCommand) continue;
      Words words;
      for (std::size_t i = 0; i < parser.arguments().size(); ++i) words.emplace_back(parser.text(i));
      commands.push_back(words);
    }
  }
  return commands;
}

TEST(RespParser, TakesPipelinedCommandsHoweverTheyAreSplit) {
  const std::string_view text =
      "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$6\r\na\r\nb\r\n\r\n*2\r\n$3\r\nGET\r\n$0\r\n\r\nPING\r\n*1\r\n$4\r\nQUIT\r\n";
  const std::vector<Words> expected{{"SET", "k", "a\r\nb\r\n"}, {"GET", ""}, {"PING"}, {"QUIT"}};
  for (std::size_t step = 1; step < 70; ++step) EXPECT_EQ(commands_of(text, step), expected) << step;
}

TEST(RespParser, TakesInlineCommandsAsRedisQuotesThem) {
  EXPECT_EQ(commands_of("  set  k \"a \\\"b\\\"\\n\\x41\" 'it''s'\r\n"),
            (std::vector<Words>{{"Protocol error: unbalanced quotes in request"}}));
  EXPECT_EQ(commands_of("\r\n\nset k \"a \\\"b\\\"\\n\\x41\" 'it\\'s' \"\"\n"),
            (std::vector<Words>{{"set", "k", "a \"b\"\nA", "it's", ""}}));
  EXPECT_EQ(commands_of("set \"a\r\n").back(), (Words{"Protocol error: unbalanced quotes in request"}));
}

TEST(RespParser, SkipsEmptyCommands) {
  EXPECT_EQ(commands_of("*0\r\n*-1\r\n\r\nPING\r\n"), (std::vector<Words>{{"PING"}}));
}

TEST(RespParser, SaysWhatRedisSaysOfBrokenInput) {
  const std::pair<std::string, const char*> cases[] = {
      {"*x\r\n", "Protocol error: invalid multibulk length"},
      {"*8194\r\n", "Protocol error: invalid multibulk length"},
      {"*" + std::string(100, '1'), "Protocol error: too big mbulk count string"},
      {"*1\r\n:1\r\n", "Protocol error: expected '$', got ':'"},
      {"*1\r\n$-1\r\n", "Protocol error: invalid bulk length"},
      {"*1\r\n$536870913\r\n", "Protocol error: invalid bulk length"},
      {"*1\r\n$\r\n", "Protocol error: invalid bulk length"},
      {"*1\r\n$" + std::string(100, '1'), "Protocol error: too big bulk count string"},
      {"*1\r\n$1\r\naXX", "Protocol error: expected an end of line behind a bulk string"},
      {std::string(17 << 10, 'a'), "Protocol error: too big inline request"},
  };
  for (const auto& [text, problem] : cases) {
    for (const std::size_t step : {std::size_t{1}, std::size_t{100'000}}) {
      const auto commands = commands_of(text, step);
      ASSERT_EQ(commands.size(), 1u) << text.substr(0, 20);
      EXPECT_EQ(commands[0][0], problem);
    }
  }
}

TEST(RespParser, HandsAPassedArgumentToItsUser) {
  RespParser parser;
  std::size_t used = 0;
  const std::string_view head = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$10000000\r\n";
  Bytes rest = as_bytes(head);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(parser.next(rest, used), Event::kArgument);
    rest = rest.subspan(used);
  }
  EXPECT_TRUE(rest.empty());
  parser.pass();
  EXPECT_TRUE(parser.passing());
  EXPECT_EQ(parser.body_left(), 10'000'000u);
  EXPECT_EQ(parser.next(as_bytes("not for it"), used), Event::kMore);
  EXPECT_EQ(used, 0u);
  parser.landed(9'999'999);
  parser.landed(1);
  EXPECT_FALSE(parser.passing());
  EXPECT_EQ(parser.next(as_bytes("\r\n"), used), Event::kCommand);
  EXPECT_EQ(parser.text(1), "k");
  EXPECT_EQ(parser.text(2), "");
  EXPECT_EQ(parser.arguments()[2].taken, RespParser::Taken::kPassed);
  EXPECT_EQ(parser.arguments()[2].bytes, 10'000'000u);
  EXPECT_LT(parser.bytes_held(), 1'000u);
}

TEST(RespParser, KeepsNoMoreThanItMay) {
  RespParser parser;
  std::string text = "*1000\r\n";
  for (int i = 0; i < 1000; ++i) text += "$2000\r\n" + std::string(2000, 'x') + "\r\n";
  Bytes rest = as_bytes(text);
  std::size_t used = 0, dropped = 0;
  Event event = Event::kArgument;
  while (event == Event::kArgument) {
    event = parser.next(rest, used);
    rest = rest.subspan(used);
  }
  ASSERT_EQ(event, Event::kCommand);
  for (const auto& argument : parser.arguments()) dropped += argument.taken == RespParser::Taken::kDropped ? 1 : 0;
  EXPECT_EQ(dropped, 1000 - RespParser::kKeptBytesMax / 2000);
  EXPECT_LT(parser.bytes_held(), 3 * RespParser::kKeptBytesMax);
  EXPECT_EQ(parser.next(as_bytes("PING\r\n"), used), Event::kCommand);
  EXPECT_LT(parser.bytes_held(), std::size_t{256} << 10) << "the memory goes back with the next command";
}

TEST(Resp, WritesRepliesOfBothVersions) {
  Buffer out;
  resp::simple(out, "OK");
  resp::error(out, "ERR a\r\nb");
  resp::integer(out, -3);
  resp::bulk(out, "a\r\n");
  resp::nil(out, 2);
  resp::nil(out, 3);
  resp::array(out, 2);
  resp::map(out, 2, 2);
  resp::map(out, 2, 3);
  EXPECT_EQ(as_text(out), "+OK\r\n-ERR a  b\r\n:-3\r\n$3\r\na\r\n\r\n$-1\r\n_\r\n*2\r\n*4\r\n%2\r\n");
}

}  // namespace
}  // namespace kvd::wire
