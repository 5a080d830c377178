// Workloads of configurations: what cannot be made or leaves nothing to count is said with its numbers.
#include "cmd/sim_workload.h"

#include <cstdio>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cmd/text_file.h"

namespace kvd::cmd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kPoisson = "[workload]\ngenerator = \"poisson\"\nrate = 2\nduration_s = 20\n";
constexpr const char* kRows = "prompt_tokens,output_tokens\n1000,10\n2000,20\n";
constexpr const char* kTimedRows = "arrival_s,prompt_tokens,output_tokens\n0,1000,10\n5,2000,20\n";

class Workload : public testing::Test {
 protected:
  Workload() : path_(std::filesystem::path(testing::TempDir()) / "kvd_sim_workload_test.csv") {}
  ~Workload() override { std::remove(path_.c_str()); }
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  static SimConfig read(const std::string& text, const std::vector<std::string>& set = {}) {
    auto config = read_sim_config(text, "fleet.toml", set);
    EXPECT_TRUE(config) << config.error().str();
    return config.value_or(SimConfig{});
  }
  // The complaint about a workload, "" if it can be made.
  std::string fault(const std::string& text, const std::vector<std::string>& set = {}) {
    SimConfig config = read(text, set);
    TraceShelf shelf;
    if (const auto done = shelf.load(config); !done) return done.error();
    const auto source = make_source(config, shelf);
    return source ? "" : source.error();
  }
  std::string trace_config(const char* rows) {
    EXPECT_EQ(write_text(path_.string(), rows), "");
    return "[workload]\ntrace = \"" + path_.string() + "\"\n";
  }

  std::filesystem::path path_;
};

std::optional<std::string> run(SimConfig config) {
  TraceShelf shelf;
  const auto source = make_source(config, shelf);
  EXPECT_TRUE(source) << source.error();
  return nothing_counted(sim::run_fleet(config.fleet, **source), config);
}

TEST_F(Workload, SaysWhenPromptsCannotBeToldApart) {
  EXPECT_EQ(fault(kPoisson), "");
  EXPECT_THAT(fault(kPoisson, {"workload.duration_s=8000000", "workload.rate=200"}), HasSubstr("can be told apart"));
  EXPECT_THAT(fault(kPoisson, {"workload.at_once=4000000000"}), HasSubstr("can be told apart"));
  const std::string sessions = "[workload]\ngenerator = \"multi-turn\"\nrate = 1\nduration_s = 100\n";
  EXPECT_EQ(fault(sessions), "");
  EXPECT_THAT(fault(sessions, {"workload.duration_s=8000000", "workload.rate=100"}), HasSubstr("can be told apart"));
  const std::string shared = "[workload]\ngenerator = \"shared-prefix\"\nrate = 1\nduration_s = 10\n";
  EXPECT_EQ(fault(shared), "");
  EXPECT_THAT(fault(shared, {"workload.groups=100000000"}), HasSubstr("100000000 groups x 5 prompts"));
  const std::string trace = trace_config(kRows);
  EXPECT_EQ(fault(trace, {"workload.copies=1000"}), "");
  EXPECT_THAT(fault(trace, {"workload.copies=4000000000"}), HasSubstr("requests_max"));
}

TEST_F(Workload, RepeatsNeedArrivals) {
  EXPECT_THAT(fault(trace_config(kRows), {"workload.repeats=2"}), HasSubstr("all come at once"));
  EXPECT_EQ(fault(trace_config(kTimedRows), {"workload.repeats=2"}), "");
  EXPECT_EQ(fault(trace_config(kRows), {"workload.repeats=2", "workload.rate=3"}), "");
}

