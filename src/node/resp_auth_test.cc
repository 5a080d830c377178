// Redis clients of a node with credentials.
#include <gtest/gtest.h>

#include "io/sim/sim_disk.h"
#include "node/testing/auth_fixture.h"
#include "node/testing/resp_client.h"

namespace kvd::node {
namespace {

using auth::token_number;

// They are let in by the same credentials as native ones.
class RespByCredential : public NodeAuth {
 protected:
  static std::string said(RespClient& client, const std::vector<std::string>& words) {
    client.send(resp_command(words));
    return client.line();
  }
};

TEST_F(RespByCredential, ATokenIsATenantWithItsRights) {
  start();
  wall = 946684800;  // 2000-01-01
  RespClient a(*rig), b(*rig), reader(*rig), expired(*rig), stranger(*rig);
  EXPECT_EQ(said(a, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(b, {"AUTH", "b", token_number(2)}), "+OK\r\n");
  EXPECT_EQ(said(reader, {"AUTH", token_number(3)}), "+OK\r\n");
  EXPECT_TRUE(said(expired, {"AUTH", token_number(5)}).starts_with("-WRONGPASS"));
  EXPECT_TRUE(said(stranger, {"GET", "k"}).starts_with("-NOAUTH"));
  EXPECT_EQ(said(a, {"SET", "k", "of a"}), "+OK\r\n");
  EXPECT_EQ(said(b, {"EXISTS", "k"}), ":0\r\n");
  EXPECT_EQ(said(reader, {"EXISTS", "k"}), ":1\r\n");
  EXPECT_TRUE(said(reader, {"SET", "k", "x"}).starts_with("-NOPERM"));
}

TEST_F(RespByCredential, TheLogTellsFromWhereAWrongTokenCame) {
  start();
  for (int i = 0; i < 2; ++i) {
    RespClient guesses(*rig);
    EXPECT_TRUE(said(guesses, {"AUTH", token_number(9)}).starts_with("-WRONGPASS"));
  }
  EXPECT_EQ(rig->log.count("refused this host: unknown or revoked token"), 1U) << "one line a period and peer";
  EXPECT_EQ(rig->stat("node", "unauthorized"), 2U);
}

// Of all clients of the tenant: one holds a SET open, the others' commands count with it.
TEST_F(RespByCredential, ATenantsRequestsInFlightAreBounded) {
  start("tenant a requests=1\n" + token_line(1, "a", "read,write") + token_line(2, "b", "read,write"));
  RespClient holds(*rig), other(*rig), b(*rig);
  EXPECT_EQ(said(holds, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(other, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(b, {"AUTH", token_number(2)}), "+OK\r\n");
  const std::string set = resp_command({"SET", "k", resp_text(100'000, 1)});
  holds.send(std::string_view(set).substr(0, set.size() - 1));
  EXPECT_TRUE(rig->until([&] { return rig->stat("store", "unfinished_puts") > 0; }));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"EXISTS", "k"}, {"GET", "k"}, {"SET", "l", "v"}, {"DEL", "k"}})
    EXPECT_EQ(said(other, words), "-BUSY the tenant has as many requests in flight as it may\r\n") << words[0];
  EXPECT_EQ(said(other, {"PING"}), "+PONG\r\n");
  EXPECT_EQ(said(b, {"EXISTS", "k"}), ":0\r\n");
  holds.send("\n");
  EXPECT_EQ(holds.line(), "+OK\r\n");
  EXPECT_EQ(said(other, {"EXISTS", "k"}), ":1\r\n");
  EXPECT_EQ(said(other, {"DEL", "k"}), ":1\r\n");
  EXPECT_EQ(said(other, {"SET", "l", "v"}), "+OK\r\n");
  EXPECT_EQ(tenant("a")["refused"], 4);
  EXPECT_EQ(tenant("a")["requests"], 4);
  EXPECT_EQ(tenant("a")["records_got"], 1) << "EXISTS";
  EXPECT_EQ(tenant("a")["bytes_received"], 100'001);
}

TEST_F(RespByCredential, ATenantsConnectionsAreBounded) {
  start("tenant a connections=1\n" + token_line(1, "a", "read,write") + token_line(2, "b", "read,write"));
  RespClient in(*rig), out(*rig), b(*rig), again(*rig);
  EXPECT_EQ(said(in, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(in, {"AUTH", token_number(1)}), "+OK\r\n") << "it has its place";
  EXPECT_EQ(said(out, {"AUTH", token_number(1)}),
            "-ERR max number of clients reached: the tenant has as many connections as it may\r\n");
  EXPECT_TRUE(out.ended());
  EXPECT_EQ(said(b, {"AUTH", token_number(2)}), "+OK\r\n");
  EXPECT_EQ(said(in, {"AUTH", token_number(2)}), "+OK\r\n") << "another tenant from now on";
  EXPECT_EQ(said(again, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(tenant("a")["connections"], 1);
  EXPECT_EQ(tenant("b")["connections"], 2);
}

// Their values take five.
TEST_F(RespByCredential, ATenantsNamespacesAreBounded) {
  start("tenant a namespaces=4\n" + token_line(1, "a", "read,write"));
  RespClient client(*rig);
  EXPECT_EQ(said(client, {"AUTH", token_number(1)}),
            "-ERR the tenant has as many namespaces open as it may: close some\r\n");
  EXPECT_TRUE(client.ended());
  rig->node->set_authority(auth::shared_authority("tenant a namespaces=5\n" + token_line(1, "a", "read,write")));
  RespClient again(*rig);
  EXPECT_EQ(said(again, {"AUTH", token_number(1)}), "+OK\r\n");
}

TEST_F(RespByCredential, ATenantsQuotaOfThePoolBoundsItsValues) {
  start("tenant a pool=64KiB\n" + token_line(1, "a", "read,write") + token_line(2, "b", "read,write"));
  RespClient a(*rig), b(*rig);
  EXPECT_EQ(said(a, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(b, {"AUTH", token_number(2)}), "+OK\r\n");
  EXPECT_TRUE(said(a, {"SET", "k", resp_text(200'000, 1)}).starts_with("-OOM"));
  EXPECT_EQ(said(b, {"SET", "k", resp_text(200'000, 1)}), "+OK\r\n");
  EXPECT_EQ(said(a, {"SET", "k", "small"}), "+OK\r\n");
  EXPECT_EQ(said(a, {"EXISTS", "k"}), ":1\r\n");
}

TEST_F(RespByCredential, AValueBeyondTheQuotaOfFlashIsRefusedForThat) {
  const std::string token = token_line(1, "a", "read,write");
  NodeOptions options = test_options();
  options.authority = auth::shared_authority("tenant a flash=64KiB\n" + token);
  options.resp_ack = AckLevel::kWritten;
  rig = std::make_unique<Rig>(options, true);
  constexpr const char* kTooLarge = "-ERR the value is larger than the tenant's quota of flash\r\n";
  RespClient a(*rig);
  EXPECT_EQ(said(a, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(a, {"SET", "k", resp_text(200'000, 1)}), kTooLarge);
  EXPECT_EQ(said(a, {"SET", "k", resp_text(20'000, 1)}), "+OK\r\n");
  rig->node->set_authority(auth::shared_authority("tenant a flash=1KiB\n" + token));
  RespClient again(*rig);
  EXPECT_EQ(said(again, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(again, {"SET", "k", "v"}), kTooLarge);
  again.send("SET k v\r\n");
  EXPECT_EQ(again.line(), kTooLarge);
}

TEST_F(RespByCredential, OfAStrangerLittleIsKept) {
  start();
  RespClient client(*rig);
  EXPECT_EQ(said(client, {"AUTH", std::string(1025, 'x')}), "-ERR too long\r\n");
  EXPECT_EQ(said(client, {"HELLO", "3", "SETNAME", "a", "SETNAME", "b", "SETNAME", "c", "d"}), "-ERR too long\r\n");
  EXPECT_EQ(said(client, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(client, {"GET", std::string(1025, 'x')}), "$-1\r\n");
}

TEST_F(RespByCredential, WhoHasShownAWrongTokenKeepsItsPlaceUntilItIsAnswered) {
  NodeOptions options = test_options();
  options.limits.strangers_max = 1;
  options.limits.stranger_grace = Duration::zero();
  start(everybody(), options, Millis(300));
  RespClient guesses(*rig);
  guesses.send(resp_command({"AUTH", token_number(9)}));
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "unauthorized") == 1; }));
  auto [near, far] = net::make_socket_pair();
  EXPECT_EQ(rig->node->adopt_resp(net::make_socket_stream(std::move(far))).error().code, Code::kBusy);
  EXPECT_TRUE(guesses.line().starts_with("-WRONGPASS"));
  EXPECT_TRUE(guesses.ended());
}

TEST_F(RespByCredential, FiguresOfAllTenantsAreForAdministrators) {
  start(token_line(1, "a", "read,write") + token_line(2, "a", "admin"));
  RespClient client(*rig), admin(*rig);
  EXPECT_EQ(said(client, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(admin, {"AUTH", token_number(2)}), "+OK\r\n");
  const auto info = [](RespClient& who) { return who.read(std::stoul(said(who, {"INFO"}).substr(1)) + 2); };
  EXPECT_EQ(info(client).find("used_memory"), std::string::npos);
  EXPECT_NE(info(admin).find("used_memory"), std::string::npos);
  EXPECT_TRUE(said(admin, {"GET", "k"}).starts_with("-NOPERM"));
  EXPECT_EQ(rig->stat("node", "forbidden"), 1U);
}

TEST_F(RespByCredential, OtherCredentialsEndItsConnections) {
  start();
  RespClient a(*rig);
  EXPECT_EQ(said(a, {"AUTH", token_number(1)}), "+OK\r\n");
  rig->node->set_authority(auth::shared_authority(token_line(2, "b", "read,write")));
  EXPECT_TRUE(a.ended());
  RespClient again(*rig);
  EXPECT_TRUE(said(again, {"AUTH", token_number(1)}).starts_with("-WRONGPASS"));
}

// The keyspace stays until then, though nobody uses it.
TEST_F(RespByCredential, TheOldPartsOfAValueGoAlsoWhereItsClientDoesBeforeTheNewOneIsWritten) {
  io::SimDisks disks(1);
  NodeOptions options = test_options();
  options.authority = auth::shared_authority(token_line(1, "a", "read,write"));
  options.resp_ack = AckLevel::kWritten;
  options.disks = &disks;
  Rig depot(options, true);
  RespClient client(depot);
  EXPECT_EQ(said(client, {"AUTH", token_number(1)}), "+OK\r\n");
  ASSERT_EQ(said(client, {"SET", "k", resp_text(9'000, 1)}), "+OK\r\n");
  ASSERT_EQ(depot.stat("store", "flash_records"), 2U) << "its head and a part";
  io::SimDrive& drive = disks.drive(depot.options.store.dir + "/flash.kvd");
  drive.hold_back(0, drive.size(), std::chrono::seconds(1));
  client.send(resp_command({"SET", "k", "small"}));
  ASSERT_TRUE(depot.until([&] { return depot.stat("store", "dirty_records") == 1; }));
  depot.node->set_authority(auth::shared_authority(token_line(2, "b", "read,write")));
  EXPECT_TRUE(depot.until([&] { return depot.stat("node", "resp_connections") == 0; }));
  EXPECT_EQ(depot.stat("store", "dirty_records"), 1U) << "not written yet";
  EXPECT_TRUE(depot.until([&] { return depot.stat("store", "dirty_records") == 0; }));
  EXPECT_TRUE(depot.until([&] { return depot.stat("store", "flash_records") == 1; }));
}

TEST_F(RespByCredential, ATokenThatExpiresIsGoodNoMore) {
  start(token_line(1, "a", "read,write", "2000-01-02"));
  RespClient a(*rig);
  EXPECT_EQ(said(a, {"AUTH", token_number(1)}), "+OK\r\n");
  EXPECT_EQ(said(a, {"EXISTS", "k"}), ":0\r\n");
  wall = auth::kNoExpiry - 1;
  EXPECT_TRUE(said(a, {"EXISTS", "k"}).starts_with("-NOAUTH"));
  EXPECT_TRUE(a.ended());
}

}  // namespace
}  // namespace kvd::node
