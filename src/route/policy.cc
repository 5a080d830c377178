#include "route/policy.h"

#include <algorithm>
#include <array>

#include "base/random.h"

namespace kvd::route {

namespace {

// The smallest value, taken in lanes that the compiler turns into vector instructions.
std::uint32_t lowest(std::span<const std::uint32_t> values) {
  constexpr std::size_t kLanes = 16;
  std::array<std::uint32_t, kLanes> lanes;
  lanes.fill(values[0]);
  const std::uint32_t* const at = values.data();
  const std::size_t whole = values.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const std::uint32_t value = at[i + lane];
      lanes[lane] = value < lanes[lane] ? value : lanes[lane];
    }
  }
  std::uint32_t low = *std::ranges::min_element(lanes);
  for (std::size_t i = whole; i < values.size(); ++i) low = std::min(low, at[i]);
  return low;
}

// The first of the smallest values. Fleets have thousands of instances and this runs once per request: looking the
// value up goes one by one, so it goes through the stretch that has it alone.
std::uint32_t least(std::span<const std::uint32_t> values) {
  constexpr std::size_t kStretch = 256;
  std::size_t begin = 0;
  std::uint32_t low = UINT32_MAX;
  for (std::size_t i = 0; i < values.size(); i += kStretch) {
    const std::uint32_t here = lowest(values.subspan(i, std::min(kStretch, values.size() - i)));
    if (here >= low) continue;
    low = here;
    begin = i;
  }
  const auto at = values.begin();
  return static_cast<std::uint32_t>(std::find(at + static_cast<std::ptrdiff_t>(begin), values.end(), low) - at);
}

class RandomPolicy final : public Policy {
 public:
  explicit RandomPolicy(std::uint64_t seed) : random_(seed) {}
  std::uint32_t pick(const FleetView& fleet, const PrefixMatch&) override {
    return static_cast<std::uint32_t>(random_.below(fleet.outstanding.size()));
  }

 private:
  Random random_;
};

class RoundRobin final : public Policy {
 public:
  std::uint32_t pick(const FleetView& fleet, const PrefixMatch&) override {
    next_ = next_ + 1 < fleet.outstanding.size() ? next_ + 1 : 0;
    return next_;
  }

 private:
  std::uint32_t next_ = UINT32_MAX - 1;  // so that the first pick is 0
};

class LeastRequest final : public Policy {
 public:
  std::uint32_t pick(const FleetView& fleet, const PrefixMatch&) override { return least(fleet.outstanding); }
};

// llm-d's queue-scorer and kv-cache-utilization-scorer with equal weights; ties are broken at random, as its picker
// shuffles first.
class Load final : public Policy {
 public:
  explicit Load(std::uint64_t seed) : random_(seed) {}
  bool reads_engines() const override { return true; }
  std::uint32_t pick(const FleetView& fleet, const PrefixMatch&) override {
    const auto [low, high] = std::ranges::minmax(fleet.waiting);
    double best = -1;
    std::uint32_t picked = 0;
    std::uint32_t ties = 0;
    for (std::uint32_t i = 0; i < fleet.waiting.size(); ++i) {
      const double queue = high == low ? 1 : double(high - fleet.waiting[i]) / double(high - low);
      const double score = queue + 1 - static_cast<double>(fleet.kv_used[i]);
      if (score > best) {
        best = score;
        picked = i;
        ties = 1;
      } else if (score == best && random_.below(++ties) == 0) {
        picked = i;
      }
    }
    return picked;
  }

 private:
  Random random_;
};

// SGLang's cache-aware rule, with its thresholds: while the load is balanced, the longest prefix if it is a fair share
// of the prompt (a prefix that all requests have says nothing), else the shortest queue.
class PrefixAffinity final : public Policy {
 public:
  bool reads_engines() const override { return true; }
  std::uint32_t pick(const FleetView& fleet, const PrefixMatch& prefix) override {
    const std::uint32_t idle = least(fleet.outstanding);
    const std::uint32_t low = fleet.outstanding[idle];
    const std::uint32_t high = *std::ranges::max_element(fleet.outstanding);
    if (high - low > kImbalance && high > kRatio * low) return idle;
    std::uint32_t best = idle;
    std::uint32_t longest = prefix.tokens(idle);
    for (std::uint32_t i = 0; i < fleet.outstanding.size(); ++i) {
      if (i == idle) continue;
      const std::uint32_t tokens = prefix.tokens(i);
      const bool better = tokens > longest || (tokens == longest && fleet.outstanding[i] < fleet.outstanding[best]);
      if (better) {
        longest = tokens;
        best = i;
      }
    }
    return longest > kMatchMin * prefix.prompt_tokens() ? best : idle;
  }

 private:
  static constexpr double kMatchMin = 0.3;         // of the prompt
  static constexpr std::uint32_t kImbalance = 64;  // requests between the fullest and the emptiest instance
  static constexpr double kRatio = 1.5;
};

}  // namespace

std::unique_ptr<Policy> make_policy(std::string_view name, std::uint64_t seed) {
  if (name == "random") return std::make_unique<RandomPolicy>(seed);
  if (name == "round-robin") return std::make_unique<RoundRobin>();
  if (name == "least-request") return std::make_unique<LeastRequest>();
  if (name == "load") return std::make_unique<Load>(seed);
  if (name == "prefix-affinity") return std::make_unique<PrefixAffinity>();
  return nullptr;
}

}  // namespace kvd::route
