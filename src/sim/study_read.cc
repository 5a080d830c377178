// Reads calibration.json and workloads.json. The first fault of a file is kept and said with its place in the file, as
// "fig8a_overhead_vs_block_size.data.Recompute[2]", and with what was expected there.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/study.h"

namespace kvd::sim {

using model::kLlama;
using model::kOpt;
using model::kYarn;
using nlohmann::json;

namespace {

constexpr std::size_t kBlockSizesOf8a = 6;     // 2, 4 .. 64 tokens
constexpr std::size_t kEvictedTokensOf8b = 5;  // 1K, 2K .. 16K
constexpr double kBlockTokensOf8b = 16;
constexpr std::uint32_t kRequestTokensMax = 1U << 20;  // of a prompt, of an answer: beyond any context of the study

// A value of the file and its place in it. What is not there reads as nothing, and the first such fault is kept.
class Place {
 public:
  Place(const json* value, std::string path, std::string& fault)
      : value_(value), path_(std::move(path)), fault_(&fault) {}

  void complain(const std::string& text) const {
    if (fault_->empty()) *fault_ = path_.empty() ? text : fmt::format("{}: {}", path_, text);
  }
  [[nodiscard]] Place at(const std::string& key) const {
    const Place found(nullptr, path_.empty() ? key : path_ + "." + key, *fault_);
    if (value_ == nullptr) return found;
    if (value_->is_object() && value_->contains(key)) return {&value_->at(key), found.path_, *fault_};
    if (value_->is_object()) {
      found.complain("is missing, expected as in data/ipdps25");
    } else {
      complain("expected an object, {...}");
    }
    return found;
  }
  // Elements of a list. Requires i < size().
  [[nodiscard]] Place at(std::size_t i) const { return {&(*value_)[i], fmt::format("{}[{}]", path_, i), *fault_}; }
  [[nodiscard]] std::size_t size() const {
    if (value_ != nullptr && !value_->is_array()) complain("expected a list, [...]");
    return value_ != nullptr && value_->is_array() ? value_->size() : 0;
  }
  // Keys of an object.
  [[nodiscard]] std::vector<std::string> keys() const {
    std::vector<std::string> out;
    if (value_ != nullptr && !value_->is_object()) complain("expected an object, {...}");
    if (value_ == nullptr || !value_->is_object()) return out;
    for (const auto& [key, value] : value_->items()) out.push_back(key);
    return out;
  }
  [[nodiscard]] bool null() const { return value_ == nullptr || value_->is_null(); }
  [[nodiscard]] double number() const {
    if (value_ != nullptr && value_->is_number()) return value_->get<double>();
    if (value_ != nullptr) complain("expected a number");
    return 0;
  }
  [[nodiscard]] std::uint32_t tokens() const {
    const double value = number();
    if (value >= 1 && value <= kRequestTokensMax && value == std::floor(value))
      return static_cast<std::uint32_t>(value);
    if (value_ != nullptr) complain(fmt::format("expected tokens, a whole number from 1 to {}", kRequestTokensMax));
    return 1;
  }
  // A length in tokens: 512, "4k" -> 4096; 0 for a text that has none.
  [[nodiscard]] double length() const;

