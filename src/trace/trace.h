// Request traces: when requests come, how long they are and, where the trace says so, which prefix blocks they share.
// Readers for the three formats in use; text in, values out: no files, no clock. A Trace is a value; any thread.
//
//   Mooncake JSONL   {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [int, ...]} a line
//   arrival CSV      a header with an arrival, a prompt and an output column (names below), e.g. Azure's LLM traces
//   length CSV       the same without an arrival column: all requests are there at once
//
// Written for speed: one pass over the text, no copies of it. 12,031 requests with 288,500 block ids (3.0 MB) take
// about 10 ms on one core of a 2.x GHz server CPU; kvd_trace_test prints what they take here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/input.h"

namespace kvd::trace {

struct Request {
  double arrival_s = 0;             // from the start of the trace; 0 for all where it has no arrivals
  std::uint32_t prompt_tokens = 0;  // at least 1
  std::uint32_t output_tokens = 0;  // may be 0
  std::uint32_t first_block = 0;    // into Trace::block_ids
  std::uint32_t blocks = 0;         // 0 where the trace has no block ids
};

struct Trace {
  std::vector<Request> requests;  // in order of arrival
  // Ids of prefix blocks, request after request, renumbered 0, 1, ... in order of first appearance. Equal id = equal
  // whole prefix up to and including that block.
  std::vector<std::uint32_t> block_ids;
  std::uint32_t distinct_blocks = 0;  // ids are below this
  std::uint32_t block_tokens = 0;     // tokens of a whole block, the last of a request may be partial; 0 = no ids
  bool timed = false;                 // has arrivals

  [[nodiscard]] std::span<const std::uint32_t> blocks_of(const Request& request) const {
    return std::span(block_ids).subspan(request.first_block, request.blocks);
  }
  // Tokens of the request's i-th block: block_tokens, less for the last one.
  [[nodiscard]] std::uint32_t tokens_of_block(const Request& request, std::uint32_t i) const {
    const std::uint32_t left = request.prompt_tokens - i * block_tokens;
    return left < block_tokens ? left : block_tokens;
  }
  // Last arrival minus first, seconds.
  [[nodiscard]] double span_s() const {
    return requests.empty() ? 0 : requests.back().arrival_s - requests.front().arrival_s;
  }
};

// Requests i, i + n, i + 2n, ... of a trace: what one of n replicas sees that are served in turn. i < n.
[[nodiscard]] Trace every_nth(const Trace& trace, std::uint32_t n, std::uint32_t i);

struct ReadOptions {
  std::uint32_t block_tokens = 512;      // of a JSONL trace's hash_ids; Mooncake's traces have 512, Qwen's 16
  std::uint64_t context_tokens_max = 0;  // prompt + output of a request at most; 0 = no limit
};

// Most tokens of a prompt or an output that are taken for real.
inline constexpr std::uint32_t kRequestTokensMax = 100'000'000;

// Reads `text`, whose first character tells the format: '{' is JSONL, anything else CSV. `file` is used in faults only.
// Faults: malformed lines, missing fields or columns, times that are negative, not finite or before the line above,
// lengths of 0 or above kRequestTokensMax, a number of hash_ids that does not fit the prompt, a request longer than
// the context, no request at all. Unknown fields and columns are skipped.
[[nodiscard]] FromInput<Trace> read_trace(std::string_view text, std::string_view file,
                                          const ReadOptions& options = {});
[[nodiscard]] FromInput<Trace> read_mooncake(std::string_view text, std::string_view file,
                                             const ReadOptions& options = {});
// Columns are found by name, in any order and case: arrival `arrived_at`, `arrival_s`, `timestamp` (seconds, or a
// date and time as in 2023-11-16 18:15:46.68); prompt `num_prefill_tokens`, `prompt_tokens`, `input_length`,
// `contexttokens`, `request tokens`; output `num_decode_tokens`, `output_tokens`, `output_length`, `generatedtokens`,
// `response tokens`. Times are counted from the first arrival where the column holds dates.
[[nodiscard]] FromInput<Trace> read_csv(std::string_view text, std::string_view file, const ReadOptions& options = {});

}  // namespace kvd::trace
