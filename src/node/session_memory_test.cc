// Where there are credentials: what memory clients of this host are given, to whom and when, and that what comes
// through it is judged as what comes by socket.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include <gtest/gtest.h>

#include "net/arena.h"
#include "net/ring_stream.h"
#include "net/shared_memory.h"
#include "node/testing/auth_fixture.h"

namespace kvd::node {
namespace {

constexpr std::uint64_t kLater = wire::kFeatureToken | wire::kFeatureAuthFeatures;
constexpr std::uint64_t kRings = wire::kFeatureRings;
constexpr std::uint64_t kArena = wire::kFeatureArena;
constexpr std::uint64_t kMemory = wire::kFeatureSharedMemory;  // the pool or a window
constexpr std::uint64_t kEverything = kLater | kRings | kArena | kMemory;
constexpr std::uint64_t kPoolBytes = std::uint64_t{64} << 20;  // of test_options()
constexpr std::uint64_t kWindowBytes = std::uint64_t{32} << 20;
constexpr std::uint64_t kSmallArena = std::uint64_t{64} << 10;

// A client that has shown its token, with what it was given for it.
struct Known {
  std::unique_ptr<RawClient> raw;
  net::RingStream* stream = nullptr;  // the connection's
  std::uint64_t features = 0;         // in the answer to its token
  std::unique_ptr<net::Arena> arena;
  std::unique_ptr<net::SharedMemory> memory;
  std::uint32_t ns = 0;

