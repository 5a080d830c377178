// What a simulated fleet is shown as: columns, charts, and the verdict on its own checks.
#include "cmd/sim_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvd::cmd {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kText = R"([fleet]
instances = 2
[depot]
bandwidth = "20GB/s"
[workload]
generator = "multi-turn"
rate = 0.5
duration_s = 200
turns = 4
system_tokens = 4096
)";

struct Ran {
  SimConfig config;
  sim::FleetResult result;
};

Ran run(const std::string& set = "fleet.seed=1") {
  Ran ran{*read_sim_config(kText, "fleet.toml", {set}), {}};
  ran.config.fleet.engine.unit_blocks = 4;
  ran.config.fleet.keep_records = ran.config.fleet.keep_passes = true;
  ran.config.fleet.sample_s = 1;
  ran.result = sim::run_fleet(ran.config.fleet, *sim::session_source(ran.config.sessions));
  return ran;
}

std::size_t lines(const std::string& text) { return static_cast<std::size_t>(std::ranges::count(text, '\n')); }
std::size_t columns(const std::string& text) {
  return static_cast<std::size_t>(
      std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(text.find('\n')), ','));
}

TEST(FleetReport, WritesALineForEachThing) {
  const Ran ran = run();
  ASSERT_GT(ran.result.requests, 100U);
  EXPECT_EQ(lines(requests_csv(ran.result)), ran.result.requests + 1);
  EXPECT_EQ(lines(passes_csv(ran.result)), ran.result.passes_executed + 1);
  const std::string samples = samples_csv(ran.result, ran.config);
  EXPECT_EQ(lines(samples), ran.result.samples.size() + 1);
  const std::string last = samples.substr(samples.rfind('\n', samples.size() - 2) + 1);
  EXPECT_EQ(columns(samples), columns(last));
}

TEST(FleetReport, SaysWhatIsAssumedOfTheEngine) {
  Ran ran = run();
  EXPECT_TRUE(fleet_json(ran.result, ran.config)["assumptions"].empty());
  EXPECT_THAT(fleet_text(ran.result, ran.config), Not(HasSubstr("assumed")));
  ran.config.assumptions = {"all-reduces take no time"};
  EXPECT_EQ(fleet_json(ran.result, ran.config)["assumptions"][0], "all-reduces take no time");
  EXPECT_THAT(fleet_text(ran.result, ran.config), HasSubstr("assumed    all-reduces take no time\n"));
}

TEST(FleetReport, SaysWhatTiersMovedAndWhetherItsChecksHold) {
  Ran ran = run();
  EXPECT_TRUE(sound(ran.result));
  EXPECT_GT(fleet_json(ran.result, ran.config)["tiers"]["depot"]["written_bytes"].get<double>(), 0);
  EXPECT_FALSE(fleet_json(ran.result, ran.config)["tiers"].contains("flash"));
  EXPECT_THAT(fleet_text(ran.result, ran.config), HasSubstr("depot  "));
  ran.result.loads_conserved = false;
  EXPECT_FALSE(sound(ran.result));
  EXPECT_THAT(fleet_text(ran.result, ran.config), HasSubstr("loads LOST"));
}

TEST(FleetReport, HasNoTimesOfQueuesThatGrew) {
  Ran ran = run();
  EXPECT_TRUE(fleet_json(ran.result, ran.config)["ttft_s"].contains("p90"));
  EXPECT_THAT(fleet_text(ran.result, ran.config), Not(HasSubstr("unstable")));
  ran.result.unstable = true;
  const auto json = fleet_json(ran.result, ran.config);
  EXPECT_TRUE(json["unstable"].get<bool>());
  EXPECT_TRUE(json["ttft_s"].is_null());
  EXPECT_TRUE(json["tpot_s"].is_null());
  const std::string text = fleet_text(ran.result, ran.config);
  EXPECT_THAT(text, HasSubstr("TTFT       unstable\n"));
  EXPECT_THAT(text, HasSubstr("TPOT       unstable\n"));
  EXPECT_THAT(text, Not(HasSubstr("mean")));
}

TEST(FleetReport, HasNoTimesOfNoRequests) {
  Ran ran = run();
  ran.result.tpot = {};
  EXPECT_TRUE(fleet_json(ran.result, ran.config)["tpot_s"].is_null());
  EXPECT_THAT(fleet_text(ran.result, ran.config), HasSubstr("TPOT       -\n"));
}

TEST(FleetReport, StatesWarmUpAndUnfinishedRequests) {
  const Ran ran = run("fleet.warmup_s=100");
  ASSERT_GT(ran.result.warmup_requests, 20U);
  const auto json = fleet_json(ran.result, ran.config);
  EXPECT_EQ(json["warmup_s"], 100);
  EXPECT_EQ(json["warmup_requests"], ran.result.warmup_requests);
  EXPECT_EQ(json["unfinished"], 0);
  EXPECT_THAT(fleet_text(ran.result, ran.config),
              HasSubstr(fmt::format("warm-up    {} requests of the first 100 s", ran.result.warmup_requests)));
}

TEST(FleetReport, CountsTheWaitInTheLoadGeneratorApart) {
  EXPECT_FALSE(fleet_json(run().result, run().config).contains("ttft_from_schedule_s"));
  const Ran ran = run("workload.in_flight_max=2");
  const auto json = fleet_json(ran.result, ran.config);
  EXPECT_TRUE(json.contains("ttft_from_schedule_s"));
  EXPECT_THAT(fleet_text(ran.result, ran.config), HasSubstr("scheduled  "));
  EXPECT_THAT(requests_csv(ran.result), HasSubstr(",scheduled_s\n"));
}

TEST(FleetReport, DrawsSharesBetweenNoneAndAll) {
  const Ran ran = run();
  const std::vector<Chart> charts = fleet_charts(ran.result, ran.config);
  ASSERT_EQ(charts.size(), 6U);
  for (const Chart& chart : charts) {
    for (const ChartSeries& line : chart.series) {
      EXPECT_FALSE(line.points.empty()) << chart.title << ": " << line.name;
      for (const auto& [x, y] : line.points) {
        EXPECT_GE(y, 0) << chart.title << ": " << line.name << " at " << x;
        const double most = chart.y_max > 0 ? chart.y_max * (1 + 1e-9) : y;
        EXPECT_LE(y, most) << chart.title << ": " << line.name << " at " << x;
      }
    }
    EXPECT_THAT(draw(chart), StartsWith("<svg"));
  }
}

}  // namespace
}  // namespace kvd::cmd
