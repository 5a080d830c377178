// Models, devices, links, storage and deployment classes by name. The built-in entries are data/catalogue/*.toml,
// compiled in; a user's file of the same form adds entries or replaces those of the same name. A Catalogue is a value,
// read once and then used by any thread.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/input.h"
#include "model/transformer.h"

namespace kvd::model {

// Where an entry comes from, and how far to trust it.
struct Origin {
  std::string source;
  bool measured = false;  // false: data sheets' values or assumptions
  // Of a measured entry, the keys (or precisions) whose values are not: from a data sheet, another's fit, assumed.
  std::vector<std::string> data_sheet{};

  // Whether the value of this key was measured.
  [[nodiscard]] bool measured_value(std::string_view key) const;
  // "measured", "data sheet", or "measured but for fp8, latency_s".
  [[nodiscard]] std::string kind() const;
};

struct Device {
  std::string name;
  double memory_bytes = 0;
  double memory_bytes_per_s = 0;              // peak
  std::map<std::string, double> flops_per_s;  // peak, dense, by precision: bf16, fp8, int8, fp32
  double compute_efficiency = 0;              // achieved / peak
  double memory_efficiency = 0;
  double error = 0;         // relative, of both
  double layer_s = 0;       // of a pass, per layer
  double step_s = 0;        // of a pass
  double seq_s = 0;         // of a decode step, per request
  std::string reduce_link;  // over which tensor parallel devices sum up; "" = that takes no time
  Origin origin;

  // Seconds until `gpus` of them hold the sum of a message, as latency + bytes * second: a ring, in which each sends
  // 2 (n-1)/n of it over reduce_link. Zero for one.
  double reduce_latency_s = 0;
  double reduce_byte_s = 0;  // between two of them
  [[nodiscard]] double all_reduce_latency_s(std::uint32_t gpus) const { return gpus > 1 ? reduce_latency_s : 0; }
  [[nodiscard]] double all_reduce_byte_s(std::uint32_t gpus) const { return 2 * (gpus - 1.0) / gpus * reduce_byte_s; }

  // Peak at a precision; fp16 is bf16, and what the device can't do it computes as bf16.
  [[nodiscard]] double peak_flops_per_s(std::string_view precision) const;
};

// Bytes/s by size of a request, ascending in size.
using Bandwidth = std::vector<std::pair<double, double>>;
// Between points straight on a logarithmic size axis, flat outside of them; 0 without points.
[[nodiscard]] double bandwidth_at(const Bandwidth& bandwidth, double request_bytes);

struct Link {
  std::string name;
  double latency_s = 0;
  Bandwidth bytes_per_s;
  Origin origin;
};

struct Storage {
  std::string name;
  double latency_s = 0;
  Bandwidth read_bytes_per_s;
  Bandwidth write_bytes_per_s;
  double capacity_bytes = 0;
  double drive_writes_per_day = 0;  // endurance over five years; 0 = does not wear out
  bool service = false;             // one for all, paid by what is kept; otherwise devices of each GPU
  Origin origin;
};

// A deployment class S0 to S3, per GPU.
struct DeploymentClass {
  std::string name;
  std::string title;
  std::string storage;  // an entry, or "hbm"
  std::string link;     // an entry, or ""
  double per_gpu = 1;   // devices of that storage for each GPU
  double request_bytes = 1048576;
  double read_limit = 0;   // bytes/s per GPU; 0 = none
  bool shared = false;     // every replica finds what any stored
  bool overlapped = true;  // layers are loaded while others compute
  std::string source;
};

class Catalogue {
 public:
  // The entries that are compiled in.
  static const Catalogue& built_in();

  // Adds the entries of a TOML file. Faults: syntax, unknown tables or keys (with the nearest known one), missing keys,
  // numbers that are not positive, a class that names no known storage or link; nothing is added then.
  [[nodiscard]] FromInput<void> add(std::string_view toml, std::string_view file);
  // Adds or replaces one model, e.g. one that read_hf_config gave.
  void add_model(Transformer model) { models_.insert_or_assign(model.name, std::move(model)); }

  // Entries by name or alias; letter case does not count. nullptr when there is none.
  [[nodiscard]] const Transformer* model(std::string_view name) const;
  [[nodiscard]] const Device* device(std::string_view name) const;
  [[nodiscard]] const Link* link(std::string_view name) const;
  [[nodiscard]] const Storage* storage(std::string_view name) const;
  [[nodiscard]] const std::vector<DeploymentClass>& classes() const { return classes_; }

  // All names of a kind, sorted, for lists and for the nearest one.
  [[nodiscard]] std::vector<std::string> model_names() const;
  [[nodiscard]] std::vector<std::string> device_names() const;
  [[nodiscard]] std::vector<std::string> link_names() const;
  [[nodiscard]] std::vector<std::string> storage_names() const;

 private:
  friend class CatalogueReader;
  std::map<std::string, Transformer> models_;
  std::map<std::string, Device> devices_;
  std::map<std::string, Link> links_;
  std::map<std::string, Storage> storage_;
  std::map<std::string, std::string> model_aliases_;
  std::map<std::string, std::string> device_aliases_;
  std::vector<DeploymentClass> classes_;
};

}  // namespace kvd::model
