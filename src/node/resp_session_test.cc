#include "node/resp_session.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "block/checksum.h"
#include "net/socket_stream.h"
#include "node/resp_keyspace.h"
#include "node/testing/resp_client.h"

namespace kvd::node {
namespace {

constexpr std::string_view kOk = "+OK\r\n";
constexpr std::string_view kNil = "$-1\r\n";

std::string integer(std::int64_t value) { return fmt::format(":{}\r\n", value); }

NodeOptions resp_options(AckLevel ack = AckLevel::kPooled) {
  NodeOptions options = test_options();
  options.resp_ack = ack;
  return options;
}

// Sends what the node takes from a client that does not read, off the front of `bytes`. The most that the node kept of
// keys and answers meanwhile.
std::uint64_t most_owned(Rig& rig, const RespClient& client, std::string_view& bytes) {
  std::uint64_t most = 0;
  for (int i = 0; i < 5'000 && !bytes.empty(); ++i) {
    const ssize_t n = ::send(client.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
    rig.loop->run_once(Duration::zero());
    most = std::max(most, rig.stat("net", "owned_bytes"));
  }
  return most;
}

class RespSessionTest : public ::testing::Test {
 protected:
  std::string set(const std::string& key, const std::string& value) { return client_.call({"SET", key, value}, kOk); }
  void expect_value(const std::string& key, const std::string& value) {
    const std::string expected = resp_bulk(value);
    EXPECT_TRUE(client_.call({"GET", key}, expected) == expected) << key;
  }
  void expect_none(const std::string& key) { EXPECT_EQ(client_.call({"GET", key}, kNil), kNil) << key; }
  // Turns over a bit of the value in the pool's memory.
  void flip(const std::string& value) {
    const store::Store& store = rig_.node->store();
    std::string pool(store.pool_bytes(), '\0');
    ASSERT_EQ(::pread(store.pool_fd(), pool.data(), pool.size(), 0), static_cast<ssize_t>(pool.size()));
    const std::size_t at = pool.find(value);
    ASSERT_NE(at, std::string::npos);
    const char other = static_cast<char>(pool[at] ^ 4);
    ASSERT_EQ(::pwrite(store.pool_fd(), &other, 1, static_cast<off_t>(at)), 1);
  }

  Rig rig_{resp_options()};
  RespClient client_{rig_};
};

TEST_F(RespSessionTest, SpeaksAsClientsExpectAtTheBeginning) {
  client_.send("PING\r\n\r\n*1\r\n$4\r\nping\r\n");
  EXPECT_EQ(client_.read(14), "+PONG\r\n+PONG\r\n");
  EXPECT_EQ(client_.call({"PING", "hi"}, "$2\r\nhi\r\n"), "$2\r\nhi\r\n");
  EXPECT_EQ(client_.call({"ECHO", "a\r\nb"}, resp_bulk("a\r\nb")), resp_bulk("a\r\nb"));
  EXPECT_EQ(client_.call({"SELECT", "0"}, kOk), kOk);
  EXPECT_EQ(client_.call({"CLIENT", "SETINFO", "LIB-NAME", "redis-py"}, kOk), kOk);
  EXPECT_EQ(client_.call({"CLIENT", "GETNAME"}, kNil), kNil);
  EXPECT_EQ(client_.call({"CLIENT", "SETNAME", "me"}, kOk), kOk);
  EXPECT_EQ(client_.call({"CLIENT", "GETNAME"}, "$2\r\nme\r\n"), "$2\r\nme\r\n");
  EXPECT_EQ(client_.call({"CLIENT", "ID"}, integer(1)), integer(1));
  EXPECT_EQ(client_.call({"COMMAND", "DOCS"}, "*0\r\n"), "*0\r\n");
  client_.send(resp_command({"COMMAND", "COUNT"}));
  EXPECT_EQ(client_.line().front(), ':');
  client_.send(resp_command({"INFO"}));
  const std::string head = client_.line();
  ASSERT_EQ(head.front(), '$');
  EXPECT_NE(client_.read(std::stoul(head.substr(1)) + 2).find("redis_version:7.0.0\r\n"), std::string::npos);
  EXPECT_EQ(client_.call({"AUTH", "default", "any"}, kOk), kOk) << "as Redis without passwords";
  EXPECT_EQ(client_.call({"QUIT"}, kOk), kOk);
  EXPECT_TRUE(client_.ended());
}

TEST_F(RespSessionTest, RefusesInTheWordsOfRedis) {
  const auto refused = [&](const std::vector<std::string>& words, const std::string& error) {
    client_.send(resp_command(words));
    EXPECT_EQ(client_.line(), "-" + error + "\r\n");
  };
  refused({"LPUSH", "k", "v"}, "ERR unknown command 'LPUSH', with args beginning with: 'k' 'v' ");
  refused({"FLUSHALL"}, "ERR unknown command 'FLUSHALL', with args beginning with: ");
  refused({"GET"}, "ERR wrong number of arguments for 'get' command");
  refused({"SET", "k"}, "ERR wrong number of arguments for 'set' command");
  refused({"MSET", "k", "v", "l"}, "ERR wrong number of arguments for 'mset' command");
  refused({"SET", "k", "v", "EX", "10"}, "ERR syntax error");
  refused({"SET", "k", "v", "NX", "XX"}, "ERR syntax error");
  refused({"SELECT", "1"}, "ERR DB index is out of range");
  refused({"GETRANGE", "k", "a", "1"}, "ERR value is not an integer or out of range");
  refused({"HELLO", "4"}, "NOPROTO unsupported protocol version");
  refused({"HELLO", "x"}, "ERR Protocol version is not an integer or out of range");
  refused({"CLIENT", "LIST"}, "ERR unknown subcommand 'LIST'. Try CLIENT HELP.");
  refused({"CLIENT", "SETNAME", "a b"}, "ERR Client names cannot contain spaces, newlines or special characters.");
  refused({"AUTH", "secret"},
          "ERR AUTH <password> called without any password configured for the default user. Are you sure your "
          "configuration is correct?");
  refused({"AUTH", "me", "secret"}, "WRONGPASS invalid username-password pair or user is disabled.");
  expect_none("k");
}

TEST_F(RespSessionTest, StoresValuesOfAllSizes) {
  const std::size_t in_head = kPageBytes - resp_value_offset(3);
  std::uint64_t seed = 0;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, in_head, in_head + 1, kPageBytes, kPageBytes + 1, std::size_t{100'000},
        std::size_t{4} << 20, (std::size_t{4} << 20) + 1, std::size_t{10} << 20}) {
    const std::string value = resp_text(bytes, ++seed);
    ASSERT_EQ(set("key", value), kOk) << bytes;
    expect_value("key", value);
    EXPECT_EQ(client_.call({"STRLEN", "key"}, integer(static_cast<std::int64_t>(bytes))),
              integer(static_cast<std::int64_t>(bytes)));
  }
  EXPECT_EQ(rig_.stat("store", "pool_records"), 4u) << "the head and three parts: the old values are gone";
  EXPECT_EQ(rig_.stat("store", "pool_bytes_pinned"), 0u);
  EXPECT_EQ(rig_.stat("store", "unfinished_puts"), 0u);
}

TEST_F(RespSessionTest, GreetsInTheVersionThatIsAskedFor) {
  client_.send(resp_command({"HELLO", "3", "SETNAME", "me"}));
  std::string greeting;
  for (int i = 0; i < 26; ++i) greeting += client_.line();
  EXPECT_TRUE(greeting.starts_with("%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n")) << greeting;
  EXPECT_NE(greeting.find("$5\r\nproto\r\n:3\r\n"), std::string::npos);
  EXPECT_TRUE(greeting.ends_with("$7\r\nmodules\r\n*0\r\n"));
  EXPECT_EQ(client_.call({"GET", "nothing"}, "_\r\n"), "_\r\n");
  client_.send(resp_command({"HELLO", "2"}));
  EXPECT_EQ(client_.line(), "*14\r\n");
}

TEST_F(RespSessionTest, AnswersAPipelineInOrder) {
  std::string requests, expected;
  for (int i = 0; i < 300; ++i) {
    const std::string key = fmt::format("key {}", i % 7);
    const std::string value = resp_text(static_cast<std::size_t>(i) * 211 % 30'000, static_cast<std::uint64_t>(i));
    requests += resp_command({"SET", key, value}) + resp_command({"GET", key}) + "PING\r\n" +
                resp_command({"MGET", key, "none"}) + resp_command({"DEL", "none"});
    expected +=
        std::string(kOk) + resp_bulk(value) + "+PONG\r\n*2\r\n" + resp_bulk(value) + std::string(kNil) + integer(0);
  }
  client_.send(requests);
  EXPECT_TRUE(client_.read(expected.size()) == expected);
}

TEST_F(RespSessionTest, ReadsPartsAndCounts) {
  const std::string value = resp_text((std::size_t{4} << 20) + 1000, 5);
  ASSERT_EQ(set("large", value), kOk);
  ASSERT_EQ(set("small", "Hello"), kOk);
  const auto range = [&](const std::string& key, const std::string& first, const std::string& last,
                         const std::string& expected) {
    const std::string reply = resp_bulk(expected);
    EXPECT_TRUE(client_.call({"GETRANGE", key, first, last}, reply) == reply) << key << " " << first << " " << last;
  };
  range("small", "1", "3", "ell");
  range("small", "-3", "-1", "llo");
  range("small", "0", "-1", "Hello");
  range("small", "3", "100", "lo");
  range("small", "4", "2", "");
  range("small", "-1", "-3", "");
  range("small", "-100", "0", "H");
  range("none", "0", "-1", "");
  range("large", "4194300", "4194310", value.substr(4194300, 11));
  EXPECT_EQ(client_.call({"EXISTS", "large", "small", "small", "none"}, integer(3)), integer(3));
  EXPECT_EQ(client_.call({"STRLEN", "none"}, integer(0)), integer(0));
  EXPECT_EQ(client_.call({"DEL", "large", "small", "none"}, integer(2)), integer(2));
  EXPECT_EQ(client_.call({"EXISTS", "large", "small"}, integer(0)), integer(0));
  EXPECT_EQ(rig_.stat("store", "pool_records"), 0u);
}

TEST_F(RespSessionTest, SetsWhatIsThereOrNotOnly) {
  EXPECT_EQ(client_.call({"SET", "k", "a", "XX"}, kNil), kNil);
  EXPECT_EQ(client_.call({"SET", "k", "b", "NX"}, kOk), kOk);
  EXPECT_EQ(client_.call({"SET", "k", "c", "nx"}, kNil), kNil);
  expect_value("k", "b");
  EXPECT_EQ(client_.call({"SET", "k", resp_text(9000, 1), "XX", "KEEPTTL"}, kOk), kOk);
  EXPECT_EQ(client_.call({"SET", "k", resp_text(9000, 2), "NX"}, kNil), kNil);
  expect_value("k", resp_text(9000, 1));
  EXPECT_EQ(rig_.stat("store", "pool_records"), 2u) << "what was not stored is gone";
}

TEST_F(RespSessionTest, SetsManyAtOnce) {
  const std::string large = resp_text(50'000, 3);
  EXPECT_EQ(client_.call({"MSET", "a", "1", "b", large, "a", "2", "c", ""}, kOk), kOk);
  expect_value("a", "2");
  expect_value("b", large);
  expect_value("c", "");
  client_.send("MSET d 4 e \"5 6\"\r\nSET f 7\r\n");
  EXPECT_EQ(client_.read(2 * kOk.size()), "+OK\r\n+OK\r\n");
  expect_value("d", "4");
  expect_value("e", "5 6");
  expect_value("f", "7");
}

TEST_F(RespSessionTest, RefusesWhatIsTooLongInItsPlace) {
  const std::string long_key(kRespKeyBytesMax + 1, 'k');
  client_.send(resp_command({"SET", long_key, "v"}) + resp_command({"GET", long_key}) + "PING\r\n");
  EXPECT_EQ(client_.line(), "-ERR the key is longer than 1024 bytes\r\n");
  EXPECT_EQ(client_.line(), kNil);
  EXPECT_EQ(client_.line(), "+PONG\r\n");
  ASSERT_EQ(set(long_key.substr(1), "longest"), kOk);
  expect_value(long_key.substr(1), "longest");
  ASSERT_EQ(set("k", "old"), kOk);
  const std::string too_long(kRespValueBytesMax + 1, 'v');
  client_.send(resp_command({"SET", "k", too_long}) + "PING\r\n");
  EXPECT_EQ(client_.line(), "-ERR string exceeds maximum allowed size (64 MiB)\r\n");
  EXPECT_EQ(client_.line(), "+PONG\r\n");
  expect_value("k", "old");
  client_.send(resp_command({"ECHO", std::string(70'000, 'e')}) + "PING\r\n");
  EXPECT_EQ(client_.line(), "-ERR an argument is longer than 65536 bytes\r\n");
  EXPECT_EQ(client_.line(), "+PONG\r\n");
  std::vector<std::string> many(20, std::string(60'000, 'k'));
  many[0] = "MGET";
  client_.send(resp_command(many));
  EXPECT_EQ(client_.line(), "-ERR the arguments have more than 1 MiB\r\n");
}

TEST_F(RespSessionTest, BrokenProtocolEndsTheConnectionBehindItsAnswers) {
  client_.send("PING\r\n*1\r\n:1\r\nPING\r\n");
  EXPECT_EQ(client_.line(), "+PONG\r\n");
  EXPECT_EQ(client_.line(), "-ERR Protocol error: expected '$', got ':'\r\n");
  EXPECT_TRUE(client_.ended());
  EXPECT_EQ(client_.line(), "");
}

TEST_F(RespSessionTest, AHalfSentValueIsFreedAndLeavesTheOldOne) {
  ASSERT_EQ(set("k", "old"), kOk);
  {
    RespClient other(rig_);
    const std::string request = resp_command({"SET", "k", resp_text(std::size_t{1} << 20, 1)});
    other.send(std::string_view(request).substr(0, request.size() / 2));
    EXPECT_TRUE(rig_.until([&] { return rig_.stat("store", "unfinished_puts") > 0; }));
    expect_value("k", "old");
  }
  EXPECT_TRUE(rig_.until([&] { return rig_.stat("store", "unfinished_puts") == 0; }));
  EXPECT_TRUE(rig_.until([&] { return rig_.stat("node", "resp_connections") == 1; }));
  expect_value("k", "old");
  EXPECT_EQ(rig_.stat("node", "unfinished_bytes"), 0u);
}

TEST_F(RespSessionTest, AFullPoolIsAnErrorAtOnceAndNotTheEnd) {
  std::vector<std::unique_ptr<RespClient>> others;
  const std::string value(std::size_t{9} << 20, 'v');
  for (int i = 0; i < 5; ++i) {
    others.push_back(std::make_unique<RespClient>(rig_));
    const std::string request = resp_command({"SET", fmt::format("other {}", i), value});
    others.back()->send(std::string_view(request).substr(0, 100));
  }
  client_.send(resp_command({"SET", "k", value}) + "PING\r\n");
  EXPECT_EQ(client_.line(), "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
  EXPECT_EQ(client_.line(), "+PONG\r\n");
  EXPECT_GT(rig_.stat("node", "answered_busy"), 0u);
  others.clear();
  EXPECT_TRUE(rig_.until([&] { return rig_.stat("store", "unfinished_puts") == 0; }));
  ASSERT_EQ(set("k", value), kOk);
  expect_value("k", value);
}

TEST_F(RespSessionTest, WhoDoesNotReadHoldsLittle) {
  const std::string value = resp_text(std::size_t{2} << 20, 1);
  ASSERT_EQ(set("k", value), kOk);
  RespClient other(rig_);
  std::string requests;
  for (int i = 0; i < 500; ++i) requests += resp_command({"GET", "k"});
  ASSERT_LT(requests.size(), 16'000u);
  other.send(requests);
  for (int i = 0; i < 20; ++i) expect_value("k", value);
  EXPECT_LE(rig_.stat("node", "pinned_bytes"), (std::uint64_t{20} << 20));  // and two values of the other client
  const std::string expected = resp_bulk(value);
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(other.read(expected.size()) == expected) << i;
  EXPECT_TRUE(rig_.until([&] { return rig_.stat("node", "pinned_bytes") == 0; }));
}

TEST_F(RespSessionTest, ManyKeysAreManyTurns) {
  constexpr std::size_t kKeys = 700;
  std::vector<std::string> mset{"MSET"}, mget{"MGET"}, del{"DEL"};
  std::string expected = fmt::format("*{}\r\n", kKeys);
  for (std::size_t i = 0; i < kKeys; ++i) {
    const std::string key = std::to_string(i);
    mset.insert(mset.end(), {key, "v"});
    mget.push_back(key);
    del.push_back(key);
    expected += resp_bulk("v");
  }
  ASSERT_EQ(client_.call(mset, kOk), kOk);
  const auto turns = [&](const std::vector<std::string>& words, const char* room, const char* name) {
    const std::string bytes = resp_command(words);
    EXPECT_EQ(::send(client_.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT), static_cast<ssize_t>(bytes.size()));
    std::uint64_t last = rig_.stat(room, name);
    int changes = 0;
    char byte = 0;
    for (int i = 0; i < 1000 && ::recv(client_.fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0; ++i) {
      rig_.loop->run_once(std::chrono::milliseconds(1));
      changes += rig_.stat(room, name) != last ? 1 : 0;
      last = rig_.stat(room, name);
    }
    return changes;
  };
  EXPECT_LT(turns(mget, "node", "resp_hits"), 2) << "the first answers go out at once";
  EXPECT_LT(rig_.stat("node", "resp_hits"), kKeys);
  EXPECT_TRUE(client_.read(expected.size()) == expected);
  EXPECT_GT(turns(del, "store", "pool_records"), 1);
  EXPECT_EQ(client_.line(), integer(kKeys));
  EXPECT_EQ(rig_.stat("store", "pool_records"), 0u);
}

// Little is kept of what a peer that does not read has asked for. The second value waits until the first is sent.
TEST_F(RespSessionTest, KeysOfAnswersThatWaitAreBounded) {
  ASSERT_EQ(set("first", resp_text(std::size_t{3} << 20, 1)), kOk);
  ASSERT_EQ(set("second", resp_text(std::size_t{22} << 20, 1)), kOk);
  RespClient other(rig_);
  std::string requests = resp_command({"GET", "first"}) + resp_command({"GET", "second"});
  std::vector<std::string> words{"EXISTS"};
  for (int i = 0; i < 800; ++i) words.push_back(std::string(1000, 'x'));
  for (int i = 0; i < 20; ++i) requests += resp_command(words);
  std::string_view rest = requests;
  const std::uint64_t most = most_owned(rig_, other, rest);
  EXPECT_GT(most, 800'000u);
  EXPECT_LT(most, 3'000'000u);
  other.vanish();
  EXPECT_TRUE(rig_.until([&] { return rig_.stat("net", "owned_bytes") == 0; }));
}

TEST_F(RespSessionTest, DamageInMemoryIsAMiss) {
  const std::string small = resp_text(100, 1), large = resp_text(100'000, 2);
  ASSERT_EQ(set("small", small), kOk);
  ASSERT_EQ(set("large", large), kOk);
  flip(small);
  flip(large.substr(0, 1000));
  expect_none("small");
  expect_none("large");
  EXPECT_EQ(client_.call({"EXISTS", "large"}, integer(0)), integer(0));
  ASSERT_EQ(set("small", small), kOk);
  ASSERT_EQ(set("large", large), kOk);
  expect_value("small", small);
  expect_value("large", large);
}

TEST_F(RespSessionTest, AnotherKeyWithTheSameHashIsAMiss) {
  std::uint64_t next_part = 0;
  auto keyspace = RespKeyspace::open(rig_.node->store(), "default", next_part);
  ASSERT_TRUE(keyspace.has_value());
  const RespKeyspace::Place place = (*keyspace)->head("this");
  auto put = rig_.node->store().begin_replacement(place.ns, place.id, {});
  ASSERT_TRUE(put && *put);
  encode_resp_head(put->slab(0), as_bytes("another"), 3, {});
  const std::uint64_t checksum = block::slab_checksum(put->seed(), 0, put->slab(0));
  rig_.node->store().complete_put(std::move(*put), {&checksum, 1}, AckLevel::kPooled, [](const Status&) {});
  expect_none("this");
  EXPECT_EQ(client_.call({"EXISTS", "this"}, integer(0)), integer(0));
}

// Whoever has the namespaces of parts open can be there first.
TEST_F(RespSessionTest, AKeyOfAPartThatIsTakenIsAnErrorAndNotTheEnd) {
  std::uint64_t next_part = 0;
  auto keyspace = RespKeyspace::open(rig_.node->store(), "default", next_part);
  ASSERT_TRUE(keyspace.has_value());
  const std::string value = resp_text(9'000, 1);
  const RespKeyspace::Place place = (*keyspace)->part((*keyspace)->new_body(1), value.size(), 0);
  auto put = rig_.node->store().begin_put(place.ns, place.id, {});
  ASSERT_TRUE(put && *put);
  const MutableBytes slab = put->slab(0);
  std::ranges::fill(slab, std::byte{1});
  const std::uint64_t checksum = block::slab_checksum(put->seed(), 0, slab);
  rig_.node->store().complete_put(std::move(*put), {&checksum, 1}, AckLevel::kPooled, [](const Status&) {});
  client_.send(resp_command({"SET", "k", value}));
  EXPECT_EQ(client_.line(), "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
  EXPECT_EQ(rig_.stat("store", "unfinished_puts"), 0u);
  expect_none("k");
  ASSERT_EQ(set("k", value), kOk) << "the next try has another key";
  expect_value("k", value);
}

TEST_F(RespSessionTest, WhatCameBeforeHelloIsAnsweredInTheOldVersion) {
  client_.send(resp_command({"GET", "none"}) + resp_command({"HELLO", "3"}));
  EXPECT_EQ(client_.line(), kNil);
  EXPECT_EQ(client_.line(), "%7\r\n");
}

TEST_F(RespSessionTest, ADrainEndsConnectionsThatHaveNothingUnderWay) {
  ASSERT_EQ(set("k", "v"), kOk);
  bool drained = false;
  rig_.node->drain(std::chrono::seconds(4), [&] { drained = true; });
  EXPECT_TRUE(client_.ended());
  EXPECT_TRUE(rig_.until([&] { return drained; }));
}

// One that has a value under way, and says more.
TEST_F(RespSessionTest, WhileItDrainsNoMoreIsDone) {
  const std::string set = resp_command({"SET", "k", resp_text(100'000, 1)});
  client_.send(std::string_view(set).substr(0, set.size() - 1));
  ASSERT_TRUE(rig_.until([&] { return rig_.stat("store", "unfinished_puts") > 0; }));
  rig_.node->drain(std::chrono::seconds(4), [] {});
  client_.send("\n" + resp_command({"GET", "k"}) + "SET l v\r\nPING\r\n");
  EXPECT_EQ(client_.line(), kOk) << "it was under way";
  EXPECT_EQ(client_.line(), "-LOADING the depot is shutting down\r\n");
  EXPECT_EQ(client_.line(), "-LOADING the depot is shutting down\r\n");
  EXPECT_EQ(client_.line(), "+PONG\r\n");
  EXPECT_TRUE(client_.ended());
}

// Whoever has to say who he is gets his tenant's keys, and his rights.
TEST(RespAuth, TheTokenDecidesWhoseKeysTheseAreAndWhatMayBeDone) {
  NodeOptions options = resp_options();
  options.resp_identify = [](std::string_view token) -> std::optional<RespAccess> {
    if (token == "a token") return RespAccess{"a", true, true};
    if (token == "b token") return RespAccess{"b", true, true};
    if (token == "a reader") return RespAccess{"a", true, false};
    return std::nullopt;
  };
  Rig rig(options);
  RespClient a(rig), b(rig), reader(rig);
  const std::string noauth = "-NOAUTH Authentication required.\r\n";
  a.send(resp_command({"SET", "k", resp_text(100'000, 1)}) + resp_command({"GET", "k"}) + "PING\r\nHELLO 3\r\n");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(a.line(), noauth);
  EXPECT_TRUE(a.line().starts_with("-NOAUTH HELLO must be called"));
  EXPECT_EQ(a.call({"AUTH", "a token"}, kOk), kOk);
  EXPECT_EQ(a.call({"SET", "k", "of a"}, kOk), kOk);
  EXPECT_EQ(b.call({"AUTH", "anything", "b token"}, kOk), kOk);
  EXPECT_EQ(b.call({"GET", "k"}, kNil), kNil) << "another tenant's keys are misses";
  EXPECT_EQ(b.call({"DEL", "k"}, integer(0)), integer(0));
  reader.send(resp_command({"HELLO", "3", "AUTH", "default", "a reader"}));
  EXPECT_EQ(reader.line(), "%7\r\n");
  for (int i = 0; i < 25; ++i) reader.line();
  EXPECT_EQ(reader.call({"GET", "k"}, resp_bulk("of a")), resp_bulk("of a"));
  reader.send(resp_command({"SET", "k", "x"}) + resp_command({"DEL", "k"}));
  EXPECT_EQ(reader.line(), "-NOPERM this user has no permissions to run the 'set' command\r\n");
  EXPECT_EQ(reader.line(), "-NOPERM this user has no permissions to run the 'del' command\r\n");
  EXPECT_EQ(a.call({"GET", "k"}, resp_bulk("of a")), resp_bulk("of a"));
}

// What a pipeline asked for before AUTH is asked in the name, and with the keys, of who was there then.
TEST(RespAuth, AReadBelongsToWhomItWasAskedFor) {
  NodeOptions options = resp_options();
  options.resp_identify = [](std::string_view token) -> std::optional<RespAccess> {
    return RespAccess{std::string(token), token != "b", true};
  };
  Rig rig(options);
  RespClient client(rig);
  const auto as = [](const std::string& tenant) { return resp_command({"AUTH", tenant}); };
  client.send(as("b") + resp_command({"SET", "k", "of b"}) + as("a") + resp_command({"SET", "k", "of a"}));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(client.line(), kOk);
  client.send(resp_command({"GET", "k"}) + as("b") + resp_command({"GET", "k"}));
  EXPECT_EQ(client.read(10), resp_bulk("of a"));
  EXPECT_EQ(client.line(), kOk);
  EXPECT_TRUE(client.line().starts_with("-NOPERM"));
}

// Nor does the rest of what he sent count: a guess costs its time and a connection.
// Any number of tenants may come by in the life of a depot, as credentials change.
TEST(RespKeyspaces, GoWithTheirLastClient) {
  NodeOptions options = resp_options();
  options.resp_identify = [](std::string_view token) { return RespAccess{std::string(token), true, true}; };
  Rig rig(options);
  const auto opened = [&rig] {
    std::uint64_t namespaces = 0;
    for (const store::TenantFigures& tenant : rig.node->store().tenant_figures(100)) namespaces += tenant.namespaces;
    return namespaces;
  };
  const std::string value = resp_text(9'000, 1), other = resp_text(9'000, 2);
  for (const char* tenant : {"a", "b", "c"}) {
    RespClient client(rig), second(rig);
    for (RespClient* one : {&client, &second}) EXPECT_EQ(one->call({"AUTH", tenant}, kOk), kOk);
    EXPECT_EQ(client.call({"SET", "k", value}, kOk), kOk);
    EXPECT_EQ(opened(), 5U);
    client.vanish();
    EXPECT_TRUE(rig.until([&] { return rig.stat("node", "resp_connections") == 1; }));
    EXPECT_EQ(opened(), 5U);
    second.vanish();
    EXPECT_TRUE(rig.until([&] { return rig.stat("node", "resp_connections") == 0; }));
    EXPECT_EQ(opened(), 0U);
  }
  RespClient again(rig);
  EXPECT_EQ(again.call({"AUTH", "a"}, kOk), kOk);
  EXPECT_EQ(again.call({"SET", "l", other}, kOk), kOk) << "keys of parts are not used again";
  EXPECT_TRUE(again.call({"GET", "k"}, resp_bulk(value)) == resp_bulk(value));
  EXPECT_TRUE(again.call({"GET", "l"}, resp_bulk(other)) == resp_bulk(other));
}

TEST(RespAuth, AWrongTokenEndsTheConnection) {
  NodeOptions options = resp_options();
  options.resp_identify = [](std::string_view token) -> std::optional<RespAccess> {
    return token == "right" ? std::optional(RespAccess{}) : std::nullopt;
  };
  options.limits.refusal_delay = std::chrono::milliseconds(1);
  Rig rig(options);
  for (const auto& wrong :
       {resp_command({"AUTH", "guess"}), resp_command({"HELLO", "3", "AUTH", "default", "guess"})}) {
    RespClient client(rig);
    client.send(wrong + resp_command({"AUTH", "right"}) + "PING\r\n");
    EXPECT_EQ(client.line(), "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    EXPECT_TRUE(client.ended());
    EXPECT_EQ(client.line(), "");
  }
}

TEST(RespAuth, AWrongTokenIsNotAnsweredAtOnce) {
  NodeOptions options = resp_options();
  options.resp_identify = [](std::string_view) { return std::nullopt; };
  options.limits.refusal_delay = std::chrono::hours(1);
  Rig rig(options);
  RespClient guesses(rig), other(rig);
  guesses.send(resp_command({"AUTH", "guess"}) + "PING\r\n");
  other.send("PING\r\n");
  EXPECT_TRUE(other.line().starts_with("-NOAUTH"));
  char byte = 0;
  EXPECT_EQ(::recv(guesses.fd(), &byte, 1, MSG_DONTWAIT), -1) << "neither an answer nor the end";
}

TEST(RespAuth, StrangersHaveFewPlaces) {
  NodeOptions options = resp_options();
  options.resp_identify = [](std::string_view) { return RespAccess{}; };
  options.limits.strangers_max = 1;
  options.limits.stranger_grace = std::chrono::minutes(1);
  Rig rig(options);
  RespClient first(rig);
  const auto adopt = [&] {
    auto [near, far] = net::make_socket_pair();
    return rig.node->adopt_resp(net::make_socket_stream(std::move(far)));
  };
  const Status second = adopt();
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, Code::kBusy);
  EXPECT_EQ(first.call({"AUTH", "any"}, kOk), kOk);
  EXPECT_TRUE(adopt().has_value()) << "who has said who he is, is none";
}

TEST(RespCrowded, AnswersOfOneAreFewWhereAllHaveMany) {
  NodeOptions options = resp_options();
  options.limits.reply_bytes_all_max = 1;
  Rig rig(options);
  RespClient client(rig);
  std::string requests, expected;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::string text = resp_text(10'000, i);
    requests += resp_command({"ECHO", text});
    expected += resp_bulk(text);
  }
  std::string_view rest = requests;
  const std::uint64_t most = most_owned(rig, client, rest);
  EXPECT_GT(most, 60'000u);
  EXPECT_LT(most, 100'000u);
  EXPECT_FALSE(rest.empty());
  client.send(rest);  // which reads
  EXPECT_TRUE(client.read(expected.size()) == expected);
}

// Of a pool of 64 MiB unfinished values may hold half.
TEST(RespCrowded, LargeValuesLeaveRoomForSmallOnes) {
  Rig rig(resp_options());
  RespClient one(rig), two(rig), large(rig), small(rig);
  const auto begin = [](RespClient& client, const char* key) {
    client.send(fmt::format("*3\r\n$3\r\nSET\r\n$1\r\n{}\r\n${}\r\nbegun", key, 12 << 20));
  };
  begin(one, "1");
  begin(two, "2");
  EXPECT_TRUE(rig.until([&] { return rig.stat("node", "unfinished_bytes") > (24 << 20); }));
  EXPECT_EQ(large.call({"SET", "k", std::string(std::size_t{5} << 20, 'v')}, "-OOM"), "-OOM");
  EXPECT_EQ(small.call({"SET", "l", std::string(400'000, 'v')}, kOk), kOk);
}

class RespSlow : public ::testing::Test {
 protected:
  static NodeOptions slow_options() {
    NodeOptions options = resp_options();
    options.limits.stall_limit = std::chrono::milliseconds(50);
    options.limits.progress_bytes_min = 1'000'000'000;
    return options;
  }
};

// A little now and then is progress, but not enough of it.
TEST_F(RespSlow, WhoSendsTooSlowlyIsCut) {
  Rig rig(slow_options());
  RespClient client(rig);
  client.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$9000000\r\n");
  EXPECT_TRUE(rig.until([&] {
    static_cast<void>(::send(client.fd(), "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL));
    return rig.stat("node", "resp_connections") == 0;
  }));
  EXPECT_EQ(rig.stat("net", "stalled"), 1u);
  EXPECT_EQ(rig.stat("node", "unfinished_bytes"), 0u);
}

TEST_F(RespSlow, WhoReadsTooSlowlyIsCut) {
  Rig rig(slow_options());
  RespClient client(rig);
  EXPECT_EQ(client.call({"SET", "k", resp_text(100'000, 1)}, kOk), kOk);
  std::string requests;
  for (int i = 0; i < 600; ++i) requests += resp_command({"GET", "k"});
  client.send(requests);
  EXPECT_TRUE(rig.until([&] {
    char some[65536];
    static_cast<void>(::recv(client.fd(), some, sizeof some, MSG_DONTWAIT));
    return rig.stat("node", "resp_connections") == 0;
  }));
  EXPECT_EQ(rig.stat("net", "stalled"), 1u);
  EXPECT_EQ(rig.stat("node", "pinned_bytes"), 0u);
}

TEST(RespSlowSet, ASetHasItsTime) {
  NodeOptions options = resp_options();
  options.limits.op_limit = std::chrono::milliseconds(5);
  Rig rig(options);
  RespClient client(rig);
  EXPECT_EQ(client.call({"SET", "k", "v"}, kOk), kOk);
  client.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$9000000\r\nbegun");
  EXPECT_TRUE(client.ended());
  EXPECT_TRUE(rig.until([&] { return rig.stat("node", "resp_connections") == 0; }));
  EXPECT_EQ(rig.stat("node", "unfinished_bytes"), 0u);
}

TEST(RespPlaces, WhoSaysNothingKeepsNobodyOut) {
  NodeOptions options = resp_options();
  options.limits.connections_max = 2;
  Rig rig(options);
  RespClient speaks(rig), silent(rig);
  EXPECT_EQ(speaks.call({"PING"}, "+PONG\r\n"), "+PONG\r\n");
  RespClient third(rig);
  EXPECT_TRUE(silent.ended());
  EXPECT_EQ(rig.stat("node", "connections_silent"), 1u);
  EXPECT_EQ(rig.stat("node", "resp_connections"), 2u);
  auto native = rig.connect();
  EXPECT_TRUE(third.ended()) << "nor at the other door";
  EXPECT_EQ(speaks.call({"PING"}, "+PONG\r\n"), "+PONG\r\n");
}

TEST(RespAuth, WhoDoesNotSayWhoHeIsIsCut) {
  NodeOptions options = resp_options();
  options.resp_identify = [](std::string_view) { return std::nullopt; };
  options.limits.handshake_limit = std::chrono::milliseconds(20);
  Rig rig(options);
  RespClient client(rig);
  EXPECT_TRUE(client.ended());
}

// The node ends without a word, as by SIGKILL, and starts again.
class RespRestartTest : public ::testing::TestWithParam<AckLevel> {};

TEST_P(RespRestartTest, TheNewestAcknowledgedValueIsFound) {
  Rig rig(resp_options(GetParam()), true);
  const std::string large = resp_text((std::size_t{4} << 20) + 100, 1), other = resp_text(9'000, 2);
  {
    RespClient client(rig);
    for (const std::string& value : {std::string("first"), large, std::string("second"), other})
      ASSERT_EQ(client.call({"SET", "a", value}, kOk), kOk);
    ASSERT_EQ(client.call({"SET", "b", large}, kOk), kOk);
    ASSERT_EQ(client.call({"MSET", "c", "1", "d", "2", "c", "3"}, kOk), kOk);
    ASSERT_EQ(client.call({"DEL", "d"}, integer(1)), integer(1));
    // Cut before its end.
    const std::string cut = resp_command({"SET", "b", other});
    client.send(std::string_view(cut).substr(0, cut.size() - 3));
  }
  rig.restart();
  RespClient client(rig);
  EXPECT_EQ(client.call({"EXISTS", "a", "b", "c", "d"}, integer(3)), integer(3));
  EXPECT_TRUE(client.call({"GET", "a"}, resp_bulk(other)) == resp_bulk(other));
  EXPECT_TRUE(client.call({"GET", "b"}, resp_bulk(large)) == resp_bulk(large));
  EXPECT_EQ(client.call({"GET", "c"}, resp_bulk("3")), resp_bulk("3"));
  EXPECT_EQ(client.call({"GET", "d"}, kNil), kNil);
  ASSERT_EQ(client.call({"SET", "b", "new"}, kOk), kOk) << "keys of parts of the opening before are not used again";
  ASSERT_EQ(client.call({"SET", "e", large}, kOk), kOk);
  EXPECT_TRUE(client.call({"GET", "e"}, resp_bulk(large)) == resp_bulk(large));
}

INSTANTIATE_TEST_SUITE_P(Levels, RespRestartTest, ::testing::Values(AckLevel::kWritten, AckLevel::kSynced));

TEST(RespRestart, WhatWasAcknowledgedInMemoryOnlyIsAnOlderValueOrNone) {
  Rig rig(resp_options(), true);
  {
    RespClient client(rig);
    ASSERT_EQ(client.call({"SET", "a", "first"}, kOk), kOk);
    ASSERT_TRUE(rig.until([&] { return rig.stat("store", "dirty_records") == 0; })) << "idle, it is written";
    ASSERT_EQ(client.call({"SET", "a", "second"}, kOk), kOk);
  }
  rig.restart();
  RespClient client(rig);
  EXPECT_EQ(client.call({"GET", "a"}, resp_bulk("first")), resp_bulk("first"));
}

// Heads and parts are read from flash, several commands at a time, in the order that was asked for.
TEST(RespRestart, ReadsFromFlashInOrder) {
  Rig rig(resp_options(AckLevel::kWritten), true);
  std::string requests, expected;
  {
    RespClient client(rig);
    for (std::uint64_t i = 0; i < 40; ++i) {
      const std::string key = fmt::format("key {}", i), value = resp_text(i * 3'001, i);
      ASSERT_EQ(client.call({"SET", key, value}, kOk), kOk);
      requests += resp_command({"GET", key}) + resp_command({"MGET", key, "none", key});
      expected += resp_bulk(value) + "*3\r\n" + resp_bulk(value) + std::string(kNil) + resp_bulk(value);
    }
  }
  rig.restart();
  RespClient client(rig);
  client.send(requests);
  EXPECT_TRUE(client.read(expected.size()) == expected);
}

}  // namespace
}  // namespace kvd::node
