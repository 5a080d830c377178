// Whose values are verified when Redis clients ask for many that take a while (node/resp_read.h, RespChecks).
#include <sys/socket.h>

#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "node/testing/resp_client.h"
#include "node/testing/rig.h"

namespace kvd::node {
namespace {

constexpr std::size_t kValueBytes = std::size_t{256} << 10;
constexpr std::size_t kValues = 12;
constexpr int kTurnsMax = 10'000;

class RespChecksTest : public ::testing::Test {
 protected:
  RespChecksTest() {
    RespClient client(rig_);
    EXPECT_EQ(client.call({"SET", "large", resp_text(kValueBytes, 1)}, "+OK\r\n"), "+OK\r\n");
  }
  [[nodiscard]] std::uint64_t hits() const { return rig_.stat("node", "resp_hits"); }
  void turn() { rig_.loop->run_once(std::chrono::milliseconds(1)); }
  static void ask_for(const RespClient& client, std::size_t values) {
    std::vector<std::string> words{"MGET"};
    words.insert(words.end(), values, "large");
    const std::string bytes = resp_command(words);
    EXPECT_EQ(::send(client.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT), static_cast<ssize_t>(bytes.size()));
  }
  // What has come; returns how much.
  std::size_t drain(const RespClient& client) {
    std::size_t bytes = 0;
    for (ssize_t n = 0; (n = ::recv(client.fd(), place_.data(), place_.size(), MSG_DONTWAIT)) > 0;)
      bytes += static_cast<std::size_t>(n);
    return bytes;
  }

  Rig rig_{test_options()};
  std::array<char, 65536> place_{};
};

TEST_F(RespChecksTest, OneOfThemInATurn) {
  const RespClient one(rig_), two(rig_), three(rig_);
  for (const RespClient* client : {&one, &two, &three}) ask_for(*client, kValues);
  std::uint64_t before = hits();
  const std::uint64_t end = before + 3 * kValues;
  for (int turns = 0; hits() < end && turns < kTurnsMax; ++turns) {
    turn();
    EXPECT_LE(hits() - before, kValues / 3) << "one, and some that were verified before and waited to be sent";
    before = hits();
    for (const RespClient* client : {&one, &two, &three}) drain(*client);
  }
  EXPECT_EQ(hits(), end);
}

TEST_F(RespChecksTest, WhoAsksForOneWaitsForOneOfEachOther) {
  const RespClient busy(rig_), also_busy(rig_), other(rig_);
  ask_for(busy, 100 * kValues);
  ask_for(also_busy, 100 * kValues);
  const auto others_turn = [&] {
    turn();
    drain(busy);
    drain(also_busy);
  };
  for (int turns = 0; turns < 20; ++turns) others_turn();
  ask_for(other, 1);
  std::size_t got = 0;
  int turns = 0;
  for (; got < kValueBytes && turns < kTurnsMax; ++turns) {
    others_turn();
    got += drain(other);
  }
  EXPECT_LE(turns, 12) << "of which some send";
  EXPECT_LT(hits(), 2 * 100 * kValues);
}

}  // namespace
}  // namespace kvd::node
