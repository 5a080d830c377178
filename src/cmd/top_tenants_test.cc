#include "cmd/top_tenants.h"

#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "node/metrics.h"

namespace kvd::cmd {
namespace {

using testing::HasSubstr;

// A depot's tenants as its own /metrics show them, so that a figure under another name is missed here.
class TopTenantsTest : public testing::Test {
 protected:
  MetricsSample sample(double uptime_s) {
    const node::Figures figures{.node = node_,
                                .net = net_,
                                .tenants = tenants_,
                                .store = &store_,
                                .spaces = spaces_,
                                .ready = true,
                                .uptime_s = uptime_s};
    return *MetricsSample::parse(node::metrics_text(figures));
  }
  node::SharedTenant tenant(const std::string& name) { return tenants_.get(name, {}); }

  node::NodeCounters node_;
  net::NetCounters net_;
  node::Tenants tenants_;
  store::StoreStats store_;
  std::vector<store::TenantFigures> spaces_;
};

TEST_F(TopTenantsTest, ShowsWhatEachHoldsAndDid) {
  tenant("search")->records_missed.add(500);  // before the interval
  spaces_ = {{.tenant = "lab", .pool_bytes = 4096},
             {.tenant = "search",
              .quota = {.pool_bytes = std::uint64_t{2} << 30, .flash_bytes = std::uint64_t{50} << 30},
              .pool_bytes = std::uint64_t{3} << 29,
              .flash_bytes = std::uint64_t{40} << 30,
              .namespaces = 3}};
  tenant("lab");
  const MetricsSample before = sample(10);
  tenant("search")->records_got.add(98);
  tenant("search")->records_missed.add(2);
  tenant("search")->bytes_sent.add(5'000'000);
  tenant("search")->bytes_received.add(1'000'000);
  tenant("search")->accepted.add(20);
  tenant("search")->refused.add(4);
  const auto slot = tenant("search")->requests.take(1);
  const auto connection = tenants_.take_connection(tenant("search"));
  const MetricsSample now = sample(12);
  const Interval interval(before, now, 2);
  const std::string text = tenant_lines(interval);
  EXPECT_THAT(text, HasSubstr("search                    1.5GiB      2GiB     40GiB     50GiB  98.0 %      2.5      0.5"
                              "     1     1\n"));
  EXPECT_THAT(text, HasSubstr("lab                         4KiB         -        0B         -       -      0.0      0.0"
                              "     0     0\n"));
  EXPECT_LT(text.find("search"), text.find("lab")) << "who moved most comes first";
  const auto json = tenants_json(interval);
  EXPECT_EQ(json["search"]["hit_share"], 0.98);
  EXPECT_EQ(json["search"]["sent_bytes_per_s"], 2.5e6);
  EXPECT_EQ(json["search"]["received_bytes_per_s"], 0.5e6);
  EXPECT_EQ(json["search"]["requests_per_s"], 10);
  EXPECT_EQ(json["search"]["refused_per_s"], 2);
  EXPECT_EQ(json["search"]["pool_quota_bytes"], 2.0 * (1 << 30));
  EXPECT_EQ(json["search"]["flash_quota_bytes"], 50.0 * (1 << 30));
  EXPECT_EQ(json["search"]["namespaces"], 3);
  EXPECT_EQ(json["search"]["connections"], 1);
  EXPECT_TRUE(json["lab"]["pool_quota_bytes"].is_null());
  EXPECT_TRUE(json["lab"]["hit_share"].is_null());
  EXPECT_THAT(top_text(interval, "a"), HasSubstr("\ntenant "));
  EXPECT_EQ(nlohmann::json::parse(top_json(interval))["tenants"], json);
}

TEST_F(TopTenantsTest, WhereThereAreNoneNothingIsShown) {
  const MetricsSample none = sample(1);
  EXPECT_EQ(tenant_lines(Interval({}, none, 0)), "");
  spaces_ = {{.tenant = "default", .pool_bytes = 4096}};
  const MetricsSample one = sample(1);
  EXPECT_EQ(tenant_lines(Interval({}, one, 0)), "") << "the depot's own figures are the same";
  EXPECT_EQ(tenants_json(Interval({}, one, 0)).size(), 1U);
}

TEST_F(TopTenantsTest, ManyAreCutInLinesAndSummedInTheMetrics) {
  for (int i = 0; i < 70; ++i) tenant("t" + std::to_string(1000 + i))->bytes_sent.add(i == 33 ? 1000 : 0);
  const MetricsSample now = sample(1);
  const Interval interval({}, now, 0);
  const std::string text = tenant_lines(interval);
  EXPECT_EQ(std::ranges::count(text, '\n'), 13) << text;
  EXPECT_THAT(text, HasSubstr("\nt1033 "));
  EXPECT_THAT(text, HasSubstr("and 55 more: see --json\n"));
  const auto json = tenants_json(interval);
  EXPECT_EQ(json.size(), 65U) << "64 and the others";
  EXPECT_TRUE(json.contains("(others)"));
}

TEST_F(TopTenantsTest, NamesThatAreNoNamesDoNothingToATerminal) {
  const auto now = MetricsSample::parse(
      "kvdepot_tenant_requests_total{tenant=\"\x1b[2Jevil\"} 1\n"
      "kvdepot_tenant_requests_total{tenant=\"a-name-that-is-longer-than-a-column\"} 1\n");
  ASSERT_TRUE(now);
  const std::string text = tenant_lines(Interval({}, *now, 0));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_THAT(text, HasSubstr("?[2Jevil"));
  EXPECT_THAT(text, HasSubstr("a-name-that-is-longer> "));
}

}  // namespace
}  // namespace kvd::cmd