  // The next message that is not TAKEN.
  net::Received next() const {
    for (;;) {
      net::Received message = raw->next();
      if (message.header.opcode != wire::Opcode::kTaken) return message;
    }
  }
  net::Received call(wire::Buffer request) const {
    raw->send(std::move(request));
    return next();
  }
};

class SessionMemoryTest : public CredentialsTest {
 protected:
  // 1 and 2 read and write, for a and b; 3 reads, 4 writes and 5 administers for a.
  static std::string everybody() {
    return "tenant a requests=2\n" + token_line(1, "a", "read,write") + token_line(2, "b", "read,write") +
           token_line(3, "a", "read") + token_line(4, "a", "write") + token_line(5, "a", "admin");
  }
  void start(const std::string& text = everybody(), NodeOptions options = test_options()) {
    options.store.share_pool = true;
    CredentialsTest::start(text, std::move(options), Millis(1));
  }
  // Has said HELLO and was answered; `features` of the answer.
  Known stranger(std::uint64_t asks, std::uint64_t* features = nullptr) const {
    auto [near, far] = net::make_socket_pair();
    auto stream = std::make_unique<net::RingStream>(net::make_socket_stream(std::move(near)));
    Known client{.raw = nullptr, .stream = stream.get(), .arena = nullptr, .memory = nullptr};
    EXPECT_TRUE(rig->node->adopt(net::make_socket_stream(std::move(far))).has_value());
    client.raw = std::make_unique<RawClient>(*rig->loop, std::move(stream), false, asks);
    const net::Received answer = client.raw->call(wire::frame({}, wire::Hello{.features = asks, .name = "test"}));
    const auto said = wire::decode<wire::HelloReply>(answer.header, answer.meta);
    EXPECT_TRUE(said.has_value());
    if (features != nullptr && said) *features = said->features;
    return client;
  }
  Known enter(int token, std::uint64_t asks = kEverything) const {
    Known client = stranger(asks);
    const net::Received answer = client.raw->call(wire::frame({}, wire::Auth{auth::token_number(token)}));
    const auto reply = wire::decode<wire::AuthReply>(answer.header, answer.meta);
    EXPECT_TRUE(answer.header.status == Code::kOk && reply.has_value());
    if (!reply) return client;
    client.features = reply->features.value_or(0);
    if ((client.features & kMemory) != 0) take_memory(client);
    if ((client.features & kArena) != 0) take_arena(client);
    if ((client.features & kRings) != 0) take_rings(client);
    return client;
  }
  static void take_memory(Known& client) {
    const net::Received given = client.raw->next();
    ASSERT_EQ(given.header.opcode, wire::Opcode::kMemory);
    const std::uint64_t bytes = wire::decode<wire::Memory>(given.header, given.meta)->bytes;
    client.memory = *net::SharedMemory::map(client.raw->peer().take_descriptor(), bytes);
  }
  static void take_arena(Known& client) {
    const net::Received given = client.raw->next();
    ASSERT_EQ(given.header.opcode, wire::Opcode::kArena);
    const std::uint64_t bytes = wire::decode<wire::Arena>(given.header, given.meta)->bytes;
    client.arena = *net::Arena::map(client.raw->peer().take_descriptor(), bytes);
  }
  static void take_rings(Known& client) {
    const net::Received given = client.raw->next();
    ASSERT_EQ(given.header.opcode, wire::Opcode::kRings);
    const std::uint64_t bytes = wire::decode<wire::Rings>(given.header, given.meta)->bytes;
    client.stream->use(*net::RingMemory::map(client.raw->peer().take_descriptor(), bytes),
                       net::RingStream::Side::kClient);
  }
  // The same, with its tenant's namespace open.
  Known enter_as(int token, const std::string& tenant, std::uint64_t asks = kEverything) const {
    Known client = enter(token, asks);
    client.ns = client.raw->open(of(tenant));
    return client;
  }
  // All slabs of one key, through the arena.
  [[nodiscard]] wire::Buffer arena_head(std::uint64_t id, std::size_t key) const {
    std::vector<std::uint64_t> checksums;
    for (std::uint32_t layer = 0; layer < records.layers(); ++layer) checksums.push_back(records.checksum(key, layer));
    return wire::frame({.request_id = id, .items = 1},
                       wire::PutArena{.checksums = wire::U64View(std::span<const std::uint64_t>(checksums))});
  }
  net::Received put(const Known& client, std::size_t key) const {
    const auto bytes = records.put_body(key, 1, 0, records.layers());
    std::ranges::copy(bytes, client.arena->writable().begin());
    const std::uint64_t id = client.raw->new_id();
    client.raw->send(records.put(id, client.ns, key, 1));
    client.raw->send(arena_head(id, key));
    return client.next();
  }
  // Whether a GET brings the record's bytes: with the message, or in the client's memory.
  bool gets(const Known& client, std::size_t key) const {
    client.raw->send(Records::get(client.raw->new_id(), client.ns, key, 1));
    std::vector<std::byte> bytes;
    for (bool last = false; !last;) {
      const net::Received m = client.next();
      last = m.header.last();
      bytes.insert(bytes.end(), m.payload.begin(), m.payload.end());
      if (m.header.opcode == wire::Opcode::kGetView) {
        take_view(client, m, bytes);
      } else {
        EXPECT_EQ(m.header.opcode, wire::Opcode::kGetData);
        if (m.header.opcode != wire::Opcode::kGetData) return false;
      }
    }
    return bytes == records.put_body(key, 1, 0, records.layers());
  }
  // Of one record.
  void take_view(const Known& client, const net::Received& m, std::vector<std::byte>& bytes) const {
    const auto view = wire::decode<wire::GetView>(m.header, m.meta);
    ASSERT_TRUE(view.has_value() && client.memory != nullptr);
    for (std::uint32_t layer = 0; layer < m.header.layer_count; ++layer) {
      const std::uint64_t at = view->offsets[0] + std::uint64_t{layer} * view->slab_stride;
      const Bytes slab = client.memory->bytes().subspan(at, records.slab_bytes());
      bytes.insert(bytes.end(), slab.begin(), slab.end());
    }
    const std::array<std::uint64_t, 1> views{view->view};
    client.raw->send(wire::frame({.request_id = 1}, wire::Release{wire::U64View(std::span(views))}));
  }
  static std::uint64_t memory_bytes(const Known& client) {
    return client.memory == nullptr ? 0 : client.memory->bytes().size();
  }
  [[nodiscard]] wire::Buffer match(const Known& client, std::size_t key) const {
    const auto keys = Records::keys(key, 1);
    return wire::frame({.request_id = client.raw->new_id()}, wire::Match{.ns = client.ns,
                                                                         .promote = false,
                                                                         .lease_ms = 0,
                                                                         .blocks = 1,
                                                                         .shards = {0},
                                                                         .groups = {0},
                                                                         .keys = {keys, sizeof(Key), true}});
  }
  // Whether a lookup finds it.
  bool finds(const Known& client, std::size_t key) const {
    const net::Received m = client.call(match(client, key));
    const auto reply = wire::decode<wire::MatchReply>(m.header, m.meta);
    EXPECT_TRUE(reply.has_value()) << wire::error_text(m.meta);
    return reply && reply->prefix_blocks == 1;
  }
  [[nodiscard]] bool nothing_held() const {
    return rig->stat("node", "rings") == 0 && rig->stat("node", "arena_bytes") == 0 &&
           rig->stat("node", "window_bytes") == 0 && tenant("a")["rings"] == 0 && tenant("a")["arenas"] == 0 &&
           tenant("a")["windows"] == 0 && memory_files() == 0;
  }
  // Memory files of this process that rings, arenas or windows are in, the node's and those of its clients.
  static std::size_t memory_files() {
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string target = std::filesystem::read_symlink(entry, gone).string();
      files += target.starts_with("/memfd:kvdepot-rings") || target.starts_with("/memfd:kvdepot-arena") ||
               target.starts_with("/memfd:kvdepot-window");
    }
    return files;
  }
};

TEST_F(SessionMemoryTest, NothingIsThereForAStranger) {
  start();
  std::uint64_t features = 0;
  const Known client = stranger(kEverything, &features);
  EXPECT_EQ(features, kLater) << "it is asked who it is and promised nothing";
  EXPECT_TRUE(nothing_held());
  const Known guesses = stranger(kEverything);
  const net::Received refused = guesses.raw->call(wire::frame({}, wire::Auth{auth::token_number(9)}));
  EXPECT_EQ(refused.header.status, Code::kInvalid);
  EXPECT_TRUE(guesses.raw->ended());
  EXPECT_TRUE(nothing_held());
  EXPECT_EQ(rig->stat("node", "unauthorized"), 1U);
}

TEST_F(SessionMemoryTest, RingsAnArenaAndAWindowComeBehindTheToken) {
  start();
  const Known client = enter_as(1, "a");
  EXPECT_EQ(client.features, kRings | kArena | kMemory);
  EXPECT_EQ(memory_bytes(client), kWindowBytes) << "the pool is lent to nobody";
  EXPECT_EQ(rig->stat("node", "window_bytes"), kWindowBytes);
  EXPECT_EQ(tenant("a")["windows"], 1);
  EXPECT_TRUE(client.stream->uses_rings());
  EXPECT_EQ(rig->stat("node", "rings"), 1U);
  EXPECT_EQ(rig->stat("node", "arena_bytes"), client.arena->size());
  EXPECT_EQ(tenant("a")["rings"], 1);
  EXPECT_EQ(tenant("a")["arenas"], 1);
  EXPECT_EQ(put(client, 7).header.status, Code::kOk);
  EXPECT_EQ(rig->stat("node", "put_arena_bytes"), records.layers() * records.slab_bytes());
  EXPECT_TRUE(finds(client, 7));
  EXPECT_TRUE(gets(client, 7));
  EXPECT_EQ(rig->stat("node", "gets_lent"), 0U);
  EXPECT_EQ(rig->stat("node", "get_window_bytes"), records.layers() * records.slab_bytes());
  client.raw->vanish();
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "connections") == 0; }));
  EXPECT_EQ(rig->stat("node", "rings"), 0U);
  EXPECT_EQ(rig->stat("node", "arena_bytes"), 0U);
  EXPECT_EQ(rig->stat("node", "window_bytes"), 0U);
}

