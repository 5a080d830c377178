#include "sim/study.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include <fmt/format.h>

namespace kvd::sim {

using model::kLlama;
using model::kOpt;
using model::kYarn;
using nlohmann::json;

namespace {

constexpr double kHostGib = 64;
constexpr double kGibBytes = 1024.0 * 1024 * 1024;
constexpr double kStudyBlockTokens = 16;

// "prefill-8K" -> 8192, "prefill-16" -> 16, "4k" -> 4096, 512 -> 512; 0 when it is no length.
double length_of(const std::string& text) {
  const std::size_t dash = text.rfind('-');
  const std::string digits = dash == std::string::npos ? text : text.substr(dash + 1);
  if (digits.empty() || digits[0] < '0' || digits[0] > '9') return 0;
  const double value = std::stod(digits);
  return digits.back() == 'K' || digits.back() == 'k' ? value * 1024 : value;
}

double length_of(const json& value) {
  return value.is_number() ? value.get<double>() : length_of(value.get<std::string>());
}

std::vector<model::PrefillPoint> read_3a(const json& table) {
  std::vector<model::PrefillPoint> points;
  const json& batches = table.at("batch_size");
  for (const auto& [name, row] : table.at("throughput").items()) {
    const double length = length_of(name);
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (row[i].is_null()) continue;
      const auto seqs = batches.at(i).get<double>();
      points.push_back({length, seqs, length * seqs / row[i].get<double>()});
    }
  }
  // In order of length and batch: objects of JSON have none.
  std::ranges::sort(
      points, [](const auto& a, const auto& b) { return std::pair(a.length, a.seqs) < std::pair(b.length, b.seqs); });
  return points;
}

std::vector<model::DecodePoint> read_3c(const json& models, const char* name) {
  std::vector<model::DecodePoint> points;
  const json& batches = models.at("batch_size");
  const json& row = models.at("throughput").at(name);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto batch = batches.at(i).get<double>();
    points.push_back({batch, batch / row[i].get<double>()});
  }
  return points;
}

void read_4a(const json& data, model::StudyTables& tables) {
  constexpr double kPrompt = 8192;
  const json& row = data.at("throughput").at("prefill-8K");
  const json& sizes = data.at("chunked-size");
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double chunk = length_of(sizes.at(i));
    const double seconds = kPrompt / row[i].get<double>();
    (chunk == 0 ? tables.whole : tables.chunked).push_back({chunk, kPrompt, seconds});
  }
}

void read_8(const json& calibration, model::StudyTables& tables) {
  const json& by_block = calibration.at("fig8a_overhead_vs_block_size").at("data");
  const json& by_tokens = calibration.at("fig8b_overhead_vs_evicted_tokens").at("data");
  const auto blocks = [](const json& row, std::vector<model::EvictionPoint>& out) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      out.push_back({4096, static_cast<double>(2U << i), row[i].get<double>()});
    }
  };
  const auto tokens = [](const json& row, std::vector<model::EvictionPoint>& out) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      out.push_back({static_cast<double>(1024U << i), kStudyBlockTokens, row[i].get<double>()});
    }
  };
  blocks(by_block.at("Recompute"), tables.recompute);
  blocks(by_block.at("Swap (pinned Mem.)"), tables.swap_pinned);
  blocks(by_block.at("Swap (pageable Mem.)"), tables.swap_pageable);
  tokens(by_tokens.at("Recompute"), tables.recompute);
  tokens(by_tokens.at("Swap (Pinned Mem.)"), tables.swap_pinned);
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

std::vector<Lengths> read_requests(const json& list) {
  std::vector<Lengths> out;
  for (const json& r : list) out.push_back({r.at(0).get<std::uint32_t>(), r.at(1).get<std::uint32_t>()});
  return out;
}

// --- leaving points out

using Predict = std::function<double(const model::StudyFit&)>;

