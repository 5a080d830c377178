// verify_store(): reads everything a store holds and says what is not what was written: superblocks, headers, footers,
// frames, and every record with its table and slabs.
//
// Offline and read-only; its own threads, one segment each at a time, with about 5 MiB (or one larger record) each.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "store/segment_report.h"
#include "store/store_reader.h"

namespace kvd::store {

struct VerifyReport {
  std::uint64_t records = 0;          // listed, tombstones not counted
  std::uint64_t records_damaged = 0;  // of these
  std::uint64_t records_ignored = 0;  // of another version, or listed with an impossible place
  std::uint64_t bytes = 0;            // of images that were read and verified
  std::uint32_t segments_used = 0;
  std::vector<Finding> findings;  // by segment; those of the superblocks first
  [[nodiscard]] std::uint64_t damages() const noexcept;
};

// Segments done and in all. Comes from the calling thread, about ten times a second and once at the end.
using VerifyProgress = std::function<void(std::uint64_t done, std::uint64_t all)>;

// Blocks until all is read. threads >= 1.
VerifyReport verify_store(const StoreReader& reader, unsigned threads, const VerifyProgress& progress);

}  // namespace kvd::store
