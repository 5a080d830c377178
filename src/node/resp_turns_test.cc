// How long Redis clients make a turn of the loop that ask without a pause (node/turn_time.h).
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "node/testing/resp_client.h"
#include "node/testing/rig.h"

namespace kvd::node {
namespace {

constexpr int kSomeTurns = 5'000;
constexpr std::uint64_t kEach = 1000;  // commands, which one receive brings
constexpr std::string_view kPong = "+PONG\r\n";

class RespTurnsTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::uint64_t commands() const { return rig_.stat("node", "resp_commands"); }
  void turn() { rig_.loop->run_once(std::chrono::milliseconds(1)); }
  static void give(const RespClient& client, std::string_view bytes) {
    EXPECT_EQ(::send(client.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT), static_cast<ssize_t>(bytes.size()));
  }
  // What has come; returns how much.
  static std::size_t drain(const RespClient& client) {
    std::string place(65536, '\0');
    std::size_t bytes = 0;
    for (ssize_t n = 0; (n = ::recv(client.fd(), place.data(), place.size(), MSG_DONTWAIT)) > 0;)
      bytes += static_cast<std::size_t>(n);
    return bytes;
  }

  static NodeOptions without_flash() {
    NodeOptions options = test_options();
    options.store.flash_bytes = 0;
    return options;
  }

  Rig rig_{without_flash()};
};

// A turn has up to 600 of them; without a bound it would have 24,000, and with one for each client some 13,000.
TEST_F(RespTurnsTest, ManyCommandsOfManyClientsTakeManyTurns) {
  constexpr int kClients = 24, kTurns = 60;
  std::string burst;
  for (std::uint64_t i = 0; i < kEach; ++i) burst += resp_command({"INFO"});
  std::vector<RespClient> clients;
  for (int i = 0; i < kClients; ++i) clients.emplace_back(rig_);
  for (const RespClient& client : clients) give(client, burst);
  const RespClient other(rig_);
  std::uint64_t most = 0;
  std::vector<std::size_t> late(kClients);  // bytes of each, when each has had its first turn
  for (int i = 0; i < kTurns; ++i) {
    const std::uint64_t before = commands();
    if (i == 3) give(other, resp_command({"PING"}));
    turn();
    if (i == 3) {
      EXPECT_EQ(drain(other), kPong.size()) << "in the turn in which it came";
    }
    most = std::max(most, commands() - before);
    for (std::size_t client = 0; client < kClients; ++client) late[client] += drain(clients[client]) * (i < 3 ? 0 : 1);
  }
  EXPECT_LT(most, 5 * kEach);
  EXPECT_EQ(std::ranges::count(late, 0U), 0) << "each has its turn";
}

TEST_F(RespTurnsTest, WhoHasOneCommandAtATimeStandsInNoLine) {
  RespClient other(rig_);
  EXPECT_EQ(other.call({"SET", "k", "value"}, "+OK\r\n"), "+OK\r\n");
  std::string burst;
  for (std::uint64_t i = 0; i < kEach; ++i) burst += resp_command({"INFO"});
  std::vector<RespClient> clients;
  for (int i = 0; i < 24; ++i) clients.emplace_back(rig_);
  for (const RespClient& client : clients) give(client, burst);
  turn();
  turn();
  for (int i = 0; i < 10; ++i) {
    give(other, resp_command({"GET", "k"}));
    turn();
    EXPECT_EQ(drain(other), resp_bulk("value").size()) << "in the turn in which it came";
    for (const RespClient& client : clients) drain(client);
  }
  EXPECT_LT(commands(), 24 * kEach) << "the others are still in line";
}

TEST_F(RespTurnsTest, ManyKeysOfOneCommandTakeManyTurns) {
  std::vector<std::string> words{"DEL"};
  for (int i = 0; i < 8'000; ++i) words.push_back("key " + std::to_string(i));
  RespClient remover(rig_);
  const RespClient other(rig_);
  const std::string command = resp_command(words);
  remover.send(std::string_view(command).substr(0, command.size() - 1));
  give(remover, "\n");
  int answered = 0, turns = 0;
  for (; drain(remover) == 0 && turns < kSomeTurns; ++turns) {
    give(other, resp_command({"PING"}));
    turn();
    answered += drain(other) == kPong.size() ? 1 : 0;
  }
  EXPECT_GT(turns, 3);
  EXPECT_EQ(answered, turns);
}

}  // namespace
}  // namespace kvd::node
