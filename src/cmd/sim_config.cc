#include "cmd/sim_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include "base/sizes.h"
#include "cmd/sim_engine.h"
#include "route/policy.h"

namespace kvd::cmd {

namespace {

// Keys of [workload], by what it comes from. Every source has speed and in_flight_max.
struct SourceKeys {
  std::string_view name;
  std::vector<std::string> keys;
};
const std::vector<SourceKeys> kSources = {
    {"trace", {"trace", "copies", "repeats", "jitter_s", "requests_max", "rate"}},
    {"shared-prefix",
     {"groups", "prompts", "shared_tokens", "own_tokens", "output_tokens", "stages", "rate", "duration_s", "gap_s"}},
    {"poisson",
     {"prompt_tokens", "output_tokens", "total_tokens", "prompt_share", "zipf_theta", "stages", "rate", "duration_s",
      "gap_s", "at_once"}},
    {"multi-turn",
     {"groups", "system_tokens", "turns", "user_tokens", "output_tokens", "zipf_theta", "think_s", "stages", "rate",
      "duration_s", "gap_s"}},
};

const std::vector<std::string>& known_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> all = {"fleet.instances",
                                    "fleet.policy",
                                    "fleet.seed",
                                    "fleet.warmup_s",
                                    "fleet.metrics_age_ms",
                                    "engine.preset",
                                    "engine.model",
                                    "engine.gpu",
                                    "engine.precision",
                                    "engine.kv_precision",
                                    "engine.catalogue",
                                    "engine.kv_tokens",
                                    "engine.block_tokens",
                                    "engine.chunk_tokens",
                                    "engine.seqs_max",
                                    "engine.context_tokens",
                                    "engine.kv_token_bytes",
                                    "engine.base_ms",
                                    "engine.token_us",
                                    "engine.pair_ns",
                                    "engine.seq_us",
                                    "engine.context_ns",
                                    "engine.loads",
                                    "engine.layers",
                                    "workload.generator",
                                    "workload.speed",
                                    "workload.in_flight_max",
                                    "depot.tokens_max",
                                    "depot.total_bandwidth",
                                    "depot.total_write_bandwidth",
                                    "sla.ttft_s",
                                    "sla.tpot_s"};
    for (const std::string_view tier : sim::kTierNames) {
      for (const char* const key : {"capacity", "bandwidth", "write_bandwidth", "latency_ms", "write_budget"}) {
        all.push_back(fmt::format("{}.{}", tier, key));
      }
    }
    for (const SourceKeys& source : kSources) {
      for (const std::string& key : source.keys) {
        if (std::ranges::find(all, "workload." + key) == all.end()) all.push_back("workload." + key);
      }
    }
    return all;
  }();
  return keys;
}

constexpr std::string_view kPreset = "qwen3-32b-h100x2";

// Reads single keys of the parsed file and remembers the first fault. `typed` are keys that --set replaced.
class Keys {
 public:
  Keys(const toml::table& table, std::string_view file, std::set<std::string> typed)
      : table_(table), file_(file), typed_(std::move(typed)) {}

  [[nodiscard]] const toml::node* find(const std::string& key) const { return table_.at_path(key).node(); }
  // Where the key is, with its name.
  [[nodiscard]] InputFault place(const std::string& key) const {
    const toml::node* const node = find(key);
    const bool typed = typed_.contains(key);
    const std::size_t line = node == nullptr || typed ? 0 : node->source().begin.line;
    return {typed ? "--set" : std::string(file_), line, key};
  }
  void complain(const std::string& key, const std::string& text) {
    if (fault) return;
    fault = place(key);
    fault->text += ": " + text;
  }
  double number(const std::string& key, double fallback, double low, double high = 1e18) {
    const toml::node* const node = find(key);
    if (node == nullptr) return fallback;
    const auto value = node->value<double>();
    if (!value || !std::isfinite(*value) || *value < low || *value > high) {
      complain(key, fmt::format("a number from {} to {} is expected", low, high));
      return fallback;
    }
    return *value;
  }
  std::uint32_t count(const std::string& key, std::uint32_t fallback, std::uint32_t low = 1) {
    const double value = number(key, fallback, low, 4e9);
    if (value != std::floor(value)) complain(key, "a whole number is expected");
    return static_cast<std::uint32_t>(value);
  }
  std::string text(const std::string& key, std::string fallback) {
    const toml::node* const node = find(key);
    if (node == nullptr) return fallback;
    const auto value = node->value<std::string>();
    if (!value) complain(key, "a text in quotes is expected");
    return value.value_or(fallback);
  }
  // A file: what the configuration says is seen from its folder, what --set says from where the command runs.
  std::string path(const std::string& key) {
    const std::string named = text(key, "");
    if (named.empty() || typed_.contains(key)) return named;
    return (std::filesystem::path(file_).parent_path() / named).lexically_normal().string();
  }

