// Traces as workloads: copies and repeats are whole, told apart, in order, and as many as were asked for.
#include "sim/arrivals.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace kvd::sim {
namespace {

constexpr std::uint32_t kRequests = 40;
constexpr double kGap = 2;  // s from arrival to arrival, all equal

// Each request has a block of its own behind one that all share; ids 0 .. kRequests.
trace::Trace make_trace(bool ids = true) {
  trace::Trace trace;
  trace.timed = true;
  trace.block_tokens = ids ? 512 : 0;
  for (std::uint32_t i = 0; i < kRequests; ++i) {
    trace.requests.push_back({i * kGap, 1000 + i, i % 3, 2 * i, ids ? 2U : 0U});
    if (!ids) continue;
    trace.block_ids.push_back(0);
    trace.block_ids.push_back(1 + i);
  }
  trace.distinct_blocks = ids ? 1 + kRequests : 0;
  return trace;
}

struct Sent {
  double time;
  std::uint32_t prompt;
  std::uint32_t output;
  std::vector<sched::UnitId> ids;
};

std::vector<Sent> draw(const trace::Trace& trace, const TraceOptions& options) {
  const auto source = trace_source(trace, options);
  std::vector<Sent> all;
  Arrival a;
  while (source->next(a)) {
    Sent s{static_cast<double>(a.time) / model::kPicosecondsPerSecond, a.prompt, a.output, {}};
    for (std::uint32_t i = 0; i < a.units.count; ++i) s.ids.push_back(a.units[i]);
    all.push_back(std::move(s));
  }
  EXPECT_EQ(static_cast<double>(all.size()), source->expected());
  return all;
}

TEST(TraceSource, IsTheTraceWhereNothingElseIsAskedFor) {
  const trace::Trace trace = make_trace();
  const std::vector<Sent> all = draw(trace, {});
  ASSERT_EQ(all.size(), trace.requests.size());
  for (std::uint32_t i = 0; i < kRequests; ++i) {
    EXPECT_EQ(all[i].time, trace.requests[i].arrival_s);
    EXPECT_EQ(all[i].prompt, trace.requests[i].prompt_tokens);
    EXPECT_EQ(all[i].output, std::max(1U, trace.requests[i].output_tokens)) << "a last pass makes a token";
    EXPECT_EQ(all[i].ids, (std::vector<sched::UnitId>{0, 1 + i}));
  }
}

TEST(TraceSource, SendsEveryCopyOfEveryRepeatInOrder) {
  const trace::Trace trace = make_trace();
  constexpr std::uint32_t kCopies = 7;
  constexpr std::uint32_t kRepeats = 5;
  constexpr double kJitter = 3 * kGap;  // reaches over several requests, and into the next repeat
  const std::vector<Sent> all =
      draw(trace, {.copies = kCopies, .repeats = kRepeats, .speed = 2, .jitter_s = kJitter, .seed = 3});
  ASSERT_EQ(all.size(), std::size_t{kCopies} * kRepeats * kRequests);
  std::map<sched::UnitId, std::uint32_t> shared;           // how often each copy's common block was sent
  std::set<std::pair<sched::UnitId, std::uint32_t>> seen;  // common block and request
  std::map<sched::UnitId, std::vector<double>> jitters;    // by common block
  for (std::size_t k = 0; k < all.size(); ++k) {
    const Sent& s = all[k];
    EXPECT_LE(all[k == 0 ? 0 : k - 1].time, s.time);
    const std::uint32_t i = s.prompt - 1000;
    EXPECT_EQ(s.ids[0] % trace.distinct_blocks, 0U);
    EXPECT_EQ(s.ids[1] - s.ids[0], 1 + i) << "ids of one copy move together";
    EXPECT_TRUE(seen.emplace(s.ids[0], i).second) << "twice";
    const std::uint32_t repeat = s.ids[0] / trace.distinct_blocks / kCopies;
    const double jitter = 2 * s.time - (repeat * kRequests + i) * kGap;
    EXPECT_GE(jitter, -1e-9);
    EXPECT_LE(jitter, kJitter + 1e-9);
    jitters[s.ids[0]].push_back(jitter);
    ++shared[s.ids[0]];
  }
  ASSERT_EQ(shared.size(), std::size_t{kCopies} * kRepeats) << "each has ids of its own";
  for (const auto& [id, count] : shared) EXPECT_EQ(count, kRequests);
  for (const auto& [id, of] : jitters) {
    EXPECT_EQ(of == jitters[0], id == 0) << "the jitter of copy and repeat " << id << " is another's";
  }
}

TEST(TraceSource, EndsAtTheNumberOfRequestsThatIsAskedFor) {
  const trace::Trace trace = make_trace();
  TraceOptions options{.copies = 3, .repeats = 100, .jitter_s = 5, .requests_max = 3 * kRequests + 1};
  const std::vector<Sent> some = draw(trace, options);
  ASSERT_EQ(some.size(), options.requests_max);
  EXPECT_EQ(prefix_ids(trace, options), 2.0 * 3 * trace.distinct_blocks) << "of the repeats that are begun";
  options.requests_max = 0;
  options.repeats = 2;
  const std::vector<Sent> all = draw(trace, options);
  ASSERT_GT(all.size(), some.size());
  for (std::size_t k = 0; k < some.size(); ++k) EXPECT_EQ(some[k].ids, all[k].ids);
}

TEST(TraceSource, SaysWhenTheLastRequestThatIsAskedForComes) {
  const trace::Trace trace = make_trace();
  EXPECT_EQ(last_arrival_s(trace, {}), (kRequests - 1) * kGap);
  EXPECT_EQ(last_arrival_s(trace, {.copies = 3, .requests_max = 9}), 2 * kGap);
  EXPECT_EQ(last_arrival_s(trace, {.copies = 3, .requests_max = 10}), 3 * kGap);
  EXPECT_EQ(last_arrival_s(trace, {.repeats = 2, .requests_max = UINT64_MAX}), (2 * kRequests - 1) * kGap);
  for (const double jitter : {0.0, 5 * kGap}) {
    for (std::uint64_t count = 1; count <= 5 * kRequests; count += 7) {
      const TraceOptions options{.copies = 2, .repeats = 3, .speed = 0.5, .jitter_s = jitter, .requests_max = count};
      const double last = draw(trace, options).back().time;
      EXPECT_LE(last, last_arrival_s(trace, options)) << count;
      EXPECT_GE(last, last_arrival_s(trace, options) - jitter / options.speed) << count;
    }
  }
}

TEST(TraceSource, LeavesOutWhatComesBehindTheClock) {
  trace::Trace trace = make_trace();
  TraceOptions options{.copies = 2, .requests_max = 2 * (kRequests - 1)};
  for (const double far : {1.7e9, 1e300}) {  // picoseconds that 64 bits do not hold
    trace.requests.back().arrival_s = far;
    options.requests_max = 2 * (kRequests - 1);
    for (const double jitter : {0.0, 5 * kGap}) {
      options.jitter_s = jitter;
      const std::vector<Sent> all = draw(trace, options);
      ASSERT_EQ(all.size(), options.requests_max);
      EXPECT_LE(all.back().time, (kRequests - 2) * kGap + jitter);
      for (const Sent& s : all) EXPECT_LT(s.prompt, 1000 + kRequests - 1);
    }
    ++options.requests_max;
    EXPECT_GT(last_arrival_s(trace, options), kArrivalMaxS);
  }
}

TEST(TraceSource, WithoutIdsGivesEveryRequestItsOwn) {
  const trace::Trace trace = make_trace(false);
  const TraceOptions options{.copies = 4, .repeats = 3, .jitter_s = 5};
  const std::vector<Sent> all = draw(trace, options);
  std::set<sched::UnitId> ids;
  for (const Sent& s : all) {
    EXPECT_EQ(s.ids.size(), (s.prompt + 511) / 512);
    for (const sched::UnitId id : s.ids) EXPECT_TRUE(ids.insert(id).second);
  }
  EXPECT_EQ(static_cast<double>(ids.size()), prefix_ids(trace, options));
}

TEST(TraceSource, ARateMakesPoissonArrivals) {
  const trace::Trace trace = make_trace(false);
  TraceOptions options{.copies = 2, .repeats = 50, .speed = 2, .rate = 5};
  const std::vector<Sent> all = draw(trace, options);
  ASSERT_EQ(all.size(), 100 * kRequests);
  double squares = 0;
  for (std::size_t k = 0; k < all.size(); ++k) {
    const double gap = all[k].time - (k == 0 ? 0 : all[k - 1].time);
    EXPECT_GT(gap, 0);
    squares += gap * gap;
    EXPECT_EQ(all[k].prompt, 1000 + k / 2 % kRequests) << "in the trace's order";
  }
  const double mean = all.back().time / static_cast<double>(all.size());
  EXPECT_NEAR(mean, 0.1, 0.006);
  EXPECT_NEAR(squares / static_cast<double>(all.size()), 2 * mean * mean, 0.002);
  options.seed = 2;
  EXPECT_NE(draw(trace, options).front().time, all.front().time);
}

TEST(TraceSourceDeathTest, RefusesMoreIdsThanThereAre) {
  const trace::Trace trace = make_trace();
  const TraceOptions fits{.copies = 1000, .repeats = 104'000};
  EXPECT_LE(prefix_ids(trace, fits), kPrefixIdsMax);
  EXPECT_NE(trace_source(trace, fits), nullptr);
  const TraceOptions many{.copies = 1000, .repeats = 105'000};
  EXPECT_GT(prefix_ids(trace, many), kPrefixIdsMax);
  EXPECT_DEATH(trace_source(trace, many), "check failed");
}

}  // namespace
}  // namespace kvd::sim
