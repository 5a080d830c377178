#include "base/csv.h"

#include <algorithm>
#include <charconv>

namespace kvd {
namespace {

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t' || text.front() == '"')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '"' || text.back() == '\r')) {
    text.remove_suffix(1);
  }
  return text;
}

}  // namespace

bool CsvLines::next(std::vector<std::string_view>& cells) {
  while (!text_.empty()) {
    ++line_;
    const std::size_t length = std::min(text_.find('\n'), text_.size());
    std::string_view line = text_.substr(0, length);
    text_.remove_prefix(std::min(length + 1, text_.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    cells.clear();
    while (cells.size() < kColumnsMax) {
      const std::size_t comma = line.find(',');
      cells.push_back(trim(line.substr(0, comma)));
      if (comma == std::string_view::npos) break;
      line.remove_prefix(comma + 1);
    }
    return true;
  }
  return false;
}

std::optional<double> csv_number(std::string_view cell) {
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc{} || end != cell.data() + cell.size()) return std::nullopt;
  return value;
}

}  // namespace kvd
