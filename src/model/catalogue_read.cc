// Reads catalogue files. Every key is known or a fault: a mistyped one would otherwise be a default that nobody chose.
#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <toml++/toml.h>

#include "model/catalogue.h"
#include "model/hf_config.h"

namespace kvd::model {

// One file. Reading stops at the first fault.
class CatalogueReader {
 public:
  CatalogueReader(Catalogue& into, std::string_view file) : into_(into), file_(file) {}

  FromInput<void> read(std::string_view text) {
    toml::table root;
    try {
      root = toml::parse(text);
    } catch (const toml::parse_error& error) {
      return std::unexpected(InputFault{file_, error.source().begin.line, std::string(error.description())});
    }
    const std::map<std::string, void (CatalogueReader::*)(const toml::table&)> kinds{
        {"model", &CatalogueReader::read_model},
        {"device", &CatalogueReader::read_device},
        {"link", &CatalogueReader::read_link},
        {"storage", &CatalogueReader::read_storage},
        {"class", &CatalogueReader::read_class}};
    std::vector<std::string> names;
    for (const auto& [name, kind] : kinds) names.push_back(name);
    for (const auto& [key, node] : root) {
      if (std::ranges::find(names, key.str()) == names.end()) return unknown(key, names, "table");
      if (!node.is_array_of_tables()) return fault_at(node, fmt::format("expected [[{}]]", key.str()));
    }
    // Devices refer to links, classes to links and storage.
    for (const char* name : {"model", "link", "storage", "device", "class"}) {
      const auto* entries = root[name].as_array();
      for (std::size_t i = 0; entries != nullptr && i < entries->size() && !fault_; ++i) {
        if (const auto* table = (*entries)[i].as_table()) (this->*kinds.at(name))(*table);
      }
    }
    if (fault_) return std::unexpected(*fault_);
    // A file may replace the link of a device that it does not name.
    for (auto& [name, device] : into_.devices_) {
      const auto link = into_.links_.find(device.reduce_link);
      if (link == into_.links_.end()) continue;
      device.reduce_latency_s = link->second.latency_s;
      device.reduce_byte_s = 1 / link->second.bytes_per_s.back().second;
    }
    return {};
  }

 private:
  using Names = std::vector<std::string>;

  std::unexpected<InputFault> fault_at(const toml::node& node, std::string text) const {
    return std::unexpected(InputFault{file_, node.source().begin.line, std::move(text)});
  }
  void complain(const toml::node& node, std::string text) {
    if (!fault_) fault_ = InputFault{file_, node.source().begin.line, std::move(text)};
  }
  std::unexpected<InputFault> unknown(const toml::key& key, const Names& known, const char* what) const {
    const auto near = nearest_names(key.str(), known);
    return std::unexpected(
        InputFault{file_, key.source().begin.line,
                   fmt::format("no {} '{}' is known: expected {}", what, key.str(),
                               near.empty() ? fmt::format("one of {}", fmt::join(known, ", ")) : "'" + near[0] + "'")});
  }
  void check_keys(const toml::table& table, const Names& known) {
    for (const auto& [key, node] : table) {
      if (std::ranges::find(known, key.str()) == known.end() && !fault_) fault_ = unknown(key, known, "key").error();
    }
  }