 private:
  const json* value_;
  std::string path_;
  std::string* fault_;
};

// "prefill-8K" -> 8192, "prefill-16" -> 16, "4k" -> 4096; 0 when it is no length.
double length_of(std::string_view text) {
  const std::size_t dash = text.rfind('-');
  if (dash != std::string_view::npos) text.remove_prefix(dash + 1);
  std::uint32_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return 0;
  const std::string_view unit(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
  if (unit == "K" || unit == "k") return value * 1024.0;
  return unit.empty() ? value : 0.0;
}

double Place::length() const {
  return value_ != nullptr && value_->is_string() ? length_of(value_->get<std::string>()) : number();
}

// Cells of a row and of the list that says what its columns are: a row may end earlier.
std::size_t columns(const Place& row, const Place& heads) {
  const std::size_t cells = row.size();
  if (cells > heads.size()) row.complain(fmt::format("{} values, at most {} are expected", cells, heads.size()));
  return std::min(cells, heads.size());
}

std::vector<model::PrefillPoint> read_3a(const Place& table) {
  std::vector<model::PrefillPoint> points;
  const Place batches = table.at("batch_size");
  const Place rows = table.at("throughput");
  for (const std::string& name : rows.keys()) {
    const double length = length_of(name);
    const Place row = rows.at(name);
    if (length <= 0) row.complain("its name is no length; expected one as \"prefill-512\" or \"prefill-8K\"");
    for (std::size_t i = 0; i < columns(row, batches); ++i) {
      if (row.at(i).null()) continue;
      const double seqs = batches.at(i).number();
      points.push_back({length, seqs, length * seqs / row.at(i).number()});
    }
  }
  // In order of length and batch: objects of JSON have none.
  std::ranges::sort(
      points, [](const auto& a, const auto& b) { return std::pair(a.length, a.seqs) < std::pair(b.length, b.seqs); });
  return points;
}

std::vector<model::DecodePoint> read_3c(const Place& models, const std::string& name) {
  std::vector<model::DecodePoint> points;
  const Place batches = models.at("batch_size");
  const Place row = models.at("throughput").at(name);
  for (std::size_t i = 0; i < columns(row, batches); ++i) {
    const double batch = batches.at(i).number();
    if (!points.empty() && batch <= points.back().batch) batches.at(i).complain("expected more than the one before");
    points.push_back({batch, batch / row.at(i).number()});
  }
  return points;
}

void read_4a(const Place& data, model::StudyTables& tables) {
  constexpr double kPrompt = 8192;
  const Place row = data.at("throughput").at("prefill-8K");
  const Place sizes = data.at("chunked-size");
  for (std::size_t i = 0; i < columns(row, sizes); ++i) {
    const double chunk = sizes.at(i).length();
    if (chunk < 0) sizes.at(i).complain("expected tokens of a chunk");
    const double seconds = kPrompt / row.at(i).number();
    (chunk == 0 ? tables.whole : tables.chunked).push_back({chunk, kPrompt, seconds});
  }
}

void read_8(const Place& root, model::StudyTables& tables) {
  const Place by_block = root.at("fig8a_overhead_vs_block_size").at("data");
  const Place by_tokens = root.at("fig8b_overhead_vs_evicted_tokens").at("data");
  const auto count = [](const Place& row, std::size_t expected) {
    const std::size_t cells = row.size();
    if (cells != expected) row.complain(fmt::format("{} values, {} are expected", cells, expected));
    return std::min(cells, expected);
  };
  const auto blocks = [&](const std::string& name, std::vector<model::EvictionPoint>& out) {
    const Place row = by_block.at(name);
    for (std::size_t i = 0; i < count(row, kBlockSizesOf8a); ++i) {
      out.push_back({4096, static_cast<double>(2U << i), row.at(i).number()});
    }
  };
  const auto tokens = [&](const std::string& name, std::vector<model::EvictionPoint>& out) {
    const Place row = by_tokens.at(name);
    for (std::size_t i = 0; i < count(row, kEvictedTokensOf8b); ++i) {
      out.push_back({static_cast<double>(1024U << i), kBlockTokensOf8b, row.at(i).number()});
    }
  };
  blocks("Recompute", tables.recompute);
  blocks("Swap (pinned Mem.)", tables.swap_pinned);
  blocks("Swap (pageable Mem.)", tables.swap_pageable);
  tokens("Recompute", tables.recompute);
  tokens("Swap (Pinned Mem.)", tables.swap_pinned);
}

// Why nothing can be fitted to a series; empty if something can. With one point left out there must still be one for
// each constant.
template <class Points>
std::string series_fault(const char* name, const Points& points, std::size_t constants) {
  if (points.size() <= constants) {
    return fmt::format("{}: {} points, at least {} are expected", name, points.size(), constants + 1);
  }
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!std::isfinite(points[i].seconds) || points[i].seconds <= 0) {
      return fmt::format("{}: point {} of {} is not a number above 0", name, i + 1, points.size());
    }
  }
  return {};
}

std::string tables_fault(const model::StudyTables& t) {
  for (const std::string& fault :
       {series_fault("3a Yarn", t.first_pass[kYarn], 6), series_fault("3a Llama", t.first_pass[kLlama], 4),
        series_fault("3c Yarn", t.decode[kYarn], 2), series_fault("3c Llama", t.decode[kLlama], 2),
        series_fault("3c OPT", t.decode[kOpt], 2), series_fault("4a whole", t.whole, 0),
        series_fault("4a chunked", t.chunked, 3), series_fault("8a, 8b recompute", t.recompute, 6),
        series_fault("8a, 8b swap pinned", t.swap_pinned, 2), series_fault("8a swap pageable", t.swap_pageable, 2)}) {
    if (!fault.empty()) return fault;
  }
  return {};
}

std::vector<Lengths> read_requests(const Place& list, std::size_t count_min) {
  std::vector<Lengths> out;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Place request = list.at(i);
    if (request.size() == 2) {
      out.push_back({request.at(std::size_t{0}).tokens(), request.at(1).tokens()});
    } else {
      request.complain("expected [prompt tokens, output tokens]");
    }
  }
  if (out.size() < count_min)
    list.complain(fmt::format("{} requests, at least {} are expected", out.size(), count_min));
  return out;
}

