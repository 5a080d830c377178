// Fuzzes the parser of Redis commands: whatever comes, split wherever, gives the same commands; its memory stays
// bounded; and what it takes as a command can be written anew and parsed to the same.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/testing/fuzzing.h"
#include "wire/resp.h"

namespace kvd::wire {
namespace {

struct Seen {
  std::vector<std::vector<std::string>> commands;
  std::string problem;
  friend bool operator==(const Seen&, const Seen&) = default;
};

// Feeds `input` in steps whose lengths follow from `step`; every argument with an odd number of bytes is passed, and
// with `drops` long ones are dropped.
Seen run(Bytes input, std::size_t step, bool drops = true) {
  Seen seen;
  RespParser parser;
  std::vector<std::string> passed;
  while (!input.empty() && seen.problem.empty()) {
    Bytes chunk = input.first(std::min(input.size(), step));
    input = input.subspan(chunk.size());
    step = step * 5 % 61 + 1;
    for (;;) {
      if (parser.passing()) {
        const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(chunk.size(), parser.body_left()));
        passed.back() += as_text(chunk.first(n));
        parser.landed(n);
        chunk = chunk.subspan(n);
        if (chunk.empty() && parser.body_left() > 0) break;
      }
      std::size_t used = 0;
      const RespParser::Event event = parser.next(chunk, used);
      require(used <= chunk.size());
      chunk = chunk.subspan(used);
      require(parser.bytes_held() <= 2 * (RespParser::kKeptBytesMax + RespParser::kInlineBytesMax) +
                                         2 * RespParser::kArgumentsMax * sizeof(RespParser::Argument));
      if (event == RespParser::Event::kArgument) {
        passed.emplace_back();
        if (parser.body_left() % 2 == 1) parser.pass();
        if (drops && parser.body_left() > 1000) parser.drop();
      } else if (event == RespParser::Event::kCommand) {
        std::vector<std::string> words;
        for (std::size_t i = 0; i < parser.arguments().size(); ++i) {
          const RespParser::Argument& argument = parser.arguments()[i];
          require(argument.taken != RespParser::Taken::kKept || parser.text(i).size() == argument.bytes);
          const bool passes = argument.taken == RespParser::Taken::kPassed;
          require(!passes || passed[i].size() == argument.bytes);
          words.emplace_back(passes ? passed[i] : std::string(parser.text(i)));
        }
        require(!words.empty() && words.size() == parser.announced());
        seen.commands.push_back(std::move(words));
        passed.clear();
      } else if (event == RespParser::Event::kBroken) {
        require(!parser.problem().empty());
        seen.problem = parser.problem();
        break;
      } else if (!parser.passing()) {
        require(chunk.empty());
        break;
      }
    }
  }
  return seen;
}

std::string written(const std::vector<std::string>& words) {
  Buffer out;
  resp::array(out, words.size());
  for (const std::string& word : words) resp::bulk(out, word);
  return std::string(as_text(out));
}

}  // namespace
}  // namespace kvd::wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvd::wire;
  const auto input = std::as_bytes(std::span(data, size));
  const Seen whole = run(input, SIZE_MAX / 8);
  kvd::require(whole == run(input, 1));
  kvd::require(whole == run(input, 7));
  for (const auto& words : whole.commands) {
    const std::string again = written(words);
    const Seen seen = run(kvd::as_bytes(again), 13, false);
    kvd::require(seen.problem.empty() && seen.commands.size() == 1 && seen.commands[0] == words);
  }
  return 0;
}
