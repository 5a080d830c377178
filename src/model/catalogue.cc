#include "model/catalogue.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "model/catalogue_text.h"

namespace kvd::model {
namespace {

const std::map<std::string, std::string> kNoAliases;

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

template <class T>
const T* find(const std::map<std::string, T>& entries, const std::map<std::string, std::string>& aliases,
              std::string_view name) {
  const std::string wanted = lower(name);
  for (const auto& [known, entry] : entries) {
    if (lower(known) == wanted) return &entry;
  }
  const auto alias = aliases.find(wanted);
  if (alias == aliases.end()) return nullptr;
  const auto entry = entries.find(alias->second);
  return entry == entries.end() ? nullptr : &entry->second;
}

template <class T>
std::vector<std::string> names_of(const std::map<std::string, T>& entries,
                                  const std::map<std::string, std::string>& aliases) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries) names.push_back(name);
  for (const auto& [alias, name] : aliases) names.push_back(alias);
  std::ranges::sort(names);
  return names;
}

}  // namespace

bool Origin::measured_value(std::string_view key) const {
  return measured && std::ranges::find(data_sheet, key) == data_sheet.end();
}

std::string Origin::kind() const {
  if (!measured) return "data sheet";
  return data_sheet.empty() ? "measured" : fmt::format("measured but for {}", fmt::join(data_sheet, ", "));
}

double Device::peak_flops_per_s(std::string_view precision) const {
  const auto found = flops_per_s.find(std::string(precision == "fp16" ? "bf16" : precision));
  if (found != flops_per_s.end()) return found->second;
  const auto usual = flops_per_s.find("bf16");
  return usual == flops_per_s.end() ? 0 : usual->second;
}

double bandwidth_at(const Bandwidth& bandwidth, double request_bytes) {
  if (bandwidth.empty()) return 0;
  if (request_bytes <= bandwidth.front().first) return bandwidth.front().second;
  for (std::size_t i = 1; i < bandwidth.size(); ++i) {
    const auto& [below_bytes, below] = bandwidth[i - 1];
    const auto& [above_bytes, above] = bandwidth[i];
    if (request_bytes > above_bytes) continue;
    const double share = std::log(request_bytes / below_bytes) / std::log(above_bytes / below_bytes);
    return below + share * (above - below);
  }
  return bandwidth.back().second;
}

const Catalogue& Catalogue::built_in() {
  static const Catalogue catalogue = [] {
    Catalogue made;
    KVD_CHECK(made.add(built_in_models(), "models.toml").has_value());
    KVD_CHECK(made.add(built_in_storage(), "storage.toml").has_value());
    KVD_CHECK(made.add(built_in_devices(), "devices.toml").has_value());
    return made;
  }();
  return catalogue;
}

const Transformer* Catalogue::model(std::string_view name) const { return find(models_, model_aliases_, name); }
const Device* Catalogue::device(std::string_view name) const { return find(devices_, device_aliases_, name); }
const Link* Catalogue::link(std::string_view name) const { return find(links_, kNoAliases, name); }
const Storage* Catalogue::storage(std::string_view name) const { return find(storage_, kNoAliases, name); }
std::vector<std::string> Catalogue::model_names() const { return names_of(models_, model_aliases_); }
std::vector<std::string> Catalogue::device_names() const { return names_of(devices_, device_aliases_); }
std::vector<std::string> Catalogue::link_names() const { return names_of(links_, kNoAliases); }
std::vector<std::string> Catalogue::storage_names() const { return names_of(storage_, kNoAliases); }

}  // namespace kvd::model