  std::optional<InputFault> fault;

 private:
  const toml::table& table_;
  std::string_view file_;
  std::set<std::string> typed_;
};

// What a section may hold, for a key that resembles none; the sections where there is no such one.
std::string keys_of_section(const std::string& section) {
  std::vector<std::string> found;
  for (const std::string& key : known_keys()) {
    if (key.starts_with(section + ".")) found.push_back(key.substr(section.size() + 1));
  }
  return found.empty() ? "the sections are fleet, engine, workload, dram, flash, depot and sla"
                       : fmt::format("[{}] has {}", section, fmt::join(found, ", "));
}

void check_names(const toml::table& table, Keys& keys) {
  for (const auto& [section, node] : table) {
    const toml::table* const inner = node.as_table();
    const std::string name(section.str());
    if (inner == nullptr) {
      keys.complain(name, "is not in a section; the sections are fleet, engine, workload, dram, flash, depot and sla");
      continue;
    }
    for (const auto& [key, value] : *inner) {
      const std::string full = fmt::format("{}.{}", name, std::string_view(key.str()));
      if (std::ranges::find(known_keys(), full) != known_keys().end()) continue;
      const auto near = nearest_names(full, known_keys());
      keys.complain(full, near.empty() ? fmt::format("there is no such key; {}", keys_of_section(name))
                                       : fmt::format("there is no such key; near: {}", fmt::join(near, ", ")));
    }
  }
}

constexpr double kOwnTimeMax = 1e5;  // of an engine's own times, in their units: 100 s for a pass
constexpr double kLatencyMaxMs = 1e6;

// What the engine's other keys may replace.
struct EngineBase {
  model::LinearPass pass;
  double kv_token_bytes = 0;
  std::uint32_t layers = 0;
  std::uint32_t kv_tokens = 0;
  std::uint32_t context_tokens = 131'072;
  std::vector<std::string> assumptions = {};
};

EngineBase preset_engine(Keys& keys) {
  const std::string preset = keys.text("engine.preset", std::string(kPreset));
  if (preset != kPreset) keys.complain("engine.preset", fmt::format("the presets are: {}", kPreset));
  for (const char* const key : {"engine.precision", "engine.kv_precision", "engine.catalogue"}) {
    if (keys.find(key) != nullptr) keys.complain(key, "engine.model and engine.gpu are expected, too");
  }
  const model::CatalogueEngine engine = model::qwen3_32b_h100x2();
  return {engine.pass, engine.kv_token_bytes, engine.layers, static_cast<std::uint32_t>(engine.kv_tokens),
          static_cast<std::uint32_t>(engine.context_tokens)};
}