TEST_F(SessionMemoryTest, AreForThoseWhoAskAndCouldBeToldAndCanCarryThem) {
  NodeOptions options = test_options();
  options.listen = {"tcp://127.0.0.1:0"};
  start(everybody(), options);
  Known older = stranger(kEverything & ~wire::kFeatureAuthFeatures);
  const net::Received answer = older.raw->call(wire::frame({}, wire::Auth{auth::token_number(1)}));
  EXPECT_TRUE(answer.header.status == Code::kOk && answer.meta.empty()) << "as those of before know it";
  older.ns = older.raw->open(of("a"));
  EXPECT_FALSE(finds(older, 1));
  EXPECT_EQ(enter_as(1, "a", kLater).features, 0U);
  EXPECT_EQ(enter_as(1, "a", kLater | kArena).features, kArena);
  EXPECT_TRUE(rig->until([&] { return nothing_held(); }));
  EXPECT_EQ(rig->connect_local(0), nullptr) << "nobody listens beside the port";
  auto tcp = net::make_tcp_pair();
  EXPECT_TRUE(rig->node->adopt(net::make_socket_stream(std::move(tcp.second))).has_value());
  RawClient remote(*rig->loop, std::move(tcp.first), false, kEverything);
  remote.call(wire::frame({}, wire::Hello{.features = kEverything, .name = "test"}));
  const net::Received said = remote.call(wire::frame({}, wire::Auth{auth::token_number(1)}));
  EXPECT_EQ(wire::decode<wire::AuthReply>(said.header, said.meta)->features, 0U);
}

