#include "cmd/metrics_sample.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <system_error>

namespace kvd::cmd {
namespace {

constexpr std::string_view kBlanks = " \t\r";

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::optional<double> parse_number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

// Length of "name" or "name{labels}" at the beginning of `line`; 0 when it is neither.
std::size_t series_length(std::string_view line) {
  const std::size_t name = line.find_first_of(" \t{");
  if (name == 0 || name == std::string_view::npos) return 0;
  if (line[name] != '{') return name;
  bool quoted = false;
  for (std::size_t i = name + 1; i < line.size(); ++i) {
    if (quoted && line[i] == '\\') {
      ++i;
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (!quoted && line[i] == '}') {
      return i + 1;
    }
  }
  return 0;
}

// The value of `label` in "name{label="value",...}" as it was written; nothing when it has none.
std::optional<std::string_view> label_in(std::string_view series, std::string_view label) {
  const std::string wanted = std::string(label) + "=\"";
  for (std::size_t at = series.find(wanted); at != std::string_view::npos; at = series.find(wanted, at + 1)) {
    if (at == 0 || (series[at - 1] != '{' && series[at - 1] != ',')) continue;
    const std::size_t begin = at + wanted.size();
    const std::size_t end = series.find('"', begin);
    if (end != std::string_view::npos) return series.substr(begin, end - begin);
  }
  return std::nullopt;
}

}  // namespace

Result<MetricsSample> MetricsSample::parse(std::string_view text) {
  MetricsSample sample;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    const std::size_t series = series_length(line);
    if (series == 0) return fail(Code::kInvalid, "not Prometheus' text format: a line has no name and value");
    const std::string_view rest = trim(line.substr(series));
    const auto value = parse_number(rest.substr(0, rest.find_first_of(kBlanks)));  // a time may follow
    if (!value) return fail(Code::kInvalid, "not Prometheus' text format: a value is no number");
    if (sample.series_.size() >= kSeriesMax) return fail(Code::kInvalid, "more metrics than a depot has");
    sample.series_.insert_or_assign(std::string(line.substr(0, series)), *value);
  }
  return sample;
}

double MetricsSample::value(std::string_view name) const {
  const auto found = series_.find(name);
  return found != series_.end() && std::isfinite(found->second) ? found->second : 0;
}

std::string MetricsSample::label(std::string_view name, std::string_view label) const {
  const std::string prefix = std::string(name) + "{";
  const auto found = series_.lower_bound(prefix);
  if (found == series_.end() || !found->first.starts_with(prefix)) return {};
  return std::string(label_in(found->first, label).value_or(""));
}

std::vector<std::string> MetricsSample::labels(std::string_view name, std::string_view label) const {
  std::vector<std::string> found;
  const std::string prefix = std::string(name) + "{";
  for (auto it = series_.lower_bound(prefix); it != series_.end() && it->first.starts_with(prefix); ++it)
    if (const auto value = label_in(it->first, label)) found.emplace_back(*value);
  return found;
}

std::vector<MetricsSample::Bucket> MetricsSample::buckets(std::string_view name) const {
  std::vector<Bucket> buckets;
  const std::string prefix = std::string(name) + "_bucket{";
  for (auto it = series_.lower_bound(prefix); it != series_.end() && it->first.starts_with(prefix); ++it) {
    const auto le = label_in(it->first, "le");
    const auto upper = le ? parse_number(*le) : std::nullopt;
    if (upper && !std::isnan(*upper) && std::isfinite(it->second)) buckets.push_back({*upper, it->second});
  }
  std::ranges::sort(buckets, {}, &Bucket::upper);
  return buckets;
}

double quantile(const std::vector<MetricsSample::Bucket>& before, const std::vector<MetricsSample::Bucket>& now,
                double q) {
  const bool same = std::ranges::equal(before, now, {}, &MetricsSample::Bucket::upper, &MetricsSample::Bucket::upper);
  const auto gained = [&](std::size_t i) { return now[i].count - (same ? before[i].count : 0); };
  if (now.empty() || gained(now.size() - 1) <= 0) return 0;
  const double wanted = q * gained(now.size() - 1);
  for (std::size_t i = 0; i < now.size(); ++i)
    if (gained(i) >= wanted) return now[i].upper;
  return now.back().upper;
}

}  // namespace kvd::cmd
