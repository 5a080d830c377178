#include "wire/resp.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "base/check.h"

namespace kvd::wire {
namespace {

constexpr std::size_t kKeepCapacity = std::size_t{16} << 10;  // between two commands, of arguments and of their bytes

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || c == '\0'; }

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

char escaped(char c) {
  switch (c) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'b': return '\b';
    case 'a': return '\a';
    default: return c;
  }
}

// The next word of an inline command, quoted as Redis takes it; nothing where quotes are not balanced.
std::optional<std::string> next_word(std::string_view line, std::size_t& at) {
  std::string word;
  char quote = 0;
  for (; at < line.size(); ++at) {
    const char c = line[at];
    if (quote == 0 && is_space(c)) return word;
    if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else if (quote != 0 && c == quote) {
      ++at;
      if (at < line.size() && !is_space(line[at])) return std::nullopt;
      return word;
    } else if (quote == '"' && c == '\\' && at + 3 < line.size() && line[at + 1] == 'x' &&
               hex_digit(line[at + 2]) >= 0 && hex_digit(line[at + 3]) >= 0) {
      word += static_cast<char>(hex_digit(line[at + 2]) * 16 + hex_digit(line[at + 3]));
      at += 3;
    } else if (quote == '"' && c == '\\' && at + 1 < line.size()) {
      word += escaped(line[++at]);
    } else if (quote == '\'' && c == '\\' && at + 1 < line.size() && line[at + 1] == '\'') {
      word += line[++at];
    } else {
      word += c;
    }
  }
  if (quote != 0) return std::nullopt;
  return word;
}

}  // namespace

std::string_view RespParser::text(std::size_t i) const noexcept {
  const Argument& argument = arguments_[i];
  if (argument.taken != Taken::kKept) return {};
  return std::string_view(kept_).substr(argument.at, argument.bytes);
}

RespParser::Event RespParser::broken(std::string problem) {
  problem_ = "Protocol error: " + std::move(problem);
  part_ = Part::kBroken;
  return Event::kBroken;
}

void RespParser::clear() {
  command_done_ = false;
  announced_ = 0;
  arguments_.clear();
  kept_.clear();
  if (kept_.capacity() > kKeepCapacity) std::string().swap(kept_);
  if (arguments_.capacity() * sizeof(Argument) > kKeepCapacity) std::vector<Argument>().swap(arguments_);
}

// Collects a line; true when its end has come. A line that is too long is one of more than `bytes_max` bytes.
bool RespParser::take_line(Bytes in, std::size_t& used, std::size_t bytes_max) {
  const std::string_view rest = as_text(in.subspan(used)).substr(0, bytes_max + 2 - std::min(line_.size(), bytes_max));
  const std::size_t end = rest.find('\n');
  const std::size_t n = end == std::string_view::npos ? rest.size() : end;
  line_ += rest.substr(0, n);
  used += n;
  if (end == std::string_view::npos) return false;
  ++used;
  if (line_.ends_with('\r')) line_.pop_back();
  return true;
}

// Whatever comes in pieces is too long exactly when it would be as a whole: a '\r' may be the line's end.
bool RespParser::too_long(std::size_t bytes_max) const noexcept {
  return line_.size() > bytes_max + (line_.ends_with('\r') ? 1 : 0);
}

RespParser::Event RespParser::next(Bytes in, std::size_t& used) {
  used = 0;
  if (command_done_) clear();
  for (;;) {
    Event event = Event::kMore;
    switch (part_) {
      case Part::kStart: event = start(in, used); break;
      case Part::kHeader: event = header(in, used); break;
      case Part::kBody: {
        Argument& argument = arguments_.back();
        if (argument.taken == Taken::kPassed && body_left_ > 0) return Event::kMore;
        const std::size_t n = static_cast<std::size_t>(std::min<std::uint64_t>(body_left_, in.size() - used));
        if (argument.taken == Taken::kKept) kept_ += as_text(in.subspan(used, n));
        used += n;
        body_left_ -= n;
        if (body_left_ > 0) return Event::kMore;
        part_ = Part::kBodyEnd;
        continue;
      }
      case Part::kBodyEnd:
        if (!take_line(in, used, 1)) {
          if (line_.size() > 1) return broken("expected an end of line behind a bulk string");
          return Event::kMore;
        }
        if (!line_.empty()) return broken("expected an end of line behind a bulk string");
        part_ = Part::kHeader;
        continue;
      case Part::kBroken: return Event::kBroken;
    }
    if (event == Event::kCommand) command_done_ = true;
    if (event != Event::kMore || used == in.size()) return event;
  }
}

