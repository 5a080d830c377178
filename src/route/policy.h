// Which instance a request goes to. Pure and deterministic: the simulator and a gateway run the same code, so what is
// measured of a policy in simulation is said of the policy that ships. One owner, no locking, nothing is allocated per
// request.
//
// Built in, by name: random, round-robin, least-request (fewest unfinished requests), load (llm-d's queue 1 : KV 1),
// prefix-affinity (longest cached prefix where it is worth it, unless that instance is overloaded).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace kvd::route {

// The fleet as the router sees it, one element an instance.
struct FleetView {
  std::span<const std::uint32_t> outstanding;  // requests sent there and not finished
  std::span<const std::uint32_t> waiting;      // of which in the engine's queue
  std::span<const float> kv_used;              // share of its KV blocks in use, 0 to 1
};

// Answers how much of the request's prompt an instance has cached, in tokens.
class PrefixMatch {
 public:
  virtual ~PrefixMatch() = default;
  [[nodiscard]] virtual std::uint32_t tokens(std::uint32_t instance) const = 0;
  [[nodiscard]] virtual std::uint32_t prompt_tokens() const = 0;
};

class Policy {
 public:
  virtual ~Policy() = default;
  // The instance for one request; ties go to the lowest number, or to a seeded choice where the policy says so.
  // Requires at least one instance.
  virtual std::uint32_t pick(const FleetView& fleet, const PrefixMatch& prefix) = 0;
  // Reads queues, KV use or prefixes: the caller brings them up to date first. All policies read `outstanding`.
  [[nodiscard]] virtual bool reads_engines() const { return false; }
};

inline constexpr std::string_view kPolicyNames[] = {"random", "round-robin", "least-request", "load",
                                                    "prefix-affinity"};

// The policy of that name, nullptr when there is none.
std::unique_ptr<Policy> make_policy(std::string_view name, std::uint64_t seed);

}  // namespace kvd::route
