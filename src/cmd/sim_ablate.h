// The mechanisms of a simulated fleet that can be switched off one by one, to see what each of them does. Pure.
#pragma once

#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cmd/sim_config.h"

namespace kvd::cmd {

struct Ablation {
  std::string_view name;
  std::string_view what;             // what a run without it is like
  bool (*active)(const SimConfig&);  // whether there is anything to switch off
  void (*switch_off)(SimConfig&);
};
// All of them, in the order in which docs/sim.md lists them.
[[nodiscard]] std::span<const Ablation> ablations();
// "name  what" a line, for --help.
[[nodiscard]] std::string ablations_help();

// Switches off what `names` say. One line when a name is unknown (with the nearest that is known), or when the
// configuration has nothing of that kind.
std::expected<void, std::string> ablate(SimConfig& config, const std::vector<std::string>& names);

}  // namespace kvd::cmd