// '*' begins an array of bulk strings; anything else is a command as one types it.
RespParser::Event RespParser::start(Bytes in, std::size_t& used) {
  const bool multibulk = line_.empty() ? used < in.size() && in[used] == std::byte{'*'} : line_.front() == '*';
  const std::size_t bytes_max = multibulk ? kLineBytesMax : kInlineBytesMax;
  const bool complete = take_line(in, used, bytes_max);
  if (complete ? line_.size() > bytes_max : too_long(bytes_max))
    return broken(multibulk ? "too big mbulk count string" : "too big inline request");
  if (!complete) return Event::kMore;
  return multibulk ? begin_multibulk() : split_inline();
}

RespParser::Event RespParser::begin_multibulk() {
  const auto count = number(std::string_view(line_).substr(1));
  line_.clear();
  if (!count || *count > static_cast<std::int64_t>(kArgumentsMax)) return broken("invalid multibulk length");
  if (*count <= 0) return Event::kMore;
  announced_ = static_cast<std::size_t>(*count);
  part_ = Part::kHeader;
  return Event::kMore;
}

RespParser::Event RespParser::split_inline() {
  const std::string line = std::exchange(line_, {});
  for (std::size_t at = 0;;) {
    while (at < line.size() && is_space(line[at])) ++at;
    if (at == line.size()) break;
    const auto word = next_word(line, at);
    if (!word) return broken("unbalanced quotes in request");
    arguments_.push_back({.taken = Taken::kKept, .bytes = word->size(), .at = kept_.size()});
    kept_ += *word;
  }
  announced_ = arguments_.size();
  return arguments_.empty() ? Event::kMore : Event::kCommand;
}

RespParser::Event RespParser::header(Bytes in, std::size_t& used) {
  if (arguments_.size() == announced_) {
    part_ = Part::kStart;
    return Event::kCommand;
  }
  if (line_.empty() && used < in.size() && in[used] != std::byte{'$'}) {
    const char c = static_cast<char>(in[used]);
    return broken(std::string("expected '$', got '") + (c >= ' ' && c <= '~' ? c : '?') + "'");
  }
  const bool complete = take_line(in, used, kLineBytesMax);
  if (complete ? line_.size() > kLineBytesMax : too_long(kLineBytesMax)) return broken("too big bulk count string");
  if (!complete) return Event::kMore;
  const auto bytes = number(std::string_view(line_).substr(std::min<std::size_t>(line_.size(), 1)));
  line_.clear();
  if (!bytes || *bytes < 0 || *bytes > static_cast<std::int64_t>(kBulkBytesMax)) return broken("invalid bulk length");
  body_left_ = static_cast<std::uint64_t>(*bytes);
  const bool fits = kept_.size() + body_left_ <= kKeptBytesMax;
  arguments_.push_back({.taken = fits ? Taken::kKept : Taken::kDropped, .bytes = body_left_, .at = kept_.size()});
  part_ = Part::kBody;
  return Event::kArgument;
}

void RespParser::pass() { arguments_.back().taken = Taken::kPassed; }
void RespParser::drop() { arguments_.back().taken = Taken::kDropped; }

void RespParser::landed(std::uint64_t bytes) {
  KVD_CHECK(passing() && bytes <= body_left_);
  body_left_ -= bytes;
}

namespace resp {
namespace {

void add(Buffer& out, std::string_view text) {
  const Bytes bytes = as_bytes(text);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void add_number(Buffer& out, char mark, std::int64_t value) {
  char text[24];
  text[0] = mark;
  const auto end = std::to_chars(text + 1, text + sizeof text, value).ptr;
  add(out, {text, static_cast<std::size_t>(end - text)});
  end_line(out);
}

}  // namespace

void end_line(Buffer& out) { add(out, "\r\n"); }

void simple(Buffer& out, std::string_view text) {
  add(out, "+");
  add(out, text);
  end_line(out);
}

void error(Buffer& out, std::string_view text) {
  std::string line(text);
  std::ranges::replace_if(line, [](char c) { return c == '\r' || c == '\n'; }, ' ');
  add(out, "-");
  add(out, line);
  end_line(out);
}

void integer(Buffer& out, std::int64_t value) { add_number(out, ':', value); }
void bulk_head(Buffer& out, std::uint64_t bytes) { add_number(out, '$', static_cast<std::int64_t>(bytes)); }
void array(Buffer& out, std::size_t items) { add_number(out, '*', static_cast<std::int64_t>(items)); }

void bulk(Buffer& out, std::string_view text) {
  bulk_head(out, text.size());
  add(out, text);
  end_line(out);
}

void nil(Buffer& out, int version) { add(out, version == 3 ? "_\r\n" : "$-1\r\n"); }

void map(Buffer& out, std::size_t pairs, int version) {
  if (version == 3) return add_number(out, '%', static_cast<std::int64_t>(pairs));
  array(out, 2 * pairs);
}

}  // namespace resp
}  // namespace kvd::wire
