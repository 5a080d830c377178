// DeviceBench: what files on one or several devices give by direct I/O with nothing above them, all at once: the limit
// that a store is held against in `kvdepot bench store`. Reads and writes go through the same engine as the store's
// (src/io).
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

  // Creates each of `paths` with `bytes` (a multiple of 4 MiB), preallocated.
  static Result<std::unique_ptr<DeviceBench>> open(Log& log, const std::vector<std::string>& paths,
                                                   std::uint64_t bytes);

  // Transfers about `bytes` for each file in pieces of `piece` (a multiple of 4 KiB that divides a file), `depth` of
  // each at once, no piece twice. Who is faster transfers more of the sum. Errors: kIo.
  Result<RunFigures> read(std::uint64_t bytes, std::uint64_t piece, std::uint32_t depth, Order order,
                          std::uint64_t seed);
  Result<RunFigures> write(std::uint64_t bytes, std::uint64_t piece, std::uint32_t depth);
  [[nodiscard]] const char* engine() const noexcept { return disks_.front()->engine(); }

 private:
  // Of each file the places to go to, in order.
  using Offsets = std::vector<std::vector<std::uint64_t>>;

  explicit DeviceBench(std::unique_ptr<io::Loop> loop) : loop_(std::move(loop)) {}
  Result<RunFigures> run(io::DiskOp::Kind kind, const Offsets& offsets, std::uint64_t pieces, std::uint64_t piece,
                         std::uint32_t depth);

  std::unique_ptr<io::Loop> loop_;
  std::vector<std::unique_ptr<io::Disk>> disks_;
};

}  // namespace kvd::cmd
