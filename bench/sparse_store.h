// A store too large for the drive it is on, made for benchmarks: superblocks, segment headers and footers are real and
// list records that are there in a few segments only; the rest of the file is a hole. What opening it costs is what
// opening a full store of that size costs, as recovery reads no payload of sealed segments. Plain functions that block.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "cmd/store_bench.h"
#include "io/disk.h"

namespace kvd::bench {

struct SparseOptions {
  std::string dir;
  cmd::RecordSize size;
  std::uint64_t flash_bytes = 0;    // of the file; 0: as many segments as the records take, and four that are free
  std::uint64_t records = 0;        // 0: as many as fit
  std::uint32_t real_segments = 0;  // the newest ones, whose records can be read
};

// Makes it in an empty directory: records 0, 1, 2... as cmd::StoreBench numbers them, segment after segment. Returns
// how many. Its records without payload are damaged ones to whoever reads them.
Result<std::uint64_t> make_sparse_store(const SparseOptions& options);

// Opens disks as large as their files are, without taking the room for what is not there.
class SparseDisks final : public io::DiskFactory {
 public:
  Result<std::unique_ptr<io::Disk>> open(io::Loop& loop, Log& log, const std::string& path,
                                         const io::DiskOptions& options) override {
    io::DiskOptions as_it_is = options;
    as_it_is.bytes = 0;
    return io::open_disk(loop, log, path, as_it_is);
  }
};

}  // namespace kvd::bench