// Picoseconds of 64 bits end after 106 days.
TEST_F(Workload, NoArrivalComesBehindTheClock) {
  const std::string lengths = trace_config(kRows);
  EXPECT_THAT(fault(lengths + "rate = 1e-9\n"),
              AllOf(StartsWith("fleet.toml:3: workload.rate: "), HasSubstr("within 8640000 s (100 days)"),
                    HasSubstr("fewer requests, a higher rate, or a higher workload.speed")));
  EXPECT_THAT(fault(lengths, {"workload.rate=1e-9"}), StartsWith("--set: workload.rate: "));
  EXPECT_EQ(fault(lengths, {"workload.rate=0.01"}), "");
  EXPECT_THAT(fault(lengths, {"workload.rate=100000", "workload.copies=1000000", "workload.speed=1e-6"}),
              HasSubstr("workload.rate: "));
  EXPECT_EQ(fault(lengths, {"workload.rate=1", "workload.repeats=1000000000", "workload.requests_max=1000"}), "");
  const std::string timed = trace_config(kTimedRows);
  EXPECT_THAT(fault(timed + "repeats = 1000000\n"), StartsWith("fleet.toml:3: workload.repeats: "));
  EXPECT_THAT(fault(timed, {"workload.speed=1e-6", "workload.jitter_s=9"}), HasSubstr("workload.trace: "));
  const std::string far = trace_config("arrival_s,prompt_tokens,output_tokens\n0,1000,10\n1.7e9,2000,20\n");
  EXPECT_THAT(fault(far),
              AllOf(StartsWith("fleet.toml:2: workload.trace: "), HasSubstr("after 1.7e+09 s"),
                    HasSubstr("arrivals count from 0, and the first is at 0 s: earlier or fewer requests, or")));
  EXPECT_EQ(fault(far, {"workload.requests_max=1"}), "");
  const std::string epoch = trace_config("timestamp,prompt_tokens,output_tokens\n1.7e9,1000,10\n1.7e9,2000,20\n");
  EXPECT_THAT(fault(epoch, {"workload.requests_max=1"}), HasSubstr("the first is at 1.7e+09 s: earlier"));
}

TEST_F(Workload, SaysWhenTheFleetIsNotDoneByTheEndOfTheClock) {
  const auto slow = run(read(kPoisson, {"engine.base_ms=100000", "workload.output_tokens=100000", "workload.at_once=4",
                                        "workload.duration_s=1", "engine.seqs_max=1"}));
  ASSERT_TRUE(slow);
  EXPECT_THAT(*slow, HasSubstr("is not done with it after 9000000 s"));
}

TEST_F(Workload, LengthsWithoutArrivalsTakeARate) {
  const SimConfig config = read(trace_config(kRows), {"workload.rate=0.5"});
  EXPECT_EQ(config.trace.rate, 0.5);
  EXPECT_THAT(fault(trace_config(kTimedRows), {"workload.rate=0.5"}), HasSubstr("has arrivals of its own"));
}

TEST_F(Workload, LeavesSomethingToCountOrSaysWhyNot) {
  EXPECT_EQ(run(read(kPoisson)), std::nullopt);
  const auto small = run(read(kPoisson, {"engine.kv_tokens=1024"}));
  ASSERT_TRUE(small);
  EXPECT_THAT(*small, AllOf(HasSubstr("engine.kv_tokens = 1024: none of the"), HasSubstr("1200 tokens with its answer"),
                            HasSubstr("x 262144 B = 0.315 GB"), HasSubstr("has 0.268 GB")));
  const auto early = run(read(kPoisson, {"fleet.warmup_s=1000"}));
  ASSERT_TRUE(early);
  EXPECT_THAT(*early, AllOf(HasSubstr("fleet.warmup_s = 1000: all"), HasSubstr("arrive earlier")));
}

TEST_F(Workload, IsTheSameWhenItIsWatched) {
  SimConfig config = read(kPoisson);
  const TraceShelf shelf;
  const auto source = make_source(config, shelf);
  const auto again = make_source(config, shelf);
  ASSERT_TRUE(source && again);
  WatchedSource watched(**again, "simulating");
  EXPECT_EQ(watched.unit_tokens(), (*source)->unit_tokens());
  EXPECT_EQ(watched.expected(), 40);
  sim::Arrival a;
  sim::Arrival b;
  while ((*source)->next(a)) {
    ASSERT_TRUE(watched.next(b));
    EXPECT_EQ(a.time, b.time);
  }
  EXPECT_FALSE(watched.next(b));
}

}  // namespace
}  // namespace kvd::cmd
