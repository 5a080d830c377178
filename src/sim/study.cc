#include "sim/study.h"

#include <functional>
#include <utility>

#include <fmt/format.h>

namespace kvd::sim {

using model::kLlama;
using model::kOpt;
using model::kYarn;

namespace {

constexpr double kHostGib = 64;
constexpr double kGibBytes = 1024.0 * 1024 * 1024;
constexpr double kStudyBlockTokens = 16;

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