TEST_F(SessionMemoryTest, ThePoolIsLentToWhoIsAllowedItAndMayRead) {
  start(token_line(1, "a", "read,write,pool") + token_line(2, "b", "read,write") + token_line(3, "a", "write,pool"));
  std::uint64_t features = 0;
  const Known stays_outside = stranger(kEverything, &features);
  EXPECT_EQ(features, kLater);
  const Known a = enter_as(1, "a"), b = enter_as(2, "b");
  EXPECT_EQ(a.features, kRings | kArena | kMemory);
  EXPECT_EQ(memory_bytes(a), kPoolBytes);
  EXPECT_EQ(b.features, kRings | kArena | kMemory);
  EXPECT_EQ(memory_bytes(b), kWindowBytes);
  EXPECT_EQ(enter(3).features, kArena);
  ASSERT_EQ(put(a, 1).header.status, Code::kOk);
  ASSERT_EQ(put(b, 1).header.status, Code::kOk);
  a.raw->send(Records::get(a.raw->new_id(), a.ns, 1, 1));
  const net::Received where = a.next();
  ASSERT_EQ(where.header.opcode, wire::Opcode::kGetView);
  const auto view = wire::decode<wire::GetView>(where.header, where.meta);
  ASSERT_TRUE(view.has_value());
  EXPECT_TRUE(std::ranges::equal(a.memory->bytes().subspan(view->offsets[0], records.slab_bytes()),
                                 records.slab(1, where.header.layer_first)));
  EXPECT_TRUE(gets(b, 1));
  EXPECT_EQ(rig->stat("node", "gets_lent"), 1U);
}

TEST_F(SessionMemoryTest, WhoIsNotAllowedThePoolAnyMoreIsEnded) {
  const std::string other = token_line(2, "b", "read,pool"), changed[] = {"read,write", "write,pool"};
  for (const std::string& rights : changed) {
    start(token_line(1, "a", "read,write,pool") + other);
    const Known a = enter_as(1, "a"), b = enter_as(2, "b");
    ASSERT_EQ(memory_bytes(a), kPoolBytes);
    ASSERT_EQ(memory_bytes(b), kPoolBytes);
    rig->node->set_authority(auth::shared_authority(token_line(1, "a", rights) + other));
    EXPECT_TRUE(a.raw->ended());
    EXPECT_FALSE(finds(b, 1)) << "and nobody else";
    EXPECT_NE(memory_bytes(enter(1)), kPoolBytes);
  }
}

TEST_F(SessionMemoryTest, NobodyListensBesideAPortAlsoWhereThePoolIsLent) {
  NodeOptions options = test_options();
  options.listen = {"tcp://127.0.0.1:0"};
  start(token_line(1, "a", "read,pool"), options);
  EXPECT_EQ(rig->connect_local(0), nullptr);
  EXPECT_EQ(enter(1).features, kRings | kMemory);
}