EngineBase catalogue_engine(Keys& keys, std::uint32_t block_tokens) {
  if (keys.find("engine.preset") != nullptr) keys.complain("engine.preset", "engine.model is there, too");
  EngineNames names;
  names.model = keys.text("engine.model", "");
  if (names.model.ends_with(".json")) names.model = keys.path("engine.model");
  names.gpu = keys.text("engine.gpu", "");
  names.precision = keys.text("engine.precision", "");
  names.kv_precision = keys.text("engine.kv_precision", "");
  names.catalogue = keys.path("engine.catalogue");
  if (keys.fault) return {};
  const auto found = find_engine(names, block_tokens);
  if (!found) {
    keys.complain(found.error().key, found.error().text);
    return {};
  }
  constexpr std::uint64_t kMost = 4'000'000'000;
  EngineBase base{found->pass, found->kv_token_bytes, found->layers};
  base.kv_tokens = static_cast<std::uint32_t>(std::min(found->kv_tokens, kMost));
  const std::uint64_t context = std::min(found->context_tokens, kMost);
  if (context > 0) base.context_tokens = static_cast<std::uint32_t>(context);
  base.assumptions = found->assumptions;
  const double asked = keys.count("engine.kv_tokens", base.kv_tokens) * found->kv_token_memory;
  if (asked > found->kv_memory_bytes_most) {
    keys.complain("engine.kv_tokens",
                  fmt::format("{:.1f} GB of KV at {:.0f} B a token, but the weights leave {:.1f} GB", asked * 1e-9,
                              found->kv_token_memory, found->kv_memory_bytes_most * 1e-9));
  }
  return base;
}

void read_engine(Keys& keys, SimConfig& config) {
  sched::V1Config& engine = config.fleet.engine;
  engine = sched::vllm_v1(0, keys.count("engine.block_tokens", 16));  // blocks follow from kv_tokens
  const bool named = keys.find("engine.model") != nullptr || keys.find("engine.gpu") != nullptr;
  const EngineBase base = named ? catalogue_engine(keys, engine.block_tokens) : preset_engine(keys);
  model::LinearPass& pass = config.fleet.pass;
  pass = base.pass;
  config.assumptions = base.assumptions;
  const auto own = [&](const char* key, model::Picoseconds& value, double unit_s) {
    if (keys.find(key) != nullptr) value = model::picoseconds(keys.number(key, 0, 0, kOwnTimeMax) * unit_s);
  };
  own("engine.base_ms", pass.base, 1e-3);
  own("engine.token_us", pass.token, 1e-6);
  own("engine.pair_ns", pass.pair, 1e-9);
  own("engine.seq_us", pass.seq, 1e-6);
  own("engine.context_ns", pass.context, 1e-9);
  engine.chunk_tokens = keys.count("engine.chunk_tokens", engine.chunk_tokens);
  engine.seqs_max = keys.count("engine.seqs_max", engine.seqs_max);
  config.kv_tokens = keys.count("engine.kv_tokens", base.kv_tokens);
  config.context_tokens_max = keys.count("engine.context_tokens", base.context_tokens);
  engine.blocks = config.kv_tokens / engine.block_tokens;
  if (engine.blocks == 0) keys.complain("engine.kv_tokens", "less than one block");
  sim::TiersConfig& tiers = config.fleet.tiers;
  tiers.kv_bytes_per_token = keys.number("engine.kv_token_bytes", base.kv_token_bytes, 1);
  tiers.layers = keys.count("engine.layers", base.layers);
  const std::string loads = keys.text("engine.loads", "ahead");
  if (loads != "ahead" && loads != "layerwise") {
    keys.complain(
        "engine.loads",
        "\"ahead\" (of a request's first pass) or \"layerwise\" (inside its passes, with stores) is expected");
  }
  tiers.layerwise = loads == "layerwise";
}

constexpr double kRateMax = 1e6;  // arrivals a second

