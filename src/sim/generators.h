// Requests that are drawn instead of read: open loops, whose arrivals do not wait for answers. Arrivals are Poisson in
// stages of constant rate. Pure; the same options give the same requests on every machine.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/random.h"
#include "sim/arrivals.h"

namespace kvd::sim {

struct Stage {
  double rate = 0;  // arrivals a second, above 0
  double seconds = 0;
};

// When the last stage ends, with `gap_s` of idle time between stages; at most kArrivalMaxS is taken.
[[nodiscard]] double end_of(const std::vector<Stage>& stages, double gap_s);

// A length in tokens: from low to high with probability falling as rank^-theta, rank 1 = low. Theta 0 is uniform, 0.6
// the IPDPS'25 study's Zipf; low = high is fixed.
struct TokenRange {
  std::uint32_t low = 1;
  std::uint32_t high = 1;
  double theta = 0;  // 0 <= theta < 1
  [[nodiscard]] std::uint32_t draw(Random& random) const noexcept;
  [[nodiscard]] double mean() const noexcept;  // of the continuous distribution that is drawn from
};

// llm-d's shared-prefix benchmark: groups of prompts with a common head.
struct SharedPrefixOptions {
  std::uint32_t groups = 150;
  std::uint32_t prompts = 5;  // a group
  std::uint32_t shared_tokens = 6000;
  std::uint32_t own_tokens = 1200;
  std::uint32_t output = 1000;
  std::vector<Stage> stages{};
  double gap_s = 0;  // idle time between stages, for the last requests of one to end
  std::uint64_t seed = 1;
};
// Requires that a common divisor of both lengths is a whole number of blocks; unit_tokens() says which.
std::unique_ptr<ArrivalSource> shared_prefix_source(const SharedPrefixOptions& options);
// How many ids all prompts are listed with, 4 bytes each; at most kListedIdsMax are taken.
[[nodiscard]] double listed_ids(const SharedPrefixOptions& options);
inline constexpr double kListedIdsMax = 268435456;  // 1 GiB

// Requests that share nothing.
struct PoissonOptions {
  TokenRange prompt{1000, 1000};
  TokenRange output{200, 200};
  // Where prompt_share > 0: a request's prompt and answer together, instead of each by itself, and which part of them
  // is the prompt, as the IPDPS'25 study draws them (a third, or 20 of 21). Both have a token at least: total.low >= 2.
  TokenRange total{2, 2};
  double prompt_share = 0;  // < 1
  std::vector<Stage> stages{};
  double gap_s = 0;
  std::uint32_t at_once = 0;  // this many at time 0 instead of stages
  std::uint64_t seed = 1;
  // Tokens of the prompt in `tokens` of both.
  [[nodiscard]] std::uint32_t prompt_of(std::uint32_t tokens) const noexcept;
  [[nodiscard]] std::uint32_t prompt_max() const noexcept {
    return prompt_share > 0 ? prompt_of(total.high) : prompt.high;
  }
};
std::unique_ptr<ArrivalSource> poisson_source(const PoissonOptions& options);
// Prefix ids that the requests need at most, but for one run in 10^20; at most kPrefixIdsMax fit.
[[nodiscard]] double prefix_ids(const PoissonOptions& options);

// Conversations: a session begins, each of its turns sends all that was said before and something new, and the next
// turn comes an exponential time after this one (an open loop: also when the answer is not there yet). All sessions of
// a group begin with the same system prompt. Answers are part of later prompts; the engine has computed their KV in
// decodes, which its prefix cache does not keep here, so each turn computes the last answer again.
struct SessionOptions {
  std::vector<Stage> stages{};  // of sessions
  double gap_s = 0;
  std::uint32_t groups = 1;          // system prompts
  std::uint32_t system_tokens = 0;   // of each
  TokenRange turns{1, 1};            // of a session
  TokenRange user{200, 200};         // new tokens of a turn
  TokenRange output{200, 200};       // of a turn
  double think_s = 60;               // mean time between a session's turns
  std::uint32_t context_tokens = 0;  // a session ends before a turn that would be longer; 0 = unbounded
  std::uint64_t seed = 1;
};
// Prefixes are told apart in units of unit_tokens(): 64.
std::unique_ptr<ArrivalSource> session_source(const SessionOptions& options);
// As above.
[[nodiscard]] double prefix_ids(const SessionOptions& options);
// When a turn may come at the latest, but for one session in 10^20; at most kArrivalMaxS is taken.
[[nodiscard]] double last_arrival_s(const SessionOptions& options);

}  // namespace kvd::sim
