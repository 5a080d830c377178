#include "cmd/sim_ablate.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvd::cmd {

namespace {

using sim::Tier;
using sim::TierConfig;

bool any_tier(const SimConfig& c, bool (*test)(const TierConfig&)) {
  return std::ranges::any_of(c.fleet.tiers.tier, [&](const TierConfig& t) { return t.on && test(t); });
}

void each_tier(SimConfig& c, void (*change)(TierConfig&)) {
  for (TierConfig& t : c.fleet.tiers.tier) change(t);
}

constexpr std::array<Ablation, 15> kAblations{{
    {"prefix-cache", "engines find nothing in their own caches", [](const SimConfig&) { return true; },
     [](SimConfig& c) { c.fleet.engine.prefix_caching = false; }},
    {"chunking", "passes hold whole prompts, however long", [](const SimConfig&) { return true; },
     [](SimConfig& c) { c.fleet.engine.chunk_tokens = UINT32_MAX; }},
    {"preemption", "requests wait until their whole answer has room", [](const SimConfig&) { return true; },
     [](SimConfig& c) { c.fleet.engine.preemption = false; }},
    {"routing", "every request goes to a random instance",
     [](const SimConfig& c) { return c.fleet.policy != "random"; }, [](SimConfig& c) { c.fleet.policy = "random"; }},
    {"dram", "no private DRAM tier", [](const SimConfig& c) { return c.fleet.tiers[Tier::kDram].on; },
     [](SimConfig& c) { c.fleet.tiers[Tier::kDram].on = false; }},
    {"flash", "no private flash tier", [](const SimConfig& c) { return c.fleet.tiers[Tier::kFlash].on; },
     [](SimConfig& c) { c.fleet.tiers[Tier::kFlash].on = false; }},
    {"depot", "no shared depot", [](const SimConfig& c) { return c.fleet.tiers[Tier::kDepot].on; },
     [](SimConfig& c) { c.fleet.tiers[Tier::kDepot].on = false; }},
    {"layerwise", "loads come before the pass, stores behind it",
     [](const SimConfig& c) { return c.fleet.tiers.layerwise && c.fleet.tiers.any(); },
     [](SimConfig& c) { c.fleet.tiers.layerwise = false; }},
    {"writes", "writes take no time",
     [](const SimConfig& c) {
       return any_tier(c, [](const TierConfig& t) { return t.write_bytes_per_s > 0 || t.total_write_per_s > 0; });
     },
     [](SimConfig& c) { each_tier(c, [](TierConfig& t) { t.write_bytes_per_s = t.total_write_per_s = 0; }); }},
    {"write-budget", "everything may be written",
     [](const SimConfig& c) { return any_tier(c, [](const TierConfig& t) { return t.write_budget_per_s > 0; }); },
     [](SimConfig& c) { each_tier(c, [](TierConfig& t) { t.write_budget_per_s = 0; }); }},
    {"contention", "every transfer has its links to itself", [](const SimConfig& c) { return c.fleet.tiers.any(); },
     [](SimConfig& c) { c.fleet.tiers.contention = false; }},
    {"latency", "fetches have no latency",
     [](const SimConfig& c) { return any_tier(c, [](const TierConfig& t) { return t.latency_s > 0; }); },
     [](SimConfig& c) { each_tier(c, [](TierConfig& t) { t.latency_s = 0; }); }},
    {"capacity", "tiers hold everything",
     [](const SimConfig& c) { return any_tier(c, [](const TierConfig& t) { return t.tokens_max > 0; }); },
     [](SimConfig& c) { each_tier(c, [](TierConfig& t) { t.tokens_max = 0; }); }},
    {"attention", "attention of prompts takes no time", [](const SimConfig& c) { return c.fleet.pass.pair > 0; },
     [](SimConfig& c) { c.fleet.pass.pair = 0; }},
    {"kv-reads", "decodes read their KV in no time", [](const SimConfig& c) { return c.fleet.pass.context > 0; },
     [](SimConfig& c) { c.fleet.pass.context = 0; }},
}};

}  // namespace

std::span<const Ablation> ablations() { return kAblations; }

std::string ablations_help() {
  std::string text;
  for (const Ablation& a : kAblations) text += fmt::format("  {:<13} {}\n", a.name, a.what);
  return text;
}

std::expected<void, std::string> ablate(SimConfig& config, const std::vector<std::string>& names) {
  const SimConfig before = config;
  for (const std::string& name : names) {
    const auto* const found = std::ranges::find(kAblations, name, &Ablation::name);
    if (found == kAblations.end()) {
      std::vector<std::string> known;
      for (const Ablation& a : kAblations) known.emplace_back(a.name);
      const std::vector<std::string> near = nearest_names(name, known);
      return std::unexpected(fmt::format("--ablate {}: there is no such mechanism; {}: {}", name,
                                         near.empty() ? "known" : "near",
                                         fmt::join(near.empty() ? known : near, ", ")));
    }
    if (!found->active(before)) {
      return std::unexpected(
          fmt::format("--ablate {}: the configuration has nothing of that kind to switch off", name));
    }
    found->switch_off(config);
  }
  return {};
}

}  // namespace kvd::cmd