// workload.stages, or rate and duration_s for a single one; `speed` multiplies rates.
std::vector<sim::Stage> read_stages(const toml::table& table, Keys& keys, double speed) {
  constexpr const char* kPair = "each stage is [arrivals a second, seconds], both above 0, at most 1e6 a second";
  std::vector<sim::Stage> out;
  const bool single = keys.find("workload.rate") != nullptr || keys.find("workload.duration_s") != nullptr;
  if (single) {
    if (keys.find("workload.stages") != nullptr) keys.complain("workload.stages", "rate and duration_s are there, too");
    out.push_back(
        {speed * keys.number("workload.rate", 0, 1e-9, kRateMax), keys.number("workload.duration_s", 0, 1e-9)});
    if (out[0].rate <= 0) keys.complain("workload", "rate, in arrivals a second, is expected with duration_s");
    if (out[0].seconds <= 0) keys.complain("workload", "duration_s is expected with rate");
    return out;
  }
  if (keys.find("workload.stages") == nullptr) {
    keys.complain("workload", "rate and duration_s, or stages = [[arrivals a second, seconds], ...], are expected");
    return out;
  }
  const toml::array* const stages = table.at_path("workload.stages").as_array();
  if (stages == nullptr || stages->empty()) {
    keys.complain("workload.stages", fmt::format("a list is expected; {}", kPair));
    return out;
  }
  for (const toml::node& stage : *stages) {
    const toml::array* const pair = stage.as_array();
    const auto rate = pair != nullptr && pair->size() == 2 ? (*pair)[0].value<double>() : std::nullopt;
    const auto seconds = rate ? (*pair)[1].value<double>() : std::nullopt;
    if (!seconds || !(*rate > 0) || !(*seconds > 0) || *rate > kRateMax || !std::isfinite(*seconds)) {
      keys.complain("workload.stages", kPair);
      return out;
    }
    out.push_back({speed * *rate, *seconds});
  }
  return out;
}

// A number of tokens, or [low, high].
sim::TokenRange read_range(Keys& keys, const std::string& key, sim::TokenRange fallback) {
  const toml::node* const node = keys.find(key);
  const toml::array* const pair = node == nullptr ? nullptr : node->as_array();
  sim::TokenRange range = fallback;
  if (pair == nullptr) {
    range.low = range.high = keys.count(key, fallback.low);
    if (node == nullptr) range.high = fallback.high;
  } else {
    const auto low = pair->size() == 2 ? (*pair)[0].value<std::int64_t>() : std::nullopt;
    const auto high = low ? (*pair)[1].value<std::int64_t>() : std::nullopt;
    if (!high || *low < 1 || *high < *low || *high > trace::kRequestTokensMax) {
      keys.complain(key, "a whole number, or [low, high] with 1 <= low <= high, is expected");
      return fallback;
    }
    range.low = static_cast<std::uint32_t>(*low);
    range.high = static_cast<std::uint32_t>(*high);
  }
  range.theta = keys.number("workload.zipf_theta", 0, 0, 0.99);
  return range;
}

void check_context(Keys& keys, const std::string& key, std::uint64_t tokens, const SimConfig& config) {
  if (tokens <= config.context_tokens_max) return;
  keys.complain(key, fmt::format("a request of {} tokens is longer than engine.context_tokens = {}", tokens,
                                 config.context_tokens_max));
}

// Of poisson: prompt and answer, each by itself or as shares of a total.
void read_lengths(Keys& keys, SimConfig& config) {
  sim::PoissonOptions& poisson = config.poisson;
  if (keys.find("workload.total_tokens") == nullptr && keys.find("workload.prompt_share") == nullptr) {
    poisson.prompt = read_range(keys, "workload.prompt_tokens", poisson.prompt);
    poisson.output = read_range(keys, "workload.output_tokens", poisson.output);
    check_context(keys, "workload.prompt_tokens", std::uint64_t{poisson.prompt.high} + poisson.output.high, config);
    return;
  }
  for (const char* const key : {"workload.prompt_tokens", "workload.output_tokens"}) {
    if (keys.find(key) != nullptr) keys.complain(key, "total_tokens or prompt_share is there, too");
  }
  for (const char* const key : {"workload.total_tokens", "workload.prompt_share"}) {
    if (keys.find(key) == nullptr) keys.complain("workload", "total_tokens and prompt_share are expected together");
  }
  poisson.total = read_range(keys, "workload.total_tokens", poisson.total);
  if (poisson.total.low < 2) keys.complain("workload.total_tokens", "at least 2 are expected: a prompt and an answer");
  poisson.prompt_share = keys.number("workload.prompt_share", 0.5, 1e-6, 1 - 1e-6);
  check_context(keys, "workload.total_tokens", poisson.total.high, config);
}

