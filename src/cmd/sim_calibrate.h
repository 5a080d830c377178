// `kvdepot sim calibrate PASSES.csv`: the step model fitted to measured passes, and a device of the catalogue made of
// it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cmd/sim_study.h"
#include "model/pass_fit.h"
#include "model/transformer.h"

namespace kvd::cmd {

// Prints `text` or writes it to `out`, where that is not empty; the exit status.
int deliver(const std::string& text, const std::string& out);

// A [[device]] entry for `kvdepot plan --catalogue`, of passes of `model` in 16 bits. What the device achieved stands
// as its peak, with efficiencies of 1: the passes do not tell what it could. Memory bandwidth is the rate at which
// decodes read KV, or, if that is more, the one at which the shortest pass reads the weights; the rest of that pass is
// step_s. `error` becomes that of the entry, `source` its source. Empty when the passes hold too little prefill or
// context.
[[nodiscard]] std::string device_entry(const model::PassFit& fit, const model::Transformer& model,
                                       const std::string& name, double memory_bytes, double error,
                                       const std::string& source);

// An [engine] section for `kvdepot sim run` with the times of `fit` and this context, and `model`'s KV in 16 bits where
// it is not nullptr. `about` are comment lines in front.
[[nodiscard]] std::string engine_section(const model::LinearFit& fit, const model::Transformer* model,
                                         std::uint64_t context_tokens, const std::vector<std::string>& about);

// An option that would be ignored beside the others, and what it belongs to; empty if there is none.
[[nodiscard]] std::string misplaced_option(const StudyFlags& flags);

// Fits to the passes and tests on those of --test; without it every second pass is left out for that. Requires options
// without a misplaced one.
int run_calibrate_on_passes(const StudyFlags& flags);

}  // namespace kvd::cmd
