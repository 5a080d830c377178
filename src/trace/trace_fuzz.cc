// Fuzzes the readers of traces: an input is a file. What is read must hold together, and a reuse profile of it must
// exist; what is not read must be complained about in words.
#include <cstdint>
#include <string_view>

#include "base/testing/fuzzing.h"
#include "trace/reuse.h"
#include "trace/trace.h"

namespace kvd::trace {
namespace {

void check(const FromInput<Trace>& read) {
  if (!read) {
    require(!read.error().text.empty());
    return;
  }
  require(!read->requests.empty());
  double before_s = 0;
  std::uint64_t blocks = 0;
  for (const Request& request : read->requests) {
    require(request.arrival_s >= before_s && request.prompt_tokens > 0);
    before_s = request.arrival_s;
    for (const std::uint32_t id : read->blocks_of(request)) require(id < read->distinct_blocks);
    blocks += request.blocks;
  }
  require(blocks == read->block_ids.size());
  if (read->block_tokens == 0) return;
  const ReuseProfile profile(*read);
  require(profile.ideal_hit_rate() >= 0 && profile.ideal_hit_rate() <= 1);
  require(profile.hit_rate(0) == 0);
}

}  // namespace
}  // namespace kvd::trace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);  // NOLINT(readability-identifier-naming)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {  // NOLINT(readability-identifier-naming)
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  kvd::trace::check(kvd::trace::read_trace(text, "fuzz"));
  kvd::trace::check(kvd::trace::read_mooncake(text, "fuzz", {.block_tokens = 16, .context_tokens_max = 1000}));
  kvd::trace::check(kvd::trace::read_csv(text, "fuzz"));
  return 0;
}
