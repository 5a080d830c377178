#include "cmd/plan_talk_runs.h"

#include <algorithm>

#include "base/check.h"
#include "cmd/run_jobs.h"

namespace kvd::cmd {
namespace {

// Requests of a run: a client has at least 20 of them, of which a quarter is warm-up.
constexpr std::uint32_t kRequestsMin = 200;
constexpr std::uint32_t kRequestsPerClient = 20;
// Tokens of an answer that memory is kept for where there is always enough: an answer of mean 64 is longer once in
// ten million.
constexpr double kAnswerTokens = 1024;

void set_clients(sim::TalkTraffic& traffic, std::uint32_t clients) {
  traffic.clients = clients;
  traffic.requests = std::max(kRequestsMin, kRequestsPerClient * clients);
}

// One arm over all seeds.
struct Arm {
  std::vector<double> ttft_s;
  std::vector<double> tpot_s;
  std::vector<double> requests_per_s;
  TalkRun run;
};

Arm run_arm(const TalkSetup& setup, const sim::TalkTraffic& traffic, bool depot, unsigned seeds) {
  Arm arm;
  for (unsigned seed = 1; seed <= seeds; ++seed) {
    const sim::TalkPoint p = simulate(setup, traffic, depot, setup.memory_for_kv_bytes, seed);
    arm.ttft_s.push_back(p.ttft_s);
    arm.tpot_s.push_back(p.tpot_s);
    arm.requests_per_s.push_back(p.requests_per_s / setup.gpus);
    arm.run.preemptions += static_cast<double>(p.preemptions) / seeds;
    arm.run.prompt_mean += p.prompt_mean / seeds;
    arm.run.loaded_share += p.loaded_share / seeds;
    arm.run.little_error = std::max(arm.run.little_error, p.little_error);
  }
  arm.run.ttft_s = sim::interval(arm.ttft_s);
  arm.run.tpot_s = sim::interval(arm.tpot_s);
  arm.run.requests_per_s = sim::interval(arm.requests_per_s);
  return arm;
}

TalkClients run_clients(const TalkSetup& setup, sim::TalkTraffic traffic, std::uint32_t clients, unsigned seeds) {
  set_clients(traffic, clients);
  const Arm vanilla = run_arm(setup, traffic, false, seeds);
  const Arm depot = run_arm(setup, traffic, true, seeds);
  std::vector<double> gains;
  for (unsigned i = 0; i < seeds; ++i) gains.push_back(depot.requests_per_s[i] / vanilla.requests_per_s[i]);
  return {clients, vanilla.run, depot.run, sim::interval(gains)};
}

TalkSla run_sla(const TalkSetup& setup, std::uint32_t prompt_tokens, bool memory, unsigned seeds) {
  std::vector<double> vanilla;
  std::vector<double> depot;
  for (unsigned seed = 1; seed <= seeds; ++seed) {
    vanilla.push_back(clients_within(setup, prompt_tokens, false, memory, seed));
    depot.push_back(clients_within(setup, prompt_tokens, true, memory, seed));
  }
  return {prompt_tokens, memory, sim::interval(vanilla), sim::interval(depot)};
}

}  // namespace

sim::TalkPoint simulate(const TalkSetup& setup, sim::TalkTraffic traffic, bool depot, double memory_bytes,
                        std::uint64_t seed) {
  const model::Replica& r = setup.replica;
  const double block_bytes = r.kv_token_bytes * sim::kTalkBlockTokens;
  const sim::TalkEngine engine{.step_s = r.tpot_one_s,
                               .token_s = r.token_flops / r.flops_per_s,
                               .pair_s = r.attention.front().pair_flops / r.flops_per_s,
                               .context_token_s = r.kv_token_bytes / r.memory_bytes_per_s,
                               .read_token_s = r.kv_token_bytes / setup.store.read_bytes_per_s,
                               .reuse = depot ? setup.workload.reuse : 0,
                               .blocks = static_cast<std::uint32_t>(memory_bytes / block_bytes),
                               .layers = setup.layers};
  return sim::talk_loop(engine, traffic, seed);
}

sim::TalkTraffic plain_traffic(const TalkSetup& setup) {
  const auto tokens = static_cast<std::uint32_t>(setup.workload.prompt_tokens);
  return {.prompt_min = tokens, .prompt_max = tokens, .output_mean = setup.workload.output_tokens};
}

std::uint32_t clients_within(const TalkSetup& setup, std::uint32_t prompt_tokens, bool depot, bool memory,
                             std::uint64_t seed) {
  sim::TalkTraffic traffic = plain_traffic(setup);
  traffic.prompt_min = traffic.prompt_max = prompt_tokens;
  const auto inside = [&](std::uint32_t clients) {
    set_clients(traffic, clients);
    const double ample = (clients + 8) * (prompt_tokens + kAnswerTokens) * setup.replica.kv_token_bytes;
    const sim::TalkPoint p = simulate(setup, traffic, depot, memory ? setup.memory_for_kv_bytes : ample, seed);
    return p.ttft_s <= kTalkSla.ttft_s && p.tpot_s <= kTalkSla.tpot_s;
  };
  if (!inside(1)) return 0;
  std::uint32_t low = 1;
  std::uint32_t high = 2;
  while (high < kTalkClientsMax && inside(high)) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    (inside(middle) ? low : high) = middle;
  }
  return low;
}

TalkRuns run_talk(const std::vector<TalkSetup>& setups, unsigned seeds, unsigned threads,
                  const std::function<void(std::size_t done, std::size_t all)>& progress) {
  KVD_CHECK(seeds > 0 && !setups.empty());
  TalkRuns runs{.seeds = seeds};
  for (const TalkSetup& setup : setups) {
    const std::vector<TalkClients> empty(kTalkClients.size());
    runs.series.push_back({setup.name, false, empty});
    if (setup.traffic.turns_max > 1) runs.series.push_back({setup.name, true, empty});
  }
  runs.sla.resize(2 * kTalkPrompts.size());
  std::vector<std::function<void()>> jobs;
  for (TalkSeries& series : runs.series) {
    const TalkSetup& setup = *std::ranges::find(setups, series.setup, &TalkSetup::name);
    for (std::size_t i = 0; i < kTalkClients.size(); ++i) {
      jobs.emplace_back([&series, &setup, i, seeds] {
        const sim::TalkTraffic traffic = series.plain ? plain_traffic(setup) : setup.traffic;
        series.points[i] = run_clients(setup, traffic, kTalkClients.at(i), seeds);
      });
    }
  }
  for (std::size_t i = 0; i < runs.sla.size(); ++i) {
    jobs.emplace_back([&runs, &setups, i, seeds] {
      runs.sla[i] = run_sla(setups.front(), kTalkPrompts.at(i / 2), i % 2 == 1, seeds);
    });
  }
  run_jobs(jobs.size(), threads, [&](std::size_t i) { jobs[i](); }, progress);
  return runs;
}

}  // namespace kvd::cmd
