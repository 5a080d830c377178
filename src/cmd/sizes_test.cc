// Tests of sizes as people read them.
#include "cmd/sizes.h"

#include <gtest/gtest.h>

namespace kvd::cmd {
namespace {

TEST(Sizes, ShowsTheShortForm) {
  EXPECT_EQ(show_size(std::uint64_t{8} << 30), "8GiB");
  EXPECT_EQ(show_size(1536), "1.5KiB");
  EXPECT_EQ(show_size(0), "0B");
}

}  // namespace
}  // namespace kvd::cmd
