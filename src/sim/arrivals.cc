#include "sim/arrivals.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/random.h"

namespace kvd::sim {

namespace {

model::Picoseconds ps(double seconds) { return std::llround(seconds * model::kPicosecondsPerSecond); }

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
        events_.push_back({ps(at / options.speed), i, copy});
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

class SharedPrefixSource final : public ArrivalSource {
 public:
  explicit SharedPrefixSource(const SharedPrefixOptions& options) : options_(options), random_(options.seed) {
    unit_ = std::gcd(options.shared_tokens, options.own_tokens);
    const std::uint32_t shared = options.shared_tokens / unit_;
    const std::uint32_t own = options.own_tokens / unit_;
    units_ = shared + own;
    sched::UnitId fresh = 0;
    for (std::uint32_t group = 0; group < options.groups; ++group) {
      const sched::UnitId head = fresh;
      fresh += shared;
      for (std::uint32_t prompt = 0; prompt < options.prompts; ++prompt) {
        for (std::uint32_t i = 0; i < shared; ++i) ids_.push_back(head + i);
        for (std::uint32_t i = 0; i < own; ++i) ids_.push_back(fresh++);
      }
    }
    for (const auto& stage : options.stages) {
      ends_.push_back((ends_.empty() ? 0 : ends_.back() + options.gap_s) + stage.seconds);
    }
  }

  // Poisson within a stage: a gap that crosses its end is cut there, which an exponential gap does not notice.
  bool next(Arrival& out) override {
    for (;;) {
      if (stage_ == ends_.size()) return false;
      now_ -= std::log1p(-random_.uniform()) / options_.stages[stage_].rate;
      if (now_ < ends_[stage_]) break;
      now_ = ends_[stage_++] + options_.gap_s;
    }
    const auto prompt = static_cast<std::uint32_t>(random_.below(options_.groups * options_.prompts));
    out.time = ps(now_);
    out.units = {ids_.data() + static_cast<std::size_t>(prompt) * units_, units_, 0};
    out.prompt = options_.shared_tokens + options_.own_tokens;
    out.output = options_.output;
    return true;
  }
  std::uint32_t unit_tokens() const override { return unit_; }

 private:
  SharedPrefixOptions options_;
  Random random_;
  std::uint32_t unit_ = 1;
  std::uint32_t units_ = 0;
  std::vector<sched::UnitId> ids_;
  std::vector<double> ends_;
  std::size_t stage_ = 0;
  double now_ = 0;
};

}  // namespace

std::unique_ptr<ArrivalSource> trace_source(const trace::Trace& trace, const TraceOptions& options) {
  return std::make_unique<TraceSource>(trace, options);
}

std::unique_ptr<ArrivalSource> shared_prefix_source(const SharedPrefixOptions& options) {
  return std::make_unique<SharedPrefixSource>(options);
}

}  // namespace kvd::sim