FromInput<json> parse(std::string_view text, std::string_view file) {
  try {
    json root = json::parse(text);
    if (root.is_object()) return root;
    return std::unexpected(InputFault{std::string(file), 1, "expected an object, {...}, as in data/ipdps25"});
  } catch (const json::parse_error& error) {
    const std::string_view before = text.substr(0, std::min<std::size_t>(error.byte, text.size()));
    const auto line = static_cast<std::size_t>(1 + std::ranges::count(before, '\n'));
    return std::unexpected(InputFault{std::string(file), line, "not JSON here: expected tables as in data/ipdps25"});
  } catch (const json::exception&) {
    return std::unexpected(InputFault{std::string(file), 0, "a number larger than any that is expected"});
  }
}

}  // namespace

FromInput<model::StudyTables> read_tables(std::string_view calibration, std::string_view file) {
  const auto parsed = parse(calibration, file);
  if (!parsed) return std::unexpected(parsed.error());
  std::string fault;
  const Place root(&*parsed, "", fault);
  model::StudyTables tables;
  const Place fig3a = root.at("fig3a_prefill_fixed_tokens_per_s");
  const Place fig3c = root.at("fig3c_decode_tokens_per_s").at("models");
  tables.first_pass[kYarn] = read_3a(fig3a.at("Yarn-Llama-2-7B"));
  tables.first_pass[kLlama] = read_3a(fig3a.at("Llama-3.1-8B"));
  tables.decode[kYarn] = read_3c(fig3c, "Yarn-llama2-7B");
  tables.decode[kLlama] = read_3c(fig3c, "llama-3.1-8B");
  tables.decode[kOpt] = read_3c(fig3c, "OPT-13B");
  read_4a(root.at("fig4a_chunked_prefill_8k").at("data"), tables);
  read_8(root, tables);
  if (fault.empty()) fault = tables_fault(tables);
  if (!fault.empty()) return std::unexpected(InputFault{std::string(file), 0, std::move(fault)});
  return tables;
}

FromInput<StudyInputs> read_inputs(std::string_view workloads, std::string_view file) {
  const auto parsed = parse(workloads, file);
  if (!parsed) return std::unexpected(parsed.error());
  std::string fault;
  const Place root(&*parsed, "", fault);
  StudyInputs inputs;
  for (const char* const name : {"w1", "w2", "w3", kListOf10, "fig11a"}) {
    inputs.requests[name] = read_requests(root.at(name), name[0] == 'w' ? kRequestsOf6 : 1);
  }
  inputs.requests[kListOf9] = read_requests(root.at(kListOf9), *std::ranges::max_element(kCountsOf9));
  const Place orders = root.at("fig3b_prompt_lengths_in_order_of_joining");
  for (const std::string& order : orders.keys()) {
    const Place prompts = orders.at(order);
    for (std::size_t i = 0; i < prompts.size(); ++i) inputs.prompts_joining[order].push_back(prompts.at(i).tokens());
  }
  if (!fault.empty()) return std::unexpected(InputFault{std::string(file), 0, std::move(fault)});
  return inputs;
}

}  // namespace kvd::sim
