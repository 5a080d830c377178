#include "sim/arrivals.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/random.h"

namespace kvd::sim {

namespace {

constexpr std::uint32_t kOwnUnitTokens = 512;  // of a prompt that shares nothing

std::uint32_t own_units(std::uint32_t prompt) { return (prompt + kOwnUnitTokens - 1) / kOwnUnitTokens; }

// Repeats from which requests are taken at all.
std::uint64_t repeats_used(const trace::Trace& trace, const TraceOptions& options) {
  const std::uint64_t each = std::max<std::uint64_t>(1, std::uint64_t{options.copies} * trace.requests.size());
  if (options.requests_max == 0) return options.repeats;
  return std::min<std::uint64_t>(options.repeats, (options.requests_max - 1) / each + 1);
}

// From a repeat to the next: the last request is followed by a mean gap.
double period_s(const trace::Trace& trace) {
  const auto count = static_cast<double>(trace.requests.size());
  return count > 1 ? std::min(trace.span_s() * count / (count - 1), 1e300) : 0;  // a number, whatever the span
}

// When the last request that is sent was to come by the trace's own clock. Jitter only delays: the n-th to come is not
// later than all of the jitter behind the n-th that is drawn.
double last_drawn_s(const trace::Trace& trace, const TraceOptions& options) {
  const std::uint64_t count = trace.requests.size();
  std::uint64_t last = options.repeats * count - 1;  // all copies of a request are drawn together
  if (options.requests_max > 0) last = std::min(last, (options.requests_max - 1) / options.copies);
  return static_cast<double>(last / count) * period_s(trace) + trace.requests[last % count].arrival_s;
}

// Draws arrivals in the order in which trace and repeats have them, and gives them out in the order that jitter makes
// of that: an arrival can go out when none that is still to be drawn may come before it.
class TraceSource final : public ArrivalSource {
 public:
  TraceSource(const trace::Trace& trace, const TraceOptions& options)
      : trace_(trace),
        options_(options),
        random_(options.seed),
        repeats_(repeats_used(trace, options)),
        period_s_(period_s(trace)) {
    KVD_CHECK(options.copies > 0 && options.speed > 0 && options.jitter_s >= 0 && !trace.requests.empty());
    KVD_CHECK(options.rate >= 0 && (options.repeats == 1 || options.rate > 0 || trace.span_s() > 0));
    KVD_CHECK(prefix_ids(trace, options) <= kPrefixIdsMax);
    KVD_CHECK(last_arrival_s(trace, options) <= kArrivalMaxS);
    if (options.rate > 0) next_arrival();
    if (trace.block_tokens > 0) return;
    std::uint32_t longest = 1;
    for (const trace::Request& r : trace.requests) longest = std::max(longest, r.prompt_tokens);
    own_ids_.resize(own_units(longest));
    std::iota(own_ids_.begin(), own_ids_.end(), 0U);
  }

  bool next(Arrival& out) override {
    if (options_.requests_max > 0 && sent_ == options_.requests_max) return false;
    while (repeat_ < repeats_ && (pending_.empty() || clock(drawn_to()) <= pending_.front().time)) {
      draw();
    }
    if (pending_.empty()) return false;
    std::ranges::pop_heap(pending_, kLater);
    const Event event = pending_.back();
    pending_.pop_back();
    ++sent_;
    const trace::Request& r = trace_.requests[event.request];
    out.time = event.time;
    out.prompt = r.prompt_tokens;
    out.output = std::max(1U, r.output_tokens);
    if (own_ids_.empty()) {
      const std::uint64_t copy =
          event.order / trace_.requests.size() / options_.copies * options_.copies + event.order % options_.copies;
      out.units = {trace_.block_ids.data() + r.first_block, r.blocks,
                   static_cast<std::uint32_t>(copy * trace_.distinct_blocks)};
    } else {
      out.units = {own_ids_.data(), own_units(r.prompt_tokens), fresh_};
      fresh_ += own_units(r.prompt_tokens);
    }
    return true;
  }

  std::uint32_t unit_tokens() const override { return own_ids_.empty() ? trace_.block_tokens : kOwnUnitTokens; }

  double expected() const override {
    const double all = static_cast<double>(trace_.requests.size()) * options_.copies * static_cast<double>(repeats_);
    return options_.requests_max == 0 ? all : std::min(all, static_cast<double>(options_.requests_max));
  }

 private:
  struct Event {
    model::Picoseconds time;
    std::uint64_t order;  // in which it was drawn
    std::uint32_t request;
  };
  static constexpr auto kLater = [](const Event& a, const Event& b) {
    return a.time != b.time ? a.time > b.time : a.order > b.order;
  };

  // What is not sent may come behind all that picoseconds hold.
  [[nodiscard]] model::Picoseconds clock(double trace_s) const {
    return model::picoseconds(std::min(trace_s / options_.speed, kArrivalMaxS + 1));
  }
  // When the next request to be drawn comes at the earliest, on the trace's clock.
  [[nodiscard]] double drawn_to() const {
    if (options_.rate > 0) return poisson_s_;
    return static_cast<double>(repeat_) * period_s_ + trace_.requests[request_].arrival_s;
  }
  void next_arrival() { poisson_s_ -= std::log1p(-random_.uniform()) / options_.rate; }

  // One request of the trace, for all copies.
  void draw() {
    for (std::uint32_t copy = 0; copy < options_.copies; ++copy) {
      const double jittered = drawn_to() + options_.jitter_s * random_.uniform();
      pending_.push_back({clock(jittered), order_++, request_});
      std::ranges::push_heap(pending_, kLater);
      if (options_.rate > 0) next_arrival();
    }
    if (++request_ == trace_.requests.size()) {
      request_ = 0;
      ++repeat_;
    }
  }

  const trace::Trace& trace_;
  TraceOptions options_;
  Random random_;
  std::uint64_t repeats_;
  double period_s_;                     // from a repeat to the next
  double poisson_s_ = 0;                // the next arrival, where there is a rate
  std::vector<sched::UnitId> own_ids_;  // of a prompt without shared blocks, for traces without ids
  std::vector<Event> pending_;          // heap, the earliest on top
  std::uint64_t order_ = 0;             // copies count fastest, then requests, then repeats
  std::uint64_t sent_ = 0;
  std::uint64_t repeat_ = 0;
  std::uint32_t request_ = 0;  // the next to be drawn
  std::uint32_t fresh_ = 0;    // prefix ids that requests of their own have used
};

}  // namespace

double prefix_ids(const trace::Trace& trace, const TraceOptions& options) {
  double each = trace.distinct_blocks;
  if (trace.block_tokens == 0) {
    for (const trace::Request& r : trace.requests) each += own_units(r.prompt_tokens);
  }
  return each * options.copies * static_cast<double>(repeats_used(trace, options));
}

double last_arrival_s(const trace::Trace& trace, const TraceOptions& options) {
  double last_s = 0;
  if (options.rate > 0) {
    double drawn =
        static_cast<double>(repeats_used(trace, options)) * options.copies * static_cast<double>(trace.requests.size());
    // Copies are drawn together.
    if (options.requests_max > 0) drawn = std::min(drawn, static_cast<double>(options.requests_max) + options.copies);
    last_s = gaps_most(drawn) / options.rate;
  } else {
    last_s = last_drawn_s(trace, options);
  }
  return (last_s + options.jitter_s) / options.speed;
}

std::unique_ptr<ArrivalSource> trace_source(const trace::Trace& trace, const TraceOptions& options) {
  return std::make_unique<TraceSource>(trace, options);
}

}  // namespace kvd::sim
