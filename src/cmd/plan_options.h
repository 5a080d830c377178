// What `kvdepot plan` was told, and the question it makes. Reads catalogue, model and trace files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cmd/serve_options.h"
#include "model/deployment.h"
#include "trace/reuse.h"

namespace kvd::cmd {

// Flags as they were typed, defaults filled in; "" = not given.
struct PlanFlags {
  std::string model;
  std::string gpu;
  std::string prompt;
  std::string output;
  std::string reuse;
  std::string precision;
  std::string kv_precision;
  std::string attention = "causal";
  std::string io;
  std::string sla_ttft = "400ms";
  std::string sla_tpot = "40ms";
  std::string tpot_one;
  std::string efficiency;
  std::string rate;
  std::string replicas = "1";
  std::string routing = "affinity";
  std::string idle = "120s";
  std::string price_gpu;
  std::string price_dram;
  std::string price_flash;
  std::string price_fs;
  std::vector<std::string> prices;  // "storage=dollars"
  std::string trace;
  std::string context;
  std::string block_tokens = "512";
  std::string html;
  std::vector<std::string> catalogue;
  bool growing = false;
  bool json = false;
  bool csv = false;
};

// A trace and what was counted in it.
struct PlanTrace {
  trace::Trace trace;
  std::unique_ptr<trace::ReuseProfile> reuse;                    // of one store that all share; none without block ids
  std::vector<std::unique_ptr<trace::ReuseProfile>> of_replica;  // of each replica's own, requests dealt in turn
  double prompt_mean = 0;
  double output_mean = 0;
};

// Share of prompt tokens that replicas find in private stores without a limit when requests are dealt in turn.
[[nodiscard]] double private_ideal_hit_rate(const PlanTrace& trace);

struct Plan {
  model::Catalogue catalogue;
  model::Question question;
  std::shared_ptr<const PlanTrace> trace;  // shared by the caller and the question's hit curve
};

// The plan that the flags ask for. A complaint is one line that names the flag or the file, what was expected and, for
// names, the nearest ones.
OrComplaint<Plan> make_plan(const PlanFlags& flags);
// The catalogue with the user's files added.
OrComplaint<model::Catalogue> read_catalogue(const std::vector<std::string>& files);

// What other verbs that take names of the catalogue share.
inline constexpr std::uint32_t kGpusMax = 1024;  // of one replica
// "no GPU 'h10' is known; nearest: h100: add one with ...".
[[nodiscard]] std::string unknown_name(const char* what, const std::string& name, const std::vector<std::string>& known,
                                       const char* how_to_add);
// The model of that name, in the catalogue; a path that ends in .json is read as a Hugging Face config.json and added.
OrComplaint<const model::Transformer*> find_model(model::Catalogue& catalogue, const std::string& name,
                                                  const char* how_to_add);
// Precision, weights and KV of the question's model on its device; "" = fp8 where the device has it, else bf16, and KV
// as the weights. Weights that are published smaller stay so. A complaint is the flag that is wrong: "precision" or
// "kv-precision".
OrComplaint<void> set_precision(model::Question& question, const std::string& precision,
                                const std::string& kv_precision);

}  // namespace kvd::cmd
