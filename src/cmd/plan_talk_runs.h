// The talk's set-ups simulated (sim/talk_loop.h): several seeds, the same ones for vanilla and depot, on several
// threads. What comes out does not depend on how many. Blocks for seconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cmd/plan_talk.h"
#include "sim/interval.h"
#include "sim/talk_loop.h"

namespace kvd::cmd {

// One arm at so many clients: means over seeds with their 95 % intervals.
struct TalkRun {
  sim::Interval ttft_s;
  sim::Interval tpot_s;
  sim::Interval requests_per_s;  // of a GPU
  double preemptions = 0;        // a run
  double prompt_mean = 0;
  double loaded_share = 0;  // of prompt tokens, from the depot
  double little_error = 0;  // of its runs at most (sim/talk_loop.h)
};

struct TalkClients {
  std::uint32_t clients = 0;
  TalkRun vanilla;
  TalkRun depot;
  sim::Interval gain;  // requests/s with the depot over those without, seed by seed
};

// A set-up over its clients. `plain`: the closed form's own traffic (prompts of the mean length, all with its reuse)
// instead of conversations.
struct TalkSeries {
  std::string setup;
  bool plain = false;
  std::vector<TalkClients> points;  // over kTalkClients
};
inline constexpr std::array<std::uint32_t, 9> kTalkClients{1, 2, 4, 8, 16, 32, 64, 128, 256};

// The most clients whose mean TTFT and TPOT are inside kTalkSla, at one prompt length of the first set-up.
struct TalkSla {
  std::uint32_t prompt_tokens = 0;
  bool memory = false;  // as it is; otherwise there is always enough, as the closed form assumes
  sim::Interval vanilla;
  sim::Interval depot;
};
inline constexpr std::array<std::uint32_t, 8> kTalkPrompts{100, 500, 1000, 1500, 2000, 2500, 3000, 3500};
inline constexpr std::uint32_t kTalkClientsMax = 1024;

struct TalkRuns {
  unsigned seeds = 0;
  std::vector<TalkSeries> series{};
  std::vector<TalkSla> sla{};
};

// `progress` is told, on the calling thread, how many of all jobs are done. Requires at least one seed and one thread.
[[nodiscard]] TalkRuns run_talk(const std::vector<TalkSetup>& setups, unsigned seeds, unsigned threads,
                                const std::function<void(std::size_t done, std::size_t all)>& progress);

// One run. `memory_bytes`: of the replica, for KV.
[[nodiscard]] sim::TalkPoint simulate(const TalkSetup& setup, sim::TalkTraffic traffic, bool depot, double memory_bytes,
                                      std::uint64_t seed);
// The closed form's own traffic for a set-up.
[[nodiscard]] sim::TalkTraffic plain_traffic(const TalkSetup& setup);
// The most clients within kTalkSla, 0 = not even one; `memory`: as in TalkSla.
[[nodiscard]] std::uint32_t clients_within(const TalkSetup& setup, std::uint32_t prompt_tokens, bool depot, bool memory,
                                           std::uint64_t seed);

}  // namespace kvd::cmd
