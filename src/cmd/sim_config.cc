#include "cmd/sim_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include "base/sizes.h"
#include "route/policy.h"

namespace kvd::cmd {

namespace {

const std::vector<std::string> kKeys = {"fleet.instances",
                                        "fleet.policy",
                                        "fleet.seed",
                                        "fleet.warmup_s",
                                        "engine.preset",
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
                                        "workload.trace",
                                        "workload.copies",
                                        "workload.speed",
                                        "workload.jitter_s",
                                        "workload.requests_max",
                                        "workload.generator",
                                        "workload.groups",
                                        "workload.prompts",
                                        "workload.shared_tokens",
                                        "workload.own_tokens",
                                        "workload.output_tokens",
                                        "workload.stages",
                                        "workload.gap_s",
                                        "depot.bandwidth",
                                        "depot.latency_ms",
                                        "depot.tokens_max",
                                        "sla.ttft_s",
                                        "sla.tpot_s"};

constexpr std::string_view kPreset = "qwen3-32b-h100x2";

// Reads single keys of the parsed file and remembers the first fault.
class Keys {
 public:
  Keys(const toml::table& table, std::string_view file) : table_(table), file_(file) {}

  [[nodiscard]] const toml::node* find(const std::string& key) const { return table_.at_path(key).node(); }
  void complain(const std::string& key, std::string text) {
    if (fault) return;
    const toml::node* const node = find(key);
    const std::size_t line = node == nullptr ? 0 : node->source().begin.line;
    fault = InputFault{std::string(file_), line, fmt::format("{}: {}", key, text)};
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

  std::optional<InputFault> fault;

 private:
  const toml::table& table_;
  std::string_view file_;
};

void check_names(const toml::table& table, Keys& keys) {
  for (const auto& [section, node] : table) {
    const toml::table* const inner = node.as_table();
    const std::string name(section.str());
    if (inner == nullptr) {
      keys.complain(name, "is not in a section; the sections are fleet, engine, workload, depot and sla");
      continue;
    }
    for (const auto& [key, value] : *inner) {
      const std::string full = fmt::format("{}.{}", name, std::string_view(key.str()));
      if (std::ranges::find(kKeys, full) != kKeys.end()) continue;
      const auto near = nearest_names(full, kKeys);
      keys.complain(full, near.empty() ? "there is no such key, see docs/sim.md"
                                       : fmt::format("there is no such key; near: {}", fmt::join(near, ", ")));
    }
  }
}

model::Picoseconds ps(double seconds) { return std::llround(seconds * model::kPicosecondsPerSecond); }

void read_engine(Keys& keys, SimConfig& config) {
  const std::string preset = keys.text("engine.preset", std::string(kPreset));
  if (preset != kPreset) keys.complain("engine.preset", fmt::format("the presets are: {}", kPreset));
  const model::RooflineInput roofline = model::qwen3_32b_h100x2();
  model::LinearPass& pass = config.fleet.pass;
  pass = model::roofline(roofline);
  const auto own = [&](const char* key, model::Picoseconds& value, double unit_s) {
    if (keys.find(key) != nullptr) value = ps(keys.number(key, 0, 0) * unit_s);
  };
  own("engine.base_ms", pass.base, 1e-3);
  own("engine.token_us", pass.token, 1e-6);
  own("engine.pair_ns", pass.pair, 1e-9);
  own("engine.seq_us", pass.seq, 1e-6);
  own("engine.context_ns", pass.context, 1e-9);
  sched::V1Config& engine = config.fleet.engine;
  engine.block_tokens = keys.count("engine.block_tokens", 16);
  engine.chunk_tokens = keys.count("engine.chunk_tokens", 8192);
  engine.seqs_max = keys.count("engine.seqs_max", 1024);
  config.kv_tokens = keys.count("engine.kv_tokens", 307'328);
  config.context_tokens_max = keys.count("engine.context_tokens", 131'072);
  engine.blocks = config.kv_tokens / engine.block_tokens;
  if (engine.blocks == 0) keys.complain("engine.kv_tokens", "less than one block");
  config.fleet.depot.kv_bytes_per_token = keys.number("engine.kv_token_bytes", roofline.kv_bytes_per_token, 1);
}

void read_stages(const toml::table& table, Keys& keys, SimConfig& config) {
  const toml::array* const stages = table.at_path("workload.stages").as_array();
  if (stages == nullptr) {
    keys.complain("workload.stages", "a list of [requests a second, seconds] is expected");
    return;
  }
  for (const toml::node& stage : *stages) {
    const toml::array* const pair = stage.as_array();
    const auto rate = pair != nullptr && pair->size() == 2 ? (*pair)[0].value<double>() : std::nullopt;
    const auto seconds = rate ? (*pair)[1].value<double>() : std::nullopt;
    if (!seconds || *rate <= 0 || *seconds <= 0) {
      keys.complain("workload.stages", "each stage is [requests a second, seconds], both above 0");
      return;
    }
    config.shared_prefix.stages.push_back({*rate, *seconds});
  }
}

void read_workload(const toml::table& table, Keys& keys, SimConfig& config) {
  config.trace_path = keys.text("workload.trace", "");
  const std::string generator = keys.text("workload.generator", "");
  config.trace.copies = keys.count("workload.copies", 1);
  config.trace.speed = keys.number("workload.speed", 1, 1e-6);
  config.trace.jitter_s = keys.number("workload.jitter_s", 0, 0);
  config.trace.requests_max = keys.count("workload.requests_max", 0, 0);
  config.trace.seed = config.shared_prefix.seed = config.fleet.seed;
  if (generator.empty() == config.trace_path.empty()) {
    keys.complain("workload", "either trace or generator is expected");
    return;
  }
  if (generator.empty()) return;
  if (generator != "shared-prefix") keys.complain("workload.generator", "the generators are: shared-prefix");
  sim::SharedPrefixOptions& shared = config.shared_prefix;
  shared.groups = keys.count("workload.groups", shared.groups);
  shared.prompts = keys.count("workload.prompts", shared.prompts);
  shared.shared_tokens = keys.count("workload.shared_tokens", shared.shared_tokens);
  shared.own_tokens = keys.count("workload.own_tokens", shared.own_tokens);
  shared.output = keys.count("workload.output_tokens", shared.output);
  shared.gap_s = keys.number("workload.gap_s", 0, 0);
  read_stages(table, keys, config);
}

void read_depot(Keys& keys, SimConfig& config) {
  sim::DepotConfig& depot = config.fleet.depot;
  depot.latency_s = keys.number("depot.latency_ms", 1, 0) * 1e-3;
  depot.tokens_max = static_cast<std::uint64_t>(keys.number("depot.tokens_max", 0, 0));
  std::string bandwidth = keys.text("depot.bandwidth", "");
  if (bandwidth.empty()) return;
  if (!bandwidth.ends_with("/s")) {
    keys.complain("depot.bandwidth", "bytes a second are expected, as in \"10GB/s\" or \"25GiB/s\"");
    return;
  }
  bandwidth.resize(bandwidth.size() - 2);
  const auto bytes = parse_size(bandwidth);
  if (!bytes || *bytes == 0) {
    keys.complain("depot.bandwidth", "bytes a second are expected, as in \"10GB/s\" or \"25GiB/s\"");
    return;
  }
  depot.on = true;
  depot.bytes_per_s = static_cast<double>(*bytes);
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

FromInput<SimConfig> read_sim_config(std::string_view text, std::string_view file,
                                     const std::vector<std::string>& overrides) {
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& error) {
    return std::unexpected(InputFault{std::string(file), error.source().begin.line, std::string(error.description())});
  }
  for (const std::string& typed : overrides) {
    if (override_key(table, typed)) continue;
    return std::unexpected(InputFault{"--set " + typed, 0, "section.key=value is expected, as in fleet.seed=2"});
  }
  SimConfig config;
  Keys keys(table, file);
  check_names(table, keys);
  config.fleet.instances = keys.count("fleet.instances", 1);
  config.fleet.policy = keys.text("fleet.policy", "least-request");
  if (std::ranges::find(route::kPolicyNames, config.fleet.policy) == std::end(route::kPolicyNames)) {
    keys.complain("fleet.policy", fmt::format("the policies are: {}", fmt::join(route::kPolicyNames, ", ")));
  }
  config.fleet.seed = keys.count("fleet.seed", 1, 0);
  config.fleet.warmup_s = keys.number("fleet.warmup_s", 0, 0);
  config.fleet.sla_ttft_s = keys.number("sla.ttft_s", 5, 0);
  config.fleet.sla_tpot_s = keys.number("sla.tpot_s", 0.05, 0);
  read_engine(keys, config);
  read_workload(table, keys, config);
  read_depot(keys, config);
  if (keys.fault) return std::unexpected(*keys.fault);
  std::ostringstream taken;
  taken << toml::toml_formatter(table);
  config.text = taken.str();
  return config;
}

}  // namespace kvd::cmd