// Removes points[i] from a copy of the tables, fits, and predicts it.
LeftOut leave_out(const model::StudyTables& tables, const std::function<void(model::StudyTables&)>& remove,
                  const Predict& predict, LeftOut entry) {
  model::StudyTables others = tables;
  remove(others);
  entry.predicted = predict(model::fit_study(others));
  return entry;
}

template <class Points>
void erase_at(Points& points, std::size_t i) {
  points.erase(points.begin() + static_cast<std::ptrdiff_t>(i));
}

void leave_out_3a(const model::StudyTables& tables, std::vector<LeftOut>& out) {
  for (const model::StudyModelIndex m : {kYarn, kLlama}) {
    const auto& points = tables.first_pass[m];
    for (std::size_t i = 0; i < points.size(); ++i) {
      const model::PrefillPoint p = points[i];
      LeftOut entry{
          fmt::format("3a {}", model::kStudyModelTable[m].name), fmt::format("{} x {}", p.length, p.seqs),
          i == 0 || points[i - 1].length != p.length || i + 1 == points.size() || points[i + 1].length != p.length,
          p.seconds, 0};
      out.push_back(leave_out(
          tables, [&](model::StudyTables& t) { erase_at(t.first_pass[m], i); },
          [&](const model::StudyFit& fit) { return model::predict(fit, m, p); }, std::move(entry)));
    }
  }
}

void leave_out_3c(const model::StudyTables& tables, std::vector<LeftOut>& out) {
  for (const model::StudyModelIndex m : {kYarn, kLlama, kOpt}) {
    const auto& points = tables.decode[m];
    for (std::size_t i = 0; i < points.size(); ++i) {
      const model::DecodePoint p = points[i];
      LeftOut entry{fmt::format("3c {}", model::kStudyModelTable[m].name), fmt::format("batch {}", p.batch),
                    i == 0 || i + 1 == points.size(), p.seconds, 0};
      out.push_back(leave_out(
          tables, [&](model::StudyTables& t) { erase_at(t.decode[m], i); },
          [&](const model::StudyFit& fit) { return model::predict(fit, m, p); }, std::move(entry)));
    }
  }
}

void leave_out_4a(const model::StudyTables& tables, std::vector<LeftOut>& out) {
  for (std::size_t i = 0; i < tables.chunked.size(); ++i) {
    const model::ChunkPoint p = tables.chunked[i];
    LeftOut entry{"4a chunked", fmt::format("chunk {}", p.chunk), i == 0 || i + 1 == tables.chunked.size(), p.seconds,
                  0};
    out.push_back(leave_out(
        tables, [&](model::StudyTables& t) { erase_at(t.chunked, i); },
        [&](const model::StudyFit& fit) { return model::predict_chunked(fit, p); }, std::move(entry)));
  }
  for (const model::ChunkPoint& p : tables.whole) {
    const double predicted = model::predict_whole(model::fit_study(tables), p);
    out.push_back({"4a whole", "not chunked, not fitted to", true, p.seconds, predicted});
  }
}

void leave_out_8(const model::StudyTables& tables, std::vector<LeftOut>& out) {
  struct Table {
    const char* name;
    std::vector<model::EvictionPoint> model::StudyTables::* points;
    double (*predict)(const model::StudyFit&, const model::EvictionPoint&);
  };
  const Table all[] = {
      {"recompute", &model::StudyTables::recompute,
       [](const model::StudyFit& f, const model::EvictionPoint& p) { return model::predict_recompute(f, p); }},
      {"swap pinned", &model::StudyTables::swap_pinned,
       [](const model::StudyFit& f, const model::EvictionPoint& p) { return model::predict_swap(f, p, true); }},
      {"swap pageable", &model::StudyTables::swap_pageable,
       [](const model::StudyFit& f, const model::EvictionPoint& p) { return model::predict_swap(f, p, false); }}};
  constexpr std::size_t kBlockSizes = 6;  // 8a comes first in each table
  for (const Table& table : all) {
    const auto& points = tables.*table.points;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const model::EvictionPoint p = points[i];
      const bool by_block = i < kBlockSizes;
      LeftOut entry{fmt::format("{} {}", by_block ? "8a" : "8b", table.name),
                    by_block ? fmt::format("block {}", p.block_tokens) : fmt::format("{} tokens", p.evicted_tokens),
                    i == 0 || i + 1 == kBlockSizes || i == kBlockSizes || i + 1 == points.size(), p.seconds, 0};
      out.push_back(leave_out(
          tables, [&](model::StudyTables& t) { erase_at(t.*table.points, i); },
          [&](const model::StudyFit& fit) { return table.predict(fit, p); }, std::move(entry)));
    }
  }
}

}  // namespace