// Generated requests that may come later than the simulated clock goes.
void check_end(Keys& keys, const SimConfig& config) {
  const bool sessions = config.source == "multi-turn";
  const sim::PoissonOptions& poisson = config.poisson;
  const double end = sessions ? sim::end_of(config.sessions.stages, config.sessions.gap_s)
                     : config.source == "poisson"
                         ? sim::end_of(poisson.stages, poisson.gap_s)
                         : sim::end_of(config.shared_prefix.stages, config.shared_prefix.gap_s);
  if (end > sim::kArrivalMaxS) {
    keys.complain(keys.find("workload.stages") != nullptr ? "workload.stages" : "workload.duration_s", too_late(end));
  }
  const double last = sessions ? sim::last_arrival_s(config.sessions) : 0;
  if (last > sim::kArrivalMaxS) {
    const std::string key = keys.find("workload.think_s") != nullptr ? "workload.think_s" : "workload.turns";
    keys.complain(key, fmt::format("{} turns with {} s between them: {}", config.sessions.turns.high,
                                   config.sessions.think_s, too_late(last)));
  }
}

void read_generator(const toml::table& table, Keys& keys, SimConfig& config) {
  const double speed = config.trace.speed;
  const double gap_s = keys.number("workload.gap_s", 0, 0);
  if (config.source == "shared-prefix") {
    sim::SharedPrefixOptions& shared = config.shared_prefix;
    shared.groups = keys.count("workload.groups", shared.groups);
    shared.prompts = keys.count("workload.prompts", shared.prompts);
    shared.shared_tokens = keys.count("workload.shared_tokens", shared.shared_tokens);
    shared.own_tokens = keys.count("workload.own_tokens", shared.own_tokens);
    shared.output = keys.count("workload.output_tokens", shared.output);
    shared.stages = read_stages(table, keys, speed);
    shared.gap_s = gap_s;
    check_context(keys, "workload.own_tokens", std::uint64_t{shared.shared_tokens} + shared.own_tokens + shared.output,
                  config);
  } else if (config.source == "poisson") {
    sim::PoissonOptions& poisson = config.poisson;
    read_lengths(keys, config);
    poisson.at_once = keys.count("workload.at_once", 0, 0);
    if (poisson.at_once == 0) poisson.stages = read_stages(table, keys, speed);
    poisson.gap_s = gap_s;
  } else {
    sim::SessionOptions& sessions = config.sessions;
    sessions.groups = keys.count("workload.groups", 1);
    sessions.system_tokens = keys.count("workload.system_tokens", 0, 0);
    sessions.user = read_range(keys, "workload.user_tokens", sessions.user);
    sessions.output = read_range(keys, "workload.output_tokens", sessions.output);
    sessions.turns = read_range(keys, "workload.turns", {1, 10});
    sessions.turns.theta = 0;
    sessions.think_s = keys.number("workload.think_s", sessions.think_s, 0);
    sessions.stages = read_stages(table, keys, speed);
    sessions.gap_s = gap_s;
    sessions.context_tokens = static_cast<std::uint32_t>(config.context_tokens_max);
    const std::uint64_t first = std::uint64_t{sessions.system_tokens} + sessions.user.high + sessions.output.high;
    check_context(keys, "workload.user_tokens", first, config);
  }
}

