// What a run says of itself: whether its queues grow, and whether its books agree.
#include "sim/fleet_stats.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "model/catalogue_engine.h"
#include "sim/generators.h"

namespace kvd::sim {
namespace {

FleetConfig qwen_fleet(std::uint32_t instances) {
  FleetConfig config;
  config.instances = instances;
  config.engine.blocks = 307'328 / 16;
  config.engine.unit_blocks = 4;
  config.pass = model::qwen3_32b_h100x2().pass;
  return config;
}

FleetResult run(const FleetConfig& config, const PoissonOptions& options) {
  return run_fleet(config, *poisson_source(options));
}

TEST(Stability, RequestsThatAllComeAtOnceAreNoQueueThatGrows) {
  FleetConfig config = qwen_fleet(1);
  PoissonOptions options;
  options.at_once = 64;
  EXPECT_FALSE(run(config, options).unstable);
  config.in_flight_max = 4;  // the others are held back, and asked for at the same moment all the same
  EXPECT_FALSE(run(config, options).unstable);
}

TEST(Stability, LengthsWithoutArrivalsAreNoQueueThatGrows) {
  trace::Trace trace;
  for (std::uint32_t i = 0; i < 200; ++i) trace.requests.push_back({0, 1000 + i % 7 * 100, 50 + i % 5 * 10});
  FleetConfig config = qwen_fleet(1);
  config.engine.unit_blocks = 32;
  EXPECT_FALSE(run_fleet(config, *trace_source(trace, {})).unstable);
}

TEST(Stability, ALoadThatRisesIsNoQueueThatGrows) {
  FleetConfig config = qwen_fleet(1);
  PoissonOptions options;
  options.stages = {{0.3, 200}, {0.6, 200}, {3, 200}};
  options.output = {400, 400};
  const FleetResult light = run(config, options);
  EXPECT_FALSE(light.unstable);
  EXPECT_LT(light.ttft.p99, 1);
  // With answers that take a minute, as the fleet does to drain.
  options.stages = {{0.05, 200}, {0.1, 200}, {0.4, 200}};
  options.output = {4000, 4000};
  EXPECT_FALSE(run(config, options).unstable);
}

TEST(Stability, AQueueGrowsUnderMoreThanItCanServe) {
  FleetConfig config = qwen_fleet(2);
  PoissonOptions options;
  options.prompt = {8000, 8000};
  options.output = {100, 100};
  const double most = 2 / 0.66;  // requests a second: about what two instances can compute of such prompts
  for (const double load : {0.8, 1.25, 1.5, 3.0}) {
    options.stages = {{load * most, 600}};
    EXPECT_EQ(run(config, options).unstable, load > 1) << load;
  }
  // Also where only the end is too much, where the load generator holds it back, and where decodes are too much.
  options.stages = {{0.2 * most, 200}, {0.5 * most, 200}, {2 * most, 200}};
  EXPECT_TRUE(run(config, options).unstable);
  options.stages = {{1.5 * most, 600}};
  config.in_flight_max = 30;
  EXPECT_TRUE(run(config, options).unstable);
  options.prompt = options.output = {1000, 1000};
  options.stages = {{20, 300}};
  EXPECT_TRUE(run(qwen_fleet(2), options).unstable);
}

TEST(Stability, OverloadIsMeasuredFromWhereTheBacklogWasLastEmpty) {
  PoissonOptions options;
  options.prompt = {8000, 8000};
  options.output = {100, 100};
  const double most = 1 / 0.66;
  // Half a day with next to nothing to do, then three times too much.
  options.stages = {{1e-3 * most, 40'000}, {3 * most, 200}};
  FleetConfig config = qwen_fleet(1);
  EXPECT_TRUE(run(config, options).unstable);
  config.in_flight_max = 30;
  EXPECT_TRUE(run(config, options).unstable);
  // What was too much and has been worked off is no backlog at the end.
  config.in_flight_max = 0;
  options.stages = {{3 * most, 200}, {0.2 * most, 4000}};
  EXPECT_FALSE(run(config, options).unstable);
}

// A request alone, and 64 at once ten seconds later, or while it still decodes.
TEST(Stability, ABurstAfterALoneRequestIsNoQueueThatGrows) {
  for (const std::uint32_t output : {20U, 2000U}) {
    trace::Trace trace;
    trace.requests.push_back({0, 2000, output});
    for (int i = 0; i < 64; ++i) trace.requests.push_back({10, 2000, 50});
    FleetConfig config = qwen_fleet(1);
    config.engine.unit_blocks = 32;
    EXPECT_FALSE(run_fleet(config, *trace_source(trace, {})).unstable) << output;
    config.in_flight_max = 4;
    EXPECT_FALSE(run_fleet(config, *trace_source(trace, {})).unstable) << output;
  }
}

// Picoseconds of 64 bits hold 106 days, and that is 2.5 hours of a thousand instances.
TEST(FleetBooks, AddUpMoreWorkThanTheClockHolds) {
  FleetConfig config = qwen_fleet(3);
  config.pass.base = model::picoseconds(4000);
  config.policy = "round-robin";
  config.sample_s = 1e5;
  PoissonOptions options;
  options.output = {1000, 1000};
  options.at_once = 3;
  const FleetResult result = run(config, options);
  EXPECT_FALSE(result.out_of_time);
  EXPECT_NEAR(result.busy_share, 1, 1e-9);
  double before = 0;
  for (const FleetSample& s : result.samples) {
    EXPECT_GE(s.busy_s, before);
    before = s.busy_s;
  }
  EXPECT_GT(before, 3 * 3.8e6);
}

// Ten requests come one a second and stay for five each; `change` puts the books in disorder.
template <class F>
double little_error_of(F&& change) {
  const FleetConfig config = qwen_fleet(1);
  FleetStats stats(config);
  std::vector<RequestRecord> leave;
  for (int i = 0; i < 10; ++i) {
    RequestRecord r;
    r.arrival = r.scheduled = model::picoseconds(i);
    r.finish = model::picoseconds(i + 5);
    r.output = 1;
    stats.arrivals_until(r.scheduled, r.arrival);
    stats.arrived({r.arrival, {}, 100, 1});
    leave.push_back(r);
  }
  change(leave);
  for (const RequestRecord& r : leave) stats.left(r, 1);
  stats.add_presence(10 * 5.0);  // by the engine's count
  return stats.finish(true, {}).little_error;
}

TEST(FleetBooks, LittlesLawHoldsWhereEveryRequestIsCountedOnce) {
  EXPECT_LT(little_error_of([](auto&) {}), 1e-12);
}

TEST(FleetBooks, LittlesLawBreaksWhereARequestIsLostOrCountedTwiceOrAtAWrongTime) {
  using Records = std::vector<RequestRecord>;
  EXPECT_NEAR(little_error_of([](Records& r) { r.pop_back(); }), 5.0 / 50, 1e-9);
  EXPECT_NEAR(little_error_of([](Records& r) { r.push_back(r.back()); }), 5.0 / 55, 1e-9);
  EXPECT_NEAR(little_error_of([](Records& r) { r[3].finish -= model::picoseconds(2); }), 2.0 / 50, 1e-9);
  EXPECT_NEAR(little_error_of([](Records& r) { r[4].arrival += model::picoseconds(1); }), 1.0 / 50, 1e-9);
  EXPECT_EQ(little_error_of([](Records& r) { r.clear(); }), 1);
}

TEST(FleetBooks, EnginesCountWhatRecordsSay) {
  FleetConfig config = qwen_fleet(3);
  PoissonOptions options;
  options.stages = {{5, 100}};
  EXPECT_LT(run(config, options).little_error, 1e-9);
}

}  // namespace
}  // namespace kvd::sim
