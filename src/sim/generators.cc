#include "sim/generators.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>

#include "base/check.h"

namespace kvd::sim {

namespace {

constexpr std::uint32_t kUnitTokens = 64;  // of sessions and requests that share nothing

double exponential(Random& random, double mean) { return -mean * std::log1p(-random.uniform()); }

// Mean number of Poisson arrivals in all stages.
double arrivals_of(const std::vector<Stage>& stages) {
  double sum = 0;
  for (const Stage& stage : stages) sum += stage.rate * stage.seconds;
  return sum;
}

// What a sum of a Poisson number of values does not exceed but once in 10^20 runs: ten standard deviations above its
// mean, and a few values more where there are few.
double most(double count, double value_mean, double value_max) {
  return count * value_mean + (10 * std::sqrt(count) + 50) * value_max;
}

// Poisson arrivals within stages: a gap that crosses a stage's end is cut there, which an exponential gap does not
// notice.
class StageClock {
 public:
  StageClock(std::vector<Stage> stages, double gap_s) : stages_(std::move(stages)), gap_s_(gap_s) {
    for (const Stage& stage : stages_) {
      KVD_CHECK(stage.rate > 0 && stage.seconds > 0);
      ends_.push_back((ends_.empty() ? 0 : ends_.back() + gap_s) + stage.seconds);
    }
    KVD_CHECK(ends_.empty() || ends_.back() <= kArrivalMaxS);
  }
  // The next arrival in seconds, negative behind the last stage.
  double next(Random& random) {
    while (stage_ < ends_.size()) {
      now_ -= std::log1p(-random.uniform()) / stages_[stage_].rate;
      if (now_ < ends_[stage_]) return now_;
      now_ = ends_[stage_++] + gap_s_;
    }
    return -1;
  }

 private:
  std::vector<Stage> stages_;
  std::vector<double> ends_;
  double gap_s_;
  std::size_t stage_ = 0;
  double now_ = 0;
};

class SharedPrefixSource final : public ArrivalSource {
 public:
  explicit SharedPrefixSource(const SharedPrefixOptions& options)
      : options_(options), random_(options.seed), clock_(options.stages, options.gap_s) {
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
  }

  bool next(Arrival& out) override {
    const double at = clock_.next(random_);
    if (at < 0) return false;
    const auto prompt = static_cast<std::uint32_t>(random_.below(options_.groups * options_.prompts));
    out.time = model::picoseconds(at);
    out.units = {ids_.data() + static_cast<std::size_t>(prompt) * units_, units_, 0};
    out.prompt = options_.shared_tokens + options_.own_tokens;
    out.output = options_.output;
    return true;
  }
  std::uint32_t unit_tokens() const override { return unit_; }
  double expected() const override { return arrivals_of(options_.stages); }

 private:
  SharedPrefixOptions options_;
  Random random_;
  StageClock clock_;
  std::uint32_t unit_ = 1;
  std::uint32_t units_ = 0;
  std::vector<sched::UnitId> ids_;
};

class PoissonSource final : public ArrivalSource {
 public:
  explicit PoissonSource(const PoissonOptions& options)
      : options_(options),
        random_(options.seed),
        clock_(options.stages, options.gap_s),
        ids_(options.prompt_max() / kUnitTokens + 1) {
    std::iota(ids_.begin(), ids_.end(), 0U);
  }

  bool next(Arrival& out) override {
    double at = 0;
    if (options_.at_once > 0) {
      if (sent_ == options_.at_once) return false;
    } else {
      at = clock_.next(random_);
      if (at < 0) return false;
    }
    ++sent_;
    out.time = model::picoseconds(at);
    if (options_.prompt_share > 0) {
      const std::uint32_t tokens = options_.total.draw(random_);
      out.prompt = options_.prompt_of(tokens);
      out.output = tokens - out.prompt;
    } else {
      out.prompt = options_.prompt.draw(random_);
      out.output = options_.output.draw(random_);
    }
    const std::uint32_t count = (out.prompt + kUnitTokens - 1) / kUnitTokens;
    out.units = {ids_.data(), count, fresh_};
    KVD_CHECK(fresh_ <= UINT32_MAX - count);
    fresh_ += count;
    return true;
  }
  std::uint32_t unit_tokens() const override { return kUnitTokens; }
  double expected() const override { return options_.at_once > 0 ? options_.at_once : arrivals_of(options_.stages); }

 private:
  PoissonOptions options_;
  Random random_;
  StageClock clock_;
  std::vector<sched::UnitId> ids_;  // 0, 1, ...: a request's own ones begin at its salt
  std::uint32_t fresh_ = 0;
  std::uint32_t sent_ = 0;
};

class SessionSource final : public ArrivalSource {
 public:
  explicit SessionSource(const SessionOptions& options)
      : options_(options),
        random_(options.seed),
        clock_(options.stages, options.gap_s),
        system_units_(options.system_tokens / kUnitTokens),
        fresh_(options.groups * system_units_),
        next_session_(clock_.next(random_)) {
    KVD_CHECK(last_arrival_s(options) <= kArrivalMaxS);
  }

  bool next(Arrival& out) override {
    for (;;) {
      const bool turn = !turns_.empty() && (next_session_ < 0 || turns_.front().time <= next_session_);
      if (turn) {
        take_turn(out);
        return true;
      }
      if (next_session_ < 0) return false;
      begin_session();
    }
  }
  std::uint32_t unit_tokens() const override { return kUnitTokens; }
  double expected() const override { return arrivals_of(options_.stages) * options_.turns.mean(); }

