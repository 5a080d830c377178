#include "trace/check.h"

#include <cmath>

#include <fmt/format.h>

namespace kvd::trace {
namespace {

std::string arrival_fault(double arrival_s, double before_s) {
  if (!std::isfinite(arrival_s)) return "the arrival is not a finite number: expected seconds from the trace's start";
  if (arrival_s < 0) return fmt::format("the arrival is negative ({:g} s): expected 0 or more", arrival_s);
  return fmt::format(
      "arrives at {:g} s, before the request above it ({:g} s): expected ascending arrivals; sort the file", arrival_s,
      before_s);
}

}  // namespace

std::optional<std::string> request_fault(const Request& request, double before_s, const ReadOptions& options) {
  if (!(request.arrival_s >= before_s)) return arrival_fault(request.arrival_s, before_s);
  if (!std::isfinite(request.arrival_s)) return arrival_fault(request.arrival_s, before_s);
  if (request.prompt_tokens == 0) return "the prompt has 0 tokens: expected 1 or more";
  const std::uint64_t tokens = std::uint64_t{request.prompt_tokens} + request.output_tokens;
  if (options.context_tokens_max != 0 && tokens > options.context_tokens_max) {
    return fmt::format(
        "{} prompt and {} output tokens make {}, more than the context of {}: expected a shorter request "
        "or a model with a longer context",
        request.prompt_tokens, request.output_tokens, tokens, options.context_tokens_max);
  }
  return std::nullopt;
}

Trace every_nth(const Trace& trace, std::uint32_t n, std::uint32_t i) {
  Trace part;
  part.block_tokens = trace.block_tokens;
  part.distinct_blocks = trace.distinct_blocks;
  part.timed = trace.timed;
  for (std::size_t at = i; at < trace.requests.size(); at += n) {
    Request request = trace.requests[at];
    const auto blocks = trace.blocks_of(request);
    request.first_block = static_cast<std::uint32_t>(part.block_ids.size());
    part.block_ids.insert(part.block_ids.end(), blocks.begin(), blocks.end());
    part.requests.push_back(request);
  }
  return part;
}

}  // namespace kvd::trace