std::expected<model::StudyTables, std::string> read_tables(const json& calibration) {
  model::StudyTables tables;
  try {
    const json& fig3a = calibration.at("fig3a_prefill_fixed_tokens_per_s");
    const json& fig3c = calibration.at("fig3c_decode_tokens_per_s").at("models");
    tables.first_pass[kYarn] = read_3a(fig3a.at("Yarn-Llama-2-7B"));
    tables.first_pass[kLlama] = read_3a(fig3a.at("Llama-3.1-8B"));
    tables.decode[kYarn] = read_3c(fig3c, "Yarn-llama2-7B");
    tables.decode[kLlama] = read_3c(fig3c, "llama-3.1-8B");
    tables.decode[kOpt] = read_3c(fig3c, "OPT-13B");
    read_4a(calibration.at("fig4a_chunked_prefill_8k").at("data"), tables);
    read_8(calibration, tables);
  } catch (const json::exception& error) {
    return std::unexpected(std::string(error.what()));
  }
  if (std::string fault = tables_fault(tables); !fault.empty()) return std::unexpected(std::move(fault));
  return tables;
}

std::expected<StudyInputs, std::string> read_inputs(const json& workloads) {
  StudyInputs inputs;
  try {
    for (const char* const name : {"w1", "w2", "w3", "zipf_128_8192_ratio_0.5", "zipf_512_2048_ratio_0.5", "fig11a"}) {
      inputs.requests[name] = read_requests(workloads.at(name));
    }
    for (const auto& [order, prompts] : workloads.at("fig3b_prompt_lengths_in_order_of_joining").items()) {
      inputs.prompts_joining[order] = prompts.get<std::vector<std::uint32_t>>();
    }
  } catch (const json::exception& error) {
    return std::unexpected(std::string(error.what()));
  }
  return inputs;
}

std::vector<LeftOut> leave_one_out(const model::StudyTables& tables) {
  std::vector<LeftOut> out;
  leave_out_3a(tables, out);
  leave_out_3c(tables, out);
  leave_out_4a(tables, out);
  leave_out_8(tables, out);
  return out;
}

EngineCosts study_costs(const model::StudyFit& fit, model::StudyModelIndex m, bool pinned, std::uint32_t block_tokens) {
  const model::StudyModel& shape = model::kStudyModelTable[m];
  EngineCosts costs;
  costs.step = fit.step[m];
  costs.swap = pinned ? fit.pinned : fit.pageable;
  costs.block_bytes = shape.kv_bytes_per_token() * block_tokens;
  costs.copies_per_block = 2 * shape.layers;
  return costs;
}

std::uint32_t study_blocks(model::StudyModelIndex m, double gib) noexcept {
  const double block_bytes = model::kStudyModelTable[m].kv_bytes_per_token() * kStudyBlockTokens;
  return static_cast<std::uint32_t>(gib * kGibBytes / block_bytes);
}

std::uint32_t study_host_blocks(model::StudyModelIndex m) noexcept { return study_blocks(m, kHostGib); }

}  // namespace kvd::sim