 private:
  struct Turn {
    double time;
    std::uint32_t prompt;
    std::uint32_t output;
    std::size_t session;
  };
  static constexpr auto kLater = [](const Turn& a, const Turn& b) {
    return a.time != b.time ? a.time > b.time : a.session > b.session;
  };

  // Draws the whole session, so that what comes later does not depend on how sessions interleave.
  void begin_session() {
    double time = next_session_;
    next_session_ = clock_.next(random_);
    const auto group = static_cast<std::uint32_t>(random_.below(options_.groups));
    const std::uint32_t turns = options_.turns.draw(random_);
    std::uint32_t prompt = options_.system_tokens;
    std::uint32_t longest = 0;
    for (std::uint32_t i = 0; i < turns; ++i) {
      prompt += options_.user.draw(random_);
      const std::uint32_t output = options_.output.draw(random_);
      const double pause = exponential(random_, options_.think_s);
      if (options_.context_tokens > 0 && prompt + output > options_.context_tokens) break;
      turns_.push_back({time, prompt, output, ids_.size()});
      std::ranges::push_heap(turns_, kLater);
      longest = prompt;
      prompt += output;
      time += pause;
    }
    const std::uint32_t units = (longest + kUnitTokens - 1) / kUnitTokens;
    KVD_CHECK(fresh_ < UINT32_MAX - units);
    std::vector<sched::UnitId>& ids = ids_.emplace_back(units);
    for (std::uint32_t i = 0; i < units; ++i) ids[i] = i < system_units_ ? group * system_units_ + i : fresh_++;
  }

  void take_turn(Arrival& out) {
    std::ranges::pop_heap(turns_, kLater);
    const Turn turn = turns_.back();
    turns_.pop_back();
    out.time = model::picoseconds(turn.time);
    out.prompt = turn.prompt;
    out.output = turn.output;
    out.units = {ids_[turn.session].data(), (turn.prompt + kUnitTokens - 1) / kUnitTokens, 0};
  }

  SessionOptions options_;
  Random random_;
  StageClock clock_;
  std::uint32_t system_units_;  // whole ones; what is left over belongs to the session
  std::uint32_t fresh_;
  double next_session_;
  std::vector<Turn> turns_;                     // of sessions that have begun; heap, the earliest on top
  std::deque<std::vector<sched::UnitId>> ids_;  // of each session, 4 bytes per 64 tokens; requests point there
};

}  // namespace

// By inversion of the continuous distribution: the integral of x^-theta from 1.
std::uint32_t TokenRange::draw(Random& random) const noexcept {
  if (low >= high) return low;
  const double u = random.uniform();
  const double ranks = static_cast<double>(high - low) + 1;
  const double power = 1 - theta;
  const double rank = std::pow((std::pow(ranks + 1, power) - 1) * u + 1, 1 / power);
  return low + std::min(high - low, static_cast<std::uint32_t>(rank - 1));
}

double TokenRange::mean() const noexcept {
  if (low >= high) return low;
  const double end = static_cast<double>(high - low) + 2;
  const double p = 1 - theta;
  const double rank = (std::pow(end, p + 1) - 1) / (p + 1) / ((std::pow(end, p) - 1) / p);
  return low + rank - 1.5;  // a rank from r to r + 1 is drawn as low + r - 1
}

std::uint32_t PoissonOptions::prompt_of(std::uint32_t tokens) const noexcept {
  return std::clamp(static_cast<std::uint32_t>(std::lround(tokens * prompt_share)), 1U, tokens - 1);
}

double listed_ids(const SharedPrefixOptions& options) {
  const double unit = std::gcd(options.shared_tokens, options.own_tokens);
  return 1.0 * options.groups * options.prompts * ((options.shared_tokens + 1.0 * options.own_tokens) / unit);
}

double prefix_ids(const PoissonOptions& options) {
  const double longest = options.prompt_max() / kUnitTokens + 1.0;
  if (options.at_once > 0) return options.at_once * longest;
  const double mean =
      options.prompt_share > 0 ? options.total.mean() * options.prompt_share + 1 : options.prompt.mean();
  return most(arrivals_of(options.stages), mean / kUnitTokens + 1, longest);
}

double prefix_ids(const SessionOptions& options) {
  const double system = 1.0 * options.groups * (options.system_tokens / kUnitTokens);
  const double turn_mean = (options.user.mean() + options.output.mean()) / kUnitTokens;
  const double turn_max = (1.0 * options.user.high + options.output.high) / kUnitTokens;
  return system +
         most(arrivals_of(options.stages), options.turns.mean() * turn_mean + 2, options.turns.high * turn_max + 2);
}

double end_of(const std::vector<Stage>& stages, double gap_s) {
  double end = gap_s * std::max(static_cast<double>(stages.size()) - 1, 0.0);
  for (const Stage& stage : stages) end += stage.seconds;
  return end;
}

double last_arrival_s(const SessionOptions& options) {
  const double end = end_of(options.stages, options.gap_s);
  return options.turns.high > 1 ? end + gaps_most(options.turns.high - 1.0) * options.think_s : end;
}

std::unique_ptr<ArrivalSource> shared_prefix_source(const SharedPrefixOptions& options) {
  return std::make_unique<SharedPrefixSource>(options);
}

std::unique_ptr<ArrivalSource> poisson_source(const PoissonOptions& options) {
  return std::make_unique<PoissonSource>(options);
}

std::unique_ptr<ArrivalSource> session_source(const SessionOptions& options) {
  return std::make_unique<SessionSource>(options);
}

}  // namespace kvd::sim
