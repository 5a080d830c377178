// DeviceBench: what a file on a device gives by direct I/O with nothing above it: the limit that a store is held
// against in `kvdepot bench store`. Reads and writes go through the same engine as the store's (src/io).
//
// One loop, one thread; everything blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "cmd/stopwatch.h"
#include "io/disk.h"
#include "io/loop.h"

namespace kvd::cmd {

class DeviceBench {
 public:
  enum class Order : std::uint8_t { kRandom, kSequential };

  // Creates `path` with `bytes` (a multiple of 4 MiB), preallocated.
  static Result<std::unique_ptr<DeviceBench>> open(Log& log, const std::string& path, std::uint64_t bytes);

  // Transfers about `bytes` in pieces of `piece` (a multiple of 4 KiB that divides the file), `depth` at once, no piece
  // twice. Errors: kIo.
  Result<RunFigures> read(std::uint64_t bytes, std::uint64_t piece, std::uint32_t depth, Order order,
                          std::uint64_t seed);
  Result<RunFigures> write(std::uint64_t bytes, std::uint64_t piece, std::uint32_t depth);
  [[nodiscard]] const char* engine() const noexcept { return disk_->engine(); }

 private:
  DeviceBench(std::unique_ptr<io::Loop> loop, std::unique_ptr<io::Disk> disk)
      : loop_(std::move(loop)), disk_(std::move(disk)) {}
  Result<RunFigures> run(io::DiskOp::Kind kind, const std::vector<std::uint64_t>& offsets, std::uint64_t piece,
                         std::uint32_t depth);

  std::unique_ptr<io::Loop> loop_;
  std::unique_ptr<io::Disk> disk_;
};

}  // namespace kvd::cmd