// A pool that was not made for sharing cannot be shared later.
TEST_F(SessionMemoryTest, ARightToThePoolCountsFromTheNextStartOnWhereItIsNew) {
  const std::string text = token_line(1, "a", "read,write,pool");
  start();
  rig->node->set_authority(auth::shared_authority(text));
  EXPECT_EQ(rig->log.count("next start"), 0U) << "nobody could come by a unix socket";
  NodeOptions options = test_options();
  const std::string socket = testing::TempDir() + "kvd_pool_" + std::to_string(::getpid());
  options.listen = {"unix://" + socket};
  start(everybody(), options);
  rig->node->set_authority(auth::shared_authority(text));
  EXPECT_EQ(rig->log.count("lent the pool from the depot's next start on"), 1U);
  EXPECT_EQ(memory_bytes(enter(1)), kWindowBytes);
  ::unlink((socket + ".lock").c_str());
}

TEST_F(SessionMemoryTest, CanBeSwitchedOff) {
  NodeOptions options = test_options();
  options.rings = false;
  start(everybody(), options);
  EXPECT_EQ(enter(1).features, kArena | kMemory);
  options.limits.arena_bytes = 0;
  start(everybody(), options);
  EXPECT_EQ(enter(1).features, kMemory);
  options.limits.window_bytes = 0;
  start(everybody(), options);
  EXPECT_EQ(enter(1).features, 0U);
  options = test_options();
  options.shared_memory = false;
  start(token_line(1, "a", "read,write,pool"), options);
  EXPECT_EQ(enter(1).features, 0U);
  rig->node->set_authority(auth::shared_authority(token_line(1, "a", "read,write,pool")));
  EXPECT_EQ(rig->log.count("next start"), 0U);
}

TEST_F(SessionMemoryTest, EachHasWhatItsRightsAreFor) {
  start();
  EXPECT_EQ(enter(3).features, kRings | kMemory);
  EXPECT_EQ(enter(4).features, kArena);
  EXPECT_EQ(enter(5).features, 0U);
}

TEST_F(SessionMemoryTest, RightsAreCheckedForWhatComesThroughMemory) {
  start();
  const Known both = enter_as(1, "a"), reader = enter_as(3, "a"), writer = enter_as(4, "a");
  ASSERT_EQ(put(both, 1).header.status, Code::kOk);
  EXPECT_TRUE(finds(reader, 1));
  net::Received m = reader.call(records.put(reader.raw->new_id(), reader.ns, 2, 1));
  EXPECT_EQ(wire::error_text(m.meta), "the credential does not allow this");
  EXPECT_EQ(reader.call(wire::frame({.request_id = reader.raw->new_id()}, wire::Stats{})).header.status,
            Code::kInvalid);
  EXPECT_EQ(put(writer, 3).header.status, Code::kOk);
  EXPECT_EQ(writer.call(match(writer, 1)).header.status, Code::kInvalid);
  EXPECT_EQ(rig->stat("node", "forbidden"), 3U);
  // With the next credentials the first one reads only: its connection and its memory stay.
  rig->node->set_authority(auth::shared_authority(token_line(1, "a", "read")));
  EXPECT_TRUE(reader.raw->ended() && writer.raw->ended());
  m = put(both, 4);
  EXPECT_EQ(wire::error_text(m.meta), "the credential does not allow this");
  EXPECT_FALSE(finds(both, 4));
  EXPECT_TRUE(finds(both, 1));
  rig->node->set_authority(auth::shared_authority(token_line(1, "a", "write")));
  EXPECT_EQ(both.call(match(both, 1)).header.status, Code::kInvalid);
  EXPECT_EQ(rig->stat("node", "forbidden"), 5U);
}

TEST_F(SessionMemoryTest, AnotherTenantsRecordsAreMissesThroughMemory) {
  start();
  const Known a = enter_as(1, "a"), b = enter_as(2, "b");
  ASSERT_EQ(put(a, 1).header.status, Code::kOk);
  EXPECT_EQ(tenant("a")["bytes_received"], records.layers() * records.slab_bytes());
  EXPECT_TRUE(finds(a, 1));
  EXPECT_FALSE(finds(b, 1));
  EXPECT_FALSE(gets(b, 1));
  const net::Received m = b.call(wire::frame({.request_id = b.raw->new_id()}, wire::Open{of("a")}));
  EXPECT_EQ(wire::error_text(m.meta), "the credential is of another tenant");
  ASSERT_EQ(put(b, 2).header.status, Code::kOk);
  EXPECT_FALSE(finds(a, 2));
}

