// Mooncake's JSON Lines, read without a JSON library: a general parser allocates a tree per line and takes some
// 20 times as long. The scanner knows JSON's grammar, so unknown fields of any kind are skipped.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <unordered_map>

#include <fmt/format.h>

#include "trace/check.h"
#include "trace/trace.h"

namespace kvd::trace {
namespace {

constexpr int kNestingMax = 64;

enum Field : unsigned { kTimestamp = 1, kInput = 2, kOutput = 4, kHashes = 8, kOther = 0 };
constexpr unsigned kAllFields = kTimestamp | kInput | kOutput | kHashes;

// One line. Functions return false at the first surprise and say in `expected` what should have been there.
class LineReader {
 public:
  explicit LineReader(std::string_view line) : at_(line.data()), end_(line.data() + line.size()) {}

  // What the line holds. `ids` grows by its hash_ids.
  double timestamp_ms = 0;
  std::uint64_t input = 0;
  std::uint64_t output = 0;
  unsigned seen = 0;
  const char* expected = "";

  bool read(std::vector<std::uint64_t>& ids) {
    if (!take('{', "expected an object: {\"timestamp\": ...}")) return false;
    if (next() != '}') {
      do {
        if (!read_member(ids)) return false;
      } while (skip(','));
    }
    if (!take('}', "expected ',' or '}'")) return false;
    blanks();
    return at_ == end_ || fail("expected the end of the line after '}'");
  }

 private:
  bool fail(const char* what) {
    expected = what;
    return false;
  }
  void blanks() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }
  char next() {
    blanks();
    return at_ == end_ ? '\0' : *at_;
  }
  bool skip(char c) {
    if (next() != c || at_ == end_) return false;
    ++at_;
    return true;
  }
  bool take(char c, const char* what) { return skip(c) || fail(what); }

  bool read_member(std::vector<std::uint64_t>& ids) {
    std::string_view name;
    if (!read_string(name) || !take(':', "expected ':' after a field's name")) return false;
    const Field field = field_of(name);
    if ((seen & field) != 0) return fail("a field is there twice");
    seen |= field;
    switch (field) {
      case kTimestamp: return read_number(timestamp_ms, "timestamp: expected a number of milliseconds");
      case kInput: return read_integer(input) || fail("input_length: expected a whole number of tokens");
      case kOutput: return read_integer(output) || fail("output_length: expected a whole number of tokens");
      case kHashes: return read_ids(ids);
      case kOther: break;
    }
    return skip_value(0);
  }

  static Field field_of(std::string_view name) {
    if (name == "timestamp") return kTimestamp;
    if (name == "input_length") return kInput;
    if (name == "output_length") return kOutput;
    return name == "hash_ids" ? kHashes : kOther;
  }

  bool read_string(std::string_view& text) {
    if (!take('"', "expected a name in quotes")) return false;
    const char* const from = at_;
    while (at_ != end_ && *at_ != '"') at_ += *at_ == '\\' && at_ + 1 != end_ ? 2 : 1;
    if (at_ == end_) return fail("expected a closing quote");
    text = {from, static_cast<std::size_t>(at_++ - from)};
    return true;
  }

  bool read_integer(std::uint64_t& value) {
    blanks();
    std::uint64_t number = 0;
    const char* const from = at_;
    while (at_ != end_ && *at_ >= '0' && *at_ <= '9') {
      const auto digit = static_cast<std::uint64_t>(*at_ - '0');
      if (number > (~std::uint64_t{0} - digit) / 10) return false;
      number = number * 10 + digit;
      ++at_;
    }
    value = number;
    return at_ != from && (at_ == end_ || (*at_ != '.' && *at_ != 'e' && *at_ != 'E'));
  }

  bool read_number(double& value, const char* what) {
    blanks();
    const auto [stop, error] = std::from_chars(at_, end_, value);
    if (error != std::errc{}) return fail(what);
    at_ = stop;
    return true;
  }

  bool read_ids(std::vector<std::uint64_t>& ids) {
    if (!take('[', "hash_ids: expected a list")) return false;
    if (skip(']')) return true;
    do {
      std::uint64_t id = 0;
      if (!read_integer(id)) return fail("hash_ids: expected whole numbers from 0");
      ids.push_back(id);
    } while (skip(','));
    return take(']', "hash_ids: expected ',' or ']'");
  }

  bool skip_value(int depth) {
    if (depth > kNestingMax) return fail("a field is nested too deeply");
    std::string_view text;
    switch (next()) {
      case '"': return read_string(text);
      case '{': return skip_list('}', depth, true);
      case '[': return skip_list(']', depth, false);
      default: break;
    }
    const char* const from = at_;
    while (at_ != end_ && std::strchr(",}] \t\r", *at_) == nullptr) ++at_;
    return at_ != from || fail("expected a value");
  }

