// Tests of sizes and durations as people type and read them.
#include "base/sizes.h"

#include <gtest/gtest.h>

namespace kvd {
namespace {

TEST(Sizes, ReadsBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_size("8GiB").value(), std::uint64_t{8} << 30);
  EXPECT_EQ(parse_size("500MB").value(), 500'000'000u);
  EXPECT_EQ(parse_size("1.5 tib").value(), std::uint64_t{3} << 39);
  EXPECT_EQ(parse_size("4096").value(), 4096u);
  EXPECT_EQ(parse_size("2G").value(), std::uint64_t{2} << 30);
  EXPECT_EQ(parse_size("2PiB").value(), std::uint64_t{2} << 50);
  EXPECT_EQ(parse_size("0").value(), 0u);
}

TEST(Sizes, RefusesWhatIsNotASize) {
  for (const auto* text :
       {"", "GiB", "-1", "-1GiB", "8 apples", "1e9", "1e30", "nan", "inf", "0x10", "8GiB!", "99999999TiB"})
    EXPECT_FALSE(parse_size(text).has_value()) << text;
}

TEST(Sizes, ShowsTheShortForm) {
  EXPECT_EQ(show_size(std::uint64_t{8} << 30), "8GiB");
  EXPECT_EQ(show_size(1536), "1.5KiB");
  EXPECT_EQ(show_size(0), "0B");
  EXPECT_EQ(show_size(~std::uint64_t{0}), "16777216TiB");
}

TEST(Sizes, ReadsDurations) {
  EXPECT_EQ(parse_duration("250ms").value(), Millis(250));
  EXPECT_EQ(parse_duration("50us").value(), std::chrono::microseconds(50));
  EXPECT_EQ(parse_duration("30").value(), std::chrono::seconds(30));
  EXPECT_EQ(parse_duration("1.5m").value(), std::chrono::seconds(90));
  EXPECT_FALSE(parse_duration("30 days").has_value());
}

}  // namespace
}  // namespace kvd
