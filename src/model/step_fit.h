// Fits the step-time model to the calibration tables of the IPDPS'25 study (one A100-40GB, vLLM 0.4.2). Pure.
//
// Which constant comes from which table (docs/sim.md explains the choices):
//   floor, token, pair, seq, warm-up   3a (first passes of a fresh run) with 8a and 8b recompute (steady passes)
//   floor, pairs of chunked prefill    4a
//   decode over batch                  3c, less the KV read
//   KV read                            3c at the smallest batch: the rate at which the weights are read
//   copy and byte of swapping          8a and 8b, less one decode pass
// OPT-13B has no prefill table: its constants follow from the FLOP rate that the other two models reach.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

#include "model/step_time.h"

namespace kvd::model {

// A model of the study. Sizes of the weights are those of the paper's table I; the rest is from the models' configs.
struct StudyModel {
  std::string_view name;
  double weights_bytes;
  double layers;
  double hidden;
  double kv_hidden;  // KV heads * head size
  double ffn_matrix_params;
  double kv_blocks;  // blocks of 16 tokens in the study's runs at a context of 2K

  [[nodiscard]] double kv_bytes_per_token() const noexcept { return 2 * layers * kv_hidden * 2; }
  // Multiplications and additions of the layers' matrices for one token.
  [[nodiscard]] double flop_per_token() const noexcept {
    return 2 * layers * (2 * hidden * hidden + 2 * hidden * kv_hidden + ffn_matrix_params);
  }
};

enum StudyModelIndex : std::size_t { kYarn = 0, kLlama = 1, kOpt = 2, kStudyModels = 3 };

inline constexpr std::array<StudyModel, kStudyModels> kStudyModelTable = {{
    {"Yarn-Llama-2-7B", 14e9, 32, 4096, 4096, 3.0 * 4096 * 11008, 3083},
    {"Llama-3.1-8B", 16e9, 32, 4096, 1024, 3.0 * 4096 * 14336, 10697},
    {"OPT-13B", 26e9, 40, 5120, 5120, 2.0 * 5120 * 20480, 1014},
}};

struct PrefillPoint {
  double length = 0;  // tokens a prompt
  double seqs = 0;
  double seconds = 0;
};
struct DecodePoint {
  double batch = 0;
  double seconds = 0;
};
struct ChunkPoint {
  double chunk = 0;  // tokens a pass
  double prompt = 0;
  double seconds = 0;  // of all passes
};
struct EvictionPoint {
  double evicted_tokens = 0;
  double block_tokens = 0;
  double seconds = 0;  // overhead as the study defines it
};

struct StudyTables {
  std::array<std::vector<PrefillPoint>, kStudyModels> first_pass;  // 3a; empty for OPT
  std::array<std::vector<DecodePoint>, kStudyModels> decode;       // 3c, batches ascending
  std::vector<ChunkPoint> chunked;                                 // 4a, without the whole prompt in one flash pass
  std::vector<ChunkPoint> whole;                                   // 4a, "non chunked"
  std::vector<EvictionPoint> recompute;                            // 8a and 8b
  std::vector<EvictionPoint> swap_pinned;                          // 8a and 8b
  std::vector<EvictionPoint> swap_pageable;                        // 8a

  // Multiplies every time by `factor`.
  void scale(double factor) noexcept;
};

struct StudyFit {
  std::array<StepTime, kStudyModels> step;
  SwapTime pinned;
  SwapTime pageable;
};

// Requires the tables of Yarn and Llama, and at least two points in each table that is fitted.
StudyFit fit_study(const StudyTables& tables);

// What the fit says for the points of each table, in seconds.
double predict(const StudyFit& fit, StudyModelIndex model, const PrefillPoint& point);
double predict(const StudyFit& fit, StudyModelIndex model, const DecodePoint& point);
double predict_chunked(const StudyFit& fit, const ChunkPoint& point);
double predict_whole(const StudyFit& fit, const ChunkPoint& point);
double predict_recompute(const StudyFit& fit, const EvictionPoint& point);
double predict_swap(const StudyFit& fit, const EvictionPoint& point, bool pinned);

// One prompt as one pass.
PassShape prefill_shape(double tokens, double context, double seqs, bool chunked) noexcept;

}  // namespace kvd::model