TEST_F(SessionMemoryTest, ATenantsQuotasHoldThroughMemory) {
  start();
  const Known a = enter_as(1, "a"), other = enter_as(1, "a");
  for (std::size_t key = 1; key <= 2; ++key) a.raw->send(records.put(a.raw->new_id(), a.ns, key, 1));
  a.raw->peer().connection->flush();
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "ops") == 2; }));
  const net::Received m = other.call(records.put(other.raw->new_id(), other.ns, 3, 1));
  EXPECT_EQ(wire::error_text(m.meta), "the tenant has as many requests in flight as it may");
  EXPECT_EQ(tenant("a")["refused"], 1);
  rig->node->set_authority(auth::shared_authority("tenant b pool=1KiB\n" + token_line(2, "b", "read,write")));
  EXPECT_TRUE(a.raw->ended());
  const Known b = enter_as(2, "b");
  const net::Received full = put(b, 1);
  EXPECT_EQ(wire::decode<wire::PutReply>(full.header, full.meta)->why, Code::kBusy);
}

// A connection's memory ends with it, whatever its client goes on writing there.
TEST_F(SessionMemoryTest, ARevokedTokenEndsItWithinUse) {
  start();
  const Known stays = enter_as(2, "b");
  const Known goes = enter_as(1, "a");
  const std::uint64_t id = goes.raw->new_id();
  goes.raw->send(records.put(id, goes.ns, 1, 1));
  goes.raw->peer().connection->flush();
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "ops") == 1; }));
  rig->node->set_authority(auth::shared_authority(token_line(2, "b", "read,write")));
  const std::uint64_t lookups = rig->stat("node", "requests_match");
  std::ranges::fill(goes.arena->writable(), std::byte{0x5A});
  goes.raw->send(arena_head(id, 1));
  goes.raw->send(match(goes, 1));
  EXPECT_TRUE(goes.raw->ended());
  EXPECT_EQ(rig->stat("node", "ops"), 0U);
  EXPECT_EQ(rig->stat("node", "rings"), 1U);
  EXPECT_EQ(rig->stat("node", "arena_bytes"), stays.arena->size());
  EXPECT_FALSE(finds(stays, 1));
  EXPECT_EQ(rig->stat("node", "requests_match"), lookups + 1);
  EXPECT_EQ(rig->stat("node", "put_arena_bytes"), 0U);
  EXPECT_EQ(rig->log.count("': revoked"), 1U);
}

TEST_F(SessionMemoryTest, AnExpiredTokenEndsItWithTheNextRequest) {
  start(token_line(1, "a", "read,write", "2000-01-01"));
  wall = 946684799;
  const Known looks = enter_as(1, "a"), puts = enter_as(1, "a");
  const std::uint64_t id = puts.raw->new_id();
  puts.raw->send(records.put(id, puts.ns, 1, 1));
  puts.raw->peer().connection->flush();
  ASSERT_TRUE(rig->until([&] { return rig->stat("node", "ops") == 1; }));
  wall = 946684800;
  looks.raw->send(match(looks, 1));
  EXPECT_TRUE(looks.raw->ended());
  puts.raw->send(arena_head(id, 1));
  EXPECT_TRUE(puts.raw->ended());
  EXPECT_EQ(rig->stat("node", "put_arena_bytes"), 0U);
  EXPECT_EQ(rig->stat("node", "rings") + rig->stat("node", "arena_bytes") + rig->stat("node", "ops"), 0U);
  EXPECT_EQ(rig->stat("node", "unauthorized"), 2U);
}

