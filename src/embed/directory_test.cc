#include "embed/directory.h"

#include <gtest/gtest.h>

namespace kvd::embed {
namespace {

TEST(ParseDirectory, TakesPathAndSizes) {
  const auto directory = parse_directory("file:///data/kv/?pool=2GiB&flash=10GiB");
  ASSERT_TRUE(directory.has_value());
  EXPECT_EQ(directory->path, "/data/kv");
  EXPECT_EQ(directory->pool_bytes, std::uint64_t{2} << 30);
  EXPECT_EQ(directory->flash_bytes, std::uint64_t{10} << 30);
  EXPECT_EQ(directory->socket_path(), "/data/kv/kvdepot.sock");
}

TEST(ParseDirectory, ReadsSizesAsTheServerDoes) {
  const auto directory = parse_directory("file:///data/kv?pool=2gib&flash=10 GB");
  ASSERT_TRUE(directory.has_value());
  EXPECT_EQ(directory->pool_bytes, std::uint64_t{2} << 30);
  EXPECT_EQ(directory->flash_bytes, 10'000'000'000U);
}

TEST(ParseDirectory, HasDefaults) {
  const auto directory = parse_directory("file:///data/kv");
  ASSERT_TRUE(directory.has_value());
  EXPECT_EQ(directory->pool_bytes, std::uint64_t{1} << 30);
  EXPECT_EQ(directory->flash_bytes, std::uint64_t{10} << 30);
  EXPECT_FALSE(directory->flash_given);
}

TEST(ParseDirectory, NoFlashIsMemoryOnly) {
  const auto directory = parse_directory("file:///data/kv?flash=0");
  ASSERT_TRUE(directory.has_value());
  EXPECT_EQ(directory->flash_bytes, 0U);
  EXPECT_TRUE(directory->flash_given);
}

TEST(ParseDirectory, RefusesWhatItDoesNotKnow) {
  for (const char* text : {"tcp://a:1", "file://", "file:///", "file://data", "file:///d?pool", "file:///d?pool=",
                           "file:///d?disk=1GiB", "file:///d?pool=1GiB&pool=2GiB", "file:///d?pool=1GiB&&flash=1GiB"}) {
    EXPECT_FALSE(parse_directory(text).has_value()) << text;
  }
  EXPECT_FALSE(parse_directory("file:///" + std::string(100, 'x')).has_value());
}

}  // namespace
}  // namespace kvd::embed
