// CredentialsTest: a node with credentials. NodeAuth: one whose clients show tokens. For tests of who gets in and what
// it may do.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "auth/testing/tokens.h"
#include "node/testing/rig.h"

namespace kvd::node {

inline std::string token_line(int n, const std::string& tenant, const std::string& rights,
                              const std::string& expires = "") {
  return auth::token_line(n, "n" + std::to_string(n), tenant, rights, expires);
}

class CredentialsTest : public testing::Test {
 protected:
  void start(const std::string& credentials, NodeOptions options, Duration refusal_delay) {
    options.authority = auth::shared_authority(credentials);
    options.wall_clock = [this] { return wall; };
    options.limits.refusal_delay = refusal_delay;
    rig = std::make_unique<Rig>(std::move(options));
  }
  [[nodiscard]] Namespace of(const std::string& tenant) const {
    Namespace ns = records.ns();
    ns.tenant = tenant;
    return ns;
  }
  // The figures of this tenant.
  [[nodiscard]] nlohmann::json tenant(const std::string& name) const {
    return nlohmann::json::parse(rig->node->stats_json())["tenants"][name];
  }

  Records records{small_namespace()};
  auth::WallSeconds wall = 0;
  std::unique_ptr<Rig> rig;
};

class NodeAuth : public CredentialsTest {
 protected:
  // Token 1 is of tenant a, 2 of tenant b; both may read and write. 3 reads for a, 4 writes, 5 administers.
  static std::string everybody() {
    return "tenant a requests=2\n" + token_line(1, "a", "read,write") + token_line(2, "b", "read,write") +
           token_line(3, "a", "read") + token_line(4, "a", "write") + token_line(5, "a", "admin", "2000-01-01");
  }
  void start(const std::string& credentials = everybody(), NodeOptions options = test_options(),
             Duration refusal_delay = Millis(1)) {
    CredentialsTest::start(credentials, std::move(options), refusal_delay);
  }
  std::unique_ptr<RawClient> stranger(std::uint64_t features = wire::kFeatureToken) const {
    auto client = rig->connect(false);
    client->send(wire::frame({}, wire::Hello{.features = features, .name = "test"}));
    return client;
  }
  net::Received show(RawClient& client, std::string_view token) const {
    return client.call(wire::frame({}, wire::Auth{token}));
  }
  std::unique_ptr<RawClient> enter(int token) const {
    auto client = stranger();
    const net::Received asked = client->next();
    const auto said = wire::decode<wire::HelloReply>(asked.header, asked.meta);
    EXPECT_TRUE(said && said->features == wire::kFeatureToken);
    const net::Received answer = show(*client, auth::token_number(token));
    EXPECT_EQ(answer.header.opcode, wire::Opcode::kAuthReply);
    EXPECT_EQ(answer.header.status, Code::kOk) << wire::error_text(answer.meta);
    return client;
  }
  void expect_refused(RawClient& client, const net::Received& answer) const {
    EXPECT_EQ(answer.header.status, Code::kInvalid);
    EXPECT_EQ(wire::error_text(answer.meta), "unauthorized");
    EXPECT_TRUE(client.ended());
  }
  // Whether the client's PUT of a record was taken.
  net::Received put(RawClient& client, std::uint32_t ns, std::size_t key) const {
    const std::uint64_t id = client.new_id();
    client.send(records.put(id, ns, key, 1));
    client.send(records.put_head(id, key, 1, 0, records.layers()), records.put_body(key, 1, 0, records.layers()));
    return client.next();
  }
  // How many of these keys a GET does not find.
  std::size_t missing(RawClient& client, std::uint32_t ns, std::size_t first, std::size_t count) const {
    std::size_t failed = count;
    client.send(Records::get(client.new_id(), ns, first, count));
    for (bool last = false; !last;) {
      const net::Received m = client.next();
      last = m.header.last();
      const auto data = wire::decode<wire::GetData>(m.header, m.meta);
      EXPECT_TRUE(data.has_value()) << wire::error_text(m.meta);
      if (!data) break;
      failed = wire::count_bits(data->failed);
    }
    return failed;
  }
  // What a client hears who shows this token and is not let in; its connection has ended then.
  std::string turned_away(int token, Code code) const {
    const auto client = stranger();
    client->next();
    const net::Received answer = show(*client, auth::token_number(token));
    EXPECT_EQ(answer.header.status, code);
    EXPECT_TRUE(client->ended());
    return std::string(wire::error_text(answer.meta));
  }
};

}  // namespace kvd::node
