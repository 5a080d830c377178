// Comma-separated traces: arrivals with lengths, or lengths alone.
#include "base/csv.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "trace/check.h"
#include "trace/trace.h"

namespace kvd::trace {
namespace {

constexpr std::array<std::string_view, 4> kArrivalNames{"arrived_at", "arrival_s", "timestamp", "arrival"};
constexpr std::array<std::string_view, 5> kPromptNames{"num_prefill_tokens", "prompt_tokens", "input_length",
                                                       "contexttokens", "request tokens"};
constexpr std::array<std::string_view, 5> kOutputNames{"num_decode_tokens", "output_tokens", "output_length",
                                                       "generatedtokens", "response tokens"};
constexpr std::size_t kNowhere = ~std::size_t{0};

template <std::size_t N>
std::size_t column(const std::vector<std::string_view>& header, const std::array<std::string_view, N>& names) {
  for (const std::string_view name : names) {
    for (std::size_t i = 0; i < header.size(); ++i) {
      if (std::ranges::equal(header[i], name, {},
                             [](char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); })) {
        return i;
      }
    }
  }
  return kNowhere;
}

template <std::size_t N>
std::string any_of(const std::array<std::string_view, N>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

std::optional<std::uint32_t> tokens(std::string_view cell) {
  const auto value = csv_number(cell);
  if (!value || !(*value >= 0) || *value > kRequestTokensMax || *value != std::floor(*value)) return std::nullopt;
  return static_cast<std::uint32_t>(*value);
}

// Reads `digits` digits and the character behind them.
bool take_digits(std::string_view& text, std::size_t digits, std::string_view behind, int& value) {
  if (text.size() < digits) return false;
  value = 0;
  for (std::size_t i = 0; i < digits; ++i) {
    if (text[i] < '0' || text[i] > '9') return false;
    value = value * 10 + (text[i] - '0');
  }
  text.remove_prefix(digits);
  if (behind.empty()) return true;
  if (text.empty() || behind.find(text.front()) == std::string_view::npos) return false;
  text.remove_prefix(1);
  return true;
}

// Days from 1970-01-01 in the Gregorian calendar: whole 400-year cycles plus days of the year counted from March.
std::int64_t days_since_1970(int year, int month, int day) {
  const std::int64_t y = year - (month <= 2 ? 1 : 0);
  const std::int64_t cycle = y / 400;
  const std::int64_t year_of_cycle = y - cycle * 400;
  const std::int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  const std::int64_t day_of_cycle = year_of_cycle * 365 + year_of_cycle / 4 - year_of_cycle / 100 + day_of_year;
  return cycle * 146'097 + day_of_cycle - 719'468;
}

// "2023-11-16 18:15:46.6805900", with a T, a fraction or a zone (ignored: one file has one) or without. Seconds
// since 1970.
std::optional<double> date_time(std::string_view cell) {
  int year = 0;
  int month = 0;
  int day = 0;
  int hour = 0;
  int minute = 0;
  int second = 0;
  const bool read = take_digits(cell, 4, "-", year) && take_digits(cell, 2, "-", month) &&
                    take_digits(cell, 2, " T", day) && take_digits(cell, 2, ":", hour) &&
                    take_digits(cell, 2, ":", minute) && take_digits(cell, 2, "", second);
  if (!read || month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 || second > 60) {
    return std::nullopt;
  }
  double fraction = 0;
  if (cell.starts_with('.')) {
    const std::size_t digits = std::min(cell.find_first_not_of("0123456789", 1), cell.size());
    const auto parsed = digits > 1 ? csv_number(cell.substr(0, digits)) : std::nullopt;
    if (!parsed) return std::nullopt;
    fraction = *parsed;
  }
  return static_cast<double>(days_since_1970(year, month, day)) * 86'400 + hour * 3600 + minute * 60 + second +
         fraction;
}

class CsvReader {
 public:
  CsvReader(std::string_view file, const ReadOptions& options) : file_(file), options_(options) {}

  FromInput<Trace> read(std::string_view text) {
    CsvLines lines(text);
    while (lines.next(cells_)) {
      const auto fault = columns_ == 0 ? header() : row();
      if (fault) return std::unexpected(InputFault{std::string(file_), lines.line(), *fault});
    }
    if (trace_.requests.empty()) {
      return std::unexpected(InputFault{std::string(file_), 0, "no requests: expected a header and a line for each"});
    }
    return std::move(trace_);
  }

 private:
  std::optional<std::string> header() {
    columns_ = cells_.size();
    arrival_ = column(cells_, kArrivalNames);
    prompt_ = column(cells_, kPromptNames);
    output_ = column(cells_, kOutputNames);
    trace_.timed = arrival_ != kNowhere;
    if (prompt_ == kNowhere) return "no column of prompt tokens: expected one of " + any_of(kPromptNames);
    if (output_ == kNowhere) return "no column of output tokens: expected one of " + any_of(kOutputNames);
    return std::nullopt;
  }

  std::optional<std::string> row() {
    if (cells_.size() != columns_) {
      return fmt::format("{} columns: expected {} as in the header", cells_.size(), columns_);
    }
    Request request;
    const auto prompt = tokens(cells_[prompt_]);
    const auto output = tokens(cells_[output_]);
    if (!prompt) return lengths_fault("prompt", cells_[prompt_]);
    if (!output) return lengths_fault("output", cells_[output_]);
    request.prompt_tokens = *prompt;
    request.output_tokens = *output;
    if (trace_.timed) {
      if (auto fault = read_arrival(cells_[arrival_], request.arrival_s)) return fault;
    }
    if (auto fault = request_fault(request, before_s_, options_)) return fault;
    before_s_ = request.arrival_s;
    trace_.requests.push_back(request);
    return std::nullopt;
  }

  static std::string lengths_fault(std::string_view what, std::string_view cell) {
    return fmt::format("{} tokens are '{}': expected a whole number up to {}", what, cell.substr(0, 40),
                       kRequestTokensMax);
  }

  std::optional<std::string> read_arrival(std::string_view cell, double& seconds) {
    const bool first = trace_.requests.empty();
    auto value = csv_number(cell);
    const bool date = !value.has_value();
    if (date) value = date_time(cell);
    if (!value || (!first && date != dates_)) {
      return fmt::format("the arrival is '{}': expected {}", cell.substr(0, 40),
                         first    ? "seconds, or a date and time like 2023-11-16 18:15:46.68"
                         : dates_ ? "a date and time, as in the first request"
                                  : "seconds, as in the first request");
    }
    if (first) {
      dates_ = date;
      origin_s_ = date ? *value : 0;
    }
    seconds = *value - origin_s_;
    return std::nullopt;
  }

  std::string_view file_;
  const ReadOptions& options_;
  Trace trace_;
  std::vector<std::string_view> cells_;
  std::size_t columns_ = 0;
  std::size_t arrival_ = kNowhere;
  std::size_t prompt_ = kNowhere;
  std::size_t output_ = kNowhere;
  bool dates_ = false;
  double origin_s_ = 0;
  double before_s_ = 0;
};

}  // namespace

FromInput<Trace> read_csv(std::string_view text, std::string_view file, const ReadOptions& options) {
  return CsvReader(file, options).read(text);
}

}  // namespace kvd::trace