void read_workload(const toml::table& table, Keys& keys, SimConfig& config) {
  config.trace_path = keys.path("workload.trace");
  const std::string generator = keys.text("workload.generator", "");
  config.trace.copies = keys.count("workload.copies", 1);
  config.trace.repeats = keys.count("workload.repeats", 1);
  config.trace.speed = keys.number("workload.speed", 1, 1e-6);
  config.trace.jitter_s = keys.number("workload.jitter_s", 0, 0);
  if (generator.empty() && keys.find("workload.rate") != nullptr) {
    config.trace.rate = keys.number("workload.rate", 0, 1e-9, kRateMax);
  }
  config.trace.requests_max = keys.count("workload.requests_max", 0, 0);
  config.fleet.in_flight_max = keys.count("workload.in_flight_max", 0, 0);
  config.trace.seed = config.shared_prefix.seed = config.poisson.seed = config.sessions.seed = config.fleet.seed;
  if (generator.empty() == config.trace_path.empty()) {
    keys.complain("workload", "either trace or generator is expected");
    return;
  }
  config.source = generator.empty() ? "trace" : generator;
  const auto source = std::ranges::find(kSources, config.source, &SourceKeys::name);
  if (source == kSources.end() || generator == "trace") {
    keys.complain("workload.generator", "the generators are: shared-prefix, poisson, multi-turn");
    return;
  }
  for (const auto& [key, node] : *table["workload"].as_table()) {
    const std::string name(key.str());
    const bool always = name == "generator" || name == "speed" || name == "in_flight_max";
    if (always || std::ranges::find(source->keys, name) != source->keys.end()) continue;
    keys.complain("workload." + name,
                  fmt::format("is not a key of {}, which has {}", config.source, fmt::join(source->keys, ", ")));
  }
  config.arrivals_at = keys.place(config.trace.rate > 0      ? "workload.rate"
                                  : config.trace.repeats > 1 ? "workload.repeats"
                                                             : "workload.trace");
  if (generator.empty()) return;
  read_generator(table, keys, config);
  check_end(keys, config);
}

// "10GB/s" as bytes a second; `fallback` where the key is missing, 0 for "unbounded".
double read_rate(Keys& keys, const std::string& key, double fallback) {
  if (keys.find(key) == nullptr) return fallback;
  const std::string typed = keys.find(key)->value<std::string>().value_or("");
  if (typed == "unbounded") return 0;
  const auto bytes = typed.ends_with("/s") ? parse_size(std::string_view(typed).substr(0, typed.size() - 2))
                                           : Result<std::uint64_t>(std::uint64_t{0});
  if (!bytes || *bytes == 0) {
    keys.complain(key, "bytes a second are expected, as in \"10GB/s\" or \"25GiB/s\", or \"unbounded\"");
    return fallback;
  }
  return static_cast<double>(*bytes);
}

void read_tier(const toml::table& table, Keys& keys, SimConfig& config, std::size_t t) {
  const std::string name(sim::kTierNames.at(t));
  if (table[name].as_table() == nullptr) return;
  sim::TierConfig& tier = config.fleet.tiers.tier.at(t);
  const auto key = [&](const char* what) { return fmt::format("{}.{}", name, what); };
  tier.latency_s = keys.number(key("latency_ms"), t == 0 ? 0.005 : t == 1 ? 0.1 : 1, 0, kLatencyMaxMs) * 1e-3;
  tier.read_bytes_per_s = read_rate(keys, key("bandwidth"), 0);
  tier.write_bytes_per_s = read_rate(keys, key("write_bandwidth"), tier.read_bytes_per_s);
  tier.write_budget_per_s = read_rate(keys, key("write_budget"), 0);
  tier.total_read_per_s = read_rate(keys, key("total_bandwidth"), 0);
  tier.total_write_per_s = read_rate(keys, key("total_write_bandwidth"), tier.total_read_per_s);
  tier.tokens_max = static_cast<std::uint64_t>(keys.number("depot.tokens_max", 0, 0));
  if (t != static_cast<std::size_t>(sim::Tier::kDepot)) tier.tokens_max = 0;
  if (keys.find(key("capacity")) != nullptr) {
    const std::string typed = keys.find(key("capacity"))->value<std::string>().value_or("");
    const auto bytes = parse_size(typed);
    const bool unit = !typed.empty() && std::isalpha(static_cast<unsigned char>(typed.back())) != 0;
    if (tier.tokens_max > 0) keys.complain(key("capacity"), "tokens_max is there, too");
    if (!bytes || !unit) {
      keys.complain(key("capacity"), "bytes with a unit are expected, as in \"512GiB\" or \"7.68TB\"");
    } else {
      tier.tokens_max = static_cast<std::uint64_t>(static_cast<double>(*bytes) / config.fleet.tiers.kv_bytes_per_token);
      const std::uint32_t block = config.fleet.engine.block_tokens;
      if (tier.tokens_max < block) {
        keys.complain(key("capacity"), fmt::format("less than one block of {} tokens, {} bytes each", block,
                                                   config.fleet.tiers.kv_bytes_per_token));
      }
    }
  }
  // A section without a bandwidth switches its tier off, so that --set depot.bandwidth can switch it on.
  tier.on = keys.find(key("bandwidth")) != nullptr;
  if (!tier.on && keys.find(key("capacity")) != nullptr) {
    keys.complain(key("capacity"), "bandwidth is expected, too, as in \"50GB/s\"");
  }
}