  bool skip_list(char close, int depth, bool named) {
    ++at_;
    if (skip(close)) return true;
    std::string_view name;
    do {
      if (named && (!read_string(name) || !take(':', "expected ':' after a field's name"))) return false;
      if (!skip_value(depth + 1)) return false;
    } while (skip(','));
    return take(close, "expected a closing bracket");
  }

  const char* at_;
  const char* end_;
};

// Renumbers ids 0, 1, ... in order of first appearance: by a table where they are small, by a hash table otherwise.
void renumber(const std::vector<std::uint64_t>& raw, Trace& trace) {
  constexpr std::uint64_t kTableSlack = 16;  // a table of at most so many entries per id
  constexpr std::uint32_t kNone = ~std::uint32_t{0};
  const std::uint64_t largest = raw.empty() ? 0 : *std::ranges::max_element(raw);
  std::uint32_t count = 0;
  trace.block_ids.resize(raw.size());
  if (largest / kTableSlack <= raw.size()) {
    std::vector<std::uint32_t> table(largest + 1, kNone);
    std::ranges::transform(raw, trace.block_ids.begin(), [&](std::uint64_t id) {
      if (table[id] == kNone) table[id] = count++;
      return table[id];
    });
  } else {
    std::unordered_map<std::uint64_t, std::uint32_t> table;
    table.reserve(raw.size());
    std::ranges::transform(raw, trace.block_ids.begin(), [&](std::uint64_t id) {
      const auto [entry, is_new] = table.try_emplace(id, count);
      count += is_new ? 1 : 0;
      return entry->second;
    });
  }
  trace.distinct_blocks = count;
}

std::string missing_fields(unsigned seen) {
  std::string text;
  for (const auto& [bit, name] : {std::pair{kTimestamp, "timestamp"},
                                  {kInput, "input_length"},
                                  {kOutput, "output_length"},
                                  {kHashes, "hash_ids"}}) {
    if ((seen & bit) == 0) text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return "missing " + text + ": expected timestamp, input_length, output_length and hash_ids";
}

// What is wrong with the fields of one line, read into `line` with `hashes` ids.
std::optional<std::string> line_fault(const LineReader& line, std::uint64_t hashes, const ReadOptions& options) {
  if (line.seen != kAllFields) return missing_fields(line.seen);
  if (line.input > kRequestTokensMax || line.output > kRequestTokensMax) {
    return fmt::format("a length above {} tokens: expected the tokens of one request", kRequestTokensMax);
  }
  const std::uint64_t expected = (line.input + options.block_tokens - 1) / options.block_tokens;
  if (hashes != expected) {
    return fmt::format(
        "{} hash_ids for a prompt of {} tokens: expected {}, one for every {} tokens; if the trace has "
        "another block size, say so",
        hashes, line.input, expected, options.block_tokens);
  }
  return std::nullopt;
}

}  // namespace

FromInput<Trace> read_mooncake(std::string_view text, std::string_view file, const ReadOptions& options) {
  const auto fault = [&](std::size_t line, std::string what) {
    return std::unexpected(InputFault{std::string(file), line, std::move(what)});
  };
  if (options.block_tokens == 0) return fault(0, "a block of 0 tokens: expected 1 or more");
  Trace trace;
  trace.block_tokens = options.block_tokens;
  trace.timed = true;
  trace.requests.reserve(text.size() / 200);
  std::vector<std::uint64_t> ids;
  ids.reserve(text.size() / 8);
  double before_s = 0;
  std::size_t number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t length = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::size_t first = ids.size();
    LineReader reader(line);
    if (!reader.read(ids)) return fault(number, reader.expected);
    if (ids.size() > ~std::uint32_t{0}) return fault(number, "more than 4294967295 hash_ids in all: split the trace");
    if (auto what = line_fault(reader, ids.size() - first, options)) return fault(number, std::move(*what));
    const Request request{reader.timestamp_ms * 1e-3, static_cast<std::uint32_t>(reader.input),
                          static_cast<std::uint32_t>(reader.output), static_cast<std::uint32_t>(first),
                          static_cast<std::uint32_t>(ids.size() - first)};
    if (auto what = request_fault(request, before_s, options)) return fault(number, std::move(*what));
    before_s = request.arrival_s;
    trace.requests.push_back(request);
  }
  if (trace.requests.empty()) return fault(0, "no requests: expected one JSON object a line");
  renumber(ids, trace);
  return trace;
}

FromInput<Trace> read_trace(std::string_view text, std::string_view file, const ReadOptions& options) {
  const std::size_t start = text.find_first_not_of(" \t\r\n");
  const bool json = start != std::string_view::npos && text[start] == '{';
  return json ? read_mooncake(text, file, options) : read_csv(text, file, options);
}

}  // namespace kvd::trace
