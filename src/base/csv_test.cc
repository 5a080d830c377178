// Lines of comma-separated values: what counts, what does not, and where a cell was.
#include "base/csv.h"

#include <string>

#include <gtest/gtest.h>

namespace kvd {
namespace {

using Cells = std::vector<std::string_view>;

TEST(CsvLines, GivesCellsWithoutWhatSurroundsThem) {
  CsvLines lines("a, \"b c\" ,\r\n\n  \r\n1,2");
  Cells cells;
  ASSERT_TRUE(lines.next(cells));
  EXPECT_EQ(cells, (Cells{"a", "b c", ""}));
  EXPECT_EQ(lines.line(), 1U);
  ASSERT_TRUE(lines.next(cells));
  EXPECT_EQ(cells, (Cells{"1", "2"}));
  EXPECT_EQ(lines.line(), 4U);
  EXPECT_FALSE(lines.next(cells));
}

TEST(CsvLines, HasALimitOfColumns) {
  const std::string text(10'000, ',');
  CsvLines lines(text);
  Cells cells;
  ASSERT_TRUE(lines.next(cells));
  EXPECT_EQ(cells.size(), CsvLines::kColumnsMax);
  EXPECT_FALSE(lines.next(cells));
}

TEST(CsvLines, ANumberIsTheWholeCell) {
  EXPECT_EQ(csv_number("1.5e3"), 1500);
  EXPECT_EQ(csv_number("-2"), -2);
  for (const char* const text : {"", "1.5s", "x", "1 2", "0x10"}) EXPECT_FALSE(csv_number(text)) << text;
}

}  // namespace
}  // namespace kvd