// Puts "section.key=value" over what the file says; text needs no quotes. False when it is not of that form.
bool override_key(toml::table& table, const std::string& typed) {
  const std::size_t equals = typed.find('=');
  const std::size_t dot = typed.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot > equals) return false;
  const std::string section = typed.substr(0, dot);
  const std::string key = typed.substr(dot + 1, equals - dot - 1);
  const std::string value = typed.substr(equals + 1);
  toml::table parsed;
  try {
    parsed = toml::parse("value = " + value);
  } catch (const toml::parse_error&) {
    parsed.insert("value", value);
  }
  if (table[section].as_table() == nullptr) table.insert_or_assign(section, toml::table{});
  table[section].as_table()->insert_or_assign(key, *parsed.get("value"));
  return true;
}

}  // namespace

std::string too_late(double arrival_s) {
  return fmt::format(
      "the last request may come after {:.3g} s, and picoseconds of 64 bits have room for arrivals within {:.0f} s "
      "(100 days)",
      arrival_s, sim::kArrivalMaxS);
}

FromInput<SimConfig> read_sim_config(std::string_view text, std::string_view file,
                                     const std::vector<std::string>& overrides) {
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& error) {
    return std::unexpected(InputFault{std::string(file), error.source().begin.line, std::string(error.description())});
  }
  std::set<std::string> typed_keys;
  for (const std::string& typed : overrides) {
    typed_keys.insert(typed.substr(0, typed.find('=')));
    if (override_key(table, typed)) continue;
    return std::unexpected(InputFault{"--set " + typed, 0, "section.key=value is expected, as in fleet.seed=2"});
  }
  SimConfig config;
  Keys keys(table, file, std::move(typed_keys));
  check_names(table, keys);
  config.fleet.instances = keys.count("fleet.instances", 1);
  config.fleet.policy = keys.text("fleet.policy", "least-request");
  if (std::ranges::find(route::kPolicyNames, config.fleet.policy) == std::end(route::kPolicyNames)) {
    keys.complain("fleet.policy", fmt::format("the policies are: {}", fmt::join(route::kPolicyNames, ", ")));
  }
  config.fleet.seed = keys.count("fleet.seed", 1, 0);
  config.fleet.warmup_s = keys.number("fleet.warmup_s", 0, 0, sim::kArrivalMaxS);
  config.fleet.metrics_age_s = keys.number("fleet.metrics_age_ms", 0, 0, 1e3 * sim::kArrivalMaxS) * 1e-3;
  config.fleet.sla_ttft_s = keys.number("sla.ttft_s", 5, 0);
  config.fleet.sla_tpot_s = keys.number("sla.tpot_s", 0.05, 0);
  read_engine(keys, config);
  read_workload(table, keys, config);
  for (std::size_t t = 0; t < sim::kTiers; ++t) read_tier(table, keys, config, t);
  if (keys.fault) return std::unexpected(*keys.fault);
  std::ostringstream taken;
  taken << toml::toml_formatter(table);
  config.text = taken.str();
  return config;
}

}  // namespace kvd::cmd
