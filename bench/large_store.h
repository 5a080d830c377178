// What a store of very many records costs: its memory, a match of a prefix, its recovery. Each on a store that
// make_sparse_store() made, opened as an embedding program opens it; printed as JSON on stdout. Plain functions that
// block.
#pragma once

#include <cstdint>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "cmd/store_bench.h"

namespace kvd::bench {

struct LargeOptions {
  std::string dir;
  cmd::RecordSize size;
  std::uint64_t pool_bytes = std::uint64_t{64} << 20;
  std::uint64_t index_records = 0;  // as StoreOptions::index_records_max
  std::uint64_t records = 0;        // that are stored
  std::uint64_t seed = 1;
  std::uint32_t keys = 512;   // of a match
  std::uint32_t calls = 400;  // of match
  bool drain = false;         // of recovery: the store is ended in order, otherwise as by a kill
};

// Opens the store with a pool that is not touched, looks up `calls` prefixes of random records, and prints the median
// and the highest percentile of a call, and the process's peak of memory so far.
Status print_match(Log& log, const LargeOptions& options, std::string& why);
// Prints how long it takes until the store is open, until the newest record, which must be real, was got while the rest
// is still being read, and until all are served. Behind that the store is left as `drain` says, which is what the next
// one finds.
Status print_recovery(Log& log, const LargeOptions& options, std::string& why);

}  // namespace kvd::bench