  std::string text(const toml::table& table, const char* key, bool needed = true) {
    if (const auto value = table[key].value<std::string>()) return *value;
    if (needed || table.contains(key)) complain(table, fmt::format("expected {} = \"...\"", key));
    return "";
  }
  // A positive number; `fallback` where it may be left out.
  double number(const toml::table& table, const char* key, double fallback = -1) {
    if (!table.contains(key) && fallback >= 0) return fallback;
    const auto value = table[key].value<double>();
    if (!value || !std::isfinite(*value) || *value < 0 || (*value == 0 && fallback < 0)) {
      complain(table.contains(key) ? *table.get(key) : table, fmt::format("expected {} = a positive number", key));
      return 1;
    }
    return *value;
  }
  bool flag(const toml::table& table, const char* key, bool fallback) {
    if (!table.contains(key)) return fallback;
    const auto value = table[key].value<bool>();
    if (!value) complain(*table.get(key), fmt::format("expected {} = true or false", key));
    return value.value_or(fallback);
  }
  // Every entry says where its values are from: what is made of them shows it.
  std::string source(const toml::table& table) {
    if (const auto value = table["source"].value<std::string>()) return *value;
    complain(table,
             fmt::format("{}expected source = \"...\": where this entry's values are from, in a line of your own, "
                         "as in source = \"our cluster, 2026-11\"",
                         table.contains("name") ? text(table, "name") + ": " : ""));
    return "";
  }
  // `more`: what an entry's data_sheet may name besides its own keys.
  Origin origin(const toml::table& table, const Names& more = {}) {
    Origin made{source(table), flag(table, "measured", false)};
    if (!table.contains("data_sheet")) return made;
    Names known = more;
    for (const auto& [key, node] : table) known.emplace_back(key.str());
    const auto* list = table["data_sheet"].as_array();
    if (list == nullptr) complain(*table.get("data_sheet"), "expected data_sheet = [\"key\", ...]");
    for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
      const std::string name = (*list)[i].value<std::string>().value_or("");
      if (std::ranges::find(known, name) == known.end()) {
        complain((*list)[i], fmt::format("data_sheet: '{}' is no key of this entry; expected some of {}", name,
                                         fmt::join(known, ", ")));
      }
      made.data_sheet.push_back(name);
    }
    if (!made.measured) complain(*table.get("data_sheet"), "data_sheet: expected beside measured = true only");
    return made;
  }

