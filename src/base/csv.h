// Lines of comma-separated values as tools write them for measurements and traces: no quoted commas, spaces and quotes
// around a cell do not count, blank lines are skipped. Views into the text; nothing is copied.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace kvd {

class CsvLines {
 public:
  static constexpr std::size_t kColumnsMax = 256;  // cells beyond are left out

  // The text must outlive the cells.
  explicit CsvLines(std::string_view text) noexcept : text_(text) {}
  // The cells of the next line that is not blank; false at the end.
  bool next(std::vector<std::string_view>& cells);
  // Its number in the text, from 1; 0 before the first.
  [[nodiscard]] std::size_t line() const noexcept { return line_; }

 private:
  std::string_view text_;
  std::size_t line_ = 0;
};

// A cell that is a number and nothing else; it may be infinite or NaN.
[[nodiscard]] std::optional<double> csv_number(std::string_view cell);

}  // namespace kvd