// Of four of each half is shared out: one for each tenant.
TEST_F(SessionMemoryTest, ATenantThatTakesAllLeavesOthersTheirs) {
  NodeOptions options = test_options();
  options.limits.rings_max = 4;
  options.limits.arena_bytes = kSmallArena;
  options.limits.arena_bytes_all_max = 4 * kSmallArena;
  options.limits.window_bytes = kSmallArena;
  options.limits.window_bytes_all_max = 4 * kSmallArena;
  start(token_line(1, "a", "read,write") + token_line(2, "b", "read,write"), options);
  std::vector<Known> of_a;
  for (int i = 0; i < 3; ++i) {
    of_a.push_back(enter_as(1, "a"));
    EXPECT_EQ(of_a.back().features, kRings | kArena | kMemory) << i;
  }
  const Known more = enter_as(1, "a");
  EXPECT_EQ(more.features, 0U) << "the last ones are another's";
  EXPECT_FALSE(finds(more, 1)) << "and it has its socket";
  EXPECT_EQ(enter(2).features, kRings | kArena | kMemory);
  ASSERT_TRUE(rig->until([&] { return tenant("b")["rings"] == 0; }));
  const Known of_b = enter(2);
  EXPECT_EQ(of_b.features, kRings | kArena | kMemory) << "it came back";
  EXPECT_EQ(enter(2).features, 0U) << "there are no more";
  of_a.pop_back();
  ASSERT_TRUE(rig->until([&] { return tenant("a")["arenas"] == 2; }));
  EXPECT_EQ(enter(2).features, kRings | kArena | kMemory);
}

// A tenant with few connections needs few of them: what is kept for it is no more than that.
TEST_F(SessionMemoryTest, NoMoreIsKeptForATenantThanItsConnections) {
  NodeOptions options = test_options();
  options.limits.rings_max = 8;
  start("tenant b connections=1\n" + token_line(1, "a", "read,write") + token_line(2, "b", "read,write"), options);
  std::vector<Known> of_a;
  for (int i = 0; i < 7; ++i) {
    of_a.push_back(enter(1));
    EXPECT_NE(of_a.back().features & kRings, 0U) << i;
  }
  EXPECT_EQ(enter(1).features & kRings, 0U);
  EXPECT_NE(enter(2).features & kRings, 0U);
}

// What strangers, and those who were given nothing, could write of others' memory.
TEST_F(SessionMemoryTest, WhoHasNoneReachesNobodysMemory) {
  start();
  const Known owner = enter_as(1, "a");
  ASSERT_EQ(put(owner, 1).header.status, Code::kOk);
  const std::uint64_t taken = rig->stat("node", "put_arena_bytes");
  const Known guesses = stranger(kEverything);
  guesses.raw->send(arena_head(5, 2));
  EXPECT_TRUE(guesses.raw->ended()) << "before its token";
  const Known pipelines = stranger(kEverything);
  pipelines.raw->send(wire::frame({}, wire::Auth{auth::token_number(9)}));
  pipelines.raw->send(arena_head(5, 2));
  EXPECT_TRUE(pipelines.raw->ended());
  const Known reader = enter_as(3, "a");
  reader.raw->send(arena_head(5, 2));
  EXPECT_TRUE(reader.raw->ended()) << "it has no arena";
  const Known again = enter_as(2, "b");
  again.raw->send(wire::frame({}, wire::Auth{auth::token_number(1)}));
  EXPECT_TRUE(again.raw->ended()) << "nobody is somebody else by his ring";
  EXPECT_EQ(rig->stat("node", "put_arena_bytes"), taken);
  EXPECT_TRUE(gets(owner, 1));
}

// Whatever a client was doing when it went: before its token, behind it, with its memory in its hands, within a PUT.
TEST_F(SessionMemoryTest, AClientThatGoesAtAnyStepLeavesNothing) {
  start();
  for (int step = 0; step < 5; ++step) {
    SCOPED_TRACE(step);
    Known client = stranger(kEverything);
    if (step >= 1) client.raw->send(wire::frame({}, wire::Auth{auth::token_number(1)}));
    if (step == 2) client.raw->next();
    if (step >= 3) {
      client = enter_as(1, "a");
      client.raw->send(records.put(50, client.ns, 1, 1));
      client.raw->peer().connection->flush();
      ASSERT_TRUE(rig->until([&] { return rig->stat("node", "ops") == 1; }));
    }
    if (step == 4) client.raw->send(arena_head(50, 1));
    client.raw->vanish();
    client.arena.reset();
    client.memory.reset();
    ASSERT_TRUE(rig->until(
        [&] { return nothing_held() && rig->stat("node", "ops") == 0 && rig->stat("node", "connections") == 0; }));
  }
}

}  // namespace
}  // namespace kvd::node
