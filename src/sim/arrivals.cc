#include "sim/arrivals.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/random.h"

namespace kvd::sim {

namespace {

class TraceSource final : public ArrivalSource {
 public:
  TraceSource(const trace::Trace& trace, const TraceOptions& options) : trace_(trace) {
    KVD_CHECK(options.copies > 0 && options.speed > 0);
    Random random(options.seed);
    const std::size_t count = trace.requests.size();
    events_.reserve(count * options.copies);
    for (std::uint32_t copy = 0; copy < options.copies; ++copy) {
      for (std::uint32_t i = 0; i < count; ++i) {
        const double at = trace.requests[i].arrival_s + options.jitter_s * random.uniform();
        events_.push_back({model::picoseconds(at / options.speed), i, copy});
      }
    }
    std::ranges::stable_sort(events_, {}, &Event::time);
    if (options.requests_max > 0 && events_.size() > options.requests_max) events_.resize(options.requests_max);
    if (trace.block_tokens > 0) return;
    std::uint32_t longest = 1;
    for (const trace::Request& r : trace.requests) longest = std::max(longest, r.prompt_tokens);
    own_ids_.resize(longest / kOwnUnitTokens + 1);
    std::iota(own_ids_.begin(), own_ids_.end(), 0U);
  }

  bool next(Arrival& out) override {
    if (at_ == events_.size()) return false;
    const Event& event = events_[at_++];
    const trace::Request& r = trace_.requests[event.request];
    out.time = event.time;
    out.prompt = r.prompt_tokens;
    out.output = std::max(1U, r.output_tokens);
    if (own_ids_.empty()) {
      out.units = {trace_.block_ids.data() + r.first_block, r.blocks, event.copy * trace_.distinct_blocks};
    } else {
      const std::uint32_t count = (r.prompt_tokens + kOwnUnitTokens - 1) / kOwnUnitTokens;
      out.units = {own_ids_.data(), count, static_cast<std::uint32_t>(at_ * own_ids_.size())};
    }
    return true;
  }
  std::uint32_t unit_tokens() const override { return own_ids_.empty() ? trace_.block_tokens : kOwnUnitTokens; }

 private:
  static constexpr std::uint32_t kOwnUnitTokens = 512;
  struct Event {
    model::Picoseconds time;
    std::uint32_t request;
    std::uint32_t copy;
  };
  const trace::Trace& trace_;
  std::vector<Event> events_;
  std::vector<sched::UnitId> own_ids_;  // of a prompt without shared blocks, for traces without ids
  std::size_t at_ = 0;
};

}  // namespace

std::unique_ptr<ArrivalSource> trace_source(const trace::Trace& trace, const TraceOptions& options) {
  return std::make_unique<TraceSource>(trace, options);
}

}  // namespace kvd::sim
