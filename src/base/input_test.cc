// Tests of complaints about files: how they read, and which names are offered for a mistyped one.
#include "base/input.h"

#include <gtest/gtest.h>

namespace kvd {
namespace {

const std::vector<std::string> kGpus{"a100-40gb", "a100-80gb", "h100", "h200", "cpu"};

TEST(InputFault, NamesFileAndLine) {
  EXPECT_EQ((InputFault{"t.csv", 7, "a column is missing"}.str()), "t.csv:7: a column is missing");
  EXPECT_EQ((InputFault{"t.csv", 0, "empty"}.str()), "t.csv: empty");
}

TEST(NearestNames, OffersTypingSlipsNearestFirst) {
  EXPECT_EQ(nearest_names("h1O0", kGpus).at(0), "h100");
  EXPECT_EQ(nearest_names("H-200", kGpus).at(0), "h200");
}

TEST(NearestNames, OffersNamesThatContainTheGivenOne) {
  const std::vector<std::string> both{"a100-40gb", "a100-80gb"};
  EXPECT_EQ(nearest_names("A100", kGpus, 2), both);
}

TEST(NearestNames, OffersNothingForWhatIsFarFromAll) {
  EXPECT_TRUE(nearest_names("gaudi-unknown", kGpus).empty());
  EXPECT_TRUE(nearest_names("", kGpus).empty());
}

TEST(NearestNames, KeepsToTheCount) { EXPECT_EQ(nearest_names("a100", kGpus, 1).size(), 1U); }

}  // namespace
}  // namespace kvd