  Bandwidth bandwidth(const toml::table& table, const char* key) {
    Bandwidth points;
    const auto* list = table[key].as_array();
    for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
      const auto* pair = (*list)[i].as_array();
      const double bytes = pair != nullptr && pair->size() == 2 ? (*pair)[0].value<double>().value_or(0) : 0;
      const double rate = pair != nullptr && pair->size() == 2 ? (*pair)[1].value<double>().value_or(0) : 0;
      const bool ascends = points.empty() || bytes > points.back().first;
      if (!(bytes > 0) || !(rate > 0) || !std::isfinite(bytes) || !std::isfinite(rate) || !ascends) {
        complain((*list)[i], fmt::format("{}: expected [request bytes, bytes/s], ascending in size", key));
        return {};
      }
      points.emplace_back(bytes, rate);
    }
    if (points.empty()) complain(table, fmt::format("expected {} = [[request bytes, bytes/s], ...]", key));
    return points;
  }

  void aliases(const toml::table& table, const std::string& name, std::map<std::string, std::string>& into) {
    const auto* list = table["aliases"].as_array();
    for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
      if (const auto alias = (*list)[i].value<std::string>()) into[*alias] = name;
    }
  }

  void read_model(const toml::table& table) {
    check_keys(table, {"name", "aliases", "source", "params", "config", "measured"});
    const std::string name = text(table, "name");
    const std::string from = source(table);
    const double params = number(table, "params", 0);
    const auto* config = table["config"].as_table();
    if (config == nullptr) return complain(table, "expected config = {the fields of a config.json}");
    std::ostringstream json;
    json << toml::json_formatter(*config);
    auto model = read_hf_config(json.str(), name, file_);
    if (!model) return complain(*config, model.error().text);
    model->source = from;
    model->params_published = params;
    if (fault_) return;
    aliases(table, name, into_.model_aliases_);
    into_.add_model(std::move(*model));
  }

  void read_device(const toml::table& table) {
    check_keys(table, {"name", "aliases", "source", "measured", "data_sheet", "memory_bytes", "memory_bytes_per_s",
                       "flops_per_s", "compute_efficiency", "memory_efficiency", "error", "layer_s", "step_s", "seq_s",
                       "reduce_link"});
    Device device;
    device.name = text(table, "name");
    device.origin = origin(table, kPrecisionNames);
    device.memory_bytes = number(table, "memory_bytes");
    device.memory_bytes_per_s = number(table, "memory_bytes_per_s");
    device.compute_efficiency = number(table, "compute_efficiency");
    device.memory_efficiency = number(table, "memory_efficiency");
    device.error = number(table, "error", 0.3);
    device.layer_s = number(table, "layer_s", 0);
    device.step_s = number(table, "step_s", 0);
    device.seq_s = number(table, "seq_s", 0);
    device.reduce_link = text(table, "reduce_link", false);
    if (!device.reduce_link.empty() && !into_.links_.contains(device.reduce_link)) {
      complain(table, fmt::format("no link '{}': expected a [[link]] of that name", device.reduce_link));
    }
    if (!(device.error < 1)) complain(table, "error: expected a share below 1");
    const auto* flops = table["flops_per_s"].as_table();
    if (flops == nullptr || !flops->contains("bf16")) return complain(table, "expected flops_per_s = {bf16 = ...}");
    check_keys(*flops, kPrecisionNames);
    for (const auto& [precision, value] : *flops) {
      device.flops_per_s[std::string(precision.str())] = number(*flops, std::string(precision.str()).c_str());
    }
    if (fault_) return;
    aliases(table, device.name, into_.device_aliases_);
    into_.devices_.insert_or_assign(device.name, device);
  }

  void read_link(const toml::table& table) {
    check_keys(table, {"name", "source", "measured", "data_sheet", "latency_s", "bytes_per_s"});
    Link link{text(table, "name"), number(table, "latency_s", 0), bandwidth(table, "bytes_per_s"), origin(table)};
    if (!fault_) into_.links_.insert_or_assign(link.name, link);
  }

  void read_storage(const toml::table& table) {
    check_keys(table, {"name", "source", "measured", "data_sheet", "latency_s", "read_bytes_per_s", "write_bytes_per_s",
                       "capacity_bytes", "drive_writes_per_day", "service"});
    Storage storage{text(table, "name"),
                    number(table, "latency_s", 0),
                    bandwidth(table, "read_bytes_per_s"),
                    bandwidth(table, "write_bytes_per_s"),
                    number(table, "capacity_bytes"),
                    number(table, "drive_writes_per_day", 0),
                    flag(table, "service", false),
                    origin(table)};
    if (!fault_) into_.storage_.insert_or_assign(storage.name, storage);
  }

  void read_class(const toml::table& table) {
    check_keys(table, {"name", "title", "source", "storage", "link", "per_gpu", "request_bytes", "read_limit", "shared",
                       "overlapped"});
    DeploymentClass made;
    made.name = text(table, "name");
    made.title = text(table, "title", false);
    made.source = source(table);
    made.storage = text(table, "storage");
    made.link = text(table, "link", false);
    made.per_gpu = number(table, "per_gpu", 1);
    made.request_bytes = number(table, "request_bytes", made.request_bytes);
    made.read_limit = number(table, "read_limit", 0);
    made.shared = flag(table, "shared", false);
    made.overlapped = flag(table, "overlapped", true);
    if (made.storage != "hbm" && into_.storage(made.storage) == nullptr) {
      complain(table, fmt::format("no storage '{}': expected a [[storage]] of that name, or \"hbm\"", made.storage));
    }
    if (!made.link.empty() && into_.link(made.link) == nullptr) {
      complain(table, fmt::format("no link '{}': expected a [[link]] of that name", made.link));
    }
    if (!(made.per_gpu > 0) || !(made.request_bytes > 0))
      complain(table, "per_gpu and request_bytes: expected above 0");
    if (fault_) return;
    const auto same = std::ranges::find(into_.classes_, made.name, &DeploymentClass::name);
    if (same != into_.classes_.end()) {
      *same = made;
    } else {
      into_.classes_.push_back(made);
    }
  }

  inline static const Names kPrecisionNames{"bf16", "fp8", "int8", "fp4", "fp32"};

  Catalogue& into_;
  std::string file_;
  std::optional<InputFault> fault_;
};

FromInput<void> Catalogue::add(std::string_view toml, std::string_view file) {
  Catalogue copy = *this;
  if (auto read = CatalogueReader(copy, file).read(toml); !read) return read;
  *this = std::move(copy);
  return {};
}

}  // namespace kvd::model
