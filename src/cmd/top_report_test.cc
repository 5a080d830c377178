#include "cmd/top_report.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "node/metrics.h"

namespace kvd::cmd {
namespace {

using testing::HasSubstr;
using testing::Not;

// A depot as its own /metrics show it, so that a figure under another name is missed here.
class TopReportTest : public testing::Test {
 protected:
  MetricsSample sample(double uptime_s) {
    const node::Figures figures{.node = node_,
                                .net = net_,
                                .tenants = tenants_,
                                .store = &store_,
                                .devices = devices_,
                                .ready = true,
                                .uptime_s = uptime_s};
    return *MetricsSample::parse(node::metrics_text(figures));
  }
  void two_seconds_of_work() {
    store_.pool_hits.add(90);
    store_.flash_hits.add(8);
    store_.misses.add(2);
    node_.match_blocks.add(1000);
    node_.match_blocks_hit.add(800);
    node_.requests_match.add(20);
    node_.requests_get.add(10);
    node_.requests_put.add(4);
    for (int i = 0; i < 20; ++i) node_.match_us.record_us(10);
    for (int i = 0; i < 9; ++i) node_.get_us.record_us(1000);
    node_.get_us.record_us(100'000'000);
    store_.flash_bytes_read.add(6'000'000'000);
    store_.flash_bytes_written.add(600'000'000);
    store_.segments_evicted.add(3);
    net_.bytes_out.add(5'000'000);
    net_.bytes_in.add(4'000);
    node_.bytes_lent.add(2'000'000'000);
    node_.answered_busy.add(6);
    node_.timeouts.add(1);
  }
  void stand() {
    store_.pool_bytes_used.set(std::uint64_t{3} << 30);
    store_.pool_bytes_pinned.set(std::uint64_t{2} << 20);
    store_.dirty_bytes.set(std::uint64_t{5} << 20);
    store_.pool_records.set(111);
    store_.flash_records.set(222);
    store_.segments_free.set(7);
    node_.ops.set(11);
    node_.op_keys.set(12);
    node_.leases.set(13);
    node_.views.set(14);
    node_.connections.set(15);
    store_.corrupt.add(16);
    node_.put_corrupt.add(17);
    store_.io_errors.add(18);
  }

  node::NodeCounters node_;
  net::NetCounters net_;
  node::Tenants tenants_;
  store::StoreStats store_;
  std::vector<store::DeviceFigures> devices_;
};

TEST_F(TopReportTest, ShowsWhatADepotDidAndHowItStands) {
  store_.misses.add(100);  // before the interval
  for (int i = 0; i < 1000; ++i) node_.match_us.record_us(1'000'000);
  const MetricsSample before = sample(3600);
  two_seconds_of_work();
  stand();
  const MetricsSample now = sample(3602);
  const std::string text = top_text(Interval(before, now, 2), "127.0.0.1:7071");
  for (const char* line :
       {"at 127.0.0.1:7071: serving, up 1 h 0 min; the last 2.0 s\n",
        "hits      98.0 % of records asked for: pool 90.0 %, flash 8.0 %; since the start 49.0 %\n",
        "prefixes  80.0 % of blocks looked up; since the start 80.0 %\n",
        "match         10.0     < 16 us     < 16 us\n", "get            5.0   < 1.02 ms      > 16 s\n",
        "put            2.0           -           -\n",
        "pool      3GiB in use, 2MiB pinned, 5MiB not on flash yet; 111 records\n",
        "flash     3.00 GB/s read, 300.0 MB/s written; 222 records, 7 segments free, 1.5 given up per s\n",
        "network   2.5 MB/s sent, 2.0 kB/s received; 1.00 GB/s lent in shared memory\n",
        "queue     11 gets and puts of 12 keys, 13 leases, 14 views; 15 connections\n",
        "refused   3.0 busy and 0.5 timeouts per s\n",
        "damage    16 records dropped, 17 slabs that came damaged, 18 I/O errors since the start\n"})
    EXPECT_THAT(text, HasSubstr(line));
}

TEST_F(TopReportTest, TheSameAsJson) {
  const MetricsSample before = sample(10);
  two_seconds_of_work();
  stand();
  const MetricsSample now = sample(12);
  const auto json = nlohmann::json::parse(top_json(Interval(before, now, 2)));
  EXPECT_EQ(json["ready"], true);
  EXPECT_EQ(json["seconds"], 2.0);
  EXPECT_EQ(json["hit_share"], 0.98);
  EXPECT_EQ(json["prefix_hit_share"], 0.8);
  EXPECT_EQ(json["requests"]["match"]["per_s"], 10.0);
  EXPECT_EQ(json["requests"]["match"]["p99_s"], 16e-6);
  EXPECT_TRUE(json["requests"]["get"]["p99_s"].is_null()) << "beyond the last bucket";
  EXPECT_TRUE(json["requests"]["put"]["p50_s"].is_null()) << "none came";
  for (const auto& [name, rate] : json["per_s"].items()) EXPECT_GT(rate, 0) << name;
  for (const auto& [name, value] : json["now"].items()) {
    EXPECT_EQ(value > 0, name != "flash_off") << name;
  }
}

TEST_F(TopReportTest, WhereNothingWasAskedForThereIsNoShare) {
  const MetricsSample now = sample(5);
  const Interval idle(now, now, 0);
  EXPECT_THAT(top_text(idle, "a"), HasSubstr("hits      - of records asked for"));
  EXPECT_TRUE(nlohmann::json::parse(top_json(idle))["hit_share"].is_null());
}

TEST_F(TopReportTest, ADepotThatWasStartedAgainIsCountedFromItsStart) {
  node_.requests_match.add(1000);
  const MetricsSample long_before = sample(3600), shortly_before = sample(2);
  const node::NodeCounters fresh;
  const node::Figures figures{
      .node = fresh, .net = net_, .tenants = tenants_, .store = &store_, .ready = true, .uptime_s = 4};
  const auto now = *MetricsSample::parse(node::metrics_text(figures));
  for (const MetricsSample* before : {&long_before, &shortly_before}) {
    const Interval since(*before, now, 5);
    EXPECT_EQ(since.seconds(), 4);
    EXPECT_EQ(since.quantile("kvdepot_match_seconds", 0.5), 0);
  }
  const Interval going_on(shortly_before, now, 2);
  EXPECT_EQ(going_on.seconds(), 2);
}

TEST_F(TopReportTest, SaysThatTheDeviceFailsAndThatItDoesNotServe) {
  store_.tier_off.set(1);
  const node::Figures figures{
      .node = node_, .net = net_, .tenants = tenants_, .store = &store_, .ready = false, .uptime_s = 1};
  const auto now = *MetricsSample::parse(node::metrics_text(figures));
  const std::string text = top_text(Interval({}, now, 0), "a");
  EXPECT_THAT(text, HasSubstr("\n          OFF: the device fails, what is put stays in memory only\n"));
  EXPECT_THAT(text, HasSubstr("not serving"));
}

TEST_F(TopReportTest, TellsForHowLongTheDeviceFailsAsFarAsItWasSeen) {
  const MetricsSample on = sample(10);
  store_.tier_off.set(1);
  store_.tier_outages.add();
  const MetricsSample off = sample(12), still_off = sample(75);
  const double first = flash_off_s(Interval(on, off, 2), 0);
  EXPECT_EQ(first, 0) << "at some time in between";
  const Interval later(off, still_off, 63);
  const double second = flash_off_s(later, first);
  EXPECT_EQ(second, 63);
  EXPECT_EQ(flash_off_s(Interval(still_off, still_off, 0), second), 63);
  EXPECT_THAT(top_text(later, "a", second), HasSubstr("OFF for at least 1 min 3 s: the device fails"));
  EXPECT_EQ(nlohmann::json::parse(top_json(later, second))["flash_off_s"], 63.0);
  EXPECT_TRUE(nlohmann::json::parse(top_json(Interval(on, on, 0)))["flash_off_s"].is_null());
  store_.tier_outages.add();
  EXPECT_EQ(flash_off_s(Interval(still_off, sample(80), 5), second), 0) << "it was on in between";
  store_.tier_off.set(0);
  EXPECT_EQ(flash_off_s(Interval(still_off, sample(80), 5), second), 0);
  store_.tier_off.set(1);
  EXPECT_EQ(flash_off_s(Interval(still_off, sample(6), 9), second), 0) << "another depot, of which nothing is known";
}

TEST_F(TopReportTest, HasALineForEachDeviceOfSeveral) {
  store::DeviceStats first, second;
  devices_ = {{"/mnt/nvme0/kv", &first}};
  EXPECT_THAT(top_text(Interval({}, sample(1), 0), "a"), Not(HasSubstr("nvme0"))) << "the store's figures are its";
  devices_.push_back({"/a/very/long/path/that/ends/with/\x1b[H\"/nvme1/kv", &second});
  const MetricsSample before = sample(10);
  first.bytes_read.add(6'000'000'000);
  first.bytes_written.add(600'000'000);
  first.records.set(222);
  first.segments_free.set(7);
  first.in_flight.set(9);
  second.off.set(1);
  second.io_errors.add(16);
  second.outages.add(2);
  second.bytes.set(1 << 30);
  const MetricsSample now = sample(12);
  const Interval interval(before, now, 2);
  const std::string text = top_text(interval, "a");
  EXPECT_THAT(
      text, HasSubstr("\n/mnt/nvme0/kv                    on     3000.0      300.0        222      7      9      0\n"));
  EXPECT_THAT(text, HasSubstr("\n<t/ends/with/%1B[H%22/nvme1/kv")) << text;
  EXPECT_THAT(text, HasSubstr(" OFF        0.0        0.0          0      0      0     16\n"));
  const auto json = nlohmann::json::parse(top_json(interval))["devices"];
  EXPECT_EQ(json["/mnt/nvme0/kv"]["read_bytes_per_s"], 3e9);
  EXPECT_EQ(json["/mnt/nvme0/kv"]["off"], false);
  const auto off = json["/a/very/long/path/that/ends/with/%1B[H%22/nvme1/kv"];
  EXPECT_EQ(off["off"], true);
  EXPECT_EQ(off["io_errors"], 16);
  EXPECT_EQ(off["outages"], 2);
  EXPECT_EQ(off["bytes"], 1 << 30);
}

TEST_F(TopReportTest, SaysHowFarARecoveryIs) {
  store_.recovering.set(1);
  store_.recovery_percent.set(42);
  const node::Figures figures{
      .node = node_, .net = net_, .tenants = tenants_, .store = &store_, .ready = false, .uptime_s = 1};
  const auto now = *MetricsSample::parse(node::metrics_text(figures));
  EXPECT_THAT(top_text(Interval({}, now, 0), "a"), HasSubstr("recovering (42 %), serving what is known"));
}

}  // namespace
}  // namespace kvd::cmd
