// Flags of `plan` that several tests start from.
#pragma once

#include "cmd/plan_options.h"

namespace kvd::cmd {

// The deployment of the talk: a chat on Llama-3-70B with two H100.
inline PlanFlags chat() {
  PlanFlags flags;
  flags.model = "llama-3-70b";
  flags.gpu = "h100:2";
  flags.prompt = "2200";
  flags.output = "170";
  flags.reuse = "0.9";
  return flags;
}

}  // namespace kvd::cmd
