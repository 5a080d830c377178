// What each deployment class (S0 engine memory ... S3 the depot) brings for one model, device and workload: the closed
// forms of closed_form.h with the catalogue's numbers put in, and what follows for sizing and cost. Pure; any thread.
//
// A class differs from another in how much it keeps, who finds it and how fast it reads. What it keeps turns into hits
// so: a prefix is used again after a time that is exponential with mean `idle_s`, and an LRU store of C tokens that
// fills at f tokens/s keeps each for C/f (Che's approximation): it finds 1 - exp(-C/(f*idle_s)) of the reuse there is.
// With a trace its own hit-rate curve is used instead. docs/plan.md says what is left out.
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <functional>
#include <string>
#include <vector>

#include "model/catalogue.h"
#include "model/closed_form.h"

namespace kvd::model {

// Share of GPU memory that an engine uses (vLLM's default gpu_memory_utilization is 0.9).
inline constexpr double kMemoryUsed = 0.9;
// Endurance of a drive is stated over five years.
inline constexpr double kEnduranceYears = 5;

struct Prices {
  double gpu_hour = 0;                             // of one GPU; 0 = no costs are asked for
  std::map<std::string, double> terabyte_month{};  // by name of storage; a class whose storage is not here has no cost
};

struct Question {
  const Transformer* model = nullptr;
  const Device* device = nullptr;
  std::uint32_t gpus = 1;          // of one replica, tensor parallel
  std::uint32_t replicas = 1;      // that share a store, or between which private ones are split
  bool affinity = true;            // a request goes where its prefix is; otherwise anywhere
  std::string precision = "bf16";  // of the matrix products
  double weight_bytes_per_param = 2;
  double kv_bytes_per_element = 2;
  Workload workload;
  Attention attention = Attention::kCausal;
  bool growing = false;  // decode reads the answer's KV too
  Sla sla{0.4, 0.040};
  double tpot_one_s = 0;          // 0 = from the device
  double compute_efficiency = 0;  // 0 = the device's; otherwise of prefills with their all-reduces
  double io_bytes_per_s = 0;      // of S3, per replica; 0 = the class's
  double requests_per_s = 0;      // of all replicas; 0 = as many as S3 serves within the SLA
  double idle_s = 120;            // mean time until a prefix is used again
  Prices prices;
  // With a trace: share of prompt tokens found by a store of so many tokens in all (`shared`), or split between the
  // replicas. Empty: the exponential model above.
  std::function<double(double tokens, bool shared)> hit_curve;
};

// A number of an answer (`mid`) and what it may be within the errors of what it was worked out of: the least and the
// most over all corners of FLOP/s, memory bandwidth (the device's error) and store bandwidth (its own).
struct Range {
  double low = 0;
  double mid = 0;
  double high = 0;
};

struct Sizing {
  double capacity_bytes = 0;     // what the class has, all replicas
  double capacity_90_bytes = 0;  // for 90 % and 99 % of the hits there are, whatever the class finds now
  double capacity_99_bytes = 0;
  double write_bytes_per_s = 0;         // new KV, all replicas; write amplification 1
  double read_bytes_per_s = 0;          // mean, all replicas
  double write_budget_bytes_per_s = 0;  // what the drives' endurance allows over its five years; 0 = no limit
  double drive_life_years = 0;          // until the endurance of all drives is used up; 0 = does not wear out
  double drives_per_gpu = 0;            // the most of: read, write, five years of endurance, 99 % of the hits
  double links_per_gpu = 0;             // to read at the bandwidth above which more gains nothing
};

struct ClassAnswer {
  std::string name;
  std::string title;
  double hit = 0;  // share of prompt tokens found
  StorePath path;  // of one replica
  Prefill prefill;
  Batching batching;
  std::uint64_t batch = 0;  // within the SLA and memory, per replica; 0 = not even one request is
  bool memory_binds = false;
  double ttft_s = 0;  // at that batch
  double tpot_s = 0;
  double requests_per_s = 0;  // of a replica at that batch
  double gpus_needed = 0;     // for the rate, with as many stores as these GPUs have; 0 = the SLA can't be met
  double break_even_bytes_per_s = 0;
  double saturating_bytes_per_s = 0;
  std::uint64_t shortest_prompt = 0;  // worth storing; 0 = none
  double speedup_twice_io = 0;        // with twice the bandwidth
  double speedup_more_hits = 0;       // with a tenth of the misses turned into hits
  double cost_per_million = 0;        // prompt and output tokens; 0 = not all prices are known
  std::string unpriced;               // the storage whose price is missing; "" = none
  Sizing sizing;
  // Infinity stands for what does not exist in some corner: GPUs and cost where the SLA can't be met, a shortest prompt
  // where none is worth storing. For the rate of the answer; where S3 sets that rate, drives and their life are worked
  // out for what S3 serves in each corner.
  Range ttft_range;
  Range speedup_range;
  Range tpot_range;  // at the largest batch; of one request where not even that is within the SLA
  Range batch_range;
  Range requests_range;
  Range gpus_range;
  Range break_even_range;
  Range saturating_range;
  Range shortest_prompt_range;
  Range cost_range;
  Range drive_life_range;
  Range drives_range;
  Range links_range;
};

struct Answer {
  Replica replica;
  double weight_bytes = 0;
  double kv_memory_bytes = 0;  // of a replica, for KV
  double kv_token_bytes = 0;   // as stored, once
  double requests_per_s = 0;   // assumed, of all replicas
  Range rate_range;            // of it; one value where it was given
  Range tpot_one_range;
  Prefill talk;         // S3's path with the whole of the reuse found
  ClassAnswer vanilla;  // nothing found
  std::vector<ClassAnswer> classes;
};

// The error is one line with the arithmetic: the model does not fit its GPUs, or the request its context.
[[nodiscard]] std::expected<Answer, std::string> answer(const Question& question, const Catalogue& catalogue);

// What kMemoryUsed of a replica's memory leaves for KV beside the weights. The error is one line with the arithmetic:
// less than `kv_bytes`, those of `kv` ("16 tokens"); `precision` is the caller's name of what could be smaller.
[[nodiscard]] std::expected<double, std::string> kv_memory_bytes(const Question& question, double kv_bytes,
                                                                 const std::string& kv, const char* precision);

// The all-reduces of a pass between the GPUs of a replica, two in each layer, of activations in 16 bits.
struct PassReduces {
  double pass_s = 0;   // latencies
  double token_s = 0;  // of each token in the pass, prefilled or decoded
};
[[nodiscard]] PassReduces pass_reduces(const Question& question) noexcept;
// What is assumed of them for want of figures in the catalogue, a line each for the user.
[[nodiscard]] std::vector<std::string> reduce_assumptions(const Question& question);

// One replica of the question, with the given factors on its FLOP/s and bytes/s (1 = as the catalogue has them).
[[nodiscard]] Replica replica_of(const Question& question, double compute_factor = 1, double memory_factor = 1);

}  // namespace kvd::model
