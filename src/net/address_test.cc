#include "net/address.h"

#include <gtest/gtest.h>

namespace kvd::net {
namespace {

TEST(Address, ReadsAndWritesBothKinds) {
  for (const char* text :
       {"tcp://127.0.0.1:7070", "tcp://localhost:0", "tcp://[::1]:65535", "unix:///run/kvdepot.sock"}) {
    const auto address = parse_address(text);
    ASSERT_TRUE(address.has_value()) << text;
    EXPECT_EQ(address->text(), text);
  }
}

TEST(Address, RefusesWhatIsNoAddress) {
  for (const char* text :
       {"", "127.0.0.1:7070", "http://127.0.0.1:80", "tcp://", "tcp://host", "tcp://:7070", "tcp://h:", "tcp://h:65536",
        "tcp://h:-1", "tcp://h:7x", "tcp://::1:7070", "tcp://[::1]", "tcp://[h]:1", "tcp://[]:1", "tcp://[[//]]:4",
        "tcp://[::1]]:4", "tcp://h/x:1", "unix://", "unix://relative"}) {
    EXPECT_FALSE(parse_address(text).has_value()) << text;
  }
  EXPECT_FALSE(parse_address(std::string_view("tcp://h\0:1", 10)).has_value());
  EXPECT_FALSE(parse_address("unix:///" + std::string(107, 'x')).has_value());
  EXPECT_TRUE(parse_address("unix:///" + std::string(106, 'x')).has_value());
}

TEST(Address, KnowsWhatOtherMachinesReach) {
  const auto loopback = [](const char* text) { return is_loopback(*resolve(*parse_address(text))); };
  EXPECT_TRUE(loopback("tcp://127.0.0.1:1"));
  EXPECT_TRUE(loopback("tcp://127.8.9.10:1"));
  EXPECT_TRUE(loopback("tcp://localhost:1"));
  EXPECT_TRUE(loopback("tcp://[::1]:1"));
  EXPECT_TRUE(loopback("unix:///tmp/x"));
  EXPECT_FALSE(loopback("tcp://0.0.0.0:1"));
  EXPECT_FALSE(loopback("tcp://10.1.2.3:1"));
  EXPECT_FALSE(loopback("tcp://[::]:1"));
}

TEST(Address, ANameWithoutAddressIsNotFound) {
  const auto endpoint = resolve({.host = "no-such-host.invalid", .port = 1, .path = {}});
  ASSERT_FALSE(endpoint.has_value());
  EXPECT_EQ(endpoint.error().code, Code::kNotFound);
}

}  // namespace
}  // namespace kvd::net
